"""What anyio lacks."""

import asyncio
import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nexus.core.concurrency import OuterHandler, Pending, computed, items_of, supervised
from nexus.core.metrics import Event
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.virtual_time import VirtualLoop
from tests.nexus.support.waiting import PATIENCE_S


async def test_items_in_order_to_the_end() -> None:
    """Everything comes, in order, and iterating ends with the sender."""
    send, receive = anyio.create_memory_object_stream[int](10)
    with receive:
        with send:
            for number in range(10):
                send.send_nowait(number)
        assert [number async for number in items_of(receive)] == list(range(10))


@pytest.mark.parametrize("left", [1, 3])
async def test_what_is_left_stays(left: int) -> None:
    """Whoever stops reading in between leaves the rest to the next; to close this end ends the iteration."""
    send, receive = anyio.create_memory_object_stream[int](10)
    with send, receive:
        for number in range(4):
            send.send_nowait(number)
        async for number in items_of(receive):
            if number == 3 - left:
                break
        assert receive.statistics().current_buffer_used == left
        receive.close()
        assert [number async for number in items_of(receive)] == []


async def test_two_readers() -> None:
    """Two who read one stream share what is in it."""
    send, receive = anyio.create_memory_object_stream[int](10)
    with receive:
        with send:
            for number in range(6):
                send.send_nowait(number)
        one, other = items_of(receive), items_of(receive)
        taken = [await anext(one)]
        taken += [number async for number in other]
        taken += [number async for number in one]
    assert taken == list(range(6))


async def test_pending_work_is_waited_for() -> None:
    """It is counted down to nothing, and who waits for nothing does not wait."""
    pending = Pending()
    with anyio.fail_after(PATIENCE_S):
        await pending.none()
        pending.begin()
        pending.begin()

        async def work() -> None:
            await checkpoint()
            pending.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            tasks.start_soon(work)
            await pending.none()
            assert pending.count == 0


def test_a_task_that_fails_begins_again() -> None:
    """Each fault is counted and followed by a longer pause, until the task ends by itself."""
    metrics, begun = RecordingMetrics(), list[float]()

    async def run() -> None:
        begun.append(anyio.current_time())
        if len(begun) < 12:
            raise RuntimeError("boom")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(supervised(metrics, "a task", run))
    assert metrics.counted == {Event.BACKGROUND_FAULT: 11}
    assert begun[1] - begun[0] < 0.2
    assert 15 <= begun[11] - begun[10] <= 30


async def test_what_ends_a_task_passes_the_outer_handler() -> None:
    """Cancellation is no fault."""
    metrics = RecordingMetrics()
    with anyio.CancelScope() as scope, OuterHandler(metrics, "a task") as handler:
        scope.cancel()
        await checkpoint()
    assert scope.cancelled_caught
    assert (handler.failed, metrics.counted) == (False, {})


@pytest.mark.parametrize(("chars", "in_thread"), [(0, False), (131_072, False), (131_073, True)])
async def test_long_work_leaves_the_loop(chars: int, *, in_thread: bool) -> None:
    """Pure work on much text is done in another thread, all else at once; an error of it comes through either way."""
    assert (await computed("ada", chars, threading.get_ident) != threading.get_ident()) is in_thread
    with pytest.raises(ZeroDivisionError):
        await computed("ada", chars, lambda: 1 // 0)


async def test_long_work_of_one_owner_holds_up_no_other() -> None:
    """Of each owner one call waits for the thread."""
    begun = threading.Event()
    ended: list[str] = []

    async def compute(owner: str) -> None:
        await computed(owner, 1 << 20, begun.wait)
        ended.append(owner)

    async with anyio.create_task_group() as tasks:
        for owner in ["ada"] * 5 + ["bob"]:
            tasks.start_soon(compute, owner)
            await checkpoint()
        begun.set()
    assert "bob" in ended[:2]
