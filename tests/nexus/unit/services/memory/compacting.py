"""A session that is recorded and compacted, in memory."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId

from nexus.core.ports import Row
from nexus.core.working_memory import Compaction, CompactionRequest
from nexus.services.memory.compactor import CompactionSettings, Compactor
from nexus.services.memory.documents import Audit, audit, read_snapshot
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.fakes import FakeStore
from tests.nexus.unit.services.memory.test_plan import exchange

SESSION = ("o", "s")


class Home:
    """A store with one session, and who compacts it.

    Attributes:
        now: the second in which the test began.
    """

    def __init__(self, **settings: Any) -> None:
        self.store = FakeStore()
        self.now = int(time.time())
        self._number = 0
        self.settings = CompactionSettings(**{"summary_max_tokens": 200, "idle_s": 0, **settings})

    @property
    def compactor(self) -> Compactor:
        """A replica's."""
        return Compactor(self.store.memory, self.store, FakeCounter(), self.settings)

    def plant(self, rows: Sequence[Row], *, ago: int) -> None:
        """Record rows in this order, with ids of their own, a second apart from so many seconds ago on."""
        for place, row in enumerate(rows):
            second = min(self.now - ago + place, self.now)
            self._number += 1
            row_id = ObjectId(f"{second:08x}{self._number:016x}")
            changes = {"_id": row_id, "id": f"m{self._number}", "timestamp": datetime.fromtimestamp(second, UTC)}
            self.store.plant("messages", [{**row, "owner_key": "o", "session_id": "s", **changes}])

    async def compact(self, **wish: Any) -> Compaction | None:
        """Compact the session."""
        return await self.compactor.compact(CompactionRequest(*SESSION, **wish))

    async def tail(self) -> list[Row]:
        """What is under no compaction, in stored order."""
        snapshot = await read_snapshot(self.store.memory, *SESSION)
        return await self.store.tail_messages(*SESSION, snapshot.tail, limit=10_000, oldest_first=True)

    async def account(self) -> Audit:
        """Where the messages are."""
        return await audit(self.store.memory, self.store, *SESSION)

    async def compactions(self) -> list[Compaction]:
        """All of them, the first one first."""
        documents = await self.store.memory.compactions(*SESSION, limit=1_000, whole=True)
        return [Compaction.model_validate(document) for document in reversed(documents)]


def home_with(runs: int, **changes: Any) -> Home:
    """A session of so many runs of four messages."""
    home = Home(**changes)
    home.plant([item for number in range(runs) for item in exchange(0, f"run-{number}")], ago=10_000)
    return home
