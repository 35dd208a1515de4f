"""Turns of sessions: numbered without gaps, each with its goal, read back (contract §6)."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.core.erasure import Tombstone, hashed
from nexus.core.errors import StoreUnavailableError, TurnNotFoundError
from nexus.core.metrics import Event
from nexus.core.models import Message, Role, utc_now
from nexus.core.ports import Row
from nexus.core.ports.memory import TurnTouch
from nexus.core.turns import CLOSE, LEVELS, SUMMARISE, Goal, Summaries, ThinkingRound
from nexus.services.history.rows import llm_row
from nexus.services.persistence import PersistenceService
from nexus.services.turns.service import TurnMemory
from nexus.services.turns.worker import TurnSettings, TurnWorker
from tests.nexus.support.fake_turns import FakeTurns
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.unit.services.parts import MOMENT, opened, request
from tests.nexus.unit.services.turns_at_work import PATIENCE_S, a_start, answer, calls, human, remembering, scripted

RUNS = 60


async def test_every_turn_knows_the_goal() -> None:
    """The first input is it, until another is given; each session has its own."""
    async with remembering() as memory:
        await memory.begin("a", "Find reviews")
        await memory.begin("b", "And now?")
        await memory.begin("c", "Go on", task_context="Write a summary")
        await memory.begin("d", "Thanks")
        await memory.begin("e", "Something else", session="other")
        goals = [document["task_context"] for document in await memory.documents()]
        others = [document["task_context"] for document in await memory.documents("other")]
    assert goals == ["Find reviews", "Find reviews", "Write a summary", "Write a summary"]
    assert others == ["Something else"]


async def test_a_goal_that_is_given_to_a_run_beside_others() -> None:
    """It holds for what began after that run and had its old goal, and for what begins next."""
    async with remembering() as memory:
        await memory.begin("before", "Find reviews")
        await memory.begin("a", "And now?")
        await memory.begin("beside", "Hm")
        await memory.begin("own", "Something else", task_context="My own")
        await memory.begin("a", "And now?", task_context="Write a summary")
        await memory.begin("next", "Go on")
        goals = [document["task_context"] for document in await memory.documents()]
    assert goals == ["Find reviews", "Write a summary", "Write a summary", "My own", "My own"]


async def test_a_session_from_before_there_were_turns() -> None:
    """Its goal is its first recorded input."""
    store = FakeStore()
    await store.insert_message(human("old", "The very first"))
    async with remembering(store) as memory:
        await memory.begin("a", "The next")
        (document,) = await memory.documents()
    assert (document["turn_number"], document["task_context"]) == (1, "The very first")


async def test_a_run_is_one_turn() -> None:
    """However often it is asked for; what comes along later is taken over."""
    rounds = (ThinkingRound(round_number=1, content="hm", tokens_used=7),)
    async with remembering() as memory:
        await memory.begin("a", "Find reviews")
        await memory.begin("a", "Find reviews", task_context="A better goal", workspace_context="the library")
        await memory.begin("a", "Find reviews", thinking=True, rounds=rounds)
        await memory.begin("a", "Find reviews", workspace_context="elsewhere")
        (document,) = await memory.documents()
        assert await memory.turns.goal("o", "s", "a") == Goal("A better goal", document["id"], 1, earlier=0)
    assert (document["task_context"], document["workspace_context"]) == ("A better goal", "the library")
    assert document["thinking_phase"]["tokens_used"] == 7
    assert [item["content"] for item in document["thinking_phase"]["rounds"]] == ["hm"]
    assert document["status"] == "thinking"


async def test_a_run_that_nobody_has_begun() -> None:
    """A replica was killed before it had: the first result that is recorded makes it a turn."""
    async with remembering() as memory:
        await memory.begin("first", "Find reviews")
        await memory.store.insert_message(human("a", "And now?"))
        await memory.record(answer("a"))
        await memory.record(answer("a", id="again"))
        await memory.record(answer("unheard of"))
        document = await memory.until(lambda document: document["work"] == SUMMARISE, 2)
        assert len(await memory.documents()) == 2
    assert (document["run_id"], document["task_context"], document["rows"]) == ("a", "Find reviews", 3)


async def test_a_turn_that_begins_while_another_has_no_answer() -> None:
    """That counts as unanswered at once; none of another session does."""
    async with remembering() as memory:
        await memory.begin("a")
        await memory.begin("elsewhere", session="other")
        await memory.turns.start_turn(a_start("b"))
        first, second = await memory.documents()
        (other,) = await memory.documents("other")
    assert (first["status"], second["status"], other["status"]) == ("unanswered", "pending", "pending")


async def test_rows_of_which_nobody_has_heard() -> None:
    """A replica was killed when it had recorded an answer and told nobody: a turn that another follows has it."""
    store = FakeStore()
    async with remembering(store, settled_s=0) as memory:
        for row in (human("a"), answer("a")):
            await store.insert_message(row)
        await memory.begin("a")
        await memory.turns.start_turn(a_start("b"))
        closed = await memory.until(lambda document: document["work"] == SUMMARISE)
    assert (closed["status"], closed["rows"]) == ("completed", 2)
    assert "They are wet." in closed["summaries"]["detailed"]


async def test_the_goal_of_a_run_without_a_turn() -> None:
    """It is that of the latest turn; before there are turns, the first input, which the first turn will carry."""
    store = FakeStore()
    async with remembering(store) as memory:
        assert await memory.turns.goal("o", "s", "sub") == Goal()
        await store.insert_message(human("imported"))
        goal = human("imported")["content"]
        assert await memory.turns.goal("o", "s", "sub") == Goal(goal)
        await memory.begin("a", "Find reviews")
        (document,) = await memory.documents()
        assert await memory.turns.goal("o", "s", "sub") == Goal(goal, document["id"], None, earlier=1)


async def test_many_runs_at_once_on_two_replicas() -> None:
    """Numbers from 1 without a gap, each once, each run once, although both are asked for some of them."""
    store = FakeStore()
    runs = [f"run_{number}" for number in range(RUNS)]
    order = random.Random(1)  # noqa: S311  # the same each time is what is wanted
    async with remembering(store) as one, remembering(store) as two:
        async with anyio.create_task_group() as tasks:
            for run_id in order.sample(runs, len(runs)):
                replicas = [one, two] if order.random() < 0.2 else [order.choice([one, two])]
                for replica in replicas:
                    tasks.start_soon(replica.begin, run_id)
        documents = await one.documents()
    assert [document["turn_number"] for document in documents] == [*range(1, RUNS + 1)]
    assert sorted(document["run_id"] for document in documents) == sorted(runs)
    assert Counter(document["task_context"] for document in documents) == {"How are the beans?": RUNS}


class ForgetfulTurns(FakeTurns):
    """Turns that never say that they have kept what they are given."""

    async def insert_turns(self, turns: Sequence[Row]) -> int:
        """Keep them."""
        if await super().insert_turns(turns):
            raise StoreUnavailableError("no answer")
        return 0


async def test_a_store_that_keeps_a_turn_without_saying_so() -> None:
    """The turn is there once, and the one before it counts as unanswered all the same."""
    store = FakeStore()
    store.turns = ForgetfulTurns(lambda _operation: None)
    async with remembering(store) as memory:
        for run_id in ("a", "b"):
            for session in ("s", "t"):
                assert memory.turns.begin_turn(a_start(run_id, session=session))
            with anyio.fail_after(PATIENCE_S):
                await memory.turns.drained()
        await memory.until(lambda document: document["status"] == "unanswered")
        for session in ("s", "t"):
            documents = await memory.documents(session)
            assert [(each["turn_number"], each["run_id"]) for each in documents] == [(1, "a"), (2, "b")]


class MisreadTurns(FakeTurns):
    """It gives the first turn that it is asked for under another run, as a reply with a spoilt letter does."""

    misread = False

    async def turns_of_runs(self, owner_key: str, session_id: str, run_ids: Sequence[str]) -> list[Row]:
        """The turns of these runs, the first time the first of them under another run."""
        found = await super().turns_of_runs(owner_key, session_id, run_ids)
        if found and not self.misread:
            self.misread = True
            return [{**found[0], "run_id": "another"}]
        return found


async def test_a_reply_about_another_run() -> None:
    """The store is asked again: nothing is lost, and what the run brings is taken over."""
    store, metrics = FakeStore(), RecordingMetrics()
    store.turns = MisreadTurns(lambda _operation: None)
    async with remembering(store, metrics=metrics) as memory:
        await memory.begin("a")
        await memory.begin("a", workspace_context="the library")
        (document,) = await memory.documents()
    assert (store.turns.misread, document["workspace_context"]) == (True, "the library")
    assert not metrics.counted[Event.TURN_LOST]


async def test_a_service_that_ends_says_what_it_has_not_kept() -> None:
    """It is counted as lost."""
    store, metrics = FakeStore(), RecordingMetrics()
    store.down = True
    async with TurnMemory(
        store.turns, store, NO_TOMBSTONES, TurnWorker(store.turns, store), metrics
    ).running() as turns:
        assert turns.begin_turn(a_start("a"))
        assert turns.pending == 1
    assert metrics.counted[Event.TURN_LOST] == 1
    assert turns.begin_turn(a_start("b")) is None


async def test_runs_that_begin_together() -> None:
    """Of those of half a second each but the last is unanswered; a result that came after the next had begun counts."""
    store = FakeStore()
    turns = TurnMemory(
        store.turns, store, NO_TOMBSTONES, TurnWorker(store.turns, store, settings=TurnSettings(settled_s=60))
    )
    begun = [turns.begin_turn(a_start(run_id)) for run_id in ("a", "b", "c", "a")]
    await turns.note_row(calls("b", "1"))
    async with turns.running():
        with anyio.fail_after(PATIENCE_S):
            await turns.drained()
        found = await store.turns.turns("o", "s", limit=9)
    assert all(kept and kept.is_set() for kept in begun)
    assert [(row["run_id"], row["status"]) for row in reversed(found)] == [
        ("a", "unanswered"),
        ("b", "executing"),
        ("c", "pending"),
    ]
    assert store.calls.count("insert_turns") == 1


async def test_turns_that_are_not_closed() -> None:
    """They are shown as far as they are recorded, also after a restart; when they are closed, in the same words."""
    store = FakeStore()
    idle = TurnMemory(store.turns, store, NO_TOMBSTONES, TurnWorker(store.turns, store))
    for run_id, said in (("a", "海边有多远？"), ("b", "Wie weit ist es?"), ("c", "🏖️?"), ("d", "海までは？")):
        await idle.start_turn(a_start(run_id, said))
        await store.insert_message(human(run_id, said))
    for run_id in "abc":
        await store.insert_message(answer(run_id, f"12 km, says {run_id}."))
    restarted = TurnMemory(store.turns, store, NO_TOMBSTONES, TurnWorker(store.turns, store))
    found = await restarted.past_turns("o", "s", limit=9, before=None)
    assert ["12 km" in turn["summaries"]["brief"] for turn in found] == [False, True, True, False]
    async with remembering(store, settled_s=0) as memory:
        for turn in found[1:3]:
            await memory.turns.note_row(answer(turn["run_id"]))
            closed = await memory.until(lambda document: document["rows"] == 2, turn["turn_number"])
            assert Summaries(**closed["summaries"]) == Summaries(**turn["summaries"])


async def test_a_later_version_of_an_answer() -> None:
    """A turn that is closed with an earlier one is closed again."""
    async with remembering(settled_s=0) as memory:
        await memory.turns.start_turn(a_start("a"))
        async with PersistenceService(memory.store, NO_TOMBSTONES, recorded=memory.turns.note_row).running() as service:
            for revision, text in enumerate(("12 km.", "No, 13 km.")):
                said = {
                    "id": "m",
                    "run_id": "a",
                    "owner_key": "o",
                    "metadata": {"revision": revision, "session_id": "s"},
                }
                service.offer(llm_row(Message(role=Role.AI, content=text, **said)), 10)

                def is_told(turn: Row, text: str = text) -> bool:
                    return text in turn["summaries"]["brief"]

                await memory.until(is_told, 1)


@pytest.mark.parametrize("metadata", [{}, {"summary_detail_level": "comprehensive"}])
async def test_asked_at_once_after_an_answer(metadata: dict[str, str]) -> None:
    """A context of the layout `thinking` has the answer, though it is not written yet and its turn not closed."""
    given = {"layout": "thinking", **metadata}
    async with remembering() as memory, opened(memory.store, turns=memory.turns) as parts:
        await parts.build(request("海边有多远？", "msg_1", "run_1", run_metadata=given))
        said = {"run_id": "run_1", "owner_key": "ada", "timestamp": MOMENT}
        parts.persistence.offer(llm_row(Message(role=Role.AI, content={"content": "12 km."}, **said), 10), 10)
        assert parts.persistence.unwritten
        content = await parts.build(request("And back?", "msg_2", "run_2", run_metadata=given))
    assert "12 km." in content["messages"][1]["content"]


async def test_what_a_model_said_of_a_turn_that_goes_on() -> None:
    """It stays until more is recorded, and then gives way to the rules at once."""
    async with remembering(model=scripted(), settled_s=0) as memory:
        await memory.begin("a")
        await memory.record(human("a"))
        await memory.record(answer("a"))
        await memory.until(lambda document: document["summaries"]["source"] == "model")
    store = memory.store
    await store.turns.touch_runs([TurnTouch("o", "s", "a", {"work": CLOSE, "due_at": utc_now()})])
    (before,) = await memory.turns.past_turns("o", "s", limit=9, before=None)
    assert before["summaries"]["source"] == "model"
    await store.insert_message(answer("a", "No, 13 km.", id="more"))
    (after,) = await memory.turns.past_turns("o", "s", limit=9, before=None)
    assert "13 km" in after["summaries"]["brief"]
    assert after["insights"] == []


async def test_what_cannot_be_kept_does_not_hold_up_the_others() -> None:
    """A goal that no document can hold costs its own turn alone, and is told."""
    told: list[tuple[str, str]] = []

    async def refused(turn: Row, reason: str) -> None:
        told.append((turn["run_id"], reason))

    async with remembering(refused=refused) as memory:
        await memory.begin("a", "x" * 10)
        await memory.begin("bad", "y", workspace_context="z" * (17 << 20))
        await memory.begin("c", "z")
        numbers = {document["run_id"]: document["turn_number"] for document in await memory.documents()}
    assert numbers == {"a": 1, "c": 2}
    assert told == [("bad", "the turn of a run: too large")]


async def test_reading_back() -> None:
    """By number, by words, as text at every level; a turn that is not there is named."""
    async with remembering() as memory:
        turns = memory.turns
        assert await turns.get_accumulated_summaries("o", "s") == ""
        await memory.begin("a", "Count the beans")
        await memory.begin("b", "Count the peas")
        second = await turns.get_turn_by_number("o", "s", 2)
        assert second.run_id == "b"
        assert await turns.get_user_facing_summary("o", "s", 2) == second.summaries.detailed
        assert [turn.turn_number for turn in await turns.search("o", "s", "PEAS")] == [2]
        assert await turns.search("o", "s", "carrots") == []
        for level in LEVELS:
            text = await turns.get_accumulated_summaries("o", "s", level)
            assert text.index("[Turn 1] ") < text.index("[Turn 2] ")
        for number in (0, 3, -1):
            with pytest.raises(TurnNotFoundError, match=f"^Turn {number} not found$"):
                await turns.get_turn_by_number("o", "s", number)


async def test_an_input_that_waited_in_the_outbox() -> None:
    """Where the replica that built its context was killed before it began the turn, the input begins it."""
    async with remembering() as memory:
        await memory.begin("known")
        await memory.record(answer("a"))
        for run_id in ("known", "a"):
            await memory.record(human(run_id))
        await memory.record(human("of a sub-agent") | {"metadata": {"sub_agent_internal": True}})
        await memory.turns.drained()
        runs = [document["run_id"] for document in await memory.documents()]
    assert runs == ["known", "a"]


async def test_an_input_that_left_the_outbox_after_its_turn_was_closed() -> None:
    """The turn is closed again, with the question."""
    async with remembering(settled_s=0) as memory:
        await memory.turns.start_turn(a_start("a"))
        await memory.record(answer("a"))
        closed = await memory.until(lambda turn: turn["status"] == "completed" and turn["rows"] == 1)
        assert "beans" not in closed["summaries"]["detailed"]
        await memory.record(human("a"))
        again = await memory.until(lambda turn: turn["rows"] == 2)
        assert "beans" in again["summaries"]["detailed"]


async def test_turns_of_what_was_erased() -> None:
    """Are not begun, and those that begin with them are; nobody waits for them for ever."""
    store, metrics = FakeStore(), RecordingMetrics()
    now = utc_now() - timedelta(seconds=30)
    await store.erasure.put_tombstone(Tombstone(hashed("o"), hashed("s"), now, now))
    before = now - timedelta(minutes=1)
    async with remembering(store, metrics=metrics) as memory:
        starts = [a_start("a"), a_start("b"), a_start("c", session="t")]
        starts = [start if start.run_id == "b" else replace(start, timestamp=before) for start in starts]
        events = [memory.turns.begin_turn(start) for start in starts]
        with capture_logs() as logs, anyio.fail_after(PATIENCE_S):
            for event in events:
                assert event
                await event.wait()
            await memory.turns.drained()
        kept = [*await memory.documents("s"), *await memory.documents("t")]
    assert [turn["run_id"] for turn in kept] == ["b", "c"]
    assert [turn["turn_number"] for turn in kept] == [1, 1]
    assert [line["run_id"] for line in logs if line["event"] == "erased_refused"] == ["a"]
    assert metrics.counted[Event.ERASED_REFUSED] == 1
