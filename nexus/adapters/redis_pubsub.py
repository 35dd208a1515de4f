"""The bus on Redis pub/sub (CONTRACT §1.5, mode `pubsub`).

Rules of this module:

- A subscription listens on a connection of its own and publishes a heartbeat to itself. When it has heard nothing, not
  even itself, for three heartbeats, the connection is taken for half-open and opened anew: Redis gives no error for it.
- It is in force once it has heard its own heartbeat: a server that takes the subscription and no PUBLISH is of no use.
- Nothing is published twice: a failed PUBLISH raises, and the caller decides.
- The task groups in here stay in here: what the user of a subscription raises leaves it as it is.
"""

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskStatus
from redis.asyncio import Redis
from redis.exceptions import RedisError

from nexus.adapters.redis_client import translated
from nexus.adapters.redis_cluster import hearers
from nexus.adapters.redis_connections import RedisProtocol, taken_over
from nexus.adapters.redis_inbox import Inbox
from nexus.adapters.redis_multiplexed import packed
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Delivery, Work
from nexus.core.tasks import ungrouped

_log = structlog.get_logger(__name__)

_SILENT_BEATS: Final = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
# Deliveries that were read and not yet taken; beyond this the connection is not read, and Redis buffers.
_BUFFERED: Final = 1_024


class RedisPubSubBus:
    """`nexus.core.ports.Bus` on Redis pub/sub."""

    def __init__(
        self, client: Redis, *, prefix: str = "", heartbeat_s: float = 3.0, connect_s: float | None = None
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._heartbeat_s = heartbeat_s
        self._connect_s = connect_s

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Send once. Returns how many subscribers heard it."""
        del once  # what nobody kept must be sent each time
        with translated():
            return hearers(self._client, await self._client.publish(self._prefix + topic, payload))

    def subscribe(self, *topics: str) -> AbstractAsyncContextManager["RedisSubscription"]:
        """Listen to `topics` for as long as the context lasts.

        Waits for a Redis that cannot be reached: `connect_s` seconds, then BusUnavailableError; for ever without.
        """
        return _subscribed(RedisSubscription(self._client, self._prefix, topics, self._heartbeat_s), self._connect_s)

    def consume(
        self, work: Sequence[Work], news: Sequence[str] = ()
    ) -> AbstractAsyncContextManager["RedisSubscription"]:
        """Listen to all of it: pub/sub hands everything to everybody."""
        return self.subscribe(*dict.fromkeys([*(item.topic for item in work), *news]))

    def done(self, delivery: Delivery) -> None:
        """Do nothing: pub/sub has forgotten the delivery already."""


@asynccontextmanager
async def _subscribed(subscription: "RedisSubscription", connect_s: float | None) -> AsyncIterator["RedisSubscription"]:
    with ungrouped(), closing(subscription):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(subscription.beat)
            try:
                with anyio.fail_after(connect_s):
                    await tasks.start(subscription.listen)
            except TimeoutError:
                reason = f": {subscription.failure}" if subscription.failure else ""
                raise BusUnavailableError(f"no answer from Redis within {connect_s:g} s{reason}") from None
            try:
                yield subscription
            finally:
                tasks.cancel_scope.cancel()


class RedisSubscription:
    """Deliveries of some topics, over one connection after another.

    Attributes:
        failure: the kind of the last error on the way to Redis; `""` while there was none.
    """

    def __init__(self, client: Redis, prefix: str, topics: tuple[str, ...], heartbeat_s: float) -> None:
        self.reconnects = 0
        self.failure = ""
        self.backlogs: dict[str, int] = {}
        self._client = client
        self._heartbeat_s = heartbeat_s
        self._pulse = f"{prefix}nexus.heartbeat.{uuid.uuid4().hex}"
        self._topics = {f"{prefix}{topic}".encode(): topic for topic in topics}
        self._inbox = Inbox(_BUFFERED, self._read_on)
        self._line: _Line | None = None
        self._stopping = False
        self._listening = anyio.CancelScope()
        self._clock = asyncio.get_running_loop().time
        self._heard_at = self._clock()
        # Whether this connection has brought a heartbeat, and whether any has.
        self._in_force = False
        self._begun = False
        self._pause = _FIRST_PAUSE

    @property
    def silent_s(self) -> float:
        """Seconds since anything came, the heartbeat included; infinite until a new connection has brought one."""
        return self._quiet_s() if self._in_force else math.inf

    def close(self) -> None:
        """End iterating."""
        self._inbox.close()

    def offer_first(self, take: Callable[[Delivery], bool]) -> None:
        """Offer each delivery to `take` in the step in which it arrives, unless one from before it waits."""
        self._inbox.first = take

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self._inbox

    async def stop(self) -> None:
        """Take in nothing more. Iterating ends after what Redis had sent until then."""
        if self._stopping:
            return
        self._stopping = True
        if self._line is not None and self._line.confirmed:
            # Redis confirms in the order of its messages: what it sent before is read before the confirmation.
            self._line.write([packed("UNSUBSCRIBE")])
        else:
            # Not subscribed, so nothing is on its way.
            self._listening.cancel()

    async def listen(self, *, task_status: TaskStatus[None]) -> None:
        """Read, and connect again whenever the connection ends, until `stop`. Run in a task of its own."""
        with self._listening:
            while not self._stopping:
                # On a cluster, that of one of its nodes.
                pool: Any = self._client.pubsub().connection_pool
                try:
                    await self._hear(pool, task_status)
                except (RedisError, OSError, BusUnavailableError) as error:
                    self.failure = type(error).__name__
                    _log.warning("bus_disconnected", reason=self.failure)
                    self._in_force = False
                    await anyio.sleep(self._pause)
                    self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        self._inbox.end()

    async def beat(self) -> None:
        """Publish the heartbeat. Run in a task of its own."""
        while True:
            await anyio.sleep(self._heartbeat_s)
            try:
                with anyio.move_on_after(self._heartbeat_s):
                    await self._client.publish(self._pulse, b"")
            except (RedisError, OSError) as error:
                _log.debug("heartbeat_not_sent", reason=type(error).__name__)

    async def _beat_at_once(self) -> None:
        for last in (False, True):
            try:
                await self._client.publish(self._pulse, b"")
            except (RedisError, OSError) as error:
                # The first may have taken a connection that ended while nobody used it. On a second connection the
                # rest is left to the next beat: what comes over it is worth more than certainty.
                if last and not self._begun:
                    raise
                _log.debug("heartbeat_not_sent", reason=type(error).__name__)
            else:
                return

    async def _hear(self, pool: Any, task_status: TaskStatus[None]) -> None:
        """Listen on one connection, until `stop`."""
        line = _Line(self._heard)
        async with taken_over(pool, line):
            self._line, self._heard_at = line, self._clock()
            try:
                line.write([packed("SUBSCRIBE", *self._topics, self._pulse)])
                with anyio.fail_after(self._heartbeat_s * _SILENT_BEATS):
                    await self._until(line, lambda: line.confirmed > len(self._topics))
                await self._beat_at_once()
                self._heard_at = self._clock()
                await self._until(line, lambda: line.beaten or line.unsubscribed)
                if line.beaten:
                    self._come_into_force(task_status)
                await self._until(line, lambda: line.unsubscribed)
            finally:
                self._line = None

    async def _until(self, line: "_Line", happened: Callable[[], bool]) -> None:
        """Wait for what the connection is to bring.

        Raises:
            RedisError: it is lost, or another server is the master.
            BusUnavailableError: it is silent.
        """
        while not happened():
            line.news.clear()
            with anyio.move_on_after(self._heartbeat_s):
                await line.news.wait()
            if not line.is_to_master() or line.lost.done():
                raise line.lost.result()
            if not line.reading_paused and self._quiet_s() > self._heartbeat_s * _SILENT_BEATS:
                raise BusUnavailableError("silent for three heartbeats")

    def _come_into_force(self, task_status: TaskStatus[None]) -> None:
        self._in_force = True
        self._pause = _FIRST_PAUSE
        if self._begun:
            self.reconnects += 1
            _log.info("bus_reconnected", reconnects=self.reconnects)
        else:
            self._begun = True
            task_status.started()

    def _quiet_s(self) -> float:
        return self._clock() - self._heard_at

    def _heard(self, line: "_Line", channel: bytes, payload: bytes) -> None:
        """Hand a message on, unless it is the own heartbeat."""
        self._heard_at = self._clock()
        topic = self._topics.get(channel)
        if topic is None:
            line.beaten = True
            line.news.set()
        elif self._begun:
            if self._inbox.put(Delivery(topic, payload)):
                line.pause_reading()
        elif not self._inbox.full:
            # Nobody takes anything yet, and nothing was promised yet: what there is no room for is passed over.
            self._inbox.put(Delivery(topic, payload))

    def _read_on(self) -> None:
        self._heard_at = self._clock()
        if self._line is not None:
            self._line.resume_reading()


class _Line(RedisProtocol):
    """One connection of a subscription.

    Attributes:
        confirmed: how many of its channels it is subscribed to.
        beaten: it has brought the subscription's heartbeat.
        unsubscribed: it is subscribed to no channel any more.
        news: set when one of these has changed, or the connection is lost.
    """

    def __init__(self, heard: Callable[["_Line", bytes, bytes], None]) -> None:
        super().__init__()
        self.confirmed = 0
        self.beaten = False
        self.unsubscribed = False
        self.news = asyncio.Event()
        self._heard = heard

    def replied(self, reply: Any) -> None:
        """Take a message, or what Redis says to a subscription."""
        match reply:
            case [b"message", channel, payload]:
                if self.is_to_master():
                    self._heard(self, channel, payload)
                return
            case [b"subscribe", *_]:
                self.confirmed += 1
            case [b"unsubscribe", _, left]:
                self.unsubscribed = left == 0
            case Exception():
                self.end(reply)
            case _:
                return
        self.news.set()

    def writable_again(self) -> None:
        """Do nothing: the little that is written may wait."""

    def end(self, error: Exception) -> None:
        """Give the connection up, and tell."""
        super().end(error)
        self.news.set()
