"""The messages of an orchestrator, in either mode of the bus: redis-py and the contract, nothing of Nexus."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tests.nexus.e2e.harness import REQUEST, RESPONSE
from tests.nexus.support.waiting import until

_PAUSE_S: Final = 0.02
_CONNECTIONS: Final = 64
_ENQUEUED_MS: Final = 120_000
# KEYS: mark, stream. ARGV: how long the mark lasts, message.
_ENQUEUE: Final = """
if not redis.call('SET', KEYS[1], '', 'NX', 'PX', ARGV[1]) then return 0 end
redis.call('XADD', KEYS[2], '*', 'message', ARGV[2])
return 1
"""


def connect(url: str) -> Redis:
    """A client that does everything once: only the requester repeats, and counts it."""
    once = Retry(NoBackoff(), 0)
    pool = BlockingConnectionPool.from_url(
        url, max_connections=_CONNECTIONS, timeout=None, retry=once, socket_timeout=None, socket_connect_timeout=2
    )
    return Redis.from_pool(pool)


class Wire(ABC):
    """Requests out, answers in."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self.redis = redis
        self.prefix = prefix

    @abstractmethod
    async def send(self, request_id: str, payload: bytes, topic: str = REQUEST) -> None:
        """Send a request, or send it again."""

    @abstractmethod
    async def say(self, topic: str, payload: bytes) -> None:
        """Send any message on any topic, again if it was sent before."""

    @abstractmethod
    async def arrived(self, topic: str) -> int:
        """How many messages Redis has taken on a topic, of those that were sent here."""

    @abstractmethod
    async def done(self, topic: str) -> None:
        """Return when the service has done all that was sent on a topic, where that can be known."""

    @abstractmethod
    def read(self) -> AsyncIterator[bytes | None]:
        """Every answer, for as long as the connection lasts; None when listening has begun."""

    async def answers(self) -> AsyncIterator[bytes | None]:
        """Every answer, over one connection after another; None each time listening has begun."""
        while True:
            with suppress(RedisError, OSError):
                async for payload in self.read():
                    yield payload
            await anyio.sleep(_PAUSE_S)


class PubSubWire(Wire):
    """Mode `pubsub`."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        super().__init__(redis, prefix)
        self._said: Counter[str] = Counter()

    async def send(self, request_id: str, payload: bytes, topic: str = REQUEST) -> None:  # noqa: ARG002  # for streams
        """Publish."""
        await self.say(topic, payload)

    async def say(self, topic: str, payload: bytes) -> None:
        """Publish."""
        await self.redis.publish(self.prefix + topic, payload)
        self._said[topic] += 1

    async def arrived(self, topic: str) -> int:
        """Those that were published without an error."""
        return self._said[topic]

    async def done(self, topic: str) -> None:
        """The bus does not know."""

    async def read(self) -> AsyncIterator[bytes | None]:
        """Subscribe to the answers of everybody."""
        async with self.redis.pubsub() as pubsub:
            await pubsub.psubscribe(f"{self.prefix}{RESPONSE}*")
            while True:
                message = await pubsub.get_message(timeout=None)
                if message and message["type"] == "psubscribe":
                    yield None
                elif message:
                    yield message["data"]


class StreamsWire(Wire):
    """Mode `streams`. Reads the answers on these topics."""

    def __init__(self, redis: Redis, prefix: str, answers: Sequence[str] = (RESPONSE,)) -> None:
        super().__init__(redis, prefix)
        self._after: dict[Any, Any] = {(prefix + topic).encode(): "0" for topic in answers}

    async def send(self, request_id: str, payload: bytes, topic: str = REQUEST) -> None:
        """Enqueue once, however often it is called."""
        keys = [f"{self.prefix}nexus:enqueued:{request_id}", self.prefix + topic]
        # redis-py's stubs give a plain value where its asyncio client gives an awaitable.
        reply: Any = self.redis.eval(_ENQUEUE, len(keys), *keys, str(_ENQUEUED_MS), payload)
        await reply

    async def say(self, topic: str, payload: bytes) -> None:
        """Append."""
        await self.redis.xadd(self.prefix + topic, {"message": payload})

    async def arrived(self, topic: str) -> int:
        """Entries of the stream, those that were trimmed included."""
        return int((await self.redis.xinfo_stream(self.prefix + topic))["entries-added"])

    async def done(self, topic: str) -> None:
        """Nothing waits in the stream and nothing is pending."""

        async def all_done() -> bool:
            groups = await self.redis.xinfo_groups(self.prefix + topic)
            return not any(group["pending"] or group["lag"] for group in groups)

        await until(all_done)

    async def read(self) -> AsyncIterator[bytes | None]:
        """Read the streams of answers from where reading stopped."""
        yield None
        while True:
            found: Any = await self.redis.xread(self._after, count=100, block=1_000)
            for key, entries in found or ():
                for entry, fields in entries:
                    self._after[key] = entry
                    yield fields[b"message"]


WIRES: Final[Mapping[str, Callable[[Redis, str], Wire]]] = {"pubsub": PubSubWire, "streams": StreamsWire}
