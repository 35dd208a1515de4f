"""Work on sessions: what waits for more that can be done with it, and what does not (CONTRACT §6)."""

import asyncio
from collections.abc import Mapping, Sequence

import anyio
import pytest
from anyio import lowlevel

from nexus.services.by_session import BySession, Key
from tests.nexus.support.virtual_time import VirtualLoop
from tests.nexus.support.waiting import until


@pytest.mark.parametrize("each", [2, 10, 400])
async def test_more_than_is_done_together(each: int) -> None:
    """None of it waits for more to come, however long that would be; each is done once, and not much at once."""
    done: list[tuple[Key, int]] = []
    sizes: list[int] = []

    async def do(work: Mapping[Key, Sequence[int]]) -> None:
        sizes.append(sum(map(len, work.values())))
        await lowlevel.checkpoint()
        done.extend((key, item) for key, items in work.items() for item in items)

    async def is_done() -> bool:
        return not work.pending.count

    sessions = 300 if each < 100 else 3
    wanted = [(("o", f"s{number % sessions}"), number) for number in range(sessions * each)]
    work = BySession[int](do, lambda _item, _reason: None, lambda _reason: None, pause_s=3_600)
    for key, item in wanted:
        assert work.offer(key, item, 1)
    async with work.running():
        # Whoever waited for `pending` would end the pause.
        await until(is_done)
    assert sorted(done) == sorted(wanted)
    assert 1 < len(sizes) <= sessions
    # All that waits of a session is done at once.
    assert max(sizes) < 128 + each


def test_work_that_comes_by_itself_waits_for_more() -> None:
    """However long nothing came before; not where somebody waits."""
    done: list[tuple[float, list[int]]] = []
    began_at = 0.0

    async def do(work: Mapping[Key, Sequence[int]]) -> None:
        done.append((round(anyio.current_time() - began_at, 3), [item for items in work.values() for item in items]))

    async def scene() -> None:
        nonlocal began_at
        began_at = anyio.current_time()
        work = BySession[int](do, lambda _item, _reason: None, lambda _reason: None, pause_s=0.5)
        async with work.running():
            await anyio.sleep(10)
            assert work.offer(("o", "s"), 1, 1)
            await anyio.sleep(0.1)
            assert work.offer(("o", "t"), 2, 1)
            await anyio.sleep(10)
            assert work.offer(("o", "s"), 3, 1)
            await work.settled(("o", "s"))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scene())
    assert done == [(10.5, [1, 2]), (20.1, [3])]
