"""Records as they are written behind the answers, and what becomes of those that cannot be (contract §13)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
import pytest

from nexus.core.metrics import Event, Reading
from nexus.core.records import BuildRecord
from nexus.services.records.reader import RecordReader
from nexus.services.records.service import BuildRecords
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.tombstones import NO_TOMBSTONES

NOON: Final = datetime(2026, 1, 2, 12, tzinfo=UTC)
ANSWER: Final = "".join(f'{{"content":"Größe {number} 😀\\n"}},' for number in range(300)).encode()
LONG_S: Final = 3_600


class Desk:
    """Records at work on a store, of answers that are offered."""

    def __init__(self, gathered_s: float) -> None:
        self.store = FakeStore()
        self.metrics = RecordingMetrics()
        self.records = BuildRecords(
            self.store.records, NO_TOMBSTONES, timedelta(days=7), self.metrics, gathered_s=gathered_s
        )
        self.reader = RecordReader(self.store)

    def offer(self, number: int, answer: bytes = ANSWER, owner: str = "ada") -> None:
        """Have the answer to a request recorded."""
        record = BuildRecord(
            owner_key=owner,
            request_id=f"q{number}",
            run_id="r",
            session_id="s",
            outcome="success",
            reason="",
            layout="dialogue",
            form="openai",
            answered_at=NOON + timedelta(seconds=number),
            size=len(answer),
            settings="v",
            version="1",
            mode="full",
        )
        self.records.offer(record, answer, {}, begun_at=record.answered_at)

    @property
    def counts(self) -> tuple[int, int]:
        """How many were kept, and how many lost."""
        return self.metrics.counted[Event.RECORD_KEPT], self.metrics.counted[Event.RECORD_LOST]

    async def replayed(self, number: int, owner: str = "ada") -> bytes | None:
        """The answer to a request, proven."""
        record = await self.reader.find(owner, f"q{number}")
        assert record
        replayed = await self.reader.replay(record)
        assert not replayed.fault
        return replayed.answer


@asynccontextmanager
async def at_desk(gathered_s: float = LONG_S) -> AsyncIterator[Desk]:
    """A desk whose records are running."""
    desk = Desk(gathered_s)
    async with desk.records.running():
        yield desk


async def test_those_that_come_together_are_written_together() -> None:
    """With one call of each kind, and at once where the service ends; each is replayed."""
    async with at_desk() as desk:
        given = [ANSWER, ANSWER[:-1] + b'"', b"", b"{}", b"\xff" * 3_000_000, ANSWER]
        for number, answer in enumerate(given):
            desk.offer(number, answer, "bob" if number == 5 else "ada")
        await anyio.wait_all_tasks_blocked()
        assert desk.metrics.readings[Reading.UNWRITTEN_RECORDS]() == len(given)
        await desk.records.drain()
        assert desk.store.calls == ["missing_pieces", "put_pieces", "put_records"]
        assert (desk.counts, desk.records.pending.count) == ((len(given), 0), 0)
        for number, answer in enumerate(given):
            assert await desk.replayed(number, "bob" if number == 5 else "ada") == answer
        desk.offer(9)
        assert desk.counts == (len(given), 1)


async def test_pieces_that_are_there_are_not_written_again() -> None:
    """An answer like one before adds what is new in it; the same one nothing."""
    async with at_desk(0) as desk:
        for number, answer in enumerate((ANSWER, ANSWER + b"more", ANSWER)):
            before = len(desk.store.records.data)
            desk.offer(number, answer)
            await desk.records.pending.none()
            added = len(desk.store.records.data) - before
            assert added > 5 if number == 0 else added == (number == 1)


async def test_a_flood_is_bounded() -> None:
    """By number and by bytes; what finds no room is counted and gone, and what was accepted is written."""
    async with at_desk() as desk:
        for number in range(300):
            desk.offer(number, b"x")
        accepted = desk.records.pending.count
        assert (accepted, desk.counts) == (256, (0, 44))
        await desk.records.drain()
        assert desk.counts == (256, 44)
    async with at_desk() as desk:
        for number in range(5):
            desk.offer(number, b"x" * (10 << 20))
        assert (desk.records.pending.count, desk.counts) == (3, (0, 2))


@pytest.mark.parametrize("operation", ["missing_pieces", "put_pieces", "put_records"])
async def test_a_store_that_is_away_costs_records_alone(operation: str) -> None:
    """They are counted as lost, and later ones are written."""
    async with at_desk(0) as desk:
        desk.store.failing = operation
        desk.offer(1)
        await desk.records.pending.none()
        assert desk.counts == (0, 1)
        desk.store.failing = ""
        desk.offer(2)
        await desk.records.pending.none()
        assert desk.counts == (1, 1)
        assert await desk.replayed(2) == ANSWER


async def test_one_that_is_refused_costs_no_other() -> None:
    """The others of the batch are written without it."""
    async with at_desk() as desk:
        desk.store.records.refused = "q1"
        for number in range(4):
            desk.offer(number)
        await desk.records.drain()
        assert desk.counts == (3, 1)
        assert [each.request_id for each in await desk.reader.newest("ada", limit=9)] == ["q3", "q2", "q0"]


async def test_what_is_missing_or_spoilt_is_said() -> None:
    """Nothing is returned as if it had been sent."""
    async with at_desk(0) as desk:
        desk.offer(1)
        await desk.records.pending.none()
        record = await desk.reader.find("ada", "q1")
        assert record
        pieces = desk.store.records.data
        gone = pieces.pop(record.pieces[2])
        replayed = await desk.reader.replay(record)
        assert (replayed.answer, replayed.fault) == (None, f"1 of {len(record.pieces)} pieces are missing")
        pieces[gone.id] = type(gone)(gone.id, "ada", gone.data + b" ")
        replayed = await desk.reader.replay(record)
        assert (replayed.answer, replayed.fault) == (None, f"1 of {len(record.pieces)} pieces are spoilt")
