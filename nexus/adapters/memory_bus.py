"""Bus and ledger within one process (CONTRACT §1.5, mode `memory`): for tests and for embedding Nexus in a program.

They carry the same encoded bytes and keep the same promises as the ones on Redis, except that nothing outlives the
process. As on Redis, a subscriber that reads too slowly loses messages and holds nobody else up.
"""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import overload

import anyio
import structlog
from anyio.lowlevel import checkpoint

from nexus.adapters.in_memory.outbox import MemoryOutbox
from nexus.adapters.memory_journal import MemoryJournal
from nexus.core.ports import (
    MOST_JOURNALED,
    Acquired,
    Announced,
    Answered,
    Answering,
    Asking,
    Busy,
    Claim,
    Concluded,
    Conflict,
    Delivery,
    Ending,
    KeptBefore,
    Look,
    Moved,
    OutboxRow,
    Standing,
    Work,
)
from nexus.core.tasks import items_of

_log = structlog.get_logger(__name__)

_BUFFERED = 1_024
_SAID_AGAIN_S = 1.0
# How long a request without an answer is known after its lease, so that its attempts are counted.
_KNOWN_S = 600.0
# Expired entries are looked for when this many have been added since the last time.
_SWEPT_EVERY = 1_000


class MemorySubscription:
    """Deliveries of some topics."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.reconnects = 0
        self.backlogs: dict[str, int] = {}
        self.silent_s = 0.0
        self.topics = frozenset(topics)
        self._send, self._receive = anyio.create_memory_object_stream[Delivery](_BUFFERED)

    def offer_first(self, take: Callable[[Delivery], bool]) -> None:
        """Do nothing: who publishes here would wait for it."""

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return items_of(self._receive)

    async def stop(self) -> None:
        """Take in nothing more."""
        self._send.close()

    def take(self, delivery: Delivery) -> bool:
        """Have the delivery read later. False when the subscription was stopped or too much is waiting."""
        try:
            self._send.send_nowait(delivery)
        except anyio.ClosedResourceError:
            return False
        except anyio.WouldBlock:
            _log.warning("delivery_lost", topic=delivery.topic, reason="the subscriber reads too slowly")
            return False
        return True

    def close(self) -> None:
        """Give both ends back."""
        self._send.close()
        self._receive.close()


class MemoryBus:
    """`nexus.core.ports.Bus` within one process."""

    def __init__(self) -> None:
        self._subscriptions: list[MemorySubscription] = []

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Hand the payload to everybody who listens. Returns to how many."""
        del once  # what nobody kept must be sent each time
        heard = 0
        for subscription in self._subscriptions:
            if topic in subscription.topics:
                heard += subscription.take(Delivery(topic, payload))
        # Who publishes without a pause must let the others read.
        await checkpoint()
        return heard

    @asynccontextmanager
    async def subscribe(self, *topics: str) -> AsyncIterator[MemorySubscription]:
        """Listen to `topics` for as long as the context lasts."""
        subscription = MemorySubscription(topics)
        self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)
            subscription.close()

    def consume(
        self, work: Sequence[Work], news: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[MemorySubscription]:
        """Listen to all of it: everybody hears everything."""
        return self.subscribe(*(item.topic for item in work), *news)

    def done(self, delivery: Delivery) -> None:
        """Do nothing: the delivery is forgotten already."""


@dataclass(slots=True)
class _Entry:
    fingerprint: str
    token: str
    known_until: float
    lease_until: float = 0.0
    attempts: int = 0
    asked_ms: int = 0
    topic: str = ""
    answer: bytes | None = None
    said_at: float = 0.0


@dataclass(slots=True)
class _Kept:
    value: bytes
    until: float


@dataclass(slots=True)
class _State:
    requests: dict[str, _Entry] = field(default_factory=dict)
    kept: dict[str, _Kept] = field(default_factory=dict)
    added: int = 0


def _is_in_the_way(claim: Acquired, standing: Standing, answering: Answering) -> bool:
    """Whether the request has to be built when it has been claimed, however recent its answer is."""
    return (
        claim.attempts > 1
        or standing.kept not in {None, answering.ending.kept_with(answering.answer)}
        or standing.waiting >= MOST_JOURNALED
        or claim.waited_ms(answering.delivery) > answering.within_ms
    )


class MemoryLedger:
    """`nexus.core.ports.RequestLedger` within one process.

    Args:
        bus: where answers are published.
        clock: seconds that never run back.

    Attributes:
        journal: where rows are put by `conclude`.
    """

    def __init__(self, bus: MemoryBus, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._clock = clock
        self._epoch_ms = time.time_ns() // 1_000_000 - int(clock() * 1_000)
        self._state = _State()
        self.journal = MemoryJournal(clock)
        self.outbox = MemoryOutbox()

    async def claim(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for a request."""
        claim = await self.begin(key, fingerprint, lease_ms, waited_ms)
        return replace(claim, outbox_waiting=self.outbox.is_waiting) if isinstance(claim, Acquired) else claim

    async def begin(
        self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0, look: Look | None = None
    ) -> Claim:
        """Ask for a request."""
        now = self._clock()
        self._sweep(now)
        entry = self._live(key, now)
        if entry is None:
            entry = self._state.requests[key] = _Entry(fingerprint, "", 0.0)
        entry.fingerprint = entry.fingerprint or fingerprint
        if entry.fingerprint != fingerprint:
            return Conflict()
        if entry.answer is not None:
            if now - waited_ms / 1_000 - entry.said_at < _SAID_AGAIN_S:
                return Announced()
            entry.said_at = now
            return Answered(entry.topic, entry.answer)
        if entry.token and entry.lease_until > now:
            return Busy()
        entry.token = uuid.uuid4().hex
        entry.attempts += 1
        self._lease(entry, now, lease_ms)
        now_ms = int(now * 1_000) + self._epoch_ms
        entry.asked_ms = entry.asked_ms or now_ms - waited_ms
        standing = self.journal.look(look, await self.kept(look.kept)) if look else None
        return Acquired(key, fingerprint, entry.token, now_ms, entry.attempts, entry.asked_ms, standing)

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold a request for longer."""
        now = self._clock()
        entry = self._live(claim.key, now)
        if entry is None or entry.token != claim.token or entry.answer is not None:
            return False
        self._lease(entry, now, lease_ms)
        return True

    async def finish(
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None = None
    ) -> int | None:
        """Keep the answer and publish it."""
        done = await self.conclude(claim, topic, answer, keep_ms, delivery, Ending())
        return done.heard if isinstance(done, Concluded) else None

    @overload
    async def conclude(
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | None = None,
    ) -> int | None: ...

    @overload
    async def conclude(
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None, outbox: Ending
    ) -> Concluded | KeptBefore | None: ...

    async def conclude(  # noqa: PLR0917  # the port's arguments
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | Ending | None = None,
    ) -> int | Concluded | KeptBefore | None:
        """Keep the answer, put the row into the outbox and publish."""
        if isinstance(outbox, Ending):
            return await self._conclude(claim, topic, answer, keep_ms, delivery, outbox)
        done = await self._conclude(claim, topic, answer, keep_ms, delivery, Ending(), outbox)
        return done.heard if isinstance(done, Concluded) else None

    async def _conclude(  # noqa: PLR0917  # those of `conclude`, and one
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None,
        ending: Ending,
        row: OutboxRow | None = None,
    ) -> Concluded | KeptBefore | None:
        del delivery  # nothing is kept that could be done with
        now = self._clock()
        entry = self._live(claim.key, now)
        if entry and (entry.answer is not None or entry.fingerprint not in {claim.fingerprint, ""}):
            return Concluded(1) if entry.token == claim.token and entry.fingerprint == claim.fingerprint else None
        if kept := ending.kept_with(answer):
            first = await self.keep_first(ending.kept_key, kept, ending.keep_ms)
            if first != kept:
                return KeptBefore(first)
        if row and not self.outbox.put(row):
            _log.error("outbox_full", row_id=row.id, size=len(row.content))
        moved = self.journal.put(ending.row) if ending.row else Moved()
        until = now + keep_ms / 1_000
        self._state.requests[claim.key] = _Entry(
            claim.fingerprint, claim.token, until, topic=topic, answer=answer, said_at=now
        )
        return Concluded(await self._bus.publish(topic, answer), moved)

    async def begin_and_conclude(self, asking: Asking, answering: Answering) -> Claim | Concluded:
        """`begin`, and where nothing stands in the way `conclude`."""
        look, read = asking.look, answering.read
        known = look is not None and self.journal.knows(look.owner_key)
        current = look is not None and read is not None and self.journal.is_current(look.owner_key, read)
        claim = await self.begin(asking.key, asking.fingerprint, asking.lease_ms, asking.waited_ms, look)
        if not (isinstance(claim, Acquired) and look and (standing := claim.standing)):
            return claim
        if not (current if read else standing.version == look.version) or _is_in_the_way(claim, standing, answering):
            return claim
        done = await self.conclude(
            claim, answering.topic, answering.answer, answering.keep_ms, answering.delivery, answering.ending
        )
        if not isinstance(done, Concluded):
            return claim
        return done if known else replace(done, moved=replace(done.moved, before=""))

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        entry = self._state.requests.get(claim.key)
        if entry is None or entry.token != claim.token or entry.answer is not None:
            return
        entry.token = ""
        entry.attempts -= 1
        if entry.attempts < 1:
            # Only when it was asked stays known.
            entry.fingerprint = ""

    def forget(self, key: str) -> None:
        """Know nothing of a request any more."""
        self._state.requests.pop(key, None)

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep a value unless there is one; returns the one that is kept."""
        now = self._clock()
        self._sweep(now)
        kept = self._state.kept.get(key)
        if kept is None or kept.until <= now:
            kept = self._state.kept[key] = _Kept(value, now + keep_ms / 1_000)
        return kept.value

    async def kept(self, key: str) -> bytes | None:
        """What is kept."""
        kept = self._state.kept.get(key)
        return kept.value if kept and kept.until > self._clock() else None

    def _live(self, key: str, now: float) -> _Entry | None:
        entry = self._state.requests.get(key)
        return entry if entry and entry.known_until > now else None

    def _lease(self, entry: _Entry, now: float, lease_ms: int) -> None:
        entry.lease_until = now + lease_ms / 1_000
        entry.known_until = entry.lease_until + _KNOWN_S

    def _sweep(self, now: float) -> None:
        self._state.added += 1
        if self._state.added % _SWEPT_EVERY == 0:
            self._state.requests = {
                key: entry for key, entry in self._state.requests.items() if entry.known_until > now
            }
            self._state.kept = {key: kept for key, kept in self._state.kept.items() if kept.until > now}
