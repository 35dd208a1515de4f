"""Work on sessions: what waits for more that can be done with it, and what does not (CONTRACT §6)."""

from collections.abc import Mapping, Sequence

import pytest
from anyio import lowlevel

from nexus.services.by_session import BySession, Key
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
