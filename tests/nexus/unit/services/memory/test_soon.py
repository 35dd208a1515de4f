"""Compactions in the background: one of a session at a time, and to their end."""

import anyio
import pytest

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.working_memory import Compaction, CompactionRequest
from nexus.services.memory.compactor import BackgroundCompactions
from tests.nexus.support.waiting import until

ADA, BEN = CompactionRequest("ada", "s"), CompactionRequest("ben", "s")


class Compacting:
    """Compacts when it is let go."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.begun: list[CompactionRequest] = []
        self.go = anyio.Event()
        self._problem = problem

    async def compact(self, wish: CompactionRequest) -> Compaction | None:
        """Nothing is to be compacted, or it fails."""
        self.begun.append(wish)
        await self.go.wait()
        if self._problem:
            raise self._problem
        return None


async def _begun(compacting: Compacting, count: int) -> None:
    async def are() -> bool:
        return len(compacting.begun) >= count

    await until(are)


async def test_one_of_a_session_at_a_time() -> None:
    """Whoever wants another gets the one that is under way; sessions do not wait for each other."""
    compacting = Compacting()
    async with BackgroundCompactions(compacting.compact).running() as soon:
        first, again, other = soon.start(ADA, long=False), soon.start(ADA, long=True), soon.start(BEN, long=False)
        await _begun(compacting, 2)
        assert first is again
        assert first is not other
        compacting.go.set()
        assert first
        await first.done.wait()
        assert (first.made, first.failed) == (None, False)
        assert soon.start(ADA, long=False) is not first


async def test_who_waits_no_more() -> None:
    """The compaction goes on."""
    compacting = Compacting()
    async with BackgroundCompactions(compacting.compact).running() as soon:
        job = soon.start(ADA, long=False)
        assert job
        with anyio.move_on_after(0):
            await job.done.wait()
        compacting.go.set()
        with anyio.fail_after(5):
            await job.done.wait()
    assert compacting.begun == [ADA]


@pytest.mark.parametrize(
    "problem", [StoreUnavailableError("away"), StoreRejectedError("too large"), ZeroDivisionError()]
)
async def test_one_that_fails(problem: Exception) -> None:
    """It says so, and stops no other."""
    compacting = Compacting(problem)
    compacting.go.set()
    async with BackgroundCompactions(compacting.compact).running() as soon:
        for wish in (ADA, BEN):
            job = soon.start(wish, long=False)
            assert job
            await job.done.wait()
            assert job.failed


async def test_long_ones_wait_for_each_other() -> None:
    """Two are done at once, and one that somebody waits for is not held up by them."""
    compacting = Compacting()
    async with BackgroundCompactions(compacting.compact).running() as soon:
        for owner in range(5):
            soon.start(CompactionRequest(f"owner {owner}", "s"), long=True)
        soon.start(ADA, long=False)
        await _begun(compacting, 3)
        assert ADA in compacting.begun
        assert len(compacting.begun) == 3
        compacting.go.set()
        await _begun(compacting, 6)
