"""From one request to its one effective answer (CONTRACT §1.4, §1.5).

Rules of this module:

- A request is claimed at the ledger before it is built, and finished there: answer kept, published and the delivery
  acknowledged in one step. What is already answered is announced again. What another replica is at is left to it; where
  the delivery is this replica's charge, it waits until that one has answered or is gone.
- A deadline is a duration: from when the bus took the request, where the bus says so by the clock of the ledger, else
  from its arrival here. No sender's clock is ever asked.
- A request that was taken up so often without an answer coming of it is taken for one that kills who builds it.
- An answer that says "try again" is kept as long as copies of the request may be on their way, which is well beyond any
  deadline, and no longer: under overload they are many. Trying again means a new id.
"""

import time
from dataclasses import dataclass
from typing import Final

import anyio
import structlog

from nexus.core.errors import BusUnavailableError, ErrorCode, RequestError, UnreadablePayloadError
from nexus.core.metrics import DeadLetterCause, Event, Metrics, Stage
from nexus.core.models import Message
from nexus.core.ports import (
    Acquired,
    Announced,
    Answered,
    Bus,
    Busy,
    Claim,
    Conflict,
    Delivery,
    RequestLedger,
)
from nexus.core.signing import Signing
from nexus.services.asks import Ask, read_ask
from nexus.services.burying import Burying
from nexus.services.context.builder import ContextBuilder
from nexus.services.context.request import deadline_ms

_log = structlog.get_logger(__name__)

# A message that was handed out more often without being finished is a dead letter (CONTRACT §1.5).
MOST_DELIVERIES: Final = 5
_RELEASE_S: Final = 1.0
# Parts of a lease: what a claim is granted, how often it is renewed, and how often one that is not free is asked for.
_GRANTED, _RENEWED, _ASKED_AGAIN = 0.9, 0.25, 0.03
_PAUSE_S: Final = 1.0
# For how long copies of a request may turn up, whose longest deadline is 60 s; and those of a signed one that somebody
# overheard and sends again.
_ON_ITS_WAY_MS: Final = 120_000
_REPLAYABLE_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What answering needs of the settings (CONTRACT §9, section `bus`). Times in milliseconds."""

    deadline_ms: int = 5_000
    lease_ms: int = 2_000
    answer_ttl_ms: int = 3_600_000
    max_payload_bytes: int = 1 << 20
    max_in_flight: int = 256
    dead_letter_bodies: bool = False
    signing: Signing | None = None


class Answerer:
    """Answers requests, one at a time for each caller."""

    def __init__(  # noqa: PLR0917  # one for each port
        self,
        builder: ContextBuilder,
        bus: Bus,
        ledger: RequestLedger,
        burying: Burying,
        settings: RequestSettings,
        metrics: Metrics,
    ) -> None:
        self._builder = builder
        self._bus = bus
        self._ledger = ledger
        self._burying = burying
        self._settings = settings
        self._metrics = metrics
        # Less than a lease, so that within one whoever takes over is at it.
        self._lease_ms = int(settings.lease_ms * _GRANTED)

    async def answer(self, delivery: Delivery, at: float, *, refused: RequestError | None = None) -> None:
        """Bring about the answer to what arrived at `at`, on the monotonic clock; with `refused`, that it is not built.

        Raises nothing but cancellation. Where the bus keeps messages, it goes on until Redis is back.
        """
        try:
            ask = read_ask(delivery, at, max_bytes=self._settings.max_payload_bytes, signing=self._settings.signing)
        except UnreadablePayloadError as error:
            too_large = len(delivery.payload) > self._settings.max_payload_bytes
            cause = DeadLetterCause.TOO_LARGE if too_large else DeadLetterCause.UNREADABLE
            await self._burying.bury(delivery, str(error), cause)
            self._bus.done(delivery)
            return
        asked_at = at
        while True:
            try:
                await self._serve(ask, asked_at, refused)
            except BusUnavailableError as error:
                _log.warning("request_unanswered", request_id=ask.ids.id, reason=str(error))
                if delivery.shared:
                    await anyio.sleep(_PAUSE_S)
                    # What was announced last may be what has just failed.
                    asked_at = time.monotonic()
                    continue
                # Nobody can be told. The requester asks again, and the bus will be back.
            return

    async def _serve(self, ask: Ask, asked_at: float, refused: RequestError | None) -> None:
        claim = await self._claim(ask, asked_at)
        if isinstance(claim, Conflict):
            ask = ask.as_conflict()
            claim = await self._claim(ask, asked_at)
        if isinstance(claim, Acquired):
            await self._answer(ask, claim, refused)
            return
        if isinstance(ask.asked, Message):
            # What another replica answers is still worth knowing: results of the run may be recorded here first.
            self._builder.overhear(ask.asked)
        match claim:
            case Answered(topic, kept):
                _log.info("answered_again", request_id=ask.ids.id)
                self._metrics.count(Event.ANSWER_REPEATED)
                if await self._bus.publish(topic, kept) == 0:
                    self._metrics.count(Event.ANSWER_UNHEARD)
            case Announced():
                _log.debug("announced_a_moment_ago", request_id=ask.ids.id)
            case _:
                _log.debug("left_to_another_replica", request_id=ask.ids.id)
        self._bus.done(ask.delivery)

    async def _claim(self, ask: Ask, asked_at: float) -> Claim:
        """What the ledger says; with charge of the delivery, not before it is settled who answers."""
        while True:
            waited_ms = int((time.monotonic() - asked_at) * 1_000)
            claim = await self._ledger.begin(ask.key, ask.fingerprint, self._lease_ms, waited_ms)
            if not (isinstance(claim, Busy) and ask.delivery.shared):
                return claim
            await anyio.sleep(self._settings.lease_ms / 1_000 * _ASKED_AGAIN)

    async def _answer(self, ask: Ask, claim: Acquired, refused: RequestError | None) -> None:
        asked = ask.asked
        attempts = max(claim.attempts, ask.delivery.deliveries)
        if attempts > 1:
            self._metrics.count(Event.LEASE_TAKEN_OVER)
            _log.info("request_taken_over", request_id=ask.ids.id, attempts=attempts)
        if isinstance(asked, Message) and refused:
            asked = refused
        if attempts > MOST_DELIVERIES:
            reason = f"taken up {attempts - 1} times, and never answered"
            await self._burying.bury(ask.delivery, reason, DeadLetterCause.POISON, ask.ids.id)
            asked = RequestError(
                ErrorCode.INTERNAL, "the context could not be built; the dead letters name the request"
            )
        if isinstance(asked, Message):
            content, code = await self._build_leased(ask, asked, claim)
        else:
            content, code = ask.refusal(asked), asked.code
        await self._finish(ask, claim, content, code)

    async def _finish(self, ask: Ask, claim: Acquired, content: bytes, code: ErrorCode | None) -> None:
        started = time.monotonic()
        heard = await self._published(ask, claim, content, self._keep_ms(code))
        ended = time.monotonic()
        if heard is None:
            self._bus.done(ask.delivery)
            self._metrics.count(Event.LATE_ANSWER_DISCARDED)
        else:
            self._metrics.answered(code)
            self._metrics.took(Stage.FINISH, ended - started)
            self._metrics.took(Stage.TOTAL, ended - ask.at)
        if heard == 0:
            self._metrics.count(Event.ANSWER_UNHEARD)
            _log.info("answer_unheard", request_id=ask.ids.id)
        _log.info(
            "late_answer_discarded" if heard is None else "answered",
            request_id=ask.ids.id,
            run_id=ask.ids.run_id,
            outcome=code.value if code else "success",
            bytes=len(content),
            ms=round((ended - ask.at) * 1_000, 1),
        )

    async def _published(self, ask: Ask, claim: Acquired, content: bytes, keep_ms: int) -> int | None:
        """What `finish` returns; with charge of the delivery, when the bus is back: an outage is no failed attempt."""
        while True:
            try:
                return await self._ledger.finish(claim, ask.topic, content, keep_ms, ask.delivery)
            except BusUnavailableError as error:
                if not ask.delivery.shared:
                    raise
                _log.warning("answer_delayed", request_id=ask.ids.id, reason=str(error))
            await anyio.sleep(_PAUSE_S)

    def _keep_ms(self, code: ErrorCode | None) -> int:
        if not code or not code.retryable:
            return self._settings.answer_ttl_ms
        return min(self._settings.answer_ttl_ms, _REPLAYABLE_MS if self._settings.signing else _ON_ITS_WAY_MS)

    async def _build_leased(self, ask: Ask, message: Message, claim: Acquired) -> tuple[bytes, ErrorCode | None]:
        """As `_build`, with the lease renewed meanwhile, and given back should the service stop."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_lease, claim)
            try:
                built = await self._build(ask, message, claim)
            except anyio.get_cancelled_exc_class():
                await self._release(claim)
                raise
            tasks.cancel_scope.cancel()
        return built

    async def _build(self, ask: Ask, message: Message, claim: Acquired) -> tuple[bytes, ErrorCode | None]:
        """The encoded answer, and its code when it is an error."""
        try:
            built = await self._build_in_time(ask, message, claim)
            failed = built.content.get("error")
            return ask.encoded(built), ErrorCode(failed["code"]) if failed else None
        except RequestError as error:
            wrong = error
        except Exception:  # noqa: BLE001  # the outermost handler: whatever goes wrong, the requester is told
            _log.exception("build_failed", request_id=ask.ids.id)
            await self._burying.bury(ask.delivery, "building it failed", DeadLetterCause.POISON, ask.ids.id)
            wrong = RequestError(ErrorCode.INTERNAL, "the context could not be built; the service's log says why")
        return ask.refusal(wrong), wrong.code

    async def _build_in_time(self, ask: Ask, message: Message, claim: Acquired) -> Message:
        allowed_ms = deadline_ms(message, self._settings.deadline_ms)
        waited_s = time.monotonic() - ask.at
        if ask.delivery.sent_ms:
            # Both by the clock of Redis.
            waited_s = max(waited_s, (claim.now_ms - ask.delivery.sent_ms) / 1_000)
        self._metrics.took(Stage.QUEUE, waited_s)
        left_s = allowed_ms / 1_000 - waited_s
        if left_s > 0:
            timings_ms = {"queue": round(waited_s * 1_000, 3)}
            with anyio.move_on_after(left_s):
                return await self._builder.handle_build_request(message, budget_s=left_s, timings_ms=timings_ms)
        reason = f"metadata.deadline_ms: the {allowed_ms} ms have passed"
        raise RequestError(ErrorCode.DEADLINE_EXCEEDED, reason)

    async def _keep_lease(self, claim: Acquired) -> None:
        while True:
            await anyio.sleep(self._settings.lease_ms / 1_000 * _RENEWED)
            try:
                await self._ledger.renew(claim, self._lease_ms)
            except BusUnavailableError as error:
                _log.warning("lease_not_renewed", request_id=claim.key, reason=str(error))

    async def _release(self, claim: Acquired) -> None:
        try:
            with anyio.move_on_after(_RELEASE_S, shield=True):
                await self._ledger.release(claim)
        except BusUnavailableError as error:
            _log.warning("lease_not_released", request_id=claim.key, reason=str(error))
