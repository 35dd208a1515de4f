"""A running `nexus serve`, and a requester that knows nothing of Nexus but its contract: redis-py and JSON alone."""

import json
import os
import signal
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream
from redis.asyncio import Redis

from tests.nexus.support import schemas
from tests.nexus.support.proxy import Proxy
from tests.nexus.support.redis_server import HOST

Document = dict[str, Any]
Environment = dict[str, str]

PATIENCE_S = 60.0
# A client of Redis has so many connections, and a test needs some of them besides.
AT_ONCE = 50
RESPONSE = "context.build.response"
REQUEST = "context.build.request"


def port_of(uri: str) -> int:
    """The port that the URI of a MongoDB names."""
    return urlsplit(uri).port or 27017


class Service:
    """A `nexus serve` process and its log lines."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.log: list[Document] = []
        self.errors: list[str] = []
        self._logged = anyio.Event()

    async def read_log(self) -> None:
        """Collect log lines until the process ends. Run in a task of its own."""
        assert self.process.stderr is not None
        rest = ""
        async for text in TextReceiveStream(self.process.stderr):
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                self._keep(line)

    def _keep(self, line: str) -> None:
        try:
            self.log.append(json.loads(line))
        except ValueError:
            self.errors.append(line)
        self._logged.set()
        self._logged = anyio.Event()

    async def logged(self, event: str) -> Document:
        """The first log line of that event; waits for it."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                for line in self.log:
                    if line.get("event") == event:
                        return line
                assert self.process.returncode is None, (self.log, self.errors)
                await self._logged.wait()
        raise AssertionError(event)

    async def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal; returns the exit code."""
        self.process.send_signal(sign)
        with anyio.fail_after(PATIENCE_S):
            return await self.process.wait()


@asynccontextmanager
async def serving(environment: Mapping[str, str]) -> AsyncIterator[Service]:
    """A service that has said that it is ready; killed at the end when it still runs."""
    async with starting(environment) as service:
        await service.logged("ready")
        yield service


@asynccontextmanager
async def starting(environment: Mapping[str, str], *words: str) -> AsyncIterator[Service]:
    """A service that may not be ready yet, or another command; killed at the end when it still runs."""
    command = [sys.executable, "-m", "nexus", *(words or ["serve"])]
    async with await anyio.open_process(command, env={**os.environ, **environment}, stdout=None) as process:
        service = Service(process)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.read_log)
            try:
                yield service
            finally:
                if process.returncode is None:
                    process.kill()


class Collector:
    """Messages from topics of the bus, each under a name by which a test waits for it.

    Attributes:
        found: by name, the key of the channel or stream and the message, in order.
        faults: what is wrong with them by the schema of that name in docs/schemas, where one is given.
    """

    def __init__(self, redis: Redis, key: str, name_of: Callable[[Document], str], schema: str = "") -> None:
        self.found: defaultdict[str, list[tuple[str, Document]]] = defaultdict(list)
        self.faults: list[str] = []
        self._redis, self._key, self._name_of, self._schema = redis, key, name_of, schema
        self._heard = anyio.Event()

    async def subscribe(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Collect from all channels whose names begin so. Run in a task of its own."""
        async with self._redis.pubsub() as pubsub:
            await pubsub.psubscribe(f"{self._key}*")
            while True:
                message = await pubsub.get_message(timeout=None)
                if message and message["type"] == "psubscribe":
                    task_status.started()
                elif message:
                    self._keep(message["channel"].decode(), message["data"])

    async def read(self, *others: str, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Collect from a stream, and from these others. Run in a task of its own."""
        ends: dict[Any, Any] = dict.fromkeys([self._key, *(f"{self._key}.{other}" for other in others)], b"0")
        task_status.started()
        while True:
            found: Any = await self._redis.xread(ends, block=1_000)
            for key, entries in found:
                for entry, fields in entries:
                    ends[key.decode()] = entry
                    self._keep(key.decode(), fields[b"message"])

    def _keep(self, key: str, data: bytes) -> None:
        message = json.loads(data)
        self.faults += schemas.faults(self._schema, message, ours=True) if self._schema else []
        self.found[self._name_of(message)].append((key, message))
        self._heard.set()
        self._heard = anyio.Event()

    async def all_of(self, *names: str) -> list[Document]:
        """The first message of each name; waits for them."""
        while not all(self.found.get(name) for name in names):
            await self._heard.wait()
        return [self.found[name][0][1] for name in names]


class Requester:
    """Publishes requests and collects every answer on every response topic."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self.redis = redis
        self.prefix = prefix
        self.places = anyio.Semaphore(AT_ONCE)
        self.collector = Collector(
            redis, prefix + RESPONSE, lambda answer: str(answer["metadata"]["request_id"]), "answer"
        )

    @property
    def answers(self) -> dict[str, list[tuple[str, Document]]]:
        """By request the key and the message of each answer."""
        return self.collector.found

    async def publish(self, topic: str, payload: bytes | Mapping[str, Any]) -> int:
        """Publish bytes, or a message as JSON. Returns how many subscribers heard it."""
        async with self.places:
            return int(await self.redis.publish(self.prefix + topic, _as_bytes(payload)))

    async def answered(self, *request_ids: str, patience_s: float = PATIENCE_S) -> list[Document]:
        """The contents of the first answer to each of these requests; waits for them."""
        with anyio.fail_after(patience_s):
            return [answer["content"] for answer in await self.collector.all_of(*request_ids)]

    async def ask(self, request: Mapping[str, Any]) -> Document:
        """Publish a request and return the content of its answer."""
        await self.publish(REQUEST, request)
        (content,) = await self.answered(request["id"])
        return content

    async def ask_until(self, make: Callable[[], Mapping[str, Any]], wanted: Callable[[Document], bool]) -> Document:
        """Ask again and again, with a new request each time, until an answer is as wanted."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                request = make()
                try:
                    await self.publish(REQUEST, request)
                    (content,) = await self.answered(request["id"], patience_s=2)
                except (TimeoutError, OSError):
                    continue
                if wanted(content):
                    return content
                # Every request is part of the next memory, which is to show something else as well.
                await anyio.sleep(0.1)
        raise AssertionError("never as wanted")

    async def unfinished(self, topic: str) -> int:  # noqa: ARG002  # streams know it of each topic
        """How many messages of a topic wait or are pending, where the bus knows."""
        return 0

    async def finished(self, *topics: str) -> None:
        """Wait until the service has done all of it, where the bus knows."""
        with anyio.fail_after(PATIENCE_S):
            for topic in topics:
                while await self.unfinished(topic):
                    await self.redis.ping()


class StreamRequester(Requester):
    """The same on a bus of streams, by XADD and XREAD alone."""

    async def publish(self, topic: str, payload: bytes | Mapping[str, Any]) -> int:
        """Append bytes, or a message as JSON, to the topic's stream."""
        async with self.places:
            await self.redis.xadd(self.prefix + topic, {b"message": _as_bytes(payload)})
        return 1

    async def unfinished(self, topic: str) -> int:
        """Entries that wait or are pending."""
        (group,) = await self.redis.xinfo_groups(self.prefix + topic)
        return int(group["pending"]) + int(group["lag"])


def _as_bytes(payload: bytes | Mapping[str, Any]) -> bytes:
    return payload if isinstance(payload, bytes) else json.dumps(payload).encode()


@asynccontextmanager
async def requesting(environment: Environment, *replies: str) -> AsyncIterator[Requester]:
    """A requester on the bus of these services, which on streams reads those of these `reply_to`s as well.

    At the end every answer that it has heard is held to the schema of answers.
    """
    prefix = environment["NEXUS_BUS__CHANNEL_PREFIX"]
    async with Redis.from_url(environment["NEXUS_BUS__URL"]) as redis, anyio.create_task_group() as tasks:
        if is_on_streams(environment):
            requester: Requester = StreamRequester(redis, prefix)
            await tasks.start(requester.collector.read, *replies)
        else:
            requester = Requester(redis, prefix)
            await tasks.start(requester.collector.subscribe)
        yield requester
        tasks.cancel_scope.cancel()
    assert requester.collector.faults == []


def is_on_streams(environment: Environment) -> bool:
    """Whether the bus of these services is on streams."""
    return environment.get("NEXUS_BUS__MODE") == "streams"


def behind(proxy: Proxy) -> Environment:
    """Variables for a service whose MongoDB is behind a proxy."""
    return {"NEXUS_DATABASE__URI": f"mongodb://{HOST}:{proxy.port}/?directConnection=true"}


def a_message(content: Any, run_id: str = "run_1", role: str = "AI", **changes: Any) -> Document:
    """A message as an orchestrator publishes it; `changes` replace fields of the envelope."""
    common = {"run_id": run_id, "owner_key": "ada", "role": role, "timestamp": datetime.now(UTC).isoformat()}
    return {"id": f"msg_{uuid.uuid4().hex}", **common, "content": content, "metadata": {}, **changes}


def a_request(
    text: Any = "Good morning",
    *,
    owner: str = "ada",
    run_id: str | None = None,
    later: list[Document] | None = None,
    metadata: Mapping[str, Any] | None = None,
    run_metadata: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Document:
    """A valid build request as an orchestrator publishes it; `changes` replace fields of the envelope."""
    run_id = run_id or f"run_{uuid.uuid4().hex}"
    human = a_message(text, run_id, "HUMAN", id=f"msg_of_{run_id}", owner_key=owner)
    run = {
        "id": run_id,
        "owner_key": owner,
        "status": "BUILDING_CONTEXT",
        "history": [human, *(later or [])],
        "iteration_count": 0,
        "tools": [],
        "metadata": dict(run_metadata or {}),
    }
    envelope = a_message(run, run_id, "SYSTEM", owner_key=owner, metadata=dict(metadata or {}))
    return {**envelope, **changes}


def stored_runs(owner: str, runs: int, *, start: datetime | None = None) -> list[Document]:
    """Rows as recorded of runs of 11 rows each: an input, three rounds of two parallel tools, an answer.

    Calls are in the nested form in even runs and in the flat form in odd ones.
    """
    start = start or datetime(2025, 12, 1, 8, 0, tzinfo=UTC)
    rows: list[Document] = []
    for number in range(runs):
        at = start + timedelta(hours=number)
        events: list[tuple[str, Any, dict[str, Any]]] = [("HUMAN", f"question {number}", {"source": "new_run"})]
        for turn in range(3):
            calls = [_call(number, turn, side) for side in ("left", "right")]
            text = f"looking {number}.{turn}" if turn else ""
            events.append(("AI", text, {"source": "llm_result", "tool_calls": calls, "has_tool_calls": True}))
            events += [("TOOL", f"result {side} " + "x" * 1_000, {"source": "tool_result"}) for side in ("l", "r")]
        events.append(("AI", f"answer {number}", {"source": "llm_result", "tool_calls": None}))
        for index, (role, content, metadata) in enumerate(events):
            rows.append(
                {
                    "id": f"{owner}_{number}_{index}",
                    "run_id": f"{owner}_run_{number}",
                    "owner_key": owner,
                    "session_id": "default",
                    "role": role,
                    "content": content,
                    "timestamp": at + timedelta(seconds=index),
                    "metadata": metadata,
                }
            )
    return rows


def _call(number: int, turn: int, side: str) -> Document:
    call_id, arguments = f"call_{number}_{turn}_{side}", {"query": f"{side} {number}.{turn}"}
    if number % 2:
        return {"id": call_id, "name": "web_search", "arguments": arguments}
    function = {"name": "web_search", "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}
