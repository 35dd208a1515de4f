"""A MongoDB replica set of three real members, to be stepped down, killed and started again."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from nexus.core.ports import Row
from tests.nexus.support.mongo_server import MongoServer
from tests.nexus.support.redis_server import HOST
from tests.nexus.support.waiting import until


class ReplicaSet:
    """Three members. The first of them becomes the first primary."""

    def __init__(self, members: Sequence[MongoServer], election_timeout_ms: int) -> None:
        self.uri = f"mongodb://{','.join(f'{HOST}:{member.port}' for member in members)}/?replicaSet=rs1"
        self._members = {member.port: member for member in members}
        self._election_timeout_ms = election_timeout_ms

    async def initiate(self) -> None:
        """Make them a set; all hold the same data afterwards, and one is primary."""
        members = [{"_id": number, "host": f"{HOST}:{port}"} for number, port in enumerate(self._members)]
        settings = {"electionTimeoutMillis": self._election_timeout_ms, "heartbeatIntervalMillis": 200}
        first = next(iter(self._members.values()))
        async with AsyncMongoClient[Row](first.uri) as client:
            await client.admin.command("replSetInitiate", {"_id": "rs1", "members": members, "settings": settings})
        await until(lambda: _stood_for_election(first))
        await until(self._is_whole)

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
        await (await self._primary()).kill()

    async def kill_secondaries(self, count: int = 2) -> None:
        """End so many others with SIGKILL. Without both the primary remains one for `election_timeout_ms`."""
        primary = await self._primary()
        for member in [each for each in self._members.values() if each is not primary][:count]:
            await member.kill()

    async def fail_over(self) -> None:
        """Kill the primary, then start the others, which were killed: one of them becomes primary."""
        old = await self._primary()
        await old.kill()
        others = [member for member in self._members.values() if member is not old]
        async with anyio.create_task_group() as tasks:
            for member in others:
                tasks.start_soon(member.start)
        await until(lambda: _stood_for_election(others[0]))
        await until(self.primary)

    async def start_all(self) -> None:
        """Start the members that were killed; all are there again afterwards, with the same data."""
        for member in self._members.values():
            if not member.runs:
                await member.start()
        await until(self._is_whole)

    async def changed(self, change: Callable[[], Awaitable[None]]) -> None:
        """Have another primary elected."""
        before = await self.primary()
        await change()

        async def another() -> bool:
            return await self.primary() not in {None, before}

        await until(another)

    async def _primary(self) -> MongoServer:
        return self._members[int((await until(self.primary)).rpartition(":")[2])]

    async def _is_whole(self) -> bool:
        async with AsyncMongoClient[Row](self.uri) as client:
            try:
                found = await client.admin.command("replSetGetStatus")
            except PyMongoError:
                return False
            return {1, 2} == {member["state"] for member in found["members"]}


async def _stood_for_election(member: MongoServer) -> bool:
    async with AsyncMongoClient[Row](member.uri) as client:
        try:
            await client.admin.command("replSetStepUp")
        except PyMongoError:
            return False
        return True


@asynccontextmanager
async def replica_set(folder: Path, *, election_timeout_ms: int = 1_000) -> AsyncIterator[ReplicaSet]:
    """Run a replica set of real `mongod`s."""
    options = ["--replSet", "rs1", "--oplogSize", "16"]
    async with AsyncExitStack() as stack:
        members = [MongoServer(folder / str(number), options) for number in range(3)]
        async with anyio.create_task_group() as tasks:
            for member in members:
                stack.push_async_callback(member.kill)
                tasks.start_soon(member.start)
        found = ReplicaSet(members, election_timeout_ms)
        await found.initiate()
        yield found
