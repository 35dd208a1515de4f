"""What waits to be written, and when the next of it is written together (CONTRACT §2).

Rules of this module:

- Rows that the journal has are safe there, and whoever reads finds them. They wait for others, until they are many or
  somebody waits. So does one by itself: who has an answer may be about to ask again, and would meet its insert. What
  the journal holds of an owner is read at each claim, so few of one owner are many.
- Any other row is written at once if it comes by itself, and together with others that come closely on each other.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

import anyio

from nexus.core.tasks import Awaited
from nexus.services.writing import Waiting

_BATCH: Final = 100
_BATCH_BYTES: Final = 1 << 20
# A batch costs about as much as ten rows do in it. So one that follows closely on another waits a little for more rows,
# unless somebody waits for what is in it.
_PAUSE_S: Final = 0.01
JOURNALED_PAUSE_S: Final = 0.1
_MOST_OF_OWNER: Final = 4


class Batches:
    """Rows in the order in which they came. One task at a time takes them.

    Args:
        awaited: whether somebody waits for them to be written.
        pause_s: for how long rows of the journal wait for others.
    """

    def __init__(self, awaited: Awaited, pause_s: float = JOURNALED_PAUSE_S) -> None:
        self._awaited = awaited
        self._pause_s = pause_s
        self._rows: deque[Waiting] = deque()
        self._bytes = 0
        self._of_owners: dict[str, int] = {}
        self._something = anyio.Event()
        # There is what does not wait for as long as rows of the journal may.
        self._hurried = anyio.Event()
        self._last_at = -_PAUSE_S
        # When the first of the rows came that wait.
        self._since = 0.0

    def add(self, item: Waiting, *, journaled: bool) -> None:
        """One more; `journaled` of what the journal has."""
        owner_key = item.row["owner_key"]
        if not self._rows:
            # Rows come outside of tasks too, where anyio knows no time.
            self._since = asyncio.get_running_loop().time()
        self._rows.append(item)
        self._bytes += item.size
        self._of_owners[owner_key] = of_owner = self._of_owners.get(owner_key, 0) + 1
        many = of_owner >= _MOST_OF_OWNER or len(self._rows) >= _BATCH or self._bytes >= _BATCH_BYTES
        if many or not journaled:
            self._hurried.set()
        self._something.set()

    async def take(self) -> list[Waiting]:
        """The next that are to be written together, when they are."""
        await self._something.wait()
        if anyio.current_time() < self._last_at + _PAUSE_S:
            with anyio.move_on_at(self._last_at + _PAUSE_S):
                await self._awaited.wait()
        if not self._hurried.is_set() and anyio.current_time() < self._since + self._pause_s:
            with anyio.move_on_at(self._since + self._pause_s):
                await _either(self._awaited.wait(), self._hurried.wait())
        self._last_at = anyio.current_time()
        return self._taken()

    def _taken(self) -> list[Waiting]:
        batch: list[Waiting] = []
        size = 0
        while self._rows and len(batch) < _BATCH and size < _BATCH_BYTES:
            item = self._rows.popleft()
            batch.append(item)
            size += item.size
            owner_key = item.row["owner_key"]
            self._of_owners[owner_key] -= 1
            if not self._of_owners[owner_key]:
                del self._of_owners[owner_key]
        self._bytes -= size
        if not self._rows:
            # What is left, because it is more than a batch, goes on being many.
            self._something, self._hurried = anyio.Event(), anyio.Event()
        return batch


async def _either(*awaited: Coroutine[Any, Any, None]) -> None:
    # A task group would take several times as long, and leave a cycle for each task that it cancels.
    waiting = [asyncio.ensure_future(each) for each in awaited]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
