"""Replicas that are killed while they index messages (contract §14)."""

import signal
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from nexus.adapters.mongo import open_mongo
from nexus.core.recall import IndexStatus
from tests.nexus.faults.scene import Stage, scaled, staged
from tests.nexus.support.indexed import claimed_in, faults_of_index, waiting_in
from tests.nexus.support.waiting import until

_OWNERS = 20


def _rows(first: int, count: int) -> list[dict[str, Any]]:
    """Messages of several owners and sessions, as a service records them."""
    now = datetime.now(UTC)
    return [
        {
            "_id": ObjectId(),
            "id": f"m{number}",
            "run_id": f"r{number // 4}",
            "owner_key": f"o{number % _OWNERS}",
            "session_id": f"s{number % 3}",
            "role": "AI" if number % 2 else "HUMAN",
            "content": f"The beans number{number} are in cellar{number % 10}, beans are 好的{number % 100}",
            "timestamp": now,
            "metadata": {},
            "recall": {"work": "words", "due_at": now},
        }
        for number in range(first, first + count)
    ]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", ["pubsub"])
async def test_recall_outlives_replicas(stage: Stage, mode: str) -> None:
    """One of two is killed in mid-indexing and started anew, several times: every message is indexed, and once."""
    parts, each, amid = scaled(5), scaled(3_000, least=3_000), 0
    async with staged(stage, "recall_kept", mode, direct_mongo=True) as scene:
        with MongoClient[dict[str, Any]](stage.mongo_uri) as client:
            database = client[scene.database]
            await scene.fleet.start(2)
            for part in range(parts):
                database["messages"].insert_many(_rows(part * each, each))

                async def begun() -> bool:
                    # A claim lasts longer than its work: what is claimed and waits is being indexed.
                    return claimed_in(database) > 0

                await until(begun)
                await scene.fleet.running[0].end(signal.SIGKILL)
                amid += bool(claimed_in(database))
                await scene.fleet.start()

            async def done() -> bool:
                return not waiting_in(database)

            await until(done)
            faults = faults_of_index(database)
            async with open_mongo(stage.mongo_uri, scene.database) as store:
                # What `nexus recall status` tells.
                states = await store.recall.status()
        codes = await scene.ended()
        scene.print_figures(messages=parts * each, kills=parts, amid_indexing=amid, faults=len(faults))
    assert faults == []
    assert states == IndexStatus(indexed=parts * each, waiting=0, failed=0, unmarked=0)
    assert amid
    assert set(codes) == {0}
