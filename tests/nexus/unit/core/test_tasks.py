"""The small additions to structured concurrency."""

import weakref

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nexus.core.tasks import Alongside, Later, Pending, items_of
from tests.nexus.support.waiting import PATIENCE_S


async def test_items_in_order_to_the_end() -> None:
    """Everything comes, in order, and iterating ends with the sender."""
    send, receive = anyio.create_memory_object_stream[int](10)
    with receive:
        with send:
            for number in range(10):
                send.send_nowait(number)
        assert [number async for number in items_of(receive)] == list(range(10))


async def test_what_waits_comes_without_a_turn_for_others() -> None:
    """What is there when somebody reads comes at once; what is added meanwhile lets others have their turn first."""
    send, receive = anyio.create_memory_object_stream[int](10)
    turns: list[str] = []

    async def others() -> None:
        while True:
            turns.append("other")
            await checkpoint()

    with send, receive:
        for number in range(5):
            send.send_nowait(number)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(others)
            async for number in items_of(receive):
                turns.append(f"{number}")
                if number == 4:
                    send.send_nowait(5)
                if number == 5:
                    break
            tasks.cancel_scope.cancel()
    first = turns.index("0")
    assert turns[first : first + 5] == ["0", "1", "2", "3", "4"]
    assert "other" in turns[first + 5 : turns.index("5")]


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


async def test_later_is_done_in_order_and_told_when_all_is() -> None:
    """Pieces of work are done one after the other; `pending` counts them down to nothing, and can be waited for."""
    later, done = Later(), list[int]()
    for number in range(3):

        async def work(number: int = number) -> None:
            await checkpoint()
            done.append(number)

        assert later.do(work)
    assert later.pending.count == 3
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(later.run)
        with anyio.fail_after(PATIENCE_S):
            await later.pending.none()
        tasks.cancel_scope.cancel()
    assert done == [0, 1, 2]
    assert later.pending.count == 0


async def test_later_keeps_nothing_of_what_is_done() -> None:
    """While it waits for more to do."""
    later = Later()

    async def work() -> None:
        await checkpoint()

    gone = weakref.ref(work)
    assert later.do(work)
    del work
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(later.run)
        await anyio.wait_all_tasks_blocked()
        assert later.pending.count == 0
        assert gone() is None
        tasks.cancel_scope.cancel()


async def test_nothing_is_pending_at_first() -> None:
    """Who waits for nothing does not wait."""
    with anyio.fail_after(PATIENCE_S):
        await Pending().none()


class TestAlongside:
    """Work beside what is done, at once or after a while."""

    @pytest.mark.parametrize(("after_s", "stays_s", "begun"), [(0.0, 0.0, 1), (0.01, 0.1, 1), (0.05, 0.0, 0)])
    async def test_when_it_begins(self, after_s: float, stays_s: float, begun: int) -> None:
        """Then, and not when the context has ended before."""
        count = 0

        async def work() -> None:
            nonlocal count
            count += 1
            await anyio.sleep_forever()

        async with Alongside(work) as alongside:
            alongside.begin(after_s)
            await anyio.sleep(stays_s)
            assert alongside.has_begun == bool(begun)
        await anyio.sleep(0.1)
        assert count == begun

    @pytest.mark.parametrize("after_s", [0.0, 0.02])
    async def test_whoever_wants_the_result_has_it(self, after_s: float) -> None:
        """Once, also where it was to begin later."""
        count = 0

        async def work() -> int:
            nonlocal count
            count += 1
            await anyio.sleep(0.05)
            return count

        async with Alongside(work) as alongside:
            alongside.begin(after_s)
            assert await alongside.result() == 1
        assert count == 1

    @pytest.mark.parametrize("after_s", [0.0, 0.01])
    async def test_what_it_raises(self, after_s: float) -> None:
        """Whoever wants the result is told; whoever leaves is not."""

        async def work() -> None:
            raise ValueError("so")

        async with Alongside(work) as alongside:
            alongside.begin(after_s)
            await anyio.sleep(0.03)
        async with Alongside(work) as alongside:
            alongside.begin(after_s)
            with pytest.raises(ValueError, match="so"):
                await alongside.result()

    async def test_not_begun(self) -> None:
        """What nobody begins is not done, unless its result is wanted; nor what is begun when the context has ended."""
        count = 0

        async def work() -> int:
            nonlocal count
            count += 1
            return count

        async with Alongside(work) as ended:
            pass
        ended.begin()
        await anyio.sleep(0.01)
        assert (count, ended.has_begun) == (0, False)
        async with Alongside(work) as alongside:
            assert await alongside.result() == 1
            alongside.begin()
        assert (count, alongside.has_begun) == (1, False)
