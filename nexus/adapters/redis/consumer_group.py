"""One topic of a service's work, read through a consumer group (contract §1.5, mode `streams`).

- What is read and not yet `done` is in hand, and no more is read than may be in hand. What is set aside keeps no
  entry behind it from being read.
- Leases of what is in hand, or done and not acknowledged yet, are renewed. What is left at the end is given back.
- Entries that no consumer has renewed for a lease are taken over by the first that looks.
- After an error of the connection, entries may be pending here and unknown, in a reply that was lost: they are
  fetched before anything new is read.
- A group that has vanished (FLUSHALL) is made anew from the beginning of the stream.
"""

import random
from collections.abc import Callable, Iterable
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from nexus.adapters.redis.client import FAULTS, kind_of
from nexus.adapters.redis.scripts import GROUP, GROUP_FETCH, GROUP_GIVE_BACK, GROUP_RENEW, GROUP_SHED, Script
from nexus.adapters.redis.stream_subscription import (
    BLOCK_MS,
    LONGEST_PAUSE_S,
    StreamSubscription,
    delivery_of,
    entries_of,
)
from nexus.core.concurrency import Pauses
from nexus.core.ports import Delivery, Work

_log = structlog.get_logger(__name__)

_READ_AT_ONCE: Final = 32
_MOST_SURPLUS: Final = 64
# In hand, and as much again of surplus.
_MOST_BYTES: Final = 64 << 20
# The size of a topic's entries that is assumed before any has been read.
_LARGEST_EXPECTED: Final = 16 << 20
_LOOK_AGAIN_S: Final = 0.05
# Parts of a lease: after how long without renewal an entry is abandoned, and how often abandoned entries are looked
# for. Together less than a lease, after which another consumer has it then.
_ABANDONED, _LOOKED_FOR = 0.75, 0.2
# The part of a lease after which it is renewed, and after how long at the latest, however long the lease is.
_RENEWED, _RENEWED_S = 0.25, 1.0
# A script keeps all other clients waiting.
_RENEWED_AT_ONCE: Final = 500
_AFTER_AN_ERROR_S: Final = 1.0


class GroupReader:
    """A consumer of one topic. Use `run` in a task of its own, and give back what is `in_hand` afterwards.

    The `consumer` is of this process within the group, another one in each subscription. After `lease_ms` without
    renewal by its consumer an entry is taken over.
    """

    def __init__(  # noqa: PLR0917  # what it reads, as which consumer, and for which subscription
        self, client: Redis, prefix: str, work: Work, consumer: str, lease_ms: int, subscription: StreamSubscription
    ) -> None:
        self.topic = work.topic
        self._client = client
        self._key = prefix + work.topic
        self._work = work
        self._names = (GROUP, consumer)
        self._lease_ms = lease_ms
        self._subscription = subscription
        self.in_hand = EntriesInHand(client, self.topic, self._key, self._names, lease_ms)
        self._largest = _LARGEST_EXPECTED
        self._look_at = 0.0
        self._shed, self._fetch = Script(client, GROUP_SHED), Script(client, GROUP_FETCH)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Read, take over, renew and acknowledge. Waits for Redis before it has started."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._read_until_stopped)
            task_status.started()
            tasks.start_soon(self.in_hand.keep_renewing, self._renewed)
            tasks.start_soon(self.in_hand.keep_acknowledging)

    async def _read_until_stopped(self, *, task_status: TaskStatus[None]) -> None:
        """One read after the other, so that what one reply brings is known before the next."""
        pauses, connected, started = Pauses(longest_s=LONGEST_PAUSE_S), False, False
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
                    pauses.end()
                except FAULTS as error:
                    connected = False
                    if is_group_gone(error):
                        _log.warning("group_vanished", topic=self.topic)
                    else:
                        self._subscription.failed(self.topic, error)
                    await pauses.wait()

    async def _cancel_when_stopping(self, scope: anyio.CancelScope) -> None:
        await self._subscription.stopping.wait()
        scope.cancel()

    async def _make_group(self) -> None:
        try:
            await self._client.xgroup_create(self._key, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _look_for_abandoned(self) -> None:
        """Take over what has not been renewed for a lease, when it is time. Not at the same time as other replicas."""
        if anyio.current_time() < self._look_at:
            return
        if await self._take_pending(int(self._lease_ms * _ABANDONED)):
            soon = self._lease_ms / 1_000 * _LOOKED_FOR * random.uniform(0.7, 1)  # noqa: S311  # no secret
            self._look_at = anyio.current_time() + soon

    async def _take_pending(self, idle_ms: int) -> bool:
        """Take entries that were not renewed for `idle_ms`; with 0, this consumer's own that it does not know of.

        False when there was no room for all of it.
        """
        while (room := self._room()) > 0:
            fetched = await self._fetch([self._key], [*self._names, room, idle_ms, *self.in_hand.entries])
            for entry, _, deliveries in fetched if idle_ms else ():
                _log.info("work_taken_over", topic=self.topic, entry=entry.decode(), deliveries=deliveries)
            await self._take(
                delivery_of(self.topic, entry, _fields(pairs), shared=True, deliveries=deliveries)
                for entry, pairs, deliveries in fetched
            )
            if len(fetched) < room:
                return True
        return False

    async def _read(self) -> None:
        """One read, as much as there is room for; without room, wait for it, or take what is to be refused."""
        room = self._room()
        if room > 0:
            left_ms = int(1_000 * (self._look_at - anyio.current_time()))
            block_ms = max(1, min(BLOCK_MS, left_ms))
            found = await self._client.xreadgroup(*self._names, {self._key: ">"}, count=room, block=block_ms)
            self._subscription.replied(self.topic)
            await self._take(delivery_of(self.topic, entry, fields, shared=True) for entry, fields in entries_of(found))
            return
        await self.in_hand.wait_for_less(_LOOK_AGAIN_S if self._work.sheds else BLOCK_MS / 1_000)
        if self._work.sheds and self._room() <= 0:
            await self._take_surplus()

    async def _take_surplus(self) -> None:
        free = min(_MOST_SURPLUS - len(self.in_hand.aside), _READ_AT_ONCE, self._room_for_bytes(2 * _MOST_BYTES))
        if free < 1:
            return
        found = await self._shed([self._key], [*self._names, self._work.most, free])
        await self._take(
            delivery_of(self.topic, entry, _fields(pairs), shared=True, surplus=True)
            for _, entries in found or ()
            for entry, pairs in entries
        )

    def _renewed(self) -> None:
        if self._room() <= 0:
            # Nothing is read, and need not be.
            self._subscription.replied(self.topic)

    def _room(self) -> int:
        """How many entries may be read now."""
        aside = len(self.in_hand.aside)
        free = self._work.most - len(self.in_hand) + aside
        return min(free, max(self._work.aside, _MOST_SURPLUS) - aside, _READ_AT_ONCE, self._room_for_bytes(_MOST_BYTES))

    def _room_for_bytes(self, most: int) -> int:
        """How many entries as large as the largest of late there is room for; one, as long as there is any."""
        left = most - self.in_hand.bytes
        return max(left // self._largest, 1) if left >= 0 else 0

    async def _take(self, read: Iterable[Delivery]) -> None:
        deliveries = list(read)
        if deliveries:
            self._largest = max(self._largest // 2, *(len(delivery.payload) for delivery in deliveries), 1)
        for delivery in deliveries:
            if not self._subscription.stopping.is_set() and self.in_hand.take(delivery):
                delivered = False
                try:
                    delivered = await self._subscription.deliver(delivery)
                finally:
                    if not delivered:
                        # Once stopping, it is not renewed, so another replica has it soon.
                        self.in_hand.done(delivery, acknowledged=True)


class EntriesInHand:
    """The entries of one stream that were handed to one consumer and are not done."""

    def __init__(self, client: Redis, topic: str, key: str, names: tuple[str, str], lease_ms: int) -> None:
        self.bytes = 0  # of the payloads
        self.aside: set[str] = set()  # entries that are to be refused, or wait for their owner's turn
        self._client = client
        self._topic = topic
        self._key = key
        self._names = names
        self._lease_ms = lease_ms
        self._in_hand: dict[str, Delivery] = {}
        # In order; a dictionary because entries are looked up in it.
        self._to_acknowledge: dict[str, None] = {}
        self._freed = anyio.Event()
        self._acknowledgeable = anyio.Event()
        self._renew = Script(client, GROUP_RENEW)
        self._give_back = Script(client, GROUP_GIVE_BACK)

    def __len__(self) -> int:
        """How many are in hand."""
        return len(self._in_hand)

    @property
    def entries(self) -> list[str]:
        """What is in hand, and what is done and not acknowledged."""
        return [*self._in_hand, *self._to_acknowledge]

    def take(self, delivery: Delivery) -> bool:
        """Take a delivery in hand. False when it is known already."""
        if delivery.entry in self._in_hand or delivery.entry in self._to_acknowledge:
            return False
        self._in_hand[delivery.entry] = delivery
        self.bytes += len(delivery.payload)
        if delivery.surplus:
            self.aside.add(delivery.entry)
        return True

    def set_aside(self, delivery: Delivery, *, aside: bool) -> None:
        """Let an entry wait without its place, or give it one again."""
        if aside and delivery.entry in self._in_hand:
            self.aside.add(delivery.entry)
            self._freed.set()
        elif not aside:
            self.aside.discard(delivery.entry)

    def done(self, delivery: Delivery, *, acknowledged: bool = False) -> None:
        """Let go of an entry; it is acknowledged soon, unless it has been."""
        if self._in_hand.pop(delivery.entry, None) is None:
            return
        self.bytes -= len(delivery.payload)
        self.aside.discard(delivery.entry)
        self._freed.set()
        if not acknowledged:
            self._to_acknowledge[delivery.entry] = None
            self._acknowledgeable.set()

    async def wait_for_less(self, longest_s: float) -> None:
        """Return when an entry is let go of, or after `longest_s`."""
        self._freed = anyio.Event()
        with anyio.move_on_after(longest_s):
            await self._freed.wait()

    async def keep_renewing(self, renewed: Callable[[], None]) -> None:
        """Renew the leases, and call `renewed` each time. Run in a task of its own."""
        while True:
            await anyio.sleep(min(self._lease_ms / 1_000 * _RENEWED, _RENEWED_S))
            entries = self.entries
            if not entries:
                continue
            try:
                for start in range(0, len(entries), _RENEWED_AT_ONCE):
                    await self._renew([self._key], [*self._names, *entries[start : start + _RENEWED_AT_ONCE]])
            except FAULTS as error:
                if not is_group_gone(error):
                    _log.warning("lease_not_renewed", topic=self._topic, reason=kind_of(error))
                    continue
            renewed()

    async def keep_acknowledging(self) -> None:
        """Acknowledge what is done, many at once where many are. Run in a task of its own."""
        while True:
            await self._acknowledgeable.wait()
            self._acknowledgeable = anyio.Event()
            try:
                await self._acknowledge()
            except FAULTS as error:
                _log.debug("not_acknowledged", topic=self._topic, reason=kind_of(error))
                await anyio.sleep(_AFTER_AN_ERROR_S)
                self._acknowledgeable.set()

    async def give_back(self) -> None:
        """Acknowledge what is done, and let others take over the rest at once."""
        try:
            await self._acknowledge()
            left = await self._give_back([self._key], [*self._names, self._lease_ms * 1_000])
        except FAULTS as error:
            _log.warning("work_not_given_back", topic=self._topic, reason=kind_of(error))
            return
        if left:
            _log.info("work_given_back", topic=self._topic, pending=left)

    async def _acknowledge(self) -> None:
        while self._to_acknowledge:
            entries = list(self._to_acknowledge)
            await self._client.xack(self._key, GROUP, *entries)
            for entry in entries:
                self._to_acknowledge.pop(entry, None)


def is_group_gone(error: Exception) -> bool:
    """Whether Redis says that there is no such group or stream."""
    text = str(error)
    return isinstance(error, ResponseError) and any(
        sign in text for sign in ("NOGROUP", "no longer exists", "no such key", "No such key")
    )


def _fields(pairs: list[bytes] | None) -> dict[bytes, bytes]:
    """A script's reply holds names and values in one list."""
    flat = pairs or []
    return dict(zip(flat[::2], flat[1::2], strict=True))
