"""The states of sessions, as they are said on the bus (`session.state`, CONTRACT §5), kept in the store and read back.

Rules of this module:

- Every replica writes what it hears. Changes are joined to what is kept, so that neither their order nor their number
  shows, and a document is replaced only by whoever has seen it: who comes second reads it again.
- Of one session, one worker writes at a time and takes all that waits. What cannot be written now waits in memory,
  bounded in number and bytes, and is tried again until it is written or the service stops.
- A state that this process was told of before it was asked for is in the answer.
- A row that comes back is checked against its owner and its session before anybody sees it.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Self

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.models import Message
from nexus.core.ports import SessionStateStore
from nexus.core.tasks import Pauses, Pending
from nexus.services.context.session_state import SessionState
from nexus.services.context.state_change import Change, read_change, read_session
from nexus.services.context.state_document import apply, shown
from nexus.services.said import said_at

_log = structlog.get_logger(__name__)

_WORKERS: Final = 4
_MOST_WAITING: Final = 10_000
_MOST_WAITING_BYTES: Final = 64 << 20

# A session, and whose it is.
_Key = tuple[str, str]
# What is called when a change is stored, or with the reason when it never will be.
Settled = Callable[[str | None], None]


def _nothing(_reason: str | None) -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Waiting:
    change: Change
    message_id: str
    size: int
    settled: Settled


class _Session:
    """The changes of one session that wait."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.fault = ""
        self._accepted = self._settled = 0
        self._moved = anyio.Event()

    def accept(self, item: _Waiting) -> None:
        self.waiting.append(item)
        self._accepted += 1

    def moved(self, settled: int, fault: str = "") -> None:
        """So many more are settled; `fault` says what holds up the others."""
        self._settled += settled
        self.fault = fault
        self._moved.set()
        self._moved = anyio.Event()

    async def settled(self) -> None:
        """Return when all that was accepted until now is settled."""
        wanted = self._accepted
        while self._settled < wanted:
            if self.fault:
                raise StoreUnavailableError(self.fault)
            await self._moved.wait()


class SessionStates:
    """Keeps and reads the states of sessions. Use `running()` to have the background workers at work.

    Attributes:
        pending: changes that are not stored yet.
    """

    def __init__(self, store: SessionStateStore, metrics: Metrics | None = None) -> None:
        self._store = store
        self._metrics = metrics or NoMetrics()
        # As many sessions as changes may wait, and those that the workers have in hand.
        self._send, self._receive = anyio.create_memory_object_stream[_Key](_MOST_WAITING + _WORKERS)
        self._sessions: dict[_Key, _Session] = {}
        self._waiting_bytes = 0
        self._open = True
        self.pending = Pending()
        self._metrics.read_from(Reading.UNWRITTEN_STATES, lambda: self.pending.count)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Store what is offered, until the context ends. Wait for `pending` first, to lose nothing."""
        async with anyio.create_task_group() as tasks:
            for _ in range(_WORKERS):
                tasks.start_soon(self._write_all, self._receive.clone())
            try:
                yield self
            finally:
                self._open = False
                tasks.cancel_scope.cancel()
                self._send.close()
                self._receive.close()
                self._give_up()

    def offer(self, message: Message, size: int, settled: Settled = _nothing) -> bool:
        """Accept a `session.state` message.

        Args:
            message: what is said.
            size: that of its payload.
            settled: called when it is stored, or with the reason when it never will be.

        Returns:
            False when too much is waiting already.

        Raises:
            ValueError: it says nothing that can be kept; where, and what is allowed.
        """
        key = message.owner_key, read_session(message.metadata)
        item = _Waiting(read_change(message.content, said_at(message), message.id), message.id, size, settled)
        full = self.pending.count >= _MOST_WAITING or self._waiting_bytes + size > _MOST_WAITING_BYTES
        if full or not self._open:
            return False
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _Session()
            self._send.send_nowait(key)
        session.accept(item)
        self._waiting_bytes += size
        self.pending.begin()
        return True

    async def get(self, owner_key: str, session_id: str) -> SessionState:
        """The state of a session, with all of it that was offered before this is asked.

        Raises:
            StoreUnavailableError: the store did not answer, or what was offered cannot be stored now.
        """
        session = self._sessions.get((owner_key, session_id))
        if session:
            await session.settled()
        _, document = await self._find((owner_key, session_id))
        state, faults = shown(document)
        if faults:
            _log.warning("stored_state_passed_over", reason=faults[0], rows=len(faults))
        return state

    async def _find(self, key: _Key) -> tuple[int | None, Any]:
        """The revision and the document that are kept; 0 and None where there is none, None for what is no revision."""
        row = await self._store.find_session_state(*key)
        if row is None:
            return 0, None
        if (row.get("owner_key"), row.get("session_id")) != key:
            # The store broke its promise. Showing nothing of it is the only safe answer.
            _log.error("foreign_rows_withheld", rows=1)
            raise StoreUnavailableError("the store gave the state of another session")
        revision = row.get("revision")
        return revision if isinstance(revision, int) and revision > 0 else None, row.get("document")

    async def _write_all(self, keys: MemoryObjectReceiveStream[_Key]) -> None:
        async with keys:
            async for key in keys:
                await self._write(key, self._sessions[key])
                del self._sessions[key]

    async def _write(self, key: _Key, session: _Session) -> None:
        """Store all that waits of a session, and what comes while that is done."""
        pauses, most = Pauses(), _MOST_WAITING
        while session.waiting:
            items = list(islice(session.waiting, most))
            try:
                await self._join(key, [item.change for item in items])
            except StoreUnavailableError as error:
                if not pauses.begun:
                    _log.warning("session_state_delayed", reason=str(error), pending=self.pending.count)
                session.moved(0, str(error))
                await pauses.wait()
            except (StoreRejectedError, ValueError) as error:
                if len(items) > 1:
                    # Perhaps only one of them is too much. Halves find it in few steps, and the others are stored.
                    most = len(items) // 2
                else:
                    self._settle(session, items, str(error))
            else:
                pauses.end()
                most = min(most * 2, _MOST_WAITING)
                self._settle(session, items, None)

    async def _join(self, key: _Key, changes: Sequence[Change]) -> None:
        """Join the changes to what is kept, however often somebody else comes first."""
        while True:
            revision, kept = await self._find(key)
            if revision is None:
                raise StoreRejectedError("what is stored of the session has no revision; remove it from session_states")
            document = apply(kept, *changes)
            if document == (kept or {}) or await self._store.put_session_state(*key, document, revision):
                return

    def _settle(self, session: _Session, items: Sequence[_Waiting], reason: str | None) -> None:
        """They are stored, or never will be for this reason."""
        for item in items:
            session.waiting.popleft()
            self._waiting_bytes -= item.size
            self.pending.end()
            if reason is None:
                self._metrics.count(Event.STATE_RECORDED)
            else:
                _log.warning("session_state_refused", message_id=item.message_id, reason=reason)
                self._metrics.count(Event.STATE_REFUSED)
            item.settled(reason)
        session.moved(len(items))

    def _give_up(self) -> None:
        """Nobody writes any more. Whoever waits is told."""
        for session in self._sessions.values():
            session.moved(0, "the service is stopping")
        if self.pending.count:
            _log.error("session_states_unwritten", pending=self.pending.count)
            self._metrics.count(Event.STATE_LOST, self.pending.count)
