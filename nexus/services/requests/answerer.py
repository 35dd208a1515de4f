"""From one request to its one effective answer (contract §1.4, §1.5).

Rules of this module:

- A request is claimed at the ledger and concluded there: answer kept, published and the delivery acknowledged in one
  step. What is already answered is announced again. What another replica is at is left to it; where the delivery is
  this replica's charge, it waits until that one has answered or is gone.
- A deadline is a duration, by the clock of the ledger: from when the bus took the request, where it says so, else from
  when a replica that asked the ledger heard it first. No sender's clock is ever asked.
- A request that was taken up five times without an answer coming of it is taken for one that kills its builders. But
  whatever a replica has in hand when it dies is taken up again together, and would die together five times. So what is
  taken up for the third time is claimed and built alone among its like: a death then counts for that one only.
- An answer that says "try again" is kept as long as copies of the request may be on their way, which is well beyond any
  deadline, and no longer: under overload they are many. Trying again means a new id.
"""

import time
from typing import Final, NamedTuple

import anyio
import structlog

from nexus.core.errors import BusRefusedError, BusUnavailableError, ErrorCode, RequestError, UnreadablePayloadError
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
    OutboxRow,
    RequestLedger,
)
from nexus.services.context.builder import ContextBuilder
from nexus.services.context.request import Deadline, deadline_ms
from nexus.services.requests.dead_letters import DeadLetterWriter
from nexus.services.requests.envelope import IncomingRequest, RequestSettings, read_incoming
from nexus.services.requests.leases import Leases

_log = structlog.get_logger(__name__)

# A request that was begun more often without being finished is a dead letter (contract §1.5); from which attempt on it
# is begun alone.
_MOST_ATTEMPTS: Final = 5
_SUSPECT: Final = 3
# Reading a message comes before any attempt. One that was handed out more often has never been read to its end. Far
# more, because what waits for a database that is away is handed out again whenever its replica dies.
MOST_DELIVERIES: Final = 100
_PAUSE_S: Final = 1.0
# How often a claim that another replica holds is asked for, in leases.
_ASKED_AGAIN: Final = 0.03
# What is left of a deadline to say that it cannot be kept: so long, but no more than this part of it.
_REFUSING_S, _REFUSING = 0.15, 0.05
# For how long copies of a request may turn up, whose longest deadline is 60 s; and those of a signed one that were
# overheard and are sent again.
_ON_ITS_WAY_MS: Final = 120_000
_REPLAYABLE_MS: Final = 600_000
# An agent asks at each of its steps, and is each time answered with all of its session.
_LARGE: Final = 256 << 10


class _Answer(NamedTuple):
    """An encoded answer.

    Attributes:
        code: when it is an error.
        outbox: the row of the run's input, where the store has not taken it.
    """

    content: bytes
    code: ErrorCode | None = None
    outbox: OutboxRow | None = None


class Answerer:
    """Answers requests, one at a time for each caller. Run `run` in a task of its own.

    Args:
        builder: makes contexts.
        bus: is told of deliveries that are done with.
        ledger: where requests are claimed and concluded.
        dead_letters: keeps what cannot be used.
        settings: what is promised of requests.
        metrics: what is counted.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        builder: ContextBuilder,
        bus: Bus,
        ledger: RequestLedger,
        dead_letters: DeadLetterWriter,
        settings: RequestSettings,
        metrics: Metrics,
    ) -> None:
        self._builder = builder
        self._bus = bus
        self._ledger = ledger
        self._dead_letters = dead_letters
        self._settings = settings
        self._metrics = metrics
        self._suspects = anyio.Lock()
        self._leases = Leases(ledger, settings)

    async def run(self) -> None:
        """Renew the leases on what is being built, until cancelled."""
        await self._leases.run()

    async def answer(self, delivery: Delivery, arrived_at: float, *, refused: RequestError | None = None) -> None:
        """Bring about the answer to a delivery.

        Raises nothing but cancellation. Where the bus keeps messages, it goes on until Redis is back.

        Args:
            delivery: the request.
            arrived_at: when it came, on the monotonic clock.
            refused: the answer, for a request that is not to be built.
        """
        try:
            if delivery.deliveries > MOST_DELIVERIES:
                await self._give_up(delivery, handed_out_too_often(delivery), DeadLetterCause.POISON)
                return
            settings = self._settings
            request = read_incoming(
                delivery, arrived_at, max_bytes=settings.max_payload_bytes, signing=settings.signing
            )
            await self._answer_until_bus_is_back(request, refused)
        except UnreadablePayloadError as error:
            too_large = len(delivery.payload) > self._settings.max_payload_bytes
            cause = DeadLetterCause.TOO_LARGE if too_large else DeadLetterCause.UNREADABLE
            await self._give_up(delivery, str(error), cause)
        except Exception:  # noqa: BLE001  # the outermost handler: one message must not end the service
            _log.exception("request_failed")
            await self._give_up(delivery, "answering it failed", DeadLetterCause.POISON)

    async def _give_up(self, delivery: Delivery, reason: str, cause: DeadLetterCause, message_id: str = "") -> None:
        await self._dead_letters.write(delivery, reason, cause, message_id)
        self._bus.done(delivery)

    async def _answer_until_bus_is_back(self, request: IncomingRequest, refused: RequestError | None) -> None:
        delivery, asked_at = request.delivery, request.arrived_at
        while True:
            try:
                await self._claim_and_answer(request, asked_at, refused)
            except BusRefusedError as error:
                await self._give_up(delivery, str(error), DeadLetterCause.OTHER, request.ids.id)
            except BusUnavailableError as error:
                _log.warning("request_unanswered", request_id=request.ids.id, reason=str(error))
                if delivery.shared:
                    await anyio.sleep(_PAUSE_S)
                    # What was announced last may be what has just failed.
                    asked_at = time.monotonic()
                    continue
                # Nobody can be told. The requester asks again, and the bus will be back.
            return

    async def _claim_and_answer(self, request: IncomingRequest, asked_at: float, refused: RequestError | None) -> None:
        claim = await self._claim(request, asked_at)
        if isinstance(claim, Conflict):
            request = request.as_conflict()
            claim = await self._claim(request, asked_at)
        if isinstance(claim, Acquired) and claim.attempts >= _SUSPECT:
            await self._ledger.release(claim)
            async with self._suspects:
                await self._settle(request, await self._claim(request, asked_at), refused)
        else:
            await self._settle(request, claim, refused)

    async def _claim(self, request: IncomingRequest, asked_at: float) -> Claim:
        """What the ledger says; with charge of the delivery, not before it is settled which replica answers."""
        settings = self._settings
        while True:
            waited_ms = int((time.monotonic() - asked_at) * 1_000)
            claim = await self._ledger.claim(request.key, request.fingerprint, settings.granted_ms, waited_ms)
            if not (isinstance(claim, Busy) and request.delivery.shared):
                return claim
            await anyio.sleep(settings.lease_ms / 1_000 * _ASKED_AGAIN)

    async def _settle(self, request: IncomingRequest, claim: Claim, refused: RequestError | None) -> None:
        if isinstance(claim, Acquired):
            answer = await self._made(request, claim, refused)
            await self._conclude(request, claim, answer)
            return
        if isinstance(request.asked, Message):
            # Results of a run that another replica answers may be recorded here first.
            self._builder.remember_run(request.asked)
        match claim:
            case Answered(topic, kept):
                _log.info("answered_again", request_id=request.ids.id)
                self._metrics.count(Event.ANSWER_REPEATED)
                if await self._bus.publish(topic, kept) == 0:
                    self._metrics.count(Event.ANSWER_UNHEARD)
            case Announced():
                _log.debug("announced_a_moment_ago", request_id=request.ids.id)
            case _:
                _log.debug("left_to_another_replica", request_id=request.ids.id)
        self._bus.done(request.delivery)

    async def _made(self, request: IncomingRequest, claim: Acquired, refused: RequestError | None) -> _Answer:
        """The answer to a request that is this replica's. Whatever goes wrong, there is one."""
        ids, asked = request.ids, request.asked
        if claim.attempts > 1:
            self._metrics.count(Event.LEASE_TAKEN_OVER)
            _log.info("request_taken_over", request_id=ids.id, attempts=claim.attempts)
        if claim.attempts > _MOST_ATTEMPTS:
            reason = f"taken up {claim.attempts - 1} times, and never answered"
            await self._dead_letters.write(request.delivery, reason, DeadLetterCause.POISON, ids.id)
            return _refusal(request, "the context could not be built; the dead letters name the request")
        if isinstance(asked, RequestError):
            return _Answer(request.refusal(asked), asked.code)
        if refused:
            return _Answer(request.refusal(refused), refused.code)
        async with self._leases.held(claim):
            return await self._built(request, asked, claim)

    async def _built(self, request: IncomingRequest, message: Message, claim: Acquired) -> _Answer:
        try:
            allowed_ms = deadline_ms(message, self._settings.deadline_ms)
        except RequestError as error:
            return _Answer(request.refusal(error), error.code)
        waited_s = max(time.monotonic() - request.arrived_at, claim.waited_ms(request.delivery) / 1_000)
        self._metrics.took(Stage.QUEUE, waited_s)
        deadline = Deadline(allowed_ms, anyio.current_time() + building_s(allowed_ms) - waited_s)
        if deadline.left_s <= 0:
            late = deadline.exceeded()
            return _Answer(request.refusal(late), late.code)
        timings_ms = {"queue": round(waited_s * 1_000, 3)}
        try:
            built = await self._builder.build(
                message, deadline, timings_ms=timings_ms, outbox_waiting=claim.outbox_waiting
            )
            if built.failed:
                await self._write_failure(request)
            if isinstance(built.result, RequestError):
                return _Answer(request.refusal(built.result), built.result.code, built.outbox)
            return _Answer(request.answer(built.result), None, built.outbox)
        except Exception:  # noqa: BLE001  # what cannot be encoded is answered too
            _log.exception("build_failed", request_id=request.ids.id)
            await self._write_failure(request)
            return _refusal(request, "the context could not be built; the service's log says why")

    async def _write_failure(self, request: IncomingRequest) -> None:
        await self._dead_letters.write(request.delivery, "building it failed", DeadLetterCause.POISON, request.ids.id)

    async def _conclude(self, request: IncomingRequest, claim: Acquired, answer: _Answer) -> None:
        """Keep and publish the answer, and have the delivery acknowledged.

        With charge of the delivery, when the bus is back: an outage is no failed attempt.
        """
        started = time.monotonic()
        keep_ms = self._keep_ms(answer)
        while True:
            try:
                heard = await self._ledger.conclude(
                    claim, request.topic, answer.content, keep_ms, request.delivery, answer.outbox
                )
                break
            except BusUnavailableError as error:
                if isinstance(error, BusRefusedError) or not request.delivery.shared:
                    raise
                _log.warning("answer_delayed", request_id=request.ids.id, reason=str(error))
            await anyio.sleep(_PAUSE_S)
        self._report(request, answer, heard, started)

    def _keep_ms(self, answer: _Answer) -> int:
        """At least as long as copies may turn up; what fills Redis, by its size or by its number, no longer."""
        shortest_ms = _REPLAYABLE_MS if self._settings.signing else _ON_ITS_WAY_MS
        code = answer.code
        if len(answer.content) > _LARGE or (code and (code.retryable or code is ErrorCode.UNAUTHENTICATED)):
            return shortest_ms
        return max(self._settings.answer_ttl_ms, shortest_ms)

    def _report(self, request: IncomingRequest, answer: _Answer, heard: int | None, started: float) -> None:
        """Count and log an answer; `heard` is None where there was one before."""
        ended = time.monotonic()
        if heard is None:
            self._bus.done(request.delivery)
            self._metrics.count(Event.LATE_ANSWER_DISCARDED)
        else:
            self._metrics.answered(answer.code)
            self._metrics.took(Stage.FINISH, ended - started)
            self._metrics.took(Stage.TOTAL, ended - request.arrived_at)
        if heard == 0:
            self._metrics.count(Event.ANSWER_UNHEARD)
            _log.info("answer_unheard", request_id=request.ids.id)
        _log.info(
            "late_answer_discarded" if heard is None else "answered",
            request_id=request.ids.id,
            run_id=request.ids.run_id,
            outcome=answer.code.value if answer.code else "success",
            bytes=len(answer.content),
            ms=round((ended - request.arrived_at) * 1_000, 1),
        )


def _refusal(request: IncomingRequest, reason: str) -> _Answer:
    return _Answer(request.refusal(RequestError(ErrorCode.INTERNAL, reason)), ErrorCode.INTERNAL)


def building_s(allowed_ms: int) -> float:
    """How long after it was asked for a context may be built, if the requester waits so long for it."""
    return allowed_ms / 1_000 - min(_REFUSING_S, allowed_ms / 1_000 * _REFUSING)


def handed_out_too_often(delivery: Delivery) -> str:
    """Why a message is not even read any more."""
    return f"handed out {delivery.deliveries - 1} times, and never read to its end"
