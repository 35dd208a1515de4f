"""What travels on the bus (CONTRACT §1.2): `Message` is the envelope, `Run` the content of a build request."""

import secrets
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Role(StrEnum):
    """Who speaks in a message."""

    HUMAN = "HUMAN"
    AI = "AI"
    SYSTEM = "SYSTEM"
    TOOL = "TOOL"
    COMMAND = "COMMAND"


class RunStatus(StrEnum):
    """How far an orchestrator has come with a run. Nexus carries it and does not act on it."""

    PENDING = "PENDING"
    BUILDING_CONTEXT = "BUILDING_CONTEXT"
    AWAITING_LLM_DECISION = "AWAITING_LLM_DECISION"
    AWAITING_TOOL_RESULT = "AWAITING_TOOL_RESULT"
    GENERATING_RESPONSE = "GENERATING_RESPONSE"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"


def utc_now() -> datetime:
    """The current moment, aware, in UTC."""
    return datetime.now(UTC)


def as_utc(moment: datetime) -> datetime:
    """`moment` as an aware datetime in UTC; a naive one is taken to be UTC already (CONTRACT §1.2)."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def new_message_id() -> str:
    """A fresh message id: `msg_` and 32 hexadecimal digits."""
    return f"msg_{secrets.token_hex(16)}"


def new_run_id() -> str:
    """A fresh run id: `run_` and 32 hexadecimal digits."""
    return f"run_{secrets.token_hex(16)}"


def _utc_in_range(moment: datetime) -> datetime:
    try:
        return as_utc(moment)
    except OverflowError as error:
        raise ValueError("a moment between the years 1 and 9999 in UTC") from error


def _none_is_empty(value: Any) -> Any:
    return {} if value is None else value


Identifier = Annotated[str, Field(min_length=1, max_length=256)]
Moment = Annotated[datetime, AfterValidator(_utc_in_range)]
Metadata = Annotated[dict[str, Any], BeforeValidator(_none_is_empty)]


class _WireModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Message(_WireModel):
    """One envelope. Unknown extra fields are ignored; a naive timestamp is UTC; `metadata: null` is `{}`.

    `content` is whatever JSON the topic calls for. Treat it as read-only: a frozen model does not freeze what it holds.
    """

    id: Identifier = Field(default_factory=new_message_id)
    run_id: Identifier
    owner_key: Identifier
    role: Role
    content: Any = None
    timestamp: Moment = Field(default_factory=utc_now)
    metadata: Metadata = Field(default_factory=dict)


class Run(_WireModel):
    """One interaction: a human input, then any number of model answers and tool results."""

    id: Identifier = Field(default_factory=new_run_id)
    owner_key: Identifier
    status: RunStatus | str = RunStatus.PENDING
    history: list[Message] = Field(default_factory=list)
    iteration_count: int = 0
    tools: list[Any] = Field(default_factory=list)
    metadata: Metadata = Field(default_factory=dict)
