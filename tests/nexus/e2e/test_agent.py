"""The agent layout on a running service, asked by redis-py and JSON alone (contract §5)."""

import hashlib
import json
import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from nexus.services.context import PromptManager
from nexus.services.context.formats import Converted
from nexus.services.tools.memory_tools import definitions
from tests.nexus.e2e.harness import PATIENCE_S, Requester, a_request, requesting, requesting_by_streams, serving
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults

Environment = dict[str, str]
Database = MongoClient[dict[str, Any]]

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
    """What an orchestrator does in one session of an owner."""

    def __init__(self, requester: Requester, uri: str, database: str) -> None:
        self._requester = requester
        self._uri, self._database = uri, database
        self._published = 0

    async def ask(
        self, text: str, run_id: str, later: list[dict[str, Any]] | None = None, **given: Any
    ) -> dict[str, Any]:
        """Ask for a context of the agent layout."""
        metadata = {"layout": "agent", "session_id": "garden", **given}
        return await self._requester.ask(a_request(text, run_id=run_id, later=later, run_metadata=metadata))

    async def say(self, topic: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """Publish a message and return it."""
        await self._requester.publish(topic, message)
        self._published += 1
        return dict(message)

    async def recorded(self, rows: int) -> list[dict[str, Any]]:
        """Wait until so many rows are recorded, and return them."""
        with Database(self._uri) as client, anyio.fail_after(PATIENCE_S):
            while True:
                found = list(client[self._database]["messages"].find({}, {"_id": 0}))
                if len(found) >= rows:
                    return found
                await self._requester.redis.ping()
        raise AssertionError(rows)


def message(role: str, content: Any, run_id: str, **metadata: Any) -> dict[str, Any]:
    """A message as an orchestrator publishes it."""
    now = a_request()["timestamp"]
    common = {"run_id": run_id, "owner_key": "ada", "role": role, "timestamp": now}
    return {"id": f"msg_{uuid.uuid4().hex}", **common, "content": content, "metadata": metadata}


def declares(run_id: str, *call_ids: str, text: str = "") -> dict[str, Any]:
    """A model's answer with calls."""
    function = {"name": "look", "arguments": '{"at": "beds"}'}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in call_ids]
    return message("AI", {"content": text, "tool_calls": calls}, run_id)


def result(run_id: str, call_id: str, text: str) -> dict[str, Any]:
    """A tool's result."""
    return message("TOOL", {"result": text, "tool_name": "look", "call_id": call_id, "status": "success"}, run_id)


def texts(content: Mapping[str, Any]) -> list[str]:
    """The texts of the messages after the first, without the goal and what is said of the memory."""
    said = [item["content"] or "+".join(call["id"] for call in item["tool_calls"]) for item in content["messages"][1:]]
    return [text for text in said if not text.startswith((GOAL, *ABOUT_MEMORY))]


def goals(content: Mapping[str, Any]) -> list[str]:
    """What is said to be the goal: once, if it is known."""
    said = [item["content"] or "" for item in content["messages"]]
    return [text.removeprefix(GOAL) for text in said if text.startswith(GOAL)]


@pytest.fixture(params=["pubsub", "streams"])
def mode(request: pytest.FixtureRequest, environment: Environment) -> str:
    """The mode of the bus, which the services of the test have."""
    environment |= {"NEXUS_BUS__MODE": request.param}
    return str(request.param)


async def test_the_golden_request(
    environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """A request and stored rows, from files, give the response in a third file, to the byte."""
    request = json.loads((GOLDEN / "request.json").read_text(encoding="utf-8"))
    expected = (GOLDEN / "response.json").read_text(encoding="utf-8")
    with Database(mongo_uri) as client:
        client[database_name]["messages"].insert_many(json.loads((GOLDEN / "rows.json").read_text(encoding="utf-8")))
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
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
    assert set(content["context"].pop("timings_ms")) == {"queue", "gather", "assemble", "build"}
    assert json.dumps(content, ensure_ascii=False, indent=2) + "\n" == expected


async def test_a_session(
    mode: str, environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """Two runs with parallel calls and a sub-agent's between them: what was said comes back as it was said."""
    requesting_in = {"pubsub": requesting, "streams": requesting_by_streams}[mode]
    async with serving(environment), requesting_in(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        session = Session(requester, mongo_uri, database_name)
        first = await session.ask("How are the beans?", "run_1", state=STATE)
        calls = await session.say("llm.results", declares("run_1", "a", "b"))
        results = [
            await session.say("tools.results", result("run_1", call_id, text))
            for call_id, text in (("b", "wet"), ("a", "dry"))
        ]
        second = await session.ask("How are the beans?", "run_1", [calls, *results], state=STATE)
        await session.say("llm.results", message("AI", {"content": "Thirsty in bed a."}, "run_1"))
        await session.recorded(5)

        scouting = await session.ask("Go.", "run_scout", agent=SCOUT, state={"todos": []})
        await session.say("llm.results", declares("run_scout", "s", text="Looking."))
        await session.say("tools.results", result("run_scout", "s", "12 May"))
        await session.say("llm.results", message("AI", {"content": "It was on 12 May."}, "run_scout"))
        await session.recorded(9)

        third = await session.ask("And the peas?", "run_2", state=STATE)
        again = await session.ask("More.", "run_scout_2", agent=SCOUT, state={"todos": []})
        dialogue = await session.ask("And the peas?", "run_3", layout="dialogue")
        rows = await session.recorded(12)
    said = ["How are the beans?", "a+b", "dry", "wet", "Thirsty in bed a."]
    assert texts(first) == [*PINNED, "How are the beans?"]
    assert texts(second) == [*texts(first), *said[1:4]]
    assert texts(third) == [*PINNED, *said, "And the peas?"]
    assert [goals(content) for content in (first, second, third, scouting, again)] == [["How are the beans?"]] * 5
    assert goals(dialogue) == []
    assert [item["role"] for item in third["messages"][7:-1]] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    assert scouting["messages"][0] == {"role": "user", "content": "Find the last frost."}
    assert texts(scouting) == ["## Agent Role Definition\n\nYou look things up.", *said, "Go."]
    assert [text for text in texts(again) if text in {"Go.", "Looking.", "12 May", "It was on 12 May."}] == [
        "Go.",
        "Looking.",
        "12 May",
        "It was on 12 May.",
    ]
    assert "12 May" not in json.dumps([third["messages"], dialogue["messages"]])
    internal = {row["run_id"] for row in rows if row["metadata"].get("sub_agent_internal")}
    assert internal == {"run_scout", "run_scout_2"}
    assert all(content["degraded"] == [] for content in (first, second, third, scouting, again, dialogue))


@pytest.mark.parametrize("layout", ["agent", "dialogue"])
async def test_an_answer_that_was_just_heard(environment: Environment, channel_prefix: str, layout: str) -> None:
    """A run that is asked for in the same breath in which the last one was answered finds the answer.

    Or it says that the answer is not written yet, where a busy machine takes longer than a build waits for it.
    """
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        session = Session(requester, "", "")
        contents = [await session.ask("question 0", "run_0", layout=layout)]
        for number in range(1, 21):
            await session.say("llm.results", message("AI", {"content": f"answer {number - 1}"}, f"run_{number - 1}"))
            contents.append(await session.ask(f"question {number}", f"run_{number}", layout=layout))
    notes = [content["context"]["notes"] for content in contents[1:]]
    assert [] in notes
    for number, content in enumerate(contents[1:]):
        if notes[number] != ["history: what was heard last is not written yet"]:
            assert notes[number] == []
            assert f"answer {number}" in json.dumps(content["messages"])


async def test_what_is_stored_is_pinned_afresh_each_time(environment: Environment, channel_prefix: str) -> None:
    """A state that was said before a request is in its context, also in a later build of the same run."""
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        session = Session(requester, "", "")
        seen = []
        for status in ("pending", "in_progress", "completed"):
            todos = [{"id": "t1", "text": "Dig", "status": status}]
            await session.say(
                "session.state",
                message("COMMAND", {"op": "set", "state": {"todos": todos}}, "run_1", session_id="garden"),
            )
            seen.append(texts(await session.ask("Dig?", "run_1")))
        await session.say("session.state", message("COMMAND", {"op": "clear"}, "run_1", session_id="garden"))
        nothing = texts(await session.ask("Dig?", "run_1"))
    boxes = ("[ ]", "[~]", "[x]")
    assert seen == [[f"## Current TODO List\n\n- {box} Dig (ID: t1)", "Dig?"] for box in boxes]
    assert nothing == ["Dig?"]


async def test_a_sub_agent_without_a_role(environment: Environment, channel_prefix: str) -> None:
    """It is refused by its name until it has one, be it stored; the main agent's does not count."""
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        session = Session(requester, "", "")
        agent = {"kind": "sub", "id": "scout"}
        state = {"op": "set", "state": {"role": "The main one."}}
        await session.say("session.state", message("COMMAND", state, "run_1", session_id="garden"))
        refused = await session.ask("Go.", "run_1", agent=agent)
        roles = {"op": "patch", "state": {"sub_agent_roles": {"scout": "You look things up."}}}
        await session.say("session.state", message("COMMAND", roles, "run_1", session_id="garden"))
        built = await session.ask("Go.", "run_2", agent=agent)
        main = await session.ask("Well?", "run_3")
    assert refused["status"] == "error"
    assert refused["error"]["code"] == "MISSING_AGENT_ROLE"
    assert "'scout'" in refused["error"]["message"]
    assert not refused["error"]["retryable"]
    said = [item["content"] for item in built["messages"]]
    assert said[:-1] == ["## Agent Role Definition\n\nYou look things up.", "Go."]
    assert said[-1].startswith("[CONTEXT_META]")
    assert texts(main) == ["## Agent Role Definition\n\nThe main one.", "Well?"]


async def test_the_command_line(environment: Environment) -> None:
    """`nexus request` asks for a sub-agent's context, in a provider's format."""
    agent = {"kind": "sub", "id": "scout", "role": "You look things up.", "task_prompt": "Find the last frost."}
    words = ["request", "--owner", "ada", "--input", "Go.", "--layout", "agent", "--format", "gemini", "--json"]
    words += ["--metadata", json.dumps({"agent": agent, "layout": "dialogue"})]
    async with serving(environment):
        done = await anyio.run_process([sys.executable, "-m", "nexus", *words], env={**os.environ, **environment})
    content = json.loads(done.stdout)
    (message,) = content["messages"]
    *said, meta = [part["text"] for part in message["parts"]]
    assert said == ["Find the last frost.", "## Agent Role Definition\n\nYou look things up.", "Go."]
    assert meta.startswith("[CONTEXT_META]")
    assert (content["layout"], content["format"], "system" in content) == ("agent", "gemini", False)


@pytest.mark.parametrize(
    ("form", "faults"), [("openai", openai_faults), ("anthropic", anthropic_faults), ("gemini", gemini_faults)]
)
async def test_every_provider_takes_what_is_answered(  # noqa: PLR0917  # fixtures
    form: str, faults: Any, environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """The answer itself, with tools, a lost result and the run's own messages, in the provider's own types."""
    tool = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        session = Session(requester, mongo_uri, database_name)
        await session.say("tools.register", message("SYSTEM", tool, "setup"))
        await requester.ask_until(lambda: a_request(owner="somebody else"), lambda answer: bool(answer["tools"]))
        await session.ask("How are the beans?", "run_1")
        await session.say("llm.results", declares("run_1", "a", "b"))
        await session.say("tools.results", result("run_1", "b", "wet"))
        await session.recorded(4)
        later = [declares("run_2", "a"), result("run_2", "a", "dry")]
        content = await session.ask("And now?", "run_2", later, state=STATE, format=form)
    places = [tuple(block.get("place") or ()) for block in content["context"]["blocks"]]
    converted = Converted(content["messages"], content["tools"], [], [], content.get("system"))
    assert faults(converted) == []
    assert content.get("format", "openai") == form
    assert content["tools"]
    assert ("system" in content) == (form != "openai")
    assert ("cache_control" in json.dumps(content["messages"][-1])) == (form == "anthropic")
    assert len({place for place in places if place}) == len([place for place in places if place])
    assert any("no result" in note for note in content["context"]["notes"])
