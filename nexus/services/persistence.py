"""Records what passes on the bus, and reads it back as history (contract §2); the outbox beside MongoDB.

- A reader waits a moment for results of its owner that were accepted before and are not written yet.
- Every row that is read is checked against its owner once more.
- An input that MongoDB does not take in time is kept in the outbox, by the step that concludes. Any replica moves it
  to MongoDB later; until then every build of the owner reads it from the outbox (contract §1.5).
- A row of the outbox in a form that this release cannot read is left to the release that wrote it.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Self

import anyio
import structlog
from pydantic_core import from_json

from nexus.core.concurrency import Pauses, supervised
from nexus.core.errors import BusUnavailableError, ErasedError, StoreUnavailableError
from nexus.core.metrics import Metrics, NoMetrics, Reading
from nexus.core.models import Message, new_row_id, utc_now
from nexus.core.ports import Cutoff, MessageStore, Outbox, OutboxRow, Past, RequestLedger, Row, RunOrigin
from nexus.core.ports.store import Refused, Settled
from nexus.core.wire import compact
from nexus.core.working_memory import WHOLE, Tail
from nexus.services.history.messages import HistoryMessage, messages_of
from nexus.services.history.reader import MOST_SESSION_CHARS, UntilStored, read_past, read_session
from nexus.services.history.recorder import (
    Recorded,
    Recorder,
    RunOrigins,
    count_outcome,
    insert_row,
    insert_rows,
    with_fresh_id,
)
from nexus.services.history.rows import clamp_timestamp, human_row
from nexus.services.history.tombstones import Tombstones

_log = structlog.get_logger(__name__)

# How long a reader waits for results that were accepted before.
_PENDING_S: Final = 0.25
# Among which a call's result is looked for.
_NEWEST_ROWS: Final = 200
# How soon the store is asked once more for messages that another replica has to write.
_LOOK_AGAIN_S, _LOOK_AGAIN_AT_LAST_S = 0.01, 0.2
# How long for those of an owner who was lately erased: they may be among what was.
_MAYBE_ERASED_S: Final = 1.0


async def _ignore(*_: Any) -> None:
    pass


class PersistenceService:
    """Records results and inputs, and reads history. Background writers are at work while `running()`.

    - A build finds every row that was acknowledged before its request was sent: an input by its answer, a result by its
      being settled. Where that takes longer than a moment for results of this process, the past is not `complete`.
    - Where a claim says that the outbox holds rows (`outbox_waiting`), those of the owner are read from it before the
      store is read.
    - The ledger keeps the origins of runs for all replicas.
    - `recorded` is called with every result that was not recorded before, on a bus that `redelivers` with every one,
      and with every input that waited in the outbox; `refused` with every input that the store refuses, or that waited
      there and was erased meanwhile.
    - Results and further inputs are asked about among the `tombstones`. Who calls `insert_input` has asked before.
    - Errors: `StoreUnavailableError` where the store, or the outbox, did not answer.
    """

    def __init__(
        self,
        store: MessageStore,
        tombstones: Tombstones,
        metrics: Metrics | None = None,
        *,
        ledger: RequestLedger | None = None,
        outbox: Outbox | None = None,
        recorded: Recorded = _ignore,
        refused: Refused = _ignore,
        redelivers: bool = False,
    ) -> None:
        self._store = store
        self._metrics = metrics or NoMetrics()
        self._outbox = outbox
        self._recorded = recorded
        self._refused = refused
        self.origins = RunOrigins(store, ledger)
        self.tombstones = tombstones
        self._recorder = Recorder(store, tombstones, self.origins, self._metrics, recorded, redelivers=redelivers)

    @property
    def unwritten(self) -> int:
        """Results that were accepted and are not written yet."""
        return self._recorder.unwritten

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write what is offered, and drain the outbox, until the context ends. `flush` first, to lose nothing."""
        async with anyio.create_task_group() as tasks:
            if self._outbox:
                drainer = OutboxDrainer(
                    self._outbox, self._store, self.tombstones, self._metrics, self._recorded, self._refused
                )
                tasks.start_soon(supervised, self._metrics, "outbox", drainer.run)
            async with self._recorder.running():
                yield self
            tasks.cancel_scope.cancel()

    async def flush(self) -> None:
        """Return when every result that was accepted is written."""
        await self._recorder.flush()

    def offer(self, row: Row | None, size: int, settled: Settled = lambda _: None) -> bool:
        """Accept the row of a message from the bus, in a payload of `size` bytes, for recording. Never waits.

        `settled` is called when it is written, or with the reason why the store never will accept it. False when too
        much is waiting already; True also for None, what is not recorded by rule.
        """
        if row is None:
            settled(None)
            return True
        return self._recorder.offer(row, size, settled)

    def expect(self, owner_key: str, run_id: str) -> Callable[[], None]:
        """Have readers wait a moment for a result that is on its way here. Returns what ends that."""
        return self._recorder.pending.add(owner_key, run_id)

    async def unrecorded(self, owner_key: str, message_ids: Sequence[str], seconds: float) -> list[str]:
        """Those of these messages that are not in the store within so many seconds.

        They may have come to another replica, of whose writing this one learns nothing: the store is asked until it has
        them, for no longer than a second where something of the owner was lately erased. StoreUnavailableError where
        it does not answer.
        """
        missing, pauses = [*message_ids], Pauses(_LOOK_AGAIN_S, _LOOK_AGAIN_AT_LAST_S)
        with anyio.move_on_after(seconds) as waiting:
            while True:
                recorded = await self._store.recorded_ids(owner_key, missing)
                missing = [each for each in missing if each not in recorded]
                if not missing:
                    break
                if not pauses.begun and await self.tombstones.is_lately_erased(owner_key):
                    waiting.deadline = min(waiting.deadline, anyio.current_time() + _MAYBE_ERASED_S)
                await pauses.wait()
        return missing

    async def condensed_results(self, owner_key: str, handles: Sequence[str]) -> dict[str, str]:
        """By handle, the texts that contexts show of large results, after a moment's wait for those accepted by now."""
        await self.written(owner_key, except_run="")
        return await self._store.condensed_results(owner_key, handles)

    async def has_result(self, owner_key: str, run_id: str, call_id: str) -> bool:
        """Whether the newest rows of a run hold a result of this call. Raises StoreUnavailableError."""
        rows = await self._store.run_messages(owner_key, run_id, limit=_NEWEST_ROWS)
        return any(item.role == "tool" and item.call_id == call_id for item in messages_of(rows))

    async def progress_of(self, owner_key: str, run_id: str) -> list[HistoryMessage]:
        """How far the calls of a run have come, as far as that was reported. Raises StoreUnavailableError."""
        rows = await self._store.results_of_runs(owner_key, [run_id], limit=_NEWEST_ROWS, excerpt_chars=1)
        return [item for item in messages_of(rows) if item.state]

    def input_row(self, message: Message, origin: RunOrigin) -> Row:
        """The row of a run's human input, with its `_id`, and with a time that is not later than now."""
        row = human_row(message, origin)
        return {**row, "timestamp": clamp_timestamp(row["timestamp"], utc_now()), "_id": new_row_id()}

    async def insert_input(self, row: Row, *, outbox_waiting: bool = False) -> None:
        """Return when the store has the row, or that of an earlier request of the run which waits in the outbox.

        Runs that were begun since go by the `_id` of the earlier one. Of a row that the store refuses, another that
        says so stands in its place.
        """
        waiting = await self._waiting(row["owner_key"], outbox_waiting)
        earlier = [each for each in waiting if (each["run_id"], each["id"]) == (row["run_id"], row["id"])]
        _, outcome = await insert_row(self._store, with_fresh_id(earlier[0]) if earlier else row)
        if isinstance(outcome, StoreUnavailableError):
            raise outcome
        if reason := count_outcome(self._metrics, row, outcome):
            await self._refused(row, reason)

    def outbox_row(self, row: Row) -> OutboxRow:
        """The row as the outbox keeps it."""
        _log.warning("record_delayed", message_id=row["id"], reason="the store did not take it in time")
        return write_outbox_row(row)

    async def get_history(self, owner_key: str, limit: int = 20) -> list[Row]:
        """The newest `limit` rows of every role, whole, newest first."""
        return _own_rows(owner_key, await self._store.all_messages(owner_key, limit=limit)) if limit > 0 else []

    async def get_past(
        self,
        owner_key: str,
        *,
        messages: int,
        excerpt_chars: int,
        asked: Message,
        own_row_id: str | None = None,
        continued: bool = False,
        outbox_waiting: bool = False,
        results: bool = False,
    ) -> Past:
        """Rows enough for `messages` messages of the memory, every run among them whole.

        Messages are counted after merging. Contents longer than twice `excerpt_chars` may come without their middle.
        `asked` is the human input of the run that asks. Where an earlier request of the run recorded it (`continued`),
        what was stored after it is left out; the row with `own_row_id`, which the build that reads inserts meanwhile,
        leaves nothing out. With `results`, also the beginnings of what tools gave in the runs of these messages.
        """
        read = partial(
            read_past, self._store, owner_key, messages=messages, excerpt_chars=excerpt_chars, results=results
        )
        return await self._read(read, asked, own_row_id, until=None, continued=continued, outbox_waiting=outbox_waiting)

    async def get_session(
        self,
        owner_key: str,
        origin: RunOrigin,
        *,
        messages: int,
        chars: int = MOST_SESSION_CHARS,
        asked: Message,
        own_row_id: str | None = None,
        until: Cutoff | None = None,
        tail: Tail = WHOLE,
        continued: bool = False,
        outbox_waiting: bool = False,
    ) -> Past:
        """The newest rows of a session, without those of the current run.

        `messages` rows with `chars` characters at most, those under no compaction (`tail`), up to `until` where that is
        known better than from `asked`. The rest as for `get_past`.
        """
        read = partial(read_session, self._store, owner_key, origin, messages=messages, chars=chars, tail=tail)
        return await self._read(
            read, asked, own_row_id, until=until, continued=continued, outbox_waiting=outbox_waiting
        )

    async def written(self, owner_key: str, *, except_run: str) -> bool:
        """Wait a moment for the owner's results accepted by now, but for one run's. False where that was too short."""
        return await self._recorder.pending.written(owner_key, _PENDING_S, except_run=except_run)

    async def _read(
        self,
        read: Callable[..., Awaitable[Past]],
        asked: Message,
        own_row_id: str | None,
        *,
        until: Cutoff | None,
        continued: bool,
        outbox_waiting: bool,
    ) -> Past:
        owner_key = asked.owner_key
        # Rows after a known end are not read, so they are not waited for.
        complete = until is not None or await self.written(owner_key, except_run=asked.run_id)
        waiting = await self._waiting(owner_key, outbox_waiting)
        if until is None and continued:
            until = await self._begun_at(asked, own_row_id)
        past = await read(asked=asked, own_row_id=own_row_id, until=until, waiting=waiting)
        return replace(past, rows=_own_rows(owner_key, past.rows), complete=complete)

    async def _waiting(self, owner_key: str, outbox_waiting: bool) -> list[Row]:
        """The owner's rows in the outbox. Read before the store: a row leaves the outbox when the store has it."""
        if self._outbox is None or not outbox_waiting:
            return []
        try:
            return read_outbox_rows(await self._outbox.of_owner(owner_key))
        except BusUnavailableError as error:
            raise StoreUnavailableError(f"the outbox: {error}") from error

    async def _begun_at(self, asked: Message, own_row_id: str | None) -> Cutoff | None:
        """Up to the row of a run's human input, where an earlier request recorded it."""
        begun = await self._store.find_message(asked.owner_key, asked.id)
        if begun is None or begun.get("run_id") != asked.run_id or str(begun["_id"]) == own_row_id:
            return None
        return UntilStored.of(begun)


def _own_rows(owner_key: str, rows: list[Row]) -> list[Row]:
    own = [row for row in rows if row.get("owner_key") == owner_key]
    if len(own) < len(rows):
        # The store broke its promise. Using none of these rows is the only safe answer.
        _log.error("foreign_rows_withheld", rows=len(rows) - len(own))
    return own


_LOOK_EVERY_S: Final = 1.0
_BATCH: Final = 100
_TEXTS: Final = ("_id", "id", "run_id", "owner_key", "session_id", "role")


def write_outbox_row(row: Row) -> OutboxRow:
    """A recorded row in the form of the outbox."""
    # The ids of messages may come twice, in different runs.
    return OutboxRow(row["owner_key"], compact([row["run_id"], row["id"]]).decode(), compact(row))


def read_outbox_row(kept: OutboxRow) -> Row | None:
    """The row as it is recorded; None for one that cannot be read."""
    try:
        row: dict[str, Any] = from_json(kept.content)
        row["timestamp"] = datetime.fromisoformat(row["timestamp"])
        is_whole = all(isinstance(row[name], str) for name in _TEXTS) and isinstance(row["metadata"], dict)
        # An input that comes with results of tools is no text.
        if is_whole and isinstance(row["content"], str | list | dict):
            return row
    except (ValueError, KeyError, TypeError):
        pass
    return None


def read_outbox_rows(kept: Iterable[OutboxRow]) -> list[Row]:
    """The rows that can be read; one line in the log for all others."""
    read = [(each, read_outbox_row(each)) for each in kept]
    _log_unreadable([each for each, row in read if not row])
    return [row for _, row in read if row]


def _log_unreadable(rows: Sequence[OutboxRow]) -> None:
    """Log how many rows cannot be read, and size and hash of the first."""
    if rows:
        first = rows[0].content
        digest = hashlib.sha256(first).hexdigest()
        _log.error("outbox_row_unreadable", rows=len(rows), bytes=len(first), sha256=digest)


class OutboxDrainer:
    """Writes the rows of the outbox into the store.

    `recorded` is called with every row that the store has; more than once, where removing it failed. `refused` likewise
    with every row that it refuses, or that was erased meanwhile.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        outbox: Outbox,
        store: MessageStore,
        tombstones: Tombstones,
        metrics: Metrics,
        recorded: Recorded,
        refused: Refused,
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._metrics = metrics
        self._recorded = recorded
        self._refused = refused
        self._tombstones = tombstones
        # Where the next look begins.
        self._offset = 0
        self._waiting = 0
        metrics.read_from(Reading.OUTBOX_ROWS, lambda: self._waiting)

    async def run(self) -> None:
        """Drain until cancelled. While Redis or the store is away, it looks less often."""
        pauses = Pauses(_LOOK_EVERY_S, 8 * _LOOK_EVERY_S)
        while True:
            await pauses.wait()
            try:
                self._waiting = await self._outbox.count()
                if self._waiting:
                    await self.drain()
                pauses.end()
            except (BusUnavailableError, StoreUnavailableError) as error:
                _log.warning("outbox_not_drained", reason=str(error))

    async def drain(self) -> int:
        """Look once through the outbox and write its rows, past those that stay. Returns how many left it.

        A look ends at 100 rows of which none leaves because the store is away or something is at fault. The next look
        goes on behind these, so that they hold up no others.

        Raises:
            BusUnavailableError: Redis did not answer.
            StoreUnavailableError: the store did not take all of them; those that it took have left the outbox.
        """
        offset, left, unreadable, away = self._offset, 0, list[OutboxRow](), None
        kept = await self._outbox.oldest(_BATCH, offset)
        if not kept and offset:
            offset = 0
            kept = await self._outbox.oldest(_BATCH)
        try:
            while kept:
                self._offset = offset + len(kept)
                read = [(each, read_outbox_row(each)) for each in kept]
                unreadable += [each for each, row in read if not row]
                finished, away_now = await self._write([(each, row) for each, row in read if row])
                away = away_now or away
                if away_now and not finished:
                    raise away_now
                left += finished
                offset += len(kept) - finished
                kept = await self._outbox.oldest(_BATCH, offset)
        finally:
            _log_unreadable(unreadable)
        self._offset = 0
        if away:
            raise away
        return left

    async def _write(self, readable: Sequence[tuple[OutboxRow, Row]]) -> tuple[int, StoreUnavailableError | None]:
        """Write rows. Returns how many left the outbox, and why not all, if so."""
        inserted = await insert_rows(self._store, self._tombstones, [with_fresh_id(row) for _, row in readable])
        finished, recorded, away = list[OutboxRow](), list[Row](), None
        for (each, _), (row, outcome) in zip(readable, inserted, strict=True):
            if isinstance(outcome, StoreUnavailableError):
                away = outcome
                continue
            finished.append(each)
            if not isinstance(outcome, ErasedError):
                recorded.append(row)
            if reason := count_outcome(self._metrics, row, outcome):
                await self._refused(row, reason)
        if finished:
            async with anyio.create_task_group() as tasks:
                for row in recorded:
                    tasks.start_soon(self._recorded, row)
            await self._outbox.remove(finished)
            _log.info("outbox_drained", rows=len(finished))
        return len(finished), away
