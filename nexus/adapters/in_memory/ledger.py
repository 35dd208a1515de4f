"""The request ledger and its outbox within one process (contract §1.5, mode `memory`)."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from nexus.adapters.in_memory.bus import MemoryBus
from nexus.core.ports import Acquired, Announced, Answered, Busy, Claim, Conflict, Delivery, OutboxRow

_log = structlog.get_logger(__name__)

_ANNOUNCED_AGAIN_S: Final = 1.0
# How long a request without an answer is known after its lease, so that its attempts are counted.
_KNOWN_S: Final = 600.0
# Expired entries are removed when so many have been added since the last time.
_SWEPT_EVERY: Final = 1_000
_MOST_ROWS: Final = 50_000
_MOST_BYTES: Final = 64 << 20


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


@dataclass(slots=True)
class _Kept:
    value: bytes
    until: float


@dataclass(slots=True)
class _State:
    requests: dict[str, _Request] = field(default_factory=dict)
    kept: dict[str, _Kept] = field(default_factory=dict)
    added: int = 0


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

    async def oldest(self, limit: int) -> list[OutboxRow]:
        """Up to `limit` rows, those that have waited longest first."""
        return list(self._rows.values())[:limit]

    async def remove(self, rows: Sequence[OutboxRow]) -> None:
        """Take rows out."""
        for row in rows:
            removed = self._rows.pop((row.owner_key, row.id), None)
            self._bytes -= len(removed.content) if removed else 0


class MemoryLedger:
    """`nexus.core.ports.RequestLedger` within one process.

    Args:
        bus: where answers are published.
        clock: seconds that never run back.

    Attributes:
        outbox: where `conclude` puts rows.
    """

    def __init__(self, bus: MemoryBus, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.outbox = MemoryOutbox()
        self._bus = bus
        self._clock = clock
        self._epoch_ms = time.time_ns() // 1_000_000 - int(clock() * 1_000)
        self._state = _State()

    async def claim(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for a request."""
        now = self._clock()
        self._sweep(now)
        request = self._known(key, now)
        if request is None:
            request = self._state.requests[key] = _Request(fingerprint, "", 0.0)
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
        return Acquired(
            key,
            fingerprint,
            request.token,
            now_ms,
            request.attempts,
            request.asked_ms,
            outbox_waiting=self.outbox.is_waiting,
        )

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
        if outbox and not self.outbox.put(outbox):
            _log.error("outbox_full", message_id=outbox.id, size=len(outbox.content))
        until = now + keep_ms / 1_000
        self._state.requests[claim.key] = _Request(
            claim.fingerprint, claim.token, until, topic=topic, answer=answer, announced_at=now
        )
        return await self._bus.publish(topic, answer)

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        request = self._state.requests.get(claim.key)
        if request is None or request.token != claim.token or request.answer is not None:
            return
        request.token = ""
        request.attempts -= 1
        if request.attempts < 1:
            # Only when it was asked stays known.
            request.fingerprint = ""

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

    def _known(self, key: str, now: float) -> _Request | None:
        request = self._state.requests.get(key)
        return request if request and request.known_until > now else None

    def _lease(self, request: _Request, now: float, lease_ms: int) -> None:
        request.lease_until = now + lease_ms / 1_000
        request.known_until = request.lease_until + _KNOWN_S

    def _sweep(self, now: float) -> None:
        self._state.added += 1
        if self._state.added % _SWEPT_EVERY == 0:
            requests, kept = self._state.requests, self._state.kept
            self._state.requests = {key: request for key, request in requests.items() if request.known_until > now}
            self._state.kept = {key: value for key, value in kept.items() if value.until > now}
