"""Turns before which others begin: closed where nothing but an input is known of them (CONTRACT §6)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest
from anyio import lowlevel
from structlog.testing import capture_logs

from nexus.core.errors import StoreRejectedError
from nexus.core.metrics import Event
from nexus.core.models import utc_now
from nexus.core.ports import Row
from nexus.core.tasks import Awaited
from nexus.core.turns import CLOSE, SUMMARISE
from nexus.services.turns.documents import begun
from nexus.services.turns.overtaking import Overtaking
from nexus.services.turns.work import TurnWork
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.unit.services.turns_at_work import PATIENCE_S, a_start, answer, human, remembering

RECORDED = {
    "nothing": [],
    "an input": [human("an input")],
    "an answer": [answer("an answer")],
    "both": [human("both"), answer("both")],
    "two inputs": [human("two inputs"), {**human("two inputs"), "id": "second"}],
    "another's": [human("another's"), answer("another's", owner_key="p")],
}
ALONE = {("o", run_id) for run_id in ("nothing", "an input", "another's")}


class TellingStore(FakeStore):
    """A store that tells of these roles whatever it is asked for, or refuses, as MongoDB may where rows are odd."""

    def __init__(self, *rows: Row) -> None:
        super().__init__()
        self.rows = rows

    async def roles_of_runs(self, runs: Any, *, limit: int) -> list[Row]:  # noqa: ARG002  # whatever it is asked for
        """These."""
        if not self.rows:
            raise StoreRejectedError("no")
        return [*self.rows]


@asynccontextmanager
async def at_work(store: FakeStore, metrics: RecordingMetrics | None = None) -> AsyncIterator[Overtaking]:
    """What is tested, for nobody who waits; on leaving what was handed over is done."""
    work = TurnWork(store.turns, store)
    one = Overtaking(store.turns, store, work, metrics or RecordingMetrics(), Awaited())
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.run)
            # What has not begun cannot be ended in order.
            await lowlevel.checkpoint()
            yield one
            await one.pending.none()
            tasks.cancel_scope.cancel()


async def kept(store: FakeStore, *changes: Row) -> list[Row]:
    """Turns of a session each, as `TurnStore.latest_turns` tells of them: as they began, but for these changes."""
    sessions = [("o", f"s{number}") for number in range(len(changes))]
    for (_, session), different in zip(sessions, changes, strict=True):
        start = a_start(f"run_{session}", session=session)
        store.plant("turns", [{**begun(start, None, "goal", utc_now()), **different}])
    return await store.turns.latest_turns(sessions)


async def test_runs_of_which_an_input_alone_is_recorded() -> None:
    """Of many at once each is told by its own rows, those of its owner; an input that is on its way counts as there."""
    store = FakeStore()
    for row in (row for rows in RECORDED.values() for row in rows):
        await store.insert_message(row)
    async with at_work(store) as one:
        assert await one.of_input_alone([("o", run_id) for run_id in RECORDED]) == ALONE
        assert await one.of_input_alone([]) == set()


async def test_a_run_with_many_rows() -> None:
    """Those of the others may be among what was not told: none of them is taken for one with an input alone."""
    store = FakeStore()
    for number in range(4):
        await store.insert_message({**answer("long"), "id": f"answer_{number}"})
    await store.insert_message(human("short"))
    async with at_work(store) as one:
        assert await one.of_input_alone([("o", "long"), ("o", "short")]) == set()
        assert await one.of_input_alone([("o", "short")]) == {("o", "short")}


async def test_more_runs_than_are_looked_for_at_once() -> None:
    """Nothing is asked of a store that was away for so long."""
    store = FakeStore()
    runs = [("o", f"run_{number}") for number in range(1_001)]
    async with at_work(store) as one:
        assert await one.of_input_alone(runs) == set()
        assert not store.calls
        assert await one.of_input_alone(runs[1:]) == {*runs[1:]}


@pytest.mark.parametrize(
    "bad", [{"run_id": ["a", "x"]}, {"run_id": "x"}, {}, {"owner_key": None}, {"owner_key": ["o"], "run_id": "a"}]
)
async def test_malformed_rows(bad: Row) -> None:
    """They spoil nothing but what would be saved."""
    store = TellingStore({"owner_key": "o", **bad})
    async with at_work(store) as one:
        assert await one.of_input_alone([("o", "a"), ("o", "b")]) == set()


async def test_some_that_are_as_they_began_and_some_that_are_not() -> None:
    """Those are closed, the others count as completed until they are looked at, and what is over stays as it is."""
    store, metrics = FakeStore(), RecordingMetrics()
    turns = await kept(store, {}, {"status": "acting"}, {}, {"status": "failed", "work": None})
    await store.insert_message(answer("run_s2", session_id="s2"))
    async with at_work(store, metrics) as one:
        for turn in turns:
            one.complete(turn)
    found = {row["session_id"]: row for row in store.turns.rows}
    assert [(found[name]["status"], found[name]["work"], found[name]["rows"]) for name in sorted(found)] == [
        ("completed", SUMMARISE, 1),
        ("completed", CLOSE, 0),
        ("completed", CLOSE, 0),
        ("failed", None, 0),
    ]
    soon = utc_now() + timedelta(seconds=TurnWork(store.turns, store).settings.settled_s)
    assert max(found["s1"]["due_at"], found["s2"]["due_at"]) <= soon
    assert found["s1"]["overtaken"]
    assert found["s2"]["overtaken"]
    assert metrics.counted == {Event.TURN_CLOSED_UNHEARD: 1}


async def test_a_store_that_refuses() -> None:
    """The turns are looked at, each by itself."""
    store = TellingStore()
    turns = await kept(store, {}, {})
    async with at_work(store) as one:
        for turn in turns:
            one.complete(turn)
    assert [(row["status"], row["work"]) for row in store.turns.rows] == [("completed", CLOSE)] * 2


async def test_a_store_that_is_away() -> None:
    """It is no more than a delay, and the next turns are completed when it is back."""
    store = FakeStore()
    first, second = await kept(store, {}, {})
    async with at_work(store) as one:
        store.down = True
        one.complete(first)
        await one.pending.none()
        store.down = False
        one.complete(second)
    assert [row["work"] for row in store.turns.rows] == [CLOSE, SUMMARISE]


async def test_those_that_begin_together() -> None:
    """They are closed as they are kept, but for the last; each counts."""
    store, metrics = FakeStore(), RecordingMetrics()
    async with remembering(store, metrics=metrics) as memory:
        for run_id in "abc":
            memory.turns.begin_turn(a_start(run_id))
        await memory.turns.drained()
        assert [row["work"] for row in await memory.documents()] == [SUMMARISE, SUMMARISE, CLOSE]
        assert metrics.counted[Event.TURN_CLOSED_UNHEARD] == 2
        assert metrics.counted[Event.TURN_CLOSED] == 0


@pytest.mark.parametrize(
    "bad", [{"status": None}, {"status": ["pending"]}, {"run_id": None}, {"run_id": 7}, {"run_id": ["a"]}]
)
async def test_a_malformed_document(bad: Row) -> None:
    """It does not end the service, and what else is to be completed is; who closes turns leaves it alone."""
    store = FakeStore()
    async with remembering(store, settled_s=0, lease_s=0.05) as memory:
        await memory.begin("a")
        await memory.begin("b", session="other")
        document = store.turns.rows[0]
        document |= bad
        for name in [name for name, value in bad.items() if value is None]:
            del document[name]
        await memory.turns.start_turn(a_start("c"))
        await memory.turns.start_turn(a_start("d", session="other"))
        await memory.until(lambda turn: turn["work"] == SUMMARISE, session="other")
        assert [turn["turn_number"] for turn in await memory.documents()] == [1, 2]
        await memory.begin("e", session="third")
        await memory.record(answer("e", session_id="third"))
        await memory.until(lambda turn: turn["work"] == SUMMARISE, session="third")


@pytest.mark.parametrize("number", ["7", None, True, [1]])
async def test_a_turn_without_a_number(number: Any) -> None:
    """Nothing can follow it, which is said; the turns of other sessions are begun with it as ever."""
    store, metrics = FakeStore(), RecordingMetrics()
    async with remembering(store, metrics=metrics) as memory:
        await memory.begin("a")
        store.turns.rows[0]["turn_number"] = number
        with capture_logs() as logs:
            memory.turns.begin_turn(a_start("b"))
            memory.turns.begin_turn(a_start("c", session="other"))
            await memory.turns.drained()
        assert [turn["run_id"] for turn in await memory.documents("other")] == ["c"]
        assert [line["run_id"] for line in logs if line["event"] == "turn_refused"] == ["b"]
        assert metrics.counted[Event.TURN_LOST] == 1
        await memory.begin("d", session="other")


async def test_a_goal_is_not_passed_on_to_a_malformed_turn() -> None:
    """But to the others."""
    store = FakeStore()
    async with remembering(store) as memory:
        for run_id in "abc":
            await memory.begin(run_id)
        del store.turns.rows[1]["run_id"]
        await memory.turns.start_turn(a_start("a", task_context="another goal"))
        goals = {turn.get("run_id"): turn["task_context"] for turn in store.turns.rows}
        assert (goals["a"], goals["c"]) == ("another goal", "another goal")
