"""Messages of the bus as the rows that are recorded of them (CONTRACT §2). Pure."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from nexus.core.models import Message, Role
from nexus.core.ports import Row, RunOrigin
from nexus.services.context.agents import AGENT_ID, internal_marks, named_agent

# BSON has no larger integers.
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_SUCCESS: Final = "success"
# What a model's result may say of itself in its metadata.
USAGE: Final = "usage"
PHASE: Final = "phase"
THINKING: Final = "thinking"
_TOKENS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


def human_row(message: Message, text: str, origin: RunOrigin) -> Row:
    """The human input of a build request. Its `id` is that of the run's message, so that resends record it once."""
    return of_run(_row(message, "HUMAN", text, {"source": "new_run"}), origin)


def of_run(row: Row, origin: RunOrigin) -> Row:
    """The row as it is recorded of a run that belongs there; a session or an agent that the row names itself counts."""
    marks = {} if row["metadata"].get(AGENT_ID) else internal_marks(origin.sub_agent)
    return {**row, "session_id": row["session_id"] or origin.session_id, "metadata": row["metadata"] | marks}


def said_at(moment: datetime, now: datetime) -> datetime:
    """The time of a row that is heard now: not a later one, and to the millisecond, as the store keeps it."""
    moment = min(moment, now)
    return moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


def llm_row(message: Message) -> Row | None:
    """The row of a model's result, without its session; None for what is not recorded.

    Not recorded are SYSTEM messages (streaming) and results with neither text nor calls.
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
    metadata = {"source": "llm_result", "tool_calls": calls, "has_tool_calls": bool(calls), **_given_marks(message)}
    return _row(message, "AI", "" if text is None else text, metadata | _given_cost(content, message.metadata))


def tool_row(message: Message) -> Row:
    """The row of a tool's result, without its session. An empty result is a result."""
    content: Mapping[str, Any] = (
        message.content
        if isinstance(message.content, dict) and "result" in message.content
        else {"result": message.content}
    )
    known = {**content, **{key: value for key, value in message.metadata.items() if value is not None}}
    status = known.get("status", "unknown")
    metadata = {
        "source": "tool_result",
        "tool_name": known.get("tool_name", "unknown"),
        "status": status,
        "execution_success": known.get("execution_success", status == _SUCCESS),
        "call_id": known.get("call_id", ""),
        **_given_marks(message),
    }
    return _row(message, "TOOL", content["result"], metadata)


def _given_session(message: Message) -> str | None:
    """The session that a result names itself."""
    session = message.metadata.get("session_id")
    return session if isinstance(session, str) and session else None


def _given_marks(message: Message) -> dict[str, Any]:
    """What a sender says of a message that is a sub-agent's own business."""
    return internal_marks(named_agent(message.metadata))


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
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _INT_MAX


def _row(message: Message, role: str, content: Any, metadata: dict[str, Any]) -> Row:
    return {
        "id": message.id,
        "run_id": message.run_id,
        "owner_key": message.owner_key,
        "session_id": _given_session(message) if role != "HUMAN" else None,
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
    return str(value) if _is_no_number(value) else value


def _is_no_number(value: Any) -> bool:
    """Whether it is a number that no document store holds."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and not _INT_MIN <= value <= _INT_MAX
