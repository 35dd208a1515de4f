"""The sources of a context fail amid builds, in every layout (contract §1.4): it says so, and is never `INTERNAL`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, get_args

import anyio
import pytest
from pymongo import AsyncMongoClient

from nexus.adapters.mongo import Driver
from tests.nexus.e2e.harness import Document, a_message
from tests.nexus.faults.judge import undegraded_between
from tests.nexus.faults.load import Asked, an_ask
from tests.nexus.faults.scene import Scene, Stage, scaled, staged
from tests.nexus.support.mongo_server import MongoServer, real_mongod
from tests.nexus.support.redis_server import HOST

_LAYOUTS: Final = ("dialogue", "agent", "thinking")
# In each fault; half of them are sent before it begins.
_ASKED: Final = scaled(48, least=24)
_RATE: Final = 40.0
# Builds take some round trips, so that a fault falls amid them.
_LATENCY_S: Final = 0.02
# What takes all of MongoDB away: every answer meanwhile says so.
_TOTAL: Final = frozenset({"killed", "refusing", "vanished"})


def _ask(scene: Scene, number: int) -> Asked:
    """A first request of a run, or one that goes on, in each layout in turn."""
    owner, run_id = f"o{number % 20}", f"run_{number}_{scene.history.happened('asked')}"
    layout = _LAYOUTS[number % len(_LAYOUTS)]
    later = [a_message("on it", run_id, owner_key=owner)] if number // len(_LAYOUTS) % 2 else None
    patience_s = (scene.deadline_ms + scene.lease_ms) / 1_000
    about: dict[str, Any] = {"run_id": run_id, "later": later, "run_metadata": {"layout": layout, "session_id": run_id}}
    return an_ask(owner, deadline_ms=scene.deadline_ms, patience_s=patience_s, **about)


@asynccontextmanager
async def _one_member(folder: Path) -> AsyncIterator[MongoServer]:
    """A replica set of one, which can step down."""
    server = MongoServer(folder, ["--replSet", "rs1", "--oplogSize", "16"])
    try:
        await server.start()
        async with AsyncMongoClient[Document](server.uri) as client:
            members = [{"_id": 0, "host": f"{HOST}:{server.port}"}]
            await client.admin.command("replSetInitiate", {"_id": "rs1", "members": members})
        yield server
    finally:
        await server.kill()


class _Faults:
    """The ways in which MongoDB fails, each with its end."""

    def __init__(self, scene: Scene, mongo: MongoServer) -> None:
        self.scene = scene
        self._mongo = mongo
        self._proxy = scene.mongo_proxy
        self._asked = 0

    def all(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Their beginnings, by name."""
        proxy = self._proxy
        return {
            "killed": self._mongo.kill,
            "refusing": _soon(proxy.refuse),
            "vanished": _soon(proxy.vanish),
            "connections_reset": _soon(proxy.reset),
            "replies_lost": _soon(proxy.mute),
            "replies_cut": _soon(lambda: setattr(proxy, "spoil", lambda piece: piece[: len(piece) // 2])),
            "step_down": self._step_down,
        }

    async def amid_builds(self, name: str, begin: Callable[[], Awaitable[None]]) -> list[str]:
        """Begin a fault while requests are answered, and end it. Returns those whose answers kept silent about it."""
        self._proxy.latency_s = _LATENCY_S
        first = self._asked
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.offer, _ASKED)
            await self.scene.load.reached(first + _ASKED // 2)
            await begin()
            began = self.scene.history.happened(name)
        ended = self.scene.history.happened("over")
        await self.end()
        return undegraded_between(self.scene.history.events(), began, ended) if name in _TOTAL else []

    async def offer(self, count: int) -> None:
        """Ask so often, and wait for the answers."""
        begin, self._asked = self._asked, self._asked + count
        await self.scene.load.offer(count, _RATE, lambda number: _ask(self.scene, begin + number))

    async def end(self) -> None:
        """Everything works again; returns when a context is whole."""
        self._proxy.spoil = None
        self._proxy.behave()
        self._proxy.reset()
        if not self._mongo.runs:
            await self._mongo.start()
        since = self.scene.history.happened("expecting whole answers")
        while self.scene.load.whole_at <= since:
            await self.offer(len(_LAYOUTS))

    async def _step_down(self) -> None:
        async with AsyncMongoClient[Document](self._mongo.uri) as client:
            await client.admin.command("replSetStepDown", 3, force=True)


def _soon(act: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def begin() -> None:
        act()

    return begin


@pytest.mark.timeout(300)
@pytest.mark.skipif(real_mongod() is None, reason="no mongod: only a real one steps down")
@pytest.mark.parametrize("demanded", ["degrade", "error"])
@pytest.mark.parametrize("driver", get_args(Driver))
async def test_sources_fail_amid_builds(stage: Stage, driver: Driver, demanded: str, tmp_path: Path) -> None:
    """MongoDB is absent at the start and fails in seven ways amid builds: no `INTERNAL`, no dead letter."""
    name = f"sources_{driver}_{demanded}"
    async with _one_member(tmp_path) as mongo, staged(stage, name, "streams", mongo_port=mongo.port) as scene:
        await mongo.kill()
        variables = {"NEXUS_DATABASE__DRIVER": driver, "NEXUS_CONTEXT__ON_HISTORY_FAILURE": demanded}
        await scene.fleet.start(1, variables)
        faults = _Faults(scene, mongo)
        began = scene.history.happened("absent")
        await faults.offer(_ASKED)
        silent = undegraded_between(scene.history.events(), began, scene.history.happened("over"))
        await faults.end()
        for fault, begin in faults.all().items():
            silent += await faults.amid_builds(fault, begin)
        letters = await scene.dead_letters()
        await scene.ended()
        verdict = scene.verdict(faults=len(faults.all()) + 1, silent=len(silent), dead_letters=len(letters))
    assert {*verdict.outcomes} == {"success"} | ({"HISTORY_UNAVAILABLE"} if demanded == "error" else set())
    assert (silent, letters) == ([], [])
