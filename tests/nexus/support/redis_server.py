"""A Redis of the test's own, to be killed and started again."""

import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from anyio.abc import Process
from redis.asyncio import Redis
from redis.exceptions import RedisError

from nexus import embedded
from tests.nexus.support.waiting import until

HOST = "127.0.0.1"


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


class RedisServer:
    """A server on a port that stays its own.

    Without an append-only file it keeps nothing when it is killed. With `real` it is the `redis-server` of this
    machine, if there is one, and the packaged Valkey otherwise.
    """

    def __init__(self, folder: Path, *, append_only: bool = False, password: str = "", real: bool = False) -> None:
        self.port = free_port()
        self.url = f"redis://:{password}@{HOST}:{self.port}/0" if password else f"redis://{HOST}:{self.port}/0"
        self._folder = folder
        self._process: Process | None = None
        found = shutil.which("redis-server") if real else None
        options = ["--bind", HOST, "--port", str(self.port), "--save", ""]
        options += ["--appendonly", "yes" if append_only else "no", "--appendfsync", "everysec"]
        options += ["--requirepass", password] if password else []
        self._command = [found or str(embedded._locate(find_spec)), *options]

    async def start(self) -> None:
        """Start the server; it answers afterwards."""
        self._process = await anyio.open_process(
            self._command, cwd=self._folder, stdout=subprocess.DEVNULL, start_new_session=True
        )
        await until(self._answers)

    async def kill(self) -> None:
        """End the server with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None

    async def _answers(self) -> bool:
        async with Redis.from_url(self.url) as client:
            with suppress(RedisError, OSError):
                return bool(await client.ping())
        return False


@asynccontextmanager
async def redis_server(
    *, append_only: bool = False, password: str = "", real: bool = False
) -> AsyncIterator[RedisServer]:
    """A running server."""
    with TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), append_only=append_only, password=password, real=real)
        try:
            await server.start()
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                await server.kill()
