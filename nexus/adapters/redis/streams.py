"""The bus on Redis Streams (contract §1.5, mode `streams`): what was accepted is handed out until it is done.

- A topic is a stream of that name; an entry's field `message` holds the payload. Work is read through one consumer
  group by a consumer of this process's own; news are read by every subscriber, from where the stream ended when the
  subscription began.
- Nothing that a group has not acknowledged or not read is ever trimmed, whichever group it is.
- Every script touches streams and keys of one prefix. On a Redis Cluster the prefix holds a hash tag (`{nexus}:`), so
  that they share a slot.
- No read waits for longer than the socket's time-out allows: a half-open connection fails.
"""

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskGroup
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from nexus.adapters.redis.client import FAULTS, translated
from nexus.adapters.redis.consumer_group import GroupReader
from nexus.adapters.redis.ledger import is_of_one_requester
from nexus.adapters.redis.scripts import GROUP, GROUP_BACKLOG, STREAM_PUBLISH, STREAM_TRIM, Script
from nexus.adapters.redis.stream_subscription import StreamSubscription
from nexus.core.concurrency import ungrouped
from nexus.core.models import ANSWER_TOPICS
from nexus.core.ports import Delivery, Work

_log = structlog.get_logger(__name__)

_CLOSING_S: Final = 2.0
_TRIMMED_EVERY_S: Final = 5.0
# A consumer with nothing pending that has been silent for so long is gone.
_GONE_MS: Final = 600_000
# A consumer that is at work reads every two seconds.
_READ_LATELY_MS: Final = 10_000
_BEGINNING: Final = b"0-0"
_OWN_TOPICS: Final = "nexus."


class RedisStreamsBus:
    """`nexus.core.ports.Bus` on Redis 7.0 or newer, or Valkey.

    A name that was given to `publish` is known for `once_ms`. An entry that every group is done with stays in its
    stream for `keep_ms`; the stream of one requester's answers, or of a check, lasts so long after the last entry. A
    subscription waits for `connect_s` seconds for a Redis that cannot be reached; for ever without.
    """

    def __init__(
        self,
        client: Redis,
        *,
        prefix: str = "",
        lease_ms: int = 2_000,
        keep_ms: int = 600_000,
        once_ms: int = 3_600_000,
        connect_s: float | None = None,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._lease_ms = lease_ms
        self._keep_ms = keep_ms
        self._once_ms = once_ms
        self._connect_s = connect_s
        self._publish = Script(client, STREAM_PUBLISH)
        self._trimmer = StreamTrimmer(client, prefix, keep_ms)
        self._readers: list[GroupReader] = []

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Append to the topic's stream. Readers of a stream cannot be counted: returns 1.

        0 when the key of a single requester's topic is no stream, so that nothing can be read there.
        """
        keys = [self._prefix + topic, *([f"{self._prefix}nexus:enqueued:{once}"] if once else [])]
        # No service trims the stream of one reader, which may never come again.
        has_one_reader = is_of_one_requester(topic) or topic.startswith(_OWN_TOPICS)
        lasts_ms = self._keep_ms if has_one_reader else 0
        with translated():
            try:
                return int(await self._publish(keys=keys, args=[payload, self._once_ms, lasts_ms]))
            except ResponseError as error:
                if "WRONGTYPE" not in str(error) or not is_of_one_requester(topic):
                    raise
        _log.warning("reply_stream_unusable", topic=topic)
        return 0

    def subscribe(self, *topics: str) -> AbstractAsyncContextManager[StreamSubscription]:
        """Receive everything that is appended to `topics` from now on."""
        return self._listening((), tuple(dict.fromkeys(topics)))

    def consume(
        self, work: Sequence[Work], news: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[StreamSubscription]:
        """Take part in the group's work, and receive the news."""
        return self._listening(tuple(work), tuple(dict.fromkeys(news)))

    async def is_read(self, topic: str) -> bool | None:
        """Whether the group has read the stream to its end, or a consumer did lately; None without the right to ask."""
        key = self._prefix + topic
        with translated():
            try:
                groups: list[dict[str, Any]] = await self._client.xinfo_groups(key)
                # Redis 7.0 does not know a consumer that has read nothing yet.
                if any(group["name"] == GROUP.encode() and group["lag"] == 0 for group in groups):
                    return True
                consumers: list[dict[str, Any]] = await self._client.xinfo_consumers(key, GROUP)
            except NoPermissionError:
                return None
            except ResponseError as error:
                if "no such key" in str(error) or "NOGROUP" in str(error):
                    return False
                raise
        return any(consumer["idle"] < _READ_LATELY_MS for consumer in consumers)

    def set_aside(self, delivery: Delivery, *, aside: bool) -> None:
        """Read on while the entry waits, or count it in hand again."""
        for reader in self._readers_of(delivery):
            reader.in_hand.set_aside(delivery, aside=aside)

    def done(self, delivery: Delivery) -> None:
        """Acknowledge the entry, with the next others."""
        for reader in self._readers_of(delivery):
            reader.in_hand.done(delivery)

    def acknowledged(self, delivery: Delivery) -> None:
        """Take note that the entry has been acknowledged elsewhere (`RedisLedger`)."""
        for reader in self._readers_of(delivery):
            reader.in_hand.done(delivery, acknowledged=True)

    def _readers_of(self, delivery: Delivery) -> list[GroupReader]:
        return [reader for reader in self._readers if delivery.shared and reader.topic == delivery.topic]

    @asynccontextmanager
    async def _listening(self, work: tuple[Work, ...], news: tuple[str, ...]) -> AsyncIterator[StreamSubscription]:
        subscription = StreamSubscription(self._client, self._prefix, news, sum(item.most for item in work))
        consumer = f"nexus-{uuid.uuid4().hex}"
        readers = [
            GroupReader(self._client, self._prefix, item, consumer, self._lease_ms, subscription) for item in work
        ]
        with ungrouped(), closing(subscription):
            try:
                async with anyio.create_task_group() as tasks:
                    await self._start(tasks, subscription, readers)
                    try:
                        yield subscription
                    finally:
                        tasks.cancel_scope.cancel()
            finally:
                # Only now is no read under way whose entries would not be given back.
                self._readers = [reader for reader in self._readers if reader not in readers]
                with anyio.move_on_after(_CLOSING_S, shield=True):
                    async with anyio.create_task_group() as tasks:
                        for reader in readers:
                            tasks.start_soon(reader.in_hand.give_back)

    async def _start(self, tasks: TaskGroup, subscription: StreamSubscription, readers: list[GroupReader]) -> None:
        with subscription.connecting(self._connect_s):
            await subscription.find_ends()
            for reader in readers:
                await tasks.start(reader.run)
        self._readers += readers
        subscription.begin(reader.topic for reader in readers)
        tasks.start_soon(subscription.read_news)
        if readers:
            tasks.start_soon(self._keep_trimming, subscription)

    async def _keep_trimming(self, subscription: StreamSubscription) -> None:
        """Trim the streams and count their backlogs, now and then. Run in a task of its own."""
        topics = {*subscription.news, *subscription.backlogs, *ANSWER_TOPICS.values()}
        while True:
            await anyio.sleep(_TRIMMED_EVERY_S)
            for topic in topics:
                with suppress(*FAULTS):
                    await self._trimmer.trim(topic)
            for topic in subscription.backlogs:
                with suppress(*FAULTS):
                    subscription.backlogs[topic] = await self._trimmer.backlog(topic)


class StreamTrimmer:
    """Trims the streams of a prefix, and counts what waits in them.

    An entry's age is that of its id, which is the time at which Redis took it, unless the id was chosen by its writer.
    After an id in the future Redis gives all others ids after it, none of which ever seems old. The end of such a
    stream is remembered, and once it has been known for long enough, what lies before it is old.
    """

    def __init__(self, client: Redis, prefix: str, keep_ms: int) -> None:
        self._client = client
        self._prefix = prefix
        self._keep_ms = keep_ms
        self._trim, self._backlog = Script(client, STREAM_TRIM), Script(client, GROUP_BACKLOG)
        # Where a stream ended, and when that was seen by this process's own clock.
        self._ends: dict[str, tuple[bytes, float]] = {}

    async def trim(self, topic: str) -> None:
        """Remove what is old and every group is done with; forget consumers that are gone. Errors of Redis pass."""
        now = anyio.current_time()
        end, seen_at = self._ends.get(topic, (None, now))
        is_old = end is not None and now - seen_at >= self._keep_ms / 1_000
        old = end if end and is_old else _BEGINNING
        in_the_future = await self._trim([self._prefix + topic], [GROUP, self._keep_ms, _GONE_MS, old])
        if not in_the_future:
            self._ends.pop(topic, None)
        elif end is None or is_old:
            if end is None:
                _log.warning("entry_from_the_future", topic=topic, entry=in_the_future.decode())
            self._ends[topic] = (in_the_future, now)

    async def backlog(self, topic: str) -> int:
        """How many entries of a topic the group has not been given yet. Errors of Redis pass."""
        return int(await self._backlog([self._prefix + topic], [GROUP]) or 0)
