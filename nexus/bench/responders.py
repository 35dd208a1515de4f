"""What answers while it is measured: `nexus serve`, the floor and the wire, each in processes of its own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import anyio

from nexus.bench.floor import VARIABLE, FloorSettings
from nexus.bench.servers import Place, Servers
from nexus.core.errors import NexusError

Kind = Literal["nexus", "floor", "wire"]

# Kept answers are of no use here, and 100,000 of them would fill the server's memory.
ANSWER_TTL_S: Final = 10
_PATIENCE_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.002
_STOPPING_S: Final = 15.0
_SHOWN_OF_LOG: Final = 300


@dataclass(frozen=True, slots=True)
class Responder:
    """Who answers.

    Attributes:
        name: in tables; for Nexus also of its database.
        kind: the service, or what it is measured against.
        mode: as `bus.mode`.
        replicas: how many processes.
        tail_cache_mb: memory for owners' newest messages, as `context.tail_cache_mb`; None for the service's default.
        reads: for the floor, the name of the responder whose database it reads; else its own.
    """

    name: str
    kind: Kind = "nexus"
    mode: Literal["pubsub", "streams"] = "pubsub"
    replicas: int = 1
    tail_cache_mb: int | None = 0
    reads: str = ""

    @property
    def database(self) -> str:
        """The name of what it reads, for `Place`."""
        return self.reads or self.name

    @property
    def keeps_tails(self) -> bool:
        """Whether it keeps owners' newest messages in memory."""
        return self.kind == "nexus" and self.tail_cache_mb != 0

    def prefix(self, servers: Servers) -> str:
        """What goes before its topics and keys."""
        return f"{servers.run}:{self.name}:"


class Started:
    """A process that is ready.

    Attributes:
        seconds: from its start until it was ready.
    """

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self.seconds = seconds
        self._proc = Path("/proc", str(process.pid))

    @property
    def memory(self) -> int:
        """Bytes of memory that it has; 0 where the system does not tell."""
        statm = self._proc / "statm"
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0

    @property
    def cpu_seconds(self) -> float:
        """Processor time that its threads have taken so far; 0 where the system does not tell."""
        # To the nanosecond; what is told of the process as a whole comes in hundredths of a second.
        told = (thread.read_text().split() for thread in self._proc.glob("task/*/schedstat"))
        return sum(int(words[0]) for words in told) / 1e9


@asynccontextmanager
async def responding(responder: Responder, place: Place) -> AsyncIterator[list[Started]]:
    """The responder's processes, until the end of the context.

    Raises:
        NexusError: one of them does not start.
    """
    async with AsyncExitStack() as stack:
        arguments, environment = _floor(responder, place) if responder.kind != "nexus" else _nexus(responder, place)
        yield [await stack.enter_async_context(started(arguments, environment)) for _ in range(responder.replicas)]


def _floor(responder: Responder, place: Place) -> tuple[list[str], dict[str, str]]:
    servers = place.servers
    settings = FloorSettings(
        redis_url=servers.redis_url,
        prefix=responder.prefix(servers),
        mongo_uri=servers.mongo_uri,
        database=place.database,
        driver=servers.driver,
        queries=responder.kind == "floor",
    )
    return ["-m", "nexus.bench.floor"], {VARIABLE: settings.model_dump_json()}


def _nexus(responder: Responder, place: Place) -> tuple[list[str], dict[str, str]]:
    servers = place.servers
    settings = {
        "NEXUS_BUS__URL": servers.redis_url,
        "NEXUS_BUS__MODE": responder.mode,
        "NEXUS_BUS__CHANNEL_PREFIX": responder.prefix(servers),
        "NEXUS_BUS__ANSWER_TTL_S": str(ANSWER_TTL_S),
        "NEXUS_DATABASE__URI": servers.mongo_uri,
        "NEXUS_DATABASE__NAME": place.database,
        "NEXUS_DATABASE__DRIVER": servers.driver,
        "NEXUS_SYSTEM__LOG_FORMAT": "json",
    }
    if responder.tail_cache_mb is not None:
        settings["NEXUS_CONTEXT__TAIL_CACHE_MB"] = str(responder.tail_cache_mb)
    return ["-m", "nexus", "serve"], settings


@asynccontextmanager
async def started(arguments: list[str], environment: Mapping[str, str]) -> AsyncIterator[Started]:
    """A Python process that has said that it is ready. It sees none of our own settings.

    Raises:
        NexusError: it ended before, or took too long; says what it said last.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NEXUS_")}
    folder = Path(tempfile.mkdtemp(prefix="nexus-bench-"))
    # A file, as in production: a pipe would have to be read by the process that measures.
    log = folder / "log"
    try:
        with log.open("wb") as errors:
            began = time.perf_counter()
            command = [sys.executable, *arguments]
            process = subprocess.Popen(command, env={**clean, **environment}, stdout=errors, stderr=errors)  # noqa: ASYNC220, S603  # ends in milliseconds; our own program
        try:
            if not await _ready(process, log):
                raise NexusError(f"{' '.join(arguments)} did not start: {_last_words(log)}")
            yield Started(process, time.perf_counter() - began)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_stop, process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _ready(process: "subprocess.Popen[bytes]", log: Path) -> bool:
    """Wait until it says so. False when it ended before, or takes too long."""
    with anyio.move_on_after(_PATIENCE_S):
        while process.poll() is None:
            if any(line.get("event") == "ready" for line in _lines(log)):
                return True
            await anyio.sleep(_LOOK_EVERY_S)
    return False


def _last_words(log: Path) -> str:
    """The last line that it has said: of a traceback, the error."""
    said = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
    return said[:_SHOWN_OF_LOG] or "it said nothing"


def _lines(log: Path) -> list[dict[str, Any]]:
    found = []
    for line in log.read_bytes().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOPPING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
