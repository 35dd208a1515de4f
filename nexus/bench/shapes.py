"""What is stored before anything is measured, and what is asked then. Pure.

A shape says how many owners there are, how much each of them has said, and how long the messages are. Half of the runs
call a tool: a question, a call without text, its result, an answer; the other half are a question and an answer.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, count, islice
from typing import Any, Final

Document = dict[str, Any]

_FIRST: Final = datetime(2025, 1, 1, tzinfo=UTC)
_APART: Final = timedelta(seconds=30)
_PROSE: Final = (
    "The sea was calm today, and we spoke of it for a while: of tides, of boats and of what to do on Sunday. "
)
_LONGEST_INPUT: Final = 32_000
_INPUT: Final = 300
_PROFILE: Final = "Likes the sea, sails on Sundays, and wants short answers with a reason."


@dataclass(frozen=True, slots=True)
class Shape:
    """Owners and what is stored of them.

    Attributes:
        rows: of each owner.
        chars: the length of each of their contents, but for calls, which have none.
        owners: how many.
    """

    rows: int
    chars: int = 300
    owners: int = 1

    @property
    def name(self) -> str:
        """What tells it from other shapes: the beginning of its owners' names."""
        return f"{self.owners}x{self.rows}x{self.chars}"

    def owner(self, number: int) -> str:
        """The name of an owner. Numbers beyond the last begin again with the first."""
        return f"{self.name}-{number % self.owners}"

    def all_rows(self) -> Iterator[Document]:
        """Every row of every owner, one owner after the other."""
        return chain.from_iterable(self._rows_of(self.owner(number)) for number in range(self.owners))

    def _rows_of(self, owner: str) -> Iterator[Document]:
        text = (_PROSE * (self.chars // len(_PROSE) + 1))[: max(0, self.chars - 12)]
        said = chain.from_iterable(_said_in(run, text) for run in count())
        for number, (run, role, content, metadata) in enumerate(islice(said, self.rows)):
            yield {
                "id": f"m{number}",
                "run_id": f"r{run}",
                "owner_key": owner,
                "session_id": "default",
                "role": role,
                "content": f"{number:<11} {content}" if content else "",
                "timestamp": _FIRST + number * _APART,
                "metadata": metadata,
            }


def _said_in(run: int, text: str) -> Iterator[tuple[int, str, str, Document]]:
    """Run, role, content and metadata of each row."""
    yield run, "HUMAN", text[:_LONGEST_INPUT], {"source": "new_run"}
    if run % 2:
        function = {"name": "web_search", "arguments": '{"query": "tides on Sunday", "limit": 5}'}
        calls = [{"id": f"call_{run}", "type": "function", "function": function}]
        yield run, "AI", "", {"source": "llm_result", "tool_calls": calls, "has_tool_calls": True}
        told = {"tool_name": "web_search", "status": "success", "execution_success": True, "call_id": f"call_{run}"}
        yield run, "TOOL", text, {"source": "tool_result", **told}
    yield run, "AI", text, {"source": "llm_result", "tool_calls": None, "has_tool_calls": False}


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it is sent.

    Attributes:
        id: of the request, which its answer names.
        owner: whose context is asked for.
        run_id: of the run that it begins, which is remembered as a turn.
        input_id: under which the input is recorded.
        payload: the envelope's bytes.
    """

    id: str
    owner: str
    run_id: str
    input_id: str
    payload: bytes


def request(owner: str, layout: str, reply_to: str, answer_bytes: int) -> Request:
    """A request that begins a run, with the profile in it, as orchestrators send it, and an input as long as a row.

    Args:
        owner: whose context.
        layout: of the context.
        reply_to: who asks.
        answer_bytes: how long the floor's answer is; nobody else reads that.
    """
    run_id, request_id, input_id = (f"{kind}_{uuid.uuid4().hex}" for kind in ("run", "msg", "msg"))
    now = datetime.now(UTC).isoformat()
    common = {"run_id": run_id, "owner_key": owner, "role": "HUMAN", "timestamp": now}
    # A context in which some of the rows are of the measurement's own is then as long as any other.
    human = {"id": input_id, **common, "content": f"{input_id[-8:]}: {_PROSE * 3}"[:_INPUT], "metadata": {}}
    profile = {"public_key": owner, "config_overrides": {}, "prompt_overrides": {"friends_profile": _PROFILE}}
    about = {"layout": layout, "client_timestamp_utc": now, "client_timezone_offset": -60, "user_profile": profile}
    run = {"id": run_id, "owner_key": owner, "status": "PENDING", "history": [human], "metadata": about}
    metadata = {"reply_to": reply_to, "deadline_ms": 30_000, "answer_bytes": answer_bytes}
    envelope = {"id": request_id, **common, "content": run, "metadata": metadata}
    return Request(request_id, owner, run_id, input_id, json.dumps(envelope, separators=(",", ":")).encode())
