"""Results and inputs that come while MongoDB is away and replicas die (contract §1.5, §2)."""

import json
import signal
from collections import Counter
from typing import Any

import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import a_request
from tests.nexus.faults.scene import PREFIX, Scene, Stage, in_both_modes, scaled, staged
from tests.nexus.support.waiting import until

_TOPICS = {"llm.results": "AI", "tools.results": "TOOL"}
_EACH = 20
# One more than a message may be handed out.
_KILLS = 6
# Where recorded rows wait for MongoDB (contract §2).
_OUTBOX = f"{PREFIX}nexus:{{outbox}}:order"


def _results() -> dict[str, tuple[str, bytes]]:
    """Topic and bytes of each result, by its id."""
    made: dict[str, tuple[str, bytes]] = {}
    for topic, role in _TOPICS.items():
        for number in range(_EACH):
            said: dict[str, Any] = {"content": f"result {number}", "tool_calls": None}
            if role == "TOOL":
                said = {
                    "result": f"result {number}",
                    "tool_name": "search",
                    "call_id": f"c{number}",
                    "status": "success",
                }
            message = {**a_request(owner=f"o{number}"), "role": role, "content": said}
            made[message["id"]] = (topic, json.dumps(message).encode())
    return made


async def _holders(scene: Scene) -> Counter[str]:
    """How many results each consumer has in hand."""
    held: Counter[str] = Counter()
    for topic in _TOPICS:
        summary: Any = await scene.load.wire.redis.xpending(PREFIX + topic, "nexus")
        held |= Counter({each["name"].decode(): int(each["pending"]) for each in summary["consumers"]})
    return held


async def _handed_out_again(scene: Scene, dead: set[str]) -> set[str]:
    """Wait until every result is in the hands of the living; returns their names."""

    async def all_held() -> Counter[str] | None:
        held, pending = await _holders(scene), 0
        for topic in _TOPICS:
            summary: Any = await scene.load.wire.redis.xpending(PREFIX + topic, "nexus")
            pending += int(summary["pending"])
        return held if pending == _EACH * len(_TOPICS) and not dead & {*held} else None

    return {*await until(all_held)}


def _recorded(scene: Scene, field: str = "id") -> Counter[str]:
    """The rows in `messages`, by the first word of a field: of an input that is its mark."""
    with MongoClient[dict[str, Any]](scene.stage.mongo_uri) as client:
        return Counter(str(row[field]).partition(" ")[0] for row in client[scene.database]["messages"].find())


async def _kill_all(scene: Scene) -> None:
    for replica in scene.fleet.running:
        await replica.end(signal.SIGKILL)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["streams"])
async def test_results_outlive_mongodb_and_replicas(stage: Stage, mode: str) -> None:
    """MongoDB refuses and both replicas are killed six times: each result is recorded once, none is a dead letter."""
    async with staged(stage, "results_kept", mode, lease_ms=500) as scene:
        await scene.fleet.start(2)
        scene.mongo_proxy.refuse()
        results = _results()
        for result_id, (topic, payload) in results.items():
            scene.history.happened("result", id=result_id, topic=topic)
            await scene.load.wire.say(topic, payload)
        dead: set[str] = set()
        for _ in range(_KILLS):
            dead |= await _handed_out_again(scene, dead)
            await _kill_all(scene)
            await scene.fleet.start(2)
        await _handed_out_again(scene, dead)
        scene.mongo_proxy.behave()
        for topic in _TOPICS:
            await scene.load.wire.done(topic)
        letters = await scene.dead_letters()
        codes = await scene.ended()
        recorded = _recorded(scene)
        scene.history.happened("recorded", ids=recorded)
        lost, strange = results.keys() - recorded.keys(), recorded.keys() - results.keys()
        twice = sum(count > 1 for count in recorded.values())
        scene.print_figures(
            results=len(results),
            kills=2 * _KILLS,
            lost=len(lost),
            recorded_twice=twice + len(strange),
            dead_letters=len(letters),
        )
    assert not lost
    assert recorded == Counter(results.keys())
    assert letters == []
    assert set(codes) == {0}


@pytest.mark.timeout(120)
@in_both_modes
async def test_inputs_outlive_mongodb_and_replicas(stage: Stage, mode: str) -> None:
    """Requests are answered without MongoDB, then both replicas are killed: each input is recorded once by others."""
    async with staged(stage, "inputs_kept", mode) as scene:
        await scene.fleet.start(2)
        await scene.load.offer(scaled(20), 20, scene.asks())
        scene.mongo_proxy.vanish()
        await scene.load.offer(scaled(200, least=20), 20, scene.asks())
        await _kill_all(scene)
        waiting = int(await scene.load.wire.redis.zcard(_OUTBOX))
        await scene.fleet.start(2)
        scene.mongo_proxy.behave()
        scene.mongo_proxy.reset()

        async def drained() -> bool:
            return not await scene.load.wire.redis.exists(_OUTBOX)

        await until(drained)
        await scene.ended()
        recorded = _recorded(scene, "content")
        inputs = Counter(event["mark"] for event in scene.history.events() if event["type"] == "invoke")
        lost, twice = inputs - recorded, recorded - inputs
        figures = {"through_outbox": waiting, "inputs_lost": len(lost), "recorded_twice": len(twice)}
        verdict = scene.verdict(late_after_ms=0, **figures)
    assert set(verdict.outcomes) == {"success"}
    assert waiting >= scaled(200, least=20)
    assert not lost
    assert not twice
