"""Bus and dead letters within one process (contract §1.5, mode `memory`): for tests and for embedding Nexus.

They carry the same encoded bytes and keep the same promises as those on Redis, except that nothing outlives the
process. As on Redis, a subscriber that reads too slowly loses messages and slows down no other.
"""

import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Final

import anyio
import structlog
from anyio.lowlevel import checkpoint

from nexus.core.concurrency import items_of
from nexus.core.ports import DeadLetter, Delivery, Work

_log = structlog.get_logger(__name__)

_BUFFERED: Final = 1_024
_SAME_LETTER_S: Final = 60.0
# Marks that have run out are removed when so many letters have come since the last time.
_SWEPT_EVERY: Final = 1_000
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

    def done(self, delivery: Delivery) -> None:
        """Do nothing: the delivery is forgotten already."""


class MemoryDeadLetters:
    """`nexus.core.ports.DeadLetters` within one process.

    Args:
        most: how many letters are kept; the oldest make room.
        forget: makes the ledger forget a request, for `forget_answer`.
    """

    def __init__(self, *, most: int = 10_000, forget: Callable[[str], None] | None = None) -> None:
        self._letters: deque[DeadLetter] = deque(maxlen=most)
        self._same_until: dict[tuple[str, str], float] = {}
        self._forget = forget
        self._last = (0, 0)
        self._came = 0

    async def bury(self, letter: DeadLetter) -> None:
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
        """Remove a letter. The same bytes become a letter again from now on."""
        letter = await self.find(letter_id)
        if letter is None:
            return False
        self._letters.remove(letter)
        await self.expect_again(letter)
        return True

    async def expect_again(self, letter: DeadLetter) -> None:
        """Let the same bytes become a letter of their own at once, should they come and fail again."""
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
        self._came += 1
        if self._came % _SWEPT_EVERY == 0:
            self._same_until = {mark: until for mark, until in self._same_until.items() if until > now}


def _mark(letter: DeadLetter) -> tuple[str, str]:
    return letter.sha256, letter.reason


def _order(letter_id: str) -> tuple[int, int] | None:
    parts = _LETTER_ID.fullmatch(letter_id)
    order = (int(parts[1]), int(parts[2])) if parts else None
    return order if order and max(order) < 1 << 64 else None
