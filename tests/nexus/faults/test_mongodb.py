"""MongoDB dies, vanishes and comes back (contract §1.4, §10)."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from tests.nexus.faults.judge import undegraded_between
from tests.nexus.faults.scene import Scene, Stage, in_both_modes, lasting, staged
from tests.nexus.support.mongo_server import mongo_server

_RATE = 20.0


async def _outage(scene: Scene, begin: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> list[str]:
    """Take MongoDB away for a while. Returns requests whose answers kept silent about it."""
    await begin()
    began = scene.history.happened("mongodb_gone")
    await anyio.sleep(lasting(4.0, least=2.5))
    ended = scene.history.happened("mongodb_back")
    await end()
    await scene.whole()
    return undegraded_between(scene.history.events(), began, ended)


@pytest.mark.timeout(120)
@in_both_modes
async def test_mongodb_killed_vanished_and_restarted(stage: Stage, mode: str) -> None:
    """Every request is answered before its deadline, and answers without MongoDB say so."""
    async with mongo_server() as mongo, staged(stage, "mongodb_gone", mode, mongo_port=mongo.port) as scene:
        await scene.fleet.start(2)
        proxy = scene.mongo_proxy

        async def vanish() -> None:
            proxy.vanish()

        async def appear() -> None:
            proxy.behave()
            proxy.reset()

        async with scene.load.offered(_RATE, scene.asks()):
            await scene.whole()
            silent = await _outage(scene, mongo.kill, mongo.start)
            silent += await _outage(scene, vanish, appear)
        await scene.ended()
        verdict = scene.verdict(late_after_ms=0, silent=len(silent))
    assert silent == []
    assert set(verdict.outcomes) == {"success"}


@pytest.mark.timeout(120)
@in_both_modes
async def test_sigterm_while_mongodb_has_vanished(stage: Stage, mode: str) -> None:
    """A replica that is stopped while MongoDB swallows everything exits 0 in time, and another takes over."""
    drain_s = 5
    async with staged(stage, "sigterm_without_mongodb", mode, settings={"system__drain_seconds": drain_s}) as scene:
        first, _ = await scene.fleet.start(2)
        async with scene.load.offered(_RATE, scene.asks()):
            await scene.whole()
            scene.mongo_proxy.vanish()
            await anyio.sleep(1)
            began = scene.history.happened("sigterm", replica=first.name)
            code = await first.end()
            took_s = scene.history.happened("exited", replica=first.name, code=code) - began
            scene.mongo_proxy.behave()
            scene.mongo_proxy.reset()
        await scene.ended()
        scene.verdict(late_after_ms=0, exit_code=code, exited_after_s=round(took_s, 1))
    assert code == 0
    # The process of a busy machine takes a moment to be gone, and to be seen gone.
    assert took_s <= drain_s + 1
