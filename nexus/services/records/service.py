"""Records of builds: accepted when an answer is published, and written behind it (contract §13).

- Whatever happens to a record, the answer is out already. One that finds no room, or that the store does not take, is
  counted and gone.
- Of a request one record is kept: that of the effective answer.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Self

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from nexus.core.concurrency import OuterHandler, Pending, computed, items_of, supervised
from nexus.core.errors import ErasedError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.ports import RecordStore
from nexus.core.records import BuildRecord
from nexus.core.wire import compact
from nexus.services.history.tombstones import Tombstones, report_erased
from nexus.services.records.pieces import cut, packed, piece_id

_log = structlog.get_logger(__name__)

_TASK: Final = "records"
_WRITERS: Final = 2
_MOST_WAITING: Final = 256
_MOST_WAITING_BYTES: Final = 32 << 20
_Item = tuple[BuildRecord, bytes, datetime]


class BuildRecords:
    """Writes records while `running()`. `pending` are records that are not written."""

    def __init__(
        self,
        store: RecordStore,
        keep: timedelta,
        metrics: Metrics | None = None,
        *,
        tombstones: Tombstones | None = None,
    ) -> None:
        self._store = store
        self._tombstones = tombstones or Tombstones()
        self._keep = keep
        self._metrics = metrics or NoMetrics()
        self.pending = Pending()
        self._bytes = 0
        # While running.
        self._send: MemoryObjectSendStream[_Item] | None = None
        self._metrics.read_from(Reading.UNWRITTEN_RECORDS, lambda: self.pending.count)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write what is offered until the context ends; wait for `pending` first, to lose none."""
        self._send, receive = anyio.create_memory_object_stream[_Item](_MOST_WAITING)
        async with self._send, receive, anyio.create_task_group() as tasks:
            for _ in range(_WRITERS):
                tasks.start_soon(supervised, self._metrics, _TASK, partial(self._write_all, receive))
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    def offer(self, record: BuildRecord, answer: bytes, *, begun_at: datetime) -> None:
        """Accept a record of an answer with these bytes, to a request that arrived then. Returns at once."""
        if self._send is None or self._bytes + len(answer) > _MOST_WAITING_BYTES:
            self._lose(record, "too many records are waiting")
            return
        try:
            self._send.send_nowait((record, answer, begun_at))
        except anyio.WouldBlock:
            self._lose(record, "too many records are waiting")
            return
        self._bytes += len(answer)
        self.pending.begin()

    async def _write_all(self, receive: MemoryObjectReceiveStream[_Item]) -> None:
        async for record, answer, begun_at in items_of(receive):
            try:
                with OuterHandler(self._metrics, _TASK, request_id=record.request_id):
                    await self._write(record, answer, begun_at)
            finally:
                self._bytes -= len(answer)
                self.pending.end()

    async def _write(self, record: BuildRecord, answer: bytes, begun_at: datetime) -> None:
        until = record.answered_at + self._keep
        try:
            # It may show what was erased of any session.
            await self._tombstones.check_work(record.owner_key, begun_at)
            if record.mode == "full":
                ids, pieces = await computed(record.owner_key, len(answer), partial(_pieces_of, answer))
                missing = await self._store.missing_pieces(record.owner_key, [*pieces], until)
                new = {each: packed(pieces[each]) for each in missing}
                await self._store.put_pieces(record.owner_key, new, until)
                record = replace(record, pieces=tuple(ids))
            await self._store.put_record(record, until)
        except ErasedError as error:
            report_erased(self._metrics, error, request_id=record.request_id, run_id=record.run_id)
        except (StoreUnavailableError, StoreRejectedError) as error:
            self._lose(record, str(error))
        else:
            self._metrics.count(Event.RECORD_KEPT)

    def _lose(self, record: BuildRecord, reason: str) -> None:
        self._metrics.count(Event.RECORD_LOST)
        _log.warning("record_lost", request_id=record.request_id, reason=reason)


def _pieces_of(answer: bytes) -> tuple[list[bytes], Mapping[bytes, bytes]]:
    """The ids of the answer's pieces in their order, and the pieces by id."""
    pieces = cut(answer)
    ids = [*map(piece_id, pieces)]
    return ids, dict(zip(ids, pieces, strict=True))


def packed_manifest(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as it is kept where the pieces are not."""
    return packed(compact(manifest))
