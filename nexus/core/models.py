"""What travels on the bus (contract §1.1, §1.2): topics, the envelope `Message`, and `Run`, what a request is about."""

import re
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import count
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

# Row ids have the form of a MongoDB ObjectId: seconds, five random bytes for the process, and a counter.
_PROCESS: Final = secrets.token_hex(5)
_COUNTER: Final = count(secrets.randbelow(1 << 16))
_OBJECT_ID: Final = re.compile(r"[0-9a-f]{24}")
# The part of a row id that is the second in which it was made.
SECOND: Final = slice(0, 8)
# The moment of a row without a readable time.
LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
# Keys in the metadata of a message or row: it is internal to a sub-agent, and the id of that sub-agent.
INTERNAL: Final = "sub_agent_internal"
AGENT_ID: Final = "agent_id"
# Of a large result of a tool: the text that contexts show in its place, and the name under which it is read whole.
CONDENSED: Final = "condensed"
HANDLE: Final = "handle"
# The session of rows that name none.
DEFAULT_SESSION: Final = "default"
# The owner in whose name `nexus doctor` asks whether a service answers. Nothing is kept of it.
DOCTOR: Final = "nexus.doctor"
# A document as a store keeps it.
Row = dict[str, Any]
MAX_ID_CHARS: Final = 256
AMBIGUOUS_ID: Final = "NUL, U+FFFD and half a surrogate pair are not allowed in an id"
_AMBIGUOUS: Final = re.compile("[\0\ud800-\udfff\ufffd]")
# Seconds since 1970 are milliseconds from here on: 1973, or the year 5138.
_MILLISECONDS: Final = 100_000_000_000
_EARLIEST: Final = 100_000_000
_EPOCH: Final = re.compile(r"\d{9,13}(?:\.\d+)?")
# How far ahead a sender's clock may be.
_MOST_AHEAD: Final = timedelta(seconds=300)


class Topics:
    """Every topic that Nexus publishes, reads or knows of.

    The names belong to existing orchestrators and stay as they are. Only bus adapters put `bus.channel_prefix` before
    them, so that code compares these constants.
    """

    RUNS_NEW: Final = "runs.new"
    CONTEXT_BUILD_REQUEST: Final = "context.build.request"
    CONTEXT_BUILD_RESPONSE: Final = "context.build.response"
    LLM_REQUESTS: Final = "llm.requests"
    LLM_RESULTS: Final = "llm.results"
    TOOLS_REQUESTS: Final = "tools.requests"
    TOOLS_RESULTS: Final = "tools.results"
    UI_EVENTS: Final = "ui.events"
    SYSTEM_COMMAND: Final = "system.command"
    COMMAND_RESULT: Final = "command.result"

    RUNS_INPUT: Final = "runs.input"
    TOOLS_PROGRESS: Final = "tools.progress"
    TOOLS_REGISTER: Final = "tools.register"
    TOOLS_UNREGISTER: Final = "tools.unregister"
    SESSION_STATE: Final = "session.state"
    MEMORY_FACTS: Final = "memory.facts"
    SESSION_CONSTRAINTS: Final = "session.constraints"
    CONFIG_CHANGED: Final = "config.changed"
    MEMORY_SEARCH: Final = "memory.search"
    MEMORY_SEARCH_RESULT: Final = "memory.search.result"


ALL_TOPICS: Final = frozenset(value for name, value in vars(Topics).items() if name.isupper())
# The topics of requests, and of their answers; one requester's own is `<topic>.<reply_to>`.
ANSWER_TOPICS: Final[Mapping[str, str]] = {
    Topics.CONTEXT_BUILD_REQUEST: Topics.CONTEXT_BUILD_RESPONSE,
    Topics.MEMORY_SEARCH: Topics.MEMORY_SEARCH_RESULT,
}


class Role(StrEnum):
    """The speaker of a message. Other systems' names for it, in any case, are read as the same (contract §11)."""

    HUMAN = "HUMAN"
    AI = "AI"
    SYSTEM = "SYSTEM"
    TOOL = "TOOL"
    COMMAND = "COMMAND"

    @classmethod
    def _missing_(cls, value: object) -> "Role | None":
        # LangChain's classes end so.
        return (
            _ROLES.get(value.lower().removesuffix("chunk").removesuffix("message")) if isinstance(value, str) else None
        )


_ROLES: Final[Mapping[str, Role]] = {
    **{role.value.lower(): role for role in Role},
    "user": Role.HUMAN,
    # Items of OpenAI's Responses API have no role.
    **dict.fromkeys(("assistant", "model", "function_call", "custom_tool_call", "mcp_call", "reasoning"), Role.AI),
    **dict.fromkeys(("function", "tool_result", "function_call_output", "custom_tool_call_output"), Role.TOOL),
    "developer": Role.SYSTEM,
}
# Where clients have the files and images that come with a text.
ATTACHED: Final = ("attachments", "experimental_attachments", "images", "image", "image_url", "files", "file")
# Where messages of other systems hold what they say, beside or in place of `content`; and which call a result answers.
SAID_BESIDE: Final = frozenset(
    {
        *("tool_calls", "toolCalls", "invalid_tool_calls", "function_call", "additional_kwargs", "refusal", "parts"),
        *("blocks", "text", "data", "audio", "output", "reasoning_content", "arguments", "input", "summary"),
        *("encrypted_content", *ATTACHED),
    }
)
ABOUT_RESULT: Final = frozenset(
    {
        *("tool_call_id", "tool_use_id", "call_id", "tool_name", "name", "is_error", "status", "execution_success"),
        *("toolCallId", "toolName"),
    }
)
BESIDE_CONTENT: Final = SAID_BESIDE | ABOUT_RESULT
# Where a stored call has its name and its arguments, the first that is there; a function by itself may be a name.
CALL_NAMES: Final = ("name", "toolName", "tool_name", "function")
# `partial_json` is what was streamed in place of an empty `input`.
CALL_ARGUMENTS: Final = ("args", "arguments", "partial_json", "input", "parameters", "tool_kwargs")
# In what a call has both, where it is not flat.
CALL_WITHIN: Final = ("function", "custom", "function_call", "functionCall", "toolUse")
# Where a result says which call it answers, and where some calls have their own id.
CALL_IDS: Final = ("call_id", "tool_call_id", "tool_use_id", "toolCallId", "toolUseId")
_ENVELOPE: Final = frozenset({"id", "run_id", "owner_key", "role", "content", "timestamp", "metadata"})


def read_role(value: Any) -> Role | None:
    """The role with this name, in any spelling that is known; None for anything else."""
    try:
        return Role(value) if isinstance(value, str) else None
    except ValueError:
        return None


def role_of(message: Mapping[str, Any]) -> Role | None:
    """The role of a message of any system; LangChain's messages and items of OpenAI's have a `type` instead."""
    data = message.get("data")
    # LangChain's `ChatMessage` has it further in.
    inner = data.get("role") if isinstance(data, Mapping) else None
    return read_role(message.get("role", message.get("type"))) or read_role(inner)


def gathered(message: Mapping[str, Any]) -> Any:
    """The content of a message; where it says something beside it, all of that as the message of another system."""
    content, is_result = message.get("content"), role_of(message) is Role.TOOL
    if "role" in message:
        names = message.keys() & (BESIDE_CONTENT if is_result else SAID_BESIDE)
    else:
        # LangChain's messages and OpenAI's items have their own names for everything.
        names, is_result = message.keys() - _ENVELOPE, False
    said = {name: value for name, value in message.items() if name in names and value is not None}
    if said.keys().isdisjoint(BESIDE_CONTENT):
        return content
    if is_result:
        return {"role": "tool", "content": content, **said}
    return said if content is None else {**said, "content": content}


def utc_now() -> datetime:
    """The current moment, aware, in UTC."""
    return datetime.now(UTC)


def as_utc(moment: datetime) -> datetime:
    """`moment` as an aware datetime in UTC; a naive one is taken to be UTC already (contract §1.2)."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def parse_moment(value: Any) -> datetime | None:
    """An aware UTC datetime; None when it cannot be read.

    Read are aware and naive (UTC) datetimes, ISO 8601 texts, and numbers, or texts of digits, of seconds or
    milliseconds since 1970; a number of less than three years is no time.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip().upper())
        except ValueError:
            value = float(value) if _EPOCH.fullmatch(value.strip()) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            # An integer may be too large for a float.
            seconds = value if value < _MILLISECONDS else value / 1_000
            return datetime.fromtimestamp(seconds, UTC) if seconds >= _EARLIEST else None
        except (ValueError, OverflowError, OSError):
            return None
    if not isinstance(value, datetime):
        return None
    try:
        return as_utc(value)
    except OverflowError:
        return None


# As precisely as stores keep a time.
TICK: Final = timedelta(milliseconds=1)


def to_milliseconds(moment: datetime) -> datetime:
    """The moment as precisely as stores keep it."""
    return moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


def new_message_id() -> str:
    """A fresh message id: `msg_` and 32 hexadecimal digits."""
    return f"msg_{secrets.token_hex(16)}"


def new_run_id() -> str:
    """A fresh run id: `run_` and 32 hexadecimal digits."""
    return f"run_{secrets.token_hex(16)}"


def new_row_id() -> str:
    """A fresh id of a stored row, greater than all that this process made before, up to 16 million a second.

    Rows are given their id before the store has them, so that they have a place in the history before they are written.
    """
    return f"{int(time.time()):08x}{_PROCESS}{next(_COUNTER) & 0xFFFFFF:06x}"


def is_object_id(row_id: str) -> bool:
    """Whether the `_id` has the form of a MongoDB ObjectId, which says when its row was stored."""
    return _OBJECT_ID.fullmatch(row_id) is not None


def seconds_of(row_id: str) -> int:
    """When a row id was made, in seconds since 1970."""
    return int(row_id[SECOND], 16)


def _utc_in_range(moment: datetime) -> datetime:
    try:
        return as_utc(moment)
    except OverflowError as error:
        raise ValueError("a moment between the years 1 and 9999 in UTC") from error


def _none_is_empty(value: Any) -> Any:
    return {} if value is None else value


def is_ambiguous(identifier: str) -> bool:
    """Whether another id may have become this one: on the wire NUL and half a surrogate pair become U+FFFD."""
    return _AMBIGUOUS.search(identifier) is not None


def _unambiguous(identifier: str) -> str:
    if is_ambiguous(identifier):
        raise PydanticCustomError("ambiguous_id", AMBIGUOUS_ID)
    return identifier


Identifier = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS), AfterValidator(_unambiguous)]
Moment = Annotated[datetime, AfterValidator(_utc_in_range)]
Metadata = Annotated[dict[str, Any], BeforeValidator(_none_is_empty, json_schema_input_type=dict[str, Any] | None)]


class _WireModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Message(_WireModel):
    """One envelope. A naive timestamp is UTC; `metadata: null` is `{}`.

    Fields in which other systems hold what they say become part of `content` (`gathered`); others are ignored.

    `content` is whatever JSON the topic calls for. Treat it as read-only: a frozen model does not freeze what it holds.
    """

    id: Identifier = Field(default_factory=new_message_id)
    run_id: Identifier
    owner_key: Identifier
    role: Role
    content: Any = None
    timestamp: Moment = Field(default_factory=utc_now)
    metadata: Metadata = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.keys() <= _ENVELOPE:
            return given
        return {"role": role_of(given), **given, "content": gathered(given)}


def trusted_time(message: Message) -> datetime:
    """The message's time; now, where its sender's clock is more than 300 s ahead, so that it cannot win until then."""
    now = utc_now()
    return now if message.timestamp > now + _MOST_AHEAD else message.timestamp


def metadata_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of a row; other writers may store anything there, which counts as none."""
    metadata = row.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def is_internal(metadata: Any) -> bool:
    """Whether a message with this metadata is internal to a sub-agent."""
    return isinstance(metadata, dict) and bool(metadata.get(INTERNAL))


def named_agent(metadata: Any) -> str | None:
    """The sub-agent that a message with this metadata is internal to, `""` if it names none; None if it is not."""
    if not is_internal(metadata):
        return None
    agent_id = metadata.get(AGENT_ID)
    return agent_id if isinstance(agent_id, str) else ""


class Why(StrEnum):
    """Why something that was said is not shown, as a sentence for the manifest; its name labels the counter."""

    THINKING = "thinking is never shown as words"
    MEDIA = "only images of the current input are passed on, in a form and size that the provider takes"
    UNREADABLE = "has a form that is not understood"
    EMPTY = "has no text and no call"
    UNMATCHED = "answers no call of the session that has no other result"
    NO_ROOM = "there was no room for it in the context window"
    TOO_LONG = "is longer than a provider or a setting allows"
    TOO_MANY = "there are more than a provider or a setting allows"


class LeftOut(NamedTuple):
    """Something that a context does not show: an entry of `left_out` in the manifest.

    `what` is its kind, such as `image` or `tool result`; `where` a place such as a message id, without content.
    """

    what: str
    where: str
    why: Why


class Run(_WireModel):
    """One interaction: a human input, then any number of model answers and tool results."""

    id: Identifier = Field(default_factory=new_run_id)
    owner_key: Identifier
    # How far an orchestrator has come with it; Nexus does not act on it.
    status: str = "PENDING"
    history: list[Message] = Field(default_factory=list)
    iteration_count: int = 0
    tools: list[Any] = Field(default_factory=list)
    metadata: Metadata = Field(default_factory=dict)
