"""A queue of writes for each session: one worker a session at a time, so that its writes are done in order.

- Writes that the store cannot take now wait in memory, in room that owners share as in `nexus.core.fairness`, and are
  tried again until the service stops.
- Where the store refuses several writes at once, halves of them are tried: one refusal does not cost the others.
- With a pause, writes of a session are gathered for that long before they are done, unless a caller waits for them.

`MessageQueue` is one for what messages of a topic say: what stores that is one itself.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, Generic, Self, TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup

from nexus.core.concurrency import Pauses, report_fault, supervised
from nexus.core.errors import ErasedError, StoreRejectedError, StoreUnavailableError, reason_of
from nexus.core.fairness import Room
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.models import Message, trusted_time
from nexus.core.ports.store import Settled
from nexus.services.history.rows import read_session_id
from nexus.services.history.tombstones import Said, Tombstones, report_erased

_log = structlog.get_logger(__name__)
_Item = TypeVar("_Item")

_TASK: Final = "session_queue"
# Sessions that are written at once. Contexts of agents wait for the turn of their run, longer than others with few.
_WORKERS: Final = 8
_MOST_WAITING: Final = 10_000
_MOST_WAITING_BYTES: Final = 64 << 20

# A session: its owner_key and its session_id.
Key = tuple[str, str]


@dataclass(slots=True)
class _Session(Generic[_Item]):
    """The writes of one session that wait, each with its size; counters of all until now."""

    waiting: deque[tuple[_Item, int]] = field(default_factory=deque)
    accepted: int = 0
    settled: int = 0
    fault: str = ""
    moved: anyio.Event = field(default_factory=anyio.Event)
    wanted: anyio.Event = field(default_factory=anyio.Event)

    def move(self, settled: int, fault: str = "") -> None:
        """Wake waiting callers: so many more are settled, or `fault` holds the others up."""
        self.settled += settled
        self.fault = fault
        self.moved.set()
        self.moved = anyio.Event()


class SessionQueue(Generic[_Item]):
    """Accepts writes and has them done while `running()`. Writes of a session are gathered for `pause_s`.

    - `do` does writes of one session in their order. `StoreUnavailableError` has all of them done again later; any
      other exception says that they never will be.
    - `settled` is called with each write that is done, or with the reason why it never will be.
    - `delayed` is called with the reason when a session has to wait for the store, once until it goes on.
    """

    def __init__(
        self,
        do: Callable[[Key, Sequence[_Item]], Awaitable[None]],
        settled: Callable[[_Item, str | None], None],
        delayed: Callable[[str], None],
        pause_s: float = 0,
        metrics: Metrics | None = None,
    ) -> None:
        self._do = do
        self._settled = settled
        self._delayed = delayed
        self._pause_s = pause_s
        self._metrics = metrics or NoMetrics()
        self._workers = anyio.Semaphore(_WORKERS)
        self._sessions: dict[Key, _Session[_Item]] = {}
        self._tasks: TaskGroup | None = None
        self._room = Room(_MOST_WAITING, _MOST_WAITING_BYTES)
        self._open = True
        self.pending = self._room.pending

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Do the writes that are offered, until the context ends. Call `drained()` first to lose none."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for key in self._sessions:
                self._start(key)
            try:
                yield self
            finally:
                self._open = False
                tasks.cancel_scope.cancel()
                for session in self._sessions.values():
                    session.move(0, "the service is stopping")

    def offer(self, key: Key, item: _Item, size: int, *, at_once: bool = False) -> bool:
        """Accept a write of so many bytes; without a pause if `at_once`. False when too much is waiting already."""
        if not self._open or not self._room.enter(key[0], size):
            return False
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _Session()
            self._start(key)
        session.waiting.append((item, size))
        session.accepted += 1
        if at_once:
            session.wanted.set()
        return True

    async def settled(self, key: Key) -> None:
        """Return when all accepted writes of the session are settled; StoreUnavailableError where they must wait."""
        session = self._sessions.get(key)
        if session is None:
            return
        session.wanted.set()
        expected = session.accepted
        while session.settled < expected:
            if session.fault:
                raise StoreUnavailableError(session.fault)
            await session.moved.wait()

    async def drained(self) -> None:
        """Return when no write is waiting."""
        while self.pending.count:
            for session in self._sessions.values():
                session.wanted.set()
            await self.pending.none()

    def _start(self, key: Key) -> None:
        if self._tasks:
            self._tasks.start_soon(supervised, self._metrics, _TASK, partial(self._work_on, key))

    async def _work_on(self, key: Key) -> None:
        """Do all writes of a session, and those that come meanwhile."""
        session, pauses, most = self._sessions[key], Pauses(), _MOST_WAITING
        while session.waiting:
            if self._pause_s and most == _MOST_WAITING and not pauses.begun:
                with anyio.move_on_after(self._pause_s):
                    await session.wanted.wait()
            session.wanted = anyio.Event()
            count = min(len(session.waiting), most)
            try:
                async with self._workers:
                    await self._do(key, [item for item, _ in islice(session.waiting, count)])
            except StoreUnavailableError as error:
                if not pauses.begun:
                    self._delayed(str(error))
                session.move(0, str(error))
                await pauses.wait()
                continue
            except Exception as error:  # noqa: BLE001  # one session must not stop the others
                if not isinstance(error, StoreRejectedError | ValueError):
                    report_fault(self._metrics, _TASK, error)
                if count > 1:
                    most = count // 2
                    continue
                if isinstance(error, ErasedError):
                    report_erased(self._metrics, error)
                self._settle(key, session, count, error.reason if isinstance(error, ErasedError) else reason_of(error))
            else:
                self._settle(key, session, count, None)
                most = min(most * 2, _MOST_WAITING)
            pauses.end()
        del self._sessions[key]

    def _settle(self, key: Key, session: _Session[_Item], count: int, reason: str | None) -> None:
        for _ in range(count):
            item, size = session.waiting.popleft()
            self._room.leave(key[0], size)
            self._settled(item, reason)
        session.move(count)


@dataclass(frozen=True, slots=True)
class _Accepted(Generic[_Item]):
    """What a message says, and what is called when it is stored, or with the reason why it never will be."""

    item: _Item
    message_id: str
    said: Said
    settled: Settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What may become of messages of a topic: the names for the log, and what is counted."""

    delayed: str
    refused: str
    unwritten: str
    recorded_count: Event
    refused_count: Event
    lost_count: Event
    waiting: Reading


class MessageQueue(ABC, Generic[_Item]):
    """Stores what messages of a topic say while `running()`, as a `SessionQueue`, but nothing of what was erased.

    Attributes:
        pending: messages that are accepted and not stored.
    """

    def __init__(self, outcomes: Outcomes, tombstones: Tombstones, metrics: Metrics | None) -> None:
        self._outcomes = outcomes
        self._metrics = metrics or NoMetrics()
        self._tombstones = tombstones
        self._queue = SessionQueue[_Accepted[_Item]](self._do, self._settle, self._delayed, metrics=metrics)
        self.pending = self._queue.pending
        self._metrics.read_from(outcomes.waiting, lambda: self.pending.count)

    @abstractmethod
    def _read_message(self, message: Message, said: Said) -> tuple[Key, _Item]:
        """The queue of a message, and what it says; ValueError where that is not allowed."""

    @abstractmethod
    async def _write(self, key: Key, items: Sequence[_Item]) -> None:
        """Store what messages of one queue say, in their order."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write accepted messages until the context ends. Wait for `pending` first, to lose nothing."""
        async with self._queue.running():
            try:
                yield
            finally:
                if self.pending.count:
                    _log.error(self._outcomes.unwritten, pending=self.pending.count)
                    self._metrics.count(self._outcomes.lost_count, self.pending.count)

    def offer(self, message: Message, size: int, settled: Settled = lambda _: None) -> bool:
        """Accept a message of `size` bytes. Never waits; False when too much is waiting already.

        `settled` is called when it is stored, or with the reason why it never will be. ValueError where what the
        message says is not allowed; it says where and what is.
        """
        said = Said(message.owner_key, read_session_id(message.metadata), trusted_time(message))
        key, item = self._read_message(message, said)
        return self._queue.offer(key, _Accepted(item, message.id, said, settled), size)

    async def _do(self, key: Key, accepted: Sequence[_Accepted[_Item]]) -> None:
        await self._tombstones.raise_if_erased([each.said for each in accepted])
        await self._write(key, [each.item for each in accepted])

    def _settle(self, accepted: _Accepted[_Item], reason: str | None) -> None:
        if reason is None:
            self._metrics.count(self._outcomes.recorded_count)
        else:
            _log.warning(self._outcomes.refused, message_id=accepted.message_id, reason=reason)
            self._metrics.count(self._outcomes.refused_count)
        accepted.settled(reason)

    def _delayed(self, reason: str) -> None:
        _log.warning(self._outcomes.delayed, reason=reason, pending=self.pending.count)
