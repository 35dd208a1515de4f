"""Asks in a closed loop and takes the times: the next request of a place goes out when its last one is answered.

Whoever asks shares the machine with what is measured, and takes as little of it as can be: requests and answers go over
connections of their own protocol. A client of redis-py took as long as the floor itself, at the cost of whoever leaves
no processor idle.
"""

import asyncio
import math
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from nexus.adapters.redis_client import open_redis
from nexus.adapters.redis_connections import RedisProtocol, taken_over
from nexus.adapters.redis_entries import entries_in
from nexus.adapters.redis_multiplexed import packed
from nexus.adapters.redis_pipeline import PipelineLimits, pipelined
from nexus.bench.shapes import Request
from nexus.core.errors import BusUnavailableError
from nexus.core.topics import Topics

_ID: Final = re.compile(rb'"request_id":\s*"([^"]*)"')
# Where an answer says whether it is one, and where it names its request.
_HEAD, _TAIL = 1_024, 512
_PATIENCE_S: Final = 20.0
_LONGEST_READ_MS: Final = 1_000
_ONE_CONNECTION: Final = PipelineLimits(most_connections=1)


@dataclass(slots=True)
class Sample:
    """What asking came to.

    Attributes:
        latencies: of each request that was answered, in seconds.
        seconds: from the first to the last.
        errors: requests with an error for an answer, or with none.
        degraded: contexts in which something is missing.
        answer_bytes: the length of the last answer.
    """

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    errors: int = 0
    degraded: int = 0
    answer_bytes: int = 0

    def add(self, other: "Sample") -> None:
        """Count what was asked afterwards with this."""
        self.latencies += other.latencies
        self.seconds += other.seconds
        self.errors += other.errors
        self.degraded += other.degraded
        self.answer_bytes = other.answer_bytes or self.answer_bytes

    def quantile(self, share: float) -> float:
        """The latency that this share of the requests did not exceed, in seconds; nan without any."""
        ordered = sorted(self.latencies)
        return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else math.nan

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds if self.seconds else math.nan


class Asker:
    """A requester with a reply topic of its own.

    Attributes:
        reply_to: its name.
        hearing: hears the answers, and ends when they cannot be heard any more.

    Args:
        send: publishes the bytes of a request.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[object]]) -> None:
        self.reply_to = uuid.uuid4().hex
        self._send = send
        # By the id of the request: when it was asked, and its latency once there is one.
        self._waiting: dict[str, tuple[float, asyncio.Future[float]]] = {}
        self._sample = Sample()
        self.hearing: asyncio.Task[None] | None = None

    async def ask(self, requests: Sequence[Request], at_once: int) -> Sample:
        """Send the requests, so many at once, and wait until all are answered or given up.

        Raises:
            ExceptionGroup: of BusUnavailableError, when answers cannot be heard any more.
        """
        self._sample = sample = Sample()
        left = iter(requests)
        started = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            places = [tasks.create_task(self._ask_each(left)) for _ in range(at_once)]
            while (await asyncio.wait(places, timeout=_PATIENCE_S))[1]:
                if self.hearing and self.hearing.done():
                    raise BusUnavailableError("answers are not heard any more: the subscription was lost")
                self._give_up(time.perf_counter() - _PATIENCE_S)
        sample.seconds = time.perf_counter() - started
        return sample

    async def _ask_each(self, left: Iterator[Request]) -> None:
        loop = asyncio.get_running_loop()
        for request in left:
            latency: asyncio.Future[float] = loop.create_future()
            self._waiting[request.id] = time.perf_counter(), latency
            await self._send(request.payload)
            with suppress(TimeoutError):
                self._sample.latencies.append(await latency)

    def heard(self, data: bytes) -> None:
        """Take an answer."""
        now = time.perf_counter()
        found = _ID.search(data, max(0, len(data) - _TAIL)) or _ID.search(data, 0, _HEAD)
        waiting = self._waiting.pop(found[1].decode(), None) if found else None
        if waiting is None:
            return
        asked_at, latency = waiting
        if not latency.done():
            latency.set_result(now - asked_at)
        sample = self._sample
        sample.answer_bytes = len(data)
        if data.find(b'"status":"success"', 0, _HEAD) < 0:
            sample.errors += 1
        elif b'"degraded":[]' not in data:
            sample.degraded += 1

    def _give_up(self, before: float) -> None:
        """Count those that were asked before then as unanswered."""
        late = [request_id for request_id, (asked_at, _) in self._waiting.items() if asked_at < before]
        for request_id in late:
            self._sample.errors += 1
            self._waiting.pop(request_id)[1].set_exception(TimeoutError())


@asynccontextmanager
async def asking(redis_url: str, prefix: str, mode: str) -> AsyncIterator[Asker]:
    """A requester that hears its answers.

    Args:
        redis_url: of the bus.
        prefix: before its topics.
        mode: `pubsub` or `streams`.
    """
    topic = prefix + Topics.CONTEXT_BUILD_REQUEST
    async with open_redis(redis_url) as client, pipelined(client, _ONE_CONNECTION) as redis:

        async def publish(payload: bytes) -> None:
            await redis.execute("PUBLISH", topic, payload)

        async def append(payload: bytes) -> None:
            await redis.execute("XADD", topic, "*", "message", payload)

        asker = Asker(append if mode == "streams" else publish)
        listening = asyncio.Event()
        hear = _hear_stream if mode == "streams" else _hear
        own = f"{prefix}{Topics.CONTEXT_BUILD_RESPONSE}.{asker.reply_to}"
        hearing = asyncio.create_task(hear(client, own, asker, listening))
        try:
            begun = asyncio.create_task(listening.wait())
            await asyncio.wait([hearing, begun], return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            asker.hearing = hearing
            yield asker
        finally:
            hearing.cancel()
            with suppress(asyncio.CancelledError, RedisError, OSError):
                await hearing


async def _hear(client: Redis, topic: str, asker: Asker, listening: asyncio.Event) -> None:
    line = _Line(asker.heard, listening)
    async with taken_over(client.connection_pool, line):
        line.write([packed("SUBSCRIBE", topic)])
        raise await line.lost


class _Line(RedisProtocol):
    """A connection that brings the answers.

    Args:
        heard: called with each.
        listening: set when it brings them from now on.
    """

    def __init__(self, heard: Callable[[bytes], None], listening: asyncio.Event) -> None:
        super().__init__()
        self._heard = heard
        self._listening = listening

    def replied(self, reply: Any) -> None:
        """Take an answer, or what Redis says to a subscription."""
        match reply:
            case [b"message", _, payload]:
                self._heard(payload)
            case [b"subscribe", *_]:
                self._listening.set()
            case Exception():
                self.end(reply)
            case _:
                pass

    def writable_again(self) -> None:
        """Do nothing: one command is all that is written."""


async def _hear_stream(client: Redis, topic: str, asker: Asker, listening: asyncio.Event) -> None:
    last: str | bytes = "0"
    async with pipelined(client, _ONE_CONNECTION) as redis:
        listening.set()
        while True:
            reply = await redis.execute("XREAD", "BLOCK", _LONGEST_READ_MS, "STREAMS", topic, last)
            for entry, fields in entries_in(reply):
                asker.heard(fields[b"message"])
                last = entry
