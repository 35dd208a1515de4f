"""Several services on one bus: each request is answered once, and news reaches all of them (contract §1, §3)."""

import json
import signal
from collections import Counter
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import (
    AT_ONCE,
    PATIENCE_S,
    REQUEST,
    RESPONSE,
    Document,
    Environment,
    Requester,
    a_message,
    a_request,
    is_on_streams,
    requesting,
    serving,
    stored_runs,
)
from tests.nexus.support.waiting import until

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Forecast.", "parameters": {"type": "object", "properties": {}}},
}


async def _answers(requester: Requester, streams: bool) -> int:
    """How many different answers there are: one is announced again where its request comes late to a replica."""
    if streams:
        entries: Any = await requester.redis.xrange(f"{requester.prefix}{RESPONSE}")
        return len({fields[b"message"] for _, fields in entries})
    # A stopped service has finished every request that it took, so no second answer is still to come.
    error = {"code": "INTERNAL", "message": "the last one", "retryable": True}
    content = {"status": "error", "error": error, "messages": [], "tools": []}
    last = a_message(content, role="SYSTEM", metadata={"request_id": "last", "request_sha256": "0" * 64})
    assert await requester.redis.publish(f"{requester.prefix}{RESPONSE}", json.dumps(last)) == 1
    await requester.answered("last")
    return len({json.dumps(answer) for answers in requester.answers.values() for _, answer in answers}) - 1


@pytest.mark.heavy
@pytest.mark.usefixtures("mode")
async def test_two_replicas(environment: Environment, mongo_janitor: MongoClient[Document], database_name: str) -> None:
    """Two hundred requests: each is built once, answered once and recorded once; on streams both take part."""
    requests = [a_request(f"question {number}", owner=f"owner {number % 20}") for number in range(200)]
    async with (
        serving(environment) as one,
        serving(environment) as other,
        requesting(environment) as requester,
    ):
        contents = []
        for start in range(0, 200, 100):
            batch = requests[start : start + 100]
            for request in batch:
                await requester.publish(REQUEST, request)
            contents += await requester.answered(*(request["id"] for request in batch))

        async def are_recorded() -> bool:
            # On a busy machine an input may wait in the outbox when its context is answered.
            return mongo_janitor[database_name]["messages"].count_documents({}) >= len(requests)

        await until(are_recorded)
        assert [await each.stop() for each in (one, other)] == [0, 0]
        assert await requester.unfinished(REQUEST) == 0
        assert await _answers(requester, is_on_streams(environment)) == 200
    assert {content["status"] for content in contents} == {"success"}
    built = [Counter(line["request_id"] for line in each.log if line["event"] == "answered") for each in (one, other)]
    assert built[0] + built[1] == Counter(request["id"] for request in requests)
    assert all(built) or not is_on_streams(environment)
    recorded = mongo_janitor[database_name]["messages"].find({}, {"id": 1})
    assert Counter(row["id"] for row in recorded) == Counter(
        request["content"]["history"][0]["id"] for request in requests
    )


async def test_sigterm_under_load(environment: Environment) -> None:
    """Stopped in the middle of a stream of requests: each delivered one is answered exactly once, and it exits 0."""
    heard: list[str] = []
    # Long enough for a machine that does other things as well.
    async with (
        serving(environment | {"NEXUS_SYSTEM__DRAIN_SECONDS": "25"}) as service,
        requesting(environment) as requester,
        anyio.create_task_group() as tasks,
    ):
        enough = anyio.Event()

        async def load() -> None:
            while await requester.publish(REQUEST, request := a_request(f"question {len(heard)}")):
                heard.append(request["id"])
                if len(heard) >= AT_ONCE:
                    enough.set()
                    await requester.answered(heard[-AT_ONCE])

        tasks.start_soon(load)
        await enough.wait()
        assert await service.stop(signal.SIGTERM) == 0
        await requester.answered(*heard)
    assert {len(requester.answers[request_id]) for request_id in heard} == {1}
    assert service.log[-1]["event"] == "stopped"


@pytest.mark.heavy
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
async def test_a_replica_ends_under_load(streams: Environment, sign: signal.Signals) -> None:
    """Requests that a replica had in hand when it was stopped or killed are answered by another, each once."""
    requests = [a_request(f"question {number}", metadata={"deadline_ms": 60_000}) for number in range(100)]
    async with serving(streams) as one, serving(streams), requesting(streams) as requester:
        for request in requests[:60]:
            await requester.publish(REQUEST, request)
        one.process.send_signal(sign)
        for request in requests[60:]:
            await requester.publish(REQUEST, request)
        contents = await requester.answered(*(request["id"] for request in requests))
        with anyio.fail_after(PATIENCE_S):
            assert await one.process.wait() == (0 if sign == signal.SIGTERM else -signal.SIGKILL)
        await requester.finished(REQUEST)
        assert await _answers(requester, streams=True) == 100
    assert {content["status"] for content in contents} == {"success"}


async def _all_have(requester: Requester, tools: list[Document]) -> None:
    """Ask until ten requests at once, which all replicas share, find these tools."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            requests = [a_request() for _ in range(10)]
            for request in requests:
                await requester.publish(REQUEST, request)
            contents = await requester.answered(*(request["id"] for request in requests))
            if all(content["tools"] == tools for content in contents):
                return


@pytest.mark.usefixtures("mode")
async def test_tools_and_settings(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """They reach every replica, also one that starts later; wrong settings are refused, removed ones forgotten."""
    # So that only the bus can have told.
    environment |= {"NEXUS_TOOLS__REFRESH_SECONDS": "600"}
    configurations = mongo_janitor[database_name]["configurations"]
    mongo_janitor[database_name]["messages"].insert_many(stored_runs("ada", 4))
    configurations.insert_one({"environment": "development", "memory": {"history_context_size": 2}})

    async with requesting(environment) as requester, serving(environment) as one:

        async def shown() -> int:
            return int((await requester.ask(a_request()))["context"]["history"]["shown"])

        await requester.publish("tools.register", a_message(WEATHER, role="SYSTEM"))
        await _all_have(requester, [WEATHER])
        assert await shown() == 2
        async with serving(environment) as other:
            await _all_have(requester, [WEATHER])
            await requester.publish("tools.unregister", a_message({"name": "weather"}, role="SYSTEM"))
            await _all_have(requester, [])
            for event, change in (
                ("settings_not_reloaded", {"$set": {"memory.history_context_size": 9_000}}),
                ("settings_reloaded", {"$set": {"environment": "another"}}),
            ):
                before = await shown()
                configurations.update_one({}, change)
                await requester.publish("config.changed", a_message({}, role="SYSTEM"))
                await one.logged(event)
                await other.logged(event)
                assert (await shown() == before) == (event == "settings_not_reloaded")
