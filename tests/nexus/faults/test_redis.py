"""Redis dies, forgets, stalls and is slow (issue 3; CONTRACT §1.5; the note, cases 1, 2, 6, 9 and 10)."""

import anyio
import pytest

from tests.nexus.faults import sabotage
from tests.nexus.faults.judge import first_success_after, moments
from tests.nexus.faults.scene import MODES, Scene, Stage, every, scaled, staged, through

pytestmark = pytest.mark.parametrize("mode", MODES)

_RATE = 40.0


async def _restart_redis(scene: Scene, times: int) -> None:
    async for _ in every(2.5, times):
        scene.history.happened("redis_killed")
        await scene.redis.kill()
        await anyio.sleep(0.5)
        await scene.redis.start()
        scene.history.happened("redis_answers")


@pytest.mark.timeout(120)
async def test_redis_killed_and_restarted(stage: Stage, mode: str) -> None:
    """Redis with an append-only file, killed and started three times under load: ready again within five seconds."""
    async with staged(stage, "redis_killed", mode, append_only=True, settings=sabotage.SETTINGS) as scene:
        await scene.fleet.start(2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_restart_redis, scene, 3)
            await scene.load.offer(scaled(480), _RATE, scene.asks(say=sabotage.SLOW), most=60)
        codes = await scene.ended()
        events = scene.history.events()
        ready_s = [first_success_after(events, at) for at in moments(events, "redis_answers")]
        verdict = scene.verdict(ready_again_s=[round(seconds, 2) for seconds in ready_s], ended=len(scene.fleet.ended))
    assert verdict.clean
    assert max(ready_s) <= 5
    assert set(codes) == {0}
    assert scene.fleet.ended == []


async def _flush(scene: Scene, times: int) -> None:
    async for _ in every(2.3, times):
        scene.history.happened("flushed")
        await scene.load.wire.redis.flushall()


@pytest.mark.timeout(120)
async def test_redis_forgets_everything(stage: Stage, mode: str) -> None:
    """FLUSHALL three times under load: no process ends, and who asks again is answered."""
    async with staged(stage, "flushall", mode, settings=sabotage.SETTINGS) as scene:
        await scene.fleet.start(2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_flush, scene, 3)
            await scene.load.offer(scaled(200), 20, scene.asks(say=sabotage.SLOW), most=30)
        codes = await scene.ended()
        verdict = scene.verdict(ended=len(scene.fleet.ended))
    assert verdict.clean
    assert set(codes) == {0}
    assert scene.fleet.ended == []


@pytest.mark.timeout(150)
async def test_a_connection_that_is_open_at_one_end_only(stage: Stage, mode: str) -> None:
    """Every connection of the only replica stalls, and nobody is told: it notices by itself within fifteen seconds."""
    async with staged(stage, "half_open", mode, deadline_ms=30_000) as scene:
        (replica,) = await scene.fleet.start(variables=through(scene.redis_proxy))
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            await scene.load.offer(10, 20, scene.asks())
            tasks.start_soon(lambda: scene.load.offer(scaled(600), 10, scene.asks(), over=over))
            stalled_at = scene.history.happened("stalled")
            scene.redis_proxy.stall()
            await replica.logged("bus_disconnected")
            noticed_s = scene.history.happened("noticed") - stalled_at
            await replica.logged("bus_reconnected")
            over.set()
        codes = await scene.ended()
        answered_s = first_success_after(scene.history.events(), stalled_at)
        verdict = scene.verdict(noticed_s=round(noticed_s, 1), answered_again_s=round(answered_s, 1))
    assert verdict.clean
    assert noticed_s <= 15
    assert set(codes) == {0}


async def _lose_replies(scene: Scene, times: int) -> None:
    async for number in every(1.0, times):
        if number % 2:
            scene.redis_proxy.mute()
        else:
            scene.redis_proxy.reset()


@pytest.mark.timeout(120)
async def test_replies_of_redis_get_lost(stage: Stage, mode: str) -> None:
    """What a replica tells Redis is done, but the reply is lost or the connection reset: one answer all the same."""
    async with staged(stage, "replies_lost", mode, deadline_ms=20_000, settings={"bus__heartbeat_s": 1}) as scene:
        await scene.fleet.start(2, through(scene.redis_proxy))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_lose_replies, scene, 5)
            await scene.load.offer(scaled(240), 30, scene.asks())
        codes = await scene.ended()
        verdict = scene.verdict()
    assert verdict.clean
    assert set(codes) == {0}


@pytest.mark.timeout(120)
async def test_a_slow_line_to_redis(stage: Stage, mode: str) -> None:
    """Half a second of latency either way: every request is answered in time, or told that its time is over."""
    async with staged(stage, "slow_line", mode) as scene:
        await scene.fleet.start(2, through(scene.redis_proxy))
        await scene.load.offer(scaled(20), 20, scene.asks())
        scene.redis_proxy.latency_s = 0.25
        await scene.load.offer(scaled(60), 10, scene.asks(deadline_ms=10_000))
        scene.redis_proxy.latency_s = 0.5
        await scene.load.offer(scaled(30), 5, scene.asks(deadline_ms=10_000))
        scene.redis_proxy.behave()
        codes = await scene.ended()
        # A lease beyond the deadline, as ever, and the way there and back.
        verdict = scene.verdict(late_after_ms=scene.lease_ms + 1_000)
    assert verdict.clean
    assert set(codes) == {0}
