"""Work on sessions: what waits for more that can be done with it, and what does not (CONTRACT §6)."""

from collections.abc import Mapping, Sequence

import anyio

from nexus.services.by_session import BySession, Key

_PATIENCE_S = 20


async def test_more_sessions_than_are_done_together() -> None:
    """None of them waits for more to come, however long that would be; each is done once."""
    sizes: list[int] = []
    done: list[tuple[Key, int]] = []

    async def do(work: Mapping[Key, Sequence[int]]) -> None:
        sizes.append(len(work))
        await anyio.sleep(0)
        done.extend((key, item) for key, items in work.items() for item in items)

    wanted = [(("o", f"s{number % 300}"), number) for number in range(600)]
    work = BySession[int](do, lambda _item, _reason: None, lambda _reason: None, pause_s=3_600)
    for key, item in wanted:
        assert work.offer(key, item, 1)
    async with work.running():
        with anyio.fail_after(_PATIENCE_S):
            # Nobody waits for it, which would end the pause.
            while work.pending.count:
                await anyio.sleep(0)
    assert sorted(done) == sorted(wanted)
    assert len(sizes) > 1
