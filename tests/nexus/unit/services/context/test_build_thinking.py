"""How a context of the thinking layout comes about: what stays in a run, and what is the request's (contract §6)."""

import json
from typing import Any

import pytest

from nexus.adapters.in_memory import MemoryBus
from nexus.core.turns import ThinkingRound
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.fakes import FakeStore
from tests.nexus.unit.services.context.remembering import stored_turn, summaries
from tests.nexus.unit.services.parts import AwayLedger, definition, opened, past, request
from tests.nexus.unit.services.remembering_turns import FakeTurns

CALL = {"id": "c1", "type": "function", "function": {"name": "web_search", "arguments": "{}"}}
LATER = [
    {"id": "ai_1", "role": "AI", "content": "Looking.", "metadata": {"tool_calls": [CALL]}},
    {"id": "tool_1", "role": "TOOL", "content": "found", "metadata": {"call_id": "c1"}},
]
ROUNDS = [{"round_number": number, "content": f"thought {number}"} for number in (1, 2)]


def asking(text: str = "hello", request_id: str = "msg_1", run_id: str = "run_1", **metadata: Any) -> Any:
    """A request for the thinking layout, with this metadata of the run."""
    later = metadata.pop("later", None)
    return request(text, request_id, run_id, later=later, run_metadata={"layout": "thinking", **metadata})


def seen(content: dict[str, Any]) -> str:
    """The second message."""
    assert [message["role"] for message in content["messages"][:2]] == ["system", "user"]
    return str(content["messages"][1]["content"])


def three_turns() -> FakeTurns:
    """The turns of `past(3)`."""
    turns = FakeTurns()
    turns.plant(*(stored_turn(number) for number in (1, 2, 3)))
    return turns


async def test_a_whole_answer() -> None:
    """Goal, workspace, all earlier turns, input, rounds, tools; the history is not read."""
    async with opened(turns=three_turns()) as parts:
        parts.store.plant("messages", past(3))
        parts.registry.register(definition(), print)
        content = await parts.build(asking(workspace_context="a desk", thinking_rounds=ROUNDS))
        read = [call for call in parts.store.calls if call.endswith("messages")]
    assert (content["status"], content["layout"], content["degraded"]) == ("success", "thinking", [])
    assert seen(content) == (
        "=== TASK CONTEXT ===\nUser's Goal: the goal\n\n"
        "=== WORKSPACE CONTEXT ===\na desk\n\n"
        "=== ACCUMULATED MEMORY SUMMARIES ===\n[Turn 1] detailed 1\n\n[Turn 2] detailed 2\n\n[Turn 3] detailed 3\n\n"
        "=== CURRENT INPUT ===\nhello\n\n"
        "=== PREVIOUS THINKING ROUNDS ===\nRound 1: thought 1\n\nRound 2: thought 2"
    )
    assert read == []
    assert content["tools"] == [definition()]
    assert [*content["context"]] == ["layout", "blocks", "history", "prefix", "notes", "left_out", "timings_ms"]
    assert set(content["context"]["timings_ms"]) == {"gather", "assemble", "build"}


async def test_the_first_run_of_a_session() -> None:
    """Its input is the goal, and there is nothing else."""
    async with opened(turns=FakeTurns()) as parts:
        content = await parts.build(asking("find reviews"))
    assert seen(content) == "=== TASK CONTEXT ===\nUser's Goal: find reviews"


async def test_the_latest_turns_are_shown() -> None:
    """As many as settings allow, never the run's own; the others are counted."""
    async with opened(turns=three_turns(), settings=settings_with(turns_shown=2)) as parts:
        content = await parts.build(asking())
    assert "[Turn 2] detailed 2\n\n[Turn 3] detailed 3\n\n===" in seen(content)
    assert "[Turn 1]" not in seen(content)
    assert "[Turn 4]" not in seen(content)
    (turns,) = [block for block in content["context"]["blocks"] if block["tag"] == "TURN_MEMORY"]
    assert turns["dropped"] == 1


async def test_what_stays_in_a_run() -> None:
    """Goal, turns and tools are those of the first build; workspace and rounds are those of the request."""
    turns = three_turns()
    async with opened(turns=turns) as parts:
        parts.registry.register(definition("one"), print)
        first = await parts.build(asking(workspace_context="a desk", thinking_rounds=ROUNDS[:1]))
        for turn in turns.documents["ada", "default"]:
            turn["summaries"] = summaries("better")
        parts.registry.register(definition("two"), print)
        parts.builder.settings = settings_with(turns_shown=1, summary_detail_level="brief")
        second = await parts.build(asking("hello", "msg_2", workspace_context="a bench", thinking_rounds=ROUNDS))
    wanted = seen(first).replace("a desk", "a bench") + "\n\nRound 2: thought 2"
    assert seen(second) == wanted
    assert second["tools"] == first["tools"] == [definition("one")]


async def test_rounds_that_come_later() -> None:
    """Are taken over by the turn, in a continuation only where there are any."""
    turns = FakeTurns()
    async with opened(turns=turns) as parts:
        await parts.build(asking())
        await parts.build(asking(request_id="msg_2", thinking_rounds=ROUNDS[:1]))
        await parts.build(asking(request_id="msg_3", later=LATER, thinking_rounds=ROUNDS))
        await parts.build(asking(request_id="msg_4", later=LATER))
    assert [start.rounds for start in turns.begun] == [
        (),
        (ThinkingRound(round_number=1, content="thought 1"),),
        tuple(ThinkingRound(round_number=number, content=f"thought {number}") for number in (1, 2)),
    ]
    assert {(start.run_id, start.thinking) for start in turns.begun} == {("run_1", True)}


async def test_a_run_that_thinks_and_then_acts() -> None:
    """Is one turn; the context in which it acts knows the same goal, and brings the last round."""
    turns = three_turns()
    async with opened(turns=turns) as parts:
        await parts.build(asking(task_context="another goal"))
        content = await parts.build(asking("hello", "msg_2", layout="agent", thinking_rounds=ROUNDS))
    assert "User's Goal: another goal" in json.dumps(content["messages"])
    assert [turn["run_id"] for turn in turns.documents["ada", "default"]][3:] == ["run_1"]
    assert [(start.thinking, len(start.rounds)) for start in turns.begun] == [(True, 0), (False, 2)]


async def test_another_level_and_another_goal() -> None:
    """Are honoured in a later build."""
    async with opened(turns=three_turns()) as parts:
        await parts.build(asking())
        content = await parts.build(asking(request_id="msg_2", summary_detail_level="brief", task_context="mine"))
        third = await parts.build(asking(request_id="msg_3"))
    assert "User's Goal: mine\n" in seen(content)
    assert "[Turn 1] brief 1\n" in seen(content)
    assert "User's Goal: mine\n" in seen(third)
    assert "[Turn 1] detailed 1\n" in seen(third)


@pytest.mark.parametrize("form", ["openai", "anthropic", "gemini"])
async def test_a_continuation(form: str) -> None:
    """The run's own messages follow the two; every part says where it is."""
    async with opened(turns=three_turns()) as parts:
        plain = await parts.build(asking(thinking_rounds=ROUNDS))
        content = await parts.build(asking(request_id="msg_2", later=LATER, thinking_rounds=ROUNDS, format=form))
    blocks = content["context"]["blocks"]
    assert [block["tag"] for block in blocks][-2:] == ["THINKING_ROUNDS", "RUN"]
    assert [block["index"] for block in blocks] == [0, 1, 1, 1, 1, 2]
    assert content["context"]["prefix"] == plain["context"]["prefix"]
    if form == "openai":
        assert content["messages"][:2] == plain["messages"]
        assert [message["role"] for message in content["messages"][2:]] == ["assistant", "tool"]
    else:
        assert [block["place"] for block in blocks] == [None, *[(0, 0)] * 4, (1, 0)]
        assert seen(plain) in json.loads(json.dumps(content["messages"][0])).popitem()[1][0]["text"]


@pytest.mark.parametrize("away", [False, True], ids=["kept", "the bus is away"])
async def test_the_same_inputs_give_the_same_bytes(*, away: bool) -> None:
    """On two services, and asked twice of one, be the turns kept or read again."""
    seen_bytes = set()
    for _ in range(2):
        turns = three_turns()
        async with opened(turns=turns, ledger=AwayLedger(MemoryBus()) if away else None) as parts:
            for number in range(2):
                asked = asking(request_id=f"msg_{number}", thinking_rounds=ROUNDS, workspace_context="a desk")
                seen_bytes.add(json.dumps((await parts.build(asked))["messages"]))
    assert len(seen_bytes) == 1


async def test_a_sub_agent_thinks_about_the_goal_of_its_session() -> None:
    """Its own run is no turn, and no role is needed for thinking."""
    turns = three_turns()
    async with opened(turns=turns) as parts:
        content = await parts.build(asking(agent={"kind": "sub", "id": "scout"}))
        await parts.persistence.flush()
    assert "User's Goal: the goal" in seen(content)
    assert turns.begun == []
    assert parts.store.messages[0]["metadata"]["sub_agent_internal"] is True


async def test_nothing_is_kept_of_a_degraded_build() -> None:
    """The tools alone are reason enough."""
    turns = FakeTurns()
    async with opened(FakeStore(), turns=turns) as parts:
        parts.registry.complete = False
        first = await parts.build(asking())
        parts.registry.complete = True
        parts.registry.register(definition(), print)
        second = await parts.build(asking(request_id="msg_2"))
    assert (first["degraded"], first["tools"]) == (["tools"], [])
    assert (second["degraded"], second["tools"]) == ([], [definition()])


async def test_nothing_is_kept_without_what_is_to_be_recorded() -> None:
    """What the request names is not there: the answer says so, and a later build of the run reads all anew."""
    async with opened(FakeStore(), turns=FakeTurns()) as parts:
        asked = asking().model_copy(update={"metadata": {"after": ["msg_late"]}})
        first = await parts.build(asked, budget_s=0.5)
        parts.store.plant("messages", [{**past(1)[0], "id": "msg_late"}])
        parts.registry.register(definition(), print)
        second = await parts.build(asked.model_copy(update={"id": "msg_2"}))
    assert first["context"]["notes"] == ["metadata.after: 1 of 1 messages are not recorded"]
    assert (second["context"]["notes"], second["tools"]) == ([], [definition()])
