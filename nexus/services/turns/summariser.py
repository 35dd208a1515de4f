"""A summary by a model: one call for all three depths, in parts where a turn is too large for one (CONTRACT §6)."""

from dataclasses import dataclass

from nexus.core.errors import NexusError
from nexus.core.ports import LanguageModel
from nexus.core.turns import Summaries
from nexus.services.turns.facts import TurnFacts


class NonsenseError(NexusError):
    """What the model answered is no summary of the turn. The text says what is wrong with it, and quotes nothing."""


@dataclass(frozen=True, slots=True)
class Summarised:
    """What a model made of a turn.

    Attributes:
        summaries: with the source `model`.
        insights: up to five short statements.
        calls: how often the model was asked.
    """

    summaries: Summaries
    insights: tuple[str, ...]
    calls: int


class Summariser:
    """Summarises turns by a model.

    Args:
        model: whom to ask.
        max_input_tokens: what fits into one prompt, by the estimate of this module.
    """

    def __init__(self, model: LanguageModel, *, max_input_tokens: int = 24_000) -> None:
        self._model = model
        self._max_input_tokens = max_input_tokens

    async def summarise(self, facts: TurnFacts) -> Summarised:
        """All three depths and a few insights.

        Raises:
            ModelUnavailableError: the model could not be asked.
            NonsenseError: it was asked, and what came was no summary.
        """
        raise NotImplementedError
