"""What only a primary has goes with it: nothing takes it for stored (contract §2)."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient

from nexus.adapters.mongo import Driver, MongoStore, open_mongo
from nexus.adapters.mongo.schema import WORDS
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.person import Statement
from nexus.core.ports import Row
from nexus.core.ports.memory import TurnTouch
from nexus.services.person.statements import Origin, statement
from tests.nexus.contract.test_memory import compaction, detail, overview
from tests.nexus.contract.test_turns import turn
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.mongo_server import real_mongod
from tests.nexus.support.replica_set import ReplicaSet, replica_set
from tests.nexus.support.rows import ids, moment, row
from tests.nexus.support.waiting import PATIENCE_S, until

# Every kind of document, as the store has them before: one each, acknowledged.
_BEFORE = dict.fromkeys(
    ("messages", "session_states", "facts", "turns", "working_memory", "memory_details", "compactions", "tools"), 1
)
_ID = ObjectId()
_REFUSED = "what a validator does not accept"


def _definition(name: str) -> Row:
    return {"type": "function", "function": {"name": name}}


def _said(value: str) -> Statement:
    return statement(Origin("o", value, moment(1)), "home", value)


async def _prepare(store: MongoStore, uri: str) -> None:
    await store.prepare()
    async with AsyncMongoClient[Row](uri) as client:
        await client["d"].command("collMod", "messages", validator={"content": {"$ne": _REFUSED}})
    await store.insert_message(row(1))
    await store.put_session_state("o", "s", {"n": 1}, 0)
    await store.facts.add_statements("o", [_said("Lisbon")])
    await store.turns.insert_turns([turn(1)])
    await store.memory.insert_overview(overview(1))
    await store.memory.insert_details([detail("a")])
    await store.memory.insert_compaction(compaction(1))
    await store.put_tool("t", _definition("t"), moment(1))


def _inserts(store: MongoStore) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Each inserts a document, and returns what counts as true where it was not there."""
    imported = {"_id": {"$oid": str(_ID)}, "id": "m9", "owner_key": "o", "session_id": "imported"}
    return {
        "messages": lambda: store.insert_message(row(2)),
        "session_states": lambda: store.put_session_state("o", "s2", {"n": 1}, 0),
        "facts": lambda: store.facts.add_statements("o", [_said("Porto")]),
        "turns": lambda: store.turns.insert_turns([turn(2)]),
        "working_memory": lambda: store.memory.insert_overview(overview(2)),
        "memory_details": lambda: store.memory.insert_details([detail("b")]),
        "compactions": lambda: store.memory.insert_compaction(compaction(2)),
        "tools": lambda: store.put_tool("t2", _definition("t2"), moment(2)),
        "an import": lambda: store.transfer.insert_rows([imported]),
    }


def _changes(store: MongoStore) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Each changes a document from what it was before, and returns what counts as true where it did."""
    return {
        "a state": lambda: store.put_session_state("o", "s", {"n": 2}, 1),
        "a turn": lambda: store.turns.update_turn("o", "s", 1, {"status": "x"}, seen={"status": "pending"}),
        "a compaction": lambda: store.memory.update_compaction("o", "s", 1, {"work": "x"}, seen={"work": "refine"}),
    }


def _repeats(store: MongoStore) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Each finds what `_inserts` and `_changes` have written, and has nothing to do."""
    return {
        "messages at once": lambda: store.insert_messages([row(2), row(2)]),
        "one beside a rejected one": lambda: store.insert_messages([row(3, content=_REFUSED), row(2)]),
        "an older tool": lambda: store.put_tool("t2", None, moment(1)),
        "a turn that is noted": lambda: store.turns.touch_runs([TurnTouch("o", "s", "r1", {"status": "x"})]),
    }


async def _is_told(write: Callable[[], Awaitable[Any]]) -> None:
    with pytest.raises(StoreUnavailableError):
        await write()


async def _land(store: MongoStore, servers: ReplicaSet) -> None:
    """Have everything written to the primary alone."""

    async def landed() -> bool:
        async with anyio.create_task_group() as tasks:
            for write in [*_inserts(store).values(), *_changes(store).values()]:
                tasks.start_soon(_is_told, write)
        async with AsyncMongoClient[Row](servers.uri) as client:
            found = {name: await client["d"][name].count_documents({}) for name in _BEFORE}
            changed = await client["d"]["compactions"].count_documents({"work": "x"})
            changed += await client["d"]["turns"].count_documents({"status": "x"})
            changed += await client["d"]["session_states"].count_documents({"revision": 2})
        return changed == len(_changes(store)) and found == {**dict.fromkeys(_BEFORE, 2), "messages": 3}

    await until(landed)


async def _imported(store: MongoStore) -> list[Row]:
    async with aclosing(store.transfer.rows("o", "imported")) as pages:
        return [found async for page in pages for found in page]


async def _read(store: MongoStore) -> dict[str, Any]:
    """What decides whether something is written at all."""
    state = await store.find_session_state("o", "s")
    latest = await store.memory.latest_compaction("o", "s")
    (first,) = await store.turns.turns_of_runs("o", "s", ["r1"])
    return {
        "state": state and state["revision"],
        "new state": await store.find_session_state("o", "s2"),
        "turn": first["status"],
        "new turn": await store.turns.turns_of_runs("o", "s", ["r2"]),
        "overviews": [found["revision"] for found in await store.memory.overviews("o", "s", limit=9)],
        "details": [found["name"] for found in await store.memory.list_details("o", "s")],
        "compaction": latest and (latest["number"], latest["work"]),
        "tools": [found["function"]["name"] for found in await store.list_tools()],
        "imported": await _imported(store),
    }


# Drivers leave connections of monitors that they stop to the garbage collector.
@pytest.mark.once
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(real_mongod() is None, reason="no mongod: a replica set needs real ones")
@pytest.mark.parametrize("driver", DRIVERS)
async def test_what_no_majority_has_is_not_stored(driver: Driver, tmp_path: Path) -> None:
    """A duplicate, or a change that is made already, on a primary alone is told as a failure, and read by no decision.

    After the change of the primary all of it is gone, and the same writes write it.
    """
    async with replica_set(tmp_path, election_timeout_ms=120_000) as servers:
        async with open_mongo(servers.uri, "d", driver=driver, timeout_ms=20_000) as store:
            await _prepare(store, servers.uri)
            before = await _read(store)
            await servers.kill_secondaries()
            # The URI does not weaken it.
            weak = f"{servers.uri}&w=1&readPreference=secondaryPreferred&readConcernLevel=local"
            async with open_mongo(weak, "d", driver=driver, timeout_ms=400) as hurried:
                await hurried.ping()
                await _land(hurried, servers)
                every = {**_inserts(hurried), **_changes(hurried), **_repeats(hurried)}
                async with anyio.create_task_group() as tasks:
                    # Several times, since the driver's time may be over before the server has told of the duplicate.
                    for write in [*every.values()] * 5:
                        tasks.start_soon(_is_told, write)
            assert await _read(store) == before
            # A compaction passes over rows that it does not see.
            assert ids(await store.session_messages("o", "s", limit=9)) == ["m2", "m1"]
            await servers.fail_over()
        async with open_mongo(servers.uri, "d", driver=driver, timeout_ms=20_000) as store:
            assert await _read(store) == before
            written = {name: await write() for name, write in {**_inserts(store), **_changes(store)}.items()}
            assert {name for name, is_new in written.items() if not is_new} == set()
            refused, known = await store.insert_messages([row(3, content=_REFUSED), row(2)])
            assert (type(refused), known) == (StoreRejectedError, False)


@pytest.mark.once
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(real_mongod() is None, reason="no mongod: a replica set needs real ones")
@pytest.mark.parametrize("driver", DRIVERS)
async def test_an_index_of_a_new_release_while_a_member_is_dead(driver: Driver, tmp_path: Path) -> None:
    """It is made by the members that are there: rows are recorded, and need not wait for the dead one."""
    async with replica_set(tmp_path) as servers:
        async with open_mongo(servers.uri, "d", driver=driver, timeout_ms=20_000) as store:
            await _prepare(store, servers.uri)
        async with AsyncMongoClient[Row](servers.uri) as client:
            await client["d"]["messages"].drop_index("newest_of_run")
            await client["d"]["memory_details"].drop_index(WORDS)
        await servers.kill_secondaries(1)
        async with open_mongo(servers.uri, "d", driver=driver, timeout_ms=20_000) as store:
            with anyio.fail_after(PATIENCE_S):
                assert await store.insert_message(row(2))
        async with AsyncMongoClient[Row](servers.uri) as client:
            assert "newest_of_run" in await client["d"]["messages"].index_information()
            assert WORDS in await client["d"]["memory_details"].index_information()
