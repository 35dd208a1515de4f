"""A working memory in memory, and calls of its tools."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nexus.core.errors import StoreUnavailableError
from nexus.core.ports import RecallSource, Row
from nexus.core.working_memory import Compaction, CompactionRequest
from nexus.services.memory.documents import Caller
from nexus.services.memory.service import Outcome, WorkingMemory
from nexus.services.person.facts import Facts
from nexus.services.tools.memory_tools import MemoryLimits
from tests.nexus.support.constraints import constraints_on
from tests.nexus.support.fake_memory import FakeMemoryStore
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.tombstones import NO_TOMBSTONES

NOON: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
CALLER: Final = Caller("ada", "s", "run_9", "call_1")
CALLED: Final = {"path": "/srv/zebrafile.txt", "city": "Évora", "lines": ["one\ntwo"]}
COMPACTION: Final = Compaction(
    number=3,
    created_at=NOON,
    summary="They spoke.",
    count=40,
    total=148,
    since="00000000",
    details=("compaction-0003",),
    tokens_before=900,
    tokens_after=70,
    tokens_carried=50,
)


class Compacting:
    """A compactor that returns this compaction, and keeps the requests."""

    def __init__(self, compaction: Compaction | None = None) -> None:
        self.requests: list[CompactionRequest] = []
        self._compaction = compaction

    async def compact(self, request: CompactionRequest) -> Compaction | None:
        """Return it."""
        self.requests.append(request)
        return self._compaction


class RacedMemory(FakeMemoryStore):
    """A memory whose next writes are overtaken by these documents, or lose so many replies."""

    lost = 0
    overtaken: Sequence[Row] = ()

    async def insert_overview(self, overview: Row) -> bool:
        """Keep it, after what others keep."""
        await self._overtake("working_memory")
        kept = await super().insert_overview(overview)
        self._reply()
        return kept

    async def insert_details(self, details: Sequence[Row]) -> int:
        """Keep them, after what others keep."""
        await self._overtake("memory_details")
        kept = await super().insert_details(details)
        self._reply()
        return kept

    async def _overtake(self, collection: str) -> None:
        if self.overtaken:
            first, *self.overtaken = self.overtaken
            self.rows[collection].append(first)

    def _reply(self) -> None:
        if self.lost:
            self.lost -= 1
            raise StoreUnavailableError("the reply was lost")


def memory_on(
    store: FakeStore, compacting: Compacting | None = None, recall: RecallSource | None = None, **limits: int
) -> WorkingMemory:
    """A working memory on that store."""
    compact = (compacting or Compacting()).compact
    return WorkingMemory(
        store.memory,
        store,
        compact,
        constraints=constraints_on(store),
        facts=Facts(store.facts, NO_TOMBSTONES),
        recall=recall,
        limits=MemoryLimits(**limits),
    )


def raced() -> tuple[FakeStore, RacedMemory]:
    """A store on whose memory others write too."""
    store = FakeStore()
    store.memory = memory = RacedMemory(store._ask)
    return store, memory


def by(number: int, **about: Any) -> Caller:
    """Somebody else who calls."""
    return replace(CALLER, call_id=f"call_{number}", **about)


async def update(memory: WorkingMemory, content: str, number: int = 1, **args: Any) -> Outcome:
    """An update of the overview."""
    return await memory.run("update_working_memory", {"content": content, **args}, by(number))


async def write(memory: WorkingMemory, name: str, content: str, number: int = 1) -> Outcome:
    """A detail that is written."""
    return await memory.run("write_memory_detail", {"name": name, "content": content}, by(number))


async def read(memory: WorkingMemory, name: str, **args: Any) -> Outcome:
    """A detail that is read."""
    return await memory.run("read_memory_detail", {"name": name, **args}, CALLER)


async def find(memory: WorkingMemory, query: str, **args: Any) -> str:
    """What is found."""
    outcome = await memory.run("search_memory", {"query": query, **args}, CALLER)
    assert outcome.done
    return outcome.text


def row(
    number: int, content: Any, *, role: str = "HUMAN", run: str = "run_1", owner: str = "ada", **metadata: Any
) -> Row:
    """A recorded message."""
    return {
        "id": f"m_{number}",
        "run_id": run,
        "owner_key": owner,
        "session_id": "s",
        "role": role,
        "content": content,
        "timestamp": NOON + timedelta(minutes=number),
        "metadata": metadata,
    }


def archive(name: str, content: str, **about: Any) -> Row:
    """A detail that a compaction has made."""
    kept = {"version": 1, "kind": "archive", "bytes": len(content), "updated_at": NOON, "compaction": 1}
    return {"owner_key": "ada", "session_id": "s", "name": name, "content": content, **kept, **about}
