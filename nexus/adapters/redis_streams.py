"""The bus on Redis Streams (CONTRACT §1.5, mode `streams`): what was accepted is handed out until it is done.

Rules of this module:

- A topic is a stream of that name; an entry's field `message` holds the payload. Work is read through one consumer
  group by a consumer of this process's own (`redis_group`); news are read by everybody, from where the stream ended
  when the subscription began.
- Every script touches streams and keys of one prefix. On a Redis Cluster the prefix holds a hash tag (`{nexus}:`), so
  that they share a slot.
- Nothing waits on a read for longer than the socket's time-out allows: a connection that is open at one end only fails.
"""

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from dataclasses import replace
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskGroup
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from nexus.adapters.redis_client import translated
from nexus.adapters.redis_group import GroupReader, GroupSettings, delivery_of
from nexus.adapters.redis_ledger import is_of_one_requester
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Delivery, Work
from nexus.core.tasks import at_once, ungrouped
from nexus.core.topics import Topics

_log = structlog.get_logger(__name__)

# Shorter than the time-out of the socket, which would end the read with an error.
_BLOCK_MS: Final = 1_000
_READ_AT_ONCE: Final = 64
_BUFFERED_NEWS: Final = 1_024
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_BEGINNING: Final = b"0-0"
_CLOSING_S: Final = 2.0
_UPKEEP_EVERY_S: Final = 5.0
_LONGEST_REASON: Final = 200
_OWN_TALK: Final = "nexus."

# KEYS: stream, and with `once` its mark. ARGV: payload, how long the mark lasts, how long the stream lasts or 0.
_PUBLISH = """
if KEYS[2] and not redis.call('SET', KEYS[2], '', 'NX', 'PX', ARGV[2]) then return 1 end
local added = redis.pcall('XADD', KEYS[1], '*', 'message', ARGV[1])
if type(added) == 'table' then
  -- Nothing has been enqueued: the mark must not last.
  if KEYS[2] then redis.call('SET', KEYS[2], '', 'PX', 1) end
  return added
end
if ARGV[3] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 1
"""


class RedisStreamsBus:
    """`nexus.core.ports.Bus` on Redis Streams.

    Args:
        client: Redis 7.0 or newer, or Valkey.
        prefix: before every key.
        settings: of the consumer group.
        once_ms: how long a name that was given to `publish` is known.
        reply_keep_ms: how long the stream of one requester's answers, or of a check, lasts after the last entry.
        connect_s: how long a subscription waits for a Redis that cannot be reached; for ever without.
    """

    def __init__(
        self,
        client: Redis,
        *,
        prefix: str = "",
        settings: GroupSettings | None = None,
        once_ms: int = 3_600_000,
        reply_keep_ms: int = 600_000,
        connect_s: float | None = None,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._settings = settings or GroupSettings()
        self._once_ms = once_ms
        self._reply_keep_ms = reply_keep_ms
        self._connect_s = connect_s
        self._publish = client.register_script(_PUBLISH)
        self._readers: list[GroupReader] = []

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Append to the topic's stream. Whether somebody reads it cannot be known: returns 1."""
        keys = [self._prefix + topic, *([f"{self._prefix}nexus:enqueued:{once}"] if once else [])]
        # No service trims these: who reads them may never come again.
        of_one = is_of_one_requester(topic) or topic.startswith(_OWN_TALK)
        lasts_ms = self._reply_keep_ms if of_one else 0
        with translated():
            return int(await self._publish(keys=keys, args=[payload, self._once_ms, lasts_ms]))

    def subscribe(self, *topics: str) -> AbstractAsyncContextManager["StreamSubscription"]:
        """Hear everything that is appended to `topics` from now on."""
        return self._listening((), tuple(dict.fromkeys(topics)))

    def consume(
        self, work: Sequence[Work], news: Sequence[str] = ()
    ) -> AbstractAsyncContextManager["StreamSubscription"]:
        """Take part in the group's work, and hear the news."""
        return self._listening(tuple(work), tuple(dict.fromkeys(news)))

    def done(self, delivery: Delivery) -> None:
        """Acknowledge the entry, with the next others."""
        for reader in self._readers_of(delivery):
            reader.done(delivery)

    def acknowledged(self, delivery: Delivery) -> None:
        """Know that the entry has been acknowledged by somebody else (`RedisStreamsLedger`)."""
        for reader in self._readers_of(delivery):
            reader.done(delivery, acknowledged=True)

    def _readers_of(self, delivery: Delivery) -> list[GroupReader]:
        """Those who may have it in hand."""
        return [reader for reader in self._readers if delivery.shared and reader.topic == delivery.topic]

    @asynccontextmanager
    async def _listening(self, work: tuple[Work, ...], news: tuple[str, ...]) -> AsyncIterator["StreamSubscription"]:
        subscription = StreamSubscription(self._client, self._prefix, news, sum(item.most for item in work))
        settings = replace(self._settings, consumer=f"nexus-{uuid.uuid4().hex}")
        readers = [GroupReader(self._client, self._prefix, item, settings, subscription) for item in work]
        with ungrouped(), closing(subscription):
            try:
                async with anyio.create_task_group() as tasks:
                    await self._start(tasks, subscription, readers)
                    try:
                        yield subscription
                    finally:
                        tasks.cancel_scope.cancel()
            finally:
                # Only now is no read under way whose reply would not be given back.
                self._readers = [reader for reader in self._readers if reader not in readers]
                with anyio.move_on_after(_CLOSING_S, shield=True):
                    async with anyio.create_task_group() as tasks:
                        for reader in readers:
                            tasks.start_soon(reader.close)

    async def _start(self, tasks: TaskGroup, subscription: "StreamSubscription", readers: list[GroupReader]) -> None:
        try:
            with anyio.fail_after(self._connect_s):
                await subscription.find_ends()
                for reader in readers:
                    await tasks.start(reader.run)
        except TimeoutError:
            raise BusUnavailableError(f"no answer from Redis within {self._connect_s:g} s") from None
        self._readers += readers
        tasks.start_soon(subscription.hear_news)
        if readers:
            subscription.backlogs = {reader.topic: 0 for reader in readers}
            tasks.start_soon(self._keep_up, readers, subscription)

    async def _keep_up(self, readers: list[GroupReader], subscription: "StreamSubscription") -> None:
        """Shorten the streams and see how much waits in them, now and then. Run in a task of its own."""
        topics = {*subscription.news, *(reader.topic for reader in readers), Topics.CONTEXT_BUILD_RESPONSE}
        while True:
            await anyio.sleep(_UPKEEP_EVERY_S)
            for topic in topics:
                with suppress(RedisError, OSError):
                    await readers[0].trim(topic)
            for reader in readers:
                with suppress(RedisError, OSError):
                    subscription.backlogs[reader.topic] = await reader.backlog()


class StreamSubscription:
    """Deliveries of some streams."""

    def __init__(self, client: Redis, prefix: str, news: tuple[str, ...], most_work: int) -> None:
        self.reconnects = 0
        self.backlogs: dict[str, int] = {}
        self.stopping = anyio.Event()
        self.news = news
        self._client = client
        self._prefix = prefix
        self._ends: dict[str, bytes] = {}
        self._heard_at = anyio.current_time()
        self._lost = False
        self._reading = anyio.CancelScope()
        # Work never fills its part of the buffer: no more is read than may be in hand.
        size = 2 * most_work + _BUFFERED_NEWS
        self._send, self._receive = anyio.create_memory_object_stream[Delivery](size)

    @property
    def silent_s(self) -> float:
        """Seconds since Redis last replied to anything."""
        return anyio.current_time() - self._heard_at

    def heard(self) -> None:
        """Note that Redis has replied."""
        self._heard_at = anyio.current_time()
        if self._lost:
            self._lost = False
            self.reconnects += 1
            _log.info("bus_reconnected", reconnects=self.reconnects)

    def failed(self, topic: str, error: Exception) -> None:
        """Note that Redis has refused, or has not replied. Several readers that lose it at once lose it once."""
        if isinstance(error, ResponseError):
            _log.error("topic_unusable", topic=topic, reason=str(error)[:_LONGEST_REASON])
        else:
            _log.warning("bus_disconnected", reason=type(error).__name__)
            self._lost = True

    async def deliver(self, delivery: Delivery) -> None:
        """Put it where the subscriber reads."""
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self._send.send(delivery)

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        # Closed: its context has ended.
        with suppress(anyio.ClosedResourceError):
            async for delivery in self._receive:
                yield delivery
                # Receiving lets everybody else have a turn. Under load that would be one delivery in each round.
                for waiting in at_once(self._receive):
                    yield waiting

    async def stop(self) -> None:
        """Take in no more work, and no more news than there are. Work of a read that is cut off goes to another."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._reading.cancel()
        with anyio.move_on_after(_CLOSING_S), suppress(RedisError, OSError):
            while self.news and await self._hear(None):
                pass
        self._send.close()

    def close(self) -> None:
        """Give both ends of the buffer back."""
        self._send.close()
        self._receive.close()

    async def find_ends(self) -> None:
        """Find the end of each stream of news, from which it is heard; waits for Redis."""
        pause = _FIRST_PAUSE
        while len(self._ends) < len(self.news):
            for topic in self.news:
                try:
                    last: Any = await self._client.xrevrange(self._prefix + topic, count=1)
                    self._ends[topic] = last[0][0] if last else _BEGINNING
                except (RedisError, OSError) as error:
                    self.failed(topic, error)
                    await anyio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
        self._lost = False

    async def hear_news(self) -> None:
        """Read what is appended to the streams of news, until `stop`. Run in a task of its own."""
        pause = _FIRST_PAUSE
        with self._reading:
            while self.news:
                try:
                    await self._hear(_BLOCK_MS)
                    pause = _FIRST_PAUSE
                except (RedisError, OSError) as error:
                    self.failed(", ".join(self.news), error)
                    await anyio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)

    async def _hear(self, block_ms: int | None) -> bool:
        """Read the news once. Whether there were any."""
        keys: dict[Any, Any] = {self._prefix + topic: end for topic, end in self._ends.items()}
        found = await self._client.xread(keys, count=_READ_AT_ONCE, block=block_ms)
        self.heard()
        await self._take_news(found)
        return bool(found)

    async def _take_news(self, found: Any) -> None:
        entries = [
            (entry, key.decode().removeprefix(self._prefix), fields)
            for key, listed in _by_stream(found)
            for entry, fields in listed
        ]
        # Several streams are read at once: in the order in which they were written.
        for entry, topic, fields in sorted(entries, key=lambda item: _moment(item[0])):
            await self.deliver(delivery_of(topic, entry, fields))
            self._ends[topic] = entry


def _by_stream(found: Any) -> Sequence[tuple[bytes, Any]]:
    """What XREAD gives, in both of redis-py's forms."""
    return [(key, listed[0]) for key, listed in found.items()] if isinstance(found, dict) else found or []


def _moment(entry: bytes) -> tuple[int, int]:
    ms, _, number = entry.partition(b"-")
    return int(ms), int(number)
