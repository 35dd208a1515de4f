"""Work on sessions: what waits for more that can be done with it, and what does not (CONTRACT §6)."""

from collections.abc import Mapping, Sequence

from anyio import lowlevel

from nexus.services.by_session import BySession, Key
from tests.nexus.support.waiting import until


async def test_more_sessions_than_are_done_together() -> None:
    """None of them waits for more to come, however long that would be; each is done once."""
    done: list[tuple[Key, int]] = []
    sizes: list[int] = []

    async def do(work: Mapping[Key, Sequence[int]]) -> None:
        sizes.append(len(work))
        await lowlevel.checkpoint()
        done.extend((key, item) for key, items in work.items() for item in items)

    async def is_done() -> bool:
        return not work.pending.count

    wanted = [(("o", f"s{number % 300}"), number) for number in range(600)]
    work = BySession[int](do, lambda _item, _reason: None, lambda _reason: None, pause_s=3_600)
    for key, item in wanted:
        assert work.offer(key, item, 1)
    async with work.running():
        # Whoever waited for `pending` would end the pause.
        await until(is_done)
    assert sorted(done) == sorted(wanted)
    assert 1 < len(sizes) < 300
