"""Requests for contexts and searches, from their acceptance to their one effective answer (contract §1.4 to §1.6).

- Work is bounded: `max_in_flight` requests, `max_in_flight_per_owner` of one owner, as many waiting requests, beyond
  that OVERLOADED. Owners share all of it as in `nexus.core.fairness`. A bus that keeps messages is the queue itself
  beyond that, and marks the surplus.
- On a bus that keeps nothing every replica receives every request. One without room waits a moment before it refuses:
  another with room will have claimed it. The same bytes are accepted once at a time.
- A request that another replica builds is left to it; where the bus keeps the delivery for this replica, it waits
  until the other has answered or is gone.
- A deadline is a duration by the ledger's clock, since the bus took the request, where the bus says so, else since
  the first replica that asked the ledger received it.
- An answer that asks for another try is kept while copies of the request may be on their way, and no longer.
"""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self

import anyio
import structlog

from nexus.core.concurrency import Pending
from nexus.core.errors import BusRefusedError, BusUnavailableError, ErrorCode, RequestError
from nexus.core.fairness import FairWorkers, Room
from nexus.core.metrics import DeadLetterCause, Event, Metrics, NoMetrics, Reading, Stage
from nexus.core.models import Message, Topics
from nexus.core.ports import Acquired, Bus, Claim, Delivery, OutboxRow, RecallSource, RequestLedger
from nexus.core.tracing import Attributes, Key, describe
from nexus.core.wire import memory_of
from nexus.services.context.builder import Built, ContextBuilder
from nexus.services.context.request import Deadline, deadline_ms
from nexus.services.requests.answer_recorder import AnswerRecorder
from nexus.services.requests.claims import (
    MOST_ATTEMPTS,
    PAUSE_S,
    Claims,
    DeadLetterWriter,
)
from nexus.services.requests.envelope import IncomingRequest, RequestSettings, processed, sent_at
from nexus.services.requests.searches import MemorySearches

_log = structlog.get_logger(__name__)

_TASK: Final = "requests"
# Refusals that may wait, and how many are answered at once. Beyond that requests are dropped and logged: a sender that
# resends asks again.
MOST_REFUSALS_PER_OWNER: Final = 4_096
_REFUSERS, _REFUSERS_PER_OWNER = 16, 8
# As they are in memory once they are read.
_MOST_WAITING_BYTES: Final = 64 << 20
# How long a replica without room leaves a request to the others.
_COURTESY_S: Final = 0.05
_SHORTEST_RETRY_MS, _LONGEST_RETRY_MS = 100, 60_000
# The weight of the latest request in the average time between two.
_PACE_WEIGHT: Final = 0.05
# The end of a deadline is kept for saying that it has passed: so long, but no more than this part of it.
_REFUSING_S, _REFUSING = 0.15, 0.05
# How long copies of a request may arrive, whose longest deadline is 60 s; and replays of a signed one.
_ON_ITS_WAY_MS: Final = 120_000
_REPLAYABLE_MS: Final = 600_000
# An agent asks at each of its steps, and every answer has all of its session.
_LARGE: Final = 256 << 10


class _Answer(NamedTuple):
    """An encoded answer; the error; the row of the run's input, where the store has not taken it; what was built."""

    content: bytes
    error: RequestError | None = None
    outbox: OutboxRow | None = None
    built: Built | None = None

    @property
    def code(self) -> ErrorCode | None:
        return self.error.code if self.error else None


class RequestService:
    """Answers build requests while `running()`; `settings` hold for everything that comes over the bus.

    `pending` are accepted requests that are not finished.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        builder: ContextBuilder,
        bus: Bus,
        ledger: RequestLedger,
        dead_letters: DeadLetterWriter,
        settings: RequestSettings | None = None,
        metrics: Metrics | None = None,
        *,
        recall: RecallSource | None = None,
        record: AnswerRecorder | None = None,
    ) -> None:
        self.settings = settings or RequestSettings()
        self._metrics = metrics or NoMetrics()
        self.pending = Pending()
        self._bus = bus
        searches = MemorySearches(recall, self.settings.max_payload_bytes)
        self._answerer = Answerer(builder, searches, bus, ledger, dead_letters, self.settings, self._metrics, record)
        most, share = self.settings.max_in_flight, self.settings.max_in_flight_per_owner
        waiting = Room(most, _MOST_WAITING_BYTES)
        self._builds = FairWorkers[IncomingRequest](
            self._build, most=most, share=share, waiting=waiting, metrics=self._metrics, task=_TASK
        )
        refusals = Room(2 * MOST_REFUSALS_PER_OWNER, _MOST_WAITING_BYTES)
        self._refusals = FairWorkers[IncomingRequest](
            self._refuse,
            most=_REFUSERS,
            share=_REFUSERS_PER_OWNER,
            waiting=refusals,
            metrics=self._metrics,
            task=_TASK,
        )
        self._gap_s = 0.0
        self._last_finished: float | None = None
        # Fingerprints of what a bus that keeps nothing delivered.
        self._in_hand: set[str] = set()
        self._metrics.read_from(Reading.IN_FLIGHT, lambda: self._builds.at_work + self._refusals.at_work)
        self._metrics.read_from(Reading.WAITING_REQUESTS, lambda: waiting.count)
        self._metrics.read_from(Reading.WAITING_REFUSALS, lambda: refusals.count)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Answer accepted requests until the context ends; wait for `pending` first, to finish them."""
        async with self._builds.running(), self._refusals.running(), self._answerer.claims.running():
            yield self

    def offer(self, request: IncomingRequest) -> None:
        """Accept a request, or have it refused. Returns at once."""
        delivery, owner = request.delivery, request.ids.owner_key
        if not delivery.shared and request.fingerprint in self._in_hand:
            return
        # A bus that keeps messages hands out a bounded number of bytes.
        size = 0 if delivery.shared else memory_of(delivery.payload)
        to_refuse = delivery.surplus or isinstance(request.asked, RequestError)
        if to_refuse or not self._builds.is_free(owner):
            self._bus.set_aside(delivery, aside=True)
        if to_refuse or not self._builds.offer(owner, request, size):
            if isinstance(request.asked, Message):
                request = replace(request, asked=self._overloaded())
            if not self._refusals.offer(_line_of(request), request, size and len(delivery.payload)):
                self.drop(delivery, "too many refusals are waiting")
                return
        self.pending.begin()
        if not delivery.shared:
            self._in_hand.add(request.fingerprint)

    def drop(self, delivery: Delivery, reason: str) -> None:
        """Log and count a request that is not even refused."""
        self._metrics.count(Event.REQUEST_DROPPED)
        _log.error("request_dropped", reason=reason, size=len(delivery.payload))

    async def _build(self, request: IncomingRequest) -> None:
        self._bus.set_aside(request.delivery, aside=False)
        with self._finishing(request):
            await self._answerer.answer(request)
            self._measure_pace()

    async def _refuse(self, request: IncomingRequest) -> None:
        with self._finishing(request):
            error = request.asked
            if not request.may_wait and isinstance(error, RequestError) and error.code is ErrorCode.OVERLOADED:
                await anyio.sleep(max(request.arrived_at + _COURTESY_S - time.monotonic(), 0))
            await self._answerer.answer(request)

    @contextmanager
    def _finishing(self, request: IncomingRequest) -> Iterator[None]:
        try:
            yield
        finally:
            self.pending.end()
            self._in_hand.discard(request.fingerprint)
            if not self.pending.count:
                # The time until the next request would say nothing about the pace.
                self._last_finished = None

    def _measure_pace(self) -> None:
        now = time.monotonic()
        if self._last_finished is not None:
            self._gap_s += _PACE_WEIGHT * (now - self._last_finished - self._gap_s)
        self._last_finished = now

    def _overloaded(self) -> RequestError:
        """The refusal of a request without room, with the time in which the waiting requests may be done."""
        ms = int(self._gap_s * self.settings.max_in_flight * 1_000)
        retry_after_ms = min(max(ms, _SHORTEST_RETRY_MS), _LONGEST_RETRY_MS)
        reason = f"too many requests are waiting; try again with a new id, in about {retry_after_ms} ms"
        return RequestError(ErrorCode.OVERLOADED, reason, retry_after_ms)


def _line_of(request: IncomingRequest) -> str:
    """In whose line a refusal waits: strangers who use an owner's name share one."""
    error = request.asked
    is_strange = isinstance(error, RequestError) and error.code is ErrorCode.UNAUTHENTICATED
    return "" if is_strange else request.ids.owner_key


class Answerer:
    """Answers requests, one at a time for each caller, while its `claims` are running."""

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        builder: ContextBuilder,
        searches: MemorySearches,
        bus: Bus,
        ledger: RequestLedger,
        dead_letters: DeadLetterWriter,
        settings: RequestSettings,
        metrics: Metrics,
        record: AnswerRecorder | None = None,
    ) -> None:
        self._record = record
        self._builder = builder
        self._searches = searches
        self._dead_letters = dead_letters
        self._settings = settings
        self._metrics = metrics
        self._signing = anyio.CapacityLimiter(1)
        self.claims = Claims(bus, ledger, dead_letters, settings, metrics)

    async def answer(self, request: IncomingRequest) -> None:
        """Answer a request. Raises nothing but cancellation.

        Where the bus keeps messages, it goes on until Redis is back.
        """
        try:
            with processed(request, self._settings):
                await self._answer_until_bus_is_back(request)
        except Exception:  # noqa: BLE001  # the outermost handler: one message must not end the service
            _log.exception("request_failed")
            await self.claims.give_up(request.delivery, "answering it failed", DeadLetterCause.POISON)

    async def _answer_until_bus_is_back(self, request: IncomingRequest) -> None:
        asked_at = request.arrived_at
        while True:
            try:
                await self.claims.claim(request, asked_at, self._settle)
            except BusRefusedError as error:
                await self.claims.give_up(request.delivery, str(error), DeadLetterCause.OTHER, request.ids.id)
            except BusUnavailableError as error:
                _log.warning("request_unanswered", request_id=request.ids.id, reason=str(error))
                if request.may_wait:
                    await anyio.sleep(PAUSE_S)
                    # The latest announcement may be the one that has just failed.
                    asked_at = time.monotonic()
                    continue
                # No answer can be sent. The requester sends it again, and the bus will be back.
            return

    async def _settle(self, request: IncomingRequest, claim: Claim) -> None:
        if isinstance(claim, Acquired):
            async with self.claims.held(claim):
                answer = await self._answer(request, claim)
                started = time.monotonic()
                receivers = await self.claims.conclude(
                    request, claim, request.topic, answer.content, self._keep_ms(answer), answer.outbox
                )
            self._report(request, answer, receivers, started)
            if self._record and receivers is not None:
                self._record.record(request, answer.content, answer.error, answer.built)
            return
        if isinstance(request.asked, Message) and request.delivery.topic == Topics.CONTEXT_BUILD_REQUEST:
            # Results of a run that another replica answers may be recorded here first.
            self._builder.remember_run(request.asked)
        receivers = await self.claims.leave(request, claim)
        if receivers is not None:
            self._metrics.count(Event.ANSWER_REPEATED)
        if receivers == 0:
            self._metrics.count(Event.ANSWER_UNHEARD)

    async def _answer(self, request: IncomingRequest, claim: Acquired) -> _Answer:
        """The answer to a claimed request. Whatever goes wrong, there is one."""
        ids, asked = request.ids, request.asked
        describe({Key.ATTEMPTS: claim.attempts})
        if claim.attempts > 1:
            self._metrics.count(Event.LEASE_TAKEN_OVER)
            _log.info("request_taken_over", request_id=ids.id, attempts=claim.attempts)
        if claim.attempts > MOST_ATTEMPTS:
            reason = f"taken up {claim.attempts - 1} times, and never answered"
            await self._dead_letters.write(request.delivery, reason, DeadLetterCause.POISON, ids.id)
            return _internal(request, "it could not be answered; the dead letters name the request")
        if isinstance(asked, RequestError):
            return _refusal(request, asked)
        return await self._build(request, asked, claim)

    async def _build(self, request: IncomingRequest, message: Message, claim: Acquired) -> _Answer:
        try:
            allowed_ms = deadline_ms(message, self._settings.deadline_ms)
        except RequestError as error:
            return _refusal(request, error)
        allowed_s = allowed_ms / 1_000
        waited_s = max(time.monotonic() - request.arrived_at, _waited_s(claim, request.delivery))
        self._metrics.took(Stage.QUEUE, waited_s)
        building_s = allowed_s - min(_REFUSING_S, allowed_s * _REFUSING)
        deadline = Deadline(allowed_ms, anyio.current_time() + building_s - waited_s)
        if deadline.left_s <= 0:
            return _refusal(request, deadline.exceeded())
        timings_ms = {"queue": round(waited_s * 1_000, 3)}
        try:
            if request.delivery.topic == Topics.MEMORY_SEARCH:
                built = Built(await self._searches.answer(message, deadline))
            else:
                built = await self._builder.build(
                    message,
                    deadline,
                    timings_ms=timings_ms,
                    outbox_waiting=claim.outbox_waiting,
                    sent_at=sent_at(request.delivery),
                )
            if built.failed:
                await self._write_failure(request)
            if isinstance(built.result, RequestError):
                return _refusal(request, built.result)._replace(outbox=built.outbox, built=built)
            return _Answer(await self._encoded(request, built.result), None, built.outbox, built)
        except Exception:  # noqa: BLE001  # a content that cannot be encoded is answered too
            _log.exception("build_failed", request_id=request.ids.id)
            await self._write_failure(request)
            return _internal(request, "it could not be answered; the service's log says why")

    async def _encoded(self, request: IncomingRequest, content: Mapping[str, Any]) -> bytes:
        if request.signing is None:
            return request.answer(content)
        # A signature needs the canonical form, in Python: a tenth of a second for megabytes of small values.
        return await anyio.to_thread.run_sync(request.answer, content, limiter=self._signing)

    async def _write_failure(self, request: IncomingRequest) -> None:
        await self._dead_letters.write(request.delivery, "building it failed", DeadLetterCause.POISON, request.ids.id)

    def _keep_ms(self, answer: _Answer) -> int:
        """At least while copies may arrive; answers that fill Redis, by size or by number, no longer than that."""
        shortest_ms = _REPLAYABLE_MS if self._settings.signing else _ON_ITS_WAY_MS
        code = answer.code
        if len(answer.content) > _LARGE or (code and (code.retryable or code is ErrorCode.UNAUTHENTICATED)):
            return shortest_ms
        return max(self._settings.answer_ttl_ms, shortest_ms)

    def _report(self, request: IncomingRequest, answer: _Answer, receivers: int | None, started: float) -> None:
        """Count and log an answer; `receivers` is None where the request had one before."""
        ended = time.monotonic()
        describe(_attributes_of(answer, late=receivers is None))
        if receivers is None:
            self._metrics.count(Event.LATE_ANSWER_DISCARDED)
        else:
            self._metrics.answered(answer.code)
            self._metrics.took(Stage.FINISH, ended - started)
            self._metrics.took(Stage.TOTAL, ended - request.arrived_at)
        if receivers == 0:
            self._metrics.count(Event.ANSWER_UNHEARD)
            _log.info("answer_unheard", request_id=request.ids.id)
        _log.info(
            "late_answer_discarded" if receivers is None else "answered",
            request_id=request.ids.id,
            run_id=request.ids.run_id,
            outcome=answer.code.value if answer.code else "success",
            bytes=len(answer.content),
            ms=round((ended - request.arrived_at) * 1_000, 1),
        )


def _attributes_of(answer: _Answer, *, late: bool) -> Attributes:
    code, built = answer.code, answer.built
    outcome = "late_answer_discarded" if late else code.value if code else "success"
    attributes: dict[Key, Any] = {Key.OUTCOME: outcome, Key.ANSWER_SIZE: len(answer.content)}
    if code:
        attributes[Key.ERROR] = code.value
    if built and built.request:
        attributes |= {Key.LAYOUT: built.request.layout, Key.FORMAT: built.request.form}
    if built and isinstance(built.result, dict) and "messages" in built.result:
        attributes |= {Key.MESSAGES: len(built.result["messages"]), Key.DEGRADED: built.result["degraded"]}
        if tokens := built.result["context"].get("tokens"):
            attributes[Key.TOKENS] = tokens["used"]
    return attributes


def _refusal(request: IncomingRequest, error: RequestError) -> _Answer:
    return _Answer(request.refusal(error), error)


def _internal(request: IncomingRequest, reason: str) -> _Answer:
    return _refusal(request, RequestError(ErrorCode.INTERNAL, reason))


def _waited_s(claim: Acquired, delivery: Delivery) -> float:
    """How long the requester has waited since the first delivery, by the ledger's clock alone.

    A later copy of the request begins no new deadline.
    """
    return (claim.now_ms - min(filter(None, (claim.asked_ms, delivery.sent_ms)), default=claim.now_ms)) / 1_000
