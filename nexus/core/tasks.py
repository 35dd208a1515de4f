"""Small additions to structured concurrency."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MOST_WAITING: Final = 1_000
# Who has an answer may be about to ask again.
_MOMENT_S: Final = 0.005


@contextmanager
def ungrouped() -> Iterator[None]:
    """An exception that left task groups alone in its group, as itself.

    A task group wraps whatever leaves it. Around a context manager that has one inside, this lets its user catch what
    the user's own code raised.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if isinstance(error, BaseExceptionGroup):
            raise
        raise error from error.__cause__


class Alongside(Generic[_Result]):
    """A piece of work that goes on beside what is done in the context, in a task of its own, and ends with it.

    For one task without children it takes a quarter of the time of a task group.

    Args:
        work: to be done, from when `begin` says. Where `result` is asked for before, it begins then, and needs no task.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> None:
        self._work = work
        self._ended = False
        self._task: asyncio.Task[_Result] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the work goes on beside the context."""
        return self._task is not None

    def begin(self, after_s: float = 0.0) -> None:
        """Begin with it after so many seconds, unless the context ends before. Called once, within a task or not."""
        if self._ended:
            return
        if after_s > 0:
            self._timer = asyncio.get_running_loop().call_later(after_s, self._begin)
        else:
            self._begin()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: type[BaseException] | None, _error: object, _where: TracebackType | None) -> None:
        self._ended = True
        if self._timer:
            self._timer.cancel()
        if self._task is None:
            return
        if not self._task.done():
            self._task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])
        if not self._task.cancelled():
            # Whoever left early does not want to know; the loop would tell on him.
            self._task.exception()

    async def result(self) -> _Result:
        """What came of it; whatever it raised is raised here."""
        self._ended = True
        if self._timer:
            self._timer.cancel()
        return await (self._task or self._work())

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._work())


class Handoff(Generic[_Item]):
    """Items for whoever has time for one, in the order in which they come; the others wait, bounded in number.

    What is put here goes straight to a task that waits for it. A stream of anyio's takes ten times as long, and two
    passes of the event loop.

    Args:
        most: items that may wait.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[_Item] = deque()
        # Whoever was idle last is next: what it works with is still at hand.
        self._idle: list[asyncio.Future[_Item]] = []

    @property
    def waiting(self) -> int:
        """Items for which nobody has time."""
        return len(self._waiting)

    def offer(self, item: _Item) -> bool:
        """Hand an item over, or have it wait. False when too many are waiting."""
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(item)
                return True
        if len(self._waiting) >= self._most:
            return False
        self._waiting.append(item)
        return True

    async def take(self) -> _Item:
        """The next item, once there is one. Who is cancelled while one is being handed over leaves it to others."""
        if self._waiting:
            return self._waiting.popleft()
        idle: asyncio.Future[_Item] = asyncio.get_running_loop().create_future()
        self._idle.append(idle)
        try:
            return await idle
        except asyncio.CancelledError:
            if idle.done() and not idle.cancelled():
                self._put_back(idle.result())
            raise

    def _put_back(self, item: _Item) -> None:
        others = [idle for idle in self._idle if not idle.done()]
        if others:
            self._idle.remove(others[-1])
            others[-1].set_result(item)
        else:
            self._waiting.appendleft(item)


async def items_of(stream: MemoryObjectReceiveStream[_Item]) -> AsyncIterator[_Item]:
    """What comes out of the stream, until it ends or this end of it is closed."""
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
        while True:
            yield await stream.receive()
            # Receiving lets everybody else have a turn. Under load that would be one item in each round, so what waits
            # now is taken without.
            for _ in range(stream.statistics().current_buffer_used):
                try:
                    item = stream.receive_nowait()
                except anyio.WouldBlock:
                    # Somebody else who reads it took it.
                    break
                yield item


class Pauses:
    """The pauses between attempts, of a random length so that those who wait do not all come back at once.

    Attributes:
        begun: there has been one since the last success.
    """

    def __init__(self, first_s: float = 0.05, longest_s: float = 2.0) -> None:
        self.begun = False
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    async def wait(self) -> None:
        """Half of the time or more; twice the time the next time, up to the longest."""
        self.begun = True
        await anyio.sleep(self._next_s * random.uniform(0.5, 1))  # noqa: S311  # jitter needs no secrecy
        self._next_s = min(self._next_s * 2, self._longest_s)

    def end(self) -> None:
        """An attempt succeeded: begin anew."""
        self.begun, self._next_s = False, self._first_s


class Awaited:
    """Whether somebody waits for what is done, so that whoever would take his time does not."""

    def __init__(self) -> None:
        self._waiting = 0
        self._somebody = anyio.Event()

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """Somebody waits, until the context ends."""
        self._waiting += 1
        self._somebody.set()
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._somebody = anyio.Event()

    async def wait(self) -> None:
        """Return when somebody waits."""
        await self._somebody.wait()


class Pending:
    """How much is under way, and when it is nothing.

    Args:
        awaited: told that somebody waits until it is nothing.
    """

    def __init__(self, awaited: Awaited | None = None) -> None:
        self.count = 0
        self._awaited = awaited or Awaited()
        # Made for every request that is alone, and outside of tasks: asyncio's own takes a tenth of the time.
        self._none = asyncio.Event()
        self._none.set()

    def begin(self) -> None:
        """One more."""
        if not self.count:
            self._none = asyncio.Event()
        self.count += 1

    def end(self) -> None:
        """One less."""
        self.count -= 1
        if not self.count:
            self._none.set()

    async def none(self) -> None:
        """Return when there is nothing under way."""
        with self._awaited.awaiting():
            while self.count:
                await self._none.wait()


class Way(Pending):
    """What somebody waits for, and so goes before what nobody does."""

    async def given(self, at_most_s: float) -> None:
        """Return when nothing has been under way for a moment, or after so long: nothing waits for ever."""
        with anyio.move_on_after(at_most_s):
            while True:
                clear = self._none
                await clear.wait()
                await anyio.sleep(_MOMENT_S)
                if clear is self._none:
                    return


class Later:
    """Work that somebody who must not wait hands over, done one after the other in a task of its own."""

    def __init__(self) -> None:
        self.pending = Pending()
        self._send, self._receive = anyio.create_memory_object_stream[Callable[[], Awaitable[None]]](_MOST_WAITING)

    def do(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Have `work` done. False, and it is not, when 1,000 pieces are waiting already."""
        try:
            self._send.send_nowait(work)
        except anyio.WouldBlock:
            return False
        self.pending.begin()
        return True

    async def run(self) -> None:
        """Do what is handed over, until cancelled. Run in a task of its own."""
        with self._send, self._receive:
            async for work in self._receive:
                await work()
                self.pending.end()
                # It may have a large message in hand, and the next may be long in coming.
                del work
