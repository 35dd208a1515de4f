"""The agent layout on a running service, asked by redis-py and JSON alone (contract §5)."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from nexus.services.context import PromptManager
from nexus.services.context.formats import Converted
from nexus.services.tools.memory_tools import definitions
from tests.nexus.e2e.harness import Document, Environment, Requester, a_message, a_request, requesting, serving
from tests.nexus.support import schemas
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults
from tests.nexus.support.waiting import until

ABOUT_MEMORY = ("[WORKING_MEMORY ", "[CONTEXT_META]")
GOLDEN = Path(__file__).parent / "golden" / "agent"
STATE = {
    "role": "You keep the garden's diary.",
    "todos": [{"id": "t1", "text": "Water the beans", "status": "in_progress"}],
    "useful_info": ["Frost until May."],
    "folder_notes": [{"folder": "beds", "text": "Bed 3 is in the shade."}],
}
PINNED = [
    "## Agent Role Definition\n\nYou keep the garden's diary.",
    "## Current TODO List\n\n- [~] Water the beans (ID: t1)",
    "## Useful Information\n\n- Frost until May.",
    "## Folder Notes\n\n### beds\n- Bed 3 is in the shade.",
]
GOAL = "[TASK_CONTEXT]\nUser's Goal: "
SCOUT = {"kind": "sub", "id": "scout", "role": "You look things up.", "task_prompt": "Find the last frost."}


class Session:
    """An orchestrator in one session of an owner."""

    def __init__(self, requester: Requester, database: Any = None) -> None:
        self._requester = requester
        self._database = database

    async def ask(self, text: str, run_id: str, later: list[Document] | None = None, **given: Any) -> Document:
        """Ask for a context of the agent layout."""
        metadata = {"layout": "agent", "session_id": "garden", **given}
        return await self._requester.ask(a_request(text, run_id=run_id, later=later, run_metadata=metadata))

    async def say(self, topic: str, message: Mapping[str, Any]) -> Document:
        """Publish a message and return it."""
        await self._requester.publish(topic, message)
        return dict(message)

    async def recorded(self, rows: int) -> list[Document]:
        """Wait until so many rows are recorded, and return them. They are what the schema of rows says."""

        async def found() -> list[Document] | None:
            there = list(self._database["messages"].find({}, {"_id": 0, "recall": 0, "nexus_schema": 0}))
            return there if len(there) >= rows else None

        there = await until(found)
        as_json = [{**row, "timestamp": row["timestamp"].isoformat()} for row in there]
        assert [fault for row in as_json for fault in schemas.faults("stored-row", row, ours=True)] == []
        return there


def declares(run_id: str, *call_ids: str, text: str = "") -> Document:
    """A model's answer with calls."""
    function = {"name": "look", "arguments": '{"at": "beds"}'}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in call_ids]
    return a_message({"content": text, "tool_calls": calls}, run_id)


def answers(run_id: str, text: str) -> Document:
    """A model's answer without calls."""
    return a_message({"content": text}, run_id)


def result(run_id: str, call_id: str, text: str) -> Document:
    """A tool's result."""
    content = {"result": text, "tool_name": "look", "call_id": call_id, "status": "success"}
    return a_message(content, run_id, "TOOL")


def texts(content: Mapping[str, Any]) -> list[str]:
    """The texts of the messages after the first, without the goal and the blocks about memory."""
    said = [item["content"] or "+".join(call["id"] for call in item["tool_calls"]) for item in content["messages"][1:]]
    return [text for text in said if not text.startswith((GOAL, *ABOUT_MEMORY))]


def goals(content: Mapping[str, Any]) -> list[str]:
    """What is said to be the goal: once, if it is known."""
    said = [item["content"] or "" for item in content["messages"]]
    return [text.removeprefix(GOAL) for text in said if text.startswith(GOAL)]


async def test_the_golden_request(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """A request and stored rows, from files, give the response in a third file, to the byte."""
    rows, request = (json.loads((GOLDEN / name).read_text("utf-8")) for name in ("rows.json", "request.json"))
    expected = (GOLDEN / "response.json").read_text(encoding="utf-8")
    mongo_janitor[database_name]["messages"].insert_many(rows)
    async with serving(environment), requesting(environment) as requester:
        content = await requester.ask({**request, "timestamp": a_request()["timestamp"]})
    prefix = content["context"]["prefix"]
    front = json.dumps(content["messages"][: prefix["messages"]], ensure_ascii=False, separators=(",", ":")).encode()
    assert prefix.pop("sha256") == hashlib.sha256(front).hexdigest()
    # The identity and the tools are in the code, and have tests of their own; the file would only repeat them.
    identity = content["messages"].pop(0)
    assert identity == {"role": "system", "content": PromptManager().get_core_identity()}
    first, *_, last = content["context"]["blocks"]
    assert first.pop("bytes") == len(identity["content"].encode())
    assert content.pop("tools") == definitions()
    counted, meta = content["context"].pop("tokens"), content["messages"].pop()["content"].splitlines()
    assert f"tokens_used: {counted['used']}" in meta
    assert sum(map(int, filter(None, (first.pop("tokens"), last.pop("tokens"))))) < counted["used"]
    assert (last["tag"], meta[0], last.pop("bytes")) == ("CONTEXT_META", "[CONTEXT_META]", len("\n".join(meta)))
    told = content["context"].pop("budget")
    assert told["limit"] == counted["limit"]
    assert all(share["used"] == share["wanted"] for share in told["blocks"].values())
    assert set(content["context"].pop("timings_ms")) == {"queue", "gather", "assemble", "build"}
    assert json.dumps(content, ensure_ascii=False, indent=2) + "\n" == expected


@pytest.mark.usefixtures("mode")
async def test_a_session(environment: Environment, mongo_janitor: MongoClient[Document], database_name: str) -> None:
    """Two runs with parallel calls and a sub-agent's between them: every message comes back as it was published."""
    async with serving(environment), requesting(environment) as requester:
        session = Session(requester, mongo_janitor[database_name])
        first = await session.ask("How are the beans?", "run_1", state=STATE)
        calls = await session.say("llm.results", declares("run_1", "a", "b"))
        results = [
            await session.say("tools.results", result("run_1", call_id, text))
            for call_id, text in (("b", "wet"), ("a", "dry"))
        ]
        second = await session.ask("How are the beans?", "run_1", [calls, *results], state=STATE)
        await session.say("llm.results", answers("run_1", "Thirsty in bed a."))
        await session.recorded(5)

        scouting = await session.ask("Go.", "run_scout", agent=SCOUT, state={"todos": []})
        await session.say("llm.results", declares("run_scout", "s", text="Looking."))
        await session.say("tools.results", result("run_scout", "s", "12 May"))
        await session.say("llm.results", answers("run_scout", "It was on 12 May."))
        await session.recorded(9)

        third = await session.ask("And the peas?", "run_2", state=STATE)
        again = await session.ask("More.", "run_scout_2", agent=SCOUT, state={"todos": []})
        dialogue = await session.ask("And the peas?", "run_3", layout="dialogue")
        rows = await session.recorded(12)
    said, scouts = ["How are the beans?", "a+b", "dry", "wet", "Thirsty in bed a."], ["Looking.", "12 May"]
    assert texts(first) == [*PINNED, "How are the beans?"]
    assert texts(second) == [*texts(first), *said[1:4]]
    assert texts(third) == [*PINNED, *said, "And the peas?"]
    # A busy machine may not keep the first turn while its first context is built.
    assert [goals(content) for content in (second, third, scouting, again)] == [["How are the beans?"]] * 4
    assert goals(dialogue) == []
    roles = ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert [item["role"] for item in third["messages"][7:-1]] == roles
    assert scouting["messages"][0] == {"role": "user", "content": "Find the last frost."}
    assert texts(scouting) == ["## Agent Role Definition\n\nYou look things up.", *said, "Go."]
    own = ["Go.", *scouts, "It was on 12 May."]
    assert [text for text in texts(again) if text in own] == own
    assert "12 May" not in json.dumps([third["messages"], dialogue["messages"]])
    internal = {row["run_id"] for row in rows if row["metadata"].get("sub_agent_internal")}
    assert internal == {"run_scout", "run_scout_2"}
    assert all(content["degraded"] == [] for content in (first, second, third, scouting, again, dialogue))


@pytest.mark.parametrize("layout", ["agent", "dialogue"])
async def test_an_answer_that_was_just_published(environment: Environment, layout: str) -> None:
    """A run that is asked for in the same breath in which the last one was answered finds the answer, and its state.

    Or it says that the answer is not written yet, where a busy machine takes longer than a build waits for it.
    """
    async with serving(environment), requesting(environment) as requester:
        session = Session(requester)
        contents = [await session.ask("question 0", "run_0", layout=layout)]
        for number in range(1, 11):
            await session.say("llm.results", answers(f"run_{number - 1}", f"answer {number - 1}"))
            state = {"op": "set", "state": {"useful_info": [f"info {number - 1}"]}}
            await session.say("session.state", a_message(state, role="COMMAND", metadata={"session_id": "garden"}))
            contents.append(await session.ask(f"question {number}", f"run_{number}", layout=layout))
    notes = [content["context"]["notes"] for content in contents[1:]]
    assert [] in notes
    for number, content in enumerate(contents[1:]):
        if notes[number] != ["history: what was heard last is not written yet"]:
            assert notes[number] == []
            assert f"answer {number}" in json.dumps(content["messages"])
        if layout == "agent":
            assert f"## Useful Information\n\n- info {number}" in texts(content)


FORMS = [("openai", openai_faults), ("anthropic", anthropic_faults), ("gemini", gemini_faults)]


async def test_every_provider_takes_what_is_answered(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """The answer itself, with tools, a lost result and the run's own messages, in the provider's own types.

    So do they in the other layouts, where a lost result is not shown.
    """
    tool = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
    async with serving(environment), requesting(environment) as requester:
        session = Session(requester, mongo_janitor[database_name])
        await session.say("tools.register", a_message(tool, role="SYSTEM"))
        await requester.ask_until(lambda: a_request(owner="somebody else"), lambda answer: bool(answer["tools"]))
        await session.ask("How are the beans?", "run_1")
        await session.say("llm.results", declares("run_1", "a", "b"))
        await session.say("tools.results", result("run_1", "b", "wet"))
        await session.recorded(4)
        later = [declares("run_2", "a"), result("run_2", "a", "dry")]
        contents = [await session.ask("And now?", "run_2", later, state=STATE, format=form) for form, _ in FORMS]
        for layout in ("dialogue", "thinking"):
            for form, faults in FORMS:
                content = await session.ask("And now?", f"run_{layout}", later, layout=layout, format=form)
                assert faults(Converted(content["messages"], content["tools"], [], [], content.get("system"))) == []
                assert (content["layout"], content.get("format", "openai")) == (layout, form)
    for content, (form, faults) in zip(contents, FORMS, strict=True):
        assert faults(Converted(content["messages"], content["tools"], [], [], content.get("system"))) == []
        assert content.get("format", "openai") == form
        assert content["tools"]
        assert ("system" in content) == (form != "openai")
        assert ("cache_control" in json.dumps(content["messages"][-1])) == (form == "anthropic")
        places = [tuple(block["place"]) for block in content["context"]["blocks"] if block.get("place")]
        assert len({*places}) == len(places)
        assert any("no result" in note for note in content["context"]["notes"])
