"""One topic of a service's work, read through a consumer group (CONTRACT §1.5, mode `streams`).

Rules of this module:

- What is read and not yet `done` is in hand. No more is read than may be in hand, so the stream is the queue.
- What is in hand is held: while this process lives, nobody takes it over, however long it takes. Whatever nobody has
  held for a lease is taken over, by whoever looks first; everybody looks twice a lease.
- After an error of the connection entries may have been given to this consumer in a reply that was lost. They are
  pending and not known here, and are fetched before anything new is read. What is done and not yet acknowledged is
  known: it is neither fetched nor left to others.
- A group that has vanished (FLUSHALL) is made anew from the beginning of the stream: nothing in it may be passed over.
- Nothing that a group has not acknowledged or not read is ever trimmed, whosever group it is.
"""

import random
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from nexus.adapters.redis_entries import delivery_of, entries_of, pairs
from nexus.adapters.redis_group_scripts import FETCH, GIVE_BACK, HOLD, SHED, TRIM
from nexus.core.ports import Delivery, Work

_log = structlog.get_logger(__name__)

_Argument = bytes | str | int

_BLOCK_MS: Final = 1_000
_READ_AT_ONCE: Final = 32
_MOST_SURPLUS: Final = 64
_MOST_BYTES: Final = 64 << 20
_LOOK_AGAIN_S: Final = 0.05
# Parts of a lease: how often there is a sign of life, after how long without one an entry is abandoned, and how often
# such are looked for. The last two together are less than a lease, in which somebody else is at it then.
_HELD, _ABANDONED, _LOOKED_FOR = 0.25, 0.75, 0.2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
# A consumer with nothing pending that has not been heard of for so long is gone.
_GONE_MS: Final = 600_000


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

    def heard(self) -> None:
        """Redis has replied."""
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
        self._in_hand: dict[str, Delivery] = {}
        self._bytes_in_hand = 0
        self._surplus_in_hand = 0
        # In order; a dictionary because entries are looked for in it.
        self._to_acknowledge: dict[str, None] = {}
        self._look_at = 0.0
        self._freed = anyio.Event()
        self._acknowledgeable = anyio.Event()
        self._shed, self._fetch, self._hold, self._give_back, self._trim = map(
            client.register_script, (SHED, FETCH, HOLD, GIVE_BACK, TRIM)
        )

    @property
    def in_hand(self) -> int:
        """How many entries are in hand."""
        return len(self._in_hand)

    def done(self, delivery: Delivery, *, acknowledged: bool = False) -> None:
        """Let go of an entry; it is acknowledged soon, unless it has been."""
        if self._in_hand.pop(delivery.entry, None) is None:
            return
        self._bytes_in_hand -= len(delivery.payload)
        self._surplus_in_hand -= delivery.surplus
        self._freed.set()
        if not acknowledged:
            self._to_acknowledge[delivery.entry] = None
            self._acknowledgeable.set()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Read, take over, hold and acknowledge. Waits for Redis before it has started."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._read_on)
            task_status.started()
            tasks.start_soon(self._hold_on)
            tasks.start_soon(self._acknowledge)

    async def close(self) -> None:
        """Acknowledge what is done, and give the rest back, to be taken over at once."""
        try:
            await self._acknowledge_all()
            arguments: list[_Argument] = [*self._names, self._settings.lease_ms * 1_000]
            left = await self._give_back(keys=[self._key], args=arguments)
        except (RedisError, OSError) as error:
            _log.warning("work_not_given_back", topic=self.topic, reason=type(error).__name__)
            return
        if left:
            _log.info("work_given_back", topic=self.topic, pending=left)

    async def trim(self, topic: str) -> None:
        """Shorten the stream of a topic by what is old and done with."""
        arguments: list[_Argument] = [self._settings.name, self._settings.keep_ms, _GONE_MS]
        await self._trim(keys=[self._prefix + topic], args=arguments)

    async def backlog(self) -> int:
        """How many entries the group has not been given yet."""
        for group in await self._client.xinfo_groups(self._key):
            if group["name"].decode() == self._settings.name:
                return int(group["lag"] or 0)
        return 0

    async def _read_on(self, *, task_status: TaskStatus[None]) -> None:
        """Read until `stop`. One thing after the other, so that what one reply may bring is known before the next."""
        pause, connected, started = _FIRST_PAUSE, False, False
        async with anyio.create_task_group() as tasks:
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
                    if _is_group_gone(error):
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
            arguments: list[_Argument] = [*self._names, room, idle_ms, *self._in_hand, *self._to_acknowledge]
            fetched = await self._fetch(keys=[self._key], args=arguments)
            self._listener.heard()
            for entry, fields, deliveries in fetched:
                if idle_ms:
                    _log.info("work_taken_over", topic=self.topic, entry=entry.decode(), deliveries=deliveries)
                await self._take(delivery_of(self.topic, entry, pairs(fields), shared=True, deliveries=deliveries))
            if len(fetched) < room:
                return True
        return False

    async def _read(self) -> None:
        """One read, as much as there is room for; where there is none, wait for it, or take what is too much."""
        room = self._room()
        if room > 0:
            left_ms = int(1_000 * (self._look_at - anyio.current_time()))
            block_ms = max(1, min(_BLOCK_MS, left_ms))
            found = await self._client.xreadgroup(*self._names, {self._key: ">"}, count=room, block=block_ms)
            self._listener.heard()
            for entry, fields in entries_of(found):
                await self._take(delivery_of(self.topic, entry, fields, shared=True))
            return
        self._freed = anyio.Event()
        with anyio.move_on_after(_LOOK_AGAIN_S if self._work.sheds else _BLOCK_MS / 1_000):
            await self._freed.wait()
        if self._work.sheds and self._room() <= 0:
            await self._take_surplus()

    async def _take_surplus(self) -> None:
        free = _MOST_SURPLUS - self._surplus_in_hand
        if free < 1:
            return
        arguments: list[_Argument] = [*self._names, self._work.most, free]
        found = await self._shed(keys=[self._key], args=arguments)
        self._listener.heard()
        for _, entries in found or ():
            for entry, fields in entries:
                await self._take(delivery_of(self.topic, entry, pairs(fields), shared=True, surplus=True))

    def _room(self) -> int:
        """How many entries may be read now."""
        if self._bytes_in_hand > _MOST_BYTES:
            return 0
        return min(self._work.most - len(self._in_hand) + self._surplus_in_hand, _READ_AT_ONCE)

    async def _take(self, delivery: Delivery) -> None:
        if delivery.entry in self._in_hand or delivery.entry in self._to_acknowledge:
            return
        if self._listener.stopping.is_set():
            # Nobody will read it here. It is not held, so another replica has it soon.
            return
        self._in_hand[delivery.entry] = delivery
        self._bytes_in_hand += len(delivery.payload)
        self._surplus_in_hand += delivery.surplus
        await self._listener.deliver(delivery)

    async def _hold_on(self) -> None:
        """Give signs of life for what is in hand."""
        while True:
            await anyio.sleep(self._settings.lease_ms / 1_000 * _HELD)
            if not (self._in_hand or self._to_acknowledge):
                continue
            try:
                arguments: list[_Argument] = [*self._names, *self._in_hand, *self._to_acknowledge]
                await self._hold(keys=[self._key], args=arguments)
                self._listener.heard()
            except (RedisError, OSError) as error:
                if not _is_group_gone(error):
                    _log.warning("lease_not_renewed", topic=self.topic, reason=type(error).__name__)

    async def _acknowledge(self) -> None:
        """Acknowledge what is done, many at once where many are."""
        while True:
            await self._acknowledgeable.wait()
            self._acknowledgeable = anyio.Event()
            try:
                await self._acknowledge_all()
            except (RedisError, OSError) as error:
                _log.debug("not_acknowledged", topic=self.topic, reason=type(error).__name__)
                await anyio.sleep(_LONGEST_PAUSE)
                self._acknowledgeable.set()

    async def _acknowledge_all(self) -> None:
        while self._to_acknowledge:
            entries = list(self._to_acknowledge)
            await self._client.xack(self._key, self._settings.name, *entries)
            for entry in entries:
                self._to_acknowledge.pop(entry, None)


def _is_group_gone(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, ResponseError) and any(
        sign in text for sign in ("NOGROUP", "no longer exists", "no such key", "No such key")
    )
