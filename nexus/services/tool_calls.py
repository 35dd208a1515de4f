"""How many calls of memory tools are in hand, and which wait (CONTRACT §7).

Rules of this module:

- Offering never waits, and what is not ours is passed over without being read.
- Work is bounded: so many calls at once, and as many waiting as memory allows. A bus that keeps messages hands out no
  more than are in hand, and is the queue itself.
- The same bytes are in hand once: who sends a call again while it is done gets one result.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from nexus.core.metrics import Metrics, NoMetrics, Reading
from nexus.core.ports import Bus, Delivery, RequestLedger
from nexus.core.tasks import Pending
from nexus.services.asks import RequestSettings
from nexus.services.burying import Burying
from nexus.services.origins import RunOrigins
from nexus.services.persistence import PersistenceService
from nexus.services.tool_answering import ToolAnswerer
from nexus.services.tool_asks import may_be_ours
from nexus.services.working_memory import WorkingMemory

MOST_CALLS: Final = 64

_MOST_WAITING: Final = 1_024
_MOST_WAITING_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class _Arrived:
    delivery: Delivery
    at: float


class ToolCallService:
    """Does calls of memory tools. Use `running()` to have its workers at work.

    Args:
        memory: does them.
        bus, ledger, burying: as for build requests.
        persistence: records the results.
        origins: knows to which session and agent a run belongs.
        settings: limits and keys.
        metrics: what is counted.

    Attributes:
        pending: calls that were accepted and have no result yet.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        memory: WorkingMemory,
        bus: Bus,
        ledger: RequestLedger,
        burying: Burying,
        persistence: PersistenceService,
        origins: RunOrigins,
        settings: RequestSettings | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        metrics = metrics or NoMetrics()
        self._bus = bus
        self._answerer = ToolAnswerer(
            memory, bus, ledger, burying, persistence, origins, settings or RequestSettings(), metrics
        )
        self._send, self._receive = anyio.create_memory_object_stream[_Arrived](_MOST_WAITING)
        self._heard_once: set[bytes] = set()
        self._bytes_in_hand = 0
        self.pending = Pending()
        metrics.read_from(Reading.UNFINISHED_CALLS, lambda: self.pending.count)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Do what is offered, until the context ends. Wait for `pending` first, to finish what was accepted."""
        async with anyio.create_task_group() as tasks:
            for _ in range(MOST_CALLS):
                tasks.start_soon(self._answer_all, self._receive.clone())
            tasks.start_soon(self._answerer.leases.run)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
                self._send.close()
                self._receive.close()

    def offer(self, delivery: Delivery) -> bool:
        """Accept a message of `tools.requests`, or pass over what is not ours. Returns at once.

        Returns:
            False when too much is waiting already.
        """
        payload = delivery.payload
        if not may_be_ours(payload):
            self._bus.done(delivery)
            return True
        if not delivery.shared and payload in self._heard_once:
            return True
        if not delivery.shared and self._bytes_in_hand + len(payload) > _MOST_WAITING_BYTES:
            return False
        try:
            self._send.send_nowait(_Arrived(delivery, time.monotonic()))
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        self._bytes_in_hand += len(payload)
        if not delivery.shared:
            self._heard_once.add(payload)
        self.pending.begin()
        return True

    async def _answer_all(self, arrivals: MemoryObjectReceiveStream[_Arrived]) -> None:
        async with arrivals:
            async for arrived in arrivals:
                try:
                    await self._answerer.answer(arrived.delivery, arrived.at)
                finally:
                    self._finished(arrived.delivery)
                # Who waits for the next keeps nothing of the last, which may be large.
                del arrived

    def _finished(self, delivery: Delivery) -> None:
        self._bytes_in_hand -= len(delivery.payload)
        if not delivery.shared:
            self._heard_once.discard(delivery.payload)
        self.pending.end()
