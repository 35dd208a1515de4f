"""`make soak`: two replicas under load, with faults mixed in by a seed; at the end everything is accounted for.

A soak that was stopped, by Ctrl-C, by its time or by a crash, goes on where it stood when it is started again with the
same folder. Needs `redis-server` and `mongod`. Exit codes: 0 all is accounted for; 1 something is not; 2 the time was
over before the end, or it cannot be run.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from nexus.core.turns import CLOSE
from tests.nexus.faults import sabotage
from tests.nexus.faults.fleet import Fleet, a_fleet
from tests.nexus.faults.judge import History
from tests.nexus.faults.wire import connect
from tests.nexus.soak.disturbances import Disturbances
from tests.nexus.soak.judge import FAULTS, TOPICS, Faults, Heard, Stored, account, stays
from tests.nexus.soak.plan import SCRIPTS_A_BLOCK, block_of, script_of
from tests.nexus.soak.requester import Requester
from tests.nexus.support.mongo_server import MongoServer, real_mongod
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST, RedisServer, binary, free_port
from tests.nexus.support.waiting import until

PREFIX: Final = "soak:"
DATABASE: Final = "soak"
# Marks the processes of a soak, so that those which a crash has left behind are found.
_MARK: Final = "NEXUS_SOAK_FOLDER"
_AT_ONCE: Final = 48
_LINE_S: Final = 10.0
_SAVED_S: Final = 2.0
_LEAST_WARM_UP: Final = 1_000
_MOST_GROWTH: Final = 1.15
# Longer than anything of Redis is meant to stay, with the times below.
_LONGEST_TTL_S: Final = 660
_SETTLED_S: Final = 600.0
# What a replica that was stopped has left to others: whether they have done it is seen in what is stored.
_LEFT_TO_OTHERS: Final = {"drain_incomplete", "rows_unwritten", "turns_unwritten"} | {
    f"{kind}_unwritten" for kind in ("session_states", "facts", "constraints")
}
_SETTINGS: Final = {
    "bus__mode": "streams",
    "bus__channel_prefix": PREFIX,
    # What is kept for an hour by default would fill the memory of one machine, and say no more.
    "bus__answer_ttl_s": 120,
    "bus__stream_keep_s": 60,
    "database__name": DATABASE,
    # Well below the time in which everything is to be done in the end.
    "memory__turn_idle_s": 60,
    "system__log_format": "json",
    "system__http_port": 0,
    **sabotage.SETTINGS,
}
_COLLECTIONS: Final = {
    "rows": (
        "messages",
        {
            "id": 1,
            "owner_key": 1,
            "session_id": 1,
            "run_id": 1,
            "role": 1,
            "content": 1,
            "metadata.call_id": 1,
            "metadata.condensed": 1,
        },
    ),
    "turns": ("turns", {"owner_key": 1, "session_id": 1, "run_id": 1, "turn_number": 1, "status": 1, "messages": 1}),
    "compactions": ("compactions", {"owner_key": 1, "session_id": 1, "number": 1, "rows": 1}),
    "facts": ("facts", {"owner_key": 1, "value": 1}),
    "constraints": ("constraints", {"owner_key": 1, "document": 1}),
    "states": ("session_states", {"owner_key": 1, "session_id": 1, "document": 1}),
    "records": ("context_records", {"owner_key": 1, "session_id": 1, "request_id": 1}),
}


@dataclass
class State:
    """Where a soak stands; a file of JSON.

    Attributes:
        begun: scripts that were begun, all but those in `open` played to their end.
        planned: the requests of those that were begun.
        seconds: of all sittings.
        disturbed: how often it was disturbed, by what.
        memory: of each sitting that was long enough, the replica's MiB after warming up and at the end.
    """

    seed: int
    redis_port: int = field(default_factory=free_port)
    mongo_port: int = field(default_factory=free_port)
    begun: int = 0
    planned: int = 0
    open: list[int] = field(default_factory=list)
    seconds: float = 0.0
    disturbed: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)


class Memory:
    """The most that a process has held after its warm-up, and at the end: each over a tenth of the requests."""

    def __init__(self, requests: int) -> None:
        self._warm = max(_LEAST_WARM_UP, requests // 10)
        self._window = max(_LEAST_WARM_UP // 2, requests // 10)
        self._samples: list[tuple[int, float]] = []
        self.before = 0.0

    def note(self, answered: int, mib: float) -> None:
        """What it holds when it has answered so many."""
        if self._warm <= answered < self._warm + self._window:
            self.before = max(self.before, mib)
        self._samples = [each for each in self._samples if each[0] > answered - self._window] + [(answered, mib)]

    def ends(self) -> tuple[float, float] | None:
        """Before and after; None where it was not there for long enough."""
        answered = self._samples[-1][0] if self._samples else 0
        if answered < self._warm + 2 * self._window:
            return None
        return self.before, max(mib for _, mib in self._samples)


class Soak:
    """One sitting, and the account at the end."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._folder: Path = given.folder
        self._path = self._folder / "state.json"
        self._requests: int = given.requests
        self._ends = time.monotonic() + given.minutes * 60
        self._begun_at = time.monotonic()
        self.state = self._read(given.seed)
        self._open: set[int] = set()
        self._again = [*self.state.open]
        self._faults = Faults(self.state.faults, self.state.examples)
        self._sat = replace(self.state)
        self._stopping = anyio.Event()
        # So many had their answer before this sitting.
        self._before = 0
        self._own, self._elder = Memory(self._requests), Memory(self._requests)

    def _read(self, seed: int) -> State:
        if not self._path.exists():
            return State(seed)
        state = State(**json.loads(self._path.read_text(encoding="utf-8")))
        if state.seed != seed:
            raise SystemExit(f"{self._folder} is of seed {state.seed}: name it, or another folder")
        return state

    def _resume(self, heard: Heard) -> None:
        left = [(number, step) for number in self._again for step in script_of(self.state.seed, number).asked]
        self._before = self.state.planned - sum(not heard.is_answered(*each) for each in left)
        self._own, self._elder = (Memory(self._requests - self._before) for _ in range(2))
        self.save()

    def _count(self, requester: Requester, disturbances: Disturbances) -> None:
        """Add up this sitting and those before."""
        self.state.seconds = self._sat.seconds + time.monotonic() - self._begun_at
        self.state.seen = _sum(self._sat.seen, requester.seen)
        self.state.disturbed = _sum(self._sat.disturbed, disturbances.done)

    def save(self) -> None:
        """Write down where it stands, all of it or nothing."""
        self.state.open = sorted({*self._open, *self._again})
        self.state.faults, self.state.examples = dict(self._faults.counts), self._faults.examples
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self.state), indent=1), encoding="utf-8")
        fresh.replace(self._path)

    async def run(self) -> int:
        """Play, disturb and account. Returns the exit code."""
        redis, mongo = self._servers()
        run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
        logs = self._folder / run
        logs.mkdir(parents=True)
        with closing(Heard(self._folder / "heard")) as heard, closing(History(logs / "history.jsonl")) as history:
            async with (
                _running(redis),
                _running(mongo),
                proxied(HOST, redis.port) as redis_proxy,
                proxied(HOST, mongo.port) as mongo_proxy,
                connect(redis.url) as client,
                a_fleet(_environment(redis.url, _uri(mongo.port)), logs, history) as fleet,
            ):
                await _initiate(mongo)
                self._resume(heard)
                requester = Requester(client, PREFIX, heard, self._faults)
                lines = {
                    "redis": (redis, redis_proxy, f"redis://{HOST}:{redis_proxy.port}/0"),
                    "mongo": (mongo, mongo_proxy, _uri(mongo_proxy.port)),
                }
                await fleet.start(2)
                disturbances = Disturbances(fleet, lines, self.state.seed, self._requests)
                await self._sit(requester, disturbances, fleet, client)
                self._count(requester, disturbances)
                self._measure(fleet)
                self.save()
                if not self._is_done():
                    done = self._before + requester.answered
                    _say(f"Stopped at {done:,} of {self._requests:,}; the same command goes on from here.")
                    return 2
                await self._settle(client, mongo)
                codes = await fleet.stop()
                self._faults.note_all("raised", [code for code in codes if code], "a replica's exit code")
                self._faults.note_all("raised", fleet.ended, "a replica that ended by itself")
                self._read_logs(fleet)
                figures = await self._account(heard, client, mongo)
        return self._report(figures)

    def _servers(self) -> tuple[RedisServer, MongoServer]:
        for name in ("redis", "mongo"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        options = ["--bind", HOST, "--port", str(self.state.redis_port), "--save", "", "--appendonly", "yes"]
        # Few rewrites of the file: they cost more than what is measured.
        options += ["--auto-aof-rewrite-min-size", "1gb"]
        # A title would be written over the environment, by which the process is found.
        options += ["--set-proc-title", "no"]
        redis = RedisServer(self._folder / "redis", self.state.redis_port, [binary(real=True), *options])
        port = self.state.mongo_port
        mongo = MongoServer(self._folder / "mongo", ["--replSet", "rs0", "--oplogSize", "256"], port=port)
        return redis, mongo

    async def _sit(self, requester: Requester, disturbances: Disturbances, fleet: Fleet, client: Redis) -> None:
        """Play scripts until all are played, or the time is over."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(requester.listen)
            tasks.start_soon(self._watch, requester, disturbances, fleet, client)
            tasks.start_soon(disturbances.run, lambda: self._before + requester.answered)
            tasks.start_soon(self._stop_on_signal)
            tasks.start_soon(self._stop_in_time)
            async with anyio.create_task_group() as playing:
                for _ in range(_AT_ONCE):
                    playing.start_soon(self._play, requester)
                tasks.start_soon(self._cancel_when_stopping, playing.cancel_scope)
            disturbances.over.set()
            with anyio.move_on_after(60):
                await disturbances.finished.wait()
            tasks.cancel_scope.cancel()

    async def _cancel_when_stopping(self, scope: anyio.CancelScope) -> None:
        await self._stopping.wait()
        scope.cancel()

    def _is_done(self) -> bool:
        return self.state.planned >= self._requests and not self._open and not self._again

    async def _play(self, requester: Requester) -> None:
        while number := self._next():
            number -= 1
            await requester.play(script_of(self.state.seed, number))
            self._open.remove(number)

    def _next(self) -> int:
        """The number of the next script and one; 0 where there is none."""
        if self._again:
            number = self._again.pop()
        elif self.state.planned < self._requests:
            number = self.state.begun
            self.state.begun += 1
            self.state.planned += len(script_of(self.state.seed, number).asked)
        else:
            return 0
        self._open.add(number)
        return number + 1

    async def _stop_on_signal(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                self._stopping.set()

    async def _stop_in_time(self) -> None:
        await anyio.sleep(max(0, self._ends - time.monotonic()))
        self._stopping.set()

    async def _watch(self, requester: Requester, disturbances: Disturbances, fleet: Fleet, client: Redis) -> None:
        """Sample memory and processor time, save the state, and print a line now and then."""
        line_at = time.monotonic() + _LINE_S
        answered_before, at_before = 0, time.monotonic()
        cpu = dict[int, _Process]()
        while True:
            await anyio.sleep(_SAVED_S)
            running = {process.pid: process for process in _processes(self._folder)}
            for pid, process in running.items():
                used = process.cpu_s - (cpu[pid].cpu_s if pid in cpu else 0)
                self.state.cpu[process.name] = self.state.cpu.get(process.name, 0) + used
            cpu = running
            own = running[os.getpid()].mib
            elder = fleet.replicas[0].process.pid
            replicas = [(process.pid, process.mib) for process in running.values() if process.name == "nexus"]
            self._own.note(requester.answered, own)
            self._elder.note(requester.answered, next((mib for pid, mib in replicas if pid == elder), 0))
            self._count(requester, disturbances)
            self.save()
            if time.monotonic() < line_at:
                continue
            line_at += _LINE_S
            now, done = time.monotonic(), self._before + requester.answered
            rate = (requester.answered - answered_before) / (now - at_before)
            answered_before, at_before = requester.answered, now
            held = " + ".join(f"{mib:.0f}" for _, mib in replicas)
            in_redis = await _in_redis(client)
            if in_redis:
                self.state.keys.append(in_redis[0])
                # The first tenth and the last are compared; the middle is thinned out.
                self.state.keys = self.state.keys if len(self.state.keys) < 400 else self.state.keys[::2]
            overall = requester.answered / max(now - self._begun_at, 1)
            end = datetime.now(UTC) + timedelta(seconds=max(self._requests - done, 0) / max(overall, 0.01))
            _say(
                f"{datetime.now(UTC):%H:%M:%S}  {done:,} of {self._requests:,}  {rate:.0f}/s  "
                f"disturbed {sum(disturbances.done.values())} times {disturbances.last}  "
                f"RSS {held}, own {own:.0f} MiB  Redis {_shown(in_redis)}  "
                f"faults {sum(self._faults.counts.values())}  end {end:%H:%M}",
            )

    def _measure(self, fleet: Fleet) -> None:
        if (ends := self._elder.ends()) and fleet.replicas[0].runs:
            self.state.memory.append(ends)
            if ends[1] > ends[0] * _MOST_GROWTH:
                self._faults.note("grown", f"a replica from {ends[0]:.0f} to {ends[1]:.0f} MiB")

    async def _settle(self, client: Redis, mongo: MongoServer) -> None:
        """Wait until nothing is in hand, waits or is due."""
        with MongoClient[dict[str, Any]](_uri(mongo.port)) as database:
            ends, line_at = time.monotonic() + _SETTLED_S, time.monotonic() + _LINE_S
            while left := {**await _pending(client), **await to_thread.run_sync(_due, database)}:
                if time.monotonic() > ends:
                    self._faults.note_all("unaccounted", left.items(), f"left over after {_SETTLED_S:.0f} s")
                    return
                if time.monotonic() > line_at:
                    line_at += _LINE_S
                    _say(f"{datetime.now(UTC):%H:%M:%S}  waiting for {left}")
                await anyio.sleep(0.5)

    def _read_logs(self, fleet: Fleet) -> None:
        for replica in fleet.replicas:
            with replica.log.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if '"error"' in line and (said := json.loads(line))["level"] == "error":
                        if said["event"] in _LEFT_TO_OTHERS:
                            self.state.seen[said["event"]] = self.state.seen.get(said["event"], 0) + 1
                        else:
                            self._faults.note("raised", f"{replica.name}: {line.strip()[:300]}")

    async def _account(self, heard: Heard, client: Redis, mongo: MongoServer) -> dict[str, Any]:
        dead = await self._dead_letters(client)
        _say(f"{datetime.now(UTC):%H:%M:%S}  accounting for {self.state.begun:,} sessions")
        figures = await to_thread.run_sync(self._compare, heard, mongo, dead)
        await self._keys(client)
        return {**figures, "dead letters": len(dead)}

    def _compare(self, heard: Heard, mongo: MongoServer, dead: set[str]) -> dict[str, Any]:
        figures: dict[str, int] = {}
        with MongoClient[dict[str, Any]](_uri(mongo.port), tz_aware=True) as client:
            database = client[DATABASE]
            for block in range(-(-self.state.begun // SCRIPTS_A_BLOCK)):
                scripts = block_of(self.state.seed, block, self.state.begun)
                of_them = {"owner_key": {"$in": sorted({script.owner for script in scripts})}}
                found = {kind: [*database[name].find(of_them, shown)] for kind, (name, shown) in _COLLECTIONS.items()}
                figures = _sum(figures, account(scripts, Stored(**found), heard, dead, self._faults))
            in_all = database["messages"].count_documents({})
        if in_all != figures.get("rows", 0):
            self._faults.note("unaccounted", f"{in_all - figures.get('rows', 0)} rows of owners that nobody is")
        return figures

    async def _dead_letters(self, client: Redis) -> set[str]:
        letters: Any = await client.xrange(f"{PREFIX}nexus:dead-letters") or ()
        return {fields.get(b"message_id", b"").decode() for _, fields in letters}

    async def _keys(self, client: Redis) -> None:
        longest = 0
        async for key in client.scan_iter(count=1_000):
            left = int(await client.ttl(key))
            name = key.decode()
            longest = max(longest, left)
            if left == -1 and not (name.startswith(PREFIX) and stays(name.removeprefix(PREFIX))):
                self._faults.note("leaked", f"{name} has no time to live")
            elif left > _LONGEST_TTL_S:
                self._faults.note("leaked", f"{name} stays for {left} s")

    def _report(self, figures: dict[str, Any]) -> int:
        self.save()
        (self._folder / "report.md").write_text(self._table(figures), encoding="utf-8")
        _say(self._table(figures))
        return 1 if sum(self._faults.counts.values()) else 0

    def _table(self, figures: dict[str, Any]) -> str:
        state = self.state
        disturbed = ", ".join(f"{count} × {what}" for what, count in sorted(state.disturbed.items()))
        seen = ", ".join(f"{count:,} {what}" for what, count in sorted(state.seen.items()))
        ratios = ", ".join(f"{after:.0f} ÷ {before:.0f} MiB = {after / before:.2f}" for before, after in state.memory)
        own = self._own.ends()
        tenth = max(1, len(state.keys) // 10)
        keys = f"{max(state.keys[tenth : 2 * tenth], default=0):,} → {max(state.keys[-tenth:], default=0):,}"
        lines = [
            "| soak | |",
            "|---|---|",
            f"| requests, seed | {figures['requests']:,}, {state.seed} |",
            f"| time | {state.seconds / 60:.1f} minutes, {figures['requests'] / state.seconds:.0f} a second |",
            f"| disturbed | {disturbed} |",
            f"| answers | {seen} |",
            f"| stored | {', '.join(f'{value:,} {name}' for name, value in figures.items() if name != 'requests')} |",
            *(f"| {kind}: {what} | {self._faults.counts[kind]} |" for kind, what in FAULTS.items()),
            f"| memory of the replica that was never restarted, end ÷ after a tenth | {ratios or 'too short to say'} |",
            f"| the soak's own memory | {f'{own[1]:.0f} ÷ {own[0]:.0f} MiB' if own else 'too short to say'} |",
            f"| keys of Redis, after a tenth → at the end | {keys} |",
            f"| processor | {_cpu(state.cpu, figures['requests'])} |",
        ]
        return "\n".join([*lines, *(f"\n{example}" for example in self._faults.examples), ""])


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # what `make soak` shows


def _sum(one: dict[str, int], other: Any) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in [*one, *(set(other) - set(one))]}


def _cpu(seconds: dict[str, float], requests: int) -> str:
    return ", ".join(f"{name} {1_000 * each / requests:.1f} ms a request" for name, each in seconds.items())


def _environment(redis_url: str, mongo_uri: str) -> dict[str, str]:
    settings = {**_SETTINGS, "bus__url": redis_url, "database__uri": mongo_uri}
    return {f"NEXUS_{name.upper()}": str(value) for name, value in settings.items()}


def _uri(port: int) -> str:
    return f"mongodb://{HOST}:{port}/?directConnection=true"


async def _initiate(mongo: MongoServer) -> None:
    """Make it a replica set of one member, as whose writes are acknowledged by a majority; it may be one."""

    def is_primary() -> bool:
        with MongoClient[dict[str, Any]](mongo.uri) as client, suppress(PyMongoError):
            hello = client.admin.command("hello")
            if "setName" not in hello:
                members = [{"_id": 0, "host": f"{HOST}:{mongo.port}"}]
                client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
            return bool(hello.get("isWritablePrimary"))
        return False

    async def asked() -> bool:
        return await to_thread.run_sync(is_primary)

    await until(asked)


@asynccontextmanager
async def _running(server: RedisServer | MongoServer) -> AsyncIterator[None]:
    try:
        await server.start()
        yield
    finally:
        await server.kill()


async def _in_redis(client: Redis) -> tuple[int, int] | None:
    with suppress(RedisError, OSError), anyio.move_on_after(1):
        return int(await client.dbsize()), int((await client.info("memory"))["used_memory"]) >> 20
    return None


def _shown(in_redis: tuple[int, int] | None) -> str:
    return f"{in_redis[0]:,} keys {in_redis[1]} MiB" if in_redis else "away"


async def _pending(client: Redis) -> dict[str, int]:
    """What is not done with on the bus, by topic; and what waits in the outbox."""
    left = {}
    for topic in TOPICS:
        if await client.exists(PREFIX + topic):
            # Not its `lag`: see `GROUP_BACKLOG`.
            left[topic] = 0
            for group in await client.xinfo_groups(PREFIX + topic):
                after = f"({group['last-delivered-id'].decode()}"
                left[topic] += group["pending"] + len(await client.xrange(PREFIX + topic, after, count=1_000) or ())
    left["outbox"] = int(await client.zcard(f"{PREFIX}nexus:{{outbox}}:order"))
    return {name: count for name, count in left.items() if count}


def _due(client: Any) -> dict[str, int]:
    """What is due in MongoDB: turns to be closed, messages to be indexed."""
    # Without a model the summaries that it would write stay due.
    due = {"turns": {"work": CLOSE}, "messages": {"recall.work": {"$gt": ""}}}
    left = {f"{name} due": client[DATABASE][name].count_documents(query) for name, query in due.items()}
    return {name: count for name, count in left.items() if count}


@dataclass(frozen=True, slots=True)
class _Process:
    """One that a soak has started, or the soak itself."""

    pid: int
    name: str
    mib: float
    cpu_s: float


def _processes(folder: Path) -> Iterator[_Process]:
    """Those of the soak of this folder, also of one that has crashed."""
    mark = f"{_MARK}={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(process.name) == os.getpid() or mark in (process / "environ").read_bytes().split(b"\0"):
                # Behind the name, which may hold anything: the fields from the third on.
                fields = (process / "stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
                command = (process / "cmdline").read_bytes().split(b"\0")
                name = "nexus" if b"nexus" in command else Path(command[0].decode()).name
                cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                mib = int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
                pid = int(process.name)
                yield _Process(pid, "the soak itself" if pid == os.getpid() else name, mib, cpu_s)


def _end_left_over(folder: Path) -> None:
    """Kill what a crashed soak of this folder has left running."""
    for process in _processes(folder):
        if process.pid != os.getpid():
            os.kill(process.pid, signal.SIGKILL)
    os.environ[_MARK] = str(folder)


def main() -> None:
    """Run a soak, or go on with one."""
    words = argparse.ArgumentParser(prog="make soak", description=__doc__)
    words.add_argument("--requests", type=int, default=200_000)
    words.add_argument("--minutes", type=float, default=75, help="this sitting ends after so many")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--folder", type=lambda text: Path(text).resolve(), default=Path("build/soak").resolve())
    given = words.parse_args()
    if not real_mongod():
        words.error("there is no mongod: install one")
    _end_left_over(given.folder)
    given.folder.mkdir(parents=True, exist_ok=True)
    sys.exit(anyio.run(Soak(given).run, backend_options={"use_uvloop": True}))


if __name__ == "__main__":
    main()
