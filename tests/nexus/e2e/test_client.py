"""The reference client and running services: what it has said is in the next context, in both modes (contract §12)."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
import pytest

from nexus.client import ContextClient, new_run
from nexus.connections import open_client
from tests.nexus.e2e.harness import PATIENCE_S, Environment, serving
from tests.nexus.support.waiting import until

CALLS = [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ås"}'}}]


@asynccontextmanager
async def client_of(environment: Environment) -> AsyncIterator[ContextClient]:
    """A client on the bus of these services."""
    mode: Any = environment["NEXUS_BUS__MODE"]
    prefix = environment["NEXUS_BUS__CHANNEL_PREFIX"]
    async with open_client(environment["NEXUS_BUS__URL"], mode=mode, channel_prefix=prefix) as client:
        yield client


async def turn(client: ContextClient, owner: str, text: str, answer: Any, **metadata: Any) -> dict[str, Any]:
    """The context of a run whose answer is recorded."""
    run = new_run(owner, text, **metadata)
    content = await client.build(run, timeout=PATIENCE_S)
    assert content["degraded"] == []
    # A message that a busy service has not confirmed in time is sent again, and may be on its way twice.
    assert {*content["context"]["notes"]} <= {"history: what was heard last is not written yet"}
    await client.record_answer(run, answer, timeout=PATIENCE_S)
    return content


def memory_in(content: dict[str, Any]) -> str:
    """The block with the memory."""
    return str(content["messages"][2]["content"])


@pytest.mark.heavy
@pytest.mark.once
@pytest.mark.parametrize(("mode", "layout"), [("pubsub", "agent"), ("streams", "dialogue")], indirect=["mode"])
@pytest.mark.usefixtures("mode")
async def test_what_was_said_is_in_the_next_context(environment: Environment, layout: str) -> None:
    """However soon that is asked for, and whichever of two replicas records, while two clients speak for two owners."""

    async def talk(owner: str) -> None:
        async with client_of(environment) as client:
            for number in range(30):
                content = await turn(client, owner, f"q{number}.", f"a{number}. 🌧", layout=layout)
                if number:
                    assert f"a{number - 1}. 🌧" in str(content["messages"])

    async with serving(environment), serving(environment), anyio.create_task_group() as tasks:
        tasks.start_soon(talk, "ada")
        tasks.start_soon(talk, "bob")


@pytest.mark.usefixtures("mode")
async def test_a_run_with_a_tool(environment: Environment) -> None:
    """Each of the run's contexts has what came before, and the next run remembers all of it."""
    async with serving(environment), client_of(environment) as client:
        run = new_run("ada", "how is the weather in Ås?")
        first = await client.build(run, timeout=PATIENCE_S)
        run.history.append(await client.record_answer(run, {"content": None, "tool_calls": CALLS}))
        run.history.append(await client.record_tool_result(run, "call_1", {"°C": 7}, name="weather"))
        run.history.append(await client.say(run, "and in Bergen?"))
        second = await client.build(run, timeout=PATIENCE_S)
        await client.record_answer(run, "Seven degrees 🌧")
        content = await turn(client, "ada", "was it cold?", "no")
    assert second["messages"][:5] == first["messages"]
    assert [message["role"] for message in second["messages"][5:]] == ["assistant", "tool", "user"]
    assert second["messages"][6] == {"role": "tool", "tool_call_id": "call_1", "content": '{"°C":7}'}
    memory = memory_in(content)
    assert memory.startswith("[SHARED_MEMORY count=3]")
    for said in ("how is the weather in Ås?", "[tool_use:weather, city:Ås]", "and in Bergen?", "Seven degrees 🌧"):
        assert said in memory


@pytest.mark.usefixtures("mode")
async def test_a_client_that_stops_in_the_middle(environment: Environment) -> None:
    """Another goes on: what the first had said is there, and no result is made up."""
    async with serving(environment):
        async with client_of(environment) as client:
            run = new_run("ada", "how is the weather?")
            await client.build(run, timeout=PATIENCE_S)
            asked = await client.record_answer(run, {"content": "I look.", "tool_calls": CALLS})
        async with client_of(environment) as client:
            # This one knows nothing of what the first has sent, but of the run.
            run.history.append(asked)
            content = await client.build(run, timeout=PATIENCE_S)
            await client.record_answer(run, "It broke off.")
            content = await turn(client, "ada", "and now?", "yes")
    assert "I look.\n[tool_use:weather, city:Ås]\nIt broke off." in memory_in(content)


@pytest.mark.heavy
async def test_a_service_that_restarts(environment: Environment, mode: str) -> None:
    """What is said while none is there is heard by the next: it waits on the stream, or with the client."""
    async with client_of(environment) as client:
        async with serving(environment) as service:
            await turn(client, "ada", "one", "first")
            assert await service.stop(signal.SIGTERM) == 0
        run = new_run("ada", "two")
        recorded = anyio.Event()

        async def record() -> None:
            await client.record_answer(run, "second", timeout=PATIENCE_S)
            recorded.set()

        async def unheard() -> bool:
            return client.unheard > 0

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(record)
            if mode == "pubsub":
                await until(unheard)
            async with serving(environment):
                await recorded.wait()
                content = await turn(client, "ada", "three", "third")
    assert "first" in memory_in(content)
    assert "second" in memory_in(content)


@pytest.mark.usefixtures("mode")
async def test_a_huge_answer(environment: Environment) -> None:
    """Of almost all that a message may have; its beginning and its end are in the next context."""
    async with serving(environment), client_of(environment) as client:
        await turn(client, "ada", "tell me all", "Once 🌧" + "北" * 300_000 + "the end")
        memory = memory_in(await turn(client, "ada", "and then?", "x"))
    assert "  Nexus: Once 🌧北" in memory
    assert "..." in memory


@pytest.mark.usefixtures("mode")
async def test_memory_tools(environment: Environment) -> None:
    """What one writes the next finds; a wrong call is a result that says what is allowed."""
    async with serving(environment), client_of(environment) as client:
        run = new_run("ada", "note that the beans are ripe", layout="agent", session_id="garden")
        await client.build(run, timeout=PATIENCE_S)
        arguments = {"name": "beans", "content": "They are ripe. 🫘"}
        written = await client.call_tool(run, "write_memory_detail", arguments, call_id="c1", timeout=PATIENCE_S)
        read = await client.call_tool(run, "read_memory_detail", {"name": "beans"}, timeout=PATIENCE_S)
        wrong = await client.call_tool(run, "read_memory_detail", {"nom": "beans"}, timeout=PATIENCE_S)
    assert (written.content["status"], written.content["call_id"]) == ("success", "c1")
    assert "They are ripe. 🫘" in read.content["result"]
    assert wrong.content["status"] == "error"
    assert "name" in wrong.content["result"]


@pytest.mark.usefixtures("mode")
async def test_a_tool_that_nobody_runs(environment: Environment) -> None:
    """Where calls are to be answered, one of two services says so, once; the model of the next call is shown it."""
    environment["NEXUS_TOOLS__UNKNOWN_AFTER_MS"] = "50"
    async with serving(environment), serving(environment), client_of(environment) as client:
        run = new_run("ada", "how is the weather?")
        await client.build(run, timeout=PATIENCE_S)
        run.history.append(await client.record_answer(run, {"content": None, "tool_calls": CALLS}))
        result = await client.call_tool(run, "weather", '{"city": "Ås"}', call_id="call_1", timeout=PATIENCE_S)
        run.history.append(result)
        content = await client.build(run, timeout=PATIENCE_S)
    reason = "weather: nobody has announced such a tool, and no result came within 50 ms"
    assert (result.content["status"], result.content["result"]) == ("error", reason)
    assert content["messages"][-1]["tool_call_id"] == "call_1"
    assert reason in content["messages"][-1]["content"]


@pytest.mark.usefixtures("mode")
async def test_tools_are_offered(environment: Environment) -> None:
    """What is registered is in contexts a moment later."""
    tool = {"type": "function", "function": {"name": "weather", "description": "Forecast.", "parameters": {}}}

    async def offered() -> bool:
        return bool((await client.build(new_run("ada", "hi"), timeout=PATIENCE_S))["tools"])

    async with serving(environment), client_of(environment) as client:
        await client.register_tools([tool])
        await until(offered)


CALLED = {"name": "weather", "arguments": '{"city": "Ås"}'}
MADE = {"name": "weather", "args": {"city": "Ås"}}
USED = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Ås"}}
ANSWERS: dict[str, Any] = {
    "openai.types.chat.ChatCompletion": {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "I look. 🌧",
                    "tool_calls": [{"id": "c1", "type": "function", "function": CALLED}],
                },
            }
        ],
    },
    "openai.types.responses.Response": {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": [
            {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hidden"}]},
            {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "I look. 🌧", "annotations": []}],
            },
            {"type": "function_call", "id": "f", "call_id": "c1", "status": "completed", **CALLED},
        ],
    },
    "anthropic.types.Message": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hidden", "signature": "s"},
            {"type": "text", "text": "I look. 🌧"},
            USED,
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    "google.genai.types.GenerateContentResponse": {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "hidden", "thought": True},
                        {"text": "I look. 🌧"},
                        {"functionCall": MADE, "thoughtSignature": "aGk="},
                    ],
                }
            }
        ]
    },
    "langchain_core.messages.AIMessage": {"content": "I look. 🌧", "tool_calls": [{**MADE, "id": "c1"}]},
}


@pytest.mark.once
@pytest.mark.usefixtures("mode")
async def test_every_form_of_an_answer(environment: Environment) -> None:
    """What an SDK returns is recorded whole, and shown as a text with a call, also within its run; thoughts are not."""
    async with serving(environment), client_of(environment) as client:
        for number, (name, content) in enumerate(ANSWERS.items()):
            module, _, kind = name.rpartition(".")
            run = new_run(f"owner {number}", "how is the weather?")
            await client.build(run, timeout=PATIENCE_S)
            answer = getattr(import_module(module), kind).model_validate(content)
            run.history.append(await client.record_answer(run, answer))
            run.history.append(
                await client.record_tool_result(run, "c1" if "google" not in name else "", 7, name="weather")
            )
            within = (await client.build(run, timeout=PATIENCE_S))["messages"]
            await client.record_answer(run, "Rain.")
            after = await turn(client, f"owner {number}", "and now?", "x")
            assert [message["role"] for message in within[5:]] == ["assistant", "tool"], name
            assert (within[5]["content"], within[6]["content"]) == ("I look. 🌧", "7"), name
            assert "  Nexus: I look. 🌧\n[tool_use:weather, city:Ås]\nRain." in memory_in(after), name
            assert "hidden" not in str(after["messages"]) + str(within), name
