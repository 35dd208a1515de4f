"""What is MongoDB's own: plans, servers that do not answer, and documents that only a real server can hold."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import bson
import pytest
from bson.code import Code
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from nexus.adapters.mongo import Driver, MongoStore, open_mongo
from nexus.adapters.mongo.documents import Documents
from nexus.core.errors import ConfigError, StoreRejectedError, StoreUnavailableError
from nexus.core.ports import Row
from nexus.core.ports.memory import TurnTouch
from nexus.core.working_memory import WHOLE, Tail
from nexus.services.memory.search import texts_of
from tests.nexus.contract.test_turns import turn
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.mongo_server import real_mongod, secured_mongo
from tests.nexus.support.proxy import proxied
from tests.nexus.support.rows import START, ids, row
from tests.nexus.support.waiting import until

Janitor = MongoClient[dict[str, Any]]


async def recorded(store: MongoStore, new: Row) -> None:
    """Record a row however often it takes: where a store has little time, a stall of the machine is an outage."""

    async def probe() -> bool:
        with suppress(StoreUnavailableError):
            await store.insert_message(new)
            return True
        return False

    await until(probe)


async def _reads(store: MongoStore, newest: list[str]) -> bool:
    with suppress(StoreUnavailableError):
        return ids(await store.newest_messages("o", limit=5)) == newest
    return False


@pytest.mark.skipif(real_mongod() is None, reason="needs a mongod, to start one with TLS and users")
@pytest.mark.parametrize("driver", DRIVERS)
async def test_encrypted_and_with_a_password(driver: Driver, database_name: str) -> None:
    """Rows are recorded and read over TLS by a user who logs in."""
    async with secured_mongo() as uri, open_mongo(uri, database_name, driver=driver) as store:
        await store.prepare()
        await store.insert_message(row(1))
        assert ids(await store.newest_messages("o", limit=5)) == ["m1"]


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


async def test_a_large_result_beside_text_that_is_not_utf8(
    mongo_janitor: Janitor, mongo_uri: str, database_name: str
) -> None:
    """It is shown in short also where rows around it have to be cut here."""
    messages = mongo_janitor[database_name].get_collection("messages", CodecOptions(document_class=RawBSONDocument))
    encoded = bson.encode({"_id": bson.ObjectId(), **row(2, content="~" * 70_000)})
    try:
        messages.insert_one(RawBSONDocument(encoded.replace(b"~" * 70_000, b"\xff" * 70_000)))
    except OperationFailure:
        pytest.skip("secantusdb refuses text that is not UTF-8")
    async with open_mongo(mongo_uri, database_name) as store:
        about = {"condensed": "short", "handle": "result_1", "raw": "x"}
        await store.insert_message(row(1, role="TOOL", content="x" * 70_000, metadata=about))
        found = await store.session_messages("o", "s", limit=5)
    assert ids(found) == ["m2", "m1"]
    assert found[0]["content"].startswith("\ufffd" * 9)
    assert (found[1]["content"], found[1]["metadata"]) == ("short", {"handle": "result_1"})


@pytest.mark.parametrize("driver", DRIVERS)
async def test_small_rows_and_large_ones(mongo_uri: str, database_name: str, driver: Driver) -> None:
    """However large a row is, its fields come alike; those that nobody asks for make it large, and do not come."""
    about = {"condensed": "short", "handle": "result_1", "raw": "y" * 300, "tool_name": "f", "status": "success"}
    calls = [{"id": "c1", "name": "f", "arguments": {"a": "é" * 30}}]
    shapes: list[Row] = [
        {"content": "🙂" * 400, "metadata": {"tool_calls": calls, "other": [1, None]}},
        {"content": "x" * 20},
        {"content": "", "metadata": None, "role": "AI", "type": "ai", "tool_calls": calls},
        {"content": {"parts": [{"text": "a" * 50}]}, "metadata": []},
        {"content": None, "metadata": {"condensed": 1, "handle": "result_2"}},
        {"content": "z" * 900, "role": "TOOL", "metadata": about, "is_error": False, "tool_call_id": "c1"},
    ]
    rows = [row(number, **shape) for number, shape in enumerate(shapes)]
    async with open_mongo(mongo_uri, database_name, driver=driver) as store:
        await store.insert_messages([{**each, "unknown": "u", "owner_key": "small"} for each in rows])
        await store.insert_messages([{**each, "unknown": "u" * 20_000, "owner_key": "large"} for each in rows])
        pages = {}
        for owner in ("small", "large"):
            found = [
                *await store.all_messages(owner, limit=9),
                *await store.session_messages(owner, "s", limit=9),
                *await store.tail_messages(owner, "s", WHOLE, limit=9),
                *await store.stored_messages(owner, "s", limit=9),
                *await store.stored_messages(owner, "s", limit=9, excerpt_chars=10),
                *await store.search_messages(owner, "s", "a", limit=9, texts_of=texts_of),
            ]
            pages[owner] = [{name: each[name] for name in each if name not in {"_id", "owner_key"}} for each in found]
    assert len(pages["small"]) > 30
    assert "unknown" not in pages["small"][0]
    assert pages["small"] == pages["large"]


async def test_pages_of_a_run_beside_texts_as_timestamps(
    mongo_uri: str, mongo_janitor: Janitor, database_name: str
) -> None:
    """A run is read to its end also where other rows have such timestamps."""
    of_run = [row(number, run_id="r") for number in range(50)]
    mongo_janitor[database_name]["messages"].insert_many([*of_run, row(99, timestamp="2024-01-01", owner_key="other")])
    async with open_mongo(mongo_uri, database_name) as store:
        read: list[Row] = []
        while page := await store.run_messages("o", "r", limit=20, before=read[-1] if read else None):
            read += page
    assert ids(read) == [f"m{number}" for number in reversed(range(50))]


async def test_a_large_row_that_is_erased_while_it_is_read(
    mongo_uri: str, mongo_janitor: Janitor, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page comes without it, and with as many rows as were asked for."""
    read_page = Documents.read_page

    async def erasing(documents: Documents, *args: Any, **options: Any) -> list[Row]:
        page = await read_page(documents, *args, **options)
        mongo_janitor[database_name]["messages"].delete_one({"run_id": "r2"})
        return page

    async with open_mongo(mongo_uri, database_name) as store:
        await store.insert_messages([row(number, content="x" * 20_000) for number in range(1, 4)])
        monkeypatch.setattr(Documents, "read_page", erasing)
        assert ids(await store.all_messages("o", limit=2)) == ["m3", "m1"]


async def test_a_large_row_whose_id_is_decoded_as_another(
    mongo_uri: str, mongo_janitor: Janitor, database_name: str
) -> None:
    """It comes with its page all the same."""
    messages = mongo_janitor[database_name]["messages"]
    messages.insert_many([{"_id": Code(f"x{number}"), **row(number, content="x" * 20_000)} for number in range(1, 4)])
    async with open_mongo(mongo_uri, database_name) as store:
        assert ids(await store.all_messages("o", limit=2)) == ["m3", "m2"]


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
    """Every kind of operation says that the store is unavailable, and neither where nor with which password."""
    operations: list[Callable[[], Awaitable[object]]] = [
        store.prepare,
        store.ping,
        lambda: store.insert_message(row(1)),
        lambda: store.insert_messages([row(1), row(2)]),
        lambda: store.newest_messages("o", limit=5),
        lambda: store.find_message("o", "m1"),
        lambda: store.recorded_ids("o", ["m1"]),
        lambda: store.find_identity("k"),
        lambda: store.put_tool("t", {}, START),
        lambda: store.tail_messages("o", "s", Tail("65000000"), limit=5, sub_agent="a"),
        lambda: store.search_messages("o", "s", "x", limit=5, texts_of=texts_of),
        lambda: store.turns.insert_turns([turn(1)]),
        lambda: store.turns.count_turns("o", "s"),
        lambda: store.turns.touch_runs([TurnTouch("o", "s", "r", {"status": "x"})]),
        lambda: store.turns.claim("close", START, START),
        lambda: store.memory.newest("o", "s", notes=5, archives=5),
        lambda: store.memory.search_details("o", "s", "a few words", limit=5),
        lambda: store.memory.update_compaction("o", "s", 1, {"summary": "x"}, seen={"due_at": START}),
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


@pytest.mark.parametrize("driver", DRIVERS)
async def test_closed_while_an_insert_waits_for_the_indexes(
    driver: Driver, mongo_janitor: Janitor, database_name: str
) -> None:
    """It fails, as where the store is away. Cancelled, it would end its task without a word."""
    host, port = mongo_janitor.address or ("", 0)
    failed = []
    async with proxied(host, port) as proxy, anyio.create_task_group() as tasks:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with open_mongo(uri, database_name, driver=driver, timeout_ms=20_000) as store:
            await store.ping()
            proxy.silent = True
            proxy.stall()

            async def insert() -> None:
                with pytest.raises(StoreUnavailableError):
                    await store.insert_message(row(1))
                failed.append(row(1)["id"])

            tasks.start_soon(insert)
            await anyio.wait_all_tasks_blocked()
    assert failed == ["m1"]


@pytest.mark.parametrize("uri", ["", "http://x", "mongodb://", "mongodb://canary:c@nary@host"])
async def test_a_uri_that_cannot_be_used(uri: str) -> None:
    """An unusable URI is named by its setting, without being repeated."""
    with pytest.raises(ConfigError, match=r"^database\.uri: ") as raised:
        async with open_mongo(uri, "d"):
            pytest.fail("there is nothing to open")
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("odd", [None, "2", float("nan"), float("inf"), -1, bson.MaxKey(), bson.Code("2"), {"a": 2}])
async def test_numbers_that_are_none(
    driver: Driver, mongo_janitor: Janitor, mongo_uri: str, prepared_database: str, odd: Any
) -> None:
    """A turn, a revision or a compaction of another program, with no number where one belongs, is passed over."""
    fields = {"turns": "turn_number", "working_memory": "revision", "compactions": "number"}
    of_session = {"owner_key": "ada", "session_id": "s1"}
    for collection, field in fields.items():
        documents = [{**of_session, field: number, "run_id": str(number)} for number in (1, odd)]
        mongo_janitor[prepared_database][collection].insert_many(documents)
    async with open_mongo(mongo_uri, prepared_database, driver=driver) as store:
        memory, turns = store.memory, store.turns
        newest = await memory.newest("ada", "s1", notes=1, archives=1)
        latest = {
            "turns": [await turns.latest_turn("ada", "s1"), *await turns.turns("ada", "s1", limit=9)],
            "working_memory": [newest.overview, await memory.latest_overview("ada", "s1")],
            "compactions": [newest.compaction, *await memory.compactions("ada", "s1", limit=9)],
        }
    found = {collection: [row and row[fields[collection]] for row in rows] for collection, rows in latest.items()}
    assert found == {collection: [1, 1] for collection in fields}
