"""Inputs and results on the bus become rows, each once (contract §2)."""

import math
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from nexus.core.models import Message, Role, Topics
from nexus.core.ports import Row, RunOrigin
from nexus.services.history.rows import ROW_MAKERS, llm_row
from nexus.services.persistence import PersistenceService
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.rows import START
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.waiting import PATIENCE_S

CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
SOURCE = {"source": "tool_result"}
WELL = {**SOURCE, "status": "success", "execution_success": True}
UNKNOWN = {**SOURCE, "tool_name": "unknown", "status": "error", "execution_success": False, "call_id": ""}


def message(content: Any, *, role: Role = Role.AI, metadata: dict[str, Any] | None = None, **changes: Any) -> Message:
    """A message of the run `r` of the owner `o`."""
    known = {"id": "m1", "run_id": "r", "owner_key": "o", "timestamp": START, **changes}
    return Message(role=role, content=content, metadata=metadata or {}, **known)


async def flushed(service: PersistenceService) -> None:
    """Wait until everything is written."""
    with anyio.fail_after(PATIENCE_S):
        await service.flush()


async def recorded(topic: str, *messages: Message, store: FakeStore | None = None) -> list[Row]:
    """The rows that the messages leave, newest first, without `_id`."""
    async with PersistenceService(store or FakeStore(), NO_TOMBSTONES).running() as service:
        for each in messages:
            assert service.offer(ROW_MAKERS[topic](each, 100), 100)
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
async def test_the_result_of_a_model(content: Any, text: str, calls: list[Row] | None) -> None:
    """A model's result is a row of the AI with its text and its calls as they came."""
    assert await recorded(Topics.LLM_RESULTS, message(content)) == [
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


@pytest.mark.parametrize(
    ("content", "role"),
    [
        *((content, Role.AI) for content in (None, "", {}, {"content": None}, {"content": "", "tool_calls": []})),
        ("hel", Role.SYSTEM),
    ],
)
async def test_what_is_not_recorded(content: Any, role: Role) -> None:
    """A model's result with neither text nor calls, and pieces of a streamed answer, which have the role SYSTEM."""
    assert await recorded(Topics.LLM_RESULTS, message(content, role=role)) == []


async def test_the_result_of_a_tool() -> None:
    """A tool's result is a row with the known facts of the call; an empty result is one as well."""
    content = {"result": {"a": [1]}, "status": "success", "tool_name": "f", "call_id": "c1"}
    told = {"tool_name": "g", "call_id": "c3", "status": "success"}
    rows = await recorded(
        Topics.TOOLS_RESULTS,
        message(content, role=Role.TOOL),
        message({"result": None, "status": "error"}, role=Role.TOOL, id="m2"),
        message("plain", role=Role.TOOL, id="m3", metadata=told),
    )
    assert {row["id"]: (row["role"], row["content"], row["metadata"]) for row in rows} == {
        "m1": ("TOOL", {"a": [1]}, {**WELL, "tool_name": "f", "call_id": "c1"}),
        "m2": ("TOOL", None, UNKNOWN),
        "m3": ("TOOL", "plain", {**WELL, "tool_name": "g", "call_id": "c3"}),
    }


async def test_what_a_person_says_meanwhile() -> None:
    """It is a row of its own under its own id, in the session of its run or the one that it names."""
    (row,) = await recorded(Topics.RUNS_INPUT, message("no, Bergen 🌧", role=Role.HUMAN, metadata={"session_id": "s"}))
    assert row == {
        "id": "m1",
        "run_id": "r",
        "owner_key": "o",
        "session_id": "s",
        "role": "HUMAN",
        "content": "no, Bergen 🌧",
        "timestamp": START,
        "metadata": {"source": "run_input"},
    }


async def test_sessions() -> None:
    """A result's session is the one it names, else that of its run's input, also after a restart, else `default`."""
    store = FakeStore()
    async with PersistenceService(store, NO_TOMBSTONES).running() as service:
        asked = message("hi", role=Role.HUMAN, id="h")
        await service.insert_input(service.input_row(asked, RunOrigin("mine")))
        service.offer(llm_row(message("same process", id="m1"), 1), 1)
        await flushed(service)
    rows = await recorded(
        Topics.LLM_RESULTS,
        message("another process", id="m3"),
        message("named", id="m2", metadata={"session_id": "named"}),
        message("lost", id="m4", run_id="unknown"),
        message("no text", id="m5", metadata={"session_id": 5}),
        store=store,
    )
    sessions = {row["id"]: row["session_id"] for row in rows}
    assert sessions == {"h": "mine", "m1": "mine", "m3": "mine", "m2": "named", "m4": "default", "m5": "mine"}


async def test_a_clock_that_is_ahead() -> None:
    """No row is of later than when it was heard; one of earlier keeps its time."""
    early, late = datetime(2020, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)
    async with PersistenceService(FakeStore(), NO_TOMBSTONES).running() as service:
        for number, at in enumerate((early, late)):
            service.offer(llm_row(message("x", id=f"m{number}", timestamp=at), 1), 1)
            human = message("x", id=f"h{number}", role=Role.HUMAN, timestamp=at)
            await service.insert_input(service.input_row(human, RunOrigin("s")))
        await flushed(service)
        rows = {row["id"]: row["timestamp"] for row in await service.get_history("o")}
    assert rows["m0"] == rows["h0"] == early
    assert early < rows["m1"] <= datetime.now(UTC)
    assert early < rows["h1"] <= datetime.now(UTC)


async def test_an_input() -> None:
    """A run's input is a human row, once however often it is offered; an id that another run has used is changed."""
    async with PersistenceService(FakeStore(), NO_TOMBSTONES).running() as service:
        for text, run_id in (("first", "r1"), ("second", "r2"), ("second", "r2")):
            asked = message(text, id="msg_0", run_id=run_id, role=Role.HUMAN)
            await service.insert_input(service.input_row(asked, RunOrigin("s")))
        rows = await service.get_history("o", limit=100)
        asked = message("second", id="msg_0", run_id="r2")
        past = await service.get_past("o", messages=20, excerpt_chars=100, asked=asked, continued=True)
    assert {(row["id"], row["run_id"], row["content"]) for row in rows} == {
        ("msg_0", "r1", "first"),
        ("msg_0@r2", "r2", "second"),
    }
    assert {(row["role"], row["session_id"], row["metadata"]["source"]) for row in rows} == {("HUMAN", "s", "new_run")}
    assert [row["content"] for row in past.rows if row["run_id"] != "r2"] == ["first"]


async def test_numbers_that_bson_does_not_have() -> None:
    """Integers beyond 64 bits and numbers that are none are recorded as texts rather than not at all."""
    content = {"result": {"big": 2**63, "small": -(2**63) - 1, "fits": 2**63 - 1, "inf": math.inf, "list": [10**5_0]}}
    (row,) = await recorded(Topics.TOOLS_RESULTS, message(content, role=Role.TOOL))
    assert row["content"] == {
        "big": str(2**63),
        "small": str(-(2**63) - 1),
        "fits": 2**63 - 1,
        "inf": "inf",
        "list": [str(10**50)],
    }


async def test_foreign_rows_are_withheld() -> None:
    """When a store breaks its promise and returns another owner's rows, they are not shown."""

    class Broken(FakeStore):
        async def all_messages(self, owner_key: str, *, limit: int) -> list[Row]:
            return await super().all_messages("p" if owner_key == "o" else "o", limit=limit)

    store = Broken()
    store.plant("messages", [{"owner_key": "p", "id": "canary"}])
    async with PersistenceService(store, NO_TOMBSTONES).running() as service:
        assert await service.get_history("o") == []
        assert await service.get_history("o", limit=0) == []
