"""What is known of a person, with evidence, and what binds every answer: facts and constraints (contract §15).

These are the shapes in which both are stored and exported. Reading a malformed one raises pydantic's `ValidationError`.
"""

from datetime import datetime
from typing import Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from nexus.core.models import MAX_ID_CHARS, Moment

# What was said or written in so many words, and what was concluded.
FactLevel = Literal["explicit", "derived"]
# A `memory.facts` message, the tool `remember`, an operator's command, or a model that reads what the person said.
FactSource = Literal["message", "tool", "operator", "model"]
ConstraintKind = Literal["must", "must_not", "format", "scope"]
KINDS: Final[tuple[ConstraintKind, ...]] = get_args(ConstraintKind)
ConstraintScope = Literal["owner", "session", "run"]
CONSTRAINT_SCOPES: Final[tuple[ConstraintScope, ...]] = get_args(ConstraintScope)

MAX_TOPIC_CHARS: Final = 64
MAX_VALUE_CHARS: Final = 500
MAX_CONSTRAINT_CHARS: Final = 2_000
MOST_EVIDENCE: Final = 20
# Of one `memory.facts` message.
MOST_FACTS: Final = 100


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Statement(_Stored):
    """That something holds of a person, as it was said once, or that it no longer does. Statements never change.

    Attributes:
        id: the same for the same statement, so that it is kept once.
        topic, sub_topic: what it is about. A pair has one value at a time; `sub_topic` may be `""`.
        value: `""` in a statement that takes back whatever the value is.
        evidence: ids of the messages that say so.
        session_id: in which it was said; `""` for none.
        retires: the value no longer holds.
    """

    id: str
    owner_key: str
    topic: str = Field(min_length=1, max_length=MAX_TOPIC_CHARS)
    sub_topic: str = Field(default="", max_length=MAX_TOPIC_CHARS)
    value: str = Field(max_length=MAX_VALUE_CHARS)
    level: FactLevel = "explicit"
    evidence: tuple[str, ...] = Field(default=(), max_length=MOST_EVIDENCE)
    session_id: str = Field(default="", max_length=MAX_ID_CHARS)
    source: FactSource = "message"
    said_at: Moment
    retires: bool = False


class Fact(_Stored):
    """A value of a topic, and for how long it held (contract §15), as it follows from the statements.

    Attributes:
        evidence: ids of all messages that support it, sorted.
        support: in how many sessions it was said.
        valid_from: when it was said, a derived one when the second session said it; None for one without that support.
        valid_to: when it was superseded or taken back; None while it holds.
        supersedes: id of the fact that held before; None for none.
    """

    id: str
    owner_key: str
    topic: str
    sub_topic: str
    value: str
    level: FactLevel
    evidence: tuple[str, ...]
    support: int
    valid_from: datetime | None
    valid_to: datetime | None
    supersedes: str | None
    source: FactSource

    @property
    def holds(self) -> bool:
        """Whether it is shown."""
        return self.valid_from is not None and self.valid_to is None


class Constraint(_Stored):
    """A rule for every answer of a run, a session or to an owner, in the words in which it was given (contract §15).

    Attributes:
        id: derived from scope, place, kind and text, so that the same rule is there once.
        session_id: of scope `session` and `run`; `""` for an owner's.
        run_id: of scope `run`; `""` for others.
        source_message_id: of the message that set it; `""` for none.
        valid_from: when it was set last.
        valid_to: when it was taken back last; it holds where that is None or before `valid_from`.
    """

    id: str
    text: str = Field(min_length=1, max_length=MAX_CONSTRAINT_CHARS)
    kind: ConstraintKind = "must"
    scope: ConstraintScope = "session"
    session_id: str = Field(default="", max_length=MAX_ID_CHARS)
    run_id: str = Field(default="", max_length=MAX_ID_CHARS)
    source_message_id: str = ""
    valid_from: Moment
    valid_to: Moment | None = None

    @property
    def holds(self) -> bool:
        """Whether it is in force: what is set and taken back at the same moment is not."""
        return self.valid_to is None or self.valid_to < self.valid_from
