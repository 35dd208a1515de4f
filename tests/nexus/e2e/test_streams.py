"""What an orchestrator that speaks XADD and XREAD alone gets from `nexus serve` in mode streams (contract §1.5)."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import (
    PATIENCE_S,
    REQUEST,
    RESPONSE,
    StreamRequester,
    a_request,
    requesting_by_streams,
    serving,
    starting,
)
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST

Environment = dict[str, str]
Database = MongoClient[dict[str, Any]]

WEATHER = {"type": "function", "function": {"name": "weather", "description": "Forecast.", "parameters": {}}}
RESULTS = ("llm.results", "tools.results")


@pytest.fixture
def streams(environment: Environment) -> Environment:
    """Variables for a service in mode streams."""
    return {**environment, "NEXUS_BUS__MODE": "streams", "NEXUS_BUS__LEASE_MS": "500"}


def _message(content: Any, *, run_id: str = "run_1", role: str = "AI") -> dict[str, Any]:
    common = {"run_id": run_id, "owner_key": "ada", "role": role, "metadata": {}}
    return {"id": f"msg_{uuid.uuid4().hex}", **common, "content": content, "timestamp": a_request()["timestamp"]}


def _results(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Results of a run, of both kinds."""
    given = {"result": "12 degrees", "status": "success", "tool_name": "weather", "call_id": "c"}
    contents = {"llm.results": ({"content": "x", "tool_calls": None}, "AI"), "tools.results": (given, "TOOL")}
    return [(topic, _message(contents[topic][0], role=contents[topic][1])) for topic in RESULTS for _ in range(count)]


async def test_a_request(streams: Environment, channel_prefix: str) -> None:
    """A request that is appended to its stream is answered on that of the answers, or on the requester's own."""
    url = streams["NEXUS_BUS__URL"]
    async with serving(streams), requesting_by_streams(url, channel_prefix, "me") as requester:
        request = a_request("What's the capital of France?")
        content = await requester.ask(request)
        own = a_request(metadata={"reply_to": "me"})
        assert (await requester.ask(own))["status"] == "success"
        assert await requester.redis.pttl(f"{channel_prefix}{RESPONSE}.me") > 0
        assert (await requester.ask(a_request(" ")))["error"]["code"] == "EMPTY_INPUT"
        await requester.finished(REQUEST)
    assert (content["status"], len(content["messages"]), content["degraded"]) == ("success", 5, [])
    assert [topic for topic, _ in requester.answers[request["id"]]] == [RESPONSE]
    assert [topic for topic, _ in requester.answers[own["id"]]] == [f"{RESPONSE}.me"]


async def test_a_request_from_before_the_start(streams: Environment, channel_prefix: str) -> None:
    """What was asked while no replica ran is answered by the first that starts."""
    async with requesting_by_streams(streams["NEXUS_BUS__URL"], channel_prefix) as requester:
        request = a_request(metadata={"deadline_ms": 60_000})
        await requester.publish(REQUEST, request)
        async with serving(streams):
            await requester.answered(request["id"])
    assert requester.answers[request["id"]][0][1]["content"]["status"] == "success"


async def test_what_cannot_be_read(streams: Environment, channel_prefix: str) -> None:
    """Entries that are no messages, on every topic, become dead letters, are done with, and harm nothing else."""
    topics = (REQUEST, *RESULTS, "tools.register", "tools.unregister", "session.state", "config.changed")
    url = streams["NEXUS_BUS__URL"]
    async with serving(streams) as service, requesting_by_streams(url, channel_prefix) as requester:
        for topic in topics:
            key = f"{channel_prefix}{topic}"
            await requester.redis.xadd(key, {b"foreign": b"x"})
            await requester.redis.xadd(key, {b"message": b"\xff\xfe" + topic.encode()})
            await requester.redis.xadd(key, {b"message": b"[" * 100_000})
        assert (await requester.ask(a_request()))["status"] == "success"
        await requester.finished(*topics[:-1])
        # The same bytes for the same reason are one letter, wherever they come from.
        with anyio.fail_after(PATIENCE_S):
            while await requester.redis.xlen(f"{channel_prefix}nexus:dead-letters") < len(topics) + 2:
                await requester.redis.ping()
        assert service.process.returncode is None


async def test_results_survive_mongodb_and_the_service(
    streams: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """With MongoDB gone results stay pending, through the death of the service; with both back each is one row."""
    results = _results(30)
    port = urlsplit(mongo_uri).port or 27017
    async with (
        proxied(HOST, port) as proxy,
        requesting_by_streams(streams["NEXUS_BUS__URL"], channel_prefix) as requester,
    ):
        streams |= {"NEXUS_DATABASE__URI": f"mongodb://{HOST}:{proxy.port}/?directConnection=true"}
        streams |= {"NEXUS_DATABASE__TIMEOUT_MS": "1000"}
        async with serving(streams) as service:
            proxy.refuse()
            for topic, message in results:
                await requester.publish(topic, message)
                await requester.publish(topic, message)
            await service.logged("record_delayed")
            with anyio.fail_after(PATIENCE_S):
                while (await requester.redis.xinfo_groups(f"{channel_prefix}tools.results"))[0]["lag"]:
                    await requester.redis.ping()
            assert [await requester.unfinished(topic) for topic in RESULTS] == [60, 60]
            await service.stop(signal.SIGKILL)
        proxy.behave()
        async with serving(streams):
            await requester.finished(*RESULTS)
    with Database(mongo_uri) as client:
        rows = [row["id"] for row in client[database_name]["messages"].find()]
    assert sorted(rows) == sorted(message["id"] for _, message in results)


async def test_a_service_that_stops_without_mongodb(
    streams: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """What it cannot write before it has to end it gives back, and another has it without waiting for a lease."""
    results = _results(5)
    streams |= {"NEXUS_BUS__LEASE_MS": "30000", "NEXUS_SYSTEM__DRAIN_SECONDS": "1"}
    port = urlsplit(mongo_uri).port or 27017
    async with (
        proxied(HOST, port) as proxy,
        requesting_by_streams(streams["NEXUS_BUS__URL"], channel_prefix) as requester,
    ):
        through = {**streams, "NEXUS_DATABASE__URI": f"mongodb://{HOST}:{proxy.port}/?directConnection=true"}
        async with serving({**through, "NEXUS_DATABASE__TIMEOUT_MS": "1000"}) as service:
            proxy.refuse()
            for topic, message in results:
                await requester.publish(topic, message)
            await service.logged("record_delayed")
            assert await service.stop() == 0
            await service.logged("work_given_back")
        async with serving(streams):
            await requester.finished(*RESULTS)
    with Database(mongo_uri) as client:
        assert client[database_name]["messages"].count_documents({}) == 10


async def _until_all_have(requester: StreamRequester, tools: list[Any]) -> None:
    """Ask until ten requests at once, which all replicas share, find these tools."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            requests = [a_request() for _ in range(10)]
            for request in requests:
                await requester.publish(REQUEST, request)
            await requester.answered(*(request["id"] for request in requests))
            found = [requester.answers[request["id"]][0][1]["content"]["tools"] for request in requests]
            if all(shown == tools for shown in found):
                return


async def test_tools_and_settings(
    streams: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """Tools that are appended reach every replica, also one that was not there; so does that settings have changed."""
    async with requesting_by_streams(streams["NEXUS_BUS__URL"], channel_prefix) as requester:
        await requester.publish("tools.register", _message(WEATHER, role="SYSTEM"))
        # So that only the bus can have told.
        streams |= {"NEXUS_TOOLS__REFRESH_SECONDS": "600"}
        async with serving(streams) as one, serving(streams) as other:
            await _until_all_have(requester, [WEATHER])
            await requester.publish("tools.unregister", _message({"name": "weather"}, role="SYSTEM"))
            await _until_all_have(requester, [])
            with Database(mongo_uri) as client:
                changed = {"environment": "development", "memory": {"history_context_size": 2}}
                client[database_name]["configurations"].insert_one(changed)
            await requester.publish("config.changed", _message({}, role="SYSTEM"))
            await one.logged("settings_reloaded")
            await other.logged("settings_reloaded")
        await requester.finished("tools.register", "tools.unregister")


async def _effective(requester: StreamRequester) -> int:
    """How many answers there are. One that is announced again, for an entry that was handed out twice, is the same."""
    entries: Any = await requester.redis.xrange(f"{requester.prefix}{RESPONSE}")
    return len({fields[b"message"] for _, fields in entries})


async def test_two_replicas_share_the_requests(streams: Environment, channel_prefix: str) -> None:
    """Three hundred requests on two replicas: each is built once and answered once, and both take part."""
    requests = [a_request(f"question {number}", owner=f"owner {number % 20}") for number in range(300)]
    url = streams["NEXUS_BUS__URL"]
    async with (
        serving(streams) as one,
        serving(streams) as other,
        requesting_by_streams(url, channel_prefix) as requester,
    ):
        for start in range(0, 300, 100):
            batch = requests[start : start + 100]
            for request in batch:
                await requester.publish(REQUEST, request)
            await requester.answered(*(request["id"] for request in batch))
        assert await one.stop() == 0
        assert await other.stop() == 0
        assert await requester.unfinished(REQUEST) == 0
        assert await _effective(requester) == 300
    built = [
        Counter(line["request_id"] for line in service.log if line["event"] == "answered") for service in (one, other)
    ]
    assert built[0] + built[1] == Counter(request["id"] for request in requests)
    assert all(built)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
async def test_a_replica_ends_under_load(streams: Environment, channel_prefix: str, sign: signal.Signals) -> None:
    """What a replica had in hand when it was stopped or killed is answered by another: everything, once."""
    requests = [a_request(f"question {number}", metadata={"deadline_ms": 60_000}) for number in range(150)]
    url = streams["NEXUS_BUS__URL"]
    async with (
        serving(streams) as one,
        serving(streams),
        requesting_by_streams(url, channel_prefix) as requester,
    ):
        for request in requests[:100]:
            await requester.publish(REQUEST, request)
        one.process.send_signal(sign)
        for request in requests[100:]:
            await requester.publish(REQUEST, request)
        await requester.answered(*(request["id"] for request in requests))
        with anyio.fail_after(PATIENCE_S):
            assert await one.process.wait() == (0 if sign == signal.SIGTERM else -signal.SIGKILL)
        await requester.finished(REQUEST)
        assert await _effective(requester) == 150
    assert {answers[0][1]["content"]["status"] for answers in requester.answers.values()} == {"success"}


async def _nexus(*arguments: str, environment: Environment) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "nexus", *arguments]
    with anyio.fail_after(PATIENCE_S):
        return await anyio.run_process(command, env={**os.environ, **environment}, check=False)


async def test_the_commands(streams: Environment, channel_prefix: str) -> None:
    """`nexus request` and `nexus doctor` work in mode streams as well."""
    async with serving(streams), requesting_by_streams(streams["NEXUS_BUS__URL"], channel_prefix) as requester:
        asked = await _nexus("request", "--owner", "ada", "--input", "Good morning", "--json", environment=streams)
        examined = await _nexus("doctor", environment=streams)
        await requester.finished(REQUEST)
    assert asked.returncode == 0, asked.stderr
    assert len(json.loads(asked.stdout)["messages"]) == 5
    assert examined.returncode == 0, examined.stdout


async def test_a_request_that_nobody_answers(streams: Environment) -> None:
    """Without a service `nexus request` says so."""
    silent = await _nexus("request", "--owner", "a", "--input", "x", "--timeout", "2", environment=streams)
    assert silent.returncode == 2
    assert silent.stderr.startswith(b"nexus: no answer within 2 s")


async def test_a_start_that_waits_for_redis_can_be_ended(streams: Environment) -> None:
    """A service that finds no Redis at its start waits for it; SIGTERM ends it, and it exits 0."""
    async with starting({**streams, "NEXUS_BUS__URL": "redis://127.0.0.1:1/0"}) as service:
        await service.logged("bus_disconnected")
        assert await service.stop() == 0
    assert service.errors == []
