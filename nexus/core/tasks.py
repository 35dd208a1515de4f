"""Small additions to structured concurrency."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

_Item = TypeVar("_Item")

_MOST_WAITING: Final = 1_000


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


def at_once(stream: MemoryObjectReceiveStream[_Item]) -> Iterator[_Item]:
    """What waits in the stream now, without letting anybody else have a turn in between."""
    with suppress(anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
        for _ in range(stream.statistics().current_buffer_used):
            yield stream.receive_nowait()


class Later:
    """Work that somebody who must not wait hands over, done one after the other in a task of its own."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[Callable[[], Awaitable[None]]](_MOST_WAITING)

    def do(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Have `work` done. False, and it is not, when 1,000 pieces are waiting already."""
        try:
            self._send.send_nowait(work)
        except anyio.WouldBlock:
            return False
        return True

    async def run(self) -> None:
        """Do what is handed over, until cancelled. Run in a task of its own."""
        with self._send, self._receive:
            async for work in self._receive:
                await work()
