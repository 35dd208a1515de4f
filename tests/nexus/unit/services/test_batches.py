"""When rows are written together: soon, and those that the journal has when they are many (CONTRACT §2)."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import pytest

from nexus.core.tasks import Awaited
from nexus.services.batches import JOURNALED_PAUSE_S, Batches
from nexus.services.writing import Waiting
from tests.nexus.support.garbage import Left, unsearched
from tests.nexus.support.virtual_time import VirtualLoop

_Result = TypeVar("_Result")

# Longer than any pause.
_LONG_S: Final = 10.0
_SOON_S: Final = 0.01


@dataclass
class Table:
    """Batches that somebody takes all the time, and when each was taken, in seconds since the first row came."""

    awaited: Awaited = field(default_factory=Awaited)
    taken: list[tuple[float, list[str]]] = field(default_factory=list)
    began_at: float = field(default_factory=anyio.current_time)

    def __post_init__(self) -> None:
        self.batches = Batches(self.awaited)

    async def take_all(self) -> None:
        """Take what comes."""
        while True:
            batch = await self.batches.take()
            at = round(anyio.current_time() - self.began_at, 3)
            self.taken.append((at, [item.row["id"] for item in batch]))

    def add(self, row_id: str, *, journaled: bool = True, owner: str = "", size: int = 1) -> None:
        """A row, of an owner of its own unless it is said whose."""
        row = {"id": row_id, "owner_key": owner or row_id, "role": "HUMAN"}
        self.batches.add(Waiting(row, size, lambda: None, None), journaled=journaled)


def play(scene: Callable[[Table], Awaitable[None]]) -> list[tuple[float, list[str]]]:
    """What was taken in a scene, in virtual time, which ends when nothing more happens."""

    async def whole() -> list[tuple[float, list[str]]]:
        table = Table()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(table.take_all)
            await scene(table)
            await anyio.sleep(_LONG_S)
            tasks.cancel_scope.cancel()
        return table.taken

    return run(whole())


def run(main: Coroutine[Any, Any, _Result]) -> _Result:
    """In virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


@pytest.mark.parametrize(("journaled", "pause"), [(True, JOURNALED_PAUSE_S), (False, 0)])
def test_one_by_itself(*, journaled: bool, pause: float) -> None:
    """It is taken at once, however often that happens; where the journal has it, out of the way of who asks next."""

    async def scene(table: Table) -> None:
        for number in range(3):
            table.add(f"r{number}", journaled=journaled)
            await anyio.sleep(1)

    assert play(scene) == [(pause, ["r0"]), (1 + pause, ["r1"]), (2 + pause, ["r2"])]


def test_what_follows_closely_is_taken_together() -> None:
    """With the first, where the journal has it."""

    async def scene(table: Table, *, journaled: bool) -> None:
        for number in range(4):
            table.add(f"r{number}", journaled=journaled)
            await anyio.sleep(0.002)

    assert play(partial(scene, journaled=False)) == [(0, ["r0"]), (_SOON_S, ["r1", "r2", "r3"])]
    assert play(partial(scene, journaled=True)) == [(JOURNALED_PAUSE_S, ["r0", "r1", "r2", "r3"])]


@pytest.mark.parametrize(
    ("at", "taken_at"),
    [(0.002, _SOON_S), (0.05, 0.05)],
)
def test_what_the_journal_does_not_have_waits_for_none(at: float, taken_at: float) -> None:
    """It is taken as if there were no others, with those that came before it."""

    async def scene(table: Table) -> None:
        table.add("first", journaled=False)
        await anyio.sleep(0.001)
        table.add("second")
        await anyio.sleep(at - 0.001)
        table.add("third", journaled=False)

    assert play(scene) == [(0, ["first"]), (taken_at, ["second", "third"])]


@pytest.mark.parametrize("at", [0.005, 0.05])
@pytest.mark.parametrize("journaled", [True, False])
def test_nobody_is_kept_waiting(at: float, *, journaled: bool) -> None:
    """Whoever waits has all that is there taken at once, and what comes while he does."""
    at = at if journaled else 0.005

    async def scene(table: Table) -> None:
        table.add("first", journaled=False)
        await anyio.sleep(0.001)
        table.add("second", journaled=journaled)
        await anyio.sleep(at - 0.001)
        with table.awaited.awaiting():
            await anyio.sleep(0.001)
            table.add("third", journaled=journaled)
            await anyio.sleep(0.001)
        table.add("fourth")

    taken = play(scene)
    assert [batch for _, batch in taken] == [["first"], ["second"], ["third"], ["fourth"]]
    assert [at for at, _ in taken] == pytest.approx([0, at, at + 0.001, at + 0.002 + JOURNALED_PAUSE_S])


@pytest.mark.parametrize(
    ("rows", "owner", "size"),
    [(100, "", 1), (4, "ada", 1), (4, "", 1 << 18)],
    ids=["many", "of one owner", "large"],
)
def test_many_are_taken_sooner(rows: int, owner: str, size: int) -> None:
    """Many in number, in bytes, or of one owner; and one less is not many. Not sooner than any others."""

    async def scene(table: Table) -> None:
        table.add("first", journaled=False)
        await anyio.sleep(0.001)
        for number in range(rows - 1):
            table.add(f"r{number}", owner=owner, size=size)
        await anyio.sleep(1)
        table.add("next", journaled=False)
        await anyio.sleep(0.001)
        for number in range(rows):
            table.add(f"s{number}", owner=owner, size=size)

    taken = play(scene)
    assert [at for at, _ in taken] == [0, 0.001 + JOURNALED_PAUSE_S, 1.001, 1.001 + _SOON_S]
    assert [len(batch) for _, batch in taken] == [1, rows - 1, 1, rows]


@pytest.mark.parametrize("journaled", [True, False])
@pytest.mark.parametrize(("size", "at_once"), [(1, 100), (1 << 19, 2), (2 << 20, 1)])
def test_more_than_a_batch(size: int, at_once: int, *, journaled: bool) -> None:
    """Nothing is left behind, and all comes in its order."""
    rows = [f"r{number}" for number in range(250)]

    async def scene(table: Table) -> None:
        for row_id in rows:
            table.add(row_id, journaled=journaled, size=size)

    taken = play(scene)
    assert [row_id for _, batch in taken for row_id in batch] == rows
    assert {len(batch) for _, batch in taken[:-1]} == {at_once}
    # Of those that the journal has, the last few may wait for more.
    assert taken[-2][0] <= len(taken) * _SOON_S


def test_waiting_leaves_nothing_behind() -> None:
    """However it ends, there is nothing for Python to look for."""

    async def scene(left: Left, table: Table) -> None:
        for number in range(5):
            table.add(f"r{number}")
            await anyio.sleep(0.01)
        await anyio.sleep(1)
        table.add("next")
        table.add("but one")
        with table.awaited.awaiting():
            await anyio.sleep(1)
        assert not left(asyncio.CancelledError)

    with unsearched() as left:
        assert len(play(partial(scene, left))) == 2


def test_whoever_stops_taking_takes_nothing() -> None:
    """It is there for the next."""

    async def scene() -> None:
        table = Table()
        for seconds in (0.0, 0.005, 0.05):
            with anyio.move_on_after(seconds):
                await table.batches.take()
            table.add("one")
            assert [item.row["id"] for item in await table.batches.take()] == ["one"]
            table.add("two")
            with anyio.move_on_after(seconds):
                await table.batches.take()
            assert [item.row["id"] for item in await table.batches.take()] == ["two"]

    run(scene())


def test_a_backlog_that_never_ends() -> None:
    """Nothing is known of owners of whom no row waits, and who had many once has none of them for ever."""

    async def scene(table: Table) -> None:
        waiting = 0
        for number in range(30_000):
            table.add(str(number))
            waiting += 1
            if waiting == 300:
                await anyio.sleep(_LONG_S)
                waiting = 0
                table.add("left")
        assert len(table.batches._of_owners) <= 301

    play(scene)
