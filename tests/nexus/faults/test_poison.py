"""A request that kills whoever builds it (issue 3; CONTRACT §1.5, §1.6)."""

import anyio
import pytest

from tests.nexus.faults import sabotage
from tests.nexus.faults.scene import PREFIX, Scene, Stage, in_both_modes, staged

# So many that are still being built when the deadly one is begun.
_BESIDE = 12


@pytest.mark.timeout(150)
@in_both_modes
async def test_a_request_that_kills_its_builder(stage: Stage, mode: str) -> None:
    """It is given up after five attempts, with an error answer and a dead letter; what is built beside it succeeds."""
    async with staged(stage, "poison", mode, deadline_ms=20_000, lease_ms=1_000, settings=sabotage.SETTINGS) as scene:
        await scene.fleet.start(3)
        scene.fleet.kept = True
        deadly = scene.asks(deadline_ms=60_000, say=sabotage.POISON)(0)
        slow = scene.asks(say=sabotage.SLOW)
        async with anyio.create_task_group() as tasks, scene.load.offered(15, scene.asks()):
            for number in range(_BESIDE):
                tasks.start_soon(scene.load.ask, slow(number))
            await scene.load.ask(deadly)
        scene.fleet.kept = False
        await _all_ready(scene)
        letters = list(await scene.load.wire.redis.xrange(f"{PREFIX}nexus:dead-letters") or ())
        await scene.ended()
        told = [event["outcome"] for event in scene.history.events() if event.get("request_id") == deadly.id]
        verdict = scene.verdict(deaths=len(scene.fleet.ended), dead_letters=len(letters), told=told)
    assert verdict.clean
    assert set(told) == {"INTERNAL"}
    assert verdict.outcomes == {"INTERNAL": 1, "success": verdict.sent - 1}
    assert len(letters) == 1
    assert len(scene.fleet.ended) == 5


async def _all_ready(scene: Scene) -> None:
    for replica in scene.fleet.running:
        await replica.logged("ready")
