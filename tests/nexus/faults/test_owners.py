"""Many owners: no text of one reaches another, and none slows the others."""

import json
import math
import random
import re
from collections.abc import Collection, Sequence
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import a_request, stored_runs
from tests.nexus.faults.fleet import Replica
from tests.nexus.faults.judge import judge
from tests.nexus.faults.load import Asked, a_mark, an_ask
from tests.nexus.faults.scene import MODES, Scene, Stage, every, scaled, staged, through
from tests.nexus.support.waiting import until

_OWNERS = 50
# Requests a second of ordinary owners beside the one with long results.
_RATE = 20.0
_LONG_RESULTS = 16
_MOST_MIB = 300


def _plant(scene: Scene) -> None:
    """Give each owner a profile and a past, full of marks."""
    owners = [f"o{number}" for number in range(_OWNERS)]
    rows = [
        {**row, "content": f"{a_mark(owner)} {row['content']}"} for owner in owners for row in stored_runs(owner, 2)
    ]
    profiles = [
        {"public_key": owner, "prompt_overrides": {"friends_profile": f"Likes {a_mark(owner)}."}} for owner in owners
    ]
    with MongoClient[dict[str, Any]](scene.stage.mongo_uri) as client:
        client[scene.database]["messages"].insert_many(rows)
        client[scene.database]["identities"].insert_many(profiles)


async def _break_connections(scene: Scene, over: anyio.Event) -> None:
    while not over.is_set():
        random.choice([scene.redis_proxy, scene.mongo_proxy]).reset(1)  # noqa: S311  # which one does not matter
        with anyio.move_on_after(random.uniform(0.1, 0.4)):  # noqa: S311
            await over.wait()


async def _replace(scene: Scene, times: int) -> list[int]:
    """Stop one replica after another, in the middle of builds. Returns their exit codes."""
    codes = []
    async for _ in every(1.0, times):
        await scene.fleet.start(variables=through(scene.redis_proxy))
        codes.append(await scene.fleet.running[0].end())
    return codes


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", MODES)
async def test_fifty_owners_and_broken_connections(stage: Stage, mode: str) -> None:
    """A fifth of the requests given up, connections reset, services stopped amid builds: no text reaches another."""
    async with staged(stage, "fifty_owners", mode, settings={"system__drain_seconds": 0}) as scene:
        _plant(scene)
        await scene.fleet.start(2, through(scene.redis_proxy))
        scene.mongo_proxy.latency_s = 0.01
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_break_connections, scene, over)
            make = scene.asks(owners=_OWNERS)
            async with scene.load.offered(30, make, least=scaled(500), abandoned=0.2):
                codes = await _replace(scene, scaled(6, least=3))
            over.set()
        codes += await scene.ended()
        events = scene.history.events()
        answers = [event for event in events if event["type"] == "ok"]
        abandoned = sum(event.get("what") == "abandoned" for event in events)
        foreign = sum(event["owners"] != [event["owner"]] for event in answers)
        marks = sum(event["seen"] for event in answers)
        cancelled = sum(line["pending"] for each in scene.fleet.replicas for line in each.events("drain_incomplete"))
        scene.verdict(abandoned=abandoned, builds_cancelled=cancelled, foreign=foreign, marks_shown=marks)
    assert foreign == 0
    assert marks > 3 * len(answers)
    assert cancelled
    assert set(codes) == {0}


def _long_results() -> list[tuple[str, bytes]]:
    """Topics and payloads of results of 1 MiB of small lists, each with its call and the answer of its run."""
    shown: dict[str, Any] = {"tool_name": "list", "status": "success", "result": [[]] * 348_000}
    sent = []
    for number in range(_LONG_RESULTS):
        call = {"id": f"c{number}", "name": "list", "arguments": {}}
        for topic, role, content in (
            ("llm.results", "AI", {"content": "", "tool_calls": [call]}),
            ("tools.results", "TOOL", {**shown, "call_id": call["id"]}),
            ("llm.results", "AI", {"content": "Done."}),
        ):
            message = {**a_request(owner="heavy", run_id=f"run_{number}"), "role": role, "content": content}
            sent.append((topic, json.dumps(message, separators=(",", ":")).encode()))
    return sent


async def _send(scene: Scene, results: Sequence[tuple[str, bytes]]) -> None:
    """Send the results; wait until all are stored."""
    for topic, payload in results:
        await scene.load.wire.say(topic, payload)
    with MongoClient[dict[str, Any]](scene.stage.mongo_uri) as client:
        rows = client[scene.database]["messages"]

        async def all_stored() -> bool:
            return rows.count_documents({"owner_key": "heavy", "role": {"$ne": "HUMAN"}}) == len(results)

        await until(all_stored)


def _an_agent(scene: Scene) -> Asked:
    patience_s = (scene.deadline_ms + scene.lease_ms) / 1_000
    return an_ask("heavy", deadline_ms=scene.deadline_ms, patience_s=patience_s, run_metadata={"layout": "agent"})


def _asked(scene: Scene) -> set[str]:
    """The requests of others so far."""
    events = scene.history.events()
    return {event["id"] for event in events if event["type"] == "invoke" and event["owner"] != "heavy"}


async def _stalls(replica: Replica) -> dict[float, float]:
    """The numbers of times when the loop was late by at most so many seconds."""
    buckets = re.findall(rb'nexus_loop_stall_seconds_bucket{le="(.*?)"} (.*)', await replica.metrics())
    return {float(most): float(count) for most, count in buckets}


def _percentile(times_ms: Collection[float], share: float) -> int:
    return round(sorted(times_ms)[int(len(times_ms) * share)])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", MODES)
async def test_long_results(stage: Stage, mode: str) -> None:
    """One owner with 16 results of 1 MiB of small lists asks for them every second: the others hardly notice."""
    async with staged(stage, "long_results", mode, direct_mongo=True) as scene:
        (replica,) = await scene.fleet.start()
        make = scene.asks(owners=20)
        results = _long_results()
        # The first context of this layout waits for the vocabulary.
        assert await scene.load.ask(_an_agent(scene))
        await scene.load.offer(scaled(400, least=40), _RATE, make)
        asked = [_asked(scene)]
        earlier = await _stalls(replica)
        async with scene.load.offered(1, lambda _: _an_agent(scene), least=2):
            async with scene.load.offered(_RATE, make):
                await _send(scene, results)
            asked.append(_asked(scene).difference(*asked))
            await scene.load.offer(scaled(400, least=40), _RATE, make)
            asked.append(_asked(scene).difference(*asked))
        stalls = {most: count - earlier[most] for most, count in (await _stalls(replica)).items()}
        memory = replica.memory_kb() >> 10
        await scene.ended()
        events = scene.history.events()
        times = judge(events, late_after_ms=scene.lease_ms).latencies_ms
        alone, arriving, beside = ([times[each] for each in ids if each in times] for ids in asked)
        scene.verdict(
            p50_ms=f"{_percentile(alone, 0.5)}->{_percentile(beside, 0.5)}",
            p95_ms=f"{_percentile(alone, 0.95)}->{_percentile(beside, 0.95)}",
            p50_while_they_arrive_ms=_percentile(arriving, 0.5),
            no_stall_above_s=min(most for most, count in stalls.items() if count == stalls[math.inf]),
            memory_mib=memory,
        )
    assert {event["type"] for event in events if event.get("owner") == "heavy"} == {"invoke", "ok"}
    assert memory <= _MOST_MIB
