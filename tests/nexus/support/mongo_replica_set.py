"""A replica set of three real `mongod` on this machine, whose primary can be told to step down."""

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from anyio.abc import Process
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from tests.nexus.support.mongo_server import real_mongod
from tests.nexus.support.redis_server import HOST, free_port
from tests.nexus.support.waiting import until


class ReplicaSet:
    """Three members. The first of them becomes the first primary."""

    def __init__(self, members: dict[int, Process]) -> None:
        self.uri = f"mongodb://{','.join(f'{HOST}:{port}' for port in members)}/?replicaSet=rs1"
        self._members = members
        self._ports = [*members]

    async def initiate(self) -> None:
        """Make them a set; there is a primary afterwards."""
        members = [
            {"_id": number, "host": f"{HOST}:{port}", "priority": 1.0 if number else 2.0}
            for number, port in enumerate(self._ports)
        ]
        settings = {"electionTimeoutMillis": 1_000, "heartbeatIntervalMillis": 200}
        await until(lambda: self._initiated({"_id": "rs1", "members": members, "settings": settings}))
        await until(self.primary)

    async def primary(self) -> str | None:
        """The member that is primary now."""
        async with AsyncMongoClient[dict[str, Any]](self.uri, serverSelectionTimeoutMS=500) as client:
            try:
                return str((await client.admin.command("hello"))["primary"])
            except (PyMongoError, KeyError):
                return None

    async def step_down(self) -> None:
        """Have the primary give up; it stands for election again after ten seconds at the earliest."""
        async with AsyncMongoClient[dict[str, Any]](self.uri) as client:
            await client.admin.command("replSetStepDown", 10, secondaryCatchUpPeriodSecs=5)

    async def kill_primary(self) -> None:
        """End the primary with SIGKILL."""
        port = int(str(await self.primary()).rpartition(":")[2])
        self._members[port].kill()
        await self._members[port].wait()

    async def _initiated(self, config: dict[str, Any]) -> bool:
        uri = f"mongodb://{HOST}:{self._ports[0]}/?directConnection=true"
        async with AsyncMongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=500) as client:
            try:
                await client.admin.command("replSetInitiate", config)
            except PyMongoError as error:
                return "already" in str(error)
        return True


@asynccontextmanager
async def replica_set() -> AsyncIterator[ReplicaSet]:
    """Run a replica set. Only where there is a real `mongod` (`real_mongod`)."""
    mongod = real_mongod()
    if mongod is None:
        raise RuntimeError("no mongod")
    libraries = f"{mongod.parent.parent / 'ssl'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with AsyncExitStack() as stack:
            members: dict[int, Process] = {}
            for port in (free_port() for _ in range(3)):
                data = Path(folder) / str(port)
                data.mkdir()
                options = ["--bind_ip", HOST, "--dbpath", str(data), "--replSet", "rs1", "--oplogSize", "16"]
                members[port] = await anyio.open_process(
                    [str(mongod), "--port", str(port), "--wiredTigerCacheSizeGB", "0.25", *options],
                    env={**os.environ, "LD_LIBRARY_PATH": libraries},
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
                stack.push_async_callback(_ended, members[port])
            found = ReplicaSet(members)
            await found.initiate()
            yield found


async def _ended(process: Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.kill()
        await process.wait()
