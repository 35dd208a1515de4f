"""Several `nexus serve` processes, to be killed, stopped, continued and replaced. Their output goes to files."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process, TaskGroup

from tests.nexus.faults.judge import History

PATIENCE_S = 60.0
_PAUSE_S = 0.01
ROOT = Path(__file__).resolve().parents[3]


class Replica:
    """One process and its log."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.expected_to_end = False

    @property
    def runs(self) -> bool:
        """Whether the process is there."""
        return self.process.returncode is None

    def events(self, event: str) -> list[dict[str, Any]]:
        """The complete log lines of one event."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        named = (json.loads(line) for line in lines if f'"{event}"' in line)
        return [line for line in named if line["event"] == event]

    async def logged(self, event: str, *, count: int = 1, patience_s: float = PATIENCE_S) -> None:
        """Wait until the event has been logged `count` times."""
        with anyio.fail_after(patience_s):
            while len(self.events(event)) < count:
                assert self.runs, (self.name, self.log.read_text(encoding="utf-8")[-2_000:])
                await anyio.sleep(_PAUSE_S)

    def send(self, sign: signal.Signals) -> None:
        """Send a signal, if the process is still there."""
        with suppress(ProcessLookupError):
            self.process.send_signal(sign)

    async def end(self, sign: signal.Signals = signal.SIGTERM, *, patience_s: float = PATIENCE_S) -> int:
        """Send a signal that ends it; returns the exit code."""
        self.expected_to_end = True
        self.send(sign)
        with anyio.fail_after(patience_s):
            return await self.process.wait()

    async def metrics(self) -> bytes:
        """The page of metrics with its head; empty where the service has none or does not answer now."""
        port = next((line["http_port"] for line in self.events("http_listening")), None)
        page = b""
        if port is None:
            return page
        with anyio.move_on_after(5):
            try:
                async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                    await stream.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    async for piece in stream:
                        page += piece
            except OSError:
                pass
        return page

    def memory_kb(self) -> int:
        """Its resident memory now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0])


class Fleet:
    """Replicas with the same settings.

    Attributes:
        replicas: all that were ever started.
        kept: when true, a replica that ends unexpectedly is replaced.
        ended: names of replicas that ended without being asked to.
    """

    def __init__(self, environment: Mapping[str, str], folder: Path, history: History, tasks: TaskGroup) -> None:
        self.replicas: list[Replica] = []
        self.kept = False
        self.ended: list[str] = []
        self.environment = dict(environment)
        self._folder = folder
        self._history = history
        self._tasks = tasks
        self._open = True

    @property
    def running(self) -> list[Replica]:
        """Those that run."""
        return [replica for replica in self.replicas if replica.runs]

    async def launch(self, variables: Mapping[str, str] | None = None) -> Replica:
        """Start a replica and do not wait for it."""
        name = f"replica-{len(self.replicas)}"
        log = self._folder / f"{name}.log"
        with log.open("wb") as errors, (self._folder / f"{name}.out").open("wb") as output:
            process = await anyio.open_process(
                [sys.executable, "-m", "nexus", "serve"],
                env={**os.environ, **self.environment, **(variables or {})},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )
        replica = Replica(name, process, log)
        self.replicas.append(replica)
        self._history.happened("started", replica=name)
        self._tasks.start_soon(self._watch, replica)
        return replica

    async def start(self, count: int = 1, variables: Mapping[str, str] | None = None) -> list[Replica]:
        """Start replicas and wait until they are ready."""
        replicas = [await self.launch(variables) for _ in range(count)]
        for replica in replicas:
            await replica.logged("ready")
        return replicas

    async def stop(self) -> list[int]:
        """End all that run, as an operator would; returns their exit codes."""
        running = self.running
        for replica in running:
            replica.expected_to_end = True
            replica.send(signal.SIGTERM)
        with anyio.fail_after(PATIENCE_S):
            return [await replica.process.wait() for replica in running]

    def count(self, event: str, **fields: Any) -> int:
        """How often all replicas together have logged an event with these fields."""
        lines = (line for replica in self.replicas for line in replica.events(event))
        return sum(all(line.get(name) == value for name, value in fields.items()) for line in lines)

    async def close(self) -> None:
        """Kill all replicas that still run."""
        self._open = False
        for replica in self.running:
            replica.expected_to_end = True
            replica.send(signal.SIGKILL)
            await replica.process.wait()

    async def _watch(self, replica: Replica) -> None:
        code = await replica.process.wait()
        self._history.happened("ended", replica=replica.name, code=code)
        if not replica.expected_to_end:
            self.ended.append(replica.name)
            if self.kept and self._open:
                await self.launch()


@asynccontextmanager
async def a_fleet(environment: Mapping[str, str], folder: Path, history: History) -> AsyncIterator[Fleet]:
    """No replica yet; all that were started are gone afterwards."""
    async with anyio.create_task_group() as tasks:
        fleet = Fleet(environment, folder, history, tasks)
        try:
            yield fleet
        finally:
            with anyio.CancelScope(shield=True):
                await fleet.close()
            tasks.cancel_scope.cancel()
