"""What is MongoDB's own: plans, servers that do not answer, and documents that only a real server can hold."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, get_args

import anyio
import anyio.lowlevel
import bson
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, monitoring
from pymongo.errors import OperationFailure
from structlog.testing import capture_logs

from nexus.adapters.mongo import Driver, MongoStore, open_mongo
from nexus.adapters.mongo_details import newest_of_each
from nexus.adapters.mongo_excerpts import all_small, excerpt
from nexus.adapters.mongo_schema import HEADER, NEWEST_FIRST, NOT_SHOWN, OF_RUN
from nexus.core.errors import ConfigError, StoreRejectedError, StoreUnavailableError
from nexus.core.ports import Row
from nexus.core.ports.turns import TurnTouch
from nexus.core.working_memory import WHOLE, Tail
from tests.nexus.contract.test_memory import compaction, detail, overview
from tests.nexus.contract.test_turns import turn
from tests.nexus.support.mongo_server import real_mongod, secured_mongo
from tests.nexus.support.proxy import Proxy, proxied
from tests.nexus.support.rows import START, ids, row
from tests.nexus.support.waiting import until

Janitor = MongoClient[dict[str, Any]]
DRIVERS = get_args(Driver)


@pytest.fixture
def explained(mongo_janitor: Janitor) -> Janitor:
    """The janitor, on a server that explains its plans."""
    if mongo_janitor.admin.command("serverStatus")["process"] == "secantus":
        pytest.skip("secantusdb plans a query of several conditions as a scan of the collection")
    return mongo_janitor


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
    for asked in (query, {**query, **all_small(10)}):
        plan, stats = plan_of(explained, database_name, asked)
        assert "newest_of_owner" in plan
        assert "SORT" not in plan
        assert stats["totalDocsExamined"] == stats["nReturned"] == 5


async def while_doing(store: MongoStore, call: Awaitable[Any]) -> set[bool]:
    """What the store says of being busy while this is done."""
    told, done = set(), anyio.Event()

    async def do() -> None:
        await call
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(do)
        await anyio.lowlevel.checkpoint()
        while not done.is_set():
            told.add(store.is_busy)
            await anyio.lowlevel.checkpoint()
    return told


async def test_when_a_store_is_busy(mongo_uri: str, database_name: str) -> None:
    """While it does anything for this process but read owners' newest messages, and no longer."""
    async with open_mongo(mongo_uri, database_name) as store:
        await store.prepare()
        await connected(store)
        assert True in await while_doing(store, store.insert_messages([row(number) for number in range(3)]))
        assert await while_doing(store, store.newest_messages("o", limit=5)) == {False}
        assert not store.is_busy


@asynccontextmanager
async def listened(commands: list[str]) -> AsyncIterator[None]:
    """Adds to `commands` what clients made in the context ask of `messages` by their driver."""

    class Listener(monitoring.CommandListener):
        def started(self, event: monitoring.CommandStartedEvent) -> None:
            if event.command.get(event.command_name) == "messages":
                commands.append(event.command_name)

        def succeeded(self, event: object) -> None:
            """Nothing is done then."""

        def failed(self, event: object) -> None:
            """Likewise."""

    listeners = monitoring._LISTENERS.command_listeners
    monitoring.register(listener := Listener())
    try:
        yield
    finally:
        listeners.remove(listener)


async def connected(store: MongoStore) -> None:
    """Wait until there is a connection past the driver."""

    async def probe() -> bool:
        store.pipelines.open_one()
        return store.pipelines.connections > 0

    await until(probe)


async def recorded(store: MongoStore, new: Row) -> None:
    """Record a row however often it takes: where a store has little time, a stall of the machine is an outage."""

    async def probe() -> bool:
        with suppress(StoreUnavailableError):
            await store.insert_message(new)
            return True
        return False

    await until(probe)


async def read_all(store: MongoStore, owners: Sequence[str], most: int) -> dict[str, list[str]]:
    """The ids of the newest rows of these owners, who are all asked for at once."""
    found: dict[str, list[str]] = {}

    async def read(owner: str) -> None:
        found[owner] = ids(await store.newest_messages(owner, limit=most, excerpt_chars=100))

    async with anyio.create_task_group() as tasks:
        for owner in owners:
            tasks.start_soon(read, owner)
    return found


def _many(owners: Sequence[str]) -> tuple[list[Row], dict[str, list[str]]]:
    """Twelve rows of each owner, and the ids of the newest ten."""
    rows = [row(number, owner_key=owner, id=f"{owner}-{number}") for owner in owners for number in range(12)]
    return rows, {owner: [f"{owner}-{number}" for number in range(11, 1, -1)] for owner in owners}


@pytest.mark.parametrize("driver", DRIVERS)
async def test_histories_are_read_past_the_driver(
    mongo_janitor: Janitor, mongo_uri: str, database_name: str, driver: Driver
) -> None:
    """However many at once, on no more connections than eight; each owner gets what is his."""
    owners = [f"o{number}" for number in range(40)]
    rows, newest = _many(owners)
    commands: list[str] = []
    async with listened(commands), open_mongo(mongo_uri, database_name, driver=driver, timeout_ms=20_000) as store:
        await store.prepare()
        mongo_janitor[database_name].messages.insert_many(rows)
        await connected(store)
        # What does not fit is asked of the driver, which opens connections for that.
        few = owners[:20]
        assert await read_all(store, few, 10) == {owner: newest[owner] for owner in few}
        assert "find" not in commands

        async def several() -> bool:
            assert await read_all(store, owners, 10) == newest
            return store.pipelines.connections > 1

        await until(several)
        assert store.pipelines.connections <= 8
    assert store.pipelines.connections == 0


@pytest.mark.parametrize("driver", DRIVERS)
async def test_connections_that_are_cut(
    mongo_janitor: Janitor, mongo_uri: str, database_name: str, driver: Driver
) -> None:
    """Who waits on one gets his rows all the same, and soon histories are read past the driver again."""
    host, port = mongo_janitor.address or ("", 0)
    owners = [f"o{number}" for number in range(20)]
    rows, newest = _many(owners)
    async with proxied(host, port) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with open_mongo(uri, database_name, driver=driver) as store:
            await store.prepare()
            mongo_janitor[database_name].messages.insert_many(rows)
            for latency_s in (0.0, 0.02):
                await connected(store)
                proxy.latency_s = latency_s
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cut_soon, proxy)
                    assert await read_all(store, owners, 10) == newest
            proxy.latency_s = 0.0
            await connected(store)
            assert await read_all(store, owners, 10) == newest
    assert mongo_uri


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_way_that_falls_silent_while_one_is_opened(
    mongo_janitor: Janitor, mongo_uri: str, prepared_database: str, driver: Driver
) -> None:
    """Opening ends in time, so that there are connections again as soon as there can be; and so does closing."""
    host, port = mongo_janitor.address or ("", 0)
    async with proxied(host, port) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with open_mongo(uri, prepared_database, driver=driver, timeout_ms=500) as store:
            await recorded(store, row(1))
            await connected(store)
            for _ in range(2):
                proxy.vanish()
                with anyio.fail_after(20):
                    while store.pipelines.connections:
                        with suppress(StoreUnavailableError):
                            await store.newest_messages("o", limit=5)
                store.pipelines.open_one()
                await anyio.sleep(0.1)
                proxy.behave()
                await until(partial(_served_past_the_driver, store))
            proxy.vanish()
            with suppress(StoreUnavailableError):
                await store.newest_messages("o", limit=5)
            store.pipelines.open_one()
            began_at = anyio.current_time()
        # A goodbye and an opening that are given up.
        assert anyio.current_time() - began_at < 20
    assert mongo_uri


async def _served_past_the_driver(store: MongoStore) -> bool:
    # The driver has connections of before, which carry nothing, and gives them first.
    return await _reads(store, ["m1"]) and store.pipelines.connections > 0


async def _reads(store: MongoStore, newest: list[str]) -> bool:
    with suppress(StoreUnavailableError):
        return ids(await store.newest_messages("o", limit=5)) == newest
    return False


async def _cut_soon(proxy: Proxy) -> None:
    await anyio.sleep(0.01)
    proxy.reset()


@pytest.mark.parametrize("options", ["maxPoolSize=3", "readPreference=secondaryPreferred"])
@pytest.mark.parametrize("driver", DRIVERS)
async def test_where_the_driver_is_to_be_asked(
    mongo_uri: str, database_name: str, driver: Driver, options: str
) -> None:
    """It needs its few connections itself, or reads elsewhere: then no connection is taken from it."""
    async with open_mongo(
        f"{mongo_uri}&{options}" if "?" in mongo_uri else f"{mongo_uri}/?{options}", database_name, driver=driver
    ) as store:
        await store.prepare()
        await store.insert_message(row(1))
        for _ in range(3):
            assert ids(await store.newest_messages("o", limit=5)) == ["m1"]
            await anyio.sleep(0.05)
        assert store.pipelines.connections == 0
        # Then its threads have what is to be done.
        assert True in await while_doing(store, store.newest_messages("o", limit=5))


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_driver_that_is_another_inside(
    driver: Driver, mongo_uri: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pymongo whose connections cannot be had in this way: reads are slower, and it is said once."""

    def taken_over(client: Any, *_: object) -> None:
        client.there_is_no_such_thing.as_there_was()

    monkeypatch.setattr("nexus.adapters.mongo_pipelines.taken_over", taken_over)
    with capture_logs() as logs:
        async with open_mongo(mongo_uri, database_name, driver=driver) as store:
            await store.insert_message(row(1))
            for _ in range(3):
                assert ids(await store.newest_messages("o", limit=5)) == ["m1"]
                await anyio.sleep(0.05)
    assert [line["event"] for line in logs if "pipeline" in line["event"]] == ["mongo_not_pipelined"]


@pytest.mark.skipif(real_mongod() is None, reason="needs a mongod, to start one with TLS and users")
@pytest.mark.parametrize("driver", DRIVERS)
async def test_encrypted_and_with_a_password(driver: Driver, database_name: str) -> None:
    """Histories are read as whoever logs in. Past the driver where that can be: motor's TLS cannot be gone on with."""
    async with secured_mongo() as uri, open_mongo(uri, database_name, driver=driver) as store:
        await store.prepare()
        await store.insert_message(row(1))
        if driver == "pymongo":
            await connected(store)
        for _ in range(3):
            assert ids(await store.newest_messages("o", limit=5)) == ["m1"]
            await anyio.sleep(0.05)
        assert store.pipelines.connections == (driver == "pymongo")


async def test_rows_of_runs_come_out_of_an_index(explained: Janitor, mongo_uri: str, database_name: str) -> None:
    """The rows of old runs are found without reading those of newer ones, and merged without a sort in memory."""
    await _fill(explained, mongo_uri, database_name)
    query: Row = {"owner_key": {"$eq": "o"}, "run_id": {"$in": ["r0", "r1"]}, "role": {"$nin": NOT_SHOWN}}
    plan, stats = plan_of(explained, database_name, query, limit=5_000)
    assert "'stage': 'SORT'" not in plan
    assert stats["totalDocsExamined"] == stats["nReturned"] == 4


async def test_roles_of_runs_stand_in_the_index(explained: Janitor, mongo_uri: str, database_name: str) -> None:
    """No row is read for them, and nothing of other runs."""
    await _fill(explained, mongo_uri, database_name)
    query: Row = {"$or": [{"owner_key": {"$eq": owner}, "run_id": {"$in": ["r0", "r1"]}} for owner in ("o", "p")]}
    roles = {"_id": 0, "owner_key": 1, "run_id": 1, "role": 1}
    found = explained[database_name].messages.find(query, roles).hint(OF_RUN).limit(50).explain()
    stats = found["executionStats"]
    assert stats["totalDocsExamined"] == 0
    # Where a run ends it has to look at the key behind.
    assert 0 < stats["nReturned"] <= stats["totalKeysExamined"] <= 2 * stats["nReturned"] + 4


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
    since = {"$or": [{**of_session, "session_id": {"$eq": f"s{n}"}, "turn_number": {"$gte": 198}} for n in range(3)]}
    of_run = {**of_session, "run_id": {"$eq": "r3-7"}}
    of_runs = {**of_session, "run_id": {"$in": ["r3-7", "r3-8"]}}
    due = {"work": {"$eq": "close"}, "due_at": {"$lte": START.replace(year=2100)}}
    by_number, by_due = [("turn_number", -1)], [("due_at", -1)]
    for cursor, index, read in (
        (turns.find(page).sort(by_number).limit(10), "one_per_number", 12),
        (turns.find(of_session).sort(by_number).limit(1), "one_per_number", 1),
        (turns.find(since).hint([("owner_key", 1), ("session_id", 1), *by_number]), "one_per_number", 9),
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
    for pipeline, read in ((newest_of_each(of_session), 103), (newest_of_each(of_session, "note"), 3)):
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


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 4, b"\xff" * 100, b"a" * 9 + b"\xf0\x9f" + b"b" * 5_000, b"\xff" * 5_000, b"a " * 5_000 + b"\xe2"],
)
async def test_text_that_is_not_utf8(
    mongo_janitor: Janitor, mongo_uri: str, database_name: str, content: bytes
) -> None:
    """A text that is not UTF-8 comes through with replacement characters, cut like any other."""
    messages = mongo_janitor[database_name].get_collection("messages", CodecOptions(document_class=RawBSONDocument))
    encoded = bson.encode({"_id": bson.ObjectId(), **row(2, content="~" * len(content), metadata={"x": 1})})
    try:
        messages.insert_one(RawBSONDocument(encoded.replace(b"~" * len(content), content)))
    except OperationFailure:
        pytest.skip("secantusdb refuses text that is not UTF-8")
    async with open_mongo(mongo_uri, database_name) as store:
        await store.insert_message(row(1, content="x" * 100, metadata={"tool_calls": [], "source": "s"}))
        await store.insert_message(row(3))
        found = await store.newest_messages("o", limit=5, excerpt_chars=10)
    assert ids(found) == ["m3", "m2", "m1"]
    assert "\ufffd" in found[1]["content"]
    assert len(found[1]["content"]) <= 21
    assert found[2]["metadata"]["tool_calls"] == []
    assert found[2]["content"] == "x" * 20


@asynccontextmanager
async def profiled(janitor: Janitor, name: str, finds: list[str]) -> AsyncIterator[None]:
    """Adds to `finds` the projections of what is looked for in `messages` in the context."""
    janitor[name].command("profile", 2)
    try:
        yield
    finally:
        janitor[name].command("profile", 0)
    told = janitor[name]["system.profile"].find({"ns": f"{name}.messages", "op": "query"})
    finds += [str(each["command"].get("projection")) for each in told]


@pytest.mark.parametrize(("end", "anywhere"), [("x" * 4_000, True), ("я" * 4_000 + "x", False)], ids=["even", "uneven"])
async def test_long_contents_are_cut_by_one_query(
    explained: Janitor, mongo_uri: str, database_name: str, end: str, anywhere: bool
) -> None:
    """Once the owner is known: at any byte where every text of hers allows that, else at a place looked for."""
    content, finds = "x" * 5_000 + "e" + end, list[str]()
    async with open_mongo(mongo_uri, database_name) as store:
        await connected(store)
        await store.insert_messages([row(number, content=content) for number in range(3)])
        await store.newest_messages("o", limit=3, excerpt_chars=100)
        async with profiled(explained, database_name, finds):
            for _ in range(3):
                found = await store.newest_messages("o", limit=3, excerpt_chars=100)
                assert [each["content"] for each in found] == [content[:100] + content[-100:]] * 3
    assert ["$indexOfBytes" in each for each in finds] == [not anywhere] * 3


async def test_long_rows_that_no_reply_holds(explained: Janitor, mongo_uri: str, database_name: str) -> None:
    """Come all the same, and are not cut at any byte in vain once more."""
    calls, finds = [{"id": "c", "name": "n", "arguments": "x" * 3_000_000}], list[str]()
    rows = [row(number, content="x" * 5_000, metadata={"tool_calls": calls}) for number in range(7)]
    async with open_mongo(mongo_uri, database_name) as store:
        await connected(store)
        for each in rows:
            await store.insert_message(each)
        await store.newest_messages("o", limit=7, excerpt_chars=100)
        async with profiled(explained, database_name, finds):
            found = await store.newest_messages("o", limit=7, excerpt_chars=100)
    assert ids(found) == [f"m{number}" for number in range(6, -1, -1)]
    assert {each["content"] for each in found} == {"x" * 200}
    assert finds
    assert all("$indexOfBytes" in each for each in finds)


@pytest.mark.parametrize(
    ("metadata", "internal"),
    [
        ({"sub_agent_internal": True}, True),
        ({"sub_agent_internal": [False, True]}, True),
        ([{"other": 1}, {"sub_agent_internal": True}], True),
        ({"sub_agent_internal": True, "$ref": "a", "$id": 1}, True),
        ({"sub_agent_internal": [[True]]}, False),
        ({"sub_agent_internal": 1}, False),
        ({"sub_agent_internal": "true"}, False),
        ({"sub_agent_internal": {"sub_agent_internal": True}}, False),
        ([[{"sub_agent_internal": True}]], False),
        ("sub_agent_internal", False),
        (None, False),
    ],
    ids=str,
)
async def test_what_is_internal_past_the_driver(
    mongo_janitor: Janitor, mongo_uri: str, database_name: str, metadata: object, internal: bool
) -> None:
    """Is what the server takes for it, whatever was known of the owner before; and pages are full without it."""
    messages = mongo_janitor[database_name].messages
    async with open_mongo(mongo_uri, database_name) as store:
        await connected(store)
        messages.insert_many([row(number) for number in range(4)])
        for _ in range(2):
            assert ids(await store.newest_messages("o", limit=3, excerpt_chars=100)) == ["m3", "m2", "m1"]
        messages.insert_many([row(4, metadata=metadata), row(5), row(6, metadata=metadata)])
        seen = ids(await store.newest_messages("o", limit=50))
        if internal and metadata != {"sub_agent_internal": True} and "m6" in seen:
            pytest.skip("secantusdb sees what is internal in plain objects only")
        assert seen == [f"m{number}" for number in range(6, -1, -1) if not (internal and number in {4, 6})]
        for _ in range(3):
            for skip in (0, 3):
                page = await store.newest_messages("o", limit=3, skip=skip, excerpt_chars=100)
                assert ids(page) == seen[skip : skip + 3]
            assert ids(await store.newest_messages("o", limit=50, excerpt_chars=100)) == seen


async def test_rows_that_are_there_twice(mongo_janitor: Janitor, mongo_uri: str, database_name: str) -> None:
    """Where a row was recorded twice before there was an index, preparing says so, and nothing is inserted."""
    mongo_janitor[database_name].messages.insert_many([row(1, content="canary"), row(1, content="canary")])
    async with open_mongo(mongo_uri, database_name) as store:
        with pytest.raises(StoreRejectedError, match="collection messages: several documents have the same") as raised:
            await store.prepare()
        assert "canary" not in str(raised.value)
        with pytest.raises(StoreUnavailableError, match="several documents"):
            await store.insert_message(row(2))


async def fails_in_every_operation(store: MongoStore) -> None:
    """Every operation says that the store is unavailable, and neither where it was looked for nor as whom."""
    operations: list[Callable[[], Awaitable[object]]] = [
        store.prepare,
        store.ping,
        lambda: store.insert_message(row(1)),
        lambda: store.insert_messages([row(1), row(2)]),
        lambda: store.newest_messages("o", limit=5),
        lambda: store.all_messages("o", limit=5),
        lambda: store.messages_of_runs("o", ["r"], limit=5),
        lambda: store.find_message("o", "m1"),
        lambda: store.run_messages("o", "r", limit=5),
        lambda: store.roles_of_runs([("o", "r")], limit=5),
        lambda: store.first_input("o", "s"),
        lambda: store.find_origin("o", "r"),
        lambda: store.find_identity("k"),
        lambda: store.find_configuration("e"),
        lambda: store.put_tool("t", {}, datetime(2026, 1, 1, tzinfo=UTC)),
        store.list_tools,
        lambda: store.turns.insert_turns([turn(1)]),
        lambda: store.turns.latest_turn("o", "s"),
        lambda: store.turns.find_turn("o", "s", 1),
        lambda: store.turns.turns_of_runs("o", "s", ["r"]),
        lambda: store.turns.turns("o", "s", limit=5),
        lambda: store.turns.search_turns("o", "s", "x", limit=5),
        lambda: store.turns.count_turns("o", "s"),
        lambda: store.turns.delete_turns("o", "s"),
        lambda: store.turns.update_turn("o", "s", 1, {"status": "x"}, seen={"due_at": START}),
        lambda: store.turns.touch_runs([TurnTouch("o", "s", "r", {"status": "x"})]),
        lambda: store.turns.overtake([("o", "s", 2)], {"status": "x"}, due_by=START),
        lambda: store.turns.close_unheard([("o", "s", 2)], {"status": "x"}),
        lambda: store.turns.claim("close", START, START),
        lambda: store.session_messages("o", "s", limit=5),
        lambda: store.tail_messages("o", "s", WHOLE, limit=5),
        lambda: store.tail_messages("o", "s", Tail("65000000"), limit=5, sub_agent="a"),
        lambda: store.messages_of_ids("o", ["6" * 24]),
        lambda: store.search_messages("o", "s", "x", limit=5),
        lambda: store.memory.insert_overview(overview(1)),
        lambda: store.memory.latest_overview("o", "s"),
        lambda: store.memory.overviews("o", "s", limit=5),
        lambda: store.memory.insert_details([detail("a")]),
        lambda: store.memory.list_details("o", "s"),
        lambda: store.memory.recent_details("o", "s", notes=5, archives=5),
        lambda: store.memory.find_detail("o", "s", "a"),
        lambda: store.memory.detail_versions("o", "s", limit=5),
        lambda: store.memory.search_details("o", "s", "a few words", limit=5),
        lambda: store.memory.insert_compaction(compaction(1)),
        lambda: store.memory.latest_compaction("o", "s"),
        lambda: store.memory.compactions("o", "s", limit=5),
        lambda: store.memory.update_compaction("o", "s", 1, {"summary": "x"}, seen={"due_at": START}),
        lambda: store.memory.claim_compaction("refine", START, START),
        lambda: store.memory.delete_memory("o", "s"),
    ]

    async def fails(operation: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(StoreUnavailableError) as raised:
            await operation()
        assert not any(word in str(raised.value) for word in ("canary", "127.0.0.1", "localhost"))

    async with anyio.create_task_group() as tasks:
        for operation in operations:
            tasks.start_soon(fails, operation)


@asynccontextmanager
async def short_of_time(port: int, driver: Driver) -> AsyncIterator[MongoStore]:
    """A store on a port of this machine that waits a tenth of a second."""
    uri = f"mongodb://canary:canary@127.0.0.1:{port}/?directConnection=true&authSource=admin"
    async with open_mongo(uri, "d", driver=driver, timeout_ms=100, server_selection_timeout_ms=100) as store:
        yield store


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_server_that_is_not_there(driver: Driver, unused_port: int) -> None:
    """With nobody at the port every operation says so, and neither where nor with which password."""
    async with short_of_time(unused_port, driver) as store:
        await fails_in_every_operation(store)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_server_that_never_answers(driver: Driver, unused_port: int) -> None:
    """A server that accepts connections and says nothing is as good as none."""
    async with proxied("127.0.0.1", unused_port) as proxy:
        proxy.silent = True
        async with short_of_time(proxy.port, driver) as store:
            await fails_in_every_operation(store)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_server_that_falls_silent(
    driver: Driver, mongo_janitor: Janitor, mongo_uri: str, database_name: str
) -> None:
    """When connections die without a word, operations fail in time; when the server is back, they succeed."""
    host, port = mongo_janitor.address or ("", 0)
    async with proxied(host, port) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with open_mongo(uri, database_name, driver=driver, timeout_ms=300) as store:
            await recorded(store, row(1))
            proxy.silent = True
            proxy.stall()
            with pytest.raises(StoreUnavailableError):
                await store.newest_messages("o", limit=5)
            with pytest.raises(StoreUnavailableError):
                await store.insert_message(row(2))
            proxy.silent = False
            proxy.reset()
            await recorded(store, row(2))
            await until(partial(_reads, store, ["m2", "m1"]))
    assert mongo_uri


# What pymongo is opening when its caller leaves it does not close: that is left to the collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*<socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("driver", DRIVERS)
async def test_cancelled_callers_leave_the_driver_whole(driver: Driver, mongo_uri: str, database_name: str) -> None:
    """However many callers stop waiting, on whatever connection, the others and those who come later get their rows."""
    async with open_mongo(mongo_uri, database_name, driver=driver, timeout_ms=20_000) as store:
        await store.insert_message(row(1))
        for _ in range(5):
            async with anyio.create_task_group() as tasks:
                for number in range(60):
                    tasks.start_soon(_read_and_leave, store, number)
        assert ids(await store.newest_messages("o", limit=5)) == ["m1"]
    # Here, and not in the middle of another test.
    gc.collect()


async def _read_and_leave(store: MongoStore, number: int) -> None:
    with anyio.move_on_after(number % 7 / 1_000):
        await store.newest_messages("o", limit=5)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_cancelled_insert_is_one_row(driver: Driver, mongo_uri: str, database_name: str) -> None:
    """An insert that was cancelled and then repeated is one row, whether or not the first one was carried out."""
    async with open_mongo(mongo_uri, database_name, driver=driver, timeout_ms=20_000) as store:
        await store.prepare()
        for number in range(20):
            with anyio.move_on_after(number / 10_000):
                await store.insert_message(row(number))
            await store.insert_message(row(number))
        assert len(await store.all_messages("o", limit=100)) == 20


async def test_a_history_in_the_future_is_shown(mongo_uri: str, database_name: str) -> None:
    """A row whose clock was ahead is the newest, and hides nothing."""
    async with open_mongo(mongo_uri, database_name) as store:
        await store.insert_message(row(1, timestamp=START + timedelta(days=3_000_000 // 24)))
        await store.insert_message(row(2))
        assert ids(await store.newest_messages("o", limit=5)) == ["m1", "m2"]


@pytest.mark.parametrize("uri", ["", "http://x", "mongodb://", "mongodb://canary:c@nary@host"])
async def test_a_uri_that_cannot_be_used(uri: str) -> None:
    """An unusable URI is named by its setting, without being repeated."""
    with pytest.raises(ConfigError, match=r"^database\.uri: ") as raised:
        async with open_mongo(uri, "d"):
            pytest.fail("there is nothing to open")
    assert "canary" not in str(raised.value)
