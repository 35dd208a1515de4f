"""Nexus and the database manager make the same indexes, whoever comes first; what stands in the way is named."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from nexus.adapters.mongo import Driver, open_mongo
from nexus.core.errors import StoreRejectedError
from nexus.core.working_memory import Tail
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.rows import ids, row

SCRIPT = Path(__file__).parents[3] / "scripts" / "database_manager.py"


def _init_config(uri: str, database: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--uri", uri, "--database", database, "--yes", "init-config"]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=60)


async def test_the_manager_after_nexus(mongo_uri: str, database_name: str) -> None:
    """Settings can be initialised in a database that Nexus has prepared."""
    async with open_mongo(mongo_uri, database_name) as store:
        await store.prepare()
        initialised = _init_config(mongo_uri, database_name)
        assert initialised.returncode == 0, initialised.stderr
        assert await store.find_configuration("development")


async def test_nexus_after_the_manager(mongo_uri: str, database_name: str) -> None:
    """Nexus prepares a database in which settings were initialised before it existed."""
    initialised = _init_config(mongo_uri, database_name)
    assert initialised.returncode == 0, initialised.stderr
    async with open_mongo(mongo_uri, database_name) as store:
        await store.prepare()
        assert await store.find_configuration("development")


async def test_an_index_of_another_name_will_do(mongo_uri: str, database_name: str) -> None:
    """The same index under another name, as other software may have made it, is good enough."""
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        client[database_name]["identities"].create_index("public_key", unique=True)
        client[database_name]["configurations"].create_index("environment", unique=True)
    async with open_mongo(mongo_uri, database_name) as store:
        await store.prepare()
    assert _init_config(mongo_uri, database_name).returncode == 0


async def test_an_index_that_stands_in_the_way_is_named(mongo_uri: str, database_name: str) -> None:
    """An index of ours that is there with other fields stops the preparation, and says which it is."""
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        client[database_name]["tools"].create_index("label", unique=True, name="one_per_name")
    async with open_mongo(mongo_uri, database_name) as store:
        with pytest.raises(StoreRejectedError, match="collection tools: an index stands in the way of one_per_name"):
            await store.prepare()


@pytest.mark.once
@pytest.mark.parametrize("sub_agent", [None, "", "reviewer"])
async def test_a_session_is_read_by_its_index(mongo_uri: str, database_name: str, sub_agent: str | None) -> None:
    """The server says of the very query that it went by the index, needed no sort, and read what it returned."""
    marked = {"sub_agent_internal": True}
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        database = client[database_name]
        async with open_mongo(mongo_uri, database_name) as store:
            await store.prepare()
            rows = [
                row(number, session_id=f"s{number % 3}", metadata=marked if number % 30 == 0 else {})
                for number in range(900)
            ]
            database["messages"].insert_many(rows)
            database.command("profile", 2)
            found = await store.session_messages("o", "s0", limit=50, skip=20, sub_agent=sub_agent)
            database.command("profile", 0)
        told = list(database["system.profile"].find({"op": "query", "command.find": "messages"}))
    assert len(found) == 50
    (query,) = [each for each in told if "session_id" in each["command"]["filter"]] or [{}]
    if "planSummary" not in query:
        pytest.skip("this server does not tell how it read: secantusdb has no plans")
    assert query["planSummary"] == "IXSCAN { owner_key: 1, session_id: 1, timestamp: -1, _id: -1 }"
    assert not query.get("hasSortStage")
    assert query["keysExamined"] <= (80 if sub_agent is None else 70)


@pytest.mark.once
async def test_a_session_whose_newest_rows_are_not_shown(mongo_uri: str, database_name: str) -> None:
    """Is read by its index all the same, and so are others after it; the server itself would go by the owner's."""
    marked = {"sub_agent_internal": True}
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        database = client[database_name]
        async with open_mongo(mongo_uri, database_name) as store:
            await store.prepare()
            database["messages"].insert_many([row(number, session_id=f"s{number % 2}") for number in range(200)])
            hidden = [row(1_000 + number, session_id="s0", metadata=marked) for number in range(11_000)]
            database["messages"].insert_many(hidden)
            database.command("profile", 2)
            found = [await store.session_messages("o", session, limit=50) for session in ("s0", "s0", "s1")]
            database.command("profile", 0)
        told = list(database["system.profile"].find({"op": "query", "command.find": "messages"}))
    assert [len(rows) for rows in found] == [50, 50, 50]
    queries = [each for each in told if "session_id" in each["command"]["filter"]]
    if not all("planSummary" in query for query in queries):
        pytest.skip("this server does not tell how it read: secantusdb has no plans")
    assert {query["planSummary"] for query in queries} == {
        "IXSCAN { owner_key: 1, session_id: 1, timestamp: -1, _id: -1 }"
    }
    assert [query["keysExamined"] for query in queries] == [11_050, 11_050, 50]
    assert not any(query.get("replanned") or query.get("fromMultiPlanner") for query in queries)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_session_without_its_index(mongo_uri: str, database_name: str, driver: Driver) -> None:
    """Is read before anybody has made one, and when somebody drops it."""
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        messages = client[database_name]["messages"]
        messages.insert_many([row(number, session_id="s") for number in range(5)])
        async with open_mongo(mongo_uri, database_name, driver=driver) as store:
            before = await store.session_messages("o", "s", limit=3)
            await store.prepare()
            assert await store.session_messages("o", "s", limit=3) == before
            messages.drop_index("newest_of_session")
            assert await store.session_messages("o", "s", limit=3) == before
    assert ids(before) == ["m4", "m3", "m2"]


def _stored_at(session: str, second: int) -> ObjectId:
    return ObjectId(f"{0x65000000 + second:08x}{session.encode().hex():0>16}")


@pytest.mark.once
@pytest.mark.parametrize("sub_agent", [None, "reviewer"])
async def test_a_tail_costs_what_it_holds(mongo_uri: str, database_name: str, sub_agent: str | None) -> None:
    """The server says that of a long session it read the rows that it gave and no other, as of a short one."""
    marked = {"sub_agent_internal": True, "agent_id": "reviewer"}
    lengths = {"short": 100, "long": 5_000}
    told: dict[str, list[tuple[Any, ...]]] = {}
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        database = client[database_name]
        async with open_mongo(mongo_uri, database_name) as store:
            await store.prepare()
            for session, length in lengths.items():
                rows = [
                    row(number, session_id=session, id=f"{session} {number}", _id=_stored_at(session, number))
                    for number in range(length)
                ]
                rows[0]["metadata"] = rows[-2]["metadata"] = marked
                database["messages"].insert_many(rows)
            for session, length in lengths.items():
                tail = Tail(f"{0x65000000 + length - 50:08x}", frozenset({str(_stored_at(session, length - 1))}))
                database.command("profile", 2)
                found = await store.tail_messages("o", session, tail, limit=400, sub_agent=sub_agent)
                database.command("profile", 0)
                assert len(found) == (48 if sub_agent is None else 50)
                queries = [*database["system.profile"].find({"command.filter.session_id.$eq": session})]
                told[session] = sorted(
                    (each.get("planSummary"), each.get("keysExamined"), each.get("docsExamined")) for each in queries
                )
                assert not any(each.get("hasSortStage") for each in queries)
    if not any(plan for plan, *_ in told["short"]):
        pytest.skip("this server does not tell how it read: secantusdb has no plans")
    assert told["long"] == told["short"]
    assert all(plan.startswith("IXSCAN") and "timestamp" not in plan for plan, *_ in told["long"])
    assert max(keys for _, keys, _ in told["long"]) <= 52


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_tail_without_its_indexes(mongo_uri: str, database_name: str, driver: Driver) -> None:
    """Is read before anybody has made one, and when somebody drops them."""
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        messages = client[database_name]["messages"]
        messages.insert_many([row(number, session_id="s") for number in range(5)])
        tail = Tail("00000001")
        async with open_mongo(mongo_uri, database_name, driver=driver) as store:
            before = await store.tail_messages("o", "s", tail, limit=3, sub_agent="a")
            await store.prepare()
            assert await store.tail_messages("o", "s", tail, limit=3, sub_agent="a") == before
            for name in ("stored_in_session", "internal_in_session"):
                messages.drop_index(name)
            assert await store.tail_messages("o", "s", tail, limit=3, sub_agent="a") == before
    assert ids(before) == ["m4", "m3", "m2"]
