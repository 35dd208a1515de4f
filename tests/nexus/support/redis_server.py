"""A Redis of the test's own, to be killed, stopped and started again."""

import os
import secrets
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from anyio.abc import Process
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from nexus import embedded
from tests.nexus.support.waiting import until

HOST = "127.0.0.1"


def free_port() -> int:
    """A port on which nothing listens now.

    It is none of those that systems give to connections: one of them could take it while its server is down.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with suppress(OSError), socket.create_server((HOST, port)):
            return port


def binary(*, real: bool = False) -> str:
    """The `redis-server` of this machine, where the tests run on a real Redis or need one, else the packaged Valkey."""
    wanted = real or "NEXUS_TEST_REDIS_URL" in os.environ
    return (shutil.which("redis-server") if wanted else None) or str(embedded._locate(find_spec))


class RedisServer:
    """One process on a port of its own.

    Args:
        folder: where it runs.
        port: where it answers.
        command: binary and options.
        login: how it is asked, as keyword arguments of a client.
    """

    def __init__(self, folder: Path, port: int, command: Sequence[str], **login: Any) -> None:
        self.port = port
        password = login.get("password")
        self.url = f"redis://:{password}@{HOST}:{port}/0" if password else f"redis://{HOST}:{port}/0"
        self._folder = folder
        self._command = command
        self._login = login
        self._process: Process | None = None

    async def start(self) -> None:
        """Start the server; it answers afterwards."""
        self._folder.mkdir(exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = await anyio.open_process(
                self._command, cwd=self._folder, stdout=log, stderr=log, start_new_session=True
            )
        await until(self._answers)

    async def kill(self) -> None:
        """End the server with SIGKILL."""
        with anyio.CancelScope(shield=True):
            if self._process is not None:
                with suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
                self._process = None

    def stop(self) -> None:
        """Have it stand still: commands get no reply and no error."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it go on where it stood still."""
        self._signal(signal.SIGCONT)

    async def ask(self, *command: str | int) -> Any:
        """Have it execute a command."""
        async with Redis(host=HOST, port=self.port, retry=Retry(NoBackoff(), 0), **self._login) as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py's is untyped

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    async def _answers(self) -> bool:
        if self._process is None or self._process.returncode is not None:
            raise RuntimeError((self._folder / "log").read_text("utf-8", "replace")[-500:])
        with suppress(RedisError, OSError):
            return bool(await self.ask("PING"))
        return False


@asynccontextmanager
async def redis_server(
    *, append_only: bool = False, password: str = "", real: bool = False
) -> AsyncIterator[RedisServer]:
    """A running server. Without an append-only file it keeps nothing when it is killed."""
    port = free_port()
    options = ["--bind", HOST, "--port", str(port), "--save", ""]
    options += ["--appendonly", "yes" if append_only else "no", "--appendfsync", "everysec"]
    options += ["--requirepass", password] if password else []
    login = {"password": password} if password else {}
    with TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), port, [binary(real=real), *options], **login)
        try:
            await server.start()
            yield server
        finally:
            await server.kill()
