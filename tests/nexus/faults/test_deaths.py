"""Replicas die, stop, go on and are replaced (issue 3; CONTRACT §1.5)."""

import random
import signal

import anyio
import pytest

from tests.nexus.e2e.harness import REQUEST
from tests.nexus.faults import sabotage
from tests.nexus.faults.fleet import Fleet
from tests.nexus.faults.scene import MODES, Scene, Stage, scaled, staged

pytestmark = pytest.mark.parametrize("mode", MODES)

# A second, on a machine of two cores that also runs the servers and the orchestrator. Without groups of consumers each
# replica reads each request, so there is less room.
_RATE = {"pubsub": 80.0, "streams": 100.0}


async def _kill_one(fleet: Fleet) -> None:
    """Kill a replica that is at work, and put another in its place."""
    victim = random.choice([replica for replica in fleet.running if replica.events("ready")])  # noqa: S311
    await victim.end(signal.SIGKILL)
    await fleet.start()


async def _kill(scene: Scene, times: int, requests: int) -> None:
    for number in range(times):
        await scene.load.reached(requests * (number + 1) // (times + 2))
        await _kill_one(scene.fleet)


@pytest.mark.timeout(300)
async def test_replicas_killed_in_the_middle_of_builds(stage: Stage, mode: str) -> None:
    """Three replicas, ten SIGKILLs while they build: every request is answered once, within a lease and a deadline."""
    async with staged(stage, "replicas_killed", mode, direct_mongo=True, settings=sabotage.SETTINGS) as scene:
        await scene.fleet.start(3)
        requests, kills = scaled(5_000), scaled(10, least=3)
        make = scene.asks(owners=500, say=sabotage.SLOW)
        async with scene.load.offered(_RATE[mode], make, least=requests, most=40):
            await _kill(scene, kills, requests)
        codes = await scene.ended()
        taken_over = scene.fleet.count("request_taken_over")
        verdict = scene.verdict(kills=kills, taken_over=taken_over)
    assert verdict.clean
    assert verdict.worst_ms <= scene.lease_ms + scene.deadline_ms
    assert taken_over
    assert set(codes) == {0}


@pytest.mark.timeout(120)
async def test_replicas_replaced_one_after_another(stage: Stage, mode: str) -> None:
    """SIGTERM to one replica after another under load, five times: nothing is lost, and each exits 0."""
    async with staged(stage, "rolling_sigterm", mode, settings=sabotage.SETTINGS) as scene:
        await scene.fleet.start(3)
        codes, stops = [], scaled(5, least=2)
        async with scene.load.offered(_RATE[mode], scene.asks(say=sabotage.SLOW), most=30):
            for _ in range(stops):
                await scene.fleet.start()
                codes.append(await scene.fleet.running[0].end())
        codes += await scene.ended()
        verdict = scene.verdict(exit_codes=sorted(set(codes)), stops=stops)
    assert verdict.clean
    assert set(codes) == {0}


@pytest.mark.timeout(120)
async def test_a_replica_that_sleeps_through_its_lease(stage: Stage, mode: str) -> None:
    """SIGSTOP for two leases in the middle of builds, then SIGCONT: the other answers, and what is late is dropped."""
    slow = {"database__timeout_ms": 4_000, "database__server_selection_timeout_ms": 4_000}
    async with staged(stage, "replica_sleeps", mode, deadline_ms=8_000, settings=slow) as scene:
        sleeper, _ = await scene.fleet.start(2)
        await scene.load.offer(scaled(60), 60, scene.asks())
        scene.mongo_proxy.latency_s = 0.3
        # Stopped in the middle of builds, whatever the scale.
        async with scene.load.offered(60, scene.asks(), least=60):
            await anyio.sleep(0.9)
            scene.history.happened("stopped", replica=sleeper.name)
            sleeper.send(signal.SIGSTOP)
            # The other one is quick, so that it is the sleeper who comes late.
            scene.mongo_proxy.behave()
            await anyio.sleep(2 * scene.lease_ms / 1_000)
            scene.history.happened("continued", replica=sleeper.name)
            sleeper.send(signal.SIGCONT)
        await sleeper.logged("late_answer_discarded")
        codes = await scene.ended()
        verdict = scene.verdict(discarded=len(sleeper.events("late_answer_discarded")))
    assert verdict.clean
    assert set(codes) == {0}


@pytest.mark.timeout(120)
async def test_one_id_asked_a_hundred_times_at_once(stage: Stage, mode: str) -> None:
    """The same bytes a hundred times at once to three replicas, ten times over: all arrive, and each is built once."""
    async with staged(stage, "same_id_100_times", mode) as scene:
        await scene.fleet.start(3)
        make, ids = scene.asks(), scaled(10)
        for number in range(ids):
            asked = make(number)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(scene.load.ask, asked)
                for _ in range(99):
                    # Not as a requester would, who enqueues once.
                    tasks.start_soon(scene.load.wire.say, REQUEST, asked.payload)
        await scene.load.wire.done(REQUEST)
        arrived = await scene.load.wire.arrived(REQUEST)
        await scene.ended()
        built = scene.fleet.count("answered", outcome="success")
        verdict = scene.verdict(built=built, arrived=arrived)
    assert verdict.clean
    assert verdict.answered_once == built == ids
    assert arrived >= 100 * ids
