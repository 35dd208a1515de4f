"""Inputs that the store did not take in time: kept, shown and written when it is back (contract §1.5, §2)."""

from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.adapters.in_memory import MemoryOutbox
from nexus.core.errors import BusUnavailableError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, NoMetrics
from nexus.core.models import Message, Role
from nexus.core.ports import OutboxRow, Past, Row, RunOrigin
from nexus.core.working_memory import Tail
from nexus.services.history.forms import read_input
from nexus.services.persistence import OutboxDrainer, PersistenceService, read_outbox_rows, write_outbox_row
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.rows import START
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.waiting import until

NOW = Message(id="asked", run_id="now", owner_key="o", role=Role.HUMAN)


def an_input(number: int, content: Any = "x", origin: RunOrigin | None = None) -> Row:
    """The row of an input of the owner `o`."""
    known = {"id": f"h{number}", "run_id": f"r{number}", "owner_key": "o", "timestamp": START}
    message = Message(**known, role=Role.HUMAN, content=content)
    said = read_input(content)
    assert said is not None
    return PersistenceService(FakeStore(), NO_TOMBSTONES).input_row(message, origin or RunOrigin("s"))


def outbox_of(*rows: Row) -> MemoryOutbox:
    """An outbox with these rows."""
    outbox = MemoryOutbox()
    for row in rows:
        assert outbox.put(write_outbox_row(row))
    return outbox


async def ignored(*_: Any) -> None:
    """What is made of a row that was written, or refused."""


class Strict(FakeStore):
    """A store that rejects some rows, and does not answer for others."""

    async def insert_message(self, row: Row) -> bool:
        """Record a row, if it may be."""
        if row["content"] == "bad":
            raise StoreRejectedError("bad")
        if row["content"] == "away":
            raise StoreUnavailableError("away")
        return await super().insert_message(row)


def test_a_row_comes_back_as_it_was() -> None:
    """Its time and its `_id` too."""
    with_results = [{"type": "tool_result", "tool_use_id": "c", "content": "5"}, {"type": "text", "text": "go on"}]
    contents: list[Any] = ['text with "quotes" \u2028 and 人', with_results, {"role": "user", "content": with_results}]
    rows = [an_input(number, content) for number, content in enumerate(contents)]
    assert [row["content"] for row in rows] == contents
    assert read_outbox_rows(map(write_outbox_row, rows)) == rows


def test_rows_whose_ids_run_together() -> None:
    """Are two rows, whatever characters their ids hold."""
    one, other = (an_input(1) | {"run_id": run_id, "id": row_id} for run_id, row_id in (("a b", "c"), ("a", "b c")))
    assert write_outbox_row(one).id != write_outbox_row(other).id


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"timestamp": "x"}',
        write_outbox_row(an_input(1)).content.replace(b'"role"', b'"roll"'),
    ],
)
def test_a_row_that_cannot_be_read(content: bytes) -> None:
    """Spoils no other."""
    good = an_input(2)
    assert read_outbox_rows([OutboxRow("o", "x", content), write_outbox_row(good)]) == [good]


class TestDraining:
    """Rows leave the outbox when the store has them."""

    async def test_what_waits_is_written(self) -> None:
        """Once, whichever of several replicas does it, also where an earlier attempt came through after all."""
        rows = [an_input(number) for number in range(150)]
        store, outbox = FakeStore(), outbox_of(*rows)
        await store.insert_message(rows[3])
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(OutboxDrainer(outbox, store, NO_TOMBSTONES, NoMetrics(), ignored, ignored).drain)
        while await OutboxDrainer(outbox, store, NO_TOMBSTONES, NoMetrics(), ignored, ignored).drain():
            pass
        assert sorted(row["_id"] for row in store.messages) == [row["_id"] for row in rows]
        assert not outbox.is_waiting

    async def test_each_fares_by_itself(self) -> None:
        """What is refused goes, and is told; what the store did not answer for stays, and what cannot be read here."""
        store, outbox = Strict(), outbox_of(an_input(1, "bad"), an_input(2, "away"), an_input(3))
        outbox.put(OutboxRow("o", "unreadable", b"{"))
        told: list[tuple[str, str]] = []

        async def refused(row: Row, reason: str) -> None:
            told.append((row["id"], reason))

        with pytest.raises(StoreUnavailableError):
            await OutboxDrainer(outbox, store, NO_TOMBSTONES, NoMetrics(), ignored, refused).drain()
        assert told == [("h1", "The database refused it: bad")]
        said = "(This message could not be kept. The database refused it: bad.)"
        assert [(row["id"], row["content"] == said) for row in store.messages] == [("h3", False), ("h1", True)]
        assert [row.id for row in await outbox.oldest(9)] == ['["r2","h2"]', "unreadable"]

    async def test_past_rows_that_nobody_here_can_read(self) -> None:
        """However many there are; a look logs them in one line."""
        store, outbox = FakeStore(), MemoryOutbox()
        for number in range(150):
            outbox.put(OutboxRow("o", str(number), b"{"))
        outbox.put(write_outbox_row(an_input(1)))
        with capture_logs() as log:
            assert await OutboxDrainer(outbox, store, NO_TOMBSTONES, NoMetrics(), ignored, ignored).drain() == 1
        assert [row["id"] for row in store.messages] == ["h1"]
        assert [line["rows"] for line in log if line["event"] == "outbox_row_unreadable"] == [150]

    async def test_past_rows_that_fail_again_and_again(self) -> None:
        """The next look goes on behind them, and the one after that begins at the front."""
        store, outbox = Strict(), outbox_of(*(an_input(number, "away") for number in range(100)), an_input(100))
        drainer = OutboxDrainer(outbox, store, NO_TOMBSTONES, NoMetrics(), ignored, ignored)
        with pytest.raises(StoreUnavailableError):
            await drainer.drain()
        assert await drainer.drain() == 1
        assert [row["id"] for row in store.messages] == ["h100"]
        with pytest.raises(StoreUnavailableError):
            await drainer.drain()

    async def test_a_row_that_waited_for_long(self) -> None:
        """Is stored under an `_id` that says when, for compactions go by it."""
        row = an_input(1) | {"_id": "00000001" + "0" * 16}
        store = FakeStore()
        await OutboxDrainer(outbox_of(row), store, NO_TOMBSTONES, NoMetrics(), ignored, ignored).drain()
        assert [stored["_id"] > row["_id"] for stored in store.messages] == [True]

    async def test_a_second_request_of_a_run(self) -> None:
        """It inserts the row that the first one left, whose `_id` runs go by that were begun since."""
        first, second = an_input(1), an_input(1)
        store, outbox = FakeStore(), outbox_of(first)
        await PersistenceService(store, NO_TOMBSTONES, outbox=outbox).insert_input(second, outbox_waiting=True)
        assert [row["_id"] for row in store.messages] == [first["_id"]]

    async def test_a_running_service_drains(self) -> None:
        """As soon as the store is back; turn memory gets to know of it."""
        store, outbox = FakeStore(), outbox_of(an_input(1))
        recorded: list[str] = []

        async def note(row: Row) -> None:
            recorded.append(row["id"])

        store.down = True

        async def tried() -> bool:
            return "insert_message" in store.calls

        async def drained() -> bool:
            return not outbox.is_waiting

        async with PersistenceService(store, NO_TOMBSTONES, outbox=outbox, recorded=note).running():
            await until(tried)
            assert outbox.is_waiting
            store.down = False
            await until(drained)
        assert len(store.messages) == 1
        assert recorded == ["h1"]

    async def test_an_unexpected_fault(self) -> None:
        """Is counted, and draining goes on."""
        outbox, metrics = outbox_of(an_input(1)), RecordingMetrics()
        faults = [RuntimeError("boom")]

        async def note(_row: Row) -> None:
            if faults:
                raise faults.pop()

        async def drained() -> bool:
            return not outbox.is_waiting

        async with PersistenceService(FakeStore(), NO_TOMBSTONES, metrics, outbox=outbox, recorded=note).running():
            await until(drained)
        assert metrics.counted[Event.BACKGROUND_FAULT] == 1


class TestReading:
    """Builds find the owner's rows in the outbox."""

    async def past(self, outbox: MemoryOutbox, store: FakeStore | None = None, **given: Any) -> Past:
        """The past of the owner."""
        options: dict[str, Any] = {"messages": 20, "excerpt_chars": 100, "asked": NOW, "outbox_waiting": True}
        return await PersistenceService(store or FakeStore(), NO_TOMBSTONES, outbox=outbox).get_past(
            "o", **(options | given)
        )

    async def session(
        self, outbox: MemoryOutbox, store: FakeStore | None = None, origin: RunOrigin | None = None, **given: Any
    ) -> Past:
        """The session of the owner."""
        service = PersistenceService(store or FakeStore(), NO_TOMBSTONES, outbox=outbox)
        options: dict[str, Any] = {"messages": 20, "asked": NOW, "outbox_waiting": True}
        return await service.get_session("o", origin or RunOrigin("s"), **(options | given))

    async def test_newest_first(self) -> None:
        """With those that the store has, each once."""
        store, rows = FakeStore(), [an_input(number) for number in range(4)]
        for row in rows[:3]:
            await store.insert_message(row)
        outbox = outbox_of(*rows[2:])
        for read in (self.past, self.session):
            assert [row["id"] for row in (await read(outbox, store)).rows] == ["h3", "h2", "h1", "h0"]
            assert [row["id"] for row in (await read(outbox, store, outbox_waiting=False)).rows] == ["h2", "h1", "h0"]

    async def test_under_an_id_of_its_own(self) -> None:
        """A row that the store has under another id, since two runs used one, is there once."""
        store, row = FakeStore(), an_input(1)
        await store.insert_message(row | {"id": "h1@r1"})
        assert len((await self.past(outbox_of(row), store)).rows) == 1

    async def test_what_is_not_to_be_seen(self) -> None:
        """Other sessions in a session, and what is internal to a sub-agent, but for that one."""
        scout = an_input(1, origin=RunOrigin("s", "scout"))
        outbox = outbox_of(scout, an_input(2, origin=RunOrigin("t")))
        assert [row["id"] for row in (await self.past(outbox)).rows] == ["h2"]
        assert (await self.session(outbox)).rows == []
        assert (await self.session(outbox, origin=RunOrigin("s", "other"))).rows == []
        assert [row["id"] for row in (await self.session(outbox, origin=RunOrigin("s", "scout"))).rows] == ["h1"]

    async def test_what_is_under_no_compaction(self) -> None:
        """No row of the outbox is, whatever its `_id` says."""
        assert len((await self.session(outbox_of(an_input(1)), tail=Tail("ffffffff"))).rows) == 1

    async def test_a_run_that_was_asked_for_before(self) -> None:
        """Its past ends with its own input, also while that waits."""
        rows = [an_input(number) for number in range(3)]
        asked = Message(id="h1", run_id="r1", owner_key="o", role=Role.HUMAN)
        for read in (self.past, self.session):
            past = await read(outbox_of(*rows), asked=asked)
            assert [row["id"] for row in past.rows if row["run_id"] != "r1"] == ["h0"]

    async def test_before_the_store(self) -> None:
        """A row that leaves the outbox while a build reads is found in the store."""
        row = an_input(1)
        outbox = outbox_of(row)

        class Draining(FakeStore):
            async def newest_messages(self, owner_key: str, **page: Any) -> list[Row]:
                await OutboxDrainer(outbox, self, NO_TOMBSTONES, NoMetrics(), ignored, ignored).drain()
                return await super().newest_messages(owner_key, **page)

            async def session_messages(self, owner_key: str, session_id: str, **page: Any) -> list[Row]:
                await OutboxDrainer(outbox, self, NO_TOMBSTONES, NoMetrics(), ignored, ignored).drain()
                return await super().session_messages(owner_key, session_id, **page)

        for read in (self.past, self.session):
            outbox.put(write_outbox_row(row))
            assert [found["id"] for found in (await read(outbox, Draining())).rows] == ["h1"]

    async def test_an_outbox_that_does_not_answer(self) -> None:
        """The history is unavailable, rather than incomplete without a word."""

        class Away(MemoryOutbox):
            async def of_owner(self, owner_key: str) -> list[OutboxRow]:
                raise BusUnavailableError(f"{owner_key} is away")

        for read in (self.past, self.session):
            with pytest.raises(StoreUnavailableError, match="the outbox: o is away"):
                await read(Away())
