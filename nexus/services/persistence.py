"""Records what passes on the bus, and reads it back as history (contract §2).

- A reader waits a moment for results of its owner that were accepted before and are not written yet.
- Every row that is read is checked against its owner once more before it is used.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, Self

import anyio
import structlog

from nexus.core.errors import BusUnavailableError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics
from nexus.core.models import Message, Topics, new_row_id, utc_now
from nexus.core.ports import Cutoff, MessageStore, Outbox, OutboxRow, Past, RequestLedger, Row, RunOrigin
from nexus.core.working_memory import WHOLE, Tail
from nexus.services.history import outbox as outbox_rows
from nexus.services.history.reader import UntilStored, read_past, read_session
from nexus.services.history.recorder import Recorded, Recorder, RunOrigins, insert_row, with_fresh_id
from nexus.services.history.rows import clamp_timestamp, human_row, llm_row, tool_row

_log = structlog.get_logger(__name__)

# How long a reader waits for results that were accepted before.
_PENDING_S: Final = 0.25


def _nothing() -> None:
    pass


async def _ignore(_row: Row) -> None:
    pass


class PersistenceService:
    """Records results and inputs, and reads history. Use `running()` to have the background writers at work.

    The ledger keeps the origins of runs for all replicas. `recorded` is called with every result that was not recorded
    before, and with every input that waited in the outbox.
    """

    def __init__(
        self,
        store: MessageStore,
        metrics: Metrics | None = None,
        *,
        ledger: RequestLedger | None = None,
        outbox: Outbox | None = None,
        recorded: Recorded = _ignore,
    ) -> None:
        self._store = store
        self._metrics = metrics or NoMetrics()
        self._outbox = outbox
        self._recorded = recorded
        self.origins = RunOrigins(store, ledger)
        self._recorder = Recorder(store, self.origins, self._metrics, recorded)

    @property
    def unwritten(self) -> int:
        """Results that were accepted and are not written yet."""
        return self._recorder.unwritten

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write what is offered, and drain the outbox, until the context ends. `flush` first, to lose nothing."""
        async with anyio.create_task_group() as tasks:
            if self._outbox:
                tasks.start_soon(
                    outbox_rows.OutboxDrainer(self._outbox, self._store, self._metrics, self._recorded).run
                )
            async with self._recorder.running():
                yield self
            tasks.cancel_scope.cancel()

    async def flush(self) -> None:
        """Return when every result that was accepted is written."""
        await self._recorder.flush()

    def remember_run(self, owner_key: str, run_id: str, origin: RunOrigin) -> None:
        """Keep the origin of a run in this process: its results may come before its input is written."""
        self.origins.remember(owner_key, run_id, origin)

    async def begin_run(self, owner_key: str, run_id: str, origin: RunOrigin, keep_ms: int) -> RunOrigin:
        """Keep the origin of a run that is asked for, for all replicas. Returns that of the first request for it."""
        return await self.origins.begin(owner_key, run_id, origin, keep_ms)

    def offer(self, topic: str, message: Message, size: int, settled: Callable[[], None] = _nothing) -> bool:
        """Accept a result from the bus, with a payload of `size` bytes, for recording. Never waits.

        `settled` is called when it is written, or never will be because the store does not accept it.

        Returns:
            False when too much is waiting already; True also for what is not recorded by rule.
        """
        row = llm_row(message) if topic == Topics.LLM_RESULTS else tool_row(message)
        if row is None:
            settled()
            return True
        return self._recorder.offer(row, size, settled)

    def input_row(self, message: Message, text: str, origin: RunOrigin) -> Row:
        """The row of a run's human input, with its `_id`, and with a time that is not later than now."""
        row = human_row(message, text, origin)
        return {**row, "timestamp": clamp_timestamp(row["timestamp"], utc_now()), "_id": new_row_id()}

    async def insert_input(self, row: Row, *, outbox_waiting: bool = False) -> None:
        """Return when the store has the row; the caller sets the deadline.

        Where the outbox holds rows, and an earlier request of the run left its input there, that row is inserted: runs
        that were begun since go by its `_id`.

        Raises:
            StoreUnavailableError: it is not known whether the store has it.
            StoreRejectedError: the store will never accept it.
        """
        waiting = await self._waiting(row["owner_key"]) if outbox_waiting else []
        earlier = [each for each in waiting if (each["run_id"], each["id"]) == (row["run_id"], row["id"])]
        _, outcome = await insert_row(self._store, with_fresh_id(earlier[0]) if earlier else row)
        if isinstance(outcome, StoreRejectedError):
            _log.error("row_rejected", message_id=row["id"], reason=str(outcome))
            self._metrics.count(Event.ROW_REJECTED)
        if not isinstance(outcome, bool):
            raise outcome
        self._metrics.count(Event.ROW_RECORDED)

    def outbox_row(self, row: Row) -> OutboxRow:
        """The row as the outbox keeps it until the store takes it."""
        _log.warning("record_delayed", message_id=row["id"], reason="the store did not take it in time")
        return outbox_rows.write_row(row)

    async def get_history(self, owner_key: str, limit: int = 20) -> list[Row]:
        """The newest `limit` rows of every role, whole, newest first.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        if limit <= 0:
            return []
        return _own_rows(owner_key, await self._store.all_messages(owner_key, limit=limit))

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
    ) -> Past:
        """Rows enough for `messages` messages of the memory; see `Conversation.get_past`."""
        complete = await self._recorder.pending.written(owner_key, _PENDING_S, except_run=asked.run_id)
        waiting = await self._waiting(owner_key) if outbox_waiting else []
        past = await read_past(
            self._store,
            owner_key,
            messages=messages,
            excerpt_chars=excerpt_chars,
            asked=asked,
            own_row_id=own_row_id,
            until=await self._begun_at(asked, own_row_id) if continued else None,
            waiting=waiting,
        )
        return replace(past, rows=_own_rows(owner_key, past.rows), complete=complete)

    async def get_session(
        self,
        owner_key: str,
        origin: RunOrigin,
        *,
        messages: int,
        asked: Message,
        own_row_id: str | None = None,
        until: Cutoff | None = None,
        tail: Tail = WHOLE,
        continued: bool = False,
        outbox_waiting: bool = False,
    ) -> Past:
        """The newest rows of a session without those of the current run; see `Conversation.get_session`."""
        # Rows after a known end are not read, so they are not waited for.
        complete = until is not None or await self._recorder.pending.written(
            owner_key, _PENDING_S, except_run=asked.run_id
        )
        waiting = await self._waiting(owner_key) if outbox_waiting else []
        past = await read_session(
            self._store,
            owner_key,
            origin,
            messages=messages,
            asked=asked,
            own_row_id=own_row_id,
            until=until or (await self._begun_at(asked, own_row_id) if continued else None),
            tail=tail,
            waiting=waiting,
        )
        return replace(past, rows=_own_rows(owner_key, past.rows), complete=complete)

    async def _waiting(self, owner_key: str) -> list[Row]:
        """The owner's rows in the outbox. Read before the store: a row leaves the outbox when the store has it."""
        if self._outbox is None:
            return []
        try:
            return outbox_rows.read_rows(await self._outbox.of_owner(owner_key))
        except BusUnavailableError as error:
            raise StoreUnavailableError(f"the outbox: {error}") from error

    async def _begun_at(self, asked: Message, own_row_id: str | None) -> Cutoff | None:
        """Up to the row of a run's human input, where an earlier request recorded it."""
        begun = await self._store.find_message(asked.owner_key, asked.id)
        if begun is None or begun.get("run_id") != asked.run_id or str(begun["_id"]) == own_row_id:
            return None
        return UntilStored.of(begun)


def _own_rows(owner_key: str, rows: list[Row]) -> list[Row]:
    foreign = len([row for row in rows if row.get("owner_key") != owner_key])
    if not foreign:
        return rows
    # The store broke its promise. Using none of these rows is the only safe answer.
    _log.error("foreign_rows_withheld", rows=foreign)
    return [row for row in rows if row.get("owner_key") == owner_key]
