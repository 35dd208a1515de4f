"""MongoDB goes away, and services die meanwhile: nothing that was accepted is lost (contract §1.5, §2)."""

import signal
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from nexus.services.person.constraint_changes import constraints_in
from nexus.services.session_state.merge import state_in
from tests.nexus.e2e.harness import (
    PATIENCE_S,
    Document,
    Environment,
    a_message,
    a_request,
    behind,
    port_of,
    requesting,
    serving,
    stored_runs,
)
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST
from tests.nexus.support.waiting import until

SAID = "the beans are in the cellar"
QUICKLY = {"NEXUS_DATABASE__TIMEOUT_MS": "1500"}


@pytest.mark.parametrize("driver", DRIVERS)
async def test_without_mongodb_it_says_so_and_recovers(
    environment: Environment, mongo_uri: str, mongo_janitor: MongoClient[Document], database_name: str, driver: str
) -> None:
    """Gone at the start and later: answers that list what is missing. Back again: whole, without a restart."""
    rows = mongo_janitor[database_name]["messages"]
    rows.insert_many(stored_runs("ada", 2))
    async with proxied(HOST, port_of(mongo_uri)) as proxy:
        proxy.refuse()
        environment |= {**behind(proxy), **QUICKLY, "NEXUS_DATABASE__DRIVER": driver}
        async with serving(environment), requesting(environment) as requester:
            started = await requester.ask(a_request(owner="eve"))
            proxy.behave()
            before = await requester.ask_until(a_request, lambda content: bool(content["degraded"] == []))
            proxy.refuse()
            during = await requester.ask(a_request("asked while it was gone"))
            proxy.behave()
            after = await requester.ask_until(a_request, lambda content: bool(content["degraded"] == []))

            async def recorded() -> bool:
                return rows.find_one({"content": "asked while it was gone"}) is not None

            await until(recorded)
    assert {"history", "tools"} <= {*started["degraded"]}
    assert before["context"]["history"]["shown"] >= 4
    assert (during["status"], "history" in during["degraded"]) == ("success", True)
    assert "[SHARED_MEMORY count=0]" in during["messages"][2]["content"]
    assert "answer 1" in after["messages"][2]["content"]


@pytest.mark.usefixtures("mode")
async def test_an_input_whose_replica_is_killed(
    environment: Environment, mongo_uri: str, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """An answered input is shown to the next run by another replica, which writes it, once."""
    async with proxied(HOST, port_of(mongo_uri)) as proxy, requesting(environment) as requester:
        async with serving(environment | behind(proxy)) as first:
            proxy.vanish()
            answer = await requester.ask(a_request(SAID, metadata={"deadline_ms": 3_000}))
            await first.stop(signal.SIGKILL)
        assert answer["status"] == "success"
        async with serving(environment) as second:
            shown = await requester.ask(a_request())
            assert shown["degraded"] == []
            assert SAID in shown["messages"][2]["content"]
            await second.logged("outbox_drained")
    assert mongo_janitor[database_name]["messages"].count_documents({"content": SAID}) == 1


RESULTS = ("llm.results", "tools.results")


def _results(count: int) -> list[tuple[str, Document]]:
    """Results of a run, of both kinds."""
    given = {"result": "12 degrees", "status": "success", "tool_name": "weather", "call_id": "c"}
    contents = {"llm.results": ({"content": "x", "tool_calls": None}, "AI"), "tools.results": (given, "TOOL")}
    return [(topic, a_message(content, role=role)) for topic, (content, role) in contents.items() for _ in range(count)]


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
async def test_results_survive_mongodb_and_the_service(
    streams: Environment,
    mongo_uri: str,
    mongo_janitor: MongoClient[Document],
    database_name: str,
    sign: signal.Signals,
) -> None:
    """They stay pending while MongoDB is gone, and a service that stops gives them back: each becomes one row."""
    results = _results(10)
    if sign == signal.SIGTERM:
        # No lease runs out in time.
        streams |= {"NEXUS_BUS__LEASE_MS": "60000", "NEXUS_SYSTEM__DRAIN_SECONDS": "1"}
    async with proxied(HOST, port_of(mongo_uri)) as proxy, requesting(streams) as requester:
        async with serving(streams | behind(proxy) | {"NEXUS_DATABASE__TIMEOUT_MS": "1000"}) as service:
            proxy.refuse()
            for topic, message in results * 2:
                await requester.publish(topic, message)
            await service.logged("record_delayed")

            async def all_taken() -> bool:
                groups = [await requester.redis.xinfo_groups(requester.prefix + topic) for topic in RESULTS]
                return not any(group["lag"] for (group,) in groups)

            await until(all_taken)
            assert [await requester.unfinished(topic) for topic in RESULTS] == [20, 20]
            await service.stop(sign)
            if sign == signal.SIGTERM:
                await service.logged("work_given_back")
        async with serving(streams):
            await requester.finished(*RESULTS)
    rows = [row["id"] for row in mongo_janitor[database_name]["messages"].find()]
    assert sorted(rows) == sorted(message["id"] for _, message in results)


_KEPT = ("session_states", "facts", "constraints", "tools", "working_memory")
# How often messages were handed out by the time that MongoDB is back.
HAND_OUTS = 150


def _work() -> dict[str, Document]:
    """A message of each topic whose messages replicas share out, in the order in which they are to be dealt with."""
    tool = {"type": "function", "function": {"name": "web_search", "parameters": {"type": "object", "properties": {}}}}
    call = {"name": "update_working_memory", "args": {"content": "# Kept"}, "call_id": "c1"}
    state = {"op": "set", "state": {"role": "Gardener"}}
    return {
        **dict(_results(1)),
        "session.state": a_message(state, role="COMMAND"),
        "memory.facts": a_message({"op": "add", "facts": [{"topic": "home", "value": "Porto"}]}, role="COMMAND"),
        "session.constraints": a_message({"op": "add", "constraints": ["Dig"]}, role="COMMAND"),
        "tools.register": a_message(tool, role="SYSTEM"),
        "tools.requests": a_message(call, metadata={"session_id": "default"}),
        "context.build.request": a_request(metadata={"deadline_ms": 60_000}),
    }


async def test_what_was_handed_out_often_is_no_poison(
    streams: Environment, mongo_uri: str, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """150 replicas died with it in hand while MongoDB was away: it is dealt with once, none is a dead letter."""
    work = _work()
    database = mongo_janitor[database_name]
    async with proxied(HOST, port_of(mongo_uri)) as proxy, requesting(streams) as requester:
        redis, prefix = requester.redis, requester.prefix
        proxy.refuse()
        for topic, message in work.items():
            await requester.publish(topic, message)
            await redis.xgroup_create(prefix + topic, "nexus", id="0")
            found: Any = await redis.xreadgroup("nexus", "dead", {prefix + topic: ">"})
            ((_, ((entry, _),)),) = found
            await redis.xclaim(prefix + topic, "nexus", "dead", 0, [entry], idle=60_000, retrycount=HAND_OUTS)
        async with serving(streams | behind(proxy) | QUICKLY) as service:
            await service.logged("record_delayed")
            await service.logged("session_state_delayed")
            await service.logged("facts_delayed")
            await service.logged("constraints_delayed")
            await service.logged("tool_call_delayed")
            proxy.behave()
            # The call's own result comes last.
            await requester.finished(*work, "tools.results")

            async def input_recorded() -> bool:
                # Where the request was answered before MongoDB was back, its input comes later, from the outbox.
                return database["messages"].find_one({"role": "HUMAN"}) is not None

            await until(input_recorded)
        letters = await redis.xlen(f"{prefix}nexus:dead-letters")
    recorded = sorted(row["content"] for row in database["messages"].find({"role": {"$in": ["AI", "HUMAN"]}}))
    assert (letters, recorded) == (0, ["Good morning", "x"])
    assert database["messages"].count_documents({"role": "TOOL"}) == 2
    counts = {name: database[name].count_documents({}) for name in _KEPT}
    assert counts == dict.fromkeys(counts, 1)


@pytest.mark.usefixtures("mode")
async def test_a_state_that_waits_for_mongodb(
    environment: Environment, mongo_uri: str, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """States and constraints sent while MongoDB was gone are stored when it is back, also by a service that stops."""
    async with proxied(HOST, port_of(mongo_uri)) as proxy:
        environment |= behind(proxy) | QUICKLY
        async with serving(environment) as service, requesting(environment) as requester:
            proxy.refuse()
            for number in range(20):
                todo = {"id": f"t.{number}", "text": "Dig", "status": "pending"}
                said = {"op": "patch", "state": {"todos": [todo]}}
                await requester.publish("session.state", a_message(said, role="COMMAND"))
                fact = {"op": "add", "facts": [{"topic": f"t.{number}", "value": "Dig"}]}
                await requester.publish("memory.facts", a_message(fact, role="COMMAND"))
                rule = {"op": "add", "constraints": [f"Dig {number}."]}
                await requester.publish("session.constraints", a_message(rule, role="COMMAND"))
            await service.logged("session_state_delayed")
            await service.logged("facts_delayed")
            await service.logged("constraints_delayed")
            service.process.send_signal(signal.SIGTERM)
            await service.logged("draining")
            proxy.behave()
            with anyio.fail_after(PATIENCE_S):
                assert await service.process.wait() == 0
    topics = {row["topic"] for row in mongo_janitor[database_name]["facts"].find()}
    assert topics == {f"t.{number}" for number in range(20)}
    (row,) = mongo_janitor[database_name]["session_states"].find()
    state, _ = state_in(row["document"])
    assert [each.id for each in state.todos or ()] == [f"t.{number}" for number in range(20)]
    (row,) = mongo_janitor[database_name]["constraints"].find()
    rules, _ = constraints_in(row["document"], row["place"])
    assert {each.text for each in rules if each.holds} == {f"Dig {number}." for number in range(20)}
