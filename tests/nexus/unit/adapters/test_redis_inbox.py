"""What was heard and not yet taken."""

import asyncio

import pytest

from nexus.adapters.redis_inbox import Inbox
from nexus.core.ports import Delivery


def delivery(number: int) -> Delivery:
    """One of many."""
    return Delivery("t", b"%d" % number)


async def test_order_and_room() -> None:
    """It says when it is full, takes what comes nevertheless, and asks for more once, when it is half empty."""
    asked: list[int] = []
    inbox = Inbox(4, lambda: asked.append(taken))
    taken = 0
    assert [inbox.put(delivery(number)) for number in range(6)] == [False, False, False, True, True, True]
    async for each in inbox:
        assert each == delivery(taken)
        taken += 1
        if taken == 6:
            inbox.end()
    assert (taken, asked) == (6, [3])
    assert not inbox.full


async def test_several_takers() -> None:
    """Each delivery is given to one of them; one that is cancelled while it waits has taken none."""
    inbox, taken = Inbox(10, lambda: None), list[Delivery]()

    async def take() -> None:
        async for each in inbox:
            taken.append(each)
            await asyncio.sleep(0)

    cancelled, *others = [asyncio.create_task(take()) for _ in range(4)]
    await asyncio.sleep(0)
    cancelled.cancel()
    for number in range(8):
        inbox.put(delivery(number))
        if number % 3 == 0:
            await asyncio.sleep(0)
    inbox.end()
    await asyncio.gather(*others)
    assert sorted(taken, key=lambda each: each.payload) == [delivery(number) for number in range(8)]


async def test_what_is_taken_first() -> None:
    """It is offered before it waits, unless another does, and never when nothing is to be heard any more."""
    offered: list[Delivery] = []
    inbox = Inbox(10, lambda: None)

    def take(given: Delivery) -> bool:
        offered.append(given)
        return given != delivery(2)

    inbox.put(delivery(0))
    inbox.first = take
    assert not inbox.put(delivery(1))
    assert [await anext(inbox) for _ in range(2)] == [delivery(0), delivery(1)]
    assert not any(inbox.put(delivery(number)) for number in (1, 2, 3))
    assert [await anext(inbox) for _ in range(2)] == [delivery(2), delivery(3)]
    inbox.end()
    assert not inbox.put(delivery(4))
    assert offered == [delivery(1), delivery(2)]


@pytest.mark.parametrize("left", [0, 3])
async def test_close_forgets_what_is_there(left: int) -> None:
    """Iterating ends at once, also for who waits."""
    inbox = Inbox(10, lambda: None)
    waiting = None if left else asyncio.ensure_future(anext(inbox.__aiter__(), None))
    await asyncio.sleep(0)
    for number in range(left):
        inbox.put(delivery(number))
    inbox.close()
    assert waiting is None or await waiting is None
    assert [each async for each in inbox] == []
