"""Indexes: who makes them, what stands in their way, and that queries go by them and read no more than they return."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from nexus.adapters.mongo import Driver, open_mongo
from nexus.adapters.mongo.memory import newest_versions
from nexus.adapters.mongo.rows import HEADER, excerpt
from nexus.adapters.mongo.schema import NEWEST_FIRST, NOT_SHOWN
from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.memory import TurnTouch
from nexus.core.working_memory import Tail
from tests.nexus.contract.test_memory import compaction, detail, overview
from tests.nexus.contract.test_turns import turn
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.rows import START, ids, row

Janitor = MongoClient[dict[str, Any]]
SCRIPT = Path(__file__).parents[3] / "scripts" / "database_manager.py"


@pytest.fixture
def explained(mongo_janitor: Janitor) -> Janitor:
    """The janitor, on a server that explains its plans."""
    if mongo_janitor.admin.command("serverStatus")["process"] == "secantus":
        pytest.skip("secantusdb plans a query of several conditions as a scan of the collection")
    return mongo_janitor


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
@pytest.mark.usefixtures("explained")
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
    assert query["planSummary"] == "IXSCAN { owner_key: 1, session_id: 1, timestamp: -1, _id: -1 }"
    assert not query.get("hasSortStage")
    assert query["keysExamined"] <= (80 if sub_agent is None else 70)


@pytest.mark.once
@pytest.mark.usefixtures("explained")
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
    assert {query["planSummary"] for query in queries} == {
        "IXSCAN { owner_key: 1, session_id: 1, timestamp: -1, _id: -1 }"
    }
    assert [query["keysExamined"] for query in queries] == [11_050, 11_050, 50]
    assert not any(query.get("replanned") or query.get("fromMultiPlanner") for query in queries)


def _stored_at(session: str, second: int) -> ObjectId:
    return ObjectId(f"{0x65000000 + second:08x}{session.encode().hex():0>16}")


@pytest.mark.once
@pytest.mark.usefixtures("explained")
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
    assert told["long"] == told["short"]
    assert all(plan.startswith("IXSCAN") and "timestamp" not in plan for plan, *_ in told["long"])
    assert max(keys for _, keys, _ in told["long"]) <= 52


@pytest.mark.parametrize("driver", DRIVERS)
async def test_sessions_without_their_indexes(mongo_uri: str, database_name: str, driver: Driver) -> None:
    """A session and its tail are read before anybody has made the indexes, and when somebody drops them."""
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        messages = client[database_name]["messages"]
        messages.insert_many([row(number, session_id="s") for number in range(5)])
        async with open_mongo(mongo_uri, database_name, driver=driver) as store:

            async def read() -> list[list[Row]]:
                tail = await store.tail_messages("o", "s", Tail("00000001"), limit=3, sub_agent="a")
                return [await store.session_messages("o", "s", limit=3), tail]

            before = await read()
            await store.prepare()
            assert await read() == before
            for name in ("newest_of_session", "stored_in_session", "internal_in_session"):
                messages.drop_index(name)
            assert await read() == before
    assert [ids(rows) for rows in before] == [["m4", "m3", "m2"]] * 2


def plan_of(janitor: Janitor, name: str, query: Row, *, sort: bool = True, limit: int = 5) -> tuple[str, Row]:
    """The winning plan as text, and how much it read."""
    cursor = janitor[name].messages.find(query, excerpt(10) if sort else HEADER).limit(limit)
    answer = (cursor.sort(NEWEST_FIRST) if sort else cursor).explain()
    return str(answer["queryPlanner"]["winningPlan"]), answer["executionStats"]


async def _fill(janitor: Janitor, uri: str, name: str) -> None:
    async with open_mongo(uri, name) as store:
        await store.prepare()
    roles = ("AI", *["TOOL"] * 9)
    rows = [row(number, role=roles[number % 10], run_id=f"r{number // 20}") for number in range(1_000)]
    janitor[name].messages.insert_many(rows)


async def test_the_newest_rows_come_out_of_an_index(explained: Janitor, mongo_uri: str, database_name: str) -> None:
    """The newest rows are read without a sort, and rows of tools are passed over without being read."""
    await _fill(explained, mongo_uri, database_name)
    query: Row = {"owner_key": {"$eq": "o"}, "role": {"$nin": NOT_SHOWN}}
    plan, stats = plan_of(explained, database_name, query)
    assert "newest_of_owner" in plan
    assert "SORT" not in plan
    assert stats["totalDocsExamined"] == stats["nReturned"] == 5


async def test_rows_of_runs_come_out_of_an_index(explained: Janitor, mongo_uri: str, database_name: str) -> None:
    """The rows of old runs are found without reading those of newer ones, and merged without a sort in memory."""
    await _fill(explained, mongo_uri, database_name)
    query: Row = {"owner_key": {"$eq": "o"}, "run_id": {"$in": ["r0", "r1"]}, "role": {"$nin": NOT_SHOWN}}
    plan, stats = plan_of(explained, database_name, query, limit=5_000)
    assert "'stage': 'SORT'" not in plan
    assert stats["totalDocsExamined"] == stats["nReturned"] == 4


async def test_one_message_comes_out_of_its_index(explained: Janitor, mongo_uri: str, database_name: str) -> None:
    """The index of ids is partial, and serves an id all the same; a run's session is found by its run."""
    await _fill(explained, mongo_uri, database_name)
    plan, stats = plan_of(explained, database_name, {"owner_key": {"$eq": "o"}, "id": {"$eq": "m7"}}, sort=False)
    assert "one_per_id" in plan
    assert stats["totalDocsExamined"] == 1
    query = {"owner_key": {"$eq": "o"}, "run_id": {"$eq": "r3"}, "role": "HUMAN"}
    plan, stats = plan_of(explained, database_name, query, sort=False)
    assert "newest_of_run" in plan
    assert stats["totalDocsExamined"] == 0


async def test_turns_come_out_of_their_indexes(explained: Janitor, mongo_uri: str, database_name: str) -> None:
    """A page of turns, the turn of a run and what is due are read without a sort, and no others but those left out."""
    async with open_mongo(mongo_uri, database_name) as store:
        for session in range(5):
            mine = [turn(n, session_id=f"s{session}", run_id=f"r{session}-{n}", work=None) for n in range(1, 201)]
            await store.turns.insert_turns(mine)
        await store.turns.touch_runs([TurnTouch("o", "s3", "r3-7", {"work": "close"})])
        await store.turns.touch_runs([TurnTouch("o", "s4", "r4-8", {"work": "summarise"})])
    turns = explained[database_name].turns
    of_session = {"owner_key": {"$eq": "o"}, "session_id": {"$eq": "s3"}}
    page = {**of_session, "turn_number": {"$lt": 150}, "run_id": {"$nin": ["r3-140", "r3-141"]}}
    of_run = {**of_session, "run_id": {"$eq": "r3-7"}}
    of_runs = {**of_session, "run_id": {"$in": ["r3-7", "r3-8"]}}
    due = {"work": {"$eq": "close"}, "due_at": {"$lte": START.replace(year=2100)}}
    by_number, by_due = [("turn_number", -1)], [("due_at", -1)]
    for cursor, index, read in (
        (turns.find(page).sort(by_number).limit(10), "one_per_number", 12),
        (turns.find(of_session).sort(by_number).limit(1), "one_per_number", 1),
        (turns.find(of_run), "one_per_run", 1),
        (turns.find(of_runs), "one_per_run", 2),
        (turns.find(due).sort(by_due).limit(1), "work_due", 1),
    ):
        plan = cursor.explain()
        assert f"'{index}'" in str(plan["queryPlanner"]["winningPlan"])
        assert "'stage': 'SORT'" not in str(plan["queryPlanner"]["winningPlan"])
        assert plan["executionStats"]["totalDocsExamined"] == read


async def test_memory_comes_out_of_its_indexes(explained: Janitor, mongo_uri: str, database_name: str) -> None:
    """What is asked for is read without a sort and nothing besides, however much there is; of names only the newest."""
    async with open_mongo(mongo_uri, database_name) as store:
        for number in range(1, 101):
            await store.memory.insert_overview(overview(number))
            await store.memory.insert_compaction(compaction(number, work="refine" if number == 7 else None))
            await store.memory.insert_details([detail(name, number) for name in "abc"])
            await store.memory.insert_details([detail(f"archive {number}", kind="archive")])
    database = explained[database_name]
    of_session: Row = {"owner_key": {"$eq": "o"}, "session_id": {"$eq": "s"}}
    due = {"work": {"$eq": "refine"}, "due_at": {"$lte": START.replace(year=2100)}}
    named = {**of_session, "name": {"$eq": "b"}}
    archived = {**of_session, "kind": {"$eq": "archive"}}
    for cursor, index, read in (
        (database.working_memory.find(of_session).sort("revision", -1).limit(1), "one_per_revision", 1),
        (database.compactions.find({**of_session, "number": {"$lt": 50}}).sort("number", -1).limit(3), "number", 3),
        (database.compactions.find(due).sort("due_at", 1).limit(1), "work_due", 1),
        (database.memory_details.find(named).sort("version", -1).limit(1), "one_per_version", 1),
        (database.memory_details.find(of_session).sort([("name", 1), ("version", 1)]).limit(9), "one_per_version", 9),
        (database.memory_details.find(archived).sort([("updated_at", -1), ("name", -1)]).limit(2), "newest_of_kind", 2),
    ):
        plan = cursor.explain()
        assert f"{index}'" in str(plan["queryPlanner"]["winningPlan"])
        assert "'stage': 'SORT'" not in str(plan["queryPlanner"]["winningPlan"])
        assert plan["executionStats"]["totalDocsExamined"] == read
    for pipeline, read in ((newest_versions(of_session), 103), (newest_versions(of_session, "note"), 3)):
        command = {"aggregate": "memory_details", "pipeline": pipeline, "cursor": {}}
        told = database.command("explain", command, verbosity="executionStats")
        assert "DISTINCT_SCAN" in str(told)
        assert f"'totalDocsExamined': {read}" in str(told)


async def test_details_are_found_without_their_words(
    mongo_janitor: Janitor, mongo_uri: str, database_name: str
) -> None:
    """The index of words makes searching faster where there is one; nothing fails where it is gone or never came."""
    phrase = "of the quick brown fox"
    details = mongo_janitor[database_name].memory_details
    with suppress(OperationFailure):
        details.create_index([("other", "text")], name="words")
    async with open_mongo(mongo_uri, database_name) as store:
        await store.prepare()
        assert await store.memory.insert_details([detail("a", content=f"the tale {phrase}es")]) == 1
        assert [row["name"] for row in await store.memory.search_details("o", "s", phrase, limit=5)] == ["a"]
        with suppress(OperationFailure):
            details.drop_index("words")
        await store.prepare()
        assert [row["name"] for row in await store.memory.search_details("o", "s", phrase, limit=5)] == ["a"]
    async with open_mongo(mongo_uri, database_name) as store:
        assert [row["name"] for row in await store.memory.search_details("o", "s", phrase, limit=5)] == ["a"]
        with suppress(OperationFailure):
            details.drop_index("words")
        assert [row["name"] for row in await store.memory.search_details("o", "s", phrase, limit=5)] == ["a"]


async def test_words_are_looked_up(explained: Janitor, mongo_uri: str, database_name: str) -> None:
    """Of many details only those are read that have a rare word from the middle of the phrase."""
    async with open_mongo(mongo_uri, database_name) as store:
        many = [detail(f"d{number}", content=f"of number {number} and more") for number in range(300)]
        await store.memory.insert_details(many)
        explained[database_name].command("profile", 2)
        found = await store.memory.search_details("o", "s", "R 217 AND MOR", limit=5)
        explained[database_name].command("profile", 0)
    told = list(explained[database_name]["system.profile"].find({"command.filter.$text": {"$exists": True}}))
    assert [row["name"] for row in found] == ["d217"]
    assert [query["docsExamined"] for query in told] in ([1], [2])
