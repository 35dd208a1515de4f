"""Bus and ledger within one process (CONTRACT §1.5, mode `memory`): for tests and for embedding Nexus in a program.

They carry the same encoded bytes and keep the same promises as the ones on Redis, except that nothing outlives the
process. As on Redis, a subscriber that reads too slowly loses messages and holds nobody else up.
"""

import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import structlog
from anyio.lowlevel import checkpoint

from nexus.core.ports import Acquired, Answered, Busy, Claim, Conflict, DeadLetter, Delivery

_log = structlog.get_logger(__name__)

_BUFFERED = 1_024
_SAID_AGAIN_S = 1.0
_SAME_LETTER_S = 60.0
# Expired entries are looked for when this many have been added since the last time.
_SWEPT_EVERY = 1_000


class MemorySubscription:
    """Deliveries of some topics."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.reconnects = 0
        self.topics = frozenset(topics)
        self._send, self._receive = anyio.create_memory_object_stream[Delivery](_BUFFERED)

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        # Closed: its context has ended.
        with suppress(anyio.ClosedResourceError):
            async for delivery in self._receive:
                yield delivery

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

    async def publish(self, topic: str, payload: bytes) -> int:
        """Hand the payload to everybody who listens. Returns to how many."""
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


@dataclass(slots=True)
class _Entry:
    fingerprint: str
    token: str
    until: float
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
    buried_until: dict[tuple[str, str], float] = field(default_factory=dict)
    added: int = 0


class MemoryLedger:
    """`nexus.core.ports.RequestLedger` within one process."""

    def __init__(self, bus: MemoryBus, *, dead_letter_max: int = 10_000) -> None:
        self._bus = bus
        self._state = _State()
        self.dead_letters: deque[DeadLetter] = deque(maxlen=dead_letter_max)

    async def begin(self, key: str, fingerprint: str, lease_ms: int) -> Claim:
        """Ask for a request."""
        now = time.monotonic()
        self._sweep(now)
        entry = self._live(key, now)
        if entry is None:
            token = uuid.uuid4().hex
            self._state.requests[key] = _Entry(fingerprint, token, now + lease_ms / 1_000)
            return Acquired(key, fingerprint, token, time.time_ns() // 1_000_000)
        if entry.fingerprint != fingerprint:
            return Conflict()
        if entry.answer is None or now - entry.said_at < _SAID_AGAIN_S:
            return Busy()
        entry.said_at = now
        return Answered(entry.topic, entry.answer)

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold a request for longer."""
        now = time.monotonic()
        entry = self._live(claim.key, now)
        if entry is None or entry.token != claim.token or entry.answer is not None:
            return False
        entry.until = now + lease_ms / 1_000
        return True

    async def finish(self, claim: Acquired, topic: str, answer: bytes, keep_ms: int) -> bool:
        """Keep the answer and publish it."""
        now = time.monotonic()
        entry = self._live(claim.key, now)
        if entry and entry.answer is not None:
            return entry.token == claim.token
        if entry and entry.fingerprint != claim.fingerprint:
            return False
        until = now + keep_ms / 1_000
        self._state.requests[claim.key] = _Entry(claim.fingerprint, claim.token, until, topic, answer, now)
        await self._bus.publish(topic, answer)
        return True

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        entry = self._state.requests.get(claim.key)
        if entry and entry.token == claim.token and entry.answer is None:
            del self._state.requests[claim.key]

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep a value unless there is one; returns the one that is kept."""
        now = time.monotonic()
        self._sweep(now)
        kept = self._state.kept.get(key)
        if kept is None or kept.until <= now:
            kept = self._state.kept[key] = _Kept(value, now + keep_ms / 1_000)
        return kept.value

    async def kept(self, key: str) -> bytes | None:
        """What is kept."""
        kept = self._state.kept.get(key)
        return kept.value if kept and kept.until > time.monotonic() else None

    async def bury(self, letter: DeadLetter) -> None:
        """Keep a dead letter."""
        now = time.monotonic()
        self._sweep(now)
        mark = (letter.sha256, letter.reason)
        if self._state.buried_until.get(mark, now) <= now:
            self._state.buried_until[mark] = now + _SAME_LETTER_S
            self.dead_letters.append(letter)

    def _live(self, key: str, now: float) -> _Entry | None:
        entry = self._state.requests.get(key)
        return entry if entry and entry.until > now else None

    def _sweep(self, now: float) -> None:
        self._state.added += 1
        if self._state.added % _SWEPT_EVERY == 0:
            self._state.requests = {key: entry for key, entry in self._state.requests.items() if entry.until > now}
            self._state.kept = {key: kept for key, kept in self._state.kept.items() if kept.until > now}
            self._state.buried_until = {mark: until for mark, until in self._state.buried_until.items() if until > now}
