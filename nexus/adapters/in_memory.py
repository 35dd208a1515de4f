"""Bus, ledger, outbox and dead letters within one process (contract §1.5, mode `memory`).

For tests and for embedding Nexus. They carry the same encoded bytes and keep the same promises as those on Redis,
except that nothing outlives the process. As on Redis, a subscriber that reads too slowly loses messages and slows down
no other.
"""

import re
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import anyio
import structlog
from anyio.lowlevel import checkpoint

from nexus.core.concurrency import items_of
from nexus.core.erasure import BusKind, owner_mark
from nexus.core.errors import OutboxFullError
from nexus.core.ports import Acquired, Announced, Answered, Busy, Claim, Conflict, DeadLetter, Delivery, OutboxRow, Work
from nexus.core.wire import owner_of

_log = structlog.get_logger(__name__)

_BUFFERED: Final = 1_024
_SAME_LETTER_S: Final = 60.0
_ANNOUNCED_AGAIN_S: Final = 1.0
# How long a request without an answer is known after its lease, so that its attempts are counted.
_KNOWN_S: Final = 600.0
# Expired entries are removed when so many have been added since the last time.
_SWEPT_EVERY: Final = 1_000
_MOST_ROWS: Final = 50_000
_MOST_BYTES: Final = 64 << 20
_LETTER_ID: Final = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


class MemorySubscription:
    """Deliveries of some topics."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.reconnects = 0
        self.backlogs: dict[str, int] = {}
        self.silent_s = 0.0
        self.topics = frozenset(topics)
        self._send, self._receive = anyio.create_memory_object_stream[Delivery](_BUFFERED)

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return items_of(self._receive)

    async def stop(self) -> None:
        """Take in nothing more."""
        self._send.close()

    def put(self, delivery: Delivery) -> bool:
        """Buffer a delivery. False when the subscription was stopped or its buffer is full."""
        try:
            self._send.send_nowait(delivery)
        except anyio.ClosedResourceError:
            return False
        except anyio.WouldBlock:
            _log.warning("delivery_lost", topic=delivery.topic, reason="the subscriber reads too slowly")
            return False
        return True

    def close(self) -> None:
        """End iterating."""
        self._send.close()
        self._receive.close()


class MemoryBus:
    """`nexus.core.ports.Bus` within one process."""

    def __init__(self) -> None:
        self._subscriptions: list[MemorySubscription] = []

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Hand the payload to every subscriber of the topic. Returns to how many."""
        del once  # nothing is kept that a second message could be compared with
        received = 0
        for subscription in self._subscriptions:
            if topic in subscription.topics:
                received += subscription.put(Delivery(topic, payload))
        # A publisher without a pause must let the others read.
        await checkpoint()
        return received

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
        """Listen to all topics: every subscriber receives everything."""
        return self.subscribe(*(item.topic for item in work), *news)

    async def is_read(self, topic: str) -> bool | None:  # noqa: ARG002  # the port's signature
        """None: `publish` has said who received it."""
        return None

    def set_aside(self, delivery: Delivery, *, aside: bool) -> None:
        """Do nothing: everything is handed out."""

    def done(self, delivery: Delivery) -> None:
        """Do nothing: the delivery is forgotten already."""


class MemoryDeadLetters:
    """`nexus.core.ports.DeadLetters` within one process; `forget` makes the ledger forget a request."""

    def __init__(self, *, most: int = 10_000, forget: Callable[[str], None] | None = None) -> None:
        self._letters: deque[DeadLetter] = deque(maxlen=most)
        self._same_until: dict[tuple[str, str], float] = {}
        self._forget = forget
        self._last = (0, 0)
        self._added = 0

    async def keep(self, letter: DeadLetter) -> None:
        """Keep a dead letter, unless the same was kept within the last minute."""
        now = time.monotonic()
        self._sweep(now)
        if self._same_until.get(_mark(letter), now) <= now:
            self._same_until[_mark(letter)] = now + _SAME_LETTER_S
            at_ms, number = self._next_id()
            self._letters.append(replace(letter, letter_id=f"{at_ms}-{number}", at_ms=at_ms))
        await checkpoint()

    async def count(self) -> int:
        """How many there are."""
        return len(self._letters)

    async def newest(self, limit: int, *, before: str = "") -> list[DeadLetter]:
        """Up to `limit` letters, newest first. None before an id that cannot be one."""
        end = _order(before) if before else None
        if limit < 1 or (before and end is None):
            return []
        older = [letter for letter in self._letters if end is None or (_order(letter.letter_id) or end) < end]
        return older[: -limit - 1 : -1]

    async def find(self, letter_id: str) -> DeadLetter | None:
        """The letter with that id."""
        wanted = _order(letter_id)
        return next((letter for letter in self._letters if _order(letter.letter_id) == wanted), None)

    async def drop(self, letter_id: str) -> bool:
        """Remove a letter."""
        letter = await self.find(letter_id)
        if letter is None:
            return False
        self._letters.remove(letter)
        await self.expect_again(letter)
        return True

    async def drop_before(self, before: datetime) -> int:
        """Remove the letters that were kept before then. Returns how many."""
        old = [letter for letter in self._letters if letter.at_ms < before.timestamp() * 1_000]
        for letter in old:
            self._letters.remove(letter)
        return len(old)

    async def expect_again(self, letter: DeadLetter) -> None:
        """Let the same bytes become a letter of their own at once."""
        self._same_until.pop(_mark(letter), None)

    async def forget_answer(self, key: str) -> None:
        """Let the request `key` be answered anew."""
        if self._forget:
            self._forget(key)

    def _next_id(self) -> tuple[int, int]:
        at_ms, number = self._last
        self._last = max((time.time_ns() // 1_000_000, 0), (at_ms, number + 1))
        return self._last

    def _sweep(self, now: float) -> None:
        self._added += 1
        if self._added % _SWEPT_EVERY == 0:
            self._same_until = {mark: until for mark, until in self._same_until.items() if until > now}


def _mark(letter: DeadLetter) -> tuple[str, str]:
    return letter.sha256, letter.reason


def _order(letter_id: str) -> tuple[int, int] | None:
    parts = _LETTER_ID.fullmatch(letter_id)
    order = (int(parts[1]), int(parts[2])) if parts else None
    return order if order and max(order) < 1 << 64 else None


@dataclass(slots=True)
class _Request:
    fingerprint: str
    token: str
    known_until: float
    lease_until: float = 0.0
    attempts: int = 0
    asked_ms: int = 0
    topic: str = ""
    answer: bytes | None = None
    announced_at: float = 0.0


class MemoryOutbox:
    """`nexus.core.ports.Outbox` within one process."""

    def __init__(self, *, most_rows: int = _MOST_ROWS, most_bytes: int = _MOST_BYTES) -> None:
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._bytes = 0
        # In the order in which they came.
        self._rows: dict[tuple[str, str], OutboxRow] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether there are rows."""
        return bool(self._rows)

    def put(self, row: OutboxRow) -> bool:
        """Put a row. False when the outbox is full."""
        if (row.owner_key, row.id) in self._rows:
            return True
        if len(self._rows) >= self._most_rows or self._bytes + len(row.content) > self._most_bytes:
            return False
        self._rows[row.owner_key, row.id] = row
        self._bytes += len(row.content)
        return True

    async def of_owner(self, owner_key: str) -> list[OutboxRow]:
        """The rows of one owner."""
        return [row for row in self._rows.values() if row.owner_key == owner_key]

    async def oldest(self, limit: int, offset: int = 0) -> list[OutboxRow]:
        """Up to `limit` rows after the first `offset`, those that have waited longest first."""
        return list(self._rows.values())[offset : offset + limit]

    async def count(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    async def remove(self, rows: Sequence[OutboxRow]) -> None:
        """Take rows out."""
        for row in rows:
            removed = self._rows.pop((row.owner_key, row.id), None)
            self._bytes -= len(removed.content) if removed else 0


class MemoryLedger:
    """`nexus.core.ports.RequestLedger` within one process, by a `clock` of seconds that never run back."""

    def __init__(self, bus: MemoryBus, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.outbox = MemoryOutbox()
        self._bus = bus
        self._clock = clock
        self._epoch_ms = time.time_ns() // 1_000_000 - int(clock() * 1_000)
        self._requests: dict[str, _Request] = {}
        # Values with the moment at which they expire.
        self._kept: dict[str, tuple[bytes, float]] = {}
        self._added = 0

    async def claim(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for a request."""
        now = self._clock()
        self._sweep(now)
        request = self._known(key, now)
        if request is None:
            request = self._requests[key] = _Request(fingerprint, "", 0.0)
        request.fingerprint = request.fingerprint or fingerprint
        if request.fingerprint != fingerprint:
            return Conflict()
        if request.answer is not None:
            if now - waited_ms / 1_000 - request.announced_at < _ANNOUNCED_AGAIN_S:
                return Announced()
            request.announced_at = now
            return Answered(request.topic, request.answer)
        if request.token and request.lease_until > now:
            return Busy()
        request.token = uuid.uuid4().hex
        request.attempts += 1
        self._lease(request, now, lease_ms)
        now_ms = int(now * 1_000) + self._epoch_ms
        request.asked_ms = request.asked_ms or now_ms - waited_ms
        waiting = self.outbox.is_waiting
        return Acquired(key, fingerprint, request.token, now_ms, request.attempts, request.asked_ms, waiting)

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold a request for longer."""
        now = self._clock()
        request = self._known(claim.key, now)
        if request is None or request.token != claim.token or request.answer is not None:
            return False
        self._lease(request, now, lease_ms)
        return True

    async def conclude(  # noqa: PLR0917  # the port's arguments
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | None = None,
    ) -> int | None:
        """Keep the answer, put the row into the outbox and publish."""
        del delivery  # this bus keeps nothing that could be acknowledged
        now = self._clock()
        request = self._known(claim.key, now)
        if request and (request.answer is not None or request.fingerprint not in {claim.fingerprint, ""}):
            return 1 if request.token == claim.token and request.fingerprint == claim.fingerprint else None
        taken = outbox is None or self.outbox.put(outbox)
        until = now + keep_ms / 1_000
        self._requests[claim.key] = _Request(
            claim.fingerprint, claim.token, until, topic=topic, answer=answer, announced_at=now
        )
        receivers = await self._bus.publish(topic, answer)
        if not taken:
            raise OutboxFullError(receivers)
        return receivers

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        request = self._requests.get(claim.key)
        if request is None or request.token != claim.token or request.answer is not None:
            return
        request.token = ""
        request.attempts -= 1
        if request.attempts < 1:
            # Only when it was asked stays known.
            request.fingerprint = ""

    def forget(self, key: str) -> None:
        """Forget a request and its answer."""
        self._requests.pop(key, None)

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep a value unless there is one; returns the one that is kept."""
        now = self._clock()
        self._sweep(now)
        kept, until = self._kept.get(key, (b"", now))
        if until > now:
            return kept
        self._kept[key] = (value, now + keep_ms / 1_000)
        return value

    async def kept(self, key: str) -> bytes | None:
        """What is kept."""
        value, until = self._kept.get(key, (None, 0.0))
        return value if until > self._clock() else None

    async def sweep(self, owner_key: str, *, remove: bool) -> AsyncGenerator[Mapping[BusKind, int]]:
        """`nexus.core.ports.BusErasure.sweep`: what is kept of an owner, in one batch."""
        now, mark = self._clock(), owner_mark(owner_key)
        own = {key for key, each in self._requests.items() if _owns(key, mark, each.answer, owner_key)}
        answers = [key for key in own if self._requests[key].answer is not None]
        beginnings = [key for key in self._kept if key.endswith(f":{mark}")]
        if remove:
            for key in answers:
                del self._requests[key]
            for key in beginnings:
                del self._kept[key]
        in_hand = sum(self._requests[key].lease_until > now for key in own.difference(answers))
        yield {"answers": len(answers), "beginnings": len(beginnings), "in_hand": in_hand}

    async def find_text(self, forms: Sequence[bytes]) -> AsyncGenerator[tuple[str, int]]:
        """`nexus.core.ports.BusErasure.find_text`: the requests, and the values that are kept."""
        answers = [(key, each.answer or b"") for key, each in self._requests.items()]
        values = [(key, value) for key, (value, _) in self._kept.items()]
        for name, held in (("nexus:request", answers), ("nexus:kept", values)):
            yield name, sum(any(form in key.encode() or form in value for form in forms) for key, value in held)

    def _known(self, key: str, now: float) -> _Request | None:
        request = self._requests.get(key)
        return request if request and request.known_until > now else None

    def _lease(self, request: _Request, now: float, lease_ms: int) -> None:
        request.lease_until = now + lease_ms / 1_000
        request.known_until = request.lease_until + _KNOWN_S

    def _sweep(self, now: float) -> None:
        self._added += 1
        if self._added % _SWEPT_EVERY == 0:
            self._requests = {key: request for key, request in self._requests.items() if request.known_until > now}
            self._kept = {key: kept for key, kept in self._kept.items() if kept[1] > now}


def _owns(key: str, mark: str, answer: bytes | None, owner_key: str) -> bool:
    return key.endswith((f":{mark}", f"-{mark}")) or (answer is not None and owner_of(answer) == owner_key)
