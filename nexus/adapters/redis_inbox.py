"""What was heard from Redis and nobody has taken yet."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from nexus.core.ports import Delivery


class Inbox:
    """Deliveries in the order in which they were put in. Several may take from it; each is given to one of them.

    Taking lets others have a turn only where nothing is there: what was put in at once is taken at once.

    Args:
        most: when so many are there it is full.
        on_room: called when one that was full is half empty.

    Attributes:
        first: what is put in while nothing waits is offered to this one, in that step; what it takes is not there.
        ended: iterating ends after what is there; what is put in now is not.
    """

    def __init__(self, most: int, on_room: Callable[[], None]) -> None:
        self._most = most
        self._on_room = on_room
        self._waiting: deque[Delivery] = deque()
        self._something = asyncio.Event()
        self._was_full = False
        self.first: Callable[[Delivery], bool] | None = None
        self.ended = False

    def put(self, delivery: Delivery) -> bool:
        """Put one in, also where there is no room. Whether it is full now, and no more is to be put in."""
        if self.ended or (self.first and not self._waiting and self.first(delivery)):
            return False
        self._waiting.append(delivery)
        self._something.set()
        self._was_full |= self.full
        return self._was_full

    @property
    def full(self) -> bool:
        """No more are to be put in."""
        return len(self._waiting) >= self._most

    def end(self) -> None:
        """Have iterating end after what is there."""
        self.ended = True
        self._something.set()

    def close(self) -> None:
        """Have iterating end now."""
        self._waiting.clear()
        self.end()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        """The next one, as soon as there is one."""
        while not self._waiting:
            if self.ended:
                raise StopAsyncIteration
            self._something.clear()
            await self._something.wait()
        delivery = self._waiting.popleft()
        if self._was_full and len(self._waiting) <= self._most // 2:
            self._was_full = False
            self._on_room()
        return delivery
