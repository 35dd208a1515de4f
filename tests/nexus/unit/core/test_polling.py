"""Not falling asleep over one reply."""

import asyncio
from types import SimpleNamespace

import pytest

from nexus.core.polling import PAUSE_S, BusyPolling
from nexus.core.tasks import Pending

# Longer than any test lasts.
_LONG_S = 60.0
_PASSES = 50


async def passes(seconds: float) -> int:
    """How often the event loop goes round in so long, which without polling is a few times."""
    loop = asyncio.get_running_loop()
    selected = 0
    select = loop._selector.select  # type: ignore[attr-defined]

    def counted(timeout: float | None) -> object:
        nonlocal selected
        selected += 1
        return select(timeout)

    loop._selector.select = counted  # type: ignore[attr-defined]
    try:
        await asyncio.sleep(seconds)
    finally:
        loop._selector.select = select  # type: ignore[attr-defined]
    return selected


def in_hand(count: int) -> Pending:
    """So much is in hand."""
    pending = Pending()
    for _ in range(count):
        pending.begin()
    return pending


async def test_one_thing_is_polled_for() -> None:
    """Until it is there; and the next again."""
    polls = BusyPolling(in_hand(1), _LONG_S)
    for _ in range(2):
        with polls:
            assert await passes(0.05) > _PASSES
        assert await passes(0.05) < _PASSES


async def test_it_ends() -> None:
    """After its time, and where something else comes in between."""
    pending = in_hand(1)
    with BusyPolling(pending, 0.001):
        await asyncio.sleep(0.01)
        assert await passes(0.05) < _PASSES
    with BusyPolling(pending, _LONG_S):
        pending.begin()
        await asyncio.sleep(0.01)
        assert await passes(0.05) < _PASSES


@pytest.mark.parametrize(("count", "longest_s"), [(0, _LONG_S), (2, _LONG_S), (1, 0.0)])
async def test_what_is_slept_over(count: int, longest_s: float) -> None:
    """Much at once, and anything where that is wanted."""
    with BusyPolling(in_hand(count), longest_s):
        assert await passes(0.05) < _PASSES


@pytest.mark.parametrize("before", [False, True])
async def test_who_replies_does_something_else(*, before: bool) -> None:
    """Then, and from then on, he may need the processor."""
    others = [1] if before else []
    with BusyPolling(in_hand(1), _LONG_S, lambda: bool(others)):
        assert (await passes(0.05) > _PASSES) is not before
        others.append(1)
        await asyncio.sleep(0.01)
        assert await passes(0.05) < _PASSES


async def test_an_error_ends_it() -> None:
    """What is awaited may fail."""
    with pytest.raises(RuntimeError), BusyPolling(in_hand(1), _LONG_S):
        raise RuntimeError
    await asyncio.sleep(0.01)
    assert await passes(0.05) < _PASSES


async def test_who_polls_gives_way() -> None:
    """At each look, and only then: whoever is to reply may wait for the same processor."""
    given: list[int] = []
    with BusyPolling(in_hand(1), _LONG_S, give_way=lambda: given.append(1)):
        assert abs(await passes(0.05) - len(given)) < _PASSES
    assert len(given) > _PASSES
    many = len(given)
    with BusyPolling(in_hand(2), _LONG_S, give_way=lambda: given.append(1)):
        await passes(0.05)
    assert len(given) == many


async def test_others_keep_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is polled for during a second, and after that again."""
    now, kept_s, given = 100.0, [0.003], list[float]()
    monkeypatch.setattr("nexus.core.polling.time", SimpleNamespace(monotonic=lambda: now))

    def give_way() -> None:
        nonlocal now
        given.append(now)
        now += kept_s.pop() if kept_s else 0.0005

    polls = BusyPolling(in_hand(1), 0.00225, give_way=give_way)

    async def looks() -> int:
        """How often it gives way over one reply."""
        given.clear()
        with polls:
            for _ in range(_PASSES):
                await asyncio.sleep(0)
        return len(given)

    assert await looks() == 1
    now += PAUSE_S * 0.99
    assert await looks() == 0
    now += PAUSE_S * 0.02
    assert await looks() == 5
    assert await looks() == 5
