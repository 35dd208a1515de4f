"""What passes on the bus is recorded once, whole, and sooner or later (contract §2)."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from nexus.adapters.mongo import open_mongo
from nexus.core.models import Message, Role, Topics
from nexus.core.ports import Row, RunOrigin
from nexus.services.persistence import PersistenceService
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.proxy import proxied
from tests.nexus.support.rows import START
from tests.nexus.support.waiting import PATIENCE_S, until

CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]


def message(content: Any, *, role: Role = Role.AI, metadata: dict[str, Any] | None = None, **changes: Any) -> Message:
    """A message of the run `r` of the owner `o`."""
    known = {"id": "m1", "run_id": "r", "owner_key": "o", "timestamp": START, **changes}
    return Message(role=role, content=content, metadata=metadata or {}, **known)


@asynccontextmanager
async def recording(uri: str, name: str) -> AsyncIterator[PersistenceService]:
    """A service that records in a database."""
    async with open_mongo(uri, name, timeout_ms=20_000) as store, PersistenceService(store).running() as service:
        yield service


async def flushed(service: PersistenceService) -> None:
    """Wait until everything is written."""
    with anyio.fail_after(PATIENCE_S):
        await service.flush()


async def recorded(uri: str, name: str, topic: str, *messages: Message) -> list[Row]:
    """The rows that the messages leave, newest first, without `_id`."""
    async with recording(uri, name) as service:
        for each in messages:
            assert service.offer(topic, each, 100)
        await flushed(service)
        rows = await service.get_history("o", limit=100)
    return [{key: value for key, value in row.items() if key != "_id"} for row in rows]


@pytest.mark.parametrize(
    ("content", "text", "calls"),
    [
        ({"content": "hello", "tool_calls": CALLS}, "hello", CALLS),
        ({"content": None, "tool_calls": CALLS}, "", CALLS),
        ({"content": "hello"}, "hello", None),
        ({"content": "hello", "tool_calls": None}, "hello", None),
        ({"content": "hello", "tool_calls": []}, "hello", []),
        ("hello", "hello", None),
    ],
)
async def test_the_result_of_a_model(
    mongo_uri: str, prepared_database: str, content: Any, text: str, calls: list[Row] | None
) -> None:
    """A model's result is a row of the AI with its text and its calls as they came."""
    assert await recorded(mongo_uri, prepared_database, Topics.LLM_RESULTS, message(content)) == [
        {
            "id": "m1",
            "run_id": "r",
            "owner_key": "o",
            "session_id": "default",
            "role": "AI",
            "content": text,
            "timestamp": START,
            "metadata": {"source": "llm_result", "tool_calls": calls, "has_tool_calls": bool(calls)},
        }
    ]


@pytest.mark.parametrize("content", [None, "", {}, {"content": None}, {"content": "", "tool_calls": []}])
async def test_a_result_that_says_nothing(mongo_uri: str, prepared_database: str, content: Any) -> None:
    """A model's result with neither text nor calls is not recorded."""
    assert await recorded(mongo_uri, prepared_database, Topics.LLM_RESULTS, message(content)) == []


async def test_streaming(mongo_uri: str, prepared_database: str) -> None:
    """Pieces of a streamed answer, which have the role SYSTEM, are not recorded."""
    assert await recorded(mongo_uri, prepared_database, Topics.LLM_RESULTS, message("hel", role=Role.SYSTEM)) == []


async def test_the_result_of_a_tool(mongo_uri: str, prepared_database: str) -> None:
    """A tool's result is a row with what is known of the call; an empty result is one as well."""
    content = {"result": {"a": [1]}, "status": "success", "tool_name": "f", "call_id": "c1"}
    messages = [
        message(content, role=Role.TOOL),
        message({"result": None, "status": "error"}, role=Role.TOOL, id="m2"),
        message("plain", role=Role.TOOL, id="m3", metadata={"tool_name": "g", "call_id": "c3", "status": "success"}),
    ]
    rows = await recorded(mongo_uri, prepared_database, Topics.TOOLS_RESULTS, *messages)
    by_id = {row["id"]: (row["role"], row["content"], row["metadata"]) for row in rows}
    source = {"source": "tool_result"}
    good = {"status": "success", "execution_success": True}
    unknown = {"tool_name": "unknown", "status": "error", "execution_success": False, "call_id": ""}
    assert by_id == {
        "m1": ("TOOL", {"a": [1]}, {**source, **good, "tool_name": "f", "call_id": "c1"}),
        "m2": ("TOOL", None, {**source, **unknown}),
        "m3": ("TOOL", "plain", {**source, **good, "tool_name": "g", "call_id": "c3"}),
    }


async def test_resends_and_replicas(mongo_uri: str, prepared_database: str) -> None:
    """One message that reaches three services, several times each, is one row."""
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(recorded, mongo_uri, prepared_database, Topics.LLM_RESULTS, *[message("hello")] * 20)
    assert len(await recorded(mongo_uri, prepared_database, Topics.LLM_RESULTS, message("other"))) == 1


async def test_sessions(mongo_uri: str, prepared_database: str) -> None:
    """A result's session is the one it names, else that of its run's input, also after a restart, else `default`."""
    async with recording(mongo_uri, prepared_database) as service:
        asked = message("hi", role=Role.HUMAN, id="h")
        await service.insert_input(service.input_row(asked, "hi", RunOrigin("mine")))
        service.offer(Topics.LLM_RESULTS, message("same process", id="m1"), 1)
        await flushed(service)
    named = message("named", id="m2", metadata={"session_id": "named"})
    rows = await recorded(
        mongo_uri,
        prepared_database,
        Topics.LLM_RESULTS,
        message("another process", id="m3"),
        named,
        message("lost", id="m4", run_id="unknown"),
        message("no text", id="m5", metadata={"session_id": 5}),
    )
    sessions = {row["id"]: row["session_id"] for row in rows}
    assert sessions == {"h": "mine", "m1": "mine", "m3": "mine", "m2": "named", "m4": "default", "m5": "mine"}


async def test_a_clock_that_is_ahead(mongo_uri: str, prepared_database: str) -> None:
    """No row is of later than when it was heard; one of earlier keeps its time."""
    early, late = datetime(2020, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)
    async with recording(mongo_uri, prepared_database) as service:
        for number, at in enumerate((early, late)):
            service.offer(Topics.LLM_RESULTS, message("x", id=f"m{number}").model_copy(update={"timestamp": at}), 1)
            human = message("x", id=f"h{number}", role=Role.HUMAN).model_copy(update={"timestamp": at})
            await service.insert_input(service.input_row(human, "x", RunOrigin("s")))
        await flushed(service)
        rows = {row["id"]: row["timestamp"] for row in await service.get_history("o")}
    assert rows["m0"] == rows["h0"] == early
    assert early < rows["m1"] <= datetime.now(UTC)
    assert early < rows["h1"] <= datetime.now(UTC)


async def test_an_input(mongo_uri: str, prepared_database: str) -> None:
    """The input of a run is a human row, recorded once however often it is offered."""
    async with recording(mongo_uri, prepared_database) as service:
        for _ in range(3):
            asked = message({"any": "form"}, role=Role.HUMAN)
            await service.insert_input(service.input_row(asked, "the text", RunOrigin("s")))
        (row,) = await service.get_history("o")
    assert (row["role"], row["content"], row["session_id"]) == ("HUMAN", "the text", "s")
    assert row["metadata"] == {"source": "new_run"}


async def test_numbers_that_bson_does_not_have(mongo_uri: str, prepared_database: str) -> None:
    """Integers beyond 64 bits and numbers that are none are recorded as texts rather than not at all."""
    content = {"result": {"big": 2**63, "small": -(2**63) - 1, "fits": 2**63 - 1, "inf": math.inf, "list": [10**5_0]}}
    (row,) = await recorded(mongo_uri, prepared_database, Topics.TOOLS_RESULTS, message(content, role=Role.TOOL))
    assert row["content"] == {
        "big": str(2**63),
        "small": str(-(2**63) - 1),
        "fits": 2**63 - 1,
        "inf": "inf",
        "list": [str(10**50)],
    }


async def test_a_row_that_cannot_be_kept_holds_nothing_up(mongo_uri: str, prepared_database: str) -> None:
    """A row that the store will never accept is given up, and the rows after it are written."""
    huge = [message("x" * (17 << 20), id=f"huge{number}") for number in range(10)]
    rows = await recorded(mongo_uri, prepared_database, Topics.LLM_RESULTS, *huge, message("small"))
    assert [row["id"] for row in rows] == ["m1"]


async def test_foreign_rows_are_withheld() -> None:
    """When a store breaks its promise and returns another owner's rows, nobody sees them."""

    class Broken(FakeStore):
        async def all_messages(self, owner_key: str, *, limit: int) -> list[Row]:
            return await super().all_messages("p" if owner_key == "o" else "o", limit=limit)

    store = Broken()
    store.plant("messages", [{"owner_key": "p", "id": "canary"}])
    async with PersistenceService(store).running() as service:
        assert await service.get_history("o") == []
        assert await service.get_history("o", limit=0) == []


async def test_a_database_that_goes_and_comes_back(
    mongo_janitor: MongoClient[dict[str, Any]], mongo_uri: str, prepared_database: str
) -> None:
    """What is offered while the database is away is written once it is back: all of it, once."""
    async with proxied(*(mongo_janitor.address or ("", 0))) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with (
            open_mongo(uri, prepared_database, timeout_ms=500, server_selection_timeout_ms=500) as store,
            PersistenceService(store).running() as service,
        ):
            service.offer(Topics.LLM_RESULTS, message("before", id="before"), 1)
            await flushed(service)
            proxy.refusing = True
            proxy.reset()
            for number in range(50):
                assert service.offer(Topics.LLM_RESULTS, message("while", id=f"m{number}"), 1)
            tried = proxy.accepted

            async def tried_again() -> bool:
                return proxy.accepted > tried

            await until(tried_again)
            assert service.unwritten == 50
            proxy.refusing = False
            await flushed(service)
            assert service.unwritten == 0
    rows = await recorded(mongo_uri, prepared_database, Topics.LLM_RESULTS)
    assert sorted(row["id"] for row in rows) == sorted(["before", *(f"m{number}" for number in range(50))])


async def test_an_id_that_two_runs_use(mongo_uri: str, prepared_database: str) -> None:
    """A message whose id an earlier run has used is recorded under an id of its own, not lost; resends still once."""
    inputs = [("first", "r1"), ("second", "r2"), ("second", "r2")]
    async with recording(mongo_uri, prepared_database) as service:
        for text, run_id in inputs:
            asked = message(text, id="msg_0", run_id=run_id, role=Role.HUMAN)
            await service.insert_input(service.input_row(asked, text, RunOrigin("s")))
        rows = await service.get_history("o", limit=100)
        past = await service.get_past(
            "o",
            messages=20,
            excerpt_chars=100,
            asked=message("second", id="msg_0", run_id="r2"),
            continued=True,
        )
    assert {(row["id"], row["run_id"], row["content"]) for row in rows} == {
        ("msg_0", "r1", "first"),
        ("msg_0@r2", "r2", "second"),
    }
    assert [row["content"] for row in past.rows if row["run_id"] != "r2"] == ["first"]


async def test_the_session_of_a_request_that_another_replica_answers(mongo_uri: str, prepared_database: str) -> None:
    """A result that is recorded before its run's input is has the session of the request that was overheard."""
    async with recording(mongo_uri, prepared_database) as service:
        service.remember_run("o", "r", RunOrigin("work"))
        assert service.offer(Topics.LLM_RESULTS, message({"content": "early"}), 100)
        await flushed(service)
        (row,) = await service.get_history("o")
    assert row["session_id"] == "work"
