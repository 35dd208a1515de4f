"""A session that goes on for days, a run a day, as a service would have stored it."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bson import ObjectId

from nexus.core.ports import Row

DAY: Final = timedelta(days=1)
BEGUN: Final = datetime(2024, 3, 1, 9, tzinfo=UTC)
OWNER, SESSION = "ölf 文", "séance 😀"
KEY: Final = (OWNER, SESSION)


def object_id(day: float, number: int = 0) -> str:
    """An `_id` of something that was stored on that day."""
    return f"{int((BEGUN + day * DAY).timestamp()):08x}{number:016x}"


def said(day: int, place: int, **changes: Any) -> Row:
    """Message `place` of the run of that day: an input, an answer with a call, its result, or an answer."""
    call = {"id": f"c{day}", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "车票"}'}}
    metadata = (
        {"source": "new_run"},
        {"tool_calls": [call], "has_tool_calls": True},
        {"call_id": f"c{day}", "tool_name": "look_up", "status": "success", "execution_success": True},
        {},
    )[place]
    return {
        "_id": object_id(day, 10 * day + place + 1),
        "id": f"m{day}.{place}",
        "run_id": f"r{day}",
        "owner_key": OWNER,
        "session_id": SESSION,
        "role": ("HUMAN", "AI", "TOOL", "AI")[place],
        "content": (f"Which trains on day {day}? 文 😀", "", f"{day}:02 Porto", f"At {day}:02. 就是{day}。")[place],
        "timestamp": BEGUN + day * DAY + timedelta(seconds=place),
        "metadata": metadata,
        **changes,
    }


def run_of(day: int) -> list[Row]:
    """All messages of the run of that day."""
    return [said(day, place) for place in range(4)]


def turn_of(day: int, number: int | None = None, **changes: Any) -> Row:
    """The turn of that day's run, closed, as MongoDB has it."""
    text = f"Asked for trains on day {day}: {day}:02."
    structured = {"overview": text, "actions": [], "results": [], "decisions": [], "next_steps": []}
    return {
        "_id": ObjectId(object_id(day)),
        "id": f"turn_{number or day}_0",
        "turn_number": number or day,
        "owner_key": OWNER,
        "session_id": SESSION,
        "run_id": f"r{day}",
        "timestamp": BEGUN + day * DAY,
        "status": "completed",
        "task_context": "To Porto. 去波尔图。",
        "workspace_context": "",
        "messages": [f"m{day}.{place}" for place in range(4)],
        "tool_calls": [],
        "summaries": {"brief": text, "detailed": text, "structured": structured, "source": "fallback"},
        "insights": [],
        "work": "summarise",
        "due_at": BEGUN + day * DAY,
        "heard_at": BEGUN + day * DAY,
        "rows": 4,
        "attempts": 0,
        "overtaken": False,
        **changes,
    }


def planted(rows: Iterable[Row]) -> list[Row]:
    """The rows as another program would insert them."""
    return [{**row, "_id": ObjectId(row["_id"])} for row in rows]
