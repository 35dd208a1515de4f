"""Claims of requests and tool calls at the ledger, and the dead letters of those without an answer (contract §1.4-1.6).

- Of any number of replicas and resends one claims a request, and one concludes it: answer kept, published and
  delivery acknowledged in one step. A kept answer is published again for every resend.
- Leases are renewed until the request is concluded. When the service stops, claims are released at once.
- A request with five attempts and no answer is poison. From the third attempt on requests run one at a time: all
  requests of a replica that dies are attempted again together, and would fail together.
- Neither an outage of the bus nor a wait is a failed attempt. So a delivery that was handed out often is first read
  under a claim of its own, one at a time: it is poison where reading it began five times and never ended.
"""

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

import anyio
import structlog

from nexus.core.concurrency import OuterHandler, supervised
from nexus.core.errors import BusRefusedError, BusUnavailableError, ErasedReason, NexusError, OutboxFullError
from nexus.core.metrics import DeadLetterCause, Event, Metrics
from nexus.core.models import Topics
from nexus.core.ports import (
    Acquired,
    Announced,
    Answered,
    Bus,
    Busy,
    Claim,
    Conflict,
    DeadLetter,
    DeadLetters,
    Delivery,
    OutboxRow,
    RequestLedger,
    Row,
)
from nexus.core.tracing import Key, describe, span
from nexus.core.wire import compact
from nexus.services.requests.envelope import IncomingRequest, RequestSettings, ToolCallRequest, read_message

_log = structlog.get_logger(__name__)

# After so many attempts a request becomes a dead letter (contract §1.5); from the suspect one on it runs alone.
MOST_ATTEMPTS: Final = 5
_SUSPECT_ATTEMPT: Final = 3
# A delivery that was handed out more often either waited while its replicas died, or kills whoever reads it.
MOST_TRUSTED_DELIVERIES: Final = 5
PAUSE_S: Final = 1.0
_RELEASE_S: Final = 1.0
# In leases: the time between renewals, and between two tries to claim a request of another replica.
_RENEWAL, _NEXT_CLAIM = 0.25, 0.03

_Item = TypeVar("_Item", IncomingRequest, ToolCallRequest)


class DeadLetterWriter:
    """Logs unusable messages by size and hash, counts them, and keeps them as dead letters.

    `bodies_up_to` is the largest payload that is kept with its letter, in bytes; None for none.
    """

    def __init__(self, dead_letters: DeadLetters, metrics: Metrics, bodies_up_to: int | None) -> None:
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._bodies_up_to = bodies_up_to

    async def write(self, delivery: Delivery, reason: str, cause: DeadLetterCause, message_id: str = "") -> None:
        """Make a delivery a dead letter. Where the bus keeps messages, it goes on until the letter is kept."""
        # A larger one would be refused when it is sent again.
        is_small = self._bodies_up_to is not None and len(delivery.payload) <= self._bodies_up_to
        is_kept = is_small and cause is not DeadLetterCause.ERASED
        await self._write(delivery, reason, cause, message_id, body=delivery.payload if is_kept else None)

    async def _write(
        self, delivery: Delivery, reason: str, cause: DeadLetterCause, message_id: str, *, body: bytes | None
    ) -> None:
        payload = delivery.payload
        sha256 = hashlib.sha256(payload).hexdigest()
        _log.warning("unusable_message", topic=delivery.topic, reason=reason, size=len(payload), sha256=sha256)
        self._metrics.dead_letter(cause)
        letter = DeadLetter(delivery.topic, reason, sha256, len(payload), delivery.deliveries, message_id, body)
        while True:
            with OuterHandler(self._metrics, "dead_letters", topic=delivery.topic, sha256=sha256) as handler:
                try:
                    await self._dead_letters.keep(letter)
                except BusUnavailableError as error:
                    if delivery.shared and not isinstance(error, BusRefusedError):
                        _log.warning("dead_letter_delayed", topic=delivery.topic, sha256=sha256, reason=str(error))
                        await anyio.sleep(PAUSE_S)
                        continue
                    self.lose(delivery, str(error))
            if handler.failed:
                self.lose(delivery, "keeping it failed")
            return

    async def write_refused(self, document: Row, reason: str) -> None:
        """Make a dead letter of what came of a request and is not stored. It has no body, which is no message."""
        delivery = Delivery(Topics.CONTEXT_BUILD_REQUEST, compact(document))
        await self._write(delivery, reason, refusal_cause(reason), str(document["id"]), body=None)

    def lose(self, delivery: Delivery, reason: str) -> None:
        """Log and count a delivery that cannot even become a dead letter."""
        _log.error("dead_letter_not_kept", topic=delivery.topic, size=len(delivery.payload), reason=reason)
        self._metrics.count(Event.DEAD_LETTER_LOST)


def refusal_cause(reason: str) -> DeadLetterCause:
    """The cause of what is refused for this reason when it is to be stored."""
    return DeadLetterCause.ERASED if isinstance(reason, ErasedReason) else DeadLetterCause.REFUSED


class Claims:
    """Claims, holds and concludes requests and tool calls, whose leases are renewed while it is `running`."""

    def __init__(
        self,
        bus: Bus,
        ledger: RequestLedger,
        dead_letters: DeadLetterWriter,
        settings: RequestSettings,
        metrics: Metrics,
    ) -> None:
        self._bus = bus
        self._ledger = ledger
        self._dead_letters = dead_letters
        self._settings = settings
        self._metrics = metrics
        self._suspects = anyio.Lock()
        self._held: dict[str, Acquired] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Renew the leases of all held claims until the context ends."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervised, self._metrics, "leases", self._renew_all)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()

    async def claim(self, item: _Item, asked_at: float, settle: Callable[[_Item, Claim], Awaitable[None]]) -> None:
        """Claim a request and pass the ledger's reply to `settle`, once it is not Busy or the request may not wait.

        A request whose id belongs to another is passed on as a conflict. Its answer may have been published since
        `asked_at`, on the monotonic clock. BusUnavailableError where the bus did not answer.
        """
        claim = await self._claim(item, asked_at)
        if isinstance(claim, Conflict):
            item = item.as_conflict()
            claim = await self._claim(item, asked_at)
        if isinstance(claim, Acquired) and claim.attempts >= _SUSPECT_ATTEMPT:
            # It may wait long for its turn. A claim held meanwhile would count as an attempt if the suspect before it
            # kills this replica, and would keep the request from a replica that is free.
            await self._ledger.release(claim)
            async with self._suspects:
                await settle(item, await self._claim(item, asked_at))
        else:
            await settle(item, claim)

    async def _claim(self, item: IncomingRequest | ToolCallRequest, asked_at: float) -> Claim:
        settings = self._settings
        with span("claim"):
            while True:
                waited_ms = int((time.monotonic() - asked_at) * 1_000)
                claim = await self._ledger.claim(item.key, item.fingerprint, settings.granted_ms, waited_ms)
                if not isinstance(claim, Busy) or not item.may_wait:
                    return claim
                await anyio.sleep(settings.lease_ms / 1_000 * _NEXT_CLAIM)

    async def leave(self, item: IncomingRequest | ToolCallRequest, claim: Claim) -> int | None:
        """Finish a delivery that another replica answers. Returns the receivers of its kept answer, if it has one."""
        receivers = None
        match claim:
            case Answered(topic, kept):
                _log.info("answered_again", request_id=item.ids.id)
                receivers = await self._bus.publish(topic, kept)
            case Announced():
                _log.debug("announced_a_moment_ago", request_id=item.ids.id)
            case _:
                _log.debug("left_to_another_replica", request_id=item.ids.id)
        describe({Key.OUTCOME: type(claim).__name__.lower()})
        self._bus.done(item.delivery)
        return receivers

    async def conclude(  # noqa: PLR0917  # as the port has it
        self,
        item: IncomingRequest | ToolCallRequest,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        outbox: OutboxRow | None = None,
    ) -> int | None:
        """Keep and publish the answer and finish the delivery. Returns its receivers; None: there was one before.

        BusUnavailableError where the bus is away, and the request may not wait.
        """
        while True:
            try:
                with span("conclude"):
                    receivers = await self._ledger.conclude(claim, topic, answer, keep_ms, item.delivery, outbox)
                break
            except OutboxFullError as error:
                _log.error("outbox_full", request_id=item.ids.id)
                self._metrics.count(Event.ROW_LOST)
                reason = "its input is not recorded: the database is away, and the outbox is full"
                await self._dead_letters.write(item.delivery, reason, DeadLetterCause.BACKLOG, item.ids.id)
                return error.receivers
            except BusUnavailableError as error:
                if isinstance(error, BusRefusedError) or not item.may_wait:
                    raise
                _log.warning("answer_delayed", request_id=item.ids.id, reason=str(error))
            await anyio.sleep(PAUSE_S)
        if receivers is None:
            self._bus.done(item.delivery)
        return receivers

    @asynccontextmanager
    async def held(self, claim: Acquired) -> AsyncIterator[None]:
        """Renew the lease until the context ends; release it if that is because the service stops."""
        self._held[claim.token] = claim
        try:
            yield
        except anyio.get_cancelled_exc_class():
            await self._release(claim)
            raise
        finally:
            self._held.pop(claim.token, None)

    async def _renew_all(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(self._settings.lease_ms / 1_000 * _RENEWAL)
                for claim in [*self._held.values()]:
                    tasks.start_soon(self._renew, claim)

    async def _renew(self, claim: Acquired) -> None:
        with OuterHandler(self._metrics, "leases", request_id=claim.key):
            try:
                await self._ledger.renew(claim, self._settings.granted_ms)
            except BusUnavailableError as error:
                _log.warning("lease_not_renewed", request_id=claim.key, reason=str(error))

    async def _release(self, claim: Acquired) -> None:
        try:
            with anyio.move_on_after(_RELEASE_S, shield=True):
                await self._ledger.release(claim)
        except BusUnavailableError as error:
            _log.warning("lease_not_released", request_id=claim.key, reason=str(error))

    async def give_up(self, delivery: Delivery, reason: str, cause: DeadLetterCause, message_id: str = "") -> None:
        """Finish a delivery as a dead letter."""
        await self._dead_letters.write(delivery, reason, cause, message_id)
        self._bus.done(delivery)


class SuspectReader:
    """Finds out whether deliveries that were handed out often kill the replicas that read them."""

    def __init__(self, ledger: RequestLedger, settings: RequestSettings) -> None:
        self._ledger = ledger
        self._settings = settings
        self._one_at_a_time = anyio.Lock()

    async def read(self, delivery: Delivery) -> str | None:
        """Read a delivery and forget what it says. Returns the reason where it is poison, which is not read any more.

        Where the bus is away, it goes on until it is back.
        """
        async with self._one_at_a_time:
            claim = await self._claim(delivery)
            if claim.attempts > MOST_ATTEMPTS:
                return f"read {claim.attempts - 1} times, and never to its end"
            with suppress(NexusError):
                read_message(delivery, self._settings)
            with suppress(BusUnavailableError):
                await self._ledger.release(claim)
            return None

    async def _claim(self, delivery: Delivery) -> Acquired:
        key = f"read:{delivery.topic}:{delivery.entry}"
        while True:
            try:
                claim = await self._ledger.claim(key, delivery.entry, self._settings.granted_ms)
            except BusUnavailableError as error:
                _log.warning("reading_delayed", topic=delivery.topic, entry=delivery.entry, reason=str(error))
            else:
                if isinstance(claim, Acquired):
                    return claim
            await anyio.sleep(PAUSE_S)
