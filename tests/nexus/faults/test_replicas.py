"""Replicas die, stop, go on, are replaced, and have clocks that are wrong (contract §1.5, §1.6)."""

import random
import shutil
import signal
import subprocess

import anyio
import pytest

from tests.nexus.e2e.harness import REQUEST
from tests.nexus.faults import sabotage
from tests.nexus.faults.fleet import Fleet
from tests.nexus.faults.scene import MODES, Scene, Stage, in_both_modes, scaled, staged

# A second, on a machine of two cores that also runs the servers and the orchestrator. Without groups of consumers each
# replica reads each request, so there is less room.
_RATE = {"pubsub": 80.0, "streams": 100.0}
# Requests that are still being built when a deadly one is begun.
_BESIDE = 12


async def _kill_one(fleet: Fleet) -> None:
    """Kill a replica that is at work, and put another in its place."""
    victim = random.choice([replica for replica in fleet.running if replica.events("ready")])  # noqa: S311
    await victim.end(signal.SIGKILL)
    await fleet.start()


async def _kill(scene: Scene, times: int, requests: int) -> None:
    for number in range(times):
        await scene.load.reached(requests * (number + 1) // (times + 2))
        await _kill_one(scene.fleet)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.timeout(300)
async def test_replicas_killed_in_the_middle_of_builds(stage: Stage, mode: str) -> None:
    """Three replicas, ten SIGKILLs while they build: every request is answered once, within a lease and a deadline."""
    async with staged(stage, "replicas_killed", mode, direct_mongo=True, settings=sabotage.SETTINGS) as scene:
        await scene.fleet.start(3)
        requests, kills = scaled(5_000), scaled(10, least=3)
        make = scene.asks(owners=500, say=sabotage.SLOW)
        async with scene.load.offered(_RATE[mode], make, least=requests, most=40):
            await _kill(scene, kills, requests)
        await scene.ended()
        taken_over = scene.fleet.count("request_taken_over")
        verdict = scene.verdict(kills=kills, taken_over=taken_over)
    assert verdict.worst_ms <= scene.lease_ms + scene.deadline_ms
    assert taken_over


@pytest.mark.parametrize("mode", MODES)
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
        scene.verdict(exit_codes=sorted(set(codes)), stops=stops)
    assert set(codes) == {0}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.timeout(120)
async def test_a_replica_that_sleeps_through_its_lease(stage: Stage, mode: str) -> None:
    """SIGSTOP for two leases in the middle of builds, then SIGCONT: the other answers, and late answers are dropped."""
    slow = {"database__timeout_ms": 4_000, "database__server_selection_timeout_ms": 4_000}
    async with staged(stage, "replica_sleeps", mode, deadline_ms=8_000, settings=slow) as scene:
        sleeper, _ = await scene.fleet.start(2)
        await scene.load.offer(scaled(60), 60, scene.asks())
        scene.mongo_proxy.latency_s = 0.3
        # Stopped in the middle of builds, at every scale.
        async with scene.load.offered(60, scene.asks(), least=60):
            await anyio.sleep(0.9)
            scene.history.happened("stopped", replica=sleeper.name)
            sleeper.send(signal.SIGSTOP)
            # The other one is quick, so that the sleeper comes late.
            scene.mongo_proxy.behave()
            await anyio.sleep(2 * scene.lease_ms / 1_000)
            scene.history.happened("continued", replica=sleeper.name)
            sleeper.send(signal.SIGCONT)
        await sleeper.logged("late_answer_discarded")
        await scene.ended()
        scene.verdict(discarded=len(sleeper.events("late_answer_discarded")))


@pytest.mark.parametrize("mode", MODES)
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
                    # Not as a requester would, which enqueues once.
                    tasks.start_soon(scene.load.wire.say, REQUEST, asked.payload)
        await scene.load.wire.done(REQUEST)
        arrived = await scene.load.wire.arrived(REQUEST)
        await scene.ended()
        built = scene.fleet.count("answered", outcome="success")
        verdict = scene.verdict(built=built, arrived=arrived)
    assert verdict.answered_once == built == ids
    assert arrived >= 100 * ids


def _with_clock(skew: str) -> dict[str, str]:
    """Variables for a process whose clock is wrong by `skew`; its monotonic clock is right."""
    shown = subprocess.run(["faketime", "-f", skew, "env"], capture_output=True, text=True, check=True).stdout
    found = dict(line.partition("=")[::2] for line in shown.splitlines())
    # Without the memory shared by processes under the same wrapper, which ends with the wrapper.
    names = ("FAKETIME", "LD_PRELOAD")
    return {**{name: found[name] for name in names}, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@pytest.mark.timeout(120)
@pytest.mark.skipif(shutil.which("faketime") is None, reason="needs faketime (Debian's package of that name)")
@in_both_modes
async def test_replicas_ten_minutes_apart(stage: Stage, mode: str) -> None:
    """One replica is ten minutes fast, one ten minutes slow: leases and deadlines hold as if they were not."""
    async with staged(stage, "clock_skew", mode) as scene:
        replicas = await scene.fleet.start()
        for skew in ("+10m", "-10m"):
            replicas += [await scene.fleet.launch(_with_clock(skew))]
        for replica in replicas:
            await replica.logged("ready")
        await scene.load.offer(scaled(300), 40, scene.asks(), most=30)
        built = [len(replica.events("answered")) for replica in replicas]
        await scene.ended()
        verdict = scene.verdict(built_by_each=built)
    assert min(built) > 0
    assert set(verdict.outcomes) == {"success"}


@pytest.mark.timeout(150)
@in_both_modes
async def test_a_request_that_kills_its_builder(stage: Stage, mode: str) -> None:
    """It is given up after five attempts, with an error answer and a dead letter; builds beside it succeed."""
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
        for replica in scene.fleet.running:
            await replica.logged("ready")
        letters = await scene.dead_letters()
        await scene.ended()
        told = [event["outcome"] for event in scene.history.events() if event.get("request_id") == deadly.id]
        verdict = scene.verdict(deaths=len(scene.fleet.ended), dead_letters=len(letters), told=told)
    assert set(told) == {"INTERNAL"}
    assert verdict.outcomes == {"INTERNAL": 1, "success": verdict.sent - 1}
    assert len(letters) == 1
    assert len(scene.fleet.ended) == 5
