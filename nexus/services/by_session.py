"""Work that waits by session: of one session one worker at a time does all that waits, so that it is done in order.

Rules of this module:

- What cannot be done now, because the store is away, waits in memory, bounded in number and bytes, and is tried again
  until it is done or the service stops.
- Where the store refuses several pieces of work at once, halves find the one that is too much, and the others are done.
- Who asks of a session what was handed over before waits for it.
- Where a pause is wanted, work waits so long for more, unless somebody waits for it: much of a session, or of many
  sessions, at once costs little more than one piece, and what is done at once is in the way of who asks next. What
  several sessions cannot do together each of them does by itself.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, Self, TypeVar

import anyio

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.tasks import Awaited, Pauses, Pending

_Item = TypeVar("_Item")

_WORKERS: Final = 4
# Sessions that one worker does at once, where there are pauses.
_SESSIONS: Final = 64
# So many pieces are enough for one worker at once: what is made of more is megabytes.
_TOGETHER: Final = 128
_MOST_WAITING: Final = 10_000
_MOST_WAITING_BYTES: Final = 64 << 20

# A session, and whose it is: (owner_key, session_id).
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[_Item]):
    item: _Item
    size: int


class _Session(Generic[_Item]):
    """What waits of one session."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting[_Item]] = deque()
        self.fault = ""
        self._accepted = self._settled = 0
        # Made when somebody waits.
        self._moved: anyio.Event | None = None

    def accept(self, waiting: _Waiting[_Item]) -> None:
        self.waiting.append(waiting)
        self._accepted += 1

    def moved(self, settled: int, fault: str = "") -> None:
        """So many more are settled; `fault` says what holds up the others."""
        self._settled += settled
        self.fault = fault
        if self._moved:
            self._moved.set()
            self._moved = None

    async def settled(self) -> None:
        """Return when all that was accepted until now is settled."""
        wanted = self._accepted
        while self._settled < wanted:
            if self.fault:
                raise StoreUnavailableError(self.fault)
            self._moved = self._moved or anyio.Event()
            await self._moved.wait()


class BySession(Generic[_Item]):
    """Takes pieces of work and has them done. Use `running()` to have the background workers at work.

    Args:
        do: does pieces of sessions, those of each in their order; of one session alone where there is no pause.
            `StoreUnavailableError` has them done again later, all of them; `StoreRejectedError` and `ValueError` say
            that they never will be.
        settled: told of each piece that it is done, or with the reason that it never will be.
        delayed: told why a session's work has to wait, once until it goes on.
        pause_s: for how long work waits for more that can be done with it.

    Attributes:
        pending: pieces that are not settled.
    """

    def __init__(
        self,
        do: Callable[[Mapping[Key, Sequence[_Item]]], Awaitable[None]],
        settled: Callable[[_Item, str | None], None],
        delayed: Callable[[str], None],
        pause_s: float = 0,
    ) -> None:
        self._do = do
        self._tell = settled
        self._delayed = delayed
        # As many sessions as pieces may wait, and those that the workers have in hand.
        in_hand = _WORKERS * _SESSIONS
        self._send, self._receive = anyio.create_memory_object_stream[Key](_MOST_WAITING + in_hand)
        self._pause_s = pause_s
        self._next_at = 0.0
        self._turn = anyio.Lock(fast_acquire=True)
        self._awaited = Awaited()
        self._sessions: dict[Key, _Session[_Item]] = {}
        self._waiting_bytes = 0
        self._open = True
        self.pending = Pending(self._awaited)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Do what is handed over, until the context ends; whoever waits then is told.

        Wait for `pending` first, to lose nothing.
        """
        async with self._send, self._receive, anyio.create_task_group() as tasks:
            for _ in range(_WORKERS):
                tasks.start_soon(self._do_all)
            try:
                yield self
            finally:
                self._open = False
                tasks.cancel_scope.cancel()
                for session in self._sessions.values():
                    session.moved(0, "the service is stopping")

    def offer(self, key: Key, item: _Item, size: int) -> bool:
        """Accept a piece of work of so many bytes. False when too much is waiting already."""
        full = self.pending.count >= _MOST_WAITING or self._waiting_bytes + size > _MOST_WAITING_BYTES
        if full or not self._open:
            return False
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _Session()
            self._send.send_nowait(key)
        session.accept(_Waiting(item, size))
        self._waiting_bytes += size
        self.pending.begin()
        return True

    async def settled(self, key: Key) -> None:
        """Return when everything of the session that was accepted until now is settled.

        Raises:
            StoreUnavailableError: it cannot be done now.
        """
        session = self._sessions.get(key)
        if session:
            with self._awaited.awaiting():
                await session.settled()

    async def _do_all(self) -> None:
        while True:
            async with self._turn:
                keys = await self._next_keys()
            if len(keys) > 1 and await self._do_together(keys):
                continue
            if len(keys) == 1:
                await self._do_session(keys[0], self._sessions[keys[0]])
                continue
            async with anyio.create_task_group() as tasks:
                for key in keys:
                    tasks.start_soon(self._do_session, key, self._sessions[key])

    async def _do_together(self, keys: Sequence[Key]) -> bool:
        """Do what waits of these sessions at once. False when that cannot be done, for whatever reason."""
        taken = {key: [*self._sessions[key].waiting] for key in keys}
        try:
            await self._do({key: [piece.item for piece in pieces] for key, pieces in taken.items()})
        except (StoreUnavailableError, StoreRejectedError, ValueError):
            return False
        for key, pieces in taken.items():
            session = self._sessions[key]
            self._settle(session, pieces, None)
            self._put_by(key, session)
        return True

    async def _next_keys(self) -> list[Key]:
        try:
            keys = [self._receive.receive_nowait()]
        except anyio.WouldBlock:
            keys = [await self._receive.receive()]
            self._next_at = anyio.current_time() + self._pause_s
        if not self._pause_s:
            return keys
        if anyio.current_time() < self._next_at:
            with anyio.move_on_at(self._next_at):
                await self._awaited.wait()
        pieces, self._next_at = len(self._sessions[keys[0]].waiting), anyio.current_time()
        try:
            while len(keys) < _SESSIONS and pieces < _TOGETHER:
                keys.append(self._receive.receive_nowait())
                pieces += len(self._sessions[keys[-1]].waiting)
        except anyio.WouldBlock:
            # Where more are waiting already, the next need not wait for them.
            self._next_at += self._pause_s
        return keys

    async def _do_session(self, key: Key, session: _Session[_Item]) -> None:
        """Do all that waits of a session, and what comes while that is done, unless that waits for more."""
        pauses, most = Pauses(), _MOST_WAITING
        while session.waiting:
            pieces = list(islice(session.waiting, most))
            try:
                await self._do({key: [piece.item for piece in pieces]})
            except StoreUnavailableError as error:
                if not pauses.begun:
                    self._delayed(str(error))
                session.moved(0, str(error))
                await pauses.wait()
            except (StoreRejectedError, ValueError) as error:
                if len(pieces) > 1:
                    # Perhaps only one of them is too much. Halves find it in few steps, and the others are done.
                    most = len(pieces) // 2
                else:
                    self._settle(session, pieces, str(error))
            else:
                pauses.end()
                most = min(most * 2, _MOST_WAITING)
                self._settle(session, pieces, None)
                if self._pause_s and session.waiting:
                    break
        self._put_by(key, session)

    def _put_by(self, key: Key, session: _Session[_Item]) -> None:
        """A worker has done what it had in hand of a session."""
        if session.waiting:
            self._send.send_nowait(key)
        else:
            del self._sessions[key]

    def _settle(self, session: _Session[_Item], pieces: Sequence[_Waiting[_Item]], reason: str | None) -> None:
        """They are done, or never will be for this reason."""
        for piece in pieces:
            session.waiting.popleft()
            self._waiting_bytes -= piece.size
            self.pending.end()
            self._tell(piece.item, reason)
        session.moved(len(pieces))
