"""Overload, and a subscriber that does not read (contract §1.6)."""

import json
import socket
from collections import Counter

import anyio
import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import RESPONSE, Document, a_message
from tests.nexus.faults.scene import MODES, PREFIX, REDIS_PASSWORD, Scene, Stage, scaled, staged
from tests.nexus.support.redis_server import HOST

_UNBOUNDED = 1_000_000


def _memory_kb(scene: Scene) -> int:
    return sum(replica.memory_kb() for replica in scene.fleet.running)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", MODES)
async def test_ten_times_more_than_can_be_done(stage: Stage, mode: str) -> None:
    """Excess requests get OVERLOADED at once; none is left without an answer, and memory does not grow with them."""
    async with staged(stage, "overload", mode, settings={"bus__max_in_flight": 4}) as scene:
        await scene.fleet.start(2)
        # A build takes about half a second, so two replicas with four each can do some twenty a second.
        scene.mongo_proxy.latency_s = 0.1
        await scene.load.offer(scaled(400, least=100), 200, scene.asks(), most=_UNBOUNDED)
        before_kb = _memory_kb(scene)
        await scene.load.offer(scaled(1_600, least=400), 200, scene.asks(), most=_UNBOUNDED)
        after_kb = _memory_kb(scene)
        scene.mongo_proxy.behave()
        await scene.ended()
        refused = [event["error"] for event in scene.history.events() if event["type"] == "fail"]
        hints = sum(error.get("retry_after_ms", 0) > 0 for error in refused)
        verdict = scene.verdict(rss_before_mb=before_kb // 1_024, rss_after_mb=after_kb // 1_024, hints=hints)
    assert hints == len(refused)
    assert set(verdict.outcomes) == {"success", "OVERLOADED"}
    # A fifth more is what an allocator may keep; 1,600 requests and their answers would be 40 MB.
    assert after_kb <= before_kb * 1.2


@pytest.mark.timeout(120)
async def test_somebody_listens_and_does_not_read(stage: Stage) -> None:
    """A subscriber that never reads is cut off by Redis; it costs neither answers nor memory of a replica."""
    async with staged(stage, "deaf_subscriber", "pubsub") as scene:
        await scene.load.wire.redis.config_set("client-output-buffer-limit", "pubsub 1mb 512kb 5")
        await scene.fleet.start(2)
        await scene.load.offer(scaled(100, least=50), 50, scene.asks())
        before_kb = _memory_kb(scene)
        with socket.create_connection((HOST, scene.redis.port)) as deaf:
            deaf.sendall(f"AUTH {REDIS_PASSWORD}\r\nSUBSCRIBE {PREFIX}{RESPONSE}\r\n".encode())
            await scene.load.offer(scaled(500, least=150), 50, scene.asks())
        after_kb = _memory_kb(scene)
        await scene.ended()
        scene.verdict(rss_before_mb=before_kb // 1_024, rss_after_mb=after_kb // 1_024)
    assert after_kb <= before_kb * 1.2


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", MODES)
async def test_more_tool_calls_than_can_wait(stage: Stage, mode: str) -> None:
    """Sent at once, each has one result, which is recorded. In pubsub most say to try again; in streams all wait."""
    count = scaled(6_000 if mode == "pubsub" else 1_500, least=1_500)
    async with staged(stage, "tool_calls", mode) as scene, scene.load.wire.redis.pipeline(transaction=False) as pipe:
        await scene.fleet.start(1)
        for number in range(count):
            content = {"name": "update_working_memory", "args": {"content": f"# {number}"}, "call_id": f"c{number}"}
            call = a_message(content, owner_key=f"o{number}", metadata={"session_id": "s"})
            topic, payload = f"{PREFIX}tools.requests", json.dumps(call).encode()
            if mode == "pubsub":
                pipe.publish(topic, payload)
            else:
                pipe.xadd(topic, {"message": payload})
        await pipe.execute()
        with MongoClient[Document](scene.stage.mongo_uri) as client:
            results = client[scene.database]["messages"]

            with anyio.fail_after(120):
                told = Counter[str]()
                while told.total() < count:
                    await anyio.sleep(0.2)
                    told = Counter(row["metadata"]["status"] for row in results.find({"role": "TOOL"}))
            kept = client[scene.database]["working_memory"].count_documents({})
        letters = await scene.dead_letters()
        await scene.ended()
        figures = {"calls": count, "done": told["success"], "to_try_again": told["error"]}
        scene.print_figures(**figures, dead_letters=len(letters))
    assert (told.total(), kept, letters) == (count, told["success"], [])
    assert (mode == "streams") == (told["error"] == 0)
