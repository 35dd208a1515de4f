"""The bus on Redis pub/sub (CONTRACT §1.5, mode `pubsub`).

Rules of this module:

- A subscription listens on a connection of its own and publishes a heartbeat to itself. When it has heard nothing, not
  even itself, for three heartbeats, the connection is taken for half-open and opened anew: Redis gives no error for it.
- Nothing is published twice: a failed PUBLISH raises, and the caller decides.
- The task groups in here stay in here: what the user of a subscription raises leaves it as it is.
"""

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskStatus
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from nexus.adapters.redis_client import translated
from nexus.adapters.redis_cluster import hearers
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Delivery, Work
from nexus.core.tasks import at_once, ungrouped

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
            try:
                with anyio.fail_after(connect_s):
                    await tasks.start(subscription.listen)
            except TimeoutError:
                raise BusUnavailableError(f"no answer from Redis within {connect_s:g} s") from None
            tasks.start_soon(subscription.beat)
            try:
                yield subscription
            finally:
                tasks.cancel_scope.cancel()


class RedisSubscription:
    """Deliveries of some topics, over one connection after another."""

    def __init__(self, client: Redis, prefix: str, topics: tuple[str, ...], heartbeat_s: float) -> None:
        self.reconnects = 0
        self.backlogs: dict[str, int] = {}
        self._client = client
        self._prefix = prefix
        self._heartbeat_s = heartbeat_s
        self._pulse = f"{prefix}nexus.heartbeat.{uuid.uuid4().hex}"
        self._channels = [*(prefix + topic for topic in topics), self._pulse]
        self._send, self._receive = anyio.create_memory_object_stream[Delivery](_BUFFERED)
        self._pubsub: PubSub | None = None
        self._using_pubsub = anyio.Lock()
        self._stopping = False
        self._listening = anyio.CancelScope()
        self._heard_at = anyio.current_time()

    @property
    def silent_s(self) -> float:
        """Seconds since anything came over the connection, the heartbeat included."""
        return anyio.current_time() - self._heard_at

    def close(self) -> None:
        """Give both ends of the buffer back."""
        self._send.close()
        self._receive.close()

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        # Closed: its context has ended.
        with suppress(anyio.ClosedResourceError):
            async for delivery in self._receive:
                yield delivery
                # Receiving lets everybody else have a turn. Under load that would be one delivery in each round, and
                # the rest would grow old in the socket.
                for waiting in at_once(self._receive):
                    yield waiting

    async def stop(self) -> None:
        """Take in nothing more. Iterating ends after what Redis had sent until then."""
        if self._stopping:
            return
        self._stopping = True
        async with self._using_pubsub:
            if self._pubsub is not None:
                with suppress(RedisError, OSError):
                    # Redis confirms in the order of its messages: what it sent before is read before the confirmation.
                    await self._pubsub.unsubscribe()
                    return
        # Not connected, so nothing is on its way.
        self._listening.cancel()

    async def listen(self, *, task_status: TaskStatus[None]) -> None:
        """Read, and connect again whenever the connection ends, until `stop`. Run in a task of its own."""
        pause = _FIRST_PAUSE
        connected_before = False
        with self._send, self._listening:
            while not self._stopping:
                try:
                    async with self._client.pubsub() as pubsub:
                        await pubsub.subscribe(*self._channels)
                        await self._confirmed(pubsub)
                        pause = _FIRST_PAUSE
                        if connected_before:
                            self.reconnects += 1
                            _log.info("bus_reconnected", reconnects=self.reconnects)
                        else:
                            task_status.started()
                            connected_before = True
                        await self._read(pubsub)
                except (RedisError, OSError, BusUnavailableError) as error:
                    _log.warning("bus_disconnected", reason=type(error).__name__)
                    await anyio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)

    async def beat(self) -> None:
        """Publish the heartbeat. Run in a task of its own."""
        while True:
            await anyio.sleep(self._heartbeat_s)
            try:
                with anyio.move_on_after(self._heartbeat_s):
                    await self._client.publish(self._pulse, b"")
            except (RedisError, OSError) as error:
                _log.debug("heartbeat_not_sent", reason=type(error).__name__)

    async def _confirmed(self, pubsub: PubSub) -> None:
        missing = set(self._channels)
        with anyio.fail_after(self._heartbeat_s * _SILENT_BEATS):
            while missing:
                message = await pubsub.get_message(timeout=self._heartbeat_s)
                if message and message["type"] == "subscribe":
                    missing.discard(_text(message["channel"]))
                elif message:
                    await self._deliver(message)

    async def _read(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub
        self._heard_at = anyio.current_time()
        try:
            while pubsub.subscribed:
                message = await pubsub.get_message(timeout=self._heartbeat_s)
                if message is not None:
                    await self._deliver(message)
                    self._heard_at = anyio.current_time()
                elif self.silent_s > self._heartbeat_s * _SILENT_BEATS:
                    raise BusUnavailableError("silent for three heartbeats")
        finally:
            # redis-py fails with an AttributeError where one task closes what another sends on.
            with anyio.CancelScope(shield=True):
                async with self._using_pubsub:
                    self._pubsub = None

    async def _deliver(self, message: dict[str, Any]) -> None:
        channel = _text(message["channel"])
        if message["type"] == "message" and channel != self._pulse:
            await self._send.send(Delivery(channel.removeprefix(self._prefix), message["data"]))


def _text(channel: bytes | str) -> str:
    return channel.decode() if isinstance(channel, bytes) else channel
