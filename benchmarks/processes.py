"""Processes that are measured: the service, the floor, and the client that asks them."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

_READY_S: Final = 30.0
_KIB_A_MIB: Final = 1 << 10
_READY: Final = re.compile(r'"event": ?"ready"')


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process works: servers, topic prefix and database."""

    redis_url: str
    mongo_uri: str
    name: str

    @property
    def prefix(self) -> str:
        """Goes before topics and keys."""
        return f"{self.name}:"

    @property
    def environment(self) -> dict[str, str]:
        """As settings for `nexus serve`."""
        return {
            "NEXUS_BUS__URL": self.redis_url,
            "NEXUS_BUS__CHANNEL_PREFIX": self.prefix,
            "NEXUS_DATABASE__URI": self.mongo_uri,
            "NEXUS_DATABASE__NAME": self.name,
            "NEXUS_SYSTEM__HTTP_PORT": "0",
        }


@dataclass(frozen=True, slots=True)
class Running:
    """A process that has said that it is ready; `start_s` after it was started."""

    pid: int
    start_s: float

    @property
    def resident_mib(self) -> float:
        """Memory that it holds."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        (kilobytes,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
        return int(kilobytes) / _KIB_A_MIB


@contextmanager
def serving(
    place: Place, kind: Literal["nexus", "floor"] = "nexus", extra: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """A replica of Nexus, or the floor, at this place."""
    words = ["-m", "nexus", "serve"] if kind == "nexus" else ["-m", "benchmarks.floor"]
    environment = {**os.environ, **place.environment, **(extra or {})}
    with tempfile.NamedTemporaryFile("w+") as log:
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, *words], env=environment, stderr=log, stdout=log)  # noqa: S603  # our own
        try:
            while not _READY.search(text := Path(log.name).read_text(encoding="utf-8", errors="replace")):
                if time.perf_counter() - started > _READY_S or process.poll() is not None:
                    raise SystemExit(f"{kind} did not start:\n{text[-2_000:]}")
                time.sleep(0.005)
            yield Running(process.pid, time.perf_counter() - started)
        finally:
            process.terminate()
            process.wait()


class Requester:
    """The client process of `benchmarks.requester`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.requester"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(
        self, place: Place, owners: list[str], *, requests: int, at_once: int = 1, first: int = 0, **also: Any
    ) -> Any:
        """Have it ask; see `benchmarks.requester`. Ends the program when a request fails."""
        job = {"url": place.redis_url, "prefix": place.prefix, "owners": owners, "first": first, **also}
        if self._process.stdin is None or self._process.stdout is None:
            raise TypeError("the requester has no pipes")
        self._process.stdin.write(json.dumps({**job, "requests": requests, "at_once": at_once}) + "\n")
        self._process.stdin.flush()
        result = json.loads(self._process.stdout.readline())
        if result["failed"]:
            raise SystemExit(f"{len(result['failed'])} of {requests} requests failed: {result['failed'][0]}")
        return result

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
