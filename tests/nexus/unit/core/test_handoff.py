"""Items for whoever has time for one."""

import asyncio

import anyio
import pytest

from nexus.core.tasks import Handoff


class Takers:
    """Tasks that take items, until they are stopped."""

    def __init__(self, handoff: Handoff[int]) -> None:
        self.handoff = handoff
        self.took: list[tuple[str, int]] = []

    async def take(self, name: str, scope: anyio.CancelScope) -> None:
        """Take one after another."""
        with scope:
            while True:
                self.took.append((name, await self.handoff.take()))


async def test_order_and_bound() -> None:
    """What nobody has time for waits in its order, and no more than may."""
    handoff = Handoff[int](2)
    assert [handoff.offer(number) for number in range(3)] == [True, True, False]
    assert handoff.waiting == 2
    assert [await handoff.take(), await handoff.take()] == [0, 1]
    assert handoff.waiting == 0


async def test_straight_to_whoever_waits() -> None:
    """Nothing waits while somebody has time, and nobody gets what another got."""
    handoff = Handoff[int](1)
    takers = Takers(handoff)
    async with anyio.create_task_group() as tasks:
        for name in "ab":
            tasks.start_soon(takers.take, name, anyio.CancelScope())
        await anyio.wait_all_tasks_blocked()
        assert [handoff.offer(number) for number in range(4)] == [True, True, True, False]
        await anyio.wait_all_tasks_blocked()
        assert sorted(number for _, number in takers.took) == [0, 1, 2]
        assert {name for name, _ in takers.took} == {"a", "b"}
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("others", [0, 1])
async def test_cancelled_while_it_is_handed_over(others: int) -> None:
    """The item goes to another who waits, or waits itself, before all that came later."""
    handoff = Handoff[int](5)
    tasks = [asyncio.create_task(handoff.take()) for _ in range(others + 1)]
    await anyio.wait_all_tasks_blocked()
    assert handoff.offer(1)
    tasks[-1].cancel()
    await asyncio.wait(tasks)
    assert tasks[-1].cancelled()
    assert [task.result() for task in tasks[:-1]] == [1] * others
    assert handoff.offer(2)
    assert [await handoff.take() for _ in range(handoff.waiting)] == [1, 2][others:]


async def test_nobody_is_left_of_those_who_gave_up() -> None:
    """An item is not handed to who was cancelled before."""
    handoff = Handoff[int](1)
    with anyio.move_on_after(0.01):
        await handoff.take()
    assert handoff.offer(1)
    assert (handoff.waiting, await handoff.take()) == (1, 1)
