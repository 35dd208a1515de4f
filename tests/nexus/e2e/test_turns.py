"""Turn memory on running services, with a real model server: asked by redis-py and JSON alone (contract §6)."""

import json
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import Document, Environment, Requester, a_message, a_request, requesting, serving
from tests.nexus.support.model_behaviours import good, silent
from tests.nexus.support.model_server import ModelServer, model_server
from tests.nexus.support.waiting import until

GOAL = "Please find what is known of SGLT2 inhibitors and their effect on the heart in type 2 diabetes"
SEARCHED = "PubMed found 156 articles for these words."
FILTERED = "15 systematic reviews and meta-analyses from 2018 to 2024 were left."
EXTRACTED = "Pooled over 5 trials: HR 0.86 (95% CI 0.80-0.93) for major adverse cardiovascular events."
ANSWERED = "Of 156 articles, 15 reviews were kept. SGLT2 inhibitors lower the risk (HR 0.86, 95% CI 0.80-0.93)."
# Bounds a failure alone.
TURN_PATIENCE_S = 120.0
RUNS_AT_ONCE = 40

pytestmark = pytest.mark.timeout(300)


class Session:
    """An orchestrator and its tools in one session."""

    def __init__(self, requester: Requester, name: str = "review") -> None:
        self.requester = requester
        self.name = name

    async def ask(self, text: str, run_id: str, **given: Any) -> Document:
        """Ask for a context of the agent layout."""
        metadata = {"layout": "agent", "session_id": self.name, **given}
        return await self.requester.ask(a_request(text, run_id=run_id, run_metadata=metadata))

    async def run(self, text: str, run_id: str, steps: Mapping[str, str], answer: str, **given: Any) -> Document:
        """A whole run: its input, a call for each tool with its result, the answer. Returns its first context."""
        context = await self.ask(text, run_id, **given)
        for number, (query, result) in enumerate(steps.items()):
            await self.requester.publish("llm.results", calling(run_id, f"c{number}", query))
            await self.requester.publish("tools.results", resulting(run_id, f"c{number}", result))
        await self.requester.publish("llm.results", a_message({"content": answer, "tool_calls": None}, run_id))
        return context


class Turns:
    """The turns as they are stored."""

    def __init__(self, client: MongoClient[Document], database: str) -> None:
        self._rows = client[database]["turns"]

    def of(self, session: str = "review") -> list[Document]:
        """The turns of a session, in order."""
        return list(self._rows.find({"session_id": session}, {"_id": 0}).sort("turn_number", 1))

    def let_claims_run_out(self) -> None:
        """Make everything due that a dead service had claimed."""
        self._rows.update_many({"work": {"$ne": None}}, {"$set": {"due_at": datetime.now(UTC)}})

    def forget(self) -> None:
        """Remove all of them."""
        self._rows.delete_many({})

    async def all_are(self, wanted: Callable[[Document], Any], count: int, session: str = "review") -> list[Document]:
        """Wait until there are so many turns in a session and all are as wanted."""
        found: list[Document] = []
        with anyio.move_on_after(TURN_PATIENCE_S):
            while not (len(found) == count and all(map(wanted, found))):
                await anyio.sleep(0.05)
                found = self.of(session)
            return found
        others = [(turn["status"], turn["work"], turn["due_at"]) for turn in found if not wanted(turn)]
        raise AssertionError((len(found), others[:5]))


def calling(run_id: str, call_id: str, query: str) -> Document:
    """A model's answer that calls a tool."""
    function = {"name": "search_pubmed", "arguments": json.dumps({"query": query})}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return a_message({"content": "", "tool_calls": calls}, run_id, metadata={"usage": {"total_tokens": 100}})


def resulting(run_id: str, call_id: str, text: str) -> Document:
    """A tool's result."""
    content = {"result": text, "tool_name": "search_pubmed", "call_id": call_id, "status": "success"}
    return a_message(content, run_id, "TOOL")


def is_closed(turn: Document) -> bool:
    """Whether the turn is over and has a summary of all that it was."""
    return bool(turn["status"] == "completed" and turn["work"] != "close")


def is_by_model(turn: Document) -> bool:
    """Whether a model has summarised it."""
    return is_closed(turn) and bool(turn["summaries"]["source"] == "model")


def contents(context: Document) -> list[str]:
    """The texts of a context's messages, without the working memory."""
    texts = [item["content"] for item in context["messages"] if isinstance(item["content"], str)]
    return [text for text in texts if not text.startswith("[WORKING_MEMORY ")]


@pytest.fixture
def turns(mongo_janitor: MongoClient[Document], database_name: str) -> Turns:
    """The turns of the test's services."""
    return Turns(mongo_janitor, database_name)


@asynccontextmanager
async def playing(environment: Environment, *, replicas: int = 1) -> AsyncIterator[Requester]:
    """Services on one bus, and their requester."""
    async with AsyncExitStack() as stack:
        for _ in range(replicas):
            await stack.enter_async_context(serving(environment))
        yield await stack.enter_async_context(requesting(environment))


def with_model(environment: Environment, server: ModelServer, **settings: str) -> Environment:
    """Variables for a service that has this model."""
    given = {
        "BASE_URL": server.base_url,
        "MODEL": "scribe",
        "API_KEY": "sk-canary",
        "AGAIN_S": "0.5",
        "RETRIES": "0",
        "SETTLE_S": "1",
    }
    return {**environment, **{f"NEXUS_LLM__{name}": value for name, value in {**given, **settings}.items()}}


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("mode", ["streams"], indirect=True)
async def test_every_turn_knows_the_goal(environment: Environment, turns: Turns) -> None:
    """A goal given later replaces it from there on; a second session has its own; figures are remembered."""
    # With a working memory the session would be compacted meanwhile, and more turns be told.
    environment |= {"NEXUS_LAYOUTS__AGENT__HISTORY_MESSAGES": "8", "NEXUS_MEMORY__WORKING_MEMORY": "false"}
    async with playing(environment) as requester:
        session, other = Session(requester), Session(requester, "other")
        contexts = [
            await session.run(GOAL, "run_1", {"SGLT2 inhibitors cardiovascular": SEARCHED}, "There are 156 articles."),
            await session.run("Only reviews, please", "run_2", {"filter 2018-2024": FILTERED}, "15 reviews are left."),
            await session.run("What do they say?", "run_3", {"extract": EXTRACTED, "verify": "verified"}, ANSWERED),
            await session.run("Now write", "run_4", {}, "Written.", task_context="Write a review"),
            await session.run("Thanks", "run_5", {}, "You are welcome."),
        ]
        elsewhere = await other.run("Good morning", "run_6", {}, "Good morning!")
        found = await turns.all_are(is_closed, 5)
        (lone,) = await turns.all_are(is_closed, 1, "other")
        later = await session.ask("And now?", "run_7", summary_detail_level="detailed")
        rounds = [{"round_number": 1, "content": "Look closer."}]
        thinking = await session.ask("And now?", "run_8", layout="thinking", thinking_rounds=rounds)
    goals = [GOAL] * 3 + ["Write a review"] * 2
    assert [turn["task_context"] for turn in found] == goals
    assert [(turn["turn_number"], turn["run_id"]) for turn in found] == [(n, f"run_{n}") for n in range(1, 6)]
    shown = [f"[TASK_CONTEXT]\nUser's Goal: {goal}" for goal in goals]
    assert [contents(context)[1] for context in contexts] == shown
    assert (lone["task_context"], lone["turn_number"]) == ("Good morning", 1)
    assert contents(elsewhere)[1] == "[TASK_CONTEXT]\nUser's Goal: Good morning"
    assert [len(turn["tool_calls"]) for turn in found] == [1, 1, 2, 0, 0]
    assert found[2]["token_usage"] == {"thinking": 0, "action": 200, "total": 200}
    assert {turn["summaries"]["source"] for turn in found} == {"fallback"}
    for turn, figures in zip(found, [("156 articles",), ("15",), ("HR 0.86", "95% CI 0.80-0.93"), (), ()], strict=True):
        assert all(figure in turn["summaries"]["detailed"] for figure in figures)
    memory = contents(later)[2]
    assert memory.startswith("[TURN_MEMORY level=detailed count=")
    assert f"[Turn 1] {found[0]['summaries']['detailed']}" in memory
    system, user = thinking["messages"]
    assert (system["role"], user["role"]) == ("system", "user")
    for part in ("User's Goal: Write a review", "=== ACCUMULATED MEMORY SUMMARIES ===", "Round 1: Look closer."):
        assert part in user["content"]


@pytest.mark.heavy
@pytest.mark.once
async def test_many_runs_at_once(streams: Environment, turns: Turns) -> None:
    """Forty runs of one session on two replicas: numbers without a gap, one goal, and each is summarised."""
    async with (
        model_server(good()) as server,
        playing(with_model(streams, server), replicas=2) as requester,
        anyio.create_task_group() as tasks,
    ):
        session = Session(requester)
        for number in range(RUNS_AT_ONCE):
            answer = f"Answer {number}: 0.86."
            tasks.start_soon(session.run, f"Question {number}?", f"run_{number}", {f"word {number}": "x"}, answer)
        found = await turns.all_are(is_by_model, RUNS_AT_ONCE)
    assert [turn["turn_number"] for turn in found] == [*range(1, RUNS_AT_ONCE + 1)]
    assert {turn["run_id"] for turn in found} == {f"run_{number}" for number in range(RUNS_AT_ONCE)}
    assert len({turn["task_context"] for turn in found}) == 1


async def test_a_replica_that_was_killed_before_it_wrote_the_turn(streams: Environment, turns: Turns) -> None:
    """The bus hands its result out again: that is recorded, and the run becomes a turn."""
    answer = a_message({"content": ANSWERED, "tool_calls": None}, "run_1")
    async with playing(streams) as requester:
        await Session(requester).ask("What is known?", "run_1")
        await requester.publish("llm.results", answer)
        (before,) = await turns.all_are(is_closed, 1)
        turns.forget()
        await requester.publish("llm.results", answer)
        (turn,) = await turns.all_are(is_closed, 1)
    assert (turn["run_id"], turn["messages"]) == ("run_1", before["messages"])


async def asked_of(server: ModelServer) -> int:
    """How often the model was asked."""
    return len(server.asked)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("mode", "sign"), [("pubsub", signal.SIGTERM), ("streams", signal.SIGKILL)], indirect=["mode"])
async def test_ended_between_answer_and_summary(sign: signal.Signals, environment: Environment, turns: Turns) -> None:
    """No turn is lost, and no summary: the next service finishes the work."""
    async with model_server(silent()) as server, requesting(environment) as requester:
        given = with_model(environment, server)
        session = Session(requester)
        async with serving(given) as service:
            for number in range(3):
                await session.run(f"Question {number}", f"run_{number}", {"a": EXTRACTED}, ANSWERED)
            await turns.all_are(is_closed, 3)
            await until(partial(asked_of, server))
            await service.stop(sign)
        if sign == signal.SIGKILL:
            turns.let_claims_run_out()
        assert {turn["summaries"]["source"] for turn in turns.of()} == {"fallback"}
        server.behaviour = good()
        async with serving(given):
            found = await turns.all_are(is_by_model, 3)
    assert [turn["turn_number"] for turn in found] == [1, 2, 3]
