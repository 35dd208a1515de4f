"""Redis dies, forgets, stalls and is slow (contract §1.5)."""

import anyio
import pytest

from tests.nexus.faults import sabotage
from tests.nexus.faults.judge import first_success_after, moments
from tests.nexus.faults.scene import Scene, Stage, every, in_both_modes, scaled, staged, through

_RATE = 40.0


async def _restart_redis(scene: Scene, times: int) -> None:
    async for _ in every(2.5, times):
        scene.history.happened("redis_killed")
        await scene.redis.kill()
        await anyio.sleep(0.5)
        await scene.redis.start()
        scene.history.happened("redis_answers")


@pytest.mark.timeout(120)
@in_both_modes
async def test_redis_killed_and_restarted(stage: Stage, mode: str) -> None:
    """Redis with an append-only file, killed and started three times under load: ready again within five seconds."""
    async with staged(stage, "redis_killed", mode, append_only=True, settings=sabotage.SETTINGS) as scene:
        await scene.fleet.start(2)
        async with scene.load.offered(_RATE, scene.asks(say=sabotage.SLOW), least=scaled(480), most=60):
            await _restart_redis(scene, scaled(3, least=2))
            await scene.whole()
        await scene.ended()
        events = scene.history.events()
        ready_s = [first_success_after(events, at) for at in moments(events, "redis_answers")]
        scene.verdict(ready_again_s=[round(seconds, 2) for seconds in ready_s], ended=len(scene.fleet.ended))
    assert max(ready_s) <= 5
    assert scene.fleet.ended == []


async def _flush(scene: Scene, times: int) -> None:
    async for _ in every(2.3, times):
        scene.history.happened("flushed")
        await scene.load.wire.redis.flushall()


@pytest.mark.timeout(120)
@in_both_modes
async def test_redis_forgets_everything(stage: Stage, mode: str) -> None:
    """FLUSHALL three times under load: no process ends, and requests sent again are answered."""
    async with staged(stage, "flushall", mode, settings=sabotage.SETTINGS) as scene:
        await scene.fleet.start(2)
        async with scene.load.offered(20, scene.asks(say=sabotage.SLOW), least=scaled(200), most=30):
            await _flush(scene, scaled(3, least=2))
            await scene.whole()
        await scene.ended()
        scene.verdict(ended=len(scene.fleet.ended))
    assert scene.fleet.ended == []


async def _lose_replies(scene: Scene, times: int) -> None:
    async for number in every(1.0, times):
        if number % 2:
            scene.redis_proxy.mute()
        else:
            scene.redis_proxy.reset()


@pytest.mark.timeout(120)
@in_both_modes
async def test_replies_of_redis_get_lost(stage: Stage, mode: str) -> None:
    """Commands are executed, but the reply is lost or the connection reset: one answer all the same."""
    async with staged(stage, "replies_lost", mode, deadline_ms=20_000, settings={"bus__heartbeat_s": 1}) as scene:
        await scene.fleet.start(2, through(scene.redis_proxy))
        async with scene.load.offered(30, scene.asks(), least=scaled(240)):
            await _lose_replies(scene, scaled(5, least=2))
            await scene.whole()
        await scene.ended()
        scene.verdict()
