"""Writes by session: in order, gathered for a pause, retried, refused one by one, bounded (contract §6)."""

import asyncio
from collections.abc import Sequence

import anyio
import pytest

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event
from nexus.services.session_queue import Key, SessionQueue
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.virtual_time import VirtualLoop

S, T = ("o", "s"), ("o", "t")


class Desk:
    """What a queue does, and what it says."""

    def __init__(self, pause_s: float = 0) -> None:
        self.done: list[tuple[Key, list[int]]] = []
        self.settled: list[tuple[int, str | None]] = []
        self.delayed: list[str] = []
        self.faults: list[Exception] = []
        self.refused: set[int] = set()
        self.metrics = RecordingMetrics()
        self.queue = SessionQueue[int](
            self.do, lambda *each: self.settled.append(each), self.delayed.append, pause_s, self.metrics
        )

    async def do(self, key: Key, items: Sequence[int]) -> None:
        """Keep them, unless there is a fault."""
        await anyio.lowlevel.checkpoint()
        if self.faults:
            raise self.faults.pop()
        if self.refused & {*items}:
            raise StoreRejectedError("no")
        self.done.append((key, [*items]))


async def test_writes_of_a_session_are_done_in_order() -> None:
    """Those that wait together; also those that were offered before the workers began."""
    desk = Desk()
    for number in range(3):
        assert desk.queue.offer(S, number, 1)
    async with desk.queue.running():
        assert desk.queue.offer(T, 9, 1)
        await desk.queue.drained()
        assert desk.queue.offer(S, 3, 1)
        await desk.queue.settled(S)
    assert [items for key, items in desk.done if key == S] == [[0, 1, 2], [3]]
    assert sorted(desk.settled) == [(0, None), (1, None), (2, None), (3, None), (9, None)]


def test_writes_are_gathered_for_a_pause() -> None:
    """Not where a caller waits for them, or one of them is to be done at once."""
    times: list[tuple[float, list[int]]] = []

    async def scene() -> None:
        async def do(_key: Key, items: Sequence[int]) -> None:
            times.append((round(anyio.current_time() - began_at, 3), [*items]))

        began_at = anyio.current_time()
        queue = SessionQueue[int](do, lambda _item, _reason: None, lambda _reason: None, 0.5)
        async with queue.running():
            queue.offer(S, 1, 1)
            await anyio.sleep(0.1)
            queue.offer(S, 2, 1)
            await anyio.sleep(10)
            queue.offer(S, 3, 1)
            await queue.settled(S)
            queue.offer(S, 4, 1, at_once=True)
            await anyio.sleep(10)
            queue.offer(S, 5, 1)
            await queue.drained()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scene())
    assert times == [(0.5, [1, 2]), (10.1, [3]), (10.1, [4]), (20.1, [5])]


async def test_a_store_that_is_away() -> None:
    """Writes are done later, callers are told, and the delay is reported once."""
    desk = Desk()
    desk.faults = [StoreUnavailableError("away"), StoreUnavailableError("away")]
    async with desk.queue.running():
        assert desk.queue.offer(S, 1, 1)
        with pytest.raises(StoreUnavailableError, match="away"):
            await desk.queue.settled(S)
        await desk.queue.drained()
    assert (desk.done, desk.delayed) == ([(S, [1])], ["away"])


@pytest.mark.parametrize("refused", [0, 57, 99])
async def test_a_write_that_is_refused(refused: int) -> None:
    """The others are done, in few steps and in their order."""
    desk = Desk()
    desk.refused = {refused}
    for number in range(100):
        assert desk.queue.offer(S, number, 1)
    async with desk.queue.running():
        await desk.queue.drained()
    done = [number for _, items in desk.done for number in items]
    assert done == [number for number in range(100) if number != refused]
    assert [each for each in desk.settled if each[1]] == [(refused, "no")]
    assert len(desk.done) < 20


async def test_an_unexpected_fault() -> None:
    """It costs its own write alone, and is counted."""
    desk = Desk()
    desk.faults = [RuntimeError("boom")]
    async with desk.queue.running():
        assert desk.queue.offer(S, 1, 1)
        assert desk.queue.offer(T, 2, 1)
        await desk.queue.drained()
    assert sorted(reason or "" for _, reason in desk.settled) == ["", "boom"]
    assert desk.metrics.counted == {Event.BACKGROUND_FAULT: 1}


async def test_too_much_is_waiting() -> None:
    """By number and by bytes, shared by owners; nothing is accepted once the queue has ended, and who waits is told."""
    desk = Desk()
    assert desk.queue.offer(S, 1, 64 << 20)
    assert not desk.queue.offer(S, 2, 1)
    many = Desk()
    assert sum(many.queue.offer(S, number, 0) for number in range(10_000)) == 5_000
    assert many.queue.offer(("another owner", "s"), 1, 0)
    desk = Desk(pause_s=3_600)
    async with desk.queue.running():
        assert desk.queue.offer(S, 1, 1)
        async with anyio.create_task_group() as tasks:
            tasks.cancel_scope.cancel()
    assert not desk.queue.offer(S, 2, 1)
    with pytest.raises(StoreUnavailableError, match="stopping"):
        await desk.queue.settled(S)
