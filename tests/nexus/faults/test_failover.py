"""The primary of a MongoDB replica set dies with writes that no other member has (contract §1.5, §2)."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, get_args

import anyio
import pytest
from pymongo import MongoClient

from nexus.adapters.mongo import Driver
from tests.nexus.e2e.harness import REQUEST, Document, a_message
from tests.nexus.faults.load import Asked
from tests.nexus.faults.scene import PREFIX, Scene, Stage, scaled, staged
from tests.nexus.support.mongo_server import real_mongod
from tests.nexus.support.replica_set import ReplicaSet, replica_set
from tests.nexus.support.waiting import until

_ROUNDS: Final = scaled(10)
# Of each kind, in a round.
_EACH: Final = 20
# The first try of a write ends in it, a second meets what the first has left, and so do further ones.
_TIMEOUT_MS: Final = 500
_TRIES_S: Final = 2.0
_RESULTS, _CALLS, _STATES = "llm.results", "tools.requests", "session.state"
_OUTBOX: Final = f"{PREFIX}nexus:{{outbox}}:order"


def _work(owners: Iterable[str]) -> dict[str, list[Document]]:
    """For each owner a result, a call that writes the overview, and a session's state, each with the owner in it."""
    work: dict[str, list[Document]] = {_RESULTS: [], _STATES: [], _CALLS: []}
    for owner in owners:
        common: dict[str, Any] = {"owner_key": owner, "metadata": {"session_id": "default"}}
        call = {"name": "update_working_memory", "args": {"content": owner}, "call_id": "c1"}
        state = {"op": "set", "state": {"role": owner}}
        work[_RESULTS].append(a_message({"content": owner, "tool_calls": None}, f"result_{owner}", **common))
        work[_CALLS].append(a_message(call, f"call_{owner}", **common))
        work[_STATES].append(a_message(state, f"state_{owner}", "COMMAND", **common))
    return work


async def _unacknowledged(scene: Scene, topic: str) -> int:
    groups: Any = await scene.load.wire.redis.xinfo_groups(PREFIX + topic)
    return sum(group["pending"] + (group["lag"] or 0) for group in groups)


async def _said_saved(scene: Scene) -> set[str]:
    """The owners whose model was told that the overview is kept."""
    results: Any = await scene.load.wire.redis.xrange(f"{PREFIX}tools.results")
    said = [json.loads(fields[b"message"]) for _, fields in results]
    return {message["owner_key"] for message in said if message["content"]["status"] == "success"}


class _Rounds:
    """What was sent in all rounds, and what became of it."""

    def __init__(self, scene: Scene, servers: ReplicaSet) -> None:
        self._scene = scene
        self._servers = servers
        self._owners: list[str] = []
        self._asked: list[Asked] = []
        # Acknowledged, or said to be saved, while no majority had anything.
        self.early = Counter[str]()

    async def run(self, number: int) -> None:
        """Send work while the secondaries are dead, then have the primary die and them come back."""
        scene = self._scene
        owners = [f"o{number}x{index}" for index in range(_EACH)]
        make = scene.asks(owners=len(owners))
        asked = [make(index) for index in range(len(owners))]
        await self._servers.kill_secondaries()
        async with anyio.create_task_group() as tasks:
            for each in asked:
                tasks.start_soon(scene.load.ask, each)
            # Calls come last: they are given up after ten seconds.
            for topic, messages in _work(owners).items():
                for message in messages:
                    await scene.load.wire.say(topic, json.dumps(message).encode())
                await anyio.sleep(_TRIES_S)
            for topic in (_RESULTS, _STATES):
                self.early[topic] += len(owners) - await _unacknowledged(scene, topic)
            self.early["overviews"] += len(await _said_saved(scene) & {*owners})
            await self._servers.fail_over()
        self._owners += owners
        self._asked += asked
        for topic in (REQUEST, _RESULTS, _CALLS, _STATES):
            await scene.load.wire.done(topic)
        await until(self._drained)
        await self._servers.start_all()

    async def _drained(self) -> bool:
        return not await self._scene.load.wire.redis.exists(_OUTBOX)

    async def expected(self) -> dict[str, Counter[str]]:
        """What has to be stored, by kind: all that was acknowledged or said to be saved."""
        owners = Counter(self._owners)
        overviews = Counter(await _said_saved(self._scene))
        inputs, turns = Counter(each.mark for each in self._asked), Counter(each.run for each in self._asked)
        return {"results": owners, "states": owners, "overviews": overviews, "inputs": inputs, "turns": turns}

    def stored(self) -> dict[str, Counter[str]]:
        """What is stored, and would be after any further change of the primary."""
        with MongoClient[Document](self._servers.uri, readConcernLevel="majority") as client:
            database = client[self._scene.database]
            said = {role: [*database["messages"].find({"role": role})] for role in ("AI", "HUMAN")}
            return {
                "results": Counter(row["content"] for row in said["AI"]),
                "states": Counter(row["owner_key"] for row in database["session_states"].find()),
                "overviews": Counter(row["content"] for row in database["working_memory"].find()),
                "inputs": Counter(row["content"].partition(" ")[0] for row in said["HUMAN"]),
                "turns": Counter(row["run_id"] for row in database["turns"].find()),
            }


# Drivers leave connections of monitors that they stop to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(900)
@pytest.mark.skipif(real_mongod() is None, reason="no mongod: a replica set needs real ones")
@pytest.mark.parametrize("driver", get_args(Driver))
async def test_what_was_acknowledged_outlives_the_primary(stage: Stage, driver: Driver, tmp_path: Path) -> None:
    """Both secondaries die, work is sent, the primary dies and they come back: what was said to be stored is stored."""
    async with (
        replica_set(tmp_path, election_timeout_ms=120_000) as servers,
        staged(stage, f"failover_{driver}", "streams") as scene,
    ):
        database = {"URI": servers.uri, "DRIVER": driver, "TIMEOUT_MS": str(_TIMEOUT_MS)}
        await scene.fleet.start(2, {f"NEXUS_DATABASE__{name}": value for name, value in database.items()})
        rounds = _Rounds(scene, servers)
        for number in range(_ROUNDS):
            await rounds.run(number)
        # A replica that stops writes what it has accepted, turns too.
        await scene.ended()
        expected, stored = await rounds.expected(), rounds.stored()
        lost = {kind: sum((expected[kind] - stored[kind]).values()) for kind in expected}
        # An overview may be kept although its model was told that this is not known.
        twice = {kind: sum((stored[kind] - expected[kind]).values()) for kind in expected if kind != "overviews"}
        sent = {kind: sum(counts.values()) for kind, counts in expected.items()}
        scene.verdict(late_after_ms=0, rounds=_ROUNDS, **sent, early=dict(rounds.early), lost_of=lost, twice=twice)
    assert not any(lost.values()), lost
    assert not any(twice.values()), twice
    assert not any(rounds.early.values()), rounds.early
