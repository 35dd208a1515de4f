"""Who may go on, and when, of those who do not hurry."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from nexus.adapters.mongo_passing import Passing
from tests.nexus.support.virtual_time import VirtualLoop


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the test in time of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())


class Waiters:
    """Tasks that wait, and which of them have gone on, with the time that this took."""

    def __init__(self, passing: Passing) -> None:
        self.gone: list[tuple[str, float]] = []
        self._passing = passing
        self._began_at = asyncio.get_running_loop().time()

    async def begin(self, name: str, seconds: float) -> "asyncio.Task[None]":
        """Have one more wait, for so long at most."""
        task = asyncio.create_task(self._wait(name, self._began_at + seconds))
        await asyncio.sleep(0)
        return task

    async def _wait(self, name: str, until: float) -> None:
        await self._passing.wait(until)
        self.gone.append((name, round(asyncio.get_running_loop().time() - self._began_at, 3)))


def test_one_goes_on_with_each_read() -> None:
    """Who has waited longest, in the pass after the one in which the read is written."""

    async def test() -> None:
        waiters = Waiters(passing := Passing())
        for name in "abc":
            await waiters.begin(name, 1)
        passing.read()
        assert waiters.gone == []
        await asyncio.sleep(0)
        assert waiters.gone == [("a", 0)]
        passing.read()
        passing.read()
        await asyncio.sleep(0)
        assert waiters.gone == [("a", 0), ("b", 0), ("c", 0)]
        # What nobody waited for is no credit.
        passing.read()
        await waiters.begin("d", 1)
        await asyncio.sleep(0.5)
        assert len(waiters.gone) == 3

    run(test)


def test_nobody_waits_for_ever() -> None:
    """Each goes on in time where nobody reads, and at once where there is none left."""

    async def test() -> None:
        waiters = Waiters(Passing())
        for name, seconds in (("a", 0.3), ("b", 0.1), ("c", 0), ("d", -1)):
            await waiters.begin(name, seconds)
        await asyncio.sleep(1)
        assert waiters.gone == [("c", 0), ("d", 0), ("b", 0.1), ("a", 0.3)]

    run(test)


def test_who_has_left_keeps_nobody_waiting() -> None:
    """Cancelled, or gone on by himself."""

    async def test() -> None:
        waiters = Waiters(passing := Passing())
        (await waiters.begin("a", 1)).cancel()
        await waiters.begin("b", 0.1)
        await waiters.begin("c", 1)
        await asyncio.sleep(0.2)
        passing.read()
        await asyncio.sleep(0)
        assert waiters.gone == [("b", 0.1), ("c", 0.2)]

    run(test)
