"""How many requests are in hand, and which are refused because there are too many (contract §1.6).

Rules of this module:

- Work is bounded: `max_in_flight` builds, on a bus that keeps nothing as many requests waiting here, beyond that
  OVERLOADED. On a bus that keeps messages the bus is the queue, and says itself what is too much.
- On a bus that keeps nothing every replica hears every request. One that has no room for it waits a moment before it
  refuses: another that has room will have claimed it.
- There too the same bytes are in hand once: a request that is sent again while it waits is not refused.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self

import anyio
import structlog
from anyio.streams.memory import MemoryObjectSendStream

from nexus.core.concurrency import Pending
from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.ports import Bus, Delivery, RequestLedger
from nexus.services.context.builder import ContextBuilder
from nexus.services.requests.answerer import Answerer
from nexus.services.requests.deliveries import DeadLetterWriter
from nexus.services.requests.envelope import RequestSettings

_log = structlog.get_logger(__name__)

# Refusals that may wait, and how many are on their way at once. What comes on top is dropped and logged: a sender that
# resends asks again.
_MOST_REFUSALS: Final = 4_096
_REFUSERS: Final = 16
_MOST_BYTES: Final = 256 << 20
# How long a replica without room leaves a request to the others.
_COURTESY_S: Final = 0.05
_SHORTEST_RETRY_MS, _LONGEST_RETRY_MS = 100, 60_000


@dataclass(frozen=True, slots=True)
class _Arrived:
    delivery: Delivery
    at: float


class RequestService:
    """Answers build requests. Use `running()` to have its workers at work.

    Attributes:
        settings: limits and keys, by which everything that comes over the bus is read.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        builder: ContextBuilder,
        bus: Bus,
        ledger: RequestLedger,
        dead_letters: DeadLetterWriter,
        settings: RequestSettings | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.settings = settings or RequestSettings()
        self._metrics = metrics or NoMetrics()
        self._pending = Pending()
        self._answerer = Answerer(builder, bus, ledger, dead_letters, self.settings, self._metrics)
        self._to_answer, self._accepted = anyio.create_memory_object_stream[_Arrived](self.settings.max_in_flight)
        self._to_refuse, self._surplus = anyio.create_memory_object_stream[_Arrived](_MOST_REFUSALS)
        self._pace = _Pace()
        self._payloads: set[bytes] = set()
        self._bytes_in_hand = 0
        self._metrics.read_from(Reading.IN_FLIGHT, self._in_flight)
        self._metrics.read_from(Reading.WAITING_REQUESTS, lambda: self._accepted.statistics().current_buffer_used)
        self._metrics.read_from(Reading.WAITING_REFUSALS, lambda: self._surplus.statistics().current_buffer_used)

    @property
    def pending(self) -> int:
        """Requests that were accepted and are not finished yet."""
        return self._pending.count

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Answer what is offered, until the context ends; `drained` first, to finish what was accepted."""
        with self._to_answer, self._accepted, self._to_refuse, self._surplus:
            async with anyio.create_task_group() as tasks:
                for _ in range(self.settings.max_in_flight):
                    tasks.start_soon(self._answer_all)
                for _ in range(_REFUSERS):
                    tasks.start_soon(self._refuse_all)
                tasks.start_soon(self._answerer.run)
                try:
                    yield self
                finally:
                    tasks.cancel_scope.cancel()

    async def drained(self) -> None:
        """Return when everything that was accepted is finished."""
        await self._pending.none()

    def offer(self, delivery: Delivery) -> None:
        """Accept a request from the bus, or have it refused with OVERLOADED. Returns at once."""
        payload = delivery.payload
        if not delivery.shared:
            if payload in self._payloads:
                return
            if self._bytes_in_hand + len(payload) > _MOST_BYTES:
                self._drop(delivery, "too many bytes are waiting")
                return
        arrived = _Arrived(delivery, time.monotonic())
        if (not delivery.surplus and _put(self._to_answer, arrived)) or _put(self._to_refuse, arrived):
            self._begun(delivery)
        else:
            self._drop(delivery, "too many refusals are waiting")

    def _drop(self, delivery: Delivery, reason: str) -> None:
        self._metrics.count(Event.REQUEST_DROPPED)
        _log.error("request_dropped", reason=reason, size=len(delivery.payload))

    def _begun(self, delivery: Delivery) -> None:
        self._pending.begin()
        self._bytes_in_hand += len(delivery.payload)
        if not delivery.shared:
            self._payloads.add(delivery.payload)

    def _finished(self, delivery: Delivery) -> None:
        self._pending.end()
        self._bytes_in_hand -= len(delivery.payload)
        if not delivery.shared:
            self._payloads.discard(delivery.payload)
        if not self._pending.count:
            self._pace.pause()

    async def _answer_all(self) -> None:
        async for arrived in self._accepted:
            try:
                await self._answerer.answer(arrived.delivery, arrived.at)
                self._pace.count(time.monotonic())
            finally:
                self._finished(arrived.delivery)
            # It may hold a large payload, and the next may be long in coming.
            del arrived

    async def _refuse_all(self) -> None:
        async for arrived in self._surplus:
            try:
                if not arrived.delivery.shared:
                    await anyio.sleep(max(arrived.at + _COURTESY_S - time.monotonic(), 0))
                await self._answerer.answer(arrived.delivery, arrived.at, refused=self._overloaded())
            finally:
                self._finished(arrived.delivery)
            del arrived

    def _overloaded(self) -> RequestError:
        """The refusal of a request for which there is no room, with the time in which what waits now may be done."""
        ms = int(self._pace.seconds_for(self.settings.max_in_flight) * 1_000)
        retry_after_ms = min(max(ms, _SHORTEST_RETRY_MS), _LONGEST_RETRY_MS)
        reason = f"too many requests are waiting; try again with a new id, in about {retry_after_ms} ms"
        return RequestError(ErrorCode.OVERLOADED, reason, retry_after_ms)

    def _in_flight(self) -> int:
        waiting = self._accepted.statistics().current_buffer_used + self._surplus.statistics().current_buffer_used
        return self._pending.count - waiting


def _put(stream: MemoryObjectSendStream[_Arrived], arrived: _Arrived) -> bool:
    try:
        stream.send_nowait(arrived)
    except anyio.WouldBlock:
        return False
    return True


class _Pace:
    """How fast requests are finished while there are some, as a moving average."""

    _WEIGHT: Final = 0.05

    def __init__(self) -> None:
        self._gap_s = 0.0
        self._last: float | None = None

    def count(self, now: float) -> None:
        """One more has been finished."""
        if self._last is not None:
            self._gap_s += self._WEIGHT * (now - self._last - self._gap_s)
        self._last = now

    def pause(self) -> None:
        """There is none left; how long until the next says nothing about the pace."""
        self._last = None

    def seconds_for(self, requests: int) -> float:
        """How long so many take."""
        return requests * self._gap_s
