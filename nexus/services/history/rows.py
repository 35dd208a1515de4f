"""Rows of the history: read leniently as they are stored, and made of messages of the bus (contract §2, §5). Pure.

- One malformed row never spoils the rest: it is repaired or not shown, and counted.
- Times are compared as moments, never as text.
- What is internal to a sub-agent is marked in its metadata, and shown to that agent alone.
- Of a message above 4 KiB, objects and lists are recorded as the text that contexts show: hundreds of thousands of
  small values would have to be made each time the row is read.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, get_args

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import AGENT_ID, INTERNAL, Message, Role, is_internal, named_agent, parse_moment
from nexus.core.ports import Row, RunOrigin
from nexus.services.history.tool_calls import ToolCall, read_tool_calls
from nexus.services.text.content import as_text

Kind = Literal["main", "sub"]

_ID_CHARS: Final = 256
_SHOWN_CHARS: Final = 60


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
    if len(texts["id"]) > _ID_CHARS:
        raise invalid_request(f"run.metadata.agent.id: at most {_ID_CHARS} characters are allowed")
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


def unknown_value(where: str, value: Any, allowed: Iterable[str]) -> str:
    """The reason that a value is none of those allowed."""
    shown = repr(value[:_SHOWN_CHARS]) if isinstance(value, str) else f"a JSON {type(value).__name__}"
    return f"{where}: {shown} is unknown; allowed: {', '.join(allowed)}"


def _text(given: Mapping[str, Any], name: str) -> str:
    value = "" if given.get(name) is None else given[name]
    if not isinstance(value, str):
        raise invalid_request(f"run.metadata.agent.{name}: a text is needed")
    return value


# Offsets in use on earth end at 14 hours; anything beyond is a mistake (contract §4.5).
_LARGEST_OFFSET: Final = 14 * 60

_SHOWN: Final[Mapping[str, Literal["human", "ai"]]] = {"human": "human", "ai": "ai"}
_PASSED_OVER: Final = frozenset({"tool", "system", "command"})

_SUCCESS: Final = "success"
# Metadata that a model's result may have.
USAGE: Final = "usage"
PHASE: Final = "phase"
THINKING: Final = "thinking"
_TOKENS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
# A message of more bytes is a large one.
_LARGE: Final = 4_096


class Entry(NamedTuple):
    """What one stored row says, whatever rows are read with it.

    Attributes:
        role: `""` for a row that is not shown.
        id: `""` when the row has none.
        run_id: `""` for a row that belongs to no run, or is not shown.
        text: as stored; `""` for an answer without content.
        moment: in UTC; None when the row has no readable time.
        stored_calls: the tool calls that the row declared, as stored; None for a human's.
        repaired: something in the row was not as it is stored today.
        row: the row itself.
    """

    role: Literal["human", "ai", ""]
    id: str
    run_id: str
    text: str
    moment: datetime | None
    stored_calls: Any
    repaired: bool
    row: Any

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the row declared."""
        return read_tool_calls(self.stored_calls) if self.stored_calls else ()


def read_rows(rows: Sequence[Any], *, current_run_id: str = "") -> tuple[list[Entry], int]:
    """What each row says, and how many of them had to be repaired or left out.

    Rows of other roles (tools, system, commands), those internal to a sub-agent and those of the current run are not
    shown, and not counted.
    """
    entries = [read_row(row) for row in rows]
    if current_run_id:
        entries = [_not_shown(entry.row) if entry.run_id == current_run_id else entry for entry in entries]
    return entries, [entry.repaired for entry in entries].count(True)


def read_row(row: Any) -> Entry:
    """What a stored row says."""
    if not isinstance(row, dict):
        return _not_shown(row, faulty=True)
    stored, metadata = row.get("role"), row.get("metadata", {})
    name = stored.lower() if isinstance(stored, str) else ""
    role, internal = _SHOWN.get(name), is_internal(metadata)
    if role is None or internal:
        return _not_shown(row, faulty=role is None and name not in _PASSED_OVER and not internal)
    described = isinstance(metadata, dict)
    calls = metadata.get("tool_calls") if described and role == "ai" else None
    text, moment = row.get("content"), parse_moment(row.get("timestamp"))
    repaired = moment is None or not described
    if not isinstance(text, str):
        if text is None and role == "human":
            return _not_shown(row, faulty=True)
        # Older rows say None instead of "" when a model only made calls.
        repaired = repaired or not (text is None and read_tool_calls(calls))
        text = as_text(text)
    row_id, run_id = text_or_empty(row.get("id")), text_or_empty(row.get("run_id"))
    return Entry(role, row_id, run_id, text, moment, calls, repaired, row)


def chars_of(row: Row) -> int:
    """About how many characters a row holds in its content and its tool calls."""
    content, metadata = row.get("content"), row.get("metadata")
    calls = metadata.get("tool_calls") if isinstance(metadata, Mapping) else None
    return len(content if isinstance(content, str) else str(content)) + (len(str(calls)) if calls else 0)


def text_or_empty(value: Any) -> str:
    """A stored value that is a text; `""` for any other."""
    return value if isinstance(value, str) else ""


def count_others(rows: Sequence[Any], run_id: str) -> int:
    """How many rows are not of this run.

    Whether the run's own input is among the rows depends on how fast it was recorded, which must not show.
    """
    return len([row for row in rows if not (run_id and isinstance(row, Mapping) and row.get("run_id") == run_id)])


def _not_shown(row: Any, *, faulty: bool = False) -> Entry:
    return Entry("", "", "", "", None, None, faulty, row)


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
    moment = min(moment, now)
    return moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


def human_row(message: Message, text: str, origin: RunOrigin) -> Row:
    """The human input of a build request. Its `id` is that of the run's message, so that resends record it once."""
    return of_run(_row(message, "HUMAN", text, {"source": "new_run"}), origin)


def further_row(message: Message, size: int = 0) -> Row:
    """The row of a further human message of a run, without its session. `size` as for `llm_row`."""
    content = _without_structure(message.content) if size > _LARGE else message.content
    marks = internal_marks(named_agent(message.metadata))
    return _row(message, "HUMAN", content, {"source": "run_input", **marks}, session=_session(message))


def of_run(row: Row, origin: RunOrigin) -> Row:
    """The row as it is recorded for a run of this origin; a session or an agent that the row names itself counts."""
    marks = {} if row["metadata"].get(AGENT_ID) else internal_marks(origin.sub_agent)
    return {**row, "session_id": row["session_id"] or origin.session_id, "metadata": row["metadata"] | marks}


def llm_row(message: Message, size: int = 0) -> Row | None:
    """The row of a model's result; None for SYSTEM messages (streaming) and results with neither text nor calls.

    `size` is the payload's, in bytes.
    """
    if message.role is Role.SYSTEM:
        return None
    content: Mapping[str, Any] = message.content if isinstance(message.content, dict) else {"content": message.content}
    text = content.get("content")
    calls = content.get("tool_calls")
    if not calls:
        # None and [] are both recorded as they came.
        calls = message.metadata.get("tool_calls", calls)
    if not calls and (text is None or text == ""):
        return None
    if size > _LARGE:
        text, calls = _without_structure(text), _calls_without_structure(calls)
    metadata = {
        "source": "llm_result",
        "tool_calls": calls,
        "has_tool_calls": bool(calls),
        **internal_marks(named_agent(message.metadata)),
    }
    metadata |= _given_cost(content, message.metadata)
    return _row(message, "AI", "" if text is None else text, metadata, session=_session(message))


def tool_row(message: Message, size: int = 0) -> Row:
    """The row of a tool's result, without its session. An empty result is a result. `size` as for `llm_row`."""
    content: Mapping[str, Any] = (
        message.content
        if isinstance(message.content, dict) and "result" in message.content
        else {"result": message.content}
    )
    known = {**content, **{key: value for key, value in message.metadata.items() if value is not None}}
    status, result = known.get("status", "unknown"), content["result"]
    metadata = {
        "tool_name": known.get("tool_name", "unknown"),
        "status": status,
        "execution_success": known.get("execution_success", status == _SUCCESS),
        "call_id": known.get("call_id", ""),
    }
    if size > _LARGE:
        result = _without_structure(result)
        metadata = {name: _without_structure(value, most=_ID_CHARS) for name, value in metadata.items()}
    marks = internal_marks(named_agent(message.metadata))
    metadata = {"source": "tool_result", **metadata, **marks}
    return _row(message, "TOOL", result, metadata, session=_session(message))


def _without_structure(value: Any, *, most: int | None = None) -> Any:
    """A text for an object or a list, as contexts show it; with `most`, texts have so many characters at most."""
    if isinstance(value, dict | list):
        value = as_text(value)
    return value[:most] if isinstance(value, str) else value


def _calls_without_structure(calls: Any) -> Any:
    """The tool calls with texts in the place of objects and lists."""
    if not isinstance(calls, list):
        return _without_structure(calls)
    return [_call_without_structure(call) if isinstance(call, dict) else _without_structure(call) for call in calls]


def _call_without_structure(call: Mapping[str, Any]) -> dict[str, Any]:
    # Name and arguments may be in an object of their own.
    return {
        key: {inner: _without_structure(item) for inner, item in value.items()}
        if key == "function" and isinstance(value, dict)
        else _without_structure(value)
        for key, value in call.items()
    }


def stand_in(row: Row, reason: str) -> Row:
    """The row of a message that the store refuses, for the history: it says so where the message would stand."""
    kept = {name: row["metadata"].get(name) for name in ("source", "tool_name", "call_id", INTERNAL, AGENT_ID)}
    metadata = {name: value for name, value in kept.items() if value is True or _is_short(value)}
    if row["role"] == "TOOL":
        metadata |= {"status": "error", "execution_success": False}
    return {**row, "content": f"(This message could not be kept. {reason}.)", "metadata": metadata}


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _ID_CHARS


def _given_cost(content: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's result says of the tokens it took and of the phase they belong to, as far as it is in order."""
    cost: dict[str, Any] = {}
    usage = content.get("usage") or metadata.get("usage")
    if isinstance(usage, Mapping):
        counts = {key: usage[key] for key in _TOKENS if _is_count(usage.get(key))}
        cost |= {USAGE: counts} if counts else {}
    if metadata.get(PHASE) == THINKING:
        cost[PHASE] = THINKING
    return cost


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0 and _fits_int64(value)


def _session(message: Message) -> str | None:
    return text_or_empty(message.metadata.get("session_id")) or None


def _row(message: Message, role: str, content: Any, metadata: dict[str, Any], *, session: str | None = None) -> Row:
    return {
        "id": message.id,
        "run_id": message.run_id,
        "owner_key": message.owner_key,
        "session_id": session,
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
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {storable(str(key)).replace("\x00", "\ufffd"): storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [storable(item) for item in value]
    fits = math.isfinite(value) if isinstance(value, float) else not isinstance(value, int) or _fits_int64(value)
    return value if fits else str(value)


def _fits_int64(value: int) -> bool:
    """Whether BSON has the integer."""
    return -(2**63) <= value < 2**63
