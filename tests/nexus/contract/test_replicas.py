"""What replicas tell each other, on every store, and due work on MongoDB (contract §16)."""

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from nexus.adapters.mongo import Driver, open_mongo
from nexus.core.models import to_milliseconds, utc_now
from nexus.core.replicas import DueWork, Replica, Sample
from tests.nexus.contract.test_store import Place, place
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.rows import row

__all__ = ["place"]


def replica(name: str, number: int = 1) -> Replica:
    """A replica with so many samples."""
    now = to_milliseconds(utc_now())
    sample = Sample({"success": 2}, {"history": 1}, {}, (0, 2), 1, {"rows": 3}, 4, now, 5.0)
    return Replica(name, "höst", "0.1", now, now, (sample,) * number)


def plain(value: Any) -> Any:
    """Sequences as lists."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


async def test_replicas_are_kept_replaced_and_removed(place: Place) -> None:
    """The latest of each; another's stays as it is, and removing what is not there does nothing."""
    async with place.open() as store:
        until = utc_now() + timedelta(minutes=10)
        assert await store.replicas.replicas(limit=10) == []
        kept = [replica("a", 60), replica("b")]
        for each in (replica("a", 1), *kept):
            await store.replicas.put_replica(each, until)
        found = sorted(await store.replicas.replicas(limit=10), key=lambda row: str(row["replica_id"]))
        assert plain(found) == plain([asdict(each) for each in kept])
        assert len(await store.replicas.replicas(limit=1)) == 1
        for name in ("a", "nobody"):
            await store.replicas.remove_replica(name)
        assert [each["replica_id"] for each in await store.replicas.replicas(limit=10)] == ["b"]


async def test_a_replica_goes_by_itself(
    mongo_uri: str, prepared_database: str, mongo_janitor: MongoClient[Any]
) -> None:
    """Its document says when, and the index has MongoDB remove it then."""
    async with open_mongo(mongo_uri, prepared_database) as store:
        until = to_milliseconds(utc_now()) + timedelta(minutes=10)
        await store.replicas.put_replica(replace(replica("a"), samples=()), until)
        collection = mongo_janitor[prepared_database]["replicas"]
        assert collection.count_documents({"_id": "a", "expires_at": until}) == 1
        assert [index for index in collection.list_indexes() if index.get("expireAfterSeconds") == 0]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_due_work(
    mongo_uri: str, prepared_database: str, mongo_janitor: MongoClient[Any], driver: Driver
) -> None:
    """Of each kind what is due by now, up to the limit; what is due later, or nothing is due on, does not count."""
    now = to_milliseconds(utc_now())
    later, before = now + timedelta(minutes=1), now - timedelta(minutes=1)
    database = mongo_janitor[prepared_database]

    def plant(collection: str, work: str | None, due_at: Any, count: int) -> None:
        database[collection].insert_many(
            {"owner_key": "o", "session_id": "s", "run_id": f"{work}{due_at}{n}", "turn_number": f"{work}{due_at}{n}"}
            | {"number": f"{work}{due_at}{n}", "work": work, "due_at": due_at}
            for n in range(count)
        )

    for work, count in (("close", 3), ("summarise", 2), ("extract", 1)):
        plant("turns", work, before, count)
    plant("turns", "close", later, 5)
    plant("turns", None, None, 5)
    plant("compactions", "refine", before, 4)
    async with open_mongo(mongo_uri, prepared_database, driver=driver, recall=True) as store:
        for number in range(7):
            await store.insert_message(row(number))
        database["messages"].update_one({"owner_key": "o", "id": "m0"}, {"$set": {"recall.work": "meaning"}})
        moment = utc_now() + timedelta(seconds=1)
        assert await store.replicas.due_work(moment, limit=100) == DueWork(3, 2, 1, 4, 6, 1)
        assert await store.replicas.due_work(moment, limit=2) == DueWork(2, 2, 1, 2, 2, 1)
        assert await store.replicas.due_work(before - timedelta(minutes=5), limit=2) == DueWork(0, 0, 0, 0, 0, 0)
