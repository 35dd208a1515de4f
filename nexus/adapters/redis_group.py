"""One topic of a service's work, read through a consumer group (CONTRACT §1.5, mode `streams`).

Rules of this module:

- What is read and not yet `done` is in hand (`redis_charge`). No more is read than may be in hand, so the stream is the
  queue.
- Whatever nobody has held for a lease is taken over, by whoever looks first; everybody looks several times a lease.
- After an error of the connection entries may have been given to this consumer in a reply that was lost. They are
  pending and not known here, and are fetched before anything new is read. What is done and not yet acknowledged is
  known: it is neither fetched nor left to others.
- A group that has vanished (FLUSHALL) is made anew from the beginning of the stream: nothing in it may be passed over.
"""

import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from nexus.adapters.redis_charge import Charge, is_group_gone
from nexus.adapters.redis_cluster import ClusterRedis
from nexus.adapters.redis_entries import BLOCK_MS, delivery_of, entries_in, entries_of, pairs
from nexus.adapters.redis_group_scripts import FETCH, SHED
from nexus.adapters.redis_pipeline import Pipelined, PipelineLimits, pipelined
from nexus.core.ports import Delivery, Work

_log = structlog.get_logger(__name__)

_Argument = bytes | str | int

_READ_AT_ONCE: Final = 32
_MOST_SURPLUS: Final = 64
# In hand, and as much again of what is to be refused.
_MOST_BYTES: Final = 64 << 20
# For so large the entries of a topic are taken before any has been seen.
_LARGEST_EXPECTED: Final = 16 << 20
_LOOK_AGAIN_S: Final = 0.05
# Parts of a lease: after how long without a sign of life an entry is abandoned, and how often such are looked for.
# Together less than a lease, in which somebody else is at it then.
_ABANDONED, _LOOKED_FOR = 0.75, 0.2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Of a consumer group.

    Attributes:
        name: of the group, one for each service.
        consumer: of this process within the group, its own in each subscription.
        lease_ms: after how long without a sign of life of its consumer an entry is taken over.
        keep_ms: how long an entry that every group has done with stays in its stream.
    """

    name: str = "nexus"
    consumer: str = ""
    lease_ms: int = 2_000
    keep_ms: int = 600_000


class Listener(Protocol):
    """Whom a reader gives what it reads, and tells how it fares."""

    @property
    def stopping(self) -> anyio.Event:
        """Set when nothing more is to be taken in."""
        ...

    def heard(self, topic: str) -> None:
        """The work of a topic has been read; or there are signs of life for as much of it as may be in hand."""
        ...

    def failed(self, topic: str, error: Exception) -> None:
        """Redis has not done what it was asked to, or has not replied."""
        ...

    async def deliver(self, delivery: Delivery) -> None:
        """Something to do."""
        ...


class GroupReader:
    """A consumer of one topic. Use `run` in a task of its own, and `close` afterwards."""

    def __init__(self, client: Redis, prefix: str, work: Work, settings: GroupSettings, listener: Listener) -> None:
        self.topic = work.topic
        self._client = client
        self._prefix = prefix
        self._key = prefix + work.topic
        self._work = work
        self._names = (settings.name, settings.consumer)
        self._settings = settings
        self._listener = listener
        self._charge = Charge(client, self.topic, self._key, self._names, settings.lease_ms)
        # Where new entries are waited for; None on a cluster, where the client knows which node has them.
        self._line: Pipelined | None = None
        self._largest = _LARGEST_EXPECTED
        self._look_at = 0.0
        self._shed, self._fetch = client.register_script(SHED), client.register_script(FETCH)

    @property
    def in_hand(self) -> int:
        """How many entries are in hand."""
        return len(self._charge)

    def done(self, delivery: Delivery, *, acknowledged: bool = False) -> None:
        """Let go of an entry; it is acknowledged soon, unless it has been."""
        self._charge.done(delivery, acknowledged=acknowledged)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Read, take over, hold and acknowledge. Waits for Redis before it has started."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._read_on)
            task_status.started()
            tasks.start_soon(self._charge.hold_on, self._held)
            tasks.start_soon(self._charge.acknowledge_on)

    async def close(self) -> None:
        """Acknowledge what is done, and give the rest back, to be taken over at once."""
        await self._charge.give_back()

    async def _read_on(self, *, task_status: TaskStatus[None]) -> None:
        """Read until `stop`. One thing after the other, so that what one reply may bring is known before the next."""
        pause, connected, started = _FIRST_PAUSE, False, False
        async with _reading(self._client) as self._line, anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_stopping, tasks.cancel_scope)
            while True:
                try:
                    if not connected:
                        await self._make_group()
                        await self._take_pending(0)
                        connected = True
                        if not started:
                            started = True
                            task_status.started()
                    await self._look_for_abandoned()
                    await self._read()
                    pause = _FIRST_PAUSE
                except (RedisError, OSError) as error:
                    connected = False
                    if is_group_gone(error):
                        _log.warning("group_vanished", topic=self.topic)
                    else:
                        self._listener.failed(self.topic, error)
                    await anyio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)

    async def _cancel_when_stopping(self, scope: anyio.CancelScope) -> None:
        await self._listener.stopping.wait()
        scope.cancel()

    async def _make_group(self) -> None:
        try:
            await self._client.xgroup_create(self._key, self._settings.name, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _look_for_abandoned(self) -> None:
        """Take over what has not been held for a lease, when it is time. Not at the same time as other replicas."""
        if anyio.current_time() < self._look_at:
            return
        if await self._take_pending(int(self._settings.lease_ms * _ABANDONED)):
            soon = self._settings.lease_ms / 1_000 * _LOOKED_FOR * random.uniform(0.7, 1)  # noqa: S311  # no secret
            self._look_at = anyio.current_time() + soon

    async def _take_pending(self, idle_ms: int) -> bool:
        """Take what nobody has held for `idle_ms`; with 0, what is this consumer's without its knowing.

        False when there was no room for all of it.
        """
        while (room := self._room()) > 0:
            arguments: list[_Argument] = [*self._names, room, idle_ms, *self._charge.entries]
            fetched = await self._fetch(keys=[self._key], args=arguments)
            for entry, _, deliveries in fetched if idle_ms else ():
                _log.info("work_taken_over", topic=self.topic, entry=entry.decode(), deliveries=deliveries)
            await self._take(
                delivery_of(self.topic, entry, pairs(fields), shared=True, deliveries=deliveries)
                for entry, fields, deliveries in fetched
            )
            if len(fetched) < room:
                return True
        return False

    async def _read(self) -> None:
        """One read, as much as there is room for; where there is none, wait for it, or take what is too much."""
        room = self._room()
        if room > 0:
            left_ms = int(1_000 * (self._look_at - anyio.current_time()))
            block_ms = max(1, min(BLOCK_MS, left_ms))
            found = await self._new_entries(room, block_ms)
            self._listener.heard(self.topic)
            await self._take(delivery_of(self.topic, entry, fields, shared=True) for entry, fields in found)
            return
        await self._charge.wait_for_less(_LOOK_AGAIN_S if self._work.sheds else BLOCK_MS / 1_000)
        if self._work.sheds and self._room() <= 0:
            await self._take_surplus()

    async def _new_entries(self, most: int, block_ms: int) -> list[tuple[bytes, Any]]:
        """What nobody has been given yet, as soon as there is any, or nothing after `block_ms`."""
        if self._line is None:
            found = await self._client.xreadgroup(*self._names, {self._key: ">"}, count=most, block=block_ms)
            return entries_of(found)
        limits = ("COUNT", most, "BLOCK", block_ms)
        reply = await self._line.execute("XREADGROUP", "GROUP", *self._names, *limits, "STREAMS", self._key, ">")
        return entries_in(reply)

    async def _take_surplus(self) -> None:
        free = min(_MOST_SURPLUS - self._charge.surplus, _READ_AT_ONCE, self._room_for_bytes(2 * _MOST_BYTES))
        if free < 1:
            return
        arguments: list[_Argument] = [*self._names, self._work.most, free]
        found = await self._shed(keys=[self._key], args=arguments)
        await self._take(
            delivery_of(self.topic, entry, pairs(fields), shared=True, surplus=True)
            for _, entries in found or ()
            for entry, fields in entries
        )

    def _held(self) -> None:
        if self._room() <= 0:
            # Nothing is read, and need not be.
            self._listener.heard(self.topic)

    def _room(self) -> int:
        """How many entries may be read now."""
        free = self._work.most - len(self._charge) + self._charge.surplus
        return min(free, _READ_AT_ONCE, self._room_for_bytes(_MOST_BYTES))

    def _room_for_bytes(self, most: int) -> int:
        """How many entries as large as the largest of late there is room for; one, as long as there is any."""
        left = most - self._charge.bytes
        return max(left // self._largest, 1) if left >= 0 else 0

    async def _take(self, read: Iterable[Delivery]) -> None:
        """Take charge of what was read, and pass it on."""
        deliveries = list(read)
        if deliveries:
            self._largest = max(self._largest // 2, *(len(delivery.payload) for delivery in deliveries), 1)
        for delivery in deliveries:
            # When nobody will read it here it is not held, so another replica has it soon.
            if not self._listener.stopping.is_set() and self._charge.take(delivery):
                await self._listener.deliver(delivery)


@asynccontextmanager
async def _reading(client: Redis) -> AsyncIterator[Pipelined | None]:
    """A connection for one reader alone: what waits on it keeps nobody waiting. Its end ends a read that is given up.

    None on a cluster.
    """
    if isinstance(client, ClusterRedis):
        yield None
        return
    async with pipelined(client, PipelineLimits(most_connections=1)) as line:
        yield line
