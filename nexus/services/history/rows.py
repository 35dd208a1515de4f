"""Rows of the history, made of messages of the bus, and for which agent each is (contract §2, §5). Pure.

- What is internal to a sub-agent is marked in its metadata, and shown to that agent alone.
- Of a message above 4 KiB, objects and lists are recorded as the text that contexts show, and `raw` as JSON: hundreds
  of thousands of small values would have to be made each time the row is read.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from nexus.core.errors import ErrorCode, RequestError, StoreRejectedError
from nexus.core.models import (
    ABOUT_RESULT,
    AGENT_ID,
    AMBIGUOUS_ID,
    DEFAULT_SESSION,
    INTERNAL,
    MAX_ID_CHARS,
    Identifier,
    Message,
    Role,
    Topics,
    is_ambiguous,
    is_internal,
    metadata_of,
    named_agent,
    to_milliseconds,
    trusted_time,
)
from nexus.core.ports import Row, RunOrigin
from nexus.core.wire import explain
from nexus.services.history.forms import (
    LEFT_OUT,
    RAW,
    TOOL_RESULT,
    UNKNOWN,
    native,
    read_input,
)
from nexus.services.history.progress import PROGRESS, TOOL_PROGRESS, progress_id, read_progress
from nexus.services.text.checks import unknown_value
from nexus.services.text.content import as_text, compact_json

Kind = Literal["main", "sub"]

_OWNER: Final[TypeAdapter[str]] = TypeAdapter(Identifier)


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent that a context is for, as `run.metadata.agent` describes it. Texts that were not given are `""`."""

    kind: Kind = "main"
    id: str = ""
    role: str = ""
    system_prompt: str = ""
    task_prompt: str = ""

    @property
    def sub_agent(self) -> str | None:
        """The id of a sub-agent, `""` for one without; None for the main agent."""
        return self.id if self.kind == "sub" else None

    def sees(self, metadata: Any) -> bool:
        """Whether a message with this metadata is for this agent.

        What is internal to a sub-agent never reaches the main agent, and another sub-agent only if it names no agent.
        """
        if not is_internal(metadata):
            return True
        # Not a set: a row may have anything there.
        return self.kind == "sub" and metadata.get(AGENT_ID) in (None, "", self.id)


MAIN: Final = Agent()


def internal_marks(sub_agent: str | None) -> dict[str, Any]:
    """The metadata of what belongs to this sub-agent; nothing for the main agent."""
    return {} if sub_agent is None else {INTERNAL: True, AGENT_ID: sub_agent}


def read_agent(metadata: Mapping[str, Any]) -> tuple[Agent, list[str]]:
    """The agent in `run.metadata`, by default the main one, and notes on ignored fields; INVALID_REQUEST for none."""
    given = metadata.get("agent")
    if given is None:
        return MAIN, []
    if not isinstance(given, Mapping):
        raise invalid_request("run.metadata.agent: a JSON object is needed")
    kind = "main" if given.get("kind") is None else given["kind"]
    if kind not in get_args(Kind):
        raise invalid_request(unknown_value("run.metadata.agent.kind", kind, get_args(Kind)))
    texts = {name: _text(given, name) for name in ("id", "role", "system_prompt", "task_prompt")}
    if len(texts["id"]) > MAX_ID_CHARS:
        raise invalid_request(f"run.metadata.agent.id: at most {MAX_ID_CHARS} characters are allowed")
    agent = Agent("sub" if kind == "sub" else "main", **texts)
    useless = "task_prompt" if kind == "main" else "system_prompt"
    notes = [f"run.metadata.agent.{useless}: a {kind} agent has none, so it is not shown"] if texts[useless] else []
    return agent, notes


def missing_role(agent: Agent) -> RequestError:
    """MISSING_AGENT_ROLE for a sub-agent without a role."""
    named = repr(agent.id) if agent.id else "without an id"
    reason = f"run.metadata.agent.role: sub-agent {named} has no role, neither here nor in the state of its session"
    return RequestError(ErrorCode.MISSING_AGENT_ROLE, reason)


def invalid_request(reason: str) -> RequestError:
    """INVALID_REQUEST for this reason, which names the place."""
    return RequestError(ErrorCode.INVALID_REQUEST, reason)


def owner_mismatch(where: str) -> RequestError:
    """OWNER_MISMATCH for this place."""
    return RequestError(ErrorCode.OWNER_MISMATCH, f"{where}: is not the owner_key of the envelope")


def read_owner_key(owner_key: str, where: str = "owner_key") -> str:
    """The key of an owner; ValueError where it is none."""
    try:
        return _OWNER.validate_python(owner_key)
    except ValidationError as error:
        raise ValueError(explain(error, where)) from None


def read_session_id(metadata: Mapping[str, Any], where: str = "metadata.session_id") -> str:
    """The session that a message or a run names, else the default one; ValueError where what it names is none."""
    session = metadata.get("session_id")
    if session is None:
        return DEFAULT_SESSION
    if not isinstance(session, str) or not 1 <= len(session) <= MAX_ID_CHARS:
        raise ValueError(f"{where}: a text of 1 to {MAX_ID_CHARS} characters is needed")
    if is_ambiguous(session):
        raise ValueError(f"{where}: {AMBIGUOUS_ID}")
    return session


def revision_of(row: Row | None, what: str, collection: str) -> int:
    """The revision of a stored document of `what`, 0 for none; StoreRejectedError where another has stored none."""
    if row is None:
        return 0
    revision = row.get("revision")
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 1:
        raise StoreRejectedError(f"what is stored of the {what} has no revision; remove it from {collection}")
    return revision


def _text(given: Mapping[str, Any], name: str) -> str:
    value = "" if given.get(name) is None else given[name]
    if not isinstance(value, str):
        raise invalid_request(f"run.metadata.agent.{name}: a text is needed")
    return value


# Offsets in use on earth end at 14 hours; anything beyond is a mistake (contract §4.5).
_LARGEST_OFFSET: Final = 14 * 60

_SUCCESS: Final = "success"
# The source of what a person says while a run is under way.
_FURTHER: Final = "run_input"
# Metadata that a model's result may have.
USAGE: Final = "usage"
PHASE: Final = "phase"
# Which version of a message a row is, where its sender says so: a whole number.
REVISION: Final = "revision"
# What an answer in the form of Nexus has.
_ANSWER: Final = frozenset({"content", "tool_calls", "usage"})
# What a result has, in that form or as the message of another system.
_RESULT: Final = ABOUT_RESULT | {"role", "result", "content"}
THINKING: Final = "thinking"
_TOKENS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
# A message of more bytes is a large one.
_LARGE: Final = 4_096
# The revision of what stands in the place of a message: any version of the message is a later one.
BEFORE_ALL: Final = -1


def chars_of(row: Row) -> int:
    """About how many characters a row holds in its content and its tool calls."""
    content, calls = row.get("content"), metadata_of(row).get("tool_calls")
    return len(content if isinstance(content, str) else str(content)) + (len(str(calls)) if calls else 0)


def text_or_empty(value: Any) -> str:
    """A stored value that is a text; `""` for any other."""
    return value if isinstance(value, str) else ""


def texts_of_list(value: Any) -> list[str]:
    """The texts in a stored list; none where there is no list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def count_others(rows: Sequence[Any], run_id: str) -> int:
    """How many rows are not of this run.

    Whether the run's own input is among the rows depends on how fast it was recorded, which must not show.
    """
    return len([row for row in rows if not (run_id and isinstance(row, Mapping) and row.get("run_id") == run_id)])


def parse_offset(value: Any) -> int | None:
    """Minutes west of UTC, as JavaScript's `getTimezoneOffset` gives them; None when unreadable or beyond 14 hours."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        minutes = float(value)
    except (ValueError, OverflowError):
        return None
    if not minutes.is_integer() or abs(minutes) > _LARGEST_OFFSET:
        return None
    return int(minutes)


def at_offset(moment: datetime, minutes_west: int) -> datetime:
    """`moment` on a clock `minutes_west` of UTC (UTC+8 is -480); in UTC at the very ends of the calendar."""
    try:
        return moment.astimezone(_zone(minutes_west))
    except OverflowError:
        return moment.astimezone(UTC)


@lru_cache(maxsize=256)
def _zone(minutes_west: int) -> timezone:
    return timezone(timedelta(minutes=-minutes_west))


def clamp_timestamp(moment: datetime, now: datetime) -> datetime:
    """The time of a row that is recorded `now`: not a later one, and to the millisecond, as the store keeps it."""
    return to_milliseconds(min(moment, now))


def row_of(message: Message) -> Row:
    """A message as a row, in the form in which it came."""
    return {
        "id": message.id,
        "run_id": message.run_id,
        "role": message.role.value,
        "content": message.content,
        "timestamp": message.timestamp,
        "metadata": message.metadata,
    }


def human_row(message: Message, origin: RunOrigin) -> Row:
    """The input of a run. The `id` is the message's: resends record it once.

    One that comes with results of tools is recorded as it came.
    """
    row = _human_row(message, native(row_of(message)), {"source": "new_run"})
    return of_run({**row, "session_id": origin.session_id}, origin)


def further_row(message: Message, size: int = 0) -> Row | None:
    """The row of a further human message of a run, without its session; None where it says nothing.

    Results of tools that come under a human's name are recorded as such, together with a text as they came. `size` as
    for `llm_row`.
    """
    said = native(row_of(message))
    if all(part["role"] == Role.TOOL for part in said):
        return tool_row(message, size)
    says_something = len(said) > 1 or as_text(said[0].get("content")).strip()
    return _human_row(message, said, _marks(message, _FURTHER), size) if says_something else None


def _human_row(message: Message, said: Sequence[Row], marks: dict[str, Any], size: int = 0) -> Row:
    if len(said) > 1:
        return _row(message, "HUMAN", message.content, marks)
    text = said[0]["content"]
    more = {} if message.content == text else _raw(message, size) | _some(said[0]["metadata"], LEFT_OUT)
    return _row(message, "HUMAN", text, marks | more)


def is_further(row: Any) -> bool:
    """Whether a stored row is a further human message of its run, which does not begin with it."""
    metadata = row.get("metadata") if isinstance(row, Mapping) else None
    return isinstance(metadata, Mapping) and metadata.get("source") == _FURTHER


def of_run(row: Row, origin: RunOrigin) -> Row:
    """The row as it is recorded for a run of this origin; a session or an agent that the row names itself counts."""
    marks = {} if row["metadata"].get(AGENT_ID) else internal_marks(origin.sub_agent)
    return {**row, "session_id": row["session_id"] or origin.session_id, "metadata": row["metadata"] | marks}


def llm_row(message: Message, size: int = 0) -> Row | None:
    """The row of a model's result; None for SYSTEM messages (streaming) and results with neither text nor calls.

    `size` is the payload's, in bytes. A result that is several messages is recorded as it came.
    """
    if message.role is Role.SYSTEM:
        return None
    said = native({**row_of(message), "role": "AI"})
    marks = _marks(message, "llm_result")
    phase = {PHASE: THINKING} if message.metadata.get(PHASE) == THINKING else {}
    if len(said) > 1:
        has_calls = any(part["metadata"].get("tool_calls") for part in said)
        metadata = {**marks, "has_tool_calls": has_calls, **phase}
        return _row(message, "AI", message.content, metadata)
    text, known = said[0].get("content"), said[0]["metadata"]
    calls = known.get("tool_calls") or _no_calls(message)
    if not calls and (text is None or text == ""):
        return None
    raw = {} if _is_plain_answer(message.content) and LEFT_OUT not in known else _raw(message, size)
    if calls and size > _LARGE:
        calls = [_call_without_structure(call) for call in calls]
    given = {"tool_calls": calls, "has_tool_calls": bool(calls), **_some(known, LEFT_OUT)}
    metadata = marks | given | _counts(known.get(USAGE)) | phase | raw
    return _row(message, "AI", "" if text is None else text, metadata)


def is_empty_answer(content: Any) -> bool:
    """Whether a model's answer says nothing, as the last part of a stream; by rule it is not recorded."""
    if not isinstance(content, dict):
        return not content
    return content.keys() <= _ANSWER and not (content.get("content") or content.get("tool_calls"))


def _no_calls(message: Message) -> Any:
    """No calls, as the message says so: None and [] are both recorded as they came."""
    content = message.content
    given = message.metadata.get("tool_calls", content.get("tool_calls") if isinstance(content, dict) else None)
    return given if given == [] else None


def _is_plain_answer(content: Any) -> bool:
    """Whether a row of the answer says all that the content does."""
    if not isinstance(content, dict):
        return isinstance(content, str)
    return content.keys() <= _ANSWER and isinstance(content.get("content"), str | None)


def _some(known: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: known[name] for name in names if name in known}


def tool_row(message: Message, size: int = 0) -> Row:
    """The row of a tool's result, without its session. An empty result is a result. `size` as for `llm_row`."""
    # By its source `native` knows what was recorded, without the envelope in which results come.
    about = {name: value for name, value in message.metadata.items() if name != "source"}
    said = native({**row_of(message), "role": "TOOL", "metadata": about})
    marks = _marks(message, TOOL_RESULT)
    if len(said) > 1:
        return _row(message, "TOOL", message.content, marks)
    result, known = said[0].get("content"), said[0]["metadata"]
    status = known.get("status", UNKNOWN)
    metadata = {
        "tool_name": known.get("tool_name", UNKNOWN),
        "status": status,
        "execution_success": known.get("execution_success", status == _SUCCESS),
        "call_id": known.get("call_id", ""),
    }
    if size > _LARGE:
        result = _without_structure(result)
        metadata = {name: _without_structure(value, most=MAX_ID_CHARS) for name, value in metadata.items()}
    raw = {} if _is_plain_result(message.content, said[0].get("content")) else _raw(message, size)
    metadata |= _some(known, LEFT_OUT) | marks | raw
    return _row(message, "TOOL", result, metadata)


def progress_row(message: Message, size: int = 0) -> Row:  # noqa: ARG001  # the others need it
    """The row of a call's progress, without its session. ValueError as `read_progress`.

    A call has one in its run. The latest that was said of it has the highest revision.
    """
    call_id, progress = read_progress(message)
    said_at = trusted_time(message)
    row = _row(message, "TOOL", "", {"call_id": call_id, PROGRESS: progress, **_marks(message, TOOL_PROGRESS)})
    revision = (said_at - _EPOCH) // timedelta(microseconds=1)
    return {
        **row,
        "id": progress_id(message.run_id, call_id),
        "timestamp": said_at,
        "metadata": {**row["metadata"], REVISION: revision},
    }


# By topic, what makes the row of a message, without its session where it names none; None for one that is not recorded,
# ValueError for one that cannot be.
ROW_MAKERS: Final = {
    Topics.LLM_RESULTS: llm_row,
    Topics.TOOLS_RESULTS: tool_row,
    Topics.TOOLS_PROGRESS: progress_row,
    Topics.RUNS_INPUT: further_row,
}


def recorded_row(message: Message, size: int = 0) -> Row | None:
    """The row of a message of any role, without its session; None where it says nothing. `size` as for `llm_row`."""
    match message.role:
        case Role.HUMAN:
            return further_row(message, size)
        case Role.AI:
            return llm_row(message, size)
        case Role.TOOL:
            return tool_row(message, size)
        case role:
            said = read_input(message.content)
            text = said.text if said else as_text(message.content)
            return _row(message, role.value, text, _marks(message, "recorded")) if text.strip() else None


def _raw(message: Message, size: int) -> dict[str, Any]:
    """What was sent, beside a row that says less."""
    content = message.content
    return {RAW: compact_json(content) if size > _LARGE and isinstance(content, dict | list) else content}


def _is_plain_result(content: Any, result: Any) -> bool:
    """Whether a row with this result says all that the content does."""
    if content == result or not isinstance(content, dict):
        return bool(content == result)
    return content.keys() <= _RESULT and result in (content.get("result"), content.get("content"))


def _without_structure(value: Any, *, most: int | None = None) -> Any:
    """A text for an object or a list, as contexts show it; with `most`, texts have so many characters at most."""
    if isinstance(value, dict | list):
        value = as_text(value)
    return value[:most] if isinstance(value, str) else value


def _call_without_structure(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call with texts in the place of objects and lists."""
    # Name and arguments may be in an object of their own.
    return {
        key: {inner: _without_structure(item) for inner, item in value.items()}
        if key in {"function", "custom"} and isinstance(value, dict)
        else _without_structure(value)
        for key, value in call.items()
    }


def stand_in(row: Row, reason: str) -> Row:
    """The row of a message that the store refuses, for the history: it says so where the message would stand."""
    kept = {name: row["metadata"].get(name) for name in ("source", "tool_name", "call_id", INTERNAL, AGENT_ID)}
    metadata: dict[str, Any] = {name: value for name, value in kept.items() if value is True or _is_short(value)}
    metadata[REVISION] = BEFORE_ALL
    if row["role"] == "TOOL":
        metadata |= {"status": "error", "execution_success": False}
    return {**row, "content": f"(This message could not be kept. {reason}.)", "metadata": metadata}


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_ID_CHARS


def _counts(usage: Any) -> dict[str, Any]:
    if not isinstance(usage, Mapping):
        return {}
    counts = {key: usage[key] for key in _TOKENS if _is_count(usage.get(key))}
    return {USAGE: counts} if counts else {}


def _is_count(value: Any) -> bool:
    return is_whole_number(value) and value >= 0


def is_whole_number(value: Any) -> bool:
    """Whether a value is an integer that stores hold."""
    return isinstance(value, int) and not isinstance(value, bool) and _fits_int64(value)


def _marks(message: Message, source: str) -> dict[str, Any]:
    """The metadata of every row of a message."""
    revision = message.metadata.get(REVISION)
    version = {REVISION: revision} if is_whole_number(revision) else {}
    return {"source": source, **internal_marks(named_agent(message.metadata)), **version}


def _row(message: Message, role: str, content: Any, metadata: dict[str, Any]) -> Row:
    return {
        "id": message.id,
        "run_id": message.run_id,
        "owner_key": message.owner_key,
        "session_id": text_or_empty(message.metadata.get("session_id")) or None,
        "role": role,
        "content": storable(content),
        "timestamp": message.timestamp,
        "metadata": storable(metadata),
    }


def storable(value: Any) -> Any:
    """JSON as a document store can keep it.

    A number that it cannot hold becomes its text; half a surrogate pair, and a NUL in a name, become U+FFFD.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {storable(str(key)).replace("\x00", "\ufffd"): storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [storable(item) for item in value]
    fits = math.isfinite(value) if isinstance(value, float) else not isinstance(value, int) or _fits_int64(value)
    return value if fits else str(value)


def _fits_int64(value: int) -> bool:
    """Whether BSON has the integer."""
    return -(2**63) <= value < 2**63
