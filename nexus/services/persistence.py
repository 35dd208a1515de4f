"""What passes on the bus is recorded, and read back as history (CONTRACT §2).

Rules of this module:

- Who reads waits a moment for what was heard before and is not written yet, unless the journal has it.
- Every row that is read is checked against its owner once more before anybody sees it.
- The version of an owner moves with every row: in the step that journals an input, and for all others when the store
  has the row, before whoever sent it is told that it is settled.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

import anyio
import structlog

from nexus.core.errors import BusUnavailableError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.models import Message, Topics, new_row_id, utc_now
from nexus.core.ports import Cutoff, Journal, MessageStore, Outbox, OutboxRow, Past, RequestLedger, Row, RunOrigin
from nexus.core.working_memory import WHOLE, Tail
from nexus.services.batches import JOURNALED_PAUSE_S
from nexus.services.history import outbox as outbox_rows
from nexus.services.history.cutoff import UntilStored
from nexus.services.history.outbox import OutboxDrainer
from nexus.services.history.reader import read_past, read_session
from nexus.services.history.recorder import insert_rows
from nexus.services.history.rows import clamp_timestamp, human_row, llm_row, tool_row
from nexus.services.history.run_origins import RunOrigins
from nexus.services.inputs import OfferedInput, input_of
from nexus.services.journaling import HEARD_S, STAYS_S, Journaling
from nexus.services.past import OwnersPast, own_rows
from nexus.services.recording import Recorder
from nexus.services.tails import Tails
from nexus.services.writing import Recorded

_log = structlog.get_logger(__name__)


def _nothing() -> None:
    pass


async def _nobody(_row: Row) -> None:
    pass


class PersistenceService:
    """Records results and inputs, and reads history. Use `running()` to have the background writers at work.

    Args:
        store: where rows are kept.
        metrics: what is counted.
        ledger: where replicas tell each other to which session a run belongs.
        recorded: told of every row that was not there before.
        journal: where inputs are until they are written; None where answers wait for that.
        tails: where what was read is kept for as long as it is the newest; only with a journal.
        clock: seconds that never run back.
        stays_s: for how long a row stays in the journal after it was written; the same for all replicas.
        pause_s: for how long rows that the journal has wait to be written with others.

    Attributes:
        origins: what is known of where runs belong.
    """

    def __init__(
        self,
        store: MessageStore,
        metrics: Metrics | None = None,
        *,
        ledger: RequestLedger | None = None,
        recorded: Recorded = _nobody,
        journal: Journal | None = None,
        outbox: Outbox | None = None,
        tails: Tails | None = None,
        clock: Callable[[], float] = time.monotonic,
        stays_s: float = STAYS_S,
        pause_s: float = JOURNALED_PAUSE_S,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._tails = tails or Tails()
        self._clock = clock
        self.origins = RunOrigins(store, ledger)
        self._metrics = metrics or NoMetrics()
        self._metrics.read_from(Reading.KEPT_BYTES, lambda: self._tails.size)
        self._recorder = Recorder(store, self.origins, self._metrics, recorded, self._stored, pause_s=pause_s)
        self._journaling = Journaling(journal, self._tails, self._recorder, stays_s) if journal else None

    @property
    def unwritten(self) -> int:
        """Rows that were accepted and are not written yet."""
        return self._recorder.unwritten

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write what is offered, until the context ends. `flush` first, to lose nothing that can be written."""
        async with AsyncExitStack() as stack:
            if self._journaling:
                await stack.enter_async_context(self._journaling.running())
            if self._outbox:
                tasks = await stack.enter_async_context(anyio.create_task_group())
                stack.callback(tasks.cancel_scope.cancel)
                tasks.start_soon(OutboxDrainer(self._outbox, self._store, self._metrics).run)
            # Ends first, since what it has written is told there.
            await stack.enter_async_context(self._recorder.running())
            yield self

    async def flush(self) -> None:
        """Return when everything that was accepted is written."""
        await self._recorder.flush()
        if self._journaling:
            await self._journaling.flush()

    def remember_run(self, owner_key: str, run_id: str, origin: RunOrigin) -> None:
        """Know where a run belongs that was heard of, whose results may come before its input is written."""
        self.origins.remember(owner_key, run_id, origin)

    async def begin_run(self, owner_key: str, run_id: str, origin: RunOrigin, keep_ms: int) -> RunOrigin:
        """Say where a run belongs that is asked for, for so long. Returns what the first has said who asked for it."""
        return await self.origins.begin(owner_key, run_id, origin, keep_ms)

    def offer(self, topic: str, message: Message, size: int, settled: Callable[[], None] = _nothing) -> bool:
        """Accept a result from the bus for recording.

        Args:
            topic: where it came from.
            message: the result.
            size: that of its payload.
            settled: called when it is written, or never will be because the store does not accept it.

        Returns:
            False when too much is waiting already; True also for what is not recorded by rule.
        """
        row = llm_row(message) if topic == Topics.LLM_RESULTS else tool_row(message)
        if row is None:
            settled()
            return True
        return self._recorder.offer(row, size, settled)

    def input_of(self, message: Message, text: str, origin: RunOrigin) -> OfferedInput:
        """A run's human input, which is recorded when it is offered or what becomes of it is told."""
        self.origins.remember(message.owner_key, message.run_id, origin)
        return input_of(self._recorder, self._journaling, human_row(message, text, origin))

    def input_row(self, message: Message, text: str, origin: RunOrigin) -> Row:
        """The row of a run's human input, with its `_id`, and with a time that is not later than now."""
        row = human_row(message, text, origin)
        return {**row, "timestamp": clamp_timestamp(row["timestamp"], utc_now()), "_id": new_row_id()}

    async def insert_input(self, row: Row) -> None:
        """Return when the store has the row; the caller sets the deadline.

        Raises:
            StoreUnavailableError: it is not known whether the store has it.
            StoreRejectedError: the store will never accept it.
        """
        (outcome,) = await insert_rows(self._store, [row])
        if isinstance(outcome, StoreRejectedError):
            _log.error("row_rejected", message_id=row["id"], reason=str(outcome))
            self._metrics.count(Event.ROW_REJECTED)
        if not isinstance(outcome, bool):
            raise outcome
        self._metrics.count(Event.ROW_RECORDED)

    def outbox_row(self, row: Row) -> OutboxRow:
        """The row as it is kept until the store takes it."""
        _log.warning("record_delayed", message_id=row["id"], reason="the store did not take it in time")
        return outbox_rows.write_row(row)

    async def get_history(self, owner_key: str, limit: int = 20) -> list[Row]:
        """The newest `limit` rows of every role, whole, newest first.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        if limit <= 0:
            return []
        return own_rows(owner_key, await self._store.all_messages(owner_key, limit=limit))

    async def get_past(
        self,
        owner_key: str,
        *,
        messages: int,
        excerpt_chars: int,
        asked: Message,
        continued: bool = False,
        outbox_waiting: bool | None = None,
    ) -> Past:
        """Rows enough for `messages` messages of the memory; see `read_past`.

        Args:
            owner_key: whose.
            messages: how many messages after merging.
            excerpt_chars: contents longer than twice this may come without their middle.
            asked: the human input of the run that asks. What was stored after it, if it has been, is left out.
            continued: the run was begun earlier.
            outbox_waiting: the outbox holds rows, of which some may be the owner's.

        Raises:
            StoreUnavailableError: the store, or the outbox, did not answer.
        """
        if not continued and outbox_waiting is None:
            return await self.past(owner_key, messages=messages, excerpt_chars=excerpt_chars, asked=asked).get(None)
        complete = await self._recorder.heard.written(owner_key, HEARD_S, besides=asked.run_id)
        waiting = await self._waiting(owner_key) if outbox_waiting else ()
        past = await read_past(
            self._store,
            owner_key,
            messages=messages,
            excerpt_chars=excerpt_chars,
            asked=asked,
            until=await self._begun_at(asked) if continued else None,
            waiting=waiting,
        )
        return Past(own_rows(owner_key, past.rows), past.stopped_early, complete)

    def past(self, owner_key: str, *, messages: int, excerpt_chars: int, asked: Message) -> OwnersPast:
        """The past for a run that has not been built before, for whoever knows how things are with the owner."""
        return OwnersPast(
            self._store,
            self._tails,
            self._journaling,
            self._recorder.heard,
            self._metrics,
            owner_key=owner_key,
            messages=messages,
            excerpt_chars=excerpt_chars,
            asked=asked,
            clock=self._clock,
        )

    async def write_journal(self, contents: Sequence[bytes]) -> bool:
        """Write what the journal holds, for a reader who looks into the store alone. False if not in time."""
        return await self._journaling.write(contents) if self._journaling else True

    async def get_session(
        self,
        owner_key: str,
        origin: RunOrigin,
        *,
        messages: int,
        asked: Message,
        until: Cutoff | None = None,
        tail: Tail = WHOLE,
        continued: bool = False,
        outbox_waiting: bool = False,
    ) -> Past:
        """The newest rows of a session, whole, without those of the current run; see `read_session`.

        Args:
            owner_key: whose.
            origin: which session, and for which agent.
            messages: rows at most.
            asked: the human input of the run that asks. What was stored after it, if it has been, is left out.
            until: where the history ends, where that is known better.
            tail: which rows are under no compaction; others are not read.
            continued: the run was begun earlier.
            outbox_waiting: as for `get_past`.

        Raises:
            StoreUnavailableError: the store, or the outbox, did not answer.
        """
        # What comes after a known end is not asked for, so it is not waited for.
        complete = until is not None or await self._recorder.heard.written(owner_key, HEARD_S, besides=asked.run_id)
        waiting = await self._waiting(owner_key) if outbox_waiting else ()
        past = await read_session(
            self._store,
            owner_key,
            origin,
            messages=messages,
            asked=asked,
            until=until or (await self._begun_at(asked) if continued else None),
            tail=tail,
            waiting=waiting,
        )
        return Past(own_rows(owner_key, past.rows), past.stopped_early, complete)

    async def _waiting(self, owner_key: str) -> list[Row]:
        """The owner's rows in the outbox. Read before the store: a row that is in neither by then does not exist."""
        if self._outbox is None:
            return []
        try:
            return outbox_rows.read_rows(await self._outbox.of_owner(owner_key))
        except BusUnavailableError as error:
            raise StoreUnavailableError(f"the outbox: {error}") from error

    async def _begun_at(self, asked: Message) -> Cutoff | None:
        """Up to the row of a run's human input."""
        begun = await self._store.find_message(asked.owner_key, asked.id)
        return UntilStored.of(begun) if begun and begun.get("run_id") == asked.run_id else None

    async def _stored(self, rows: Sequence[Row]) -> None:
        if self._journaling:
            await self._journaling.stored(rows)
