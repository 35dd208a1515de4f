"""Inputs between the answer that takes them along and the store; and what others left there (CONTRACT §1.5, §2)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio
import pytest

from nexus.adapters.memory_journal import MemoryJournal
from nexus.core.errors import BusUnavailableError, StoreUnavailableError
from nexus.core.models import Message, Role
from nexus.core.ports import JournalRow, Look, Moved, Past, Row, RunOrigin, Standing
from nexus.core.topics import Topics
from nexus.services.batches import JOURNALED_PAUSE_S
from nexus.services.inputs import OfferedInput
from nexus.services.past import OwnersPast
from nexus.services.persistence import PersistenceService
from nexus.services.tails import Tails
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.replicas import STAYS_S
from tests.nexus.support.virtual_time import VirtualLoop

_SESSION: Final = RunOrigin("default")
# Longer than rows are forsaken and looked for.
_ADOPTED_S: Final = 25.0


class AwayJournal(MemoryJournal):
    """A journal that cannot be reached for as long as `away`."""

    away = False

    async def moved(self, owner_key: str, row_id: str) -> Moved:
        """Move, or fail."""
        self._answer()
        return await super().moved(owner_key, row_id)

    async def written(self, rows: Sequence[JournalRow]) -> None:
        """Clear, or fail."""
        self._answer()
        await super().written(rows)

    async def unwritten(self, older_than_ms: int, limit: int) -> list[bytes]:
        """Look, or fail."""
        self._answer()
        return await super().unwritten(older_than_ms, limit)

    async def standing(self, look: Look) -> Standing:
        """Look, or fail."""
        self._answer()
        return await super().standing(look)

    def _answer(self) -> None:
        if self.away:
            raise BusUnavailableError("away")


@dataclass
class Desk:
    """A replica at work on a journal and a store that others share."""

    store: FakeStore
    journal: AwayJournal
    persistence: PersistenceService
    tails: Tails

    def offer(self, text: str = "hi", run_id: str = "run") -> OfferedInput:
        """An input that is accepted."""
        offered = self.later(text, run_id)
        assert offered.offer()
        return offered

    def later(self, text: str = "hi", run_id: str = "run") -> OfferedInput:
        """An input that is written when it is known what becomes of it."""
        human = Message(id=f"h_{run_id}", run_id=run_id, owner_key="ada", role=Role.HUMAN, content=text)
        return self.persistence.input_of(human, text, _SESSION)

    def put(self, offered: OfferedInput) -> JournalRow:
        """Have an answer take the input along."""
        row = offered.for_journal()
        assert row
        offered.journaled(row, self.journal.put(row))
        return row

    def journaled(self) -> int:
        """How many rows the journal has."""
        return len(self.look().rows or ())

    def look(self, version: str = "") -> Standing:
        """How things are with the owner."""
        return self.journal.look(Look("ada", version=version), None)

    async def past(self, standing: Standing, run_id: str = "next") -> Past:
        """What a run is shown that was claimed when things were like this."""
        return await self.asked(run_id).get(standing)

    def asked(self, run_id: str = "next") -> OwnersPast:
        """The past for a run."""
        asked = Message(id=f"h_{run_id}", run_id=run_id, owner_key="ada", role=Role.HUMAN, content="?")
        return self.persistence.past("ada", messages=20, excerpt_chars=500, asked=asked)

    def stored(self) -> list[str]:
        """The rows that the store has."""
        return [row["id"] for row in self.store.messages]


@asynccontextmanager
async def replica(beside: Desk | None = None, store: FakeStore | None = None) -> AsyncIterator[Desk]:
    """A replica by itself, or beside another."""
    store = beside.store if beside else store or FakeStore()
    journal = beside.journal if beside else AwayJournal(asyncio.get_running_loop().time)
    tails = Tails(1 << 20)
    persistence = PersistenceService(store, journal=journal, tails=tails, clock=anyio.current_time, stays_s=STAYS_S)
    async with persistence.running():
        yield Desk(store, journal, persistence, tails)


@pytest.fixture
def play() -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run a test in virtual time."""

    def run(scene: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await scene()

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(whole())

    return run


Playing = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.mark.parametrize("written_first", [True, False])
def test_it_stays_a_moment_after_it_was_written(play: Playing, *, written_first: bool) -> None:
    """Whatever is known first, that it is in the store or that it is in the journal."""

    async def scene() -> None:
        async with replica() as desk:
            offered = desk.offer()
            if written_first:
                await desk.persistence.flush()
            desk.put(offered)
            await offered.wait()
            assert (desk.stored(), desk.journaled()) == (["h_run"], 1)
            await anyio.sleep(STAYS_S * 0.9)
            assert desk.journaled() == 1
            await desk.persistence.flush()
            assert desk.journaled() == 0

    play(scene)


def test_who_reads_sees_it_before_it_is_written(play: Playing) -> None:
    """At once, and once; also who is at another replica; and not those rows that nobody may see there."""

    async def scene() -> None:
        async with replica() as desk, replica(desk) as other:
            desk.store.down = True
            desk.put(desk.offer())
            desk.store.down = False
            for each in (desk, other):
                past = await each.past(desk.look())
                assert [row["id"] for row in past.rows] == ["h_run"]
                assert past.complete
            await desk.persistence.flush()
            for each in (desk, other):
                assert [row["id"] for row in (await each.past(desk.look())).rows] == ["h_run"]
            foreign = JournalRow(
                "ada",
                "x",
                b'{"id":"x","run_id":"r","role":"HUMAN","owner_key":"bob",'
                b'"_id":"0","content":"","metadata":{},"timestamp":"2025-01-01T00:00:00Z"}',
            )
            desk.journal.put(foreign)
            assert [row["id"] for row in (await other.past(desk.look())).rows] == ["h_run"]

    play(scene)


def test_without_an_answer_the_version_moves_when_it_is_stored(play: Playing) -> None:
    """Whichever comes first; and where an answer waits for the store, before that."""

    async def scene() -> None:
        async with replica() as desk:
            before = desk.look().version
            offered = desk.offer()
            offered.not_journaled()
            await desk.persistence.flush()
            await anyio.sleep(0.01)
            second = desk.look().version
            assert second != before
            late = desk.offer(run_id="late")
            await desk.persistence.flush()
            assert desk.look().version == second
            late.not_journaled()
            await anyio.sleep(0.01)
            third = desk.look().version
            assert third != second
            awaited = desk.offer("x" * 20_000, "long")
            assert awaited.for_journal() is None
            await awaited.wait()
            fourth = desk.look().version
            assert fourth != third
            awaited.not_journaled()
            await anyio.sleep(0.01)
            assert desk.look().version == fourth

    play(scene)


def test_what_the_dead_left_is_adopted(play: Playing) -> None:
    """By one who finds it, once, when it was left for long enough; what somebody has in hand is not offered again."""

    async def scene() -> None:
        async with replica() as living:
            living.store.down = True
            row = living.put(living.offer(run_id="hers"))
            async with replica(living) as dead:
                left = dead.offer(run_id="his").for_journal()
                assert left
                living.journal.put(left)
            await anyio.sleep(10)
            assert living.persistence.unwritten == 1
            await anyio.sleep(_ADOPTED_S)
            assert living.persistence.unwritten == 2
            living.store.down = False
            await living.persistence.flush()
            assert sorted(living.stored()) == ["h_hers", "h_his"]
            assert {each["_id"] for each in living.store.messages} >= {_row_id(row)}
            await anyio.sleep(1)
            assert living.journaled() == 0

    play(scene)


def test_what_is_in_the_journal_is_written_together(play: Playing) -> None:
    """In a moment, or when they are many of one owner."""

    async def scene() -> None:
        async with replica() as desk:
            for number in range(3):
                desk.put(desk.later(run_id=f"s{number}"))
                await anyio.sleep(0.001)
            await anyio.sleep(JOURNALED_PAUSE_S - 0.004)
            assert (len(desk.stored()), desk.journaled()) == (0, 3)
            await anyio.sleep(0.002)
            assert len(desk.stored()) == 3
            await anyio.sleep(1)
            assert (len(desk.stored()), desk.journaled()) == (3, 0)
            for number in range(3):
                desk.put(desk.later(run_id=f"r{number}"))
                await anyio.sleep(0.001)
                assert (len(desk.stored()), desk.journaled()) == (3, number + 1)
            # So many that they are written as soon as any would be.
            desk.put(desk.later(run_id="r3"))
            await anyio.sleep(0.001)
            assert len(desk.stored()) == 7

    play(scene)


@pytest.mark.parametrize("hurry", ["flushed", "not journaled", "result", "awaited", "read"])
def test_what_is_not_in_the_journal_waits_for_nothing(play: Playing, hurry: str) -> None:
    """And takes along what is there; nor does whoever waits."""

    async def scene() -> None:
        async with replica() as desk:
            desk.put(desk.later(run_id="first"))
            await anyio.sleep(0.02)
            desk.put(desk.later(run_id="second"))
            await anyio.sleep(0.02)
            assert desk.stored() == []
            began_at = anyio.current_time()
            third = desk.later(run_id="third")
            match hurry:
                case "flushed":
                    desk.put(third)
                    await desk.persistence.flush()
                case "not journaled":
                    third.not_journaled()
                    await anyio.sleep(0.001)
                case "result":
                    desk.put(third)
                    result = Message(id="a", run_id="r", owner_key="bob", role=Role.AI, content={"content": "hello"})
                    settled = anyio.Event()
                    assert desk.persistence.offer(Topics.LLM_RESULTS, result, 10, settled.set)
                    await settled.wait()
                case "awaited":
                    assert third.offer()
                    await third.wait()
                case _:
                    desk.put(third)
                    assert await desk.persistence.write_journal(desk.look().rows or ())
            assert desk.stored()[:3] == ["h_first", "h_second", "h_third"]
            # To flush is also to clear the journal.
            assert anyio.current_time() - began_at <= (STAYS_S if hurry == "flushed" else 0.001) + 1e-9

    play(scene)


def test_what_there_is_no_room_for_is_adopted(play: Playing) -> None:
    """It is in the journal, and written when there is room again."""

    async def scene() -> None:
        async with replica() as desk:
            desk.store.down = True
            huge = Message(id="a", run_id="r", owner_key="bob", role=Role.AI, content={"content": "hello"})
            assert desk.persistence.offer(Topics.LLM_RESULTS, huge, 64 << 20)
            desk.put(desk.later())
            assert desk.persistence.unwritten == 1
            assert not await desk.persistence.write_journal(desk.look().rows or ())
            desk.store.down = False
            await anyio.sleep(_ADOPTED_S)
            assert (sorted(desk.stored()), desk.journaled()) == (["a", "h_run"], 0)

    play(scene)


def test_who_looks_into_the_store_alone_waits_for_nothing_else(play: Playing) -> None:
    """What the journal holds is written now, although something was written a moment ago; also what is in hand."""

    async def scene() -> None:
        async with replica() as desk, replica(desk) as other:
            for number in range(3):
                row = desk.offer(run_id=f"r{number}").for_journal()
                assert row
                desk.journal.put(row)
                began_at = anyio.current_time()
                for each in (other, other, desk):
                    assert await each.persistence.write_journal(desk.look().rows or ())
                assert anyio.current_time() == began_at
                assert len(desk.stored()) == number + 1
            await other.persistence.flush()
            assert desk.journaled() == 0

    play(scene)


def _row_id(row: JournalRow) -> str:
    return str(row.content).split('"_id":"')[1][:24]


def test_redis_is_away(play: Playing) -> None:
    """What cannot be cleared is adopted later; what cannot be moved is let go here."""

    async def scene() -> None:
        async with replica() as desk:
            desk.put(desk.offer())
            desk.journal.away = True
            await desk.persistence.flush()
            await anyio.sleep(1)
            assert desk.journaled() == 1
            desk.tails.keep("ada", desk.look().version, desk.store.messages, 20, 500)
            answer = Message(id="a", run_id="run", owner_key="ada", role=Role.AI, content={"content": "hello"})
            settled = anyio.Event()
            assert desk.persistence.offer(Topics.LLM_RESULTS, answer, 10, settled.set)
            await settled.wait()
            assert desk.tails.find("ada") is None
            desk.journal.away = False
            await anyio.sleep(_ADOPTED_S)
            assert (sorted(desk.stored()), desk.journaled()) == (["a", "h_run"], 0)

    play(scene)


def test_a_run_that_asks_again(play: Playing) -> None:
    """It is shown what was there when it began, whether its input is stored, journaled, or among what is kept."""

    async def scene() -> None:
        async with replica() as desk:
            desk.put(desk.offer(run_id="a"))
            desk.put(desk.offer(run_id="b"))
            desk.put(desk.offer(run_id="c"))
            journaled = desk.look()
            await desk.persistence.flush()
            await anyio.sleep(1)
            assert [row["id"] for row in (await desk.past(desk.look())).rows] == ["h_c", "h_b", "h_a"]
            kept = desk.tails.find("ada")
            assert kept
            for standing in (desk.look(), desk.look(kept.version), journaled):
                assert [row["id"] for row in (await desk.past(standing, "b")).rows] == ["h_b", "h_a"]
            desk.journal.away = True
            with pytest.raises(StoreUnavailableError):
                await desk.past(desk.look(kept.version), "b")

    play(scene)


class CountingStore(FakeStore):
    """A store that counts how often the newest rows are read."""

    reads = 0

    async def newest_messages(
        self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Rows, counted."""
        self.reads += 1
        return await super().newest_messages(owner_key, limit=limit, skip=skip, excerpt_chars=excerpt_chars)


@pytest.mark.parametrize(
    ("claim_s", "quiet_us", "reads", "kept"),
    [
        # Begun after the last move, and back in time.
        (0.01, 20_000, 1, True),
        # What has moved meanwhile may be missing: shown, and not kept.
        (0.01, 10_100, 1, False),
        (0.01, 0, 1, False),
        # So long that what was journaled when it began may have been taken out.
        (0.024, 60_000_000, 2, True),
        (1.0, 60_000_000, 2, True),
    ],
)
def test_reading_ahead(play: Playing, claim_s: float, quiet_us: int, reads: int, *, kept: bool) -> None:
    """What was read while the request was being claimed is used and kept only as far as it is known to be good."""

    async def scene() -> None:
        store = CountingStore()
        async with replica(store=store) as desk:
            past = desk.asked()
            assert (past.version, past.is_worth_reading_ahead) == ("", True)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(past.read_ahead)
                await anyio.sleep(claim_s)
                past.claimed()
                await past.get(Standing("7", quiet_us))
            assert store.reads == reads
            again = desk.asked()
            assert (again.version, again.is_worth_reading_ahead) == (("7", False) if kept else ("", True))
            await again.get(Standing("7"))
            assert store.reads == reads + (not kept)
            await again.get(Standing("8"))
            assert store.reads == reads + (not kept) + 1

    play(scene)


def test_a_read_ahead_that_fails(play: Playing) -> None:
    """It fails where the past is asked for."""

    async def scene() -> None:
        async with replica() as desk:
            desk.store.down = True
            past = desk.asked()
            await past.read_ahead()
            past.claimed()
            desk.store.down = False
            with pytest.raises(StoreUnavailableError):
                await past.get(Standing("7"))

    play(scene)
