"""From one request to its one effective answer (contract §1.4, §1.5).

Rules of this module:

- A request is claimed and concluded as `deliveries` says. What another replica builds is left to it; where the bus
  keeps the delivery for this replica, it waits until that one has answered or is gone.
- A deadline is a duration, by the clock of the ledger: from when the bus took the request, where it says so, else from
  when a replica that asked the ledger heard it first. No sender's clock is ever asked.
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
from nexus.core.ports import Acquired, Bus, Claim, Delivery, OutboxRow, RequestLedger
from nexus.services.context.builder import ContextBuilder
from nexus.services.context.request import Deadline, deadline_ms
from nexus.services.requests.deliveries import (
    MOST_ATTEMPTS,
    MOST_DELIVERIES,
    PAUSE_S,
    Claims,
    DeadLetterWriter,
    handed_out_too_often,
)
from nexus.services.requests.envelope import IncomingRequest, RequestSettings, read_incoming

_log = structlog.get_logger(__name__)

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
    """Answers requests, one at a time for each caller. Run `run` in a task of its own."""

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
        self._dead_letters = dead_letters
        self._settings = settings
        self._metrics = metrics
        self._claims = Claims(bus, ledger, dead_letters, settings, metrics)

    async def run(self) -> None:
        """Renew the leases on what is being built, until cancelled."""
        await self._claims.renew_all()

    async def answer(self, delivery: Delivery, arrived_at: float, *, refused: RequestError | None = None) -> None:
        """Bring about the answer to a delivery.

        Raises nothing but cancellation. Where the bus keeps messages, it goes on until Redis is back.

        Args:
            delivery: the request.
            arrived_at: when it came, on the monotonic clock.
            refused: the answer, for a request that is not to be built.
        """
        settings = self._settings
        try:
            if delivery.deliveries > MOST_DELIVERIES:
                await self._claims.give_up(delivery, handed_out_too_often(delivery), DeadLetterCause.POISON)
                return
            request = read_incoming(
                delivery, arrived_at, max_bytes=settings.max_payload_bytes, signing=settings.signing
            )
            await self._answer_until_bus_is_back(request, refused)
        except UnreadablePayloadError as error:
            await self._claims.give_up_unreadable(delivery, error)
        except Exception:  # noqa: BLE001  # the outermost handler: one message must not end the service
            _log.exception("request_failed")
            await self._claims.give_up(delivery, "answering it failed", DeadLetterCause.POISON)

    async def _answer_until_bus_is_back(self, request: IncomingRequest, refused: RequestError | None) -> None:
        asked_at = request.arrived_at

        async def settle(item: IncomingRequest, claim: Claim) -> None:
            await self._settle(item, claim, refused)

        while True:
            try:
                await self._claims.claim(request, asked_at, settle)
            except BusRefusedError as error:
                await self._claims.give_up(request.delivery, str(error), DeadLetterCause.OTHER, request.ids.id)
            except BusUnavailableError as error:
                _log.warning("request_unanswered", request_id=request.ids.id, reason=str(error))
                if request.may_wait:
                    await anyio.sleep(PAUSE_S)
                    # What was announced last may be what has just failed.
                    asked_at = time.monotonic()
                    continue
                # No answer can be sent. The requester sends it again, and the bus will be back.
            return

    async def _settle(self, request: IncomingRequest, claim: Claim, refused: RequestError | None) -> None:
        if isinstance(claim, Acquired):
            async with self._claims.held(claim):
                answer = await self._made(request, claim, refused)
                started = time.monotonic()
                heard = await self._claims.conclude(
                    request, claim, request.topic, answer.content, self._keep_ms(answer), answer.outbox
                )
            self._report(request, answer, heard, started)
            return
        if isinstance(request.asked, Message):
            # Results of a run that another replica answers may be recorded here first.
            self._builder.remember_run(request.asked)
        heard = await self._claims.leave(request, claim)
        if heard is not None:
            self._metrics.count(Event.ANSWER_REPEATED)
        if heard == 0:
            self._metrics.count(Event.ANSWER_UNHEARD)

    async def _made(self, request: IncomingRequest, claim: Acquired, refused: RequestError | None) -> _Answer:
        """The answer to a request that is this replica's. Whatever goes wrong, there is one."""
        ids, asked = request.ids, request.asked
        if claim.attempts > 1:
            self._metrics.count(Event.LEASE_TAKEN_OVER)
            _log.info("request_taken_over", request_id=ids.id, attempts=claim.attempts)
        if claim.attempts > MOST_ATTEMPTS:
            reason = f"taken up {claim.attempts - 1} times, and never answered"
            await self._dead_letters.write(request.delivery, reason, DeadLetterCause.POISON, ids.id)
            return _internal(request, "the context could not be built; the dead letters name the request")
        if isinstance(asked, RequestError):
            return _refusal(request, asked)
        if refused:
            return _refusal(request, refused)
        return await self._built(request, asked, claim)

    async def _built(self, request: IncomingRequest, message: Message, claim: Acquired) -> _Answer:
        try:
            allowed_ms = deadline_ms(message, self._settings.deadline_ms)
        except RequestError as error:
            return _refusal(request, error)
        waited_s = max(time.monotonic() - request.arrived_at, claim.waited_ms(request.delivery) / 1_000)
        self._metrics.took(Stage.QUEUE, waited_s)
        deadline = Deadline(allowed_ms, anyio.current_time() + _building_s(allowed_ms) - waited_s)
        if deadline.left_s <= 0:
            return _refusal(request, deadline.exceeded())
        timings_ms = {"queue": round(waited_s * 1_000, 3)}
        try:
            built = await self._builder.build(
                message, deadline, timings_ms=timings_ms, outbox_waiting=claim.outbox_waiting
            )
            if built.failed:
                await self._write_failure(request)
            if isinstance(built.result, RequestError):
                return _refusal(request, built.result)._replace(outbox=built.outbox)
            return _Answer(request.answer(built.result), None, built.outbox)
        except Exception:  # noqa: BLE001  # what cannot be encoded is answered too
            _log.exception("build_failed", request_id=request.ids.id)
            await self._write_failure(request)
            return _internal(request, "the context could not be built; the service's log says why")

    async def _write_failure(self, request: IncomingRequest) -> None:
        await self._dead_letters.write(request.delivery, "building it failed", DeadLetterCause.POISON, request.ids.id)

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


def _refusal(request: IncomingRequest, error: RequestError) -> _Answer:
    return _Answer(request.refusal(error), error.code)


def _internal(request: IncomingRequest, reason: str) -> _Answer:
    return _refusal(request, RequestError(ErrorCode.INTERNAL, reason))


def _building_s(allowed_ms: int) -> float:
    """How long after it was asked for a context may be built, if the requester waits so long for it."""
    return allowed_ms / 1_000 - min(_REFUSING_S, allowed_ms / 1_000 * _REFUSING)
