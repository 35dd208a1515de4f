"""What was erased does not come back into running services, whatever comes late or was in hand (contract §13)."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
import pytest
from pymongo import MongoClient

from nexus.core.erasure import hashed
from tests.nexus.e2e.harness import (
    PATIENCE_S,
    REQUEST,
    Collector,
    Document,
    Environment,
    Requester,
    a_message,
    a_request,
    behind,
    is_on_streams,
    port_of,
    requesting,
    serving,
)
from tests.nexus.e2e.test_turns import Session, with_model
from tests.nexus.support.model_behaviours import Behaviour, good
from tests.nexus.support.model_exchange import Exchange
from tests.nexus.support.model_server import model_server
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST
from tests.nexus.support.waiting import until

CANARY: Final = "xanaducanary"
# An erasure looks again after this long.
QUICKLY: Final = {"NEXUS_DATABASE__TIMEOUT_MS": "1500", "NEXUS_CONTEXT__RECORD": "full"}
LETTERS: Final = "nexus:dead-letters"

pytestmark = [pytest.mark.heavy, pytest.mark.once, pytest.mark.timeout(300)]


async def erase(environment: Environment, *words: str) -> None:
    """Erase the owner `ada`, or less of it."""
    command = [sys.executable, "-m", "nexus", "erase", "--owner", "ada", "--yes", *words]
    ended = await anyio.run_process(command, env={**os.environ, **environment}, check=False)
    assert ended.returncode == 0, (ended.stdout.decode(), ended.stderr.decode())


def put_tombstone(client: MongoClient[Document], database: str) -> None:
    """All that an erasure does in the moment in which services do not see MongoDB."""
    now = datetime.now(UTC)
    client[database]["tombstones"].insert_one({"owner": hashed("ada"), "session": "", "until": now, "erased_at": now})


def places_of(client: MongoClient[Document], database: str, text: str = CANARY) -> list[str]:
    """The collections in which some document has the text."""
    stored = client[database]
    names = stored.list_collection_names()
    return [name for name in names if any(text in str(document) for document in stored[name].find())]


async def letters(requester: Requester, count: int) -> list[dict[str, str]]:
    """The first so many dead letters; waits for them."""

    async def there() -> list[dict[str, str]]:
        entries: Any = await requester.redis.xrange(requester.prefix + LETTERS)
        found = [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in entries]
        return found if len({each.get("message_id") for each in found}) >= count else []

    return await until(there)


def said(content: Any, run_id: str, role: str = "AI", *, at: datetime | None = None, **metadata: Any) -> Document:
    """A message, said now or then."""
    message = a_message(content, run_id, role, metadata=metadata)
    return {**message, "timestamp": (at or datetime.now(UTC)).isoformat()}


def late(run_id: str, before: datetime, session: str) -> list[tuple[str, Document]]:
    """What comes of an erased run afterwards: results whatever their time, and all else that was said before."""
    ahead = datetime.now(UTC) + timedelta(seconds=4)
    result = {"result": CANARY, "tool_name": "look", "call_id": "c1", "status": "success"}
    progress = {"call_id": "c2", "state": "working", "message": CANARY, "tool_name": "look"}
    return [
        ("llm.results", said({"content": CANARY, "tool_calls": None}, run_id)),
        ("llm.results", said({"content": CANARY, "tool_calls": None}, run_id, at=ahead)),
        ("tools.results", said(result, run_id, "TOOL", at=before)),
        ("tools.results", said(result, run_id, "TOOL", at=ahead)),
        ("tools.progress", said(progress, run_id, "TOOL")),
        ("runs.input", said(CANARY, run_id, "HUMAN", at=before, session_id=session)),
        (
            "session.state",
            said({"op": "set", "state": {"role": CANARY}}, run_id, "COMMAND", at=before, session_id=session),
        ),
        (
            "memory.facts",
            said({"op": "add", "facts": [{"topic": "home", "value": CANARY}]}, run_id, "COMMAND", at=before)
            | {"metadata": {"session_id": session}},
        ),
        (
            "session.constraints",
            said({"op": "add", "constraints": [CANARY]}, run_id, "COMMAND", at=before, session_id=session),
        ),
    ]


async def publish_all(requester: Requester, messages: Sequence[tuple[str, Document]]) -> None:
    """Publish messages on their topics."""
    for topic, message in messages:
        await requester.publish(topic, message)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("mode", "words"),
    [("pubsub", ("--session", "home")), ("streams", ())],
    ids=["pubsub-session", "streams-owner"],
    indirect=["mode"],
)
async def test_what_comes_late(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str, words: Sequence[str]
) -> None:
    """Each is refused with a word, on two replicas; then a new life begins, and other sessions went on all the time."""
    environment |= {**QUICKLY, "NEXUS_BUS__DEAD_LETTER_BODIES": "true"}
    rows = mongo_janitor[database_name]["messages"]
    async with AsyncExitStack() as stack:
        services = [await stack.enter_async_context(serving(environment)) for _ in range(2)]
        requester = await stack.enter_async_context(requesting(environment))
        results = Collector(
            requester.redis, f"{requester.prefix}tools.results", lambda each: str(each["metadata"].get("request_id"))
        )
        tasks = await stack.enter_async_context(anyio.create_task_group())
        await tasks.start(results.read if is_on_streams(environment) else results.subscribe)
        session = Session(requester, "home")
        await session.run(f"I live in {CANARY}", "old", {"where": CANARY}, f"So you live in {CANARY}.")
        other = Session(requester, "garden")
        await other.ask("The beans are wet", "going on")

        async def stored() -> bool:
            return rows.count_documents({"run_id": "old"}) == 4

        await until(stored)
        before = datetime.now(UTC) - timedelta(seconds=1)
        await erase(environment, *words)
        assert places_of(mongo_janitor, database_name) == []

        come_late = late("old", before, "home")
        await publish_all(requester, come_late)
        resent = a_request(f"I live in {CANARY}", run_id="old", run_metadata={"layout": "agent", "session_id": "home"})
        resent["content"]["history"][0]["timestamp"] = before.isoformat()
        refused = await requester.ask(resent)
        arguments = {"content": CANARY, "name": "home.md"}
        call = said({"name": "write_memory_detail", "args": arguments, "call_id": "c9"}, "old", session_id="home")
        await requester.publish("tools.requests", call)
        with anyio.fail_after(PATIENCE_S):
            (told,) = await results.all_of(call["id"])
        found = await letters(requester, len(come_late))

        assert (refused["status"], refused["error"]["code"]) == ("error", "INVALID_REQUEST")
        what = "the session" if words else "the owner"
        assert f"{what} was erased at 20" in refused["error"]["message"]
        assert (told["content"]["status"], told["content"]["call_id"]) == ("error", "c9")
        assert f"{what} was erased at 20" in told["content"]["result"]
        assert {message["id"] for _, message in come_late} <= {letter["message_id"] for letter in found}
        assert [each for each in found if f"{what} was erased at 20" not in each["reason"] or "body" in each] == []
        assert any(line["event"] == "erased_refused" for each in services for line in each.log)

        if words:
            await requester.publish("llm.results", said({"content": "Wait for rain."}, "going on"))
        shown = await session.ask("Good morning", "new")
        await requester.publish("llm.results", said({"content": "Good morning to you"}, "new"))

        async def goes_on() -> bool:
            wanted = ["Good morning to you", *(["Wait for rain."] if words else [])]
            return rows.count_documents({"content": {"$in": wanted}}) == len(wanted)

        await until(goes_on)
        tasks.cancel_scope.cancel()
    assert shown["status"] == "success"
    assert CANARY not in json.dumps(shown)
    assert places_of(mongo_janitor, database_name) == []
    assert {row["run_id"] for row in rows.find()} == ({"going on", "new"} if words else {"new"})
    assert {turn["run_id"] for turn in mongo_janitor[database_name]["turns"].find()} == {
        "new",
        *(("going on",) if words else ()),
    }


@pytest.mark.usefixtures("mode")
async def test_what_waits_for_mongodb(
    environment: Environment, mongo_uri: str, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """Rows in memory, on the bus and in the outbox, also of a killed replica: it was erased before MongoDB is back."""
    environment |= QUICKLY
    database = mongo_janitor[database_name]
    async with proxied(HOST, port_of(mongo_uri)) as proxy, requesting(environment) as requester:
        async with serving(environment | behind(proxy)) as killed, serving(environment | behind(proxy)) as service:
            await Session(requester, "home").ask("Good morning", "old")
            proxy.refuse()
            short = {"deadline_ms": 4_000}
            answer = await requester.ask(a_request(CANARY, run_id="asked", metadata=short))
            assert answer["status"] == "success"
            state = {"op": "set", "state": {"role": CANARY}}
            await requester.publish("session.state", said(state, "old", "COMMAND", session_id="home"))
            for number in range(20):
                await requester.publish("llm.results", said({"content": f"{CANARY} {number}"}, "old"))
            await service.logged("record_delayed")
            await killed.stop(signal.SIGKILL)
            put_tombstone(mongo_janitor, database_name)
            database["messages"].delete_many({"owner_key": "ada"})
            database["turns"].delete_many({"owner_key": "ada"})
            proxy.behave()
            await service.logged("outbox_drained")
            await letters(requester, 2)
            await requester.finished("llm.results", "session.state")
            shown = await requester.ask_until(
                lambda: a_request("Hello again", metadata=short), lambda content: bool(content["degraded"] == [])
            )
            assert await service.stop() == 0
        found = await letters(requester, 1)
    assert CANARY not in json.dumps(shown)
    assert places_of(mongo_janitor, database_name) == []
    assert {"msg_of_asked"} <= {letter["message_id"] for letter in found}
    assert all("the owner was erased" in letter["reason"] for letter in found)


def waiting_for(gate: anyio.Event, asked: anyio.Event) -> Behaviour:
    """A model that answers well, but only when the gate is open."""

    async def behave(exchange: Exchange) -> None:
        asked.set()
        await gate.wait()
        if exchange.asked.system.startswith("You note what a person says"):
            (entry, *_) = exchange.asked.document["messages"]
            fact = {"topic": "home", "sub_topic": "", "value": CANARY, "quote": entry["text"], "message": entry["id"]}
            await exchange.say(json.dumps({"facts": [fact]}))
        else:
            await good()(exchange)

    return behave


@pytest.mark.parametrize("kind", ["summary", "facts"])
async def test_a_model_that_answers_late(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str, kind: str
) -> None:
    """A summary or facts of an erased run, that are with the model meanwhile, are stored nowhere."""
    gate, asked = anyio.Event(), anyio.Event()
    late_model, turns = waiting_for(gate, asked), mongo_janitor[database_name]["turns"]
    async with model_server(good()) as server:
        environment = with_model(environment | QUICKLY, server) | {"NEXUS_FACTS__EXTRACT": "model"}

        async def behave(exchange: Exchange) -> None:
            is_facts = exchange.asked.system.startswith("You note what a person says")
            if is_facts is (kind == "facts"):
                await late_model(exchange)
            elif is_facts:
                await exchange.say('{"facts": []}')
            else:
                await good()(exchange)

        server.behaviour = behave
        async with serving(environment) as service, requesting(environment) as requester:
            await Session(requester, "home").run(f"I live in {CANARY}", "old", {}, "I see.")
            with anyio.fail_after(PATIENCE_S):
                await asked.wait()
            await erase(environment)
            gate.set()
            await Session(requester, "home").run("The beans are wet", "new", {}, "I see.")

            async def is_read() -> bool:
                return turns.count_documents({"run_id": "new", "work": None, "extracted": {"$exists": True}}) == 1

            await until(is_read)
            assert await service.stop() == 0
    assert places_of(mongo_janitor, database_name) == []
    assert [turn["run_id"] for turn in turns.find()] == ["new"]


async def test_a_result_that_is_handed_out_again(
    streams: Environment, mongo_uri: str, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """What a killed replica had in hand goes to another one, which refuses it."""
    streams |= QUICKLY
    async with proxied(HOST, port_of(mongo_uri)) as proxy, requesting(streams) as requester:
        async with serving(streams | behind(proxy)) as killed:
            await Session(requester, "home").ask(f"I live in {CANARY}", "old")
            proxy.refuse()
            message = said({"content": CANARY}, "old")
            await requester.publish("llm.results", message)
            await killed.logged("record_delayed")
            await killed.stop(signal.SIGKILL)
        await erase(streams)
        async with serving(streams):
            (letter, *_) = await letters(requester, 1)
            await requester.finished("llm.results", REQUEST)
    assert letter["message_id"] == message["id"]
    assert "the owner was erased" in letter["reason"]
    assert places_of(mongo_janitor, database_name) == []
