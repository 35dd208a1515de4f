"""Reads that many ask for at once, done together: what costs as much for one as for several, costs each of them less.

Nobody waits for company. What is asked for while enough reads are under way waits for one of them to end, and then goes
with all that waits by then; so how many go together follows from how many ask. A read that takes long holds up nobody:
after a moment it no longer counts.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Result = TypeVar("_Result")


class Together(Generic[_Key, _Result]):
    """Reads in groups.

    Args:
        read: what there is of each of the keys, in their order. Who stops waiting does not stop it; what it raises, all
            are told who wait for it.
        most: keys that are read together.
        at_once: reads that are under way before anything waits.
        long_s: after so many seconds a read no longer counts among them.
    """

    def __init__(
        self,
        read: Callable[[Sequence[_Key]], Awaitable[Sequence[_Result]]],
        *,
        most: int,
        at_once: int,
        long_s: float,
    ) -> None:
        self._read = read
        self._most = most
        self._at_once = at_once
        self._long_s = long_s
        # Of the reads that count, when each no longer does.
        self._under_way: set[asyncio.TimerHandle] = set()
        self._waiting: deque[tuple[_Key, asyncio.Future[_Result]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, key: _Key) -> _Result:
        """What there is of the key; raises what the read raises."""
        if len(self._under_way) < self._at_once:
            # Nothing waits then.
            counted = self._counted()
            try:
                (result,) = await self._read([key])
            finally:
                self._ended(counted)
            return result
        waiting: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, waiting))
        if len(self._waiting) >= self._most:
            # What is under way takes long: a server far away has time for more.
            self._begin()
        return await waiting

    def _counted(self) -> asyncio.TimerHandle:
        """A read begins."""
        loop = asyncio.get_running_loop()
        counted: list[asyncio.TimerHandle] = []
        counted.append(loop.call_later(self._long_s, lambda: self._ended(counted[0])))
        self._under_way.add(counted[0])
        return counted[0]

    def _ended(self, counted: asyncio.TimerHandle) -> None:
        """A read has ended, or has taken so long that it no longer counts."""
        counted.cancel()
        self._under_way.discard(counted)
        if self._waiting and len(self._under_way) < self._at_once:
            self._begin()

    def _begin(self) -> None:
        group = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
        task = asyncio.create_task(self._do([each for each in group if not each[1].done()], self._counted()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, group: Sequence[tuple[_Key, "asyncio.Future[_Result]"]], counted: asyncio.TimerHandle) -> None:
        try:
            results = await self._read([key for key, _ in group]) if group else ()
            for (_, waiting), result in zip(group, results, strict=True):
                if not waiting.done():
                    waiting.set_result(result)
        except Exception as error:  # noqa: BLE001  # it is raised where it is waited for
            for _, waiting in group:
                if not waiting.done():
                    waiting.set_exception(copy.copy(error))
        finally:
            for _, waiting in group:
                waiting.cancel()
            self._ended(counted)
