"""Stored histories and requests, as orchestrators write and send them. Pure."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import Any, Final

_FIRST: Final = datetime(2025, 1, 1, tzinfo=UTC)
_PROSE: Final = "The sea was calm today, and we spoke of tides, of boats and of what to do on Sunday. " * 4
_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Owners:
    """Owners with `rows` rows each. `name` begins their keys."""

    name: str
    rows: int
    number: int

    def key(self, number: int) -> str:
        """The key of an owner; numbers beyond the last begin again with the first."""
        return f"{self.name}-{number % self.number}"

    def documents(self) -> Iterator[dict[str, Any]]:
        """The rows of all owners: questions, calls of a tool with their results, answers."""
        for number in range(self.number):
            yield from islice(_rows(self.key(number)), self.rows)


def _rows(owner: str) -> Iterator[dict[str, Any]]:
    numbers = count()
    for run in count():
        call = {"id": f"call_{run}", "function": {"name": "web_search", "arguments": '{"query": "tides on Sunday"}'}}
        result = {"source": "tool_result", "tool_name": "web_search", "status": "success", "call_id": f"call_{run}"}
        messages: list[tuple[str, str, dict[str, Any]]] = [("HUMAN", _PROSE[:_CHARS], {"source": "new_run"})]
        if run % 2:
            messages.append(("AI", "", {"source": "llm_result", "tool_calls": [call], "has_tool_calls": True}))
            messages.append(("TOOL", _PROSE[:_CHARS], result))
        messages.append(("AI", _PROSE[:_CHARS], {"source": "llm_result", "tool_calls": None}))
        for role, content, metadata in messages:
            number = next(numbers)
            yield {
                "id": f"m{number}",
                "run_id": f"r{run}",
                "owner_key": owner,
                "session_id": "default",
                "role": role,
                "content": content,
                "timestamp": _FIRST + number * timedelta(seconds=30),
                "metadata": metadata,
            }


def build_request(
    owner: str, layout: str, reply_to: str, *, text: str | None = None, recall: bool | None = None
) -> tuple[str, bytes]:
    """The id and the bytes of a request that begins a new run of the owner, with this text or one like others."""
    run_id, request_id, input_id = (f"{kind}_{uuid.uuid4().hex}" for kind in ("run", "msg", "msg"))
    now = datetime.now(UTC).isoformat()
    common = {"run_id": run_id, "owner_key": owner, "role": "HUMAN", "timestamp": now}
    human = {"id": input_id, **common, "content": text or f"{input_id[-8:]}: {_PROSE[: _CHARS - 10]}", "metadata": {}}
    profile = {"public_key": owner, "prompt_overrides": {"friends_profile": "Likes the sea, sails on Sundays."}}
    about = {"layout": layout, "client_timestamp_utc": now, "client_timezone_offset": -60, "user_profile": profile}
    about |= {} if recall is None else {"recall": recall}
    run = {"id": run_id, "owner_key": owner, "status": "PENDING", "history": [human], "metadata": about}
    metadata = {"reply_to": reply_to, "deadline_ms": 30_000}
    return request_id, json.dumps({"id": request_id, **common, "content": run, "metadata": metadata}).encode()


def search_request(owner: str, text: str, reply_to: str) -> tuple[str, bytes]:
    """The id and the bytes of a search in all that was said by the owner and to them."""
    ids = {"id": f"msg_{uuid.uuid4().hex}", "run_id": f"run_{uuid.uuid4().hex}", "owner_key": owner}
    metadata = {"reply_to": reply_to, "deadline_ms": 30_000}
    message = {**ids, "role": "HUMAN", "content": {"query": text, "limit": 10}, "metadata": metadata}
    return ids["id"], json.dumps({**message, "timestamp": datetime.now(UTC).isoformat()}).encode()


def overview_call(owner: str) -> bytes:
    """A call of `update_working_memory`, as an orchestrator sends it."""
    ids = {"id": f"msg_{uuid.uuid4().hex}", "run_id": f"run_{uuid.uuid4().hex}", "owner_key": owner}
    args = {"content": "# Sailing\n\n- The boat is in the harbour.\n- Sunday: high tide at noon.\n" * 10}
    content = {"name": "update_working_memory", "args": args, "call_id": ids["id"]}
    return json.dumps({**ids, "role": "AI", "content": content, "metadata": {"session_id": "default"}}).encode()
