"""The bus on Redis pub/sub (contract §1.5, mode `pubsub`).

- A subscription listens on a connection of its own and publishes a heartbeat to itself. When nothing has come for three
  heartbeats, not even its own, the connection counts as half-open and is opened anew: Redis gives no error for it.
- It is in force once its own heartbeat has come: a server that takes the subscription and no PUBLISH is of no use.
- Nothing is published twice: a failed PUBLISH raises, and the caller decides.
"""

import math
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskStatus
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from nexus.adapters.redis.client import FAULTS, BufferedSubscription, kind_of, payload_of, subscriber_count, translated
from nexus.core.concurrency import Pauses, ungrouped
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Delivery, Work

_log = structlog.get_logger(__name__)

_SILENT_BEATS: Final = 3
_LONGEST_PAUSE_S: Final = 1.0
# Deliveries read and not yet taken; beyond this the connection is not read, and Redis buffers.
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
        """Send once. Returns how many subscribers received it."""
        del once  # pub/sub keeps nothing that a second message could be compared with
        with translated():
            return subscriber_count(self._client, await self._client.publish(self._prefix + topic, payload))

    def subscribe(self, *topics: str) -> AbstractAsyncContextManager["RedisSubscription"]:
        """Listen to `topics` for as long as the context lasts.

        Waits for a Redis that cannot be reached: `connect_s` seconds, then BusUnavailableError; for ever without.
        """
        return _subscribed(RedisSubscription(self._client, self._prefix, topics, self._heartbeat_s), self._connect_s)

    def consume(
        self, work: Sequence[Work], news: Sequence[str] = ()
    ) -> AbstractAsyncContextManager["RedisSubscription"]:
        """Listen to all topics: pub/sub hands everything to every subscriber."""
        return self.subscribe(*dict.fromkeys([*(item.topic for item in work), *news]))

    async def is_read(self, topic: str) -> bool | None:  # noqa: ARG002  # the port's signature
        """None: `publish` has said who received it."""
        return None

    def set_aside(self, delivery: Delivery, *, aside: bool) -> None:
        """Do nothing: pub/sub hands out everything."""

    def done(self, delivery: Delivery) -> None:
        """Do nothing: pub/sub has forgotten the delivery already."""


@asynccontextmanager
async def _subscribed(subscription: "RedisSubscription", connect_s: float | None) -> AsyncIterator["RedisSubscription"]:
    with ungrouped(), closing(subscription):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(subscription.beat)
            with subscription.connecting(connect_s):
                await tasks.start(subscription.listen)
            try:
                yield subscription
            finally:
                tasks.cancel_scope.cancel()


class RedisSubscription(BufferedSubscription):
    """Deliveries of some topics, over one connection after another."""

    def __init__(self, client: Redis, prefix: str, topics: tuple[str, ...], heartbeat_s: float) -> None:
        super().__init__(_BUFFERED)
        self._client = client
        self._prefix = prefix
        self._heartbeat_s = heartbeat_s
        self._heartbeat = f"{prefix}nexus.heartbeat.{uuid.uuid4().hex}"
        self._channels = [*(prefix + topic for topic in topics), self._heartbeat]
        self._pubsub: PubSub | None = None
        self._using_pubsub = anyio.Lock()
        self._stopping = False
        self._listening = anyio.CancelScope()
        self._received_at = anyio.current_time()
        # Whether this connection has brought a heartbeat, and whether any has.
        self._in_force = False
        self._begun = False
        self._pauses = Pauses(longest_s=_LONGEST_PAUSE_S)

    @property
    def silent_s(self) -> float:
        """Seconds since anything came, heartbeats included; infinite until a new connection has brought one."""
        return self._quiet_s() if self._in_force else math.inf

    async def stop(self) -> None:
        """Take in nothing more. Iterating ends after what Redis had sent until then."""
        if self._stopping:
            return
        self._stopping = True
        async with self._using_pubsub:
            if self._pubsub is not None:
                with suppress(*FAULTS):
                    # Redis confirms in the order of its messages: what it sent before is read before the confirmation.
                    await self._pubsub.unsubscribe()
                    return
        # Not connected, so nothing is on its way.
        self._listening.cancel()

    async def listen(self, *, task_status: TaskStatus[None]) -> None:
        """Read, and connect again whenever the connection ends, until `stop`. Run in a task of its own."""
        with self._send, self._listening:
            while not self._stopping:
                try:
                    async with self._client.pubsub() as pubsub:
                        await pubsub.subscribe(*self._channels)
                        await self._wait_until_subscribed(pubsub)
                        await self._beat_at_once()
                        await self._read(pubsub, task_status)
                except (*FAULTS, BusUnavailableError) as error:
                    self.failure = kind_of(error)
                    _log.warning("bus_disconnected", reason=self.failure)
                    self._in_force = False
                    await self._pauses.wait()

    async def beat(self) -> None:
        """Publish the heartbeat. Run in a task of its own."""
        while True:
            await anyio.sleep(self._heartbeat_s)
            try:
                with anyio.move_on_after(self._heartbeat_s):
                    await self._client.publish(self._heartbeat, b"")
            except FAULTS as error:
                _log.debug("heartbeat_not_sent", reason=kind_of(error))

    async def _beat_at_once(self) -> None:
        for last in (False, True):
            try:
                await self._client.publish(self._heartbeat, b"")
            except FAULTS as error:
                # The first may have taken a pooled connection that had ended while idle. On a later connection the rest
                # is left to the next beat: what comes over it is worth more than certainty.
                if last and not self._begun:
                    raise
                _log.debug("heartbeat_not_sent", reason=kind_of(error))
            else:
                return

    async def _wait_until_subscribed(self, pubsub: PubSub) -> None:
        missing = set(self._channels)
        with anyio.fail_after(self._heartbeat_s * _SILENT_BEATS):
            while missing:
                message = await pubsub.get_message(timeout=self._heartbeat_s)
                if message and message["type"] == "subscribe":
                    missing.discard(message["channel"].decode())
                elif message:
                    await self._deliver(message)

    async def _read(self, pubsub: PubSub, task_status: TaskStatus[None]) -> None:
        self._pubsub = pubsub
        self._received_at = anyio.current_time()
        try:
            while pubsub.subscribed:
                message = await pubsub.get_message(timeout=self._heartbeat_s)
                if message is not None:
                    is_heartbeat = await self._deliver(message)
                    self._received_at = anyio.current_time()
                    if is_heartbeat and not self._in_force:
                        self._come_into_force(task_status)
                elif self._quiet_s() > self._heartbeat_s * _SILENT_BEATS:
                    raise BusUnavailableError("silent for three heartbeats")
        finally:
            # redis-py fails with an AttributeError where one task closes a pubsub that another sends on.
            with anyio.CancelScope(shield=True):
                async with self._using_pubsub:
                    self._pubsub = None

    def _come_into_force(self, task_status: TaskStatus[None]) -> None:
        self._in_force = True
        self._pauses.end()
        if self._begun:
            self.reconnects += 1
            _log.info("bus_reconnected", reconnects=self.reconnects)
        else:
            self._begun = True
            task_status.started()

    def _quiet_s(self) -> float:
        return anyio.current_time() - self._received_at

    async def _deliver(self, message: dict[str, Any]) -> bool:
        """Hand a message on. Returns whether it is the own heartbeat instead."""
        if message["type"] != "message":
            return False
        channel = message["channel"].decode()
        if channel == self._heartbeat:
            return True
        delivery = Delivery(channel.removeprefix(self._prefix), payload_of(message["data"]))
        if self._begun:
            await self._send.send(delivery)
        else:
            # Nothing is iterated over yet, and nothing was promised: what there is no room for is dropped.
            with suppress(anyio.WouldBlock):
                self._send.send_nowait(delivery)
        return False
