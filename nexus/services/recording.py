"""Writing rows in the background, however long that takes (CONTRACT §2).

Rules of this module:

- Recording is idempotent by (`owner_key`, `id`): replicas and resends write a row once.
- Rows that come closely on each other are written together; see `Batches`.
- A row that cannot be written now waits in memory, bounded in number and bytes, and is tried again until it is written
  or the service stops. What does not fit is refused, and the caller is told. Whoever offered a row can be told when it
  is settled, so that a bus that keeps messages keeps this one until then.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Self

import anyio
import structlog

from nexus.core.metrics import Event, Metrics, Reading
from nexus.core.models import utc_now
from nexus.core.ports import MessageStore, Row
from nexus.core.row_ids import new_row_id
from nexus.core.tasks import Pending
from nexus.services.batches import JOURNALED_PAUSE_S, Batches
from nexus.services.heard import Heard
from nexus.services.origins import RunOrigins
from nexus.services.rows import said_at
from nexus.services.writing import Recorded, Stored, Waiting, Writing

_log = structlog.get_logger(__name__)

# So many batches are under way at once, so that a slow one does not hold up the others.
_WRITERS: Final = 4
_MOST_WAITING: Final = 10_000
_MOST_WAITING_BYTES: Final = 64 << 20


class Recorder:
    """Writes the rows that it is offered. Use `running()` to have the background writers at work.

    Args:
        store: where to write.
        origins: to which session and agent a result belongs that does not say so.
        metrics: what is counted.
        recorded: told of every result that was not there before.
        stored: told of every result that the store has, before anybody who waits for the row is.
        pause_s: for how long rows that the journal has wait for others.

    Attributes:
        heard: rows that were accepted and are not written yet.
    """

    def __init__(
        self,
        store: MessageStore,
        origins: RunOrigins,
        metrics: Metrics,
        recorded: Recorded,
        stored: Stored,
        *,
        pause_s: float = JOURNALED_PAUSE_S,
    ) -> None:
        self._metrics = metrics
        self._waiting_bytes = 0
        self._unwritten = Pending()
        self._writing = Writing(store, origins, metrics, recorded, stored, unwritten=lambda: self.unwritten)
        self._turn = anyio.Lock(fast_acquire=True)
        self._open = True
        self.heard = Heard()
        self._batches = Batches(self.heard.awaited, pause_s)
        self._metrics.read_from(Reading.UNWRITTEN_ROWS, lambda: self._unwritten.count)

    @property
    def unwritten(self) -> int:
        """Rows that were accepted and are not written yet."""
        return self._unwritten.count

    async def flush(self) -> None:
        """Return when everything that was accepted is written."""
        with self.heard.awaited.awaiting():
            await self._unwritten.none()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write what is offered, until the context ends. `flush` first, to lose nothing that can be written."""
        async with anyio.create_task_group() as tasks:
            for _ in range(_WRITERS):
                tasks.start_soon(self._write_all)
            try:
                yield self
            finally:
                self._open = False
                tasks.cancel_scope.cancel()
                if self.unwritten:
                    _log.error("rows_unwritten", rows=self.unwritten)
                    self._metrics.count(Event.ROW_LOST, self.unwritten)

    def offer(self, row: Row, size: int, settled: Callable[[], None], *, journaled: bool = False) -> bool:
        """Accept a row.

        Args:
            row: the row.
            size: that of it in bytes, roughly.
            settled: called when it is written or never will be.
            journaled: the journal has it, so that nobody need wait for it.

        Returns:
            False when too much is waiting already.
        """
        full = self.unwritten >= _MOST_WAITING or self._waiting_bytes + size > _MOST_WAITING_BYTES
        if full or not self._open:
            return False
        # A clock that is ahead would have the row stand behind everything that is said until then.
        row["timestamp"] = said_at(row["timestamp"], utc_now())
        # What was accepted first counts as stored first, whichever batch is written first.
        row.setdefault("_id", new_row_id())
        written = None if journaled else self.heard.begin(row["owner_key"], row["run_id"], row["id"])
        self._batches.add(Waiting(row, size, settled, written), journaled=journaled)
        self._waiting_bytes += size
        self._unwritten.begin()
        return True

    async def _write_all(self) -> None:
        while True:
            # Who waits for the next rows keeps none of the last.
            await self._writing.write(await self._next(), self._settle)

    async def _next(self) -> list[Waiting]:
        async with self._turn:
            return await self._batches.take()

    def _settle(self, item: Waiting) -> None:
        item.settled()
        self._waiting_bytes -= item.size
        self._unwritten.end()
