"""Results are recorded once, together, and sooner or later; readers wait a moment for them (contract §2)."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event
from nexus.core.models import Message, Role
from nexus.core.ports import Row, RunOrigin
from nexus.services.history.recorder import PendingWrites
from nexus.services.history.rows import llm_row, tool_row
from nexus.services.persistence import PersistenceService
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.rows import START
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.virtual_time import VirtualLoop
from tests.nexus.support.waiting import PATIENCE_S


def result(message_id: str, run_id: str = "r", content: Any = "x") -> Message:
    """A model's result of the owner `o`."""
    return Message(id=message_id, run_id=run_id, owner_key="o", role=Role.AI, content=content, timestamp=START)


def offer(service: PersistenceService, message: Message, size: int = 1, settled: Any = lambda _: None) -> bool:
    """Offer a model's result."""
    return service.offer(llm_row(message, size), size, settled)


@asynccontextmanager
async def flushed(store: FakeStore, **parts: Any) -> AsyncIterator[PersistenceService]:
    """A service that has written everything when the context ends."""
    async with PersistenceService(store, NO_TOMBSTONES, **parts).running() as service:
        yield service
        with anyio.fail_after(PATIENCE_S):
            await service.flush()


class Batches(FakeStore):
    """A store that knows how many rows came at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
        """Record rows."""
        self.batches.append(len(rows))
        return await super().insert_messages(rows)


async def test_rows_that_wait_are_written_together() -> None:
    """Up to a hundred at once, or 1 MiB."""
    store = Batches()
    async with flushed(store) as service:
        for number in range(250):
            assert offer(service, result(f"m{number}"))
    assert sorted(store.batches) == [50, 100, 100]
    store.batches.clear()
    async with flushed(store) as service:
        for number in range(4):
            assert offer(service, result(f"large{number}"), 600_000)
    assert store.batches == [2, 2]


async def test_new_results_are_told_of_once() -> None:
    """Those that were not there before, in the order of their run; each is settled."""
    told: list[str] = []
    settled: list[str] = []

    async def tell(recorded: Row) -> None:
        await anyio.lowlevel.checkpoint()
        told.append(recorded["id"])

    async with flushed(FakeStore(), recorded=tell) as service:
        for name in ("m1", "m2", "m1", "m3", "m2"):
            for run_id in ("r", "s"):
                message = result(f"{name}_{run_id}", run_id)
                assert offer(service, message, 1, lambda _, name=message.id: settled.append(name))
    for run_id in ("r", "s"):
        in_run = [row_id for row_id in told if row_id.endswith(run_id)]
        assert in_run == [f"{name}_{run_id}" for name in ("m1", "m2", "m3")]
    assert len(settled) == 10


async def test_a_result_that_was_handed_out_before_is_told_of() -> None:
    """It is recorded, but whoever did so may have ended before it told anybody."""
    store, told = FakeStore(), list[str]()

    async def tell(recorded: Row) -> None:
        told.append(recorded["id"])

    async with flushed(store) as service:
        assert offer(service, result("m1"))
    async with flushed(store, recorded=tell) as service:
        assert offer(service, result("m1"))
    assert told == []
    async with flushed(store, recorded=tell, redelivers=True) as service:
        assert offer(service, result("m1"))
    assert told == ["m1"]
    assert len(store.messages) == 1


async def test_a_result_is_settled_when_it_was_told_of() -> None:
    """A bus that keeps messages hands it out again where the process ends before; others are recorded meanwhile."""
    store, settled, noted = FakeStore(), list[str](), anyio.Event()

    async def tell(recorded: Row) -> None:
        if recorded["id"] == "m1":
            await noted.wait()

    async with flushed(store, recorded=tell) as service:
        for name in ("m1", "m2"):
            assert offer(service, result(name), 1, lambda _, name=name: settled.append(name))
        await anyio.wait_all_tasks_blocked()
        assert settled == ["m2"]
        assert [row["id"] for row in store.messages] == ["m1", "m2"]
        noted.set()
    assert settled == ["m2", "m1"]


async def test_a_store_that_is_away() -> None:
    """What it does not take now is tried again until it is there; its sender is told then."""
    store, settled = FakeStore(), anyio.Event()
    store.down = True
    async with flushed(store) as service:
        offer(service, result("m1"), 1, lambda _: settled.set())
        await anyio.wait_all_tasks_blocked()
        assert (service.unwritten, settled.is_set()) == (1, False)
        store.down = False
    assert ([found["id"] for found in store.messages], settled.is_set()) == (["m1"], True)


class Vanishing(FakeStore):
    """A store that had each row a moment ago, and has it no more."""

    def __init__(self) -> None:
        super().__init__()
        self.met = set[str]()

    async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
        """Say of each row that it is there, the first time."""
        if fresh := {row["id"] for row in rows} - self.met:
            self.met |= fresh
            return [False] * len(rows)
        return await super().insert_messages(rows)


async def test_a_duplicate_that_is_gone() -> None:
    """A row that was there by one word of the store, and is not there by the next, is written again."""
    store, settled = Vanishing(), list[str | None]()
    async with flushed(store) as service:
        assert offer(service, result("m1"), settled=settled.append)
    assert ([row["id"] for row in store.messages], settled) == (["m1"], [None])


class Strict(FakeStore):
    """A store that refuses rows by a test of theirs."""

    def __init__(self, refuses: Callable[[Row], bool]) -> None:
        super().__init__()
        self.refuses = refuses

    async def insert_message(self, row: Row) -> bool:
        """Record a row, unless it is refused."""
        if self.refuses(row):
            raise StoreRejectedError("WriteError 121")
        return await super().insert_message(row)


class Batchwise(Strict):
    """A store that refuses all rows of a batch for one."""

    async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
        """Record rows, or none."""
        if any(map(self.refuses, rows)):
            raise StoreRejectedError("WriteError 121")
        return await super().insert_messages(rows)


def call_result(result: Any, **metadata: Any) -> Message:
    """A tool's result of the owner `o`."""
    content = {"result": result, "tool_name": "search", "call_id": "c1", "status": "success"}
    return Message(id="t1", run_id="r", owner_key="o", role=Role.TOOL, content=content, metadata=metadata)


@pytest.mark.parametrize("store_of", [Strict, Batchwise])
async def test_a_row_that_the_store_refuses(store_of: type[Strict]) -> None:
    """Others are written; under its id stands what the model is to know, and its sender is told why."""
    store, told, metrics = store_of(lambda row: row["content"] == "bad"), dict[str, str | None](), RecordingMetrics()
    noted: list[str] = []

    async def note(row: Row) -> None:
        noted.append(row["id"])

    async with flushed(store, metrics=metrics, recorded=note) as service:
        messages = [
            result("m1", content="bad"),
            result("m2"),
            call_result("bad", agent_id="a", sub_agent_internal=True),
        ]
        for message in messages:
            row = tool_row(message) if message.role is Role.TOOL else llm_row(message)
            service.offer(row, 1, partial(told.__setitem__, message.id))
    reason = "The database refused it: WriteError 121"
    assert told == {"m1": reason, "m2": None, "t1": reason}
    assert sorted(noted) == ["m1", "m2", "t1"]
    rows = {row["id"]: row for row in store.messages}
    said = f"(This message could not be kept. {reason}.)"
    assert {row_id: row["content"] for row_id, row in rows.items()} == {"m1": said, "m2": "x", "t1": said}
    assert rows["m1"]["metadata"] == {"source": "llm_result", "revision": -1}
    assert rows["t1"]["metadata"] == {
        "source": "tool_result",
        "tool_name": "search",
        "call_id": "c1",
        "status": "error",
        "execution_success": False,
        "revision": -1,
        "sub_agent_internal": True,
        "agent_id": "a",
    }
    assert metrics.counted == {Event.ROW_RECORDED: 1, Event.ROW_REJECTED: 2}


async def test_a_store_that_refuses_the_word_on_it_too() -> None:
    """Then the sender alone is told."""
    store, told = Strict(lambda row: row["role"] == "AI"), dict[str, str | None]()
    async with flushed(store) as service:
        offer(service, result("m1"), 1, partial(told.__setitem__, "m1"))
    assert (told, store.messages) == ({"m1": "The database refused it: WriteError 121"}, [])


async def test_a_store_that_goes_away_before_the_word_on_it() -> None:
    """It is tried again as a whole, and told once."""
    told: list[str | None] = []
    store = Strict(lambda row: row["content"] == "bad")
    is_away = True

    class GoneThen(Strict):
        async def insert_message(self, row: Row) -> bool:
            if is_away and row["content"] != "bad":
                raise StoreUnavailableError("away")
            return await super().insert_message(row)

    store = GoneThen(lambda row: row["content"] == "bad")
    async with flushed(store) as service:
        offer(service, result("m1", content="bad"), 1, told.append)
        await anyio.wait_all_tasks_blocked()
        assert (told, store.messages) == ([], [])
        is_away = False
    assert len(told) == len(store.messages) == 1


class BadRows(FakeStore):
    """A store with a fault of ours for some rows, until it is healed."""

    healed = False

    async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
        """Record rows."""
        if not self.healed and any(row["content"] == "bad" for row in rows):
            raise RuntimeError("boom")
        return await super().insert_messages(rows)


async def test_an_unexpected_fault() -> None:
    """It keeps its own row alone from being written, until it passes; the recorder counts it and goes on."""

    async def note(_row: Row) -> None:
        raise RuntimeError("boom")

    store, settled, metrics = BadRows(), anyio.Event(), RecordingMetrics()
    async with flushed(store, metrics=metrics, recorded=note) as service:
        offer(service, result("m1", content="bad"), 1, lambda _: settled.set())
        offer(service, result("m2"))
        await anyio.wait_all_tasks_blocked()
        assert ([found["id"] for found in store.messages], settled.is_set()) == (["m2"], False)
        # The batch, the row by itself, and the note of the other; on a busy machine the row once more.
        assert metrics.counted[Event.BACKGROUND_FAULT] >= 3
        store.healed = True
    assert ([found["id"] for found in store.messages], settled.is_set()) == (["m2", "m1"], True)
    assert metrics.counted[Event.ROW_LOST] == 0


def test_faults_that_stay() -> None:
    """More of their rows than there are writers hold up no other row, and none of them is lost when it passes."""

    async def written() -> list[list[str]]:
        store, bad = BadRows(), [f"m{number}" for number in range(5)]
        async with PersistenceService(store, NO_TOMBSTONES, metrics).running() as service:
            for row_id in bad:
                assert offer(service, result(row_id, content="bad"))
                await anyio.sleep(0.5)
            await anyio.sleep(10)
            assert offer(service, result("good"))
            await anyio.sleep(10)
            before = [row["id"] for row in store.messages]
            store.healed = True
            await service.flush()
        return [before, sorted(row["id"] for row in store.messages)]

    metrics = RecordingMetrics()
    # To show a traceback takes longer than all else.
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, capture_logs():
        assert runner.run(written()) == [["good"], ["good", *(f"m{number}" for number in range(5))]]
    assert (metrics.counted[Event.ROW_REJECTED], metrics.counted[Event.ROW_LOST]) == (0, 0)


def test_a_store_that_is_away_after_faults() -> None:
    """It is asked again after short pauses, as for any row: only another fault has the row wait a minute."""
    attempts: list[float] = []

    class Ailing(FakeStore):
        async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
            attempts.append(anyio.current_time())
            if len(attempts) <= 6:
                raise RuntimeError("boom")
            if len(attempts) <= 10:
                raise StoreUnavailableError("away")
            return await super().insert_messages(rows)

    async def written() -> None:
        async with PersistenceService(Ailing(), NO_TOMBSTONES).running() as service:
            assert offer(service, result("m1"))
            await service.flush()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner, capture_logs():
        runner.run(written())
    pauses = [after - before for before, after in itertools.pairwise(attempts)]
    assert [pause > 30 for pause in pauses] == [False] * 5 + [True] + [False] * 4


async def test_a_fault_after_rows_were_stored() -> None:
    """They are reported as those that were not recorded before."""

    class Faulty(FakeStore):
        faults = 1

        async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
            outcomes = await super().insert_messages(rows)
            if self.faults:
                self.faults -= 1
                raise RuntimeError("boom")
            return outcomes

    reported: list[str] = []

    async def report(row: Row) -> None:
        reported.append(row["id"])

    async with flushed(Faulty(), recorded=report) as service:
        offer(service, result("m1"))
        offer(service, result("m2"))
    assert reported == ["m1", "m2"]


async def test_waiting_payloads_are_bounded_in_bytes() -> None:
    """One owner has 32 MiB, and others have room; afterwards there is again. What is not recorded takes none."""
    store = FakeStore()
    store.down = True
    async with flushed(store) as service:
        assert [offer(service, result(f"m{n}"), 8 << 20) for n in range(6)] == [True] * 4 + [False] * 2
        assert offer(service, result("theirs").model_copy(update={"owner_key": "bob"}), 8 << 20)
        assert offer(service, result("nothing", content=None), 8 << 20)
        store.down = False
        with anyio.fail_after(PATIENCE_S):
            await service.flush()
        assert offer(service, result("later"), 8 << 20)
    assert len(store.messages) == 6


async def test_waiting_rows_are_bounded_in_number() -> None:
    """Of one owner five thousand wait, and those of others are accepted."""
    store = FakeStore()
    store.down = True
    async with PersistenceService(store, NO_TOMBSTONES).running() as service:
        taken = [offer(service, result(f"m{number}")) for number in range(5_001)]
        assert offer(service, result("theirs").model_copy(update={"owner_key": "bob"}))
    assert taken == [True] * 5_000 + [False]


class TestPendingWrites:
    """A reader waits for rows that were accepted before."""

    async def test_until_they_are_written(self) -> None:
        """Those of the owner; others are no matter, nor those of the run that asks."""
        pending = PendingWrites()
        ends = [pending.add("o", "r"), pending.add("o", "r"), pending.add("p", "r"), pending.add("o", "now")]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, lambda: None)
            for end in ends[:2]:
                tasks.start_soon(_later, end)
            assert await pending.written("o", PATIENCE_S, except_run="now")
        assert not await pending.written("o", 0)
        assert not await pending.written("p", 0)

    async def test_not_for_ever(self) -> None:
        """Nor for rows that come meanwhile."""
        pending = PendingWrites()
        end = pending.add("o", "r")
        assert not await pending.written("o", 0.001)
        end()
        end()
        assert await pending.written("o", 0)

    async def test_a_result_that_was_sent_before(self) -> None:
        """A run that is asked for at once finds it in its past and in its session."""

        class Slow(FakeStore):
            async def insert_messages(
                self, rows: Sequence[Row]
            ) -> list[bool | StoreRejectedError | StoreUnavailableError]:
                await anyio.sleep(0.01)
                return await super().insert_messages(rows)

        asked = Message(id="h", run_id="now", owner_key="o", role=Role.HUMAN)
        async with flushed(Slow()) as service:
            assert offer(service, result("m1"))
            past = await service.get_past("o", messages=20, excerpt_chars=100, asked=asked)
            assert ([found["id"] for found in past.rows], past.complete) == (["m1"], True)
            assert offer(service, result("m2"))
            session = await service.get_session("o", RunOrigin("default"), messages=20, asked=asked)
            assert ([found["id"] for found in session.rows], session.complete) == (["m2", "m1"], True)

    async def test_a_result_that_cannot_be_written(self) -> None:
        """Is not waited for long, and the past says that it is not complete."""

        class ReadOnly(FakeStore):
            async def insert_messages(
                self, rows: Sequence[Row]
            ) -> list[bool | StoreRejectedError | StoreUnavailableError]:
                return [StoreUnavailableError("read-only")] * len(rows)

        asked = Message(id="h", run_id="now", owner_key="o", role=Role.HUMAN)
        async with PersistenceService(ReadOnly(), NO_TOMBSTONES).running() as service:
            assert offer(service, result("m1"))
            assert not (await service.get_past("o", messages=20, excerpt_chars=100, asked=asked)).complete
            assert (await service.get_session("o", RunOrigin("default"), messages=20, asked=asked)).complete is False


async def _later(end: Any) -> None:
    await anyio.sleep(0.001)
    end()
