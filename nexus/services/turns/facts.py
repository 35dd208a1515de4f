"""What is known of a turn from the rows of its run: what was said, what tools did, and whether it is over. Pure.

Texts are as they were recorded: nothing is escaped, shortened or left out here but what is malformed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nexus.core.turns import ThinkingRound, TokenUsage, ToolOutcome

Speaker = Literal["user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model made.

    Attributes:
        arguments: parsed, in the order in which they were written; `{}` where they were no JSON object.
        raw_arguments: as JSON text.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    raw_arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the run.

    Attributes:
        source: id of the recorded message.
        text: `""` where an answer only makes calls; JSON for what was no text.
        calls: those that an answer makes.
        tool: of a result the tool that gave it, `""` where nobody knows.
        success: of a result, if it says; None for all else.
    """

    source: str
    speaker: Speaker
    text: str
    calls: tuple[Call, ...] = ()
    tool: str = ""
    success: bool | None = None


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """Everything that a summary is made of.

    Attributes:
        goal: the turn's task context; `""` for none.
        workspace: what was said of the surroundings.
        rounds: of thought before acting.
        said: the messages in their order; the first of the user's is the input.
        outcomes: calls in the order in which they were made, each with its result.
        answer: the text of the model's last message, if that makes no calls; `""` while there is none.
        finished: the answer is known, and every call has a result.
        usage: tokens that results reported.
    """

    goal: str = ""
    workspace: str = ""
    rounds: tuple[ThinkingRound, ...] = ()
    said: tuple[Said, ...] = ()
    outcomes: tuple[ToolOutcome, ...] = ()
    answer: str = ""
    finished: bool = False
    usage: TokenUsage = field(default_factory=TokenUsage)

    @property
    def input(self) -> str:
        """What the user said first."""
        return next((item.text for item in self.said if item.speaker == "user"), "")

    @property
    def messages(self) -> tuple[str, ...]:
        """The ids of the recorded messages, in order."""
        return tuple(item.source for item in self.said)


def read_facts(
    rows: Sequence[Any], *, goal: str = "", workspace: str = "", rounds: Sequence[ThinkingRound] = ()
) -> TurnFacts:
    """The facts in the rows of one run, which may come in any order, repeated and malformed."""
    raise NotImplementedError
