"""What anyio lacks: one error out of a group, draining a stream in batches, back-off, and counting work under way."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

_Item = TypeVar("_Item")


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
        self._none = anyio.Event()

    def begin(self) -> None:
        """One more."""
        self.count += 1

    def end(self) -> None:
        """One less."""
        self.count -= 1
        if not self.count:
            self._none.set()
            self._none = anyio.Event()

    async def none(self) -> None:
        """Return when there is nothing under way."""
        while self.count:
            await self._none.wait()
