"""Waiting for events: the event ends the waiting; the time limit only ends a test that has failed."""

from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Final, TypeVar

import anyio

_Answer = TypeVar("_Answer")

PATIENCE_S: Final = 60.0


async def until(probe: Callable[[], Awaitable[_Answer | None]]) -> _Answer:
    """The first answer of `probe` that counts as true."""
    pause_s = 0.01
    with anyio.fail_after(PATIENCE_S):
        while True:
            answer = await probe()
            if answer:
                return answer
            await anyio.sleep(pause_s)
            # Whoever asks a server all the time takes the processor from what it waits for.
            pause_s = min(2 * pause_s, 0.1)


async def take(items: AsyncIterable[_Answer], count: int) -> list[_Answer]:
    """The next `count` items, or fewer when there are no more."""
    taken: list[_Answer] = []
    with anyio.fail_after(PATIENCE_S):
        if count:
            async for item in items:
                taken.append(item)
                if len(taken) == count:
                    break
    return taken


async def take_all(items: AsyncIterable[_Answer]) -> list[_Answer]:
    """Every item up to the end."""
    with anyio.fail_after(PATIENCE_S):
        return [item async for item in items]
