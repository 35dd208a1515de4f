"""Where a scenario takes place: its own Redis, a MongoDB behind a proxy, replicas, an orchestrator and a history."""

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from redis.asyncio import Redis

from nexus.core.concurrency import ungrouped
from tests.nexus.faults.fleet import Fleet, a_fleet
from tests.nexus.faults.judge import History, Verdict, judge
from tests.nexus.faults.load import CANARY, Asked, Load, an_ask, loading
from tests.nexus.support.proxy import Proxy, proxied
from tests.nexus.support.redis_server import HOST, RedisServer, redis_server
from tests.nexus.support.waiting import until

Database = MongoClient[dict[str, Any]]

PREFIX: Final = "faults:"
# Neither may ever be seen in anything that a service shows.
REDIS_PASSWORD: Final = f"{CANARY}-redis-{uuid.uuid4().hex}"
MONGO_PASSWORD: Final = f"{CANARY}-mongo-{uuid.uuid4().hex}"
SIGNING_SECRET: Final = f"{CANARY}-signing-{uuid.uuid4().hex}"
# Variables of a service that takes signed messages only.
SIGNED: Final = {"bus__signing__keys": json.dumps({"k1": SIGNING_SECRET}), "bus__signing__required": "true"}

_SCALE: Final = float(os.environ.get("NEXUS_FAULTS_SCALE", "1"))
# The modes of the bus that carry requests between processes.
MODES: Final = ["pubsub", "streams"]


def scaled(count: int, *, least: int = 1) -> int:
    """`count`, or the share of it that `NEXUS_FAULTS_SCALE` asks for, but no less than `least`."""
    return max(least, round(count * _SCALE))


def lasting(seconds: float, *, least: float) -> float:
    """The same of a length of time."""
    return max(least, seconds * _SCALE)


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of a scenario."""

    name: str
    mode: str
    verdict: Verdict | None
    more: Mapping[str, Any]


@dataclass(frozen=True)
class Stage:
    """The folder, the MongoDB and the figures of all scenarios.

    Attributes:
        folder: where each keeps its history and its replicas' output.
        mongo_uri: the MongoDB of this run.
        lines: figures of the scenarios that are over.
    """

    folder: Path
    mongo_uri: str
    lines: list[Line] = field(default_factory=list)


def in_both_modes(*scenarios: Callable[[Stage, str], Awaitable[None]]) -> Callable[[Stage], Awaitable[None]]:
    """Scenarios in which little is to be done and much to be waited for: all at once, each in a place of its own."""

    async def test(stage: Stage) -> None:
        running = (scenario(stage, mode) for scenario in scenarios for mode in MODES)
        failed = [outcome for outcome in await asyncio.gather(*running, return_exceptions=True) if outcome is not None]
        if failed:
            raise failed[0] if len(failed) == 1 else BaseExceptionGroup("several scenarios", failed)

    test.__doc__ = "\n".join(str(scenario.__doc__) for scenario in scenarios)
    return test


@dataclass
class Scene:
    """One scenario in one mode. `asks` makes requests of as many owners as wanted, one after another."""

    name: str
    mode: str
    folder: Path
    stage: Stage
    redis: RedisServer
    redis_proxy: Proxy
    mongo_proxy: Proxy
    fleet: Fleet
    load: Load
    history: History
    database: str
    deadline_ms: int
    lease_ms: int
    exit_codes: list[int] = field(default_factory=list)

    def asks(self, owners: int = 50, **changes: Any) -> Callable[[int], Asked]:
        """Requests that are sent again until their deadline and a lease have passed."""
        deadline_ms = changes.pop("deadline_ms", self.deadline_ms)
        patience_s = (deadline_ms + self.lease_ms) / 1_000

        def make(number: int) -> Asked:
            return an_ask(f"o{number % owners}", deadline_ms=deadline_ms, patience_s=patience_s, **changes)

        return make

    async def ended(self) -> list[int]:
        """Stop the replicas as an operator would, and hear all they had to say. Returns their exit codes."""
        for replica in self.fleet.running:
            (self.folder / f"{replica.name}.metrics").write_bytes(await replica.metrics())
        letters = "\n".join(map(repr, await self.dead_letters()))
        (self.folder / "dead-letters.txt").write_text(letters, encoding="utf-8")
        self.exit_codes = await self.fleet.stop()
        await self.load.settled()
        return self.exit_codes

    async def dead_letters(self) -> list[Any]:
        """The entries of the stream of dead letters."""
        async with Redis.from_url(self.redis.url) as redis:
            return list(await redis.xrange(f"{PREFIX}nexus:dead-letters") or ())

    async def whole(self) -> None:
        """Wait until requests that are sent now get contexts in which nothing is missing."""
        since = self.history.happened("expecting whole answers")

        async def is_whole() -> bool:
            return self.load.whole_at > since

        await until(is_whole)

    def verdict(self, *, late_after_ms: float | None = None, **figures: Any) -> Verdict:
        """Judge the history and print the scenario's line, which is kept for the table at the end.

        Fails where anything is lost, duplicated, wrong or late, or where a replica that was stopped did not exit 0. A
        lease beyond the deadline is allowed unless something else is said.
        """
        allowed_ms = self.lease_ms if late_after_ms is None else late_after_ms
        found = judge(self.history.events(), late_after_ms=allowed_ms)
        errors = {code: count for code, count in sorted(found.outcomes.items()) if code != "success"}
        more = {"worst_ms": found.worst_ms, "re-announced": found.reannounced, "resent": self.load.resends}
        more |= {code.lower(): count for code, count in errors.items()} | figures
        self._print(found, more)
        assert found.clean, found.line()
        assert not any(self.exit_codes), self.exit_codes
        return found

    def print_figures(self, **figures: Any) -> None:
        """Print a line and keep it, for a scenario without a verdict on answers."""
        self._print(None, figures)

    def _print(self, found: Verdict | None, more: Mapping[str, Any]) -> None:
        parts = [f"{self.name} [{self.mode}]", *([found.line()] if found else [])]
        print(*parts, *(f"{name}={value}" for name, value in more.items()))  # noqa: T201  # what `make faults` shows
        self.stage.lines.append(Line(self.name, self.mode, found, more))


@asynccontextmanager
async def staged(
    stage: Stage,
    name: str,
    mode: str,
    *,
    deadline_ms: int = 5_000,
    lease_ms: int = 2_000,
    mongo_port: int | None = None,
    append_only: bool = False,
    direct_mongo: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> AsyncIterator[Scene]:
    """Everything a scenario needs but replicas.

    Args:
        stage: what all scenarios share.
        name: of the scenario.
        mode: of the bus.
        deadline_ms: of its requests.
        lease_ms: of the service.
        mongo_port: another MongoDB than that of the stage.
        append_only: whether Redis keeps what it has when it is killed.
        direct_mongo: without the proxy, which costs as much as a replica.
        settings: variables of the service, as `{"bus__max_in_flight": 8}`.
    """
    folder = stage.folder / f"{name}-{mode}"
    folder.mkdir(parents=True)
    port = mongo_port or urlsplit(stage.mongo_uri).port or 27017
    database = f"faults_{uuid.uuid4().hex[:12]}"
    history = History(folder / "history.jsonl")
    with ungrouped(), closing(history):
        async with (
            redis_server(append_only=append_only, password=REDIS_PASSWORD, real=True) as redis,
            proxied(HOST, redis.port) as redis_proxy,
            proxied(HOST, port) as mongo_proxy,
            loading(redis.url, PREFIX, mode, history) as load,
        ):
            with _mongo_user(port, database) as credentials:
                environment = _environment(mode, redis.url, database, lease_ms, settings or {})
                reached = port if direct_mongo else mongo_proxy.port
                environment["NEXUS_DATABASE__URI"] = _uri(credentials, reached, database)
                async with a_fleet(environment, folder, history) as fleet:
                    parts = (redis, redis_proxy, mongo_proxy, fleet, load, history)
                    yield Scene(name, mode, folder, stage, *parts, database, deadline_ms, lease_ms)


def _environment(
    mode: str, redis_url: str, database: str, lease_ms: int, settings: Mapping[str, Any]
) -> dict[str, str]:
    common = {
        "bus__url": redis_url,
        "bus__mode": mode,
        "bus__channel_prefix": PREFIX,
        "bus__lease_ms": lease_ms,
        "database__name": database,
        "system__log_format": "json",
        "system__http_port": 0,
    }
    return {f"NEXUS_{name.upper()}": str(value) for name, value in {**common, **settings}.items()}


def through(proxy: Proxy) -> dict[str, str]:
    """Variables for a replica whose Redis is behind a proxy."""
    return {"NEXUS_BUS__URL": f"redis://:{REDIS_PASSWORD}@{HOST}:{proxy.port}/0"}


def _uri(credentials: str, port: int, database: str) -> str:
    source = f"&authSource={database}" if credentials else ""
    return f"mongodb://{credentials}{HOST}:{port}/?directConnection=true{source}"


@contextmanager
def _mongo_user(port: int, database: str) -> Iterator[str]:
    """A user with a password that may only use this database; on a server without users, no user."""
    roles = [{"role": "readWrite", "db": database}]
    with Database(f"mongodb://{HOST}:{port}/?directConnection=true", serverSelectionTimeoutMS=5_000) as client:
        credentials = f"nexus:{MONGO_PASSWORD}@"
        try:
            client[database].command("createUser", "nexus", pwd=MONGO_PASSWORD, roles=roles)
        except PyMongoError:
            credentials = ""
        try:
            yield credentials
        finally:
            with suppress(PyMongoError):
                client[database].command("dropUser", "nexus")
            with suppress(PyMongoError):
                client.drop_database(database)


async def every(seconds: float, times: int) -> AsyncIterator[int]:
    """The schedule of a fault: `times` moments, `seconds` apart, the first after as many seconds."""
    for number in range(times):
        await anyio.sleep(seconds)
        yield number
