"""Many owners, requests that are given up and connections that break: no text reaches another."""

import random
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import stored_runs
from tests.nexus.faults.load import a_mark
from tests.nexus.faults.scene import MODES, Scene, Stage, every, scaled, staged, through

_OWNERS = 50


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
