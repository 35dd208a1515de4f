"""A server goes away and comes back; there is more than one Nexus; Nexus is stopped (contract §1.4, §1.5, §10)."""

import signal
from collections import Counter
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import PATIENCE_S, REQUEST, a_request, port_of, requesting, serving, starting, stored_runs
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST, redis_server

Environment = dict[str, str]
Database = MongoClient[dict[str, Any]]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_without_mongodb_it_says_so_and_recovers(
    environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str, driver: str
) -> None:
    """MongoDB gone: an answer within the deadline that lists the history as missing. Back again: whole, no restart."""
    with Database(mongo_uri) as client:
        client[database_name]["messages"].insert_many(stored_runs("ada", 2))
    async with proxied(HOST, port_of(mongo_uri)) as proxy:
        environment |= {
            "NEXUS_DATABASE__URI": f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true",
            "NEXUS_DATABASE__DRIVER": driver,
            "NEXUS_DATABASE__TIMEOUT_MS": "1500",
        }
        async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
            before = await requester.ask(a_request())
            proxy.refuse()
            during = await requester.ask(a_request("asked while it was gone"))
            proxy.behave()
            after = await requester.ask_until(a_request, lambda content: content["degraded"] == [])
            with Database(mongo_uri) as client, anyio.fail_after(PATIENCE_S):
                while not client[database_name]["messages"].find_one({"content": "asked while it was gone"}):
                    await requester.redis.ping()
    assert before["context"]["history"]["shown"] == 4
    assert during["status"] == "success"
    assert "history" in during["degraded"]
    assert "[SHARED_MEMORY count=0]" in during["messages"][2]["content"]
    assert "answer 1" in after["messages"][2]["content"]


async def test_without_mongodb_it_can_be_an_error(
    environment: Environment, channel_prefix: str, mongo_uri: str
) -> None:
    """With `context.on_history_failure: error` the answer is HISTORY_UNAVAILABLE, and may be tried again."""
    async with proxied(HOST, port_of(mongo_uri)) as proxy:
        environment |= {
            "NEXUS_DATABASE__URI": f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true",
            "NEXUS_CONTEXT__ON_HISTORY_FAILURE": "error",
        }
        async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
            proxy.refuse()
            content = await requester.ask(a_request(metadata={"deadline_ms": 2000}))
            proxy.behave()
            await requester.ask_until(a_request, lambda content: content["status"] == "success")
    assert content["error"]["code"] == "HISTORY_UNAVAILABLE"
    assert content["error"]["retryable"] is True


async def test_it_starts_without_mongodb(environment: Environment, channel_prefix: str, mongo_uri: str) -> None:
    """A service that finds no MongoDB at its start answers without history and tools, and is whole once it is there."""
    async with proxied(HOST, port_of(mongo_uri)) as proxy:
        proxy.refuse()
        environment |= {"NEXUS_DATABASE__URI": f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"}
        async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
            content = await requester.ask(a_request())
            proxy.behave()
            await requester.ask_until(a_request, lambda content: content["degraded"] == [])
    assert {"history", "tools"} <= set(content["degraded"])


async def test_it_answers_again_after_a_restart_of_redis(environment: Environment, channel_prefix: str) -> None:
    """Redis killed and started again, with nothing kept: the service answers again by itself."""
    async with redis_server() as redis:
        environment |= {"NEXUS_BUS__URL": redis.url}
        async with serving(environment) as service:
            async with requesting(redis.url, channel_prefix) as requester:
                assert (await requester.ask(a_request()))["status"] == "success"
            await redis.kill()
            await redis.start()
            async with requesting(redis.url, channel_prefix) as requester:
                content = await requester.ask_until(a_request, lambda content: content["status"] == "success")
            assert service.process.returncode is None
    assert len(content["messages"]) == 5


async def test_two_services_answer_and_record_once(
    environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """Two services on one bus, 1,000 requests: each answered once, each recorded once."""
    requests = [a_request(f"question {number}", owner=f"owner {number % 20}") for number in range(1_000)]
    async with (
        serving(environment) as one,
        serving(environment) as other,
        requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester,
    ):
        for start in range(0, 1_000, 100):
            batch = requests[start : start + 100]
            for request in batch:
                assert await requester.publish(REQUEST, request) == 2
            await requester.answered(*(request["id"] for request in batch))
        # Whoever is stopped has finished all it had taken in, so no late second answer is still to come.
        assert await one.stop() == 0
        assert await other.stop() == 0
        last = await requester.redis.publish(
            f"{channel_prefix}context.build.response", b'{"metadata":{"request_id":"end"}}'
        )
        assert last == 1
        await requester.answered("end")
    assert Counter(len(requester.answers[request["id"]]) for request in requests) == {1: 1_000}
    assert all(requester.answers[request["id"]][0][1]["content"]["status"] == "success" for request in requests)
    with Database(mongo_uri) as client:
        recorded = client[database_name]["messages"].distinct("id")
        assert client[database_name]["messages"].count_documents({}) == 1_000
    assert set(recorded) == {request["content"]["history"][0]["id"] for request in requests}


async def test_sigterm_under_load_leaves_nothing_unanswered(environment: Environment, channel_prefix: str) -> None:
    """Stopped in the middle of a stream of requests: whatever it heard is answered, exactly once, and it exits 0."""
    heard: list[str] = []
    # Long enough for a machine that does other things as well.
    async with (
        serving(environment | {"NEXUS_SYSTEM__DRAIN_SECONDS": "25"}) as service,
        requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester,
        anyio.create_task_group() as tasks,
    ):

        async def load() -> None:
            for number in range(100_000):
                request = a_request(f"question {number}")
                if await requester.publish(REQUEST, request):
                    heard.append(request["id"])
                elif heard:
                    return

        tasks.start_soon(load)
        await requester.redis.ping()
        while len(heard) < 200:
            await requester.redis.ping()
        assert await service.stop(signal.SIGTERM) == 0
        await requester.answered(*heard)
    assert len(heard) >= 200
    assert {len(requester.answers[request_id]) for request_id in heard} == {1}
    assert service.log[-1]["event"] == "stopped"


async def test_sigint_stops_it_as_well(environment: Environment) -> None:
    """Ctrl-C ends it like SIGTERM does."""
    async with serving(environment) as service:
        assert await service.stop(signal.SIGINT) == 0
    assert [line["event"] for line in service.log][-2:] == ["draining", "stopped"]


async def test_a_start_that_waits_for_redis_can_be_ended(environment: Environment) -> None:
    """A service that finds no Redis at its start waits for it; SIGTERM ends it, and it exits 0."""
    environment |= {"NEXUS_BUS__URL": "redis://127.0.0.1:1/0"}
    async with starting(environment) as service:
        await service.logged("bus_disconnected")
        assert await service.stop() == 0
    assert service.errors == []


async def test_settings_that_are_no_longer_stored_no_longer_hold(
    environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """Stored settings that were deleted give way to those of the file at the next `config.changed`."""
    with Database(mongo_uri) as client:
        database = client[database_name]
        database["messages"].insert_many(stored_runs("ada", 4))
        database["configurations"].insert_one({"environment": "development", "memory": {"history_context_size": 2}})
        async with (
            serving(environment) as service,
            requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester,
        ):
            before = await requester.ask(a_request())
            database["configurations"].delete_many({})
            await requester.publish("config.changed", a_request())
            await service.logged("settings_reloaded")
            after = await requester.ask(a_request())
    assert before["messages"][2]["content"].startswith("[SHARED_MEMORY count=2]")
    assert after["context"]["history"]["shown"] > 2
