"""What was erased is not stored again: by time, by session, and by the run that is gone (contract §13)."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.adapters.in_memory import MemoryOutbox
from nexus.core.erasure import Tombstone, hashed
from nexus.core.errors import BusUnavailableError, ErasedError, ErasedReason, StoreUnavailableError
from nexus.core.metrics import Event
from nexus.core.models import DEFAULT_SESSION, Message, Role
from nexus.core.ports import OutboxRow, Row, RunOrigin
from nexus.services.history.recorder import Recorder, RunOrigins
from nexus.services.history.rows import human_row, llm_row
from nexus.services.history.tombstones import Made, Said, Tombstones, said_in
from nexus.services.persistence import OutboxDrainer, PersistenceService, write_outbox_row
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.rows import START
from tests.nexus.support.waiting import PATIENCE_S, until

BEFORE, AFTER = START - timedelta(seconds=1), START + timedelta(seconds=1)
LATER = START + timedelta(days=30)


def a_tombstone(owner: str = "o", session: str = "", until: datetime = START, at: datetime | None = None) -> Tombstone:
    """That an owner, or a session, was erased."""
    return Tombstone(hashed(owner), hashed(session) if session else "", until, at or until)


async def erased(*tombstones: Tombstone, outbox: MemoryOutbox | None = None) -> tuple[FakeStore, Tombstones]:
    """A store with these tombstones."""
    store = FakeStore()
    for each in tombstones:
        await store.erasure.put_tombstone(each)
    return store, Tombstones(store, outbox)


def an_input(run: str = "r", at: datetime = AFTER, session: str = "s", owner: str = "o") -> Row:
    """The row of a run's input."""
    message = Message(id=f"input of {run}", run_id=run, owner_key=owner, role=Role.HUMAN, content="x", timestamp=at)
    return human_row(message, RunOrigin(session))


def a_result(run: str = "r", at: datetime = AFTER, session: str = "s", owner: str = "o") -> Row:
    """The row of a model's result."""
    message = Message(id=f"result of {run}", run_id=run, owner_key=owner, role=Role.AI, content="y", timestamp=at)
    row = llm_row(message)
    assert row
    return {**row, "session_id": session}


async def refusals(tombstones: Tombstones, *rows: Row) -> list[ErasedError | None]:
    """Why these rows are not to be stored."""
    return await tombstones.refusals([*map(said_in, rows)])


class TestTimes:
    """What was said up to `until` was erased, to the moment."""

    @pytest.mark.parametrize(
        ("said_at", "session", "refused"),
        [(BEFORE, "s", True), (START, "s", True), (AFTER, "s", False), (BEFORE, "other", True)],
    )
    async def test_of_an_owner(self, said_at: datetime, session: str, *, refused: bool) -> None:
        """In every session."""
        _, tombstones = await erased(a_tombstone())
        error, other = await tombstones.refusals([Said(owner, session, said_at) for owner in ("o", "p")])
        assert (error is not None) is refused
        assert other is None

    async def test_of_a_session(self) -> None:
        """Others go on."""
        _, tombstones = await erased(a_tombstone(session="s"))
        refused, other = await tombstones.refusals([Said("o", session, BEFORE) for session in ("s", "t")])
        assert refused
        assert other is None

    async def test_several(self) -> None:
        """Any of them counts, whichever was first."""
        _, tombstones = await erased(a_tombstone(until=BEFORE), a_tombstone(session="s"), a_tombstone(until=BEFORE))
        said = [Said("o", "s", START), Said("o", "t", START), Said("o", "t", BEFORE)]
        assert [bool(error) for error in await tombstones.refusals(said)] == [True, False, True]
        with pytest.raises(ErasedError):
            await tombstones.raise_if_erased(said)
        await tombstones.raise_if_erased(said[1:2])

    async def test_what_is_said_of_it(self) -> None:
        """Whether it was the owner or the session, when, and up to when where that differs; no name."""
        at = datetime.fromisoformat("2026-01-02T03:04:05.678Z")
        _, tombstones = await erased(
            a_tombstone("Ada", until=at), a_tombstone("Eve", "home", until=at - timedelta(days=1), at=at)
        )
        said = [Said("Ada", "home", at), Said("Eve", "home", at - timedelta(days=2))]
        whole, partly = await tombstones.refusals(said)
        assert str(whole) == "the owner was erased at 2026-01-02T03:04:05Z, and this is from before"
        assert str(partly) == (
            "the session was erased at 2026-01-02T03:04:05Z, up to 2026-01-01T03:04:05Z, and this is from before"
        )


class TestRows:
    """Rows that are about to be stored."""

    async def test_without_a_tombstone(self) -> None:
        """One read for all of them, and nothing else."""
        store, tombstones = await erased(a_tombstone("somebody else"))
        store.calls.clear()
        rows = [a_result(f"r{number}", owner=f"o{number}") for number in range(100)]
        assert await refusals(tombstones, *rows) == [None] * 100
        assert store.calls == ["tombstones"]

    async def test_a_result_whose_input_is_gone(self) -> None:
        """Is refused whatever its time: its sender's clock may be ahead."""
        _, tombstones = await erased(a_tombstone())
        assert all(await refusals(tombstones, a_result(at=BEFORE), a_result(at=AFTER), a_result(at=LATER)))

    async def test_a_result_of_a_new_run(self) -> None:
        """Is stored, wherever the input is by now: in the store, in the outbox, or in the same batch."""
        outbox = MemoryOutbox()
        store, tombstones = await erased(a_tombstone(), outbox=outbox)
        await store.insert_message(an_input("stored"))
        assert outbox.put(write_outbox_row({**an_input("waiting"), "_id": "0" * 24}))
        found = await refusals(
            tombstones, a_result("stored"), a_result("waiting"), an_input("new"), a_result("new"), a_result("gone")
        )
        assert [bool(error) for error in found] == [False, False, False, False, True]

    async def test_a_new_run_with_an_old_result(self) -> None:
        """The result's own time counts as well."""
        store, tombstones = await erased(a_tombstone())
        await store.insert_message(an_input())
        assert all(await refusals(tombstones, a_result(at=BEFORE)))

    async def test_an_erased_input_begins_no_run(self) -> None:
        """What comes with it in a batch is refused, too."""
        _, tombstones = await erased(a_tombstone())
        assert all(await refusals(tombstones, an_input(at=BEFORE), a_result()))

    async def test_of_a_session(self) -> None:
        """A result of a run that nobody knows is taken to be of the default session, and may be of the erased one."""
        _, tombstones = await erased(a_tombstone(session="s"))
        rows = [a_result(session=session) for session in ("s", DEFAULT_SESSION, "t")]
        found = await refusals(tombstones, *rows)
        assert [bool(error) for error in found] == [True, True, False]

    async def test_of_several_owners(self) -> None:
        """Each by its own tombstones."""
        _, tombstones = await erased(a_tombstone("a"), a_tombstone("b", session="s"))
        rows = [an_input(at=BEFORE, owner=owner, session=session) for owner in "abc" for session in "st"]
        assert [bool(error) for error in await refusals(tombstones, *rows)] == [True, True, True, False, False, False]

    async def test_the_outbox_is_away(self) -> None:
        """It is not known yet, and nothing is lost."""

        class Away(MemoryOutbox):
            async def of_owner(self, owner_key: str) -> list[OutboxRow]:
                raise BusUnavailableError(owner_key)

        _, tombstones = await erased(a_tombstone(), outbox=Away())
        with pytest.raises(StoreUnavailableError):
            await refusals(tombstones, a_result())


class TestWork:
    """Work that is no message."""

    async def test_begun_before_an_erasure_was_over(self) -> None:
        """Up to ten seconds after it; of a session only where that, or all, was erased."""
        _, tombstones = await erased(a_tombstone(session="s", until=BEFORE - timedelta(days=9), at=START))
        for begun_at in (BEFORE, AFTER, START + timedelta(seconds=10)):
            for session in ("s", None):
                with pytest.raises(ErasedError):
                    await tombstones.raise_if_erased([Made("o", begun_at, session)])
            await tombstones.raise_if_erased([Made("o", begun_at, "t"), Made("p", begun_at)])
        await tombstones.raise_if_erased([Made("o", START + timedelta(seconds=11))])


async def test_a_recorder_refuses() -> None:
    """With the word `erased`, one line in the log, and nothing that is told of or stands in the row's place."""
    store, tombstones = await erased(a_tombstone())
    metrics, settled, told = RecordingMetrics(), list[Any](), list[Row]()

    async def recorded(row: Row) -> None:
        told.append(row)

    recorder = Recorder(store, tombstones, RunOrigins(store), metrics, recorded)
    with capture_logs() as logs:
        async with recorder.running():
            assert recorder.offer(a_result(at=LATER), 1, settled.append)
            with anyio.fail_after(PATIENCE_S):
                await recorder.flush()
    assert store.messages == told == []
    assert [type(reason) for reason in settled] == [ErasedReason]
    assert [(line["event"], line["run_id"]) for line in logs] == [("erased_refused", "r")]
    assert metrics.counted == {Event.ERASED_REFUSED: 1}


async def test_a_recorder_waits_for_the_tombstones() -> None:
    """While the store is away nothing is refused, and nothing is stored unasked."""
    store, tombstones = await erased(a_tombstone())
    await store.insert_message(an_input())
    store.failing = "tombstones"
    settled = list[Any]()
    async with PersistenceService(store, tombstones).running() as service:
        assert service.offer(a_result(), 1, settled.append)
        with capture_logs() as logs:
            await until(partial(_any, logs))
        assert settled == []
        store.failing = ""
        with anyio.fail_after(PATIENCE_S):
            await service.flush()
    assert settled == [None]
    assert logs[0]["event"] == "record_delayed"


async def test_an_outbox_is_not_drained_into_what_was_erased() -> None:
    """Its rows leave it as dead letters, and the others are written."""
    store, tombstones = await erased(a_tombstone())
    outbox, refused, told = MemoryOutbox(), list[tuple[str, str]](), list[str]()

    async def recorded(row: Row) -> None:
        told.append(row["run_id"])

    async def letter(row: Row, reason: str) -> None:
        refused.append((row["run_id"], type(reason).__name__))

    for run, at in (("old", BEFORE), ("new", AFTER)):
        assert outbox.put(write_outbox_row({**an_input(run, at), "_id": "0" * 24}))
    drainer = OutboxDrainer(outbox, store, tombstones, RecordingMetrics(), recorded, letter)
    assert await drainer.drain() == 2
    assert [row["run_id"] for row in store.messages] == told == ["new"]
    assert refused == [("old", "ErasedReason")]
    assert await outbox.oldest(10) == []


async def _any(logs: list[Any]) -> bool:
    return bool(logs)
