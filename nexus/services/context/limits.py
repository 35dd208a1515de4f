"""How much of a model's window a context may take, and when a session is compacted (CONTRACT §7, §9). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nexus.services.context.budget import Room, Weights
from nexus.services.context.tokens import Measure

# So much of the window stays word for word, whatever else is in it; and as long as the history takes no more, a
# compaction would gain nothing.
_LEAST_KEPT: Final = 0.05
_LEAST_GAINED: Final = 0.1
# The part of a small window that a summary may take.
_SUMMARY: Final = 1 / 16
# Of a session with more messages than are shown, this part of those that are: then there is none that is neither shown
# nor compacted, for some time.
_OF_SHOWN: Final = 0.5
# However the settings stand to each other, a compaction has to gain something.
_BELOW: Final = 0.9


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """What is needed of the settings.

    Attributes:
        context_window: tokens that the model takes, unless a request says otherwise.
        max_tokens: by layout, tokens that a context of it takes at most; the window, where it has none.
        turn_share, pinned_share: parts of that which two blocks of the agent layout take at most.
        compact_at, compact_to: at which part of the window a session is compacted, and to which.
        summary_max_tokens: the longest summary.
    """

    context_window: int = 128_000
    max_tokens: Mapping[str, int | None] = field(default_factory=dict)
    turn_share: float = 0.1
    pinned_share: float = 0.2
    compact_at: float = 0.75
    compact_to: float = 0.4
    summary_max_tokens: int = 1_500

    def limit(self, layout: str, window: int | None = None) -> int:
        """How many tokens a context of the layout may take, in a window that a request named, if it did."""
        given = window or self.context_window
        return min(given, self.max_tokens.get(layout) or given)

    def room(self, measure: Measure, limit: int, taken: int) -> Room:
        """What is left for the messages of a layout where so much is taken by what comes with them."""
        return Room(measure, max(limit - taken, 0), int(limit * self.turn_share), int(limit * self.pinned_share))

    def is_heavy(self, weights: Weights, taken: int, limit: int) -> bool:
        """Whether the session is to be compacted, and there is something to be gained.

        Where instructions, input and run fill the window by themselves, there is not: nothing of the session is shown
        then, whether it is compacted or not, and the next context may have room for all of it.
        """
        is_heavy = weights.total + taken >= limit * self.compact_at
        return is_heavy and weights.fixed + taken < limit and self.is_worth_compacting(weights, limit)

    def summary_tokens(self, limit: int, measure: Measure) -> int:
        """How many tokens a summary may have, as the vocabulary counts them."""
        return min(self.summary_max_tokens, measure.counted(int(limit * _SUMMARY)))

    def is_worth_compacting(self, weights: Weights, limit: int) -> bool:
        """Whether something would be gained."""
        return weights.history >= limit * _LEAST_GAINED

    def keep_tokens(self, weights: Weights, taken: int, limit: int, measure: Measure, *, cut: bool) -> int:
        """How many tokens of the history stay, as the vocabulary counts them.

        Args:
            weights: of the context as it would be.
            taken: by what comes with it.
            limit: of both together.
            measure: with which all that was counted.
            cut: the session has messages that are not read for a context.
        """
        shown = int(weights.history * _OF_SHOWN)
        if not self.is_heavy(weights, taken, limit):
            return measure.counted(shown)
        # What is used then is what is aimed at.
        aim = min(self.compact_to, self.compact_at * _BELOW) * limit
        others = (
            weights.total
            - weights.history
            - weights.summary
            + measure.told(self.summary_tokens(limit, measure))
            + taken
        )
        keep = max(int(aim - others), int(limit * _LEAST_KEPT))
        return measure.counted(min(keep, shown) if cut else keep)
