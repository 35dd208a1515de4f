"""How many requests are in hand, and which are refused because there are too many (CONTRACT §1.6).

Rules of this module:

- Work is bounded: `max_in_flight` builds, on a bus that keeps nothing as many requests waiting here, beyond that
  OVERLOADED. On a bus that keeps messages the bus is the queue, and says itself what is too much.
- On a bus that keeps nothing everybody hears every request. One that has no room for it waits a moment before it
  refuses: another that has room will have claimed it.
- There too the same bytes are in hand once: who asks again while a request waits does not get it refused.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NoReturn, Self

import anyio
import structlog

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.polling import BusyPolling
from nexus.core.ports import Bus, Delivery, RequestLedger
from nexus.core.tasks import Handoff, Way
from nexus.services.answering import Answerer
from nexus.services.asks import RequestSettings
from nexus.services.burying import Burying
from nexus.services.context.builder import ContextBuilder

_log = structlog.get_logger(__name__)

# Refusals that may wait, and how many are on their way at once. What comes on top is dropped and logged: its sender
# asks again, if it is one that does.
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

    Args:
        way: counts those in hand; background work gives it.
        polling: entered while the history of one is read; looks at the same `way`.

    Attributes:
        settings: limits and keys, by which everything that comes over the bus is read.
    """

    def __init__(  # noqa: PLR0917  # one for each port
        self,
        builder: ContextBuilder,
        bus: Bus,
        ledger: RequestLedger,
        burying: Burying,
        settings: RequestSettings | None = None,
        metrics: Metrics | None = None,
        way: Way | None = None,
        polling: BusyPolling | None = None,
    ) -> None:
        self.settings = settings or RequestSettings()
        self._metrics = metrics or NoMetrics()
        self._pending = way or Way()
        polling = polling or BusyPolling(self._pending, 0)
        self.answerer = Answerer(builder, bus, ledger, burying, self.settings, self._metrics, polling)
        self._to_answer = Handoff[_Arrived](self.settings.max_in_flight)
        self._to_refuse = Handoff[_Arrived](_MOST_REFUSALS)
        self._pace = _Pace()
        self._heard_once: set[bytes] = set()
        self._bytes_in_hand = 0
        self._metrics.read_from(Reading.IN_FLIGHT, self._in_flight)
        self._metrics.read_from(Reading.WAITING_REQUESTS, lambda: self._to_answer.waiting)
        self._metrics.read_from(Reading.WAITING_REFUSALS, lambda: self._to_refuse.waiting)

    @property
    def pending(self) -> int:
        """Requests that were accepted and are not finished yet."""
        return self._pending.count

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Answer what is offered, until the context ends; `drained` first, to finish what was accepted."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self.settings.max_in_flight):
                tasks.start_soon(self._answer_all)
            for _ in range(_REFUSERS):
                tasks.start_soon(self._refuse_all)
            tasks.start_soon(self.answerer.run)
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
        if not delivery.shared and payload in self._heard_once:
            return
        if not delivery.shared and self._bytes_in_hand + len(payload) > _MOST_BYTES:
            self._drop(delivery, "too many bytes are waiting")
            return
        arrived = _Arrived(delivery, time.monotonic())
        if (not delivery.surplus and self._to_answer.offer(arrived)) or self._to_refuse.offer(arrived):
            self._accepted(delivery)
            return
        self._drop(delivery, "too many refusals are waiting")

    def _drop(self, delivery: Delivery, reason: str) -> None:
        self._metrics.count(Event.REQUEST_DROPPED)
        _log.error("request_dropped", reason=reason, size=len(delivery.payload))

    def _accepted(self, delivery: Delivery) -> None:
        self._pending.begin()
        self._bytes_in_hand += len(delivery.payload)
        if not delivery.shared:
            self._heard_once.add(delivery.payload)

    def _finished(self, delivery: Delivery) -> None:
        self._pending.end()
        self._bytes_in_hand -= len(delivery.payload)
        if not delivery.shared:
            self._heard_once.discard(delivery.payload)
        if not self._pending.count:
            self._pace.pause()

    async def _answer_all(self) -> NoReturn:
        while True:
            # Who waits for the next request keeps nothing of the last, which may be large.
            await self._answer(await self._to_answer.take())

    async def _answer(self, arrived: _Arrived) -> None:
        try:
            await self.answerer.answer(arrived.delivery, arrived.at)
            self._pace.count(time.monotonic())
        finally:
            self._finished(arrived.delivery)

    async def _refuse_all(self) -> NoReturn:
        while True:
            await self._refuse(await self._to_refuse.take())

    async def _refuse(self, arrived: _Arrived) -> None:
        try:
            if not arrived.delivery.shared:
                await anyio.sleep(max(arrived.at + _COURTESY_S - time.monotonic(), 0))
            await self.answerer.answer(arrived.delivery, arrived.at, refused=self._overloaded())
        finally:
            self._finished(arrived.delivery)

    def _overloaded(self) -> RequestError:
        """What a request is told for which there is no room, with the time in which what waits now may be done."""
        ms = int(self._pace.seconds_for(self.settings.max_in_flight) * 1_000)
        retry_after_ms = min(max(ms, _SHORTEST_RETRY_MS), _LONGEST_RETRY_MS)
        reason = f"too many requests are waiting; try again with a new id, in about {retry_after_ms} ms"
        return RequestError(ErrorCode.OVERLOADED, reason, retry_after_ms)

    def _in_flight(self) -> int:
        return self._pending.count - self._to_answer.waiting - self._to_refuse.waiting


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
