"""The background work on turns: closed when they are over, summarised by a model, by nobody twice (contract §6)."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest

from nexus.core.errors import ModelUnavailableError, StoreRejectedError
from nexus.core.metrics import CallOutcome, Event, Purpose
from nexus.core.models import utc_now
from nexus.core.ports import Row
from nexus.core.ports.memory import TurnTouch
from nexus.core.turns import CLOSE, SUMMARISE
from tests.nexus.support.fake_model import FakeModel
from tests.nexus.support.fake_turns import FakeTurns
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.waiting import until
from tests.nexus.unit.services.turns_at_work import (
    GOOD,
    Memory,
    answer,
    calls,
    human,
    remembering,
    result,
    scripted,
)


async def a_run(memory: Memory, run_id: str = "a") -> None:
    """A run with two calls, from its input to its answer."""
    await memory.store.insert_message(human(run_id))
    await memory.begin(run_id)
    for row in (calls(run_id, "1", "2"), result(run_id, "2", "dry"), result(run_id, "1"), answer(run_id)):
        await memory.record(row)


def is_over(document: Row) -> bool:
    """Whether the turn was closed."""
    return document["work"] in {SUMMARISE, None}


def is_summarised(document: Row) -> bool:
    """Whether a model has done so."""
    return bool(document["summaries"]["source"] == "model")


async def test_a_turn_without_a_model() -> None:
    """It is closed when its answer is known, with everything that it was, and summarised by rules."""
    async with remembering() as memory:
        await a_run(memory)
        document = await memory.until(is_over)
    assert (document["status"], document["rows"]) == ("completed", 5)
    assert document["messages"] == ["msg_of_a", "calls_a_1_2", "result_a_2", "result_a_1", "answer_a"]
    assert [(call["name"], call["success"], call["result"]) for call in document["tool_calls"]] == [
        ("look", True, "156 beans are wet"),
        ("look", True, "dry"),
    ]
    assert document["summaries"]["source"] == "fallback"
    assert "156 beans" in document["summaries"]["detailed"]
    assert (document["work"], document["attempts"]) == (SUMMARISE, 0)


async def test_a_turn_with_a_model() -> None:
    """The model is asked once, after the last result, and what it says is kept."""
    model = scripted()
    async with remembering(model=model) as memory:
        await a_run(memory)
        document = await memory.until(is_summarised)
    assert document["summaries"] == {
        **{name: GOOD[name] for name in ("brief", "detailed", "structured")},
        "source": "model",
    }
    assert (document["insights"], document["work"], document["due_at"]) == (GOOD["insights"], None, None)
    # The words of the summary lead to the input.
    (key,) = [state["key"] for state in memory.store.recall.states.values() if "key" in state]
    assert key.splitlines() == [GOOD["brief"], GOOD["detailed"], *GOOD["insights"]]
    (asked,) = model.users
    assert "156 beans are wet" in asked
    assert "They are wet." in asked


async def test_a_turn_that_goes_on_after_its_summary() -> None:
    """It is closed again, and summarised again with what has come."""
    model = scripted()
    async with remembering(model=model) as memory:
        await a_run(memory)
        await memory.until(is_summarised)
        await memory.record(answer("a", "And 7 are dry.", id="later"))
        document = await memory.until(lambda document: is_summarised(document) and document["rows"] == 6)
    assert [("7 are dry" in asked) for asked in model.users] == [False, True]
    assert document["messages"][-1] == "later"


class InterruptedStore(FakeStore):
    """A store that says, when the rows of a run are read for the first time, that more was heard of it."""

    async def run_messages(self, owner_key: str, run_id: str, **about: Any) -> list[Row]:
        """The rows, as they were before."""
        rows = await super().run_messages(owner_key, run_id, **about)
        if self.calls.count("run_messages") == 1:
            await self.turns.touch_runs([TurnTouch(owner_key, "s", run_id, {"heard_at": utc_now()})])
        return rows


async def test_something_is_heard_while_a_turn_is_closed() -> None:
    """It is looked at again at once, not when the claim has run out."""
    async with remembering(InterruptedStore(), lease_s=1_000) as memory:
        await memory.begin("a")
        await memory.record(answer("a"))
        document = await memory.until(is_over)
    assert document["rows"] == 1


async def test_what_nobody_has_told_of() -> None:
    """A row that was recorded meanwhile is in what the model is asked to summarise, and it is asked once."""
    model = scripted()
    async with remembering(model=model, settled_s=2.0) as memory:
        await a_run(memory)
        await memory.until(is_over)
        await memory.store.insert_message(answer("a", "And 7 are dry.", id="later"))
        document = await memory.until(is_summarised)
    assert document["rows"] == 6
    assert ["7 are dry" in asked for asked in model.users] == [True]


async def test_a_turn_that_is_overtaken() -> None:
    """It is closed soon; a model is only asked when it has been silent for long, or its answer has come after all."""
    model = scripted()
    async with remembering(model=model) as memory:
        await memory.store.insert_message(human("a"))
        await memory.begin("a")
        await memory.begin("b")
        document = await memory.until(is_over)
        assert document["status"] == "unanswered"
        assert document["due_at"] > document["heard_at"]
        assert not model.asked
        await memory.record(answer("a"))
        document = await memory.until(is_summarised)
        assert document["status"] == "completed"
    assert len(model.asked) == 1


async def look(memory: Memory, run_id: str) -> datetime:
    """Have somebody look now whether a turn is over. Returns when that is."""
    now = utc_now()
    await memory.store.turns.touch_runs([TurnTouch("o", "s", run_id, {"due_at": now})])
    memory.turns.worker.wake()
    return now


async def test_a_turn_that_goes_on_after_it_was_overtaken() -> None:
    """It does until another begins, of which whoever looks at it takes notice; then it is closed soon."""
    async with remembering() as memory:
        await memory.begin("a")
        await memory.record(human("a"))
        await memory.begin("b")
        await memory.until(is_over)
        await memory.record(calls("a", "1"))
        looked = await look(memory, "a")
        document = await memory.until(lambda document: document["due_at"] > looked)
        assert (document["status"], document["overtaken"]) == ("executing", False)
        await memory.begin("c")
        await look(memory, "a")
        document = await memory.until(is_over)
        assert (document["status"], document["overtaken"], document["rows"]) == ("unanswered", True, 2)
        others = (await memory.documents())[1:]
    assert [each["status"] for each in others] == ["unanswered", "pending"]


async def test_a_turn_that_nobody_closed() -> None:
    """More of it was recorded while the next one began: the next look closes it."""
    async with remembering() as memory:
        for run_id in ("a", "b"):
            await memory.record(human(run_id))
            await memory.begin(run_id)
        await memory.store.turns.touch_runs([TurnTouch("o", "s", "a", {"status": "pending", "overtaken": False})])
        (first, second) = await memory.documents()
        assert (first["status"], second["status"]) == ("pending", "pending")
        await look(memory, "a")
        document = await memory.until(is_over)
        looked = await look(memory, "b")
        other = await memory.until(lambda document: document["due_at"] > looked, 2)
    assert (document["status"], document["overtaken"]) == ("unanswered", True)
    assert (other["status"], other["overtaken"]) == ("pending", False)


async def test_a_stopped_replica() -> None:
    """What it had in hand is given back at once."""
    store, stuck = FakeStore(), scripted()
    stuck.hangs = True
    async with remembering(store, stuck) as memory:
        await a_run(memory)
        await until(stuck.was_asked)
    (document,) = await memory.documents()
    assert document["due_at"] <= utc_now()
    model = scripted()
    async with remembering(store, model) as memory:
        await memory.until(is_summarised)


async def test_a_claim_is_held_for_as_long_as_the_work_takes() -> None:
    """A model that takes longer than a claim lasts is asked once."""
    store, slow = FakeStore(), scripted()
    slow.hangs = True
    async with remembering(store, slow, lease_s=0.15) as memory, remembering(store, slow, lease_s=0.15):
        await a_run(memory)
        await memory.until(lambda document: document["work"] == SUMMARISE)
        dates: set[datetime] = set()
        with anyio.fail_after(20):
            while len(dates) < 10:
                dates.add((await memory.documents())[0]["due_at"])
                await anyio.sleep(0.01)
        assert len(slow.asked) == 1


async def test_two_replicas_summarise_each_turn_once() -> None:
    """Many turns at once, and no turn twice."""
    store, model = FakeStore(), scripted()
    async with remembering(store, model) as one, remembering(store, model) as two:
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(a_run, (one, two)[number % 2], f"run_{number}")
        for number in range(1, 41):
            await one.until(is_summarised, number)
    assert len(model.asked) == 40
    assert set(Counter(model.users).values()) <= {1, 40}


class PickyTurns(FakeTurns):
    """Turns that do not keep summaries of the session `large`."""

    async def update_turn(
        self, owner_key: str, session_id: str, turn_number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Keep the others."""
        if session_id == "large" and "summaries" in changes:
            raise StoreRejectedError("too large")
        return await super().update_turn(owner_key, session_id, turn_number, changes, seen=seen)


async def test_a_turn_that_the_store_refuses() -> None:
    """It counts as completed and is looked at no more; the others are closed."""
    store = FakeStore()
    store.turns = PickyTurns(lambda _operation: None)
    async with remembering(store) as memory:
        for session in ("large", "s"):
            await memory.begin(session, session=session)
            await memory.record(answer(session, session_id=session))
        refused = await memory.until(is_over, session="large")
        await memory.until(is_over)
    assert (refused["status"], refused["work"], refused["due_at"]) == ("completed", None, None)


def away() -> str:
    """A model that cannot be reached."""
    raise ModelUnavailableError("away")


async def test_a_model_that_is_away() -> None:
    """The summary by rules stays, and the model is asked again."""
    model = scripted(away, away)
    async with remembering(model=model) as memory:
        await a_run(memory)
        document = await memory.until(lambda document: document["work"] == SUMMARISE and bool(model.asked))
        assert document["summaries"]["source"] == "fallback"
        document = await memory.until(lambda document: document.get("delays") == 1)
        assert document["attempts"] == 0
        await memory.store.turns.touch_runs([TurnTouch("o", "s", "a", {"due_at": utc_now()})])
        again = await memory.until(lambda document: document["delays"] == 2)
        assert timedelta(seconds=50) < again["due_at"] - utc_now() < timedelta(seconds=61)
        await memory.store.turns.touch_runs([TurnTouch("o", "s", "a", {"due_at": utc_now(), "delays": 99})])
        await memory.until(is_summarised)


@pytest.mark.parametrize("nonsense", ["", "I would rather not.", '{"brief": ', json.dumps({**GOOD, "detailed": " "})])
async def test_a_model_that_talks_nonsense(nonsense: str) -> None:
    """It is asked again later, less and less often; the summary by rules stays until it makes sense."""
    model = scripted(*[nonsense] * 4)
    async with remembering(model=model) as memory:
        await a_run(memory)
        first = await memory.until(lambda document: document["attempts"] == 1)
        assert first["summaries"]["source"] == "fallback"
        await memory.store.turns.touch_runs([TurnTouch("o", "s", "a", {"due_at": utc_now()})])
        second = await memory.until(lambda document: document["attempts"] == 2)
        await memory.store.turns.touch_runs([TurnTouch("o", "s", "a", {"due_at": utc_now()})])
        document = await memory.until(is_summarised)
    assert second["due_at"] - second["heard_at"] > first["due_at"] - first["heard_at"]
    assert "Summary generation failed" not in json.dumps([first["summaries"], document["summaries"]])


async def test_calls_for_one_turn_are_bounded() -> None:
    """Over all attempts and restarts; then the summary by rules stays, and the turn says so."""
    model, metrics, store = FakeModel(lambda *_: "我不会。"), RecordingMetrics(), FakeStore()
    async with remembering(store, model, metrics, max_calls=5) as memory:
        await a_run(memory)
        await memory.until(lambda document: document["attempts"] == 1)
    for attempts in (2, 3):
        await store.turns.touch_runs([TurnTouch("o", "s", "a", {"due_at": utc_now()})])
        async with remembering(store, model, metrics, max_calls=5) as memory:
            document = await memory.until(lambda document: document["attempts"] == attempts)  # noqa: B023  # at once
    assert len(model.asked) == document["calls"] == 5
    assert (document["work"], document["due_at"]) == (None, None)
    turn = await memory.turns.get_turn_by_number("o", "s", 1)
    assert (turn.summaries.source, turn.given_up) == ("fallback", "it holds no JSON object")
    assert metrics.called == {(Purpose.TURN, CallOutcome.UNUSABLE): 5}
    assert (metrics.counted[Event.SUMMARY_REFUSED], metrics.counted[Event.SUMMARY_GIVEN_UP]) == (2, 1)
    # More of it is recorded: it is closed again, and no call is made.
    async with remembering(store, model, metrics, max_calls=5) as memory:
        await memory.record(answer("a", "And 明天再见.", id="more"))
        await memory.until(lambda document: document["rows"] == 6 and document["given_up"] != "")
    assert len(model.asked) == 5


@pytest.mark.parametrize("bad", [{"heard_at": "yesterday"}, {"task_context": 7}, {"thinking_phase": 1}])
async def test_a_malformed_document(bad: dict[str, Any]) -> None:
    """It does not stop the work on the others."""
    async with remembering(model=scripted()) as memory:
        await memory.begin("a")
        await memory.store.turns.touch_runs([TurnTouch("o", "s", "a", {**bad, "work": CLOSE, "due_at": utc_now()})])
        await memory.store.insert_message(human("b"))
        await memory.begin("b")
        await memory.record(answer("b"))
        await memory.until(is_summarised, 2)
