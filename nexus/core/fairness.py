"""Room and work that owners share, so that what one owner sends takes no place of what others send.

- Room for what waits is bounded, in number and in bytes. An owner may hold as much of it as is left free: one owner
  alone up to a half, each of two a third. So there is always some left for others.
- Owners are served in turn, one item each, and of no owner more than its share is at work at once.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from nexus.core.concurrency import OuterHandler, Pending, ungrouped
from nexus.core.metrics import Metrics

_Item = TypeVar("_Item")


class Room:
    """Room for `most` items of `most_bytes` in all; `pending` items are in it, and so many `bytes`."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.pending = Pending()
        self.bytes = 0
        self._most = most
        self._most_bytes = most_bytes
        # By owner, the number and the bytes.
        self._held: dict[str, tuple[int, int]] = {}

    @property
    def count(self) -> int:
        """How many items are in it."""
        return self.pending.count

    def enter(self, owner: str, size: int) -> bool:
        """Take in an item of so many bytes. False where there is no room for it."""
        count, total = self._held.get(owner, (0, 0))
        if count >= self._most - self.count or total + size > self._most_bytes - self.bytes:
            return False
        self._change(owner, 1, size)
        self.pending.begin()
        return True

    def leave(self, owner: str, size: int) -> None:
        """An item has left."""
        self._change(owner, -1, -size)
        self.pending.end()

    def _change(self, owner: str, items: int, size: int) -> None:
        count, total = self._held.get(owner, (0, 0))
        self.bytes += size
        self._held[owner] = count + items, total + size
        if not count + items:
            del self._held[owner]


@dataclass(slots=True)
class _Line(Generic[_Item]):
    """What waits of one owner, each with its size, and how many of the owner's items are at work."""

    waiting: deque[tuple[_Item, int]] = field(default_factory=deque)
    at_work: int = 0


class FairWorkers(Generic[_Item]):
    """Calls `work` with the items that are offered while `running()`: at most `most` at once, `share` of one owner.

    What has to wait is in `waiting`, and `at_work` is a number. An error of `work` is reported as one of `task`.
    """

    def __init__(
        self,
        work: Callable[[_Item], Awaitable[None]],
        *,
        most: int,
        share: int,
        waiting: Room,
        metrics: Metrics,
        task: str,
    ) -> None:
        self.waiting = waiting
        self.at_work = 0
        self._work = work
        self._metrics = metrics
        self._task = task
        self._most = most
        self._share = share
        # Owners of whom something waits or is at work; and those who may be served, in turn.
        self._lines: dict[str, _Line[_Item]] = {}
        self._turns: dict[str, None] = {}
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Work until the context ends. What waits then is not begun."""
        with ungrouped():
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self._begin()
                try:
                    yield self
                finally:
                    self._tasks = None
                    tasks.cancel_scope.cancel()

    def offer(self, owner: str, item: _Item, size: int) -> bool:
        """Accept an item, which takes so many bytes while it waits. False where it has to wait and has no room."""
        if self.is_free(owner):
            self._start(owner, self._lines.setdefault(owner, _Line()), item)
            return True
        if not self.waiting.enter(owner, size):
            return False
        line = self._lines.setdefault(owner, _Line())
        line.waiting.append((item, size))
        self._give_turn(owner, line)
        return True

    def is_free(self, owner: str) -> bool:
        """Whether an item of this owner would be begun at once."""
        line = self._lines.get(owner)
        below_share = line is None or (not line.waiting and line.at_work < self._share)
        return self._tasks is not None and self.at_work < self._most and below_share

    def has(self, owner: str) -> bool:
        """Whether something of this owner waits or is at work."""
        return owner in self._lines

    def _give_turn(self, owner: str, line: _Line[_Item]) -> None:
        if line.waiting and line.at_work < self._share:
            self._turns.setdefault(owner)

    def _begin(self) -> None:
        while self._tasks and self._turns and self.at_work < self._most:
            owner = next(iter(self._turns))
            del self._turns[owner]
            line = self._lines[owner]
            item, size = line.waiting.popleft()
            self.waiting.leave(owner, size)
            self._start(owner, line, item)
            self._give_turn(owner, line)

    def _start(self, owner: str, line: _Line[_Item], item: _Item) -> None:
        if self._tasks:
            line.at_work += 1
            self.at_work += 1
            self._tasks.start_soon(self._finish, owner, line, item)

    async def _finish(self, owner: str, line: _Line[_Item], item: _Item) -> None:
        try:
            with OuterHandler(self._metrics, self._task):
                await self._work(item)
        finally:
            self.at_work -= 1
            line.at_work -= 1
            self._give_turn(owner, line)
            if not line.waiting and not line.at_work:
                del self._lines[owner]
            self._begin()
