"""Turns (contract §6): `Turn`, its summaries in three depths, and the values in them.

Stored and exported turns have these shapes. Reading a malformed one raises pydantic's `ValidationError`.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nexus.core.models import Identifier, Moment

Level = Literal["brief", "detailed", "comprehensive"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

# Work that may be due on a turn: to see whether it is over, to have a model summarise it, and to have it read the facts
# in what the person said.
CLOSE: Final = "close"
SUMMARISE: Final = "summarise"
EXTRACT: Final = "extract"

# The author of a summary: the rules of this package, or a model.
Source = Literal["fallback", "model"]


class TurnStatus(StrEnum):
    """How far a turn has come."""

    PENDING = "pending"  # it was asked for
    THINKING = "thinking"  # a context of the layout `thinking` was asked for last
    ACTING = "acting"  # the model is at work: a result of a tool has come, or the run goes on
    EXECUTING = "executing"  # the model has called tools
    COMPLETED = "completed"  # its answer is known
    UNANSWERED = "unanswered"  # it fell silent, or another turn began, without an answer
    FAILED = "failed"  # in documents of 0.1.0: it fell silent, and the model had said nothing

    @property
    def is_over(self) -> bool:
        """Whether nothing more is expected."""
        return self in {TurnStatus.COMPLETED, TurnStatus.UNANSWERED, TurnStatus.FAILED}


# As they are stored. No set, since a malformed document may hold a list, which has no hash.
OVER: Final = tuple(status.value for status in TurnStatus if status.is_over)


def _listed(value: Any) -> Any:
    # Stored documents hold lists, and null where there is nothing.
    return () if value is None else tuple(value) if isinstance(value, list) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Structured(_Part):
    """A summary for programs, and the level `comprehensive`.

    An overview of one or two sentences; actions with tools and parameters; results with figures; decisions with
    reasons; next steps announced or left to do.
    """

    overview: str
    actions: Texts = ()
    results: Texts = ()
    decisions: Texts = ()
    next_steps: Texts = ()


class Summaries(_Part):
    """A turn in three depths: `brief` of two or three sentences, `detailed` of five to eight, and `structured`.

    With the source `fallback` they were made by rules, and will be made again by a model when there is one.
    """

    brief: str
    detailed: str
    structured: Structured
    source: Source = "fallback"


class ToolOutcome(_Part):
    """A call of a tool and its result.

    Attributes:
        arguments: as the model gave them; text where they were no JSON object.
        success: None where there is no result, or where it does not say.
        result: None where there is none. A long one is shortened here, and whole in `messages`.
    """

    name: str
    arguments: Any = None
    success: bool | None = None
    result: Any = None


class ThinkingRound(_Part):
    """One round of thought before acting; its tokens as the orchestrator counted them, 0 where it did not."""

    round_number: int = Field(ge=1)
    content: str
    tokens_used: int = Field(default=0, ge=0)


class ThinkingPhase(_Part):
    """The rounds of thought of a turn."""

    rounds: Annotated[tuple[ThinkingRound, ...], BeforeValidator(_listed)] = ()
    tokens_used: int = Field(default=0, ge=0)


class TokenUsage(_Part):
    """Tokens that the orchestrator and the model reported; 0 where they did not."""

    thinking: int = Field(default=0, ge=0)
    action: int = Field(default=0, ge=0)
    total: int = Field(default=0, ge=0)


class Turn(_Part):
    """A run as it is remembered.

    Attributes:
        id: `turn_<turn_number>_<milliseconds since 1970>`.
        turn_number: from 1 in each session, each one more than the one before.
        timestamp: when it began.
        task_context: the user's goal at that time.
        workspace_context: the surroundings, as the orchestrator described them.
        messages: ids of the recorded messages, in order.
        removed: `_id`s of their rows that retention removed.
        insights: short statements worth keeping.
        given_up: why no model is asked for a summary any more; `""` unless one was asked in vain.
    """

    id: Identifier
    turn_number: int = Field(ge=1)
    owner_key: Identifier
    session_id: Identifier
    run_id: Identifier
    timestamp: Moment
    status: TurnStatus = TurnStatus.PENDING
    task_context: str = ""
    workspace_context: str = ""
    messages: Texts = ()
    removed: Texts = ()
    thinking_phase: ThinkingPhase | None = None
    tool_calls: Annotated[tuple[ToolOutcome, ...], BeforeValidator(_listed)] = ()
    summaries: Summaries
    insights: Texts = ()
    token_usage: TokenUsage = TokenUsage()
    given_up: str = ""


@dataclass(frozen=True, slots=True)
class TurnStart:
    """A run that is to become a turn.

    Attributes:
        timestamp: of its input.
        input, input_id: the message of the user, and its id.
        task_context: the goal that came along; `""` for none.
        thinking: a context of the layout `thinking` is asked for; `rounds` came along with it.
        traceparent: the span of the request, as W3C's Trace Context writes it; `""` for none.
    """

    owner_key: str
    session_id: str
    run_id: str
    timestamp: datetime
    input: str
    input_id: str = ""
    task_context: str = ""
    workspace_context: str = ""
    thinking: bool = False
    rounds: tuple[ThinkingRound, ...] = ()
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """The user's goal, as a run is to know it.

    Attributes:
        text: `""` where there is none yet.
        turn_id: the turn that says so; `""` for none.
        turn_number: that of the run's own turn; None where it has none.
        earlier: how many turns the session has before that one; where the run has none, how many there are.
    """

    text: str = ""
    turn_id: str = ""
    turn_number: int | None = None
    earlier: int = 0
