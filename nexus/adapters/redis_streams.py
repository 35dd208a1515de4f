"""The bus on Redis Streams (CONTRACT §1.5, mode `streams`): what was accepted is handed out until it is done.

Rules of this module:

- A topic is a stream of that name; an entry's field `message` holds the payload. Work is read through one consumer
  group by a consumer of this process's own (`redis_group`); news are read by everybody, from where the stream ended
  when the subscription began (`redis_stream_subscription`).
- Nothing that a group has not acknowledged or not read is ever trimmed, whosever group it is (`redis_upkeep`).
- Every script touches streams and keys of one prefix. On a Redis Cluster the prefix holds a hash tag (`{nexus}:`), so
  that they share a slot.
- Nothing waits on a read for longer than the socket's time-out allows: a connection that is open at one end only fails.
"""

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from dataclasses import replace
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from nexus.adapters.redis.ledger import is_of_one_requester
from nexus.adapters.redis_client import translated
from nexus.adapters.redis_group import GroupReader, GroupSettings
from nexus.adapters.redis_stream_subscription import StreamSubscription
from nexus.adapters.redis_upkeep import Upkeep
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Delivery, Work
from nexus.core.tasks import ungrouped
from nexus.core.topics import Topics

_log = structlog.get_logger(__name__)

_CLOSING_S: Final = 2.0
_UPKEEP_EVERY_S: Final = 5.0
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
        self._upkeep = Upkeep(client, prefix, self._settings.name, self._settings.keep_ms)
        self._readers: list[GroupReader] = []

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Append to the topic's stream. Whether somebody reads it cannot be known: returns 1.

        0 when it is for one requester only, who has something else than a stream there and so reads nothing.
        """
        keys = [self._prefix + topic, *([f"{self._prefix}nexus:enqueued:{once}"] if once else [])]
        # No service trims these: who reads them may never come again.
        of_one = is_of_one_requester(topic) or topic.startswith(_OWN_TALK)
        lasts_ms = self._reply_keep_ms if of_one else 0
        with translated():
            try:
                return int(await self._publish(keys=keys, args=[payload, self._once_ms, lasts_ms]))
            except ResponseError as error:
                if "WRONGTYPE" not in str(error) or not is_of_one_requester(topic):
                    raise
        _log.warning("reply_stream_unusable", topic=topic)
        return 0

    def subscribe(self, *topics: str) -> AbstractAsyncContextManager[StreamSubscription]:
        """Hear everything that is appended to `topics` from now on."""
        return self._listening((), tuple(dict.fromkeys(topics)))

    def consume(
        self, work: Sequence[Work], news: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[StreamSubscription]:
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
    async def _listening(self, work: tuple[Work, ...], news: tuple[str, ...]) -> AsyncIterator[StreamSubscription]:
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

    async def _start(self, tasks: TaskGroup, subscription: StreamSubscription, readers: list[GroupReader]) -> None:
        try:
            with anyio.fail_after(self._connect_s):
                await subscription.find_ends()
                for reader in readers:
                    await tasks.start(reader.run)
        except TimeoutError:
            reason = f": {subscription.failure}" if subscription.failure else ""
            raise BusUnavailableError(f"no answer from Redis within {self._connect_s:g} s{reason}") from None
        self._readers += readers
        subscription.begin(reader.topic for reader in readers)
        tasks.start_soon(subscription.hear_news)
        if readers:
            tasks.start_soon(self._keep_up, subscription)

    async def _keep_up(self, subscription: StreamSubscription) -> None:
        """Shorten the streams and see how much waits in them, now and then. Run in a task of its own."""
        topics = {*subscription.news, *subscription.backlogs, Topics.CONTEXT_BUILD_RESPONSE}
        while True:
            await anyio.sleep(_UPKEEP_EVERY_S)
            for topic in topics:
                with suppress(RedisError, OSError):
                    await self._upkeep.trim(topic)
            for topic in subscription.backlogs:
                with suppress(RedisError, OSError):
                    subscription.backlogs[topic] = await self._upkeep.backlog(topic)
