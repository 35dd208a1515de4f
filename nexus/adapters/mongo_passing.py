"""Who does not hurry asks MongoDB when a read that somebody waits for is on its way (CONTRACT §2).

Then this process has nothing to do until the reply comes. At any other time the same work stands in the way of a
context: of its Python, or of the server that looks its history up.
"""

import asyncio
from collections import deque


class Passing:
    """Lets those who wait go on one by one, each after another read. Made and used within one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def read(self) -> None:
        """A read is on its way: who has waited longest may go on, in the next pass of the loop."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def wait(self, until: float) -> None:
        """Return when it is one's turn, at `until` at the latest, a time of the loop."""
        loop = asyncio.get_running_loop()
        if loop.time() >= until:
            return
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiting)
        timer = loop.call_at(until, _go_on, waiting)
        try:
            await waiting
        finally:
            timer.cancel()


def _go_on(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
