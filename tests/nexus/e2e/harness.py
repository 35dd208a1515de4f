"""A running `nexus serve`, and a requester that knows nothing of Nexus but its contract: redis-py and JSON alone."""

import json
import os
import signal
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream
from redis.asyncio import Redis

PATIENCE_S = 30.0
# A client of Redis has so many connections, and some are needed for what is asked otherwise.
AT_ONCE = 50
RESPONSE = "context.build.response"
REQUEST = "context.build.request"


def port_of(uri: str) -> int:
    """The port that the URI of a MongoDB names."""
    return urlsplit(uri).port or 27017


class Service:
    """A `nexus serve` process and what it has logged."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
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

    async def logged(self, event: str) -> dict[str, Any]:
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
async def starting(environment: Mapping[str, str]) -> AsyncIterator[Service]:
    """A service that may not be ready yet; killed at the end when it still runs."""
    command = [sys.executable, "-m", "nexus", "serve"]
    async with await anyio.open_process(command, env={**os.environ, **environment}, stdout=None) as process:
        service = Service(process)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.read_log)
            try:
                yield service
            finally:
                if process.returncode is None:
                    process.kill()


class Requester:
    """Publishes requests and collects every answer on every response topic."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self.redis = redis
        self.prefix = prefix
        self.places = anyio.Semaphore(AT_ONCE)
        self.answers: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        self._heard = anyio.Event()

    async def listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Collect answers. Run in a task of its own."""
        async with self.redis.pubsub() as pubsub:
            await pubsub.psubscribe(f"{self.prefix}{RESPONSE}*")
            while True:
                message = await pubsub.get_message(timeout=None)
                if message and message["type"] == "psubscribe":
                    task_status.started()
                elif message:
                    self.keep(message["channel"].decode(), message["data"])

    def keep(self, key: str, data: bytes) -> None:
        """Collect an answer."""
        answer = json.loads(data)
        self.answers[answer["metadata"]["request_id"]].append((key.removeprefix(self.prefix), answer))
        self._heard.set()
        self._heard = anyio.Event()

    async def publish(self, topic: str, payload: bytes | Mapping[str, Any]) -> int:
        """Publish bytes, or a message as JSON. Returns how many subscribers heard it."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        async with self.places:
            return int(await self.redis.publish(self.prefix + topic, data))

    async def answered(self, *request_ids: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until each of these requests has an answer."""
        with anyio.fail_after(patience_s):
            while not all(self.answers.get(request_id) for request_id in request_ids):
                await self._heard.wait()

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Publish a request and return the content of its answer."""
        await self.publish(REQUEST, request)
        await self.answered(request["id"])
        return dict(self.answers[request["id"]][-1][1]["content"])

    async def ask_until(
        self, make: Callable[[], Mapping[str, Any]], wanted: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Ask again and again, with a new request each time, until an answer is as wanted."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                request = make()
                try:
                    await self.publish(REQUEST, request)
                    await self.answered(request["id"], patience_s=2)
                except (TimeoutError, OSError):
                    continue
                content = dict(self.answers[request["id"]][-1][1]["content"])
                if wanted(content):
                    return content
                # What is asked is part of the next memory, which is to show something else as well.
                await anyio.sleep(0.1)
        raise AssertionError("never as wanted")


class StreamRequester(Requester):
    """The same on a bus of streams, by XADD and XREAD alone."""

    def __init__(self, redis: Redis, prefix: str, replies: Sequence[str]) -> None:
        super().__init__(redis, prefix)
        self.ends: dict[Any, Any] = {f"{prefix}{RESPONSE}{reply and f'.{reply}'}": b"0" for reply in ("", *replies)}

    async def listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Collect answers. Run in a task of its own."""
        task_status.started()
        while True:
            found: Any = await self.redis.xread(self.ends, block=1_000)
            for key, entries in found:
                for entry, fields in entries:
                    self.ends[key.decode()] = entry
                    self.keep(key.decode(), fields[b"message"])

    async def publish(self, topic: str, payload: bytes | Mapping[str, Any]) -> int:
        """Append bytes, or a message as JSON, to the topic's stream."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        async with self.places:
            await self.redis.xadd(self.prefix + topic, {b"message": data})
        return 1

    async def unfinished(self, topic: str) -> int:
        """How much of a topic's work the service has not done: what waits and what is pending."""
        (group,) = await self.redis.xinfo_groups(self.prefix + topic)
        return int(group["pending"]) + int(group["lag"])

    async def finished(self, *topics: str) -> None:
        """Wait until the service has done all of it."""
        with anyio.fail_after(PATIENCE_S):
            for topic in topics:
                while await self.unfinished(topic):
                    await self.redis.ping()


@asynccontextmanager
async def requesting_by_streams(redis_url: str, prefix: str, *replies: str) -> AsyncIterator[StreamRequester]:
    """A requester on a bus of streams, which reads the streams of these `reply_to`s as well."""
    async with Redis.from_url(redis_url) as redis, anyio.create_task_group() as tasks:
        requester = StreamRequester(redis, prefix, replies)
        await tasks.start(requester.listen)
        yield requester
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def requesting(redis_url: str, prefix: str) -> AsyncIterator[Requester]:
    """A requester on the bus."""
    async with Redis.from_url(redis_url) as redis, anyio.create_task_group() as tasks:
        requester = Requester(redis, prefix)
        await tasks.start(requester.listen)
        yield requester
        tasks.cancel_scope.cancel()


def a_request(
    text: Any = "Good morning",
    *,
    owner: str = "ada",
    run_id: str | None = None,
    later: list[dict[str, Any]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    run_metadata: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A valid build request as an orchestrator publishes it; `changes` replace fields of the envelope."""
    run_id = run_id or f"run_{uuid.uuid4().hex}"
    now = datetime.now(UTC).isoformat()
    common = {"run_id": run_id, "owner_key": owner, "timestamp": now, "metadata": {}}
    human = {**common, "id": f"msg_of_{run_id}", "role": "HUMAN", "content": text}
    run = {
        "id": run_id,
        "owner_key": owner,
        "status": "BUILDING_CONTEXT",
        "history": [human, *(later or [])],
        "iteration_count": 0,
        "tools": [],
        "metadata": dict(run_metadata or {}),
    }
    envelope = {"id": f"msg_{uuid.uuid4().hex}", **common, "role": "SYSTEM", "content": run}
    return {**envelope, "metadata": dict(metadata or {}), **changes}


def stored_runs(owner: str, runs: int, *, start: datetime | None = None) -> list[dict[str, Any]]:
    """Rows as recorded of runs of 11 rows each: an input, three rounds of two parallel tools, an answer.

    Calls are in the nested form in even runs and in the flat form in odd ones.
    """
    start = start or datetime(2025, 12, 1, 8, 0, tzinfo=UTC)
    rows: list[dict[str, Any]] = []
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


def _call(number: int, turn: int, side: str) -> dict[str, Any]:
    call_id, arguments = f"call_{number}_{turn}_{side}", {"query": f"{side} {number}.{turn}"}
    if number % 2:
        return {"id": call_id, "name": "web_search", "arguments": arguments}
    function = {"name": "web_search", "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}
