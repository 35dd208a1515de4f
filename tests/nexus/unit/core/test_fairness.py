"""Owners share room and work: none takes the place of another, and each has its turn."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.fairness import FairWorkers, Room
from nexus.core.metrics import Event
from tests.nexus.support.metrics import RecordingMetrics

OFFERS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), max_size=60)


def test_room_for_one_and_for_the_next() -> None:
    """One owner has a half, two have a third each, and there is room for another."""
    room = Room(12, 1_000)
    for owner, taken in (("a", 6), ("b", 3), ("c", 2), ("d", 1), ("e", 0)):
        assert [room.enter(owner, 1) for _ in range(12)].count(True) == taken
    for _ in range(6):
        room.leave("a", 1)
    assert (room.count, room.bytes) == (6, 6)
    assert [room.enter("e", 1) for _ in range(12)].count(True) == 3


def test_bytes_are_shared_likewise() -> None:
    """An item of any size up to all of it, where there is nothing else."""
    room = Room(100, 100)
    assert not room.enter("a", 101)
    assert room.enter("a", 60)
    assert not room.enter("a", 1)
    assert room.enter("b", 40)
    assert room.enter("c", 0)


@given(OFFERS)
def test_nobody_keeps_another_out(offers: list[tuple[str, int]]) -> None:
    """Whatever was offered before: who holds less than is free is let in, and the bounds hold."""
    room, held = Room(20, 200), dict.fromkeys("abcd", (0, 0))
    for owner, size in offers:
        count, total = held[owner]
        let_in = room.enter(owner, size)
        if let_in:
            held[owner] = count + 1, total + size
        assert let_in == (count < 20 - room.count + let_in and total + size <= 200 - room.bytes + size * let_in)
        assert (room.count, room.bytes) == tuple(map(sum, zip(*held.values(), strict=True)))
    assert room.count <= 20
    assert room.bytes <= 200


class _Work:
    """Notes what is begun, and holds it up until it is told to go on."""

    def __init__(self, most: int = 2, share: int = 1, room: Room | None = None) -> None:
        self.begun: list[str] = []
        self.metrics = RecordingMetrics()
        self._go = anyio.Semaphore(0)
        self.workers = FairWorkers[str](
            self.do, most=most, share=share, waiting=room or Room(100, 100), metrics=self.metrics, task="work"
        )

    async def do(self, item: str) -> None:
        """One piece."""
        self.begun.append(item)
        await self._go.acquire()
        if item.endswith("!"):
            raise LookupError(item)

    def offer(self, *items: str) -> list[bool]:
        """Items of the owners that they begin with."""
        return [self.workers.offer(item[0], item, 1) for item in items]

    async def finish(self, count: int = 1) -> None:
        """Let so many be finished."""
        for _ in range(count):
            self._go.release()
        await passed()


async def passed() -> None:
    """Let everybody else run."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("most", "share", "begun"),
    [
        (1, 9, ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]),
        (9, 1, ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]),
        (2, 9, ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]),
    ],
)
async def test_owners_are_served_in_turn(most: int, share: int, begun: list[str]) -> None:
    """One of each, in the order in which owners came; of one owner in the order in which it was offered."""
    work = _Work(most, share)
    assert all(work.offer("a1", "a2", "a3", "a4", "b1", "b2", "c1"))
    async with work.workers.running():
        for _ in range(7):
            await work.finish()
        assert work.begun == begun
        assert (work.workers.at_work, work.workers.waiting.count, work.workers.has("a")) == (0, 0, False)


async def test_an_owner_has_no_more_than_its_share() -> None:
    """However much is free; others begin at once, and take no room for that."""
    work = _Work(most=5, share=2, room=Room(2, 100))
    async with work.workers.running():
        assert work.offer("a1", "a2", "a3", "a4") == [True, True, True, False]
        assert not work.workers.is_free("a")
        assert work.offer("b1", "c1", "d1") == [True] * 3
        await passed()
        assert work.begun == ["a1", "a2", "b1", "c1", "d1"]
        assert work.offer("e1") == [True]
        assert work.offer("f1") == [False]
        assert work.workers.has("e")


async def test_a_fault_ends_nothing() -> None:
    """It is reported, and the next item has its place."""
    work = _Work(most=1)
    async with work.workers.running():
        work.offer("a1!", "a2", "b1")
        await work.finish(3)
    assert work.begun == ["a1!", "b1", "a2"]
    assert work.metrics.counted == {Event.BACKGROUND_FAULT: 1}


async def test_what_waits_at_the_end_is_not_begun() -> None:
    """And what is at work is cancelled."""
    work = _Work(most=1)
    async with work.workers.running():
        work.offer("a1", "a2", "b1")
        await passed()
    assert work.begun == ["a1"]
    assert not work.workers.is_free("c")
