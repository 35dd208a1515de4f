"""What anyio lacks: tasks that outlive their faults, one error out of a group, draining streams, back-off, counting.

With them goes the rule for pure work that takes long: it is done in a thread, because the event loop is everybody's.
"""

import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self, TypeVar
from weakref import WeakValueDictionary

import anyio
import structlog
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream

from nexus.core.metrics import Event, Metrics

_log = structlog.get_logger(__name__)
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# The pauses before a background task that failed begins again.
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0


def report_fault(metrics: Metrics, task: str, error: Exception, **about: Any) -> None:
    """Log and count an unexpected error of a background task, which goes on."""
    _log.error("background_fault", task=task, reason=type(error).__name__, exc_info=error, **about)
    metrics.count(Event.BACKGROUND_FAULT)


class OuterHandler:
    """The outermost handler of a background task: an error that leaves it is reported, and goes no further.

    `failed` says afterwards whether there was one; `about` are fields of the log.
    """

    def __init__(self, metrics: Metrics, task: str, **about: Any) -> None:
        self.failed = False
        self._metrics, self._task, self._about = metrics, task, about

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        """Report an error, but let cancellation and what ends the process pass."""
        self.failed = isinstance(error, Exception)
        if isinstance(error, Exception):
            report_fault(self._metrics, self._task, error, **self._about)
        return self.failed


async def supervised(metrics: Metrics, task: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a background task until it returns. After an unexpected error and a pause, which grows, it begins again."""
    pauses = Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while True:
        began = anyio.current_time()
        with OuterHandler(metrics, task) as handler:
            await run()
        if not handler.failed:
            return
        if anyio.current_time() - began > _LONGEST_PAUSE_S:
            pauses.end()
        await pauses.wait()


@contextmanager
def ungrouped() -> Iterator[None]:
    """An exception that left task groups alone in its group, or with others of its kind, as itself.

    A task group wraps whatever leaves it. Around a context manager that has one inside, this lets its user catch what
    the user's own code raised.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        first, *others = _leaves(group)
        if any(type(other) is not type(first) for other in others):
            raise
        raise first from first.__cause__


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def items_of(stream: MemoryObjectReceiveStream[_Item]) -> AsyncIterator[_Item]:
    """What comes out of the stream, until it ends or this end of it is closed."""
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
        while True:
            yield await stream.receive()
            # `receive` yields to the event loop each time, which under load means one item a round: items that are
            # buffered already are taken without.
            for _ in range(stream.statistics().current_buffer_used):
                try:
                    item = stream.receive_nowait()
                except anyio.WouldBlock:
                    # Another reader took it.
                    break
                yield item


# Work on so many characters takes at most some 20 ms, whatever they are.
_ON_LOOP_CHARS: Final = 1 << 17
_ONE_AT_A_TIME: Final = anyio.CapacityLimiter(1)
# While any call of an owner runs or waits.
_OWNERS: Final = WeakValueDictionary[str, anyio.Lock]()


async def computed(owner_key: str, chars: int, call: Callable[[], _Result]) -> _Result:
    """The result of a pure call over about so many characters, made in a thread where that would hold up the loop.

    One thread for the whole process, because each that runs makes the loop wait its turn; of one owner no more than one
    call waits for it. The call may go on after this was cancelled.
    """
    if chars <= _ON_LOOP_CHARS:
        return call()
    async with _OWNERS.setdefault(owner_key, anyio.Lock()):
        return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=_ONE_AT_A_TIME)


class Pauses:
    """Back-off between attempts: each pause up to twice the one before, of random length so that clients spread out."""

    def __init__(self, first_s: float = 0.05, longest_s: float = 2.0) -> None:
        self.begun = False  # whether there has been a pause since the last success
        self._first_s = self.next_s = first_s
        self._longest_s = longest_s

    async def wait(self) -> None:
        """Sleep for half of the current pause or more, and double it up to the longest."""
        self.begun = True
        await anyio.sleep(self.next_s * random.uniform(0.5, 1))  # noqa: S311  # jitter needs no secrecy
        self.next_s = min(self.next_s * 2, self._longest_s)

    def end(self) -> None:
        """An attempt succeeded: the next pause is the first again."""
        self.begun, self.next_s = False, self._first_s


class Pending:
    """Counts work under way, and tells when there is none."""

    def __init__(self) -> None:
        self.count = 0
        self._ended_at = -math.inf
        self._none = anyio.Event()

    @property
    def idle_s(self) -> float:
        """Seconds since there was any; 0 while there is."""
        return 0.0 if self.count else time.monotonic() - self._ended_at

    def begin(self) -> None:
        """One more."""
        self.count += 1

    def end(self) -> None:
        """One less."""
        self.count -= 1
        if not self.count:
            self._ended_at = time.monotonic()
            self._none.set()
            self._none = anyio.Event()

    async def none(self) -> None:
        """Return when there is nothing under way."""
        while self.count:
            await self._none.wait()
