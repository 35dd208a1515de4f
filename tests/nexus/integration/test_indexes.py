"""Indexes: they are made or found, and queries go by them and read no more than they return."""

import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.cursor import Cursor
from pymongo.errors import OperationFailure

from nexus.adapters.mongo import Driver, open_mongo
from nexus.adapters.mongo.memory import newest_versions
from nexus.adapters.mongo.projections import HEADER, if_small
from nexus.adapters.mongo.schema import NEWEST_FIRST, NOT_SHOWN
from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.memory import TurnTouch
from nexus.core.working_memory import WHOLE, Tail
from nexus.services.history.reader import read_past
from tests.nexus.contract.test_memory import compaction, detail, overview
from tests.nexus.contract.test_turns import turn
from tests.nexus.support.database_pool import DatabasePool
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.proxy import proxied
from tests.nexus.support.rows import START, ids, row

Janitor = MongoClient[dict[str, Any]]
SCRIPT = Path(__file__).parents[3] / "scripts" / "database_manager.py"


@pytest.fixture
def explained(mongo_janitor: Janitor) -> Janitor:
    """The janitor, on a server that explains its plans."""
    if mongo_janitor.admin.command("serverStatus")["process"] == "secantus":
        pytest.skip("secantusdb plans a query of several conditions as a scan of the collection")
    return mongo_janitor


@pytest.fixture
def prepared_database(database_pool: DatabasePool) -> Iterator[str]:
    """One that no test has had: an index that ever held a list is multikey for good, and gives no order."""
    name, shape = database_pool.make()
    yield name
    database_pool.give_back(name, shape)


def _init_config(uri: str, database: str) -> None:
    command = [sys.executable, str(SCRIPT), "--uri", uri, "--database", database, "--yes", "init-config"]
    subprocess.run(command, capture_output=True, check=True, timeout=60)


@pytest.mark.parametrize("first", ["nexus", "manager", "others"])
async def test_nexus_and_the_manager(mongo_uri: str, mongo_janitor: Janitor, database_name: str, first: str) -> None:
    """Whichever comes first, one prepares and the other initialises; so they do after other software's indexes."""
    if first == "manager":
        _init_config(mongo_uri, database_name)
    if first == "others":
        mongo_janitor[database_name]["identities"].create_index("public_key", unique=True)
        mongo_janitor[database_name]["configurations"].create_index("environment", unique=True)
    async with open_mongo(mongo_uri, database_name) as store:
        await store.prepare()
        if first != "manager":
            _init_config(mongo_uri, database_name)
        assert await store.find_configuration("development")


async def test_an_index_that_stands_in_the_way_is_named(
    mongo_uri: str, mongo_janitor: Janitor, database_name: str
) -> None:
    """An index of ours that is there with other fields stops the preparation, and says which it is."""
    mongo_janitor[database_name]["tools"].create_index("label", unique=True, name="one_per_name")
    async with open_mongo(mongo_uri, database_name) as store:
        with pytest.raises(StoreRejectedError, match="collection tools: an index stands in the way of one_per_name"):
            await store.prepare()


async def _profiled(
    janitor: Janitor, name: str, read: Callable[[], Awaitable[Any]], query: Row
) -> tuple[Any, list[Row]]:
    """The result of a read, and the profiles of its queries."""
    janitor[name].command("profile", 2)
    found = await read()
    janitor[name].command("profile", 0)
    return found, list(janitor[name]["system.profile"].find(query))


@pytest.mark.once
async def test_a_session_is_read_by_its_index(explained: Janitor, mongo_uri: str, prepared_database: str) -> None:
    """Without a sort, and no more than is returned; also where its newest rows, which are not shown, are many."""
    marked = {"sub_agent_internal": True}
    rows = [
        row(number, session_id=f"s{number % 3}", metadata=marked if number % 30 == 0 else {}) for number in range(900)
    ]
    hidden = [row(1_000 + number, session_id="s1", metadata=marked) for number in range(11_000)]
    explained[prepared_database]["messages"].insert_many([*rows, *hidden])
    async with open_mongo(mongo_uri, prepared_database) as store:
        for session, sub_agent, most in (
            ("s0", None, 80),
            ("s0", "", 70),
            ("s0", "reviewer", 70),
            ("s1", None, 11_080),
            ("s2", None, 70),
        ):
            found, (query,) = await _profiled(
                explained,
                prepared_database,
                partial(store.session_messages, "o", session, limit=50, skip=20, sub_agent=sub_agent),
                {"op": "query", "command.filter.session_id.$eq": session},
            )
            assert len(found) == 50
            assert query["planSummary"] == "IXSCAN { owner_key: 1, session_id: 1, timestamp: -1, _id: -1 }"
            assert not any(query.get(name) for name in ("hasSortStage", "replanned", "fromMultiPlanner"))
            assert query["keysExamined"] <= most
            explained[prepared_database]["system.profile"].drop()


@pytest.mark.once
async def test_rows_that_name_no_session_are_read_by_the_index(
    explained: Janitor, mongo_uri: str, prepared_database: str
) -> None:
    """The default session costs what is returned of it, as any other does, whatever names its rows have."""
    names: list[Row] = [{"session_id": None}, {"session_id": ""}, {"session_id": "default"}, {"session_id": "s"}]
    rows = [row(number, **names[number % 4]) for number in range(4_000)]
    for each in rows[::8]:
        del each["session_id"]
    explained[prepared_database]["messages"].insert_many(rows)
    async with open_mongo(mongo_uri, prepared_database) as store:
        for read in (
            partial(store.session_messages, "o", "default", limit=50, skip=20),
            partial(store.tail_messages, "o", "default", WHOLE, limit=50, skip=20),
            partial(store.tail_messages, "o", "default", Tail("00000001"), limit=50, oldest_first=True),
        ):
            found, (query,) = await _profiled(
                explained, prepared_database, read, {"op": "query", "command.filter.session_id.$in": "default"}
            )
            assert len(found) == 50
            assert "session_id: 1" in query["planSummary"]
            assert not any(query.get(name) for name in ("hasSortStage", "replanned", "fromMultiPlanner"))
            assert query["keysExamined"] <= 80
            explained[prepared_database]["system.profile"].drop()


@pytest.mark.once
async def test_a_late_page_of_a_run_is_read_by_the_index(
    explained: Janitor, mongo_uri: str, prepared_database: str
) -> None:
    """It costs what is returned of it, as the first one does."""
    rows = [row(number, run_id="r") for number in range(300)]
    explained[prepared_database]["messages"].insert_many(rows)
    async with open_mongo(mongo_uri, prepared_database) as store:
        before = {"_id": "f" * 24, "timestamp": rows[99]["timestamp"]}
        read = partial(store.run_messages, "o", "r", limit=50, before=before)
        found, (query,) = await _profiled(
            explained, prepared_database, read, {"op": "query", "command.filter.run_id.$eq": "r"}
        )
    assert ids(found) == [f"m{number}" for number in range(99, 49, -1)]
    assert not query.get("hasSortStage")
    assert query["keysExamined"] <= 52


def _stored_at(session: str, second: int) -> ObjectId:
    return ObjectId(f"{0x65000000 + second:08x}{session.encode().hex():0>16}")


@pytest.mark.once
@pytest.mark.parametrize("sub_agent", [None, "reviewer"])
async def test_a_tail_costs_what_it_holds(
    explained: Janitor, mongo_uri: str, prepared_database: str, sub_agent: str | None
) -> None:
    """The server says that of a long session it read the rows that it gave and no other, as of a short one."""
    marked = {"sub_agent_internal": True, "agent_id": "reviewer"}
    told: list[list[tuple[Any, ...]]] = []
    async with open_mongo(mongo_uri, prepared_database) as store:
        for session, length in (("short", 100), ("long", 5_000)):
            rows = [
                row(number, session_id=session, id=f"{session} {number}", _id=_stored_at(session, number))
                for number in range(length)
            ]
            rows[0]["metadata"] = rows[-2]["metadata"] = marked
            explained[prepared_database]["messages"].insert_many(rows)
            tail = Tail(f"{0x65000000 + length - 50:08x}", frozenset({str(_stored_at(session, length - 1))}))
            found, queries = await _profiled(
                explained,
                prepared_database,
                partial(store.tail_messages, "o", session, tail, limit=400, sub_agent=sub_agent),
                {"command.filter.session_id.$eq": session},
            )
            assert len(found) == (48 if sub_agent is None else 50)
            assert not any(each.get("hasSortStage") for each in queries)
            told.append(sorted((each["planSummary"], each["keysExamined"], each["docsExamined"]) for each in queries))
    assert told[0] == told[1]
    assert all(plan.startswith("IXSCAN") and "timestamp" not in plan for plan, *_ in told[1])
    assert max(keys for _, keys, _ in told[1]) <= 52


@pytest.mark.parametrize("driver", DRIVERS)
async def test_sessions_without_their_indexes(
    mongo_uri: str, mongo_janitor: Janitor, database_name: str, driver: Driver
) -> None:
    """A session and its tail are read before the indexes are made, and when they are dropped."""
    messages = mongo_janitor[database_name]["messages"]
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


def _assert_plans(*plans: tuple[Cursor[Row], str, int]) -> None:
    """Each query goes by its index, is not sorted in memory, and reads so many documents."""
    for cursor, index, read in plans:
        plan = cursor.explain()
        assert f"{index}'" in str(plan["queryPlanner"]["winningPlan"])
        assert "'stage': 'SORT'" not in str(plan["queryPlanner"]["winningPlan"])
        assert plan["executionStats"]["totalDocsExamined"] == read


OF_OWNER: Row = {"owner_key": {"$eq": "o"}}


def test_messages_come_out_of_their_indexes(explained: Janitor, prepared_database: str) -> None:
    """The newest rows and those of old runs, past those of tools; a row by its id, and a run's session by its run."""
    roles = ("AI", *["TOOL"] * 9)
    rows = [row(number, role=roles[number % 10], run_id=f"r{number // 20}") for number in range(1_000)]
    messages = explained[prepared_database].messages
    messages.insert_many(rows)
    shown = {**OF_OWNER, "role": {"$nin": NOT_SHOWN}}
    of_runs = {**shown, "run_id": {"$in": ["r0", "r1"]}}
    of_run = {**OF_OWNER, "run_id": {"$eq": "r3"}, "role": "HUMAN"}
    _assert_plans(
        (messages.find(shown, if_small(1 << 14)).sort(NEWEST_FIRST).limit(5), "newest_of_owner", 5),
        (messages.find(of_runs, if_small(1 << 14)).sort(NEWEST_FIRST).limit(5_000), "newest_of_run", 4),
        (messages.find({**OF_OWNER, "id": {"$eq": "m7"}}, HEADER).limit(5), "one_per_id", 1),
        (messages.find(of_run, HEADER).limit(5), "newest_of_run", 0),
    )


async def test_turns_come_out_of_their_indexes(explained: Janitor, mongo_uri: str, prepared_database: str) -> None:
    """A page of turns, the turn of a run and due turns are read without a sort, and no others but those left out."""
    async with open_mongo(mongo_uri, prepared_database) as store:
        for session in range(5):
            mine = [turn(n, session_id=f"s{session}", run_id=f"r{session}-{n}", work=None) for n in range(1, 201)]
            await store.turns.insert_turns(mine)
        await store.turns.touch_runs([TurnTouch("o", "s3", "r3-7", {"work": "close"})])
        await store.turns.touch_runs([TurnTouch("o", "s4", "r4-8", {"work": "summarise"})])
    turns = explained[prepared_database].turns
    of_session = {**OF_OWNER, "session_id": {"$eq": "s3"}}
    page = {**of_session, "turn_number": {"$lt": 150}, "run_id": {"$nin": ["r3-140", "r3-141"]}}
    due = {"work": {"$eq": "close"}, "due_at": {"$lte": START.replace(year=2100)}}
    by_number = [("turn_number", -1)]
    _assert_plans(
        (turns.find(page).sort(by_number).limit(10), "'one_per_number", 12),
        (turns.find(of_session).sort(by_number).limit(1), "'one_per_number", 1),
        (turns.find({**of_session, "run_id": {"$eq": "r3-7"}}), "'one_per_run", 1),
        (turns.find({**of_session, "run_id": {"$in": ["r3-7", "r3-8"]}}), "'one_per_run", 2),
        (turns.find(due).sort([("due_at", -1)]).limit(1), "'work_due", 1),
    )


async def test_memory_comes_out_of_its_indexes(explained: Janitor, mongo_uri: str, prepared_database: str) -> None:
    """Each query is read without a sort and nothing besides, however much there is; of names only the newest."""
    async with open_mongo(mongo_uri, prepared_database) as store:
        for number in range(1, 101):
            await store.memory.insert_overview(overview(number))
            await store.memory.insert_compaction(compaction(number, work="refine" if number == 7 else None))
            await store.memory.insert_details([detail(name, number) for name in "abc"])
            await store.memory.insert_details([detail(f"archive {number}", kind="archive")])
    database = explained[prepared_database]
    overviews, compactions, details = database.working_memory, database.compactions, database.memory_details
    of_session: Row = {**OF_OWNER, "session_id": {"$eq": "s"}}
    due = {"work": {"$eq": "refine"}, "due_at": {"$lte": START.replace(year=2100)}}
    archived = {**of_session, "kind": {"$eq": "archive"}}
    _assert_plans(
        (overviews.find(of_session).sort("revision", -1).limit(1), "one_per_revision", 1),
        (compactions.find({**of_session, "number": {"$lt": 50}}).sort("number", -1).limit(3), "number", 3),
        (compactions.find(due).sort("due_at", 1).limit(1), "work_due", 1),
        (details.find({**of_session, "name": {"$eq": "b"}}).sort("version", -1).limit(1), "one_per_version", 1),
        (details.find(of_session).sort([("name", 1), ("version", 1)]).limit(9), "one_per_version", 9),
        (details.find(archived).sort([("updated_at", -1), ("name", -1)]).limit(2), "newest_of_kind", 2),
    )
    for pipeline, read in ((newest_versions(of_session), 103), (newest_versions(of_session, "note"), 3)):
        command = {"aggregate": "memory_details", "pipeline": pipeline, "cursor": {}}
        told = str(database.command("explain", command, verbosity="executionStats"))
        assert "DISTINCT_SCAN" in told
        assert f"'totalDocsExamined': {read}" in told


async def test_details_are_found_without_their_words(
    mongo_janitor: Janitor, mongo_uri: str, database_name: str
) -> None:
    """The index of words makes searching faster where there is one; nothing fails where it is gone or never came."""
    phrase = "of the quick brown fox"
    details = mongo_janitor[database_name].memory_details
    with suppress(OperationFailure):
        details.create_index([("other", "text")], name="words")

    async def found() -> list[str]:
        return [row["name"] for row in await store.memory.search_details("o", "s", phrase, limit=5)]

    for drops in (True, False):
        async with open_mongo(mongo_uri, database_name) as store:
            await store.prepare()
            await store.memory.insert_details([detail("a", content=f"the tale {phrase}es")])
            assert await found() == ["a"]
            with suppress(OperationFailure):
                details.drop_index("words")
            if drops:
                await store.prepare()
            assert await found() == ["a"]


async def test_words_are_looked_up(explained: Janitor, mongo_uri: str, prepared_database: str) -> None:
    """Of many details only those are read that have a rare word from the middle of the phrase."""
    async with open_mongo(mongo_uri, prepared_database) as store:
        many = [detail(f"d{number}", content=f"of number {number} and more") for number in range(300)]
        await store.memory.insert_details(many)
        read = partial(store.memory.search_details, "o", "s", "R 217 AND MOR", limit=5)
        of_words = {"command.filter.$text": {"$exists": True}}
        found, told = await _profiled(explained, prepared_database, read, of_words)
    assert [row["name"] for row in found] == ["d217"]
    assert [query["docsExamined"] for query in told] in ([1], [2])


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        # Ten runs with sixty results of 100 KB each, and answers of 1 MB, of which the ends will do.
        pytest.param(
            [
                row(run * 10 + n, run_id=f"r{run}", role=role, content=content)
                for run in range(10)
                for n, (role, content) in enumerate([("HUMAN", "?"), *[("TOOL", "x" * 100_000)] * 6, ("AI", "!")])
            ],
            {1},
            id="results of tools",
        ),
        pytest.param(
            [row(number, role="AI", content=f"{number}" + "x" * 1_000_000 + f"{number}") for number in range(20)],
            {2_000},
            id="the middle of long answers",
        ),
    ],
)
async def test_a_read_transfers_no_more_than_it_shows(
    mongo_janitor: Janitor, prepared_database: str, rows: list[Row], shown: set[int]
) -> None:
    """Reading the past with excerpts of 2,000 characters transfers no other content (contract §4.3)."""
    mongo_janitor[prepared_database].messages.insert_many([dict(each) for each in rows])
    async with proxied(*(mongo_janitor.address or ("", 0))) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with open_mongo(uri, prepared_database, timeout_ms=20_000) as store:
            past = await read_past(store, "o", messages=20, excerpt_chars=1_000)
    assert len(past.rows) >= 20
    assert {len(each["content"]) for each in past.rows} == shown
    assert proxy.received < 200_000
