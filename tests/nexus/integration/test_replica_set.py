"""A MongoDB replica set whose primary steps down, and the next is killed, in the middle of the work."""

import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from nexus.bootstrap import Nexus, open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, MemorySettings, Settings
from nexus.core.models import Message, Role, Run, Topics
from nexus.core.ports import Row
from nexus.core.wire import encode
from tests.nexus.support.mongo_server import MongoServer, real_mongod
from tests.nexus.support.redis_server import HOST
from tests.nexus.support.waiting import PATIENCE_S, until

REMEMBERED = "the canary sings at noon"
ROWS = 300


class ReplicaSet:
    """Three members. The first of them becomes the first primary."""

    def __init__(self, members: Sequence[MongoServer]) -> None:
        self.uri = f"mongodb://{','.join(f'{HOST}:{member.port}' for member in members)}/?replicaSet=rs1"
        self._members = {member.port: member for member in members}

    async def initiate(self) -> None:
        """Make them a set; there is a primary afterwards."""
        members = [
            {"_id": number, "host": f"{HOST}:{port}", "priority": 1.0 if number else 2.0}
            for number, port in enumerate(self._members)
        ]
        settings = {"electionTimeoutMillis": 1_000, "heartbeatIntervalMillis": 200}
        async with AsyncMongoClient[Row](next(iter(self._members.values())).uri) as client:
            await client.admin.command("replSetInitiate", {"_id": "rs1", "members": members, "settings": settings})
        await until(self.primary)

    async def primary(self) -> str | None:
        """The member that is primary now."""
        async with AsyncMongoClient[Row](self.uri, serverSelectionTimeoutMS=500) as client:
            try:
                return str((await client.admin.command("hello"))["primary"])
            except (PyMongoError, KeyError):
                return None

    async def step_down(self) -> None:
        """Have the primary give up; it stands for election again after ten seconds at the earliest."""
        async with AsyncMongoClient[Row](self.uri) as client:
            await client.admin.command("replSetStepDown", 10, secondaryCatchUpPeriodSecs=5)

    async def kill_primary(self) -> None:
        """End the primary with SIGKILL."""
        await self._members[int((await until(self.primary)).rpartition(":")[2])].kill()

    async def changed(self, change: Callable[[], Awaitable[None]]) -> None:
        """Have another primary elected."""
        before = await self.primary()
        await change()

        async def another() -> bool:
            return await self.primary() not in {None, before}

        await until(another)


@asynccontextmanager
async def replica_set(folder: Path) -> AsyncIterator[ReplicaSet]:
    """Run a replica set of real `mongod`s."""
    options = ["--replSet", "rs1", "--oplogSize", "16"]
    async with AsyncExitStack() as stack:
        members = [MongoServer(folder / str(number), options) for number in range(3)]
        for member in members:
            stack.push_async_callback(member.kill)
            await member.start()
        found = ReplicaSet(members)
        await found.initiate()
        yield found


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
