"""Records rows in MongoDB: results from the bus in the background, a run's input at once (contract §2).

- Recording is idempotent by (`owner_key`, `id`): replicas and resends write a row once.
- A result that cannot be written now waits in memory, bounded in number and bytes, and is tried again until it is
  written or the service stops. Owners share that room as in `nexus.core.fairness`; a result without room is refused.
- The later version of a message takes the place of the earlier (`versions`). What is another text
  under a known id of its run is a dead letter.
- A row whose `id` belongs to a row of another run is recorded under an id of its own rather than lost.
- One row that the store refuses keeps no other of its batch from being written. In its place stands a row under the
  same id that says so.
- Results name their run alone, and may come before its input is written, or to a replica that did not build its
  context. So the replica that builds the first context keeps the run's origin in the ledger, which every replica can
  ask, also while the store is away. Of several origins under one run id the first counts.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Any, Final, Self

import anyio
import structlog
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from nexus.core.concurrency import OuterHandler, Pauses, supervised
from nexus.core.erasure import owner_mark
from nexus.core.errors import BusUnavailableError, ErasedError, StoreRejectedError, StoreUnavailableError, TakenIdError
from nexus.core.fairness import Room
from nexus.core.metrics import Event, Metrics, Reading
from nexus.core.models import DEFAULT_SESSION, new_row_id, seconds_of, utc_now
from nexus.core.ports import MessageStore, RequestLedger, Row, RunOrigin
from nexus.core.ports.store import Settled
from nexus.core.wire import compact
from nexus.services.history.reader import own_id
from nexus.services.history.rows import clamp_timestamp, of_run, stand_in
from nexus.services.history.tombstones import Tombstones, report_erased, said_in
from nexus.services.history.versions import grown, is_another

_log = structlog.get_logger(__name__)

# Beside the fields of a row that took the place of an earlier version.
UPDATED: Final = "updated"

_TASK: Final = "recorder"
# Results of a run come within minutes. For an older run the ledger is asked, in a round trip of its own.
_KNOWN_RUNS: Final = 5_000
_MAIN: Final = RunOrigin(DEFAULT_SESSION)


class RunOrigins:
    """The origins of runs: of the last 5,000 runs used in this process, in the ledger, in the store."""

    def __init__(self, store: MessageStore, ledger: RequestLedger | None = None) -> None:
        self._store = store
        self._ledger = ledger
        self._known: OrderedDict[tuple[str, str], RunOrigin] = OrderedDict()

    def remember(self, owner_key: str, run_id: str, origin: RunOrigin) -> RunOrigin:
        """Keep the origin of a run in this process, unless one is known. Returns the known one."""
        run = owner_key, run_id
        return self._find(run) or self._keep(run, origin)

    async def begin(self, owner_key: str, run_id: str, origin: RunOrigin, keep_ms: int) -> RunOrigin:
        """Keep the origin of a run in the ledger for `keep_ms`, unless one is kept. Returns the kept one."""
        if self._ledger is None:
            return self.remember(owner_key, run_id, origin)
        mine = compact([origin.session_id, origin.sub_agent])
        try:
            first = await self._ledger.keep_first(_key(owner_key, run_id), mine, keep_ms)
        except BusUnavailableError:
            return self.remember(owner_key, run_id, origin)
        return self._keep((owner_key, run_id), RunOrigin(*json.loads(first)))

    async def find(self, owner_key: str, run_id: str) -> RunOrigin:
        """The origin of a run, by default the main agent in the default session; raises as `known` does."""
        return await self.known(owner_key, run_id) or _MAIN

    async def known(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """The origin of a run; None if none is known. StoreUnavailableError where ledger or store did not answer."""
        run = owner_key, run_id
        if known := self._find(run):
            return known
        found = await self._kept(owner_key, run_id) or await self._store.find_origin(owner_key, run_id)
        return self._keep(run, found) if found else None

    async def _kept(self, owner_key: str, run_id: str) -> RunOrigin | None:
        if self._ledger is None:
            return None
        try:
            kept = await self._ledger.kept(_key(owner_key, run_id))
        except BusUnavailableError as error:
            raise StoreUnavailableError(f"where the run belongs: {error}") from error
        return RunOrigin(*json.loads(kept)) if kept else None

    def _find(self, run: tuple[str, str]) -> RunOrigin | None:
        if run in self._known:
            self._known.move_to_end(run)
        return self._known.get(run)

    def _keep(self, run: tuple[str, str], origin: RunOrigin) -> RunOrigin:
        self._known[run] = origin
        self._known.move_to_end(run)
        if len(self._known) > _KNOWN_RUNS:
            self._known.popitem(last=False)
        return origin


def _key(owner_key: str, run_id: str) -> str:
    return f"{hashlib.sha256(compact(['origin', owner_key, run_id])).hexdigest()}:{owner_mark(owner_key)}"


# Called with a row that was not recorded before, or with the one that stands in its place.
Recorded = Callable[[Row], Coroutine[Any, Any, None]]
# True for a row that is new, False for one that was there; or why it is not in the store.
Outcome = bool | StoreRejectedError | StoreUnavailableError

# This many batches are written at once, so that a slow one does not hold up the others.
_WRITERS: Final = 4
_BATCH: Final = 100
_BATCH_BYTES: Final = 1 << 20
_MOST_WAITING: Final = 10_000
_MOST_WAITING_BYTES: Final = 64 << 20
# After more unexpected faults a row leaves its writer to others, and is tried again when this time has passed.
_MOST_FAULTS: Final = 5
_AFTER_FAULTS_S: Final = 60
# An id that is older than this no longer says when its row was stored, on which compactions rely.
_ID_LASTS_S: Final = 1
_INPUT_ID_LASTS_S: Final = 60


async def insert_rows(store: MessageStore, tombstones: Tombstones, rows: Sequence[Row]) -> list[tuple[Row, Outcome]]:
    """Insert rows, and under an id of their own those whose `id` belongs to a row of another run.

    Returns each row as it is stored, and whether it is new, or why it is not in the store: of one that it refuses the
    row that stands in its place. Nothing stands for one that was erased.
    """
    try:
        erased = await tombstones.refusals([*map(said_in, rows)])
    except StoreUnavailableError as error:
        return [(row, error) for row in rows]
    inserted = iter(await _inserted(store, [row for row, error in zip(rows, erased, strict=True) if not error]))
    return [(row, error) if error else next(inserted) for row, error in zip(rows, erased, strict=True)]


async def _inserted(store: MessageStore, rows: Sequence[Row]) -> list[tuple[Row, Outcome]]:
    try:
        outcomes: list[Outcome] = [*await store.insert_messages(rows)] if rows else []
    except StoreUnavailableError as error:
        outcomes = [error] * len(rows)
    except StoreRejectedError:
        # Which of them is at fault shows when each is inserted by itself.
        return [await insert_row(store, row) for row in rows]
    return [await _settled(store, row, outcome) for row, outcome in zip(rows, outcomes, strict=True)]


async def insert_row(store: MessageStore, row: Row) -> tuple[Row, Outcome]:
    """Insert one row that was not erased; see `insert_rows`."""
    try:
        outcome: Outcome = await store.insert_message(row)
    except (StoreUnavailableError, StoreRejectedError) as error:
        outcome = error
    return await _settled(store, row, outcome)


async def _settled(store: MessageStore, row: Row, outcome: Outcome) -> tuple[Row, Outcome]:
    """What is stored at last of a row whose insertion came out so."""
    if outcome is False:
        row, outcome = await _insert_reused(store, row)
    if isinstance(outcome, StoreRejectedError) and not isinstance(outcome, TakenIdError):
        return await _insert_stand_in(store, row, outcome)
    return row, outcome


async def _insert_stand_in(store: MessageStore, row: Row, error: StoreRejectedError) -> tuple[Row, Outcome]:
    """Insert what stands in the place of a row that the store refuses, if it does not refuse that as well."""
    try:
        row = stand_in(row, error.reason)
        await store.insert_message(row)
    except StoreUnavailableError as away:
        return row, away
    except StoreRejectedError:
        pass
    return row, error


async def _insert_reused(store: MessageStore, row: Row) -> tuple[Row, Outcome]:
    """Insert a row whose `id` is taken under an id of its own, if it is a row of another run that has it."""
    try:
        known = await store.find_message(row["owner_key"], row["id"])
        if known is None:
            return row, StoreUnavailableError("the row that had this id is there no more")
        if known.get("run_id") == row["run_id"]:
            outcome = await _update_grown(store, row, known["_id"])
            return ({**row, UPDATED: True} if outcome is True else row), outcome
        _log.warning("message_id_reused", message_id=row["id"], run_id=row["run_id"])
        row = {**row, "id": own_id(row)}
        return row, await store.insert_message(row)
    except (StoreUnavailableError, StoreRejectedError) as error:
        return row, error


async def _update_grown(store: MessageStore, row: Row, row_id: str) -> Outcome:
    """Keep the later version of a message that is stored. False where the stored one says all that this one does."""
    seen_before: list[Row] = []
    while (stored := await store.messages_of_ids(row["owner_key"], [row_id])) and stored != seen_before:
        version = grown(row, stored[0])
        if version is None:
            return TakenIdError() if is_another(row, stored[0]) else False
        changes, seen = version
        if await store.update_message(row["owner_key"], row_id, changes, seen=seen):
            return True
        # Another version was stored at this moment.
        seen_before = stored
    # The two differ in what was not read; or the row is there no more.
    return TakenIdError() if stored else False


def with_fresh_id(row: Row, lasts_s: int = _INPUT_ID_LASTS_S) -> Row:
    """The row, under a new `_id` where its own is too old to say when it is stored."""
    return row if time() - seconds_of(row["_id"]) <= lasts_s else {**row, "_id": new_row_id()}


def count_outcome(metrics: Metrics, row: Row, outcome: bool | StoreRejectedError) -> str | None:
    """Count a row that is dealt with, and log one that is refused. Returns the reason of its dead letter."""
    if isinstance(outcome, ErasedError):
        report_erased(metrics, outcome, message_id=row["id"], run_id=row["run_id"])
        return outcome.reason
    if not isinstance(outcome, StoreRejectedError):
        metrics.count(Event.ROW_RECORDED)
        return None
    _log.error("row_rejected", message_id=row["id"], reason=str(outcome))
    metrics.count(Event.ROW_REJECTED)
    return outcome.reason


class PendingWrites:
    """Rows that were accepted and are not written yet, by owner: a reader waits a moment for them.

    A model's last answer is often followed at once by the next request, which is to find the answer in its history.
    """

    def __init__(self) -> None:
        self._of_owner: dict[str, dict[anyio.Event, str]] = {}

    def add(self, owner_key: str, run_id: str) -> Callable[[], None]:
        """A row was accepted. Returns what is to be called when it is written, or never will be."""
        written = anyio.Event()
        self._of_owner.setdefault(owner_key, {})[written] = run_id

        def end() -> None:
            written.set()
            rows = self._of_owner.get(owner_key, {})
            rows.pop(written, None)
            if not rows:
                self._of_owner.pop(owner_key, None)

        return end

    async def written(self, owner_key: str, seconds: float, *, except_run: str = "") -> bool:
        """Wait for the owner's rows accepted by now, but for one run's. False where it takes longer than `seconds`."""
        events = [event for event, run_id in self._of_owner.get(owner_key, {}).items() if run_id != except_run]
        with anyio.move_on_after(seconds):
            for event in events:
                await event.wait()
        return all(event.is_set() for event in events)


@dataclass(slots=True, eq=False)
class _Waiting:
    """An accepted row, what is called when readers find it and when it is dealt with, and its unexpected faults."""

    row: Row
    size: int
    settled: Settled
    written: Callable[[], None]
    faults: int = 0


class Recorder:
    """Writes the results that it is offered. Use `running()` to have the background writers at work.

    `recorded` is called with every result that was not recorded before. The result is settled when that returns:
    should this process end before, a bus that `redelivers` hands it out again. On such a bus it is called with every
    result: whoever recorded it may have ended before that.
    """

    def __init__(  # one for each part
        self,
        store: MessageStore,
        tombstones: Tombstones,
        origins: RunOrigins,
        metrics: Metrics,
        recorded: Recorded,
        *,
        redelivers: bool = False,
    ) -> None:
        self._store = store
        self._tombstones = tombstones
        self._origins = origins
        self._metrics = metrics
        self._recorded = recorded
        self._redelivers = redelivers
        self._room = Room(_MOST_WAITING, _MOST_WAITING_BYTES)
        # While the writers are at work.
        self._send: MemoryObjectSendStream[_Waiting] | None = None
        self._tasks: TaskGroup
        self.pending = PendingWrites()
        metrics.read_from(Reading.UNWRITTEN_ROWS, lambda: self.unwritten)

    @property
    def unwritten(self) -> int:
        """Rows that were accepted and are not written yet."""
        return self._room.count

    async def flush(self) -> None:
        """Return when everything that was accepted is written."""
        await self._room.pending.none()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write what is offered, until the context ends. `flush` first, to lose nothing that can be written."""
        send, receive = anyio.create_memory_object_stream[_Waiting](_MOST_WAITING)
        with send, receive:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                for _ in range(_WRITERS):
                    tasks.start_soon(supervised, self._metrics, _TASK, partial(self._write_batches, receive))
                self._send = send
                try:
                    yield self
                finally:
                    self._send = None
                    tasks.cancel_scope.cancel()
                    if self.unwritten:
                        _log.error("rows_unwritten", rows=self.unwritten)
                        self._metrics.count(Event.ROW_LOST, self.unwritten)

    def offer(self, row: Row, size: int, settled: Settled) -> bool:
        """Accept a row of about `size` bytes. Never waits. False when too much is waiting already.

        `settled` is called when it is written and reported, or with the reason why the store never will accept it.
        """
        if self._send is None or not self._room.enter(row["owner_key"], size):
            return False
        # A clock that is ahead would put the row behind everything that is recorded until then. And rows count as
        # stored in the order in which they were accepted, whichever batch is written first.
        row = {**row, "timestamp": clamp_timestamp(row["timestamp"], utc_now()), "_id": new_row_id()}
        written = self.pending.add(row["owner_key"], row["run_id"])
        self._send.send_nowait(_Waiting(row, size, settled, written))
        return True

    async def _write_batches(self, receive: MemoryObjectReceiveStream[_Waiting]) -> None:
        while True:
            batch = [await receive.receive()]
            size = batch[0].size
            while len(batch) < _BATCH and size < _BATCH_BYTES:
                try:
                    batch.append(receive.receive_nowait())
                except anyio.WouldBlock:
                    break
                size += batch[-1].size
            await self._write(batch)

    async def _write(self, batch: list[_Waiting]) -> None:
        """Write rows, again and again until each is written or rejected."""
        pauses = Pauses()
        while batch:
            delayed = []
            for item, (row, outcome) in zip(batch, await self._attempt(batch), strict=True):
                if isinstance(outcome, StoreUnavailableError):
                    if item.faults > _MOST_FAULTS:
                        self._tasks.start_soon(self._queue_again, item)
                    else:
                        delayed.append(item)
                    if not pauses.begun:
                        reason, unwritten = str(outcome), self.unwritten
                        _log.warning("record_delayed", message_id=row["id"], reason=reason, unwritten=unwritten)
                    continue
                item.written()
                refused = count_outcome(self._metrics, row, outcome)
                # Where it is not known which attempt wrote it, it may not have been reported: its writer may be gone.
                is_news = outcome or self._redelivers or pauses.begun or item.faults
                if is_news and not isinstance(outcome, TakenIdError | ErasedError):
                    self._tasks.start_soon(self._report, row, item, refused)
                else:
                    self._settle(item, refused)
            batch = delayed
            if batch:
                await pauses.wait()

    async def _attempt(self, batch: Sequence[_Waiting]) -> list[tuple[Row, Outcome]]:
        """Insert rows; after an unexpected exception each by itself, for one must not keep the others unwritten."""
        inserted: list[tuple[Row, Outcome]] = []
        with OuterHandler(self._metrics, _TASK, rows=len(batch)) as handler:
            inserted = await self._insert(batch)
        if not handler.failed:
            return inserted
        if len(batch) == 1:
            # A fault that may pass loses no row.
            batch[0].faults += 1
            return [(batch[0].row, StoreUnavailableError("an unexpected error"))]
        alone = [inserted for item in batch for inserted in await self._attempt([item])]
        # One that is there now may have been written by the attempt that failed.
        return [(row, True if outcome is False else outcome) for row, outcome in alone]

    async def _queue_again(self, item: _Waiting) -> None:
        await anyio.sleep(_AFTER_FAULTS_S)
        # Counted anew, so that a store that is away is not taken for a fault; not from 0, since it may be written.
        item.faults = 1
        if self._send:
            # There is room for all that may be unwritten.
            self._send.send_nowait(item)

    async def _report(self, row: Row, item: _Waiting, refused: str | None) -> None:
        # The row is written, whatever is made of it.
        with OuterHandler(self._metrics, _TASK, rows=1):
            await self._recorded(row)
        self._settle(item, refused)

    def _settle(self, item: _Waiting, reason: str | None) -> None:
        item.settled(reason)
        self._room.leave(item.row["owner_key"], item.size)

    async def _insert(self, batch: Sequence[_Waiting]) -> list[tuple[Row, Outcome]]:
        unknown: dict[_Waiting, StoreUnavailableError] = {}
        ready = []
        for item in batch:
            row = item.row
            try:
                origin = await self._origins.find(row["owner_key"], row["run_id"])
                ready.append(with_fresh_id(of_run(row, origin), _ID_LASTS_S))
            except StoreUnavailableError as error:
                unknown[item] = error
        inserted = iter(await insert_rows(self._store, self._tombstones, ready))
        return [(item.row, unknown[item]) if item in unknown else next(inserted) for item in batch]
