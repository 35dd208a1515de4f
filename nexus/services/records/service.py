"""Records of builds: accepted when an answer is published, and written behind it (contract §13).

- Whatever happens to a record, the answer is out already. One that finds no room, or that the store does not take, is
  counted and gone.
- Of a request one record is kept: that of the effective answer.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple, Self

import anyio
import anyio.lowlevel
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from nexus.core.concurrency import OuterHandler, Pending, computed, supervised
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.ports import RecordStore
from nexus.core.records import BuildRecord, Piece
from nexus.core.wire import compact
from nexus.services.history.tombstones import Made, Tombstones, report_erased
from nexus.services.records.pieces import cut, piece_ids

_log = structlog.get_logger(__name__)

_TASK: Final = "records"
_MOST_WAITING: Final = 256
_MOST_WAITING_BYTES: Final = 32 << 20
# Those of so much time are written together: three calls of the store cost a build more than all else of its record.
_GATHERED_S: Final = 0.5
_MOST_AT_ONCE: Final = 64
# Cutting and hashing take so much less than what `computed` reckons with.
_CHEAPER: Final = 8


class _Item(NamedTuple):
    record: BuildRecord
    answer: bytes
    manifest: Mapping[str, Any]
    begun_at: datetime


class BuildRecords:
    """Writes records while `running()`, those of `gathered_s` seconds together. `pending` are those not written."""

    def __init__(
        self,
        store: RecordStore,
        tombstones: Tombstones,
        keep: timedelta,
        metrics: Metrics | None = None,
        *,
        gathered_s: float = _GATHERED_S,
    ) -> None:
        self._store = store
        self._tombstones = tombstones
        self._keep = keep
        self._gathered_s = gathered_s
        self._metrics = metrics or NoMetrics()
        self.pending = Pending()
        self._bytes = 0
        # While they are accepted.
        self._send: MemoryObjectSendStream[_Item] | None = None
        self._metrics.read_from(Reading.UNWRITTEN_RECORDS, lambda: self.pending.count)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write what is offered until the context ends; `drain` first, to lose none."""
        self._send, receive = anyio.create_memory_object_stream[_Item](_MOST_WAITING)
        async with self._send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(supervised, self._metrics, _TASK, partial(self._write_all, receive))
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    def offer(self, record: BuildRecord, answer: bytes, manifest: Mapping[str, Any], *, begun_at: datetime) -> None:
        """Accept a record of an answer with these bytes, to a request that arrived then. Returns at once.

        What the record holds of the bytes and the manifest is added when it is written.
        """
        if self._send is None:
            self._lose(record, "the service is ending")
            return
        is_full = self._send.statistics().current_buffer_used == _MOST_WAITING
        if is_full or self._bytes + len(answer) > _MOST_WAITING_BYTES:
            self._lose(record, "too many records are waiting")
            return
        self._send.send_nowait(_Item(record, answer, manifest if record.mode == "manifest" else {}, begun_at))
        self._bytes += len(answer)
        self.pending.begin()

    async def drain(self) -> None:
        """Accept no more, and return when all that were accepted are written."""
        if self._send:
            self._send.close()
            self._send = None
        await self.pending.none()

    async def _write_all(self, receive: MemoryObjectReceiveStream[_Item]) -> None:
        with suppress(anyio.EndOfStream):
            while True:
                items = [await receive.receive()]
                with suppress(anyio.EndOfStream), anyio.move_on_after(self._gathered_s):
                    while len(items) < _MOST_AT_ONCE:
                        items.append(await receive.receive())
                try:
                    with OuterHandler(self._metrics, _TASK):
                        await self._write(items)
                finally:
                    for item in items:
                        self._bytes -= len(item.answer)
                        self.pending.end()

    async def _write(self, items: Sequence[_Item]) -> None:
        until = max(item.record.answered_at for item in items) + self._keep
        try:
            records, pieces = [], dict[bytes, Piece]()
            for item in await self._not_erased(items):
                chars = len(item.answer) // _CHEAPER
                whole, its_pieces = await computed(item.record.owner_key, chars, partial(_whole, item))
                records.append(whole)
                pieces |= its_pieces
                # Others are not to wait for all of them.
                await anyio.lowlevel.checkpoint()
            missing = await self._store.missing_pieces(pieces, until) if pieces else ()
            if missing:
                await self._store.put_pieces([pieces[each] for each in missing], until)
            if records:
                await self._store.put_records(records, until)
                self._metrics.count(Event.RECORD_KEPT, len(records))
        except StoreRejectedError as error:
            if len(items) == 1:
                self._lose(items[0].record, str(error))
                return
            # The others are not to be lost with one.
            for item in items:
                await self._write([item])
        except StoreUnavailableError as error:
            for item in items:
                self._lose(item.record, str(error))

    async def _not_erased(self, items: Sequence[_Item]) -> list[_Item]:
        """Those that show nothing which was erased meanwhile, of any session."""
        errors = await self._tombstones.refusals([Made(item.record.owner_key, item.begun_at) for item in items])
        for item, error in zip(items, errors, strict=True):
            if error:
                report_erased(self._metrics, error, request_id=item.record.request_id, run_id=item.record.run_id)
        return [item for item, error in zip(items, errors, strict=True) if not error]

    def _lose(self, record: BuildRecord, reason: str) -> None:
        self._metrics.count(Event.RECORD_LOST)
        _log.warning("record_lost", request_id=record.request_id, reason=reason)


def _whole(item: _Item) -> tuple[BuildRecord, Mapping[bytes, Piece]]:
    """The record with all that it holds, and its pieces by id; without any where the manifest alone is kept."""
    owner_key, sha256 = item.record.owner_key, hashlib.sha256(item.answer).hexdigest()
    if item.record.mode == "manifest":
        return replace(item.record, sha256=sha256, manifest=compact(item.manifest)), {}
    pieces = cut(item.answer)
    ids = piece_ids(owner_key, pieces)
    by_id = {each: Piece(each, owner_key, piece) for each, piece in zip(ids, pieces, strict=True)}
    return replace(item.record, sha256=sha256, pieces=tuple(ids)), by_id
