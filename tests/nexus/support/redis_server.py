"""A Redis of the test's own, to be killed and started again."""

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


class RedisServer:
    """A server on a port that stays its own. It keeps nothing when it is killed."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: Process | None = None

    async def start(self) -> None:
        """Start the server; it answers afterwards."""
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]
        command = [str(embedded._locate(find_spec)), *options]
        self._process = await anyio.open_process(command, cwd=self._folder, stdout=subprocess.DEVNULL)
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
async def redis_server() -> AsyncIterator[RedisServer]:
    """A running server."""
    with TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            await server.start()
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                await server.kill()
