"""A MongoDB replica set whose primary steps down, and the next is killed, in the middle of the work."""

import gc
from collections import Counter
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr
from pymongo import AsyncMongoClient

from nexus.bootstrap import Nexus, open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, MemorySettings, Settings
from nexus.core.models import Message, Role, Run, Topics
from nexus.core.ports import Row
from nexus.core.wire import encode
from tests.nexus.support.mongo_server import real_mongod
from tests.nexus.support.replica_set import replica_set
from tests.nexus.support.waiting import PATIENCE_S, until

REMEMBERED = "the canary sings at noon"
ROWS = 300


def result_of(number: int) -> bytes:
    """A model's result, as it is published."""
    return encode(
        Message(id=f"m{number}", run_id=f"r{number}", owner_key="bob", role=Role.AI, content=f"Answer {number}")
    )


async def offer_rows(nexus: Nexus) -> None:
    """Publish results, some at a time."""
    for number in range(ROWS):
        await nexus.bus.publish(Topics.LLM_RESULTS, result_of(number))
        if number % 10 == 0:
            await anyio.sleep(0.05)


async def ask(client: ContextClient, contents: list[Row], enough: anyio.Event) -> None:
    """Ask for contexts of an owner with a past, one after another."""
    while not enough.is_set():
        run = f"q{len(contents)}"
        human = Message(run_id=run, owner_key="ada", role=Role.HUMAN, content="What sings?")
        contents.append(await client.build(Run(id=run, owner_key="ada", history=[human]), timeout=PATIENCE_S))
        await anyio.sleep(0.1)


# Drivers leave connections of monitors that they stop to the garbage collector, which therefore runs in here.
@pytest.mark.once
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(real_mongod() is None, reason="no mongod: a replica set needs real ones")
async def test_elections_lose_nothing(tmp_path: Path) -> None:
    """Rows that are offered meanwhile are all recorded once; an answer holds the past, or says that it is missing."""
    contents: list[Row] = []
    enough = anyio.Event()
    async with replica_set(tmp_path) as servers:
        settings = Settings(
            bus=BusSettings(mode="memory"),
            # With motor some outlive the test.
            database=DatabaseSettings(uri=SecretStr(servers.uri), name="elections", driver="pymongo"),
            memory=MemorySettings(history_context_size=200),
        )
        async with open_nexus(settings) as nexus, ContextClient(nexus.bus).listening() as client:
            past = Message(id="past", run_id="p", owner_key="ada", role=Role.AI, content=REMEMBERED)
            await nexus.bus.publish(Topics.LLM_RESULTS, encode(past))
            await until(lambda: nexus.store.find_message("ada", "past"))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(offer_rows, nexus)
                tasks.start_soon(ask, client, contents, enough)
                await servers.changed(servers.step_down)
                await servers.changed(servers.kill_primary)
                enough.set()
            with anyio.fail_after(PATIENCE_S):
                await nexus.persistence.flush()
        async with AsyncMongoClient[Row](servers.uri) as direct:
            rows = direct["elections"]["messages"].find({"owner_key": "bob"})
            recorded = Counter([row["id"] async for row in rows])
    gc.collect()
    assert recorded == {f"m{number}": 1 for number in range(ROWS)}
    assert contents
    for content in contents:
        assert "history" in content["degraded"] or REMEMBERED in str(content["messages"])
