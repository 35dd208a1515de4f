"""The goal and the turns in the contexts of the agent layout: what is begun, read, kept and missing (contract §6)."""

import itertools
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.adapters.in_memory import MemoryBus
from nexus.core.metrics import Event, Part
from nexus.core.models import Message, Role, Why
from nexus.core.turns import ThinkingRound, TurnStart
from nexus.services.history.rows import llm_row
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.unit.services.context.remembering import read_turn_memory, stored_turn, summaries
from tests.nexus.unit.services.parts import MOMENT, AwayLedger, opened, past, request
from tests.nexus.unit.services.remembering_turns import FakeTurns

SUB = {"kind": "sub", "id": "reviewer", "role": "You review.", "task_prompt": "Review it."}
LATER = [{"id": "ai_1", "role": "AI", "content": "Looking."}]
# Two rows a run: of ten runs the last two or three are shown.
CUT = settings_with(history_messages=6)


def asking(text: str = "hello", request_id: str = "msg_1", run_id: str = "run_1", **metadata: Any) -> Any:
    """A request for the agent layout, with this metadata of the run."""
    later = metadata.pop("later", None)
    return request(text, request_id, run_id, later=later, run_metadata={"layout": "agent", **metadata})


def block(content: dict[str, Any], tag: str) -> dict[str, Any] | None:
    """What the manifest says of a block."""
    return next((found for found in content["context"]["blocks"] if found["tag"] == tag), None)


def text(content: dict[str, Any], tag: str) -> str:
    """The message of a block; `""` where there is none."""
    found = block(content, tag)
    return str(content["messages"][found["index"]]["content"]) if found else ""


def goal(content: dict[str, Any]) -> str:
    """The goal that is shown."""
    return text(content, "TASK_CONTEXT").removeprefix("[TASK_CONTEXT]\nUser's Goal: ")


def left_out(content: dict[str, Any]) -> list[tuple[str, str]]:
    """What of the turns the manifest names as not shown, and why."""
    entries = content["context"]["left_out"]
    return [(entry["what"], entry["why"]) for entry in entries if entry["where"] == "TURN_MEMORY"]


def numbers(content: dict[str, Any]) -> list[int]:
    """The turns that are shown in summaries."""
    memory = text(content, "TURN_MEMORY")
    return [turn.number for turn in read_turn_memory(memory)[1]] if memory else []


def ten_turns(**changes: Any) -> FakeTurns:
    """The turns of `past(10)`."""
    turns = FakeTurns()
    turns.plant(*(stored_turn(number, **changes) for number in range(1, 11)))
    return turns


class TestBegun:
    """Runs that become turns."""

    @pytest.mark.parametrize("layout", ["agent", "dialogue", "thinking"])
    async def test_the_first_build_of_a_run(self, layout: str) -> None:
        """In every layout, with everything that is known of it; a later one adds nothing."""
        turns = FakeTurns()
        given: dict[str, Any] = {
            "layout": layout,
            "session_id": "s1",
            "task_context": "the goal",
            "workspace_context": "a desk",
            "thinking_rounds": [{"round_number": 2, "content": "hm", "tokens_used": 7}],
        }
        async with opened(turns=turns) as parts:
            await parts.build(asking("hi", **given))
            begun = [*turns.begun]
            await parts.build(asking("hi", "msg_2", later=LATER, session_id="s1", layout=layout))
        assert begun == turns.begun
        assert begun == [
            TurnStart(
                owner_key="ada",
                session_id="s1",
                run_id="run_1",
                timestamp=datetime.fromisoformat(MOMENT),
                input="hi",
                input_id="human_of_run_1",
                task_context="the goal",
                workspace_context="a desk",
                thinking=layout == "thinking",
                rounds=(ThinkingRound(round_number=2, content="hm", tokens_used=7),),
            )
        ]

    async def test_sub_agents_runs_are_none(self) -> None:
        """Neither those that a sub-agent asks for, nor those whose input is marked as its own."""
        turns = FakeTurns()
        async with opened(turns=turns) as parts:
            await parts.build(asking(agent=SUB))
            for layout in ("agent", "dialogue", "thinking"):
                marked = asking(request_id=f"msg_{layout}", run_id=f"run_{layout}", layout=layout)
                marked.content["history"][0]["metadata"] = {"sub_agent_internal": True}
                await parts.build(marked)
        assert turns.begun == []

    @pytest.mark.parametrize("layout", ["agent", "dialogue", "thinking"])
    async def test_too_much_is_waiting(self, layout: str) -> None:
        """The answer is good, and the lost turn counted."""
        turns, metrics = FakeTurns(), RecordingMetrics()
        turns.full = True
        async with opened(turns=turns, metrics=metrics) as parts:
            content = await parts.build(asking(layout=layout))
            turns.full = False
            await parts.build(asking("two", "msg_2", "run_2", task_context="of another run"))
            later = await parts.build(asking(request_id="msg_3", layout=layout, later=LATER))
            sub = await parts.build(asking("look", "msg_4", "run_3", layout=layout, session_id="s2", agent=SUB))
        assert (content["status"], content["degraded"]) == ("success", [])
        # What was said is the goal, as it would have been; a sub-agent has nobody's.
        for build in (content, later):
            assert ("User's Goal: hello" in json.dumps(build["messages"])) == (layout != "dialogue")
        assert "User's Goal: " not in json.dumps(sub["messages"][1:])
        assert metrics.counted == {Event.TURN_LOST: 1}

    async def test_without_a_turn_memory(self) -> None:
        """There is no goal and no turn, and nothing is missing."""
        async with opened(settings=CUT) as parts:
            parts.store.plant("messages", past(10))
            content = await parts.build(asking())
            given_goal = await parts.build(asking(request_id="msg_2", run_id="run_2", task_context="mine"))
        assert (goal(content), numbers(content), content["degraded"]) == ("", [], [])
        assert goal(given_goal) == "mine"


class TestGoal:
    """`[TASK_CONTEXT]`, right behind the opening."""

    async def test_the_first_input_is_the_goal_until_another_is_given(self) -> None:
        """In every run of the session, and in no other session."""
        async with opened(turns=FakeTurns()) as parts:
            first = await parts.build(asking("find reviews"))
            second = await parts.build(asking("and trials", "msg_2", "run_2"))
            third = await parts.build(asking("now costs", "msg_3", "run_3", task_context="compare costs"))
            fourth = await parts.build(asking("go on", "msg_4", "run_4"))
            elsewhere = await parts.build(asking("hi", "msg_5", "run_5", session_id="s2"))
        goals = [goal(content) for content in (first, second, third, fourth, elsewhere)]
        assert goals == ["find reviews", "find reviews", "compare costs", "compare costs", "hi"]
        for content in (first, fourth):
            assert [found["tag"] for found in content["context"]["blocks"]][:2] == ["CORE_IDENTITY", "TASK_CONTEXT"]
        sources = [(block(content, "TASK_CONTEXT") or {})["sources"] for content in (first, third, fourth)]
        assert sources == [["turn_1_0"], ["human_of_run_3"], ["turn_4_0"]]

    async def test_a_sub_agent_knows_the_goal(self) -> None:
        """Of the run that sent it, behind its own task."""
        async with opened(turns=FakeTurns()) as parts:
            await parts.build(asking("find reviews"))
            content = await parts.build(asking("look", "msg_2", "run_2", agent=SUB))
        assert [message["content"] for message in content["messages"][:2]] == [
            "Review it.",
            "[TASK_CONTEXT]\nUser's Goal: find reviews",
        ]

    async def test_a_goal_that_is_given_needs_no_reading_later(self) -> None:
        """In a later build of the run nothing is asked for."""
        turns = FakeTurns()
        async with opened(turns=turns) as parts:
            await parts.build(asking(task_context="mine"))
            before = turns.goals_asked
            content = await parts.build(asking(request_id="msg_2", later=LATER, task_context="mine"))
        assert (goal(content), turns.goals_asked, len(turns.begun)) == ("mine", before, 1)

    @pytest.mark.parametrize("layout", ["agent", "dialogue"])
    async def test_a_goal_that_comes_in_a_later_build(self, layout: str) -> None:
        """Holds from there on, also in builds that do not repeat it, and in the next run."""
        turns = FakeTurns()
        async with opened(turns=turns) as parts:
            first = await parts.build(asking("one"))
            await parts.build(asking("one", "msg_0", layout=layout))
            second = await parts.build(asking("one", "msg_2", later=LATER, layout=layout, task_context="another"))
            third = await parts.build(asking("one", "msg_3", later=LATER))
            following = await parts.build(asking("two", "msg_4", "run_2"))
        assert goal(first) == "one"
        assert layout == "dialogue" or goal(second) == "another"
        assert (goal(third), goal(following)) == ("another", "another")
        assert [start.task_context for start in turns.begun if start.run_id == "run_1"][-1] == "another"

    async def test_a_run_id_that_is_used_in_two_sessions(self) -> None:
        """Each has its own goal, turns and history."""
        turns = FakeTurns()
        async with opened(turns=turns) as parts:
            first = await parts.build(asking("hello", task_context="of s1", session_id="s1"))
            other = await parts.build(asking("hello", "msg_2", session_id="s2"))
            again = await parts.build(asking("hello", "msg_3", later=LATER, session_id="s1"))
        assert [goal(content) for content in (first, other, again)] == ["of s1", "hello", "of s1"]

    async def test_a_goal_that_is_lost_from_the_store(self) -> None:
        """Is still that with which the run began."""
        turns = FakeTurns()
        async with opened(turns=turns) as parts:
            await parts.build(asking("hello", task_context="mine"))
            turns.documents["ada", "default"][0]["task_context"] = ""
            content = await parts.build(asking("hello", "msg_2", later=LATER))
        assert goal(content) == "mine"

    async def test_a_goal_of_another_run_does_not_come_in_between(self) -> None:
        """A run keeps its own, whatever the session has by then; a sub-agent's the one with which it began."""
        turns = FakeTurns()
        async with opened(turns=turns) as parts:
            await parts.build(asking("one"))
            await parts.build(asking("look", "msg_2", "run_sub", agent=SUB))
            await parts.build(asking("two", "msg_3", "run_2", task_context="another"))
            main = await parts.build(asking("one", "msg_4", later=LATER))
            sub = await parts.build(asking("look", "msg_5", "run_sub", later=LATER, agent=SUB))
        assert (goal(main), goal(sub)) == ("one", "one")


class TestTurns:
    """`[TURN_MEMORY]`, behind the goal, for what is not shown as it was said."""

    async def test_everything_is_shown(self) -> None:
        """Then no turn is read."""
        turns = ten_turns()
        async with opened(turns=turns) as parts:
            parts.store.plant("messages", past(10))
            content = await parts.build(asking())
        assert (numbers(content), turns.asked) == ([], [])

    async def test_a_session_that_is_cut(self) -> None:
        """Every turn is shown as it was said, or in its summary; none is both."""
        turns = ten_turns()
        async with opened(turns=turns, settings=CUT) as parts:
            parts.store.plant("messages", past(10))
            content = await parts.build(asking())
        (asked,) = turns.asked
        shown = [int(run.removeprefix("past_")) + 1 for run in asked["without_runs"] if run != "run_1"]
        assert (asked["limit"], asked["before"]) == (101, 11)
        assert "run_1" in asked["without_runs"]
        assert sorted([*shown, *numbers(content)]) == [*range(1, 11)]
        raw = [message["content"] for message in content["messages"]]
        assert [number for number in range(1, 11) if f"HUMAN {number - 1}" in raw] == shown
        tags = [found["tag"] for found in content["context"]["blocks"]]
        assert tags == ["CORE_IDENTITY", "TASK_CONTEXT", "TURN_MEMORY", "HISTORY", "INPUT"]
        memory = block(content, "TURN_MEMORY") or {}
        assert memory["sources"] == [f"turn_{number}_1764547200000" for number in numbers(content)]
        assert (memory["dropped"], memory["role"]) == (0, "user")

    async def test_rows_that_are_gone(self) -> None:
        """Were they removed, or turns brought in without them, their turns are still remembered."""
        async with opened(turns=ten_turns()) as parts:
            parts.store.plant("messages", past(10)[10:])
            content = await parts.build(asking())
            sub = await parts.build(asking("look", "msg_2", "run_sub", agent=SUB))
        assert numbers(content) == [1, 2, 3, 4, 5]
        assert content["context"]["notes"] == []
        # A sub-agent's run is no turn; it is told what its sender is told.
        assert numbers(sub)[:5] == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("imported", [1, 3, 9])
    async def test_runs_from_before_there_were_turns(self, imported: int) -> None:
        """Do not pass for turns: those that came without rows are shown beside them."""
        turns = FakeTurns()
        turns.plant(*(stored_turn(number, f"imported_{number}") for number in range(1, imported + 1)))
        async with opened(turns=turns) as parts:
            parts.store.plant("messages", past(5))
            content = await parts.build(asking())
        assert numbers(content) == [*range(1, imported + 1)]
        assert sum("HUMAN" in str(message["content"]) for message in content["messages"]) == 5

    async def test_a_history_that_cannot_be_read(self) -> None:
        """All turns are shown in its stead; the next build of the run has the history."""
        turns, store = ten_turns(), FakeStore()
        async with opened(store, turns=turns) as parts:
            store.plant("messages", past(10))
            store.down = True
            content = await parts.build(asking())
            store.down = False
            whole = await parts.build(asking(request_id="msg_2"))
        assert (content["degraded"], numbers(content)) == (["history"], [*range(1, 11)])
        assert (whole["degraded"], numbers(whole)) == ([], [])

    async def test_later_turns_are_not_past(self) -> None:
        """Of a run that is built again only turns before its own are shown, and never its own."""
        turns = ten_turns()
        async with opened(turns=turns, settings=CUT, ledger=AwayLedger(MemoryBus())) as parts:
            parts.store.plant("messages", past(10))
            await parts.build(asking())
            turns.plant(stored_turn(12, "run_2"))
            await parts.persistence.flush()
            content = await parts.build(asking(request_id="msg_2", later=LATER))
        assert max(numbers(content)) < 11

    @pytest.mark.parametrize(("level", "said"), [("brief", "brief 1"), ("comprehensive", '{"overview":"overview 1"')])
    async def test_the_level_of_the_settings_and_of_the_request(self, level: Any, said: str) -> None:
        """The request's wins, and says nothing about the next one."""
        async with opened(turns=ten_turns(), settings=CUT) as parts:
            parts.store.plant("messages", past(10))
            asked = await parts.build(asking(summary_detail_level=level))
            plain = await parts.build(asking(request_id="msg_2", run_id="run_2"))
            parts.builder.settings = settings_with(history_messages=6, summary_detail_level=level)
            default = await parts.build(asking(request_id="msg_3", run_id="run_3"))
        assert f"[TURN_MEMORY level={level} count=" in text(asked, "TURN_MEMORY")
        assert f"\n[Turn 1] {said}" in text(asked, "TURN_MEMORY")
        assert f"\n[Turn 1] {said}" in text(default, "TURN_MEMORY")
        assert "\n[Turn 1] detailed 1\n" in text(plain, "TURN_MEMORY")

    async def test_malformed_turns(self) -> None:
        """Are counted, and named."""
        turns = ten_turns()
        turns.documents["ada", "default"][0]["summaries"] = None
        async with opened(turns=turns, settings=CUT) as parts:
            parts.store.plant("messages", past(10))
            content = await parts.build(asking())
        assert numbers(content)[0] == 2
        assert (block(content, "TURN_MEMORY") or {})["dropped"] == 1
        assert ("1 turn", Why.UNREADABLE.value) in left_out(content)

    @pytest.mark.parametrize(("broken", "wanted"), [({7, 8}, [5, 6]), ({7}, [6, 8]), ({5, 6, 7, 8}, [])])
    async def test_malformed_turns_leave_their_places(self, broken: set[int], wanted: list[int]) -> None:
        """To older ones, for which is looked once; each is shown, or counted, all the same."""
        turns = ten_turns()
        for number in broken:
            turns.documents["ada", "default"][number - 1]["summaries"] = None
        async with opened(turns=turns, settings=settings_with(turns_shown=2)) as parts:
            parts.store.plant("messages", past(10)[16:])
            content = await parts.build(asking())
        assert numbers(content) == wanted
        assert len(turns.asked) == 2
        if wanted:
            assert (block(content, "TURN_MEMORY") or {})["dropped"] == 8 - len(wanted)
        else:
            assert ("8 turns", Why.TOO_MANY.value) in left_out(content)

    async def test_turns_of_somebody_else(self) -> None:
        """A source that answers wrongly is not believed."""
        turns = FakeTurns()
        turns.documents["ada", "default"] = [stored_turn(1, owner_key="bob")]
        async with opened(turns=turns, settings=CUT) as parts:
            parts.store.plant("messages", past(10))
            content = await parts.build(asking())
        assert numbers(content) == []


class TestRun:
    """Within a run the blocks are the same bytes."""

    async def test_summaries_that_are_made_again(self) -> None:
        """Are for the next run."""
        turns = ten_turns()
        async with opened(turns=turns, settings=CUT) as parts:
            parts.store.plant("messages", past(10))
            first = await parts.build(asking())
            for turn in turns.documents["ada", "default"]:
                turn["summaries"] = summaries("better")
            second = await parts.build(asking(request_id="msg_2", later=LATER))
            following = await parts.build(asking(request_id="msg_3", run_id="run_2"))
        assert second["messages"][: len(first["messages"])] == first["messages"]
        assert len(turns.asked) == 2
        assert "better" in text(following, "TURN_MEMORY")

    async def test_another_level_is_honoured(self) -> None:
        """With the same turns; a build that names none has what the run began with."""
        async with opened(turns=ten_turns(), settings=CUT) as parts:
            parts.store.plant("messages", past(10))
            first = await parts.build(asking())
            brief = await parts.build(asking(request_id="msg_2", later=LATER, summary_detail_level="brief"))
            third = await parts.build(asking(request_id="msg_3", later=LATER))
        assert numbers(brief) == numbers(first)
        assert text(brief, "TURN_MEMORY") == text(first, "TURN_MEMORY").replace("detailed", "brief")
        assert text(third, "TURN_MEMORY") == text(first, "TURN_MEMORY")

    async def test_another_level_that_cannot_be_read(self) -> None:
        """Leaves what there is, and says so."""
        turns = ten_turns()
        async with opened(turns=turns, settings=CUT) as parts:
            parts.store.plant("messages", past(10))
            first = await parts.build(asking())
            turns.unreadable = {"past_turns"}
            second = await parts.build(asking(request_id="msg_2", later=LATER, summary_detail_level="brief"))
        assert text(second, "TURN_MEMORY") == text(first, "TURN_MEMORY")
        assert second["degraded"] == ["turns"]


class TestMissing:
    """What cannot be read is named, and of such a build nothing is kept."""

    @pytest.mark.parametrize("layout", ["agent", "thinking"])
    @pytest.mark.parametrize("how", ["unreadable", "hanging"])
    @pytest.mark.parametrize("given_goal", ["", "mine"])
    async def test_the_goal(self, given_goal: str, how: str, layout: str) -> None:
        """What the request gives is shown all the same; the history too."""
        turns, metrics = ten_turns(), RecordingMetrics()
        setattr(turns, how, {"goal", "past_turns"})
        async with opened(turns=turns, settings=CUT, metrics=metrics) as parts:
            parts.store.plant("messages", past(10))
            content = await parts.build(asking(layout=layout, task_context=given_goal), budget_s=0.3)
            setattr(turns, how, set())
            whole = await parts.build(asking(request_id="msg_2", layout=layout))
        assert (content["degraded"], whole["degraded"]) == (["turns"], [])
        degraded = {part: metrics.counted[part] for part in Part if metrics.counted[part]}
        assert degraded == {Part.TURNS: 1}
        assert given_goal in json.dumps(content["messages"])
        assert "Turn 1]" not in json.dumps(content["messages"])
        assert "[Turn 1]" in json.dumps(whole["messages"])
        assert ("HUMAN 9" in json.dumps(content["messages"])) == (layout == "agent")

    async def test_in_a_later_build(self) -> None:
        """What the run began with is shown, and that it may be old is said."""
        turns = ten_turns()
        async with opened(turns=turns, settings=CUT) as parts:
            parts.store.plant("messages", past(10))
            first = await parts.build(asking())
            turns.unreadable = {"goal", "past_turns"}
            second = await parts.build(asking(request_id="msg_2", later=LATER))
        assert second["messages"][: len(first["messages"])] == first["messages"]
        assert second["degraded"] == ["turns"]


class TestPrefix:
    """What the manifest says that the next build shares is what it shares."""

    async def test_the_goal_and_the_turns(self) -> None:
        """Both are part of it, and what stands behind them, until the window moves; and that is seldom."""
        builds = []
        async with opened(turns=FakeTurns(), settings=settings_with(history_messages=60)) as parts:
            for run in range(120):
                said_at = datetime.fromisoformat(MOMENT) + timedelta(minutes=run)
                asked = asking(f"question {run}", f"msg_{run}", f"run_{run}")
                asked.content["history"][0]["timestamp"] = said_at.isoformat()
                builds.append(await parts.build(asked))
                ids = {"run_id": f"run_{run}", "owner_key": "ada", "timestamp": said_at + timedelta(seconds=1)}
                answer = Message(role=Role.AI, content={"content": f"answer {run}"}, **ids)
                parts.persistence.offer(llm_row(answer, 10), 10)
        moved = 0
        for build, following in itertools.pairwise(builds):
            count = build["context"]["prefix"]["messages"]
            stays = numbers(build) == numbers(following)
            moved += not stays
            assert count > (20 if numbers(build) else 1)
            assert (following["messages"][:count] == build["messages"][:count]) == stays
            assert following["messages"][:2] == build["messages"][:2]
        assert numbers(builds[-1])
        assert moved < 20

    @pytest.mark.parametrize("missing", ["goal", "past_turns"])
    async def test_something_is_missing(self, missing: str) -> None:
        """It is there the next time, so nothing behind it stays where it is."""
        turns = ten_turns()
        turns.unreadable = {missing}
        async with opened(turns=turns, settings=CUT) as parts:
            parts.store.plant("messages", past(10))
            first = await parts.build(asking())
            turns.unreadable = set()
            following = await parts.build(asking("again", "msg_2", "run_2"))
        count = first["context"]["prefix"]["messages"]
        assert count == (1 if missing == "goal" else 2)
        assert following["messages"][:count] == first["messages"][:count]

    @pytest.mark.parametrize("by_model", [True, False])
    @pytest.mark.parametrize("source", ["fallback", "model"])
    async def test_summaries_by_rules(self, source: str, *, by_model: bool) -> None:
        """Are about to be replaced where there is a model, so what stands from there on is not counted."""
        turns = ten_turns()
        turns.documents["ada", "default"][0]["summaries"]["source"] = source
        settings = settings_with(history_messages=6, summaries_by_model=by_model)
        async with opened(turns=turns, settings=settings) as parts:
            parts.store.plant("messages", past(10))
            builds = [await parts.build(asking())]
            builds.append(await parts.build(asking(request_id="msg_2", later=LATER)))
        counts = {content["context"]["prefix"]["messages"] for content in builds}
        assert counts == {2 if by_model and source == "fallback" else 3}


@given(
    runs=st.integers(0, 30),
    rows=st.integers(2, 40),
    most=st.integers(1, 30),
    gone=st.integers(0, 30),
    broken=st.sets(st.integers(1, 30), max_size=3),
)
async def test_every_turn_is_somewhere(runs: int, rows: int, most: int, gone: int, broken: set[int]) -> None:
    """Shown as it was said, in its summary, or counted: each once."""
    turns = FakeTurns()
    said_of = [None if number in broken else summaries("x") for number in range(1, runs + 1)]
    turns.plant(*(stored_turn(number, summaries=said) for number, said in enumerate(said_of, 1)))
    async with opened(turns=turns, settings=settings_with(history_messages=rows, turns_shown=most)) as parts:
        parts.store.plant("messages", past(runs)[2 * gone :])
        content = await parts.build(asking())
    raw = {message["content"] for message in content["messages"]}
    said = [number for number in range(1, runs + 1) if f"HUMAN {number - 1}" in raw]
    remembered = numbers(content)
    assert not {*said} & {*remembered}
    memory = block(content, "TURN_MEMORY")
    if memory:
        assert len(said) + len(remembered) + memory["dropped"] == runs
    else:
        gone = runs - len(said)
        assert not gone or (f"{gone} turn{'' if gone == 1 else 's'}", Why.TOO_MANY.value) in left_out(content)
