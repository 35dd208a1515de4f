"""What is recorded together, past MongoDB's drivers and by them, on a real server."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from nexus.adapters.mongo import Driver, MongoStore, open_mongo
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from tests.nexus.contract.test_mongo import DRIVERS, connected, listened
from tests.nexus.contract.test_turns import turn
from tests.nexus.support.proxy import Proxy, proxied
from tests.nexus.support.rows import row

Janitor = MongoClient[dict[str, Any]]
PAST, BY = "past the driver", "by the driver"


@asynccontextmanager
async def opened(uri: str, name: str, driver: Driver, way: str) -> AsyncIterator[MongoStore]:
    """A store that inserts much that way."""
    # A driver with so few connections keeps them.
    few = f"{'&' if '?' in uri else '/?'}maxPoolSize=3" if way == BY else ""
    async with open_mongo(f"{uri}{few}", name, driver=driver, timeout_ms=20_000) as store:
        await store.prepare()
        if way == PAST:
            await connected(store)
        yield store


@pytest.mark.parametrize("way", [PAST, BY])
@pytest.mark.parametrize("driver", DRIVERS)
async def test_each_row_fares_by_itself(
    mongo_janitor: Janitor, mongo_uri: str, database_name: str, driver: Driver, way: str
) -> None:
    """What is there, what cannot be kept, and what is long are no other row's business, wherever they stand."""
    messages = mongo_janitor[database_name].messages
    rows = [row(number, content=f"{number} Grüße 世界 \x00") for number in range(150)]
    rows[40] = {**rows[40], "id": rows[7]["id"]}
    rows[60] = {**rows[60], "content": "x" * 300_000}
    rows[80] = {**rows[80], "content": "\ud800"}
    rows[81] = {**rows[81], "metadata": {"n": 1 << 64}}
    rows[100] = {**rows[100], "content": "x" * (17 << 20)}
    commands: list[str] = []
    async with listened(commands), opened(mongo_uri, database_name, driver, way) as store:
        await store.insert_message(rows[33])
        commands.clear()
        fates = await store.insert_messages(rows)
        again = await store.insert_messages(rows[:3])
    refused = (80, 81, 100)
    assert [number for number, fate in enumerate(fates) if fate is not True] == [33, 40, *refused]
    assert (fates[33], fates[40], again) == (False, False, [False] * 3)
    assert all(isinstance(fates[number], StoreRejectedError) for number in refused)
    kept = {number for number in range(150) if number not in {40, *refused}}
    found = [*messages.find()]
    assert {document["id"]: document["content"] for document in found} == {
        rows[number]["id"]: rows[number]["content"] for number in kept
    }
    assert len(found) == len(kept)
    # The long ones are its own.
    assert commands.count("insert") == 2 if way == PAST else commands.count("insert") > 2


@pytest.mark.parametrize("way", [PAST, BY])
@pytest.mark.parametrize("driver", DRIVERS)
async def test_no_number_behind_one_that_is_taken(
    mongo_janitor: Janitor, mongo_uri: str, database_name: str, driver: Driver, way: str
) -> None:
    """Of many turns of a session, those before it are kept."""
    turns = [turn(number) for number in range(1, 101)]
    async with opened(mongo_uri, database_name, driver, way) as store:
        await store.turns.insert_turns([turn(70, run_id="another")])
        assert await store.turns.insert_turns(turns) == 69
        of_others = [[turn(number, session_id=f"s{place}") for number in range(1, 4)] for place in range(30)]
        assert await store.turns.insert_turns_of_sessions(of_others) == [3] * 30
    numbers = [each["turn_number"] for each in mongo_janitor[database_name].turns.find({"session_id": "s"})]
    assert sorted(numbers) == [*range(1, 71)]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_connections_that_are_cut_meanwhile(
    mongo_janitor: Janitor, mongo_uri: str, database_name: str, driver: Driver
) -> None:
    """Each row is there once when its caller has asked for as long as he was told to, whatever was lost."""
    host, port = mongo_janitor.address or ("", 0)
    rows = [row(number) for number in range(400)]
    async with proxied(host, port) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with opened(uri, database_name, driver, PAST) as store, anyio.create_task_group() as tasks:
            proxy.latency_s = 0.005
            tasks.start_soon(_cut_often, proxy)
            for start in range(0, 400, 100):
                with anyio.fail_after(60):
                    await _insert_all(store, rows[start : start + 100])
            tasks.cancel_scope.cancel()
    assert sorted(document["id"] for document in mongo_janitor[database_name].messages.find()) == sorted(
        each["id"] for each in rows
    )
    assert mongo_uri


async def _insert_all(store: MongoStore, rows: Sequence[dict[str, Any]]) -> None:
    left = [*rows]
    while left:
        try:
            fates = await store.insert_messages(left)
        except StoreUnavailableError:
            await anyio.sleep(0.05)
            continue
        left = [each for each, fate in zip(left, fates, strict=True) if isinstance(fate, StoreUnavailableError)]


async def _cut_often(proxy: Proxy) -> None:
    while True:
        await anyio.sleep(0.02)
        proxy.reset()
        await anyio.sleep(0.3)
