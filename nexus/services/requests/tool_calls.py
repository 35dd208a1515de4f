"""Carries out calls of the memory tools, from a delivery on `tools.requests` to its one result (contract §7).

- Accepting a call never waits. Running calls and waiting calls are bounded, and owners share both as in
  `nexus.core.fairness`. A bus that keeps messages is the queue itself beyond that. On any other, calls beyond that
  are refused by a result, unless a replica with room takes them in a moment.
- A call is claimed and concluded as a build request is. The memory keeps its outcome, so that none is done twice.
- Calls are not resent. On a bus that keeps nothing every replica with the call waits until it has a result, and
  carries it out itself should the other be gone.
- A call of a tool that nobody has announced is answered by an error once the time for that is over, unless a result
  has been recorded or the tool announced meanwhile.
- A call from before an erasure, or of a run of which nothing is stored since, is not carried out.
- Whatever goes wrong, a result says so. The wait for a store that is away is short, and comes before the claim:
  replicas that die while they wait are no failed attempts.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Self

import anyio
import structlog

from nexus.core.concurrency import Pauses, Pending, supervised
from nexus.core.errors import BusRefusedError, BusUnavailableError, ErasedError, StoreUnavailableError
from nexus.core.fairness import FairWorkers, Room
from nexus.core.metrics import DeadLetterCause, Event, Metrics, NoMetrics, Reading
from nexus.core.models import Topics
from nexus.core.ports import Acquired, Bus, Claim, RequestLedger
from nexus.core.tracing import Key, describe
from nexus.services.history.rows import tool_row
from nexus.services.history.tombstones import Said, report_erased
from nexus.services.memory.documents import Caller
from nexus.services.memory.service import Outcome, WorkingMemory
from nexus.services.persistence import PersistenceService
from nexus.services.requests.claims import (
    MOST_ATTEMPTS,
    Claims,
    DeadLetterWriter,
)
from nexus.services.requests.envelope import RequestSettings, ToolCallRequest, processed
from nexus.services.tools.memory_tools import MEMORY_TOOLS

_log = structlog.get_logger(__name__)

MOST_CALLS, _MOST_CALLS_PER_OWNER = 64, 8
_TASK: Final = "tool_calls"
# Calls that a bus that keeps messages hands out while they wait for their owner's turn; one owner may have them all.
MOST_CALLS_ASIDE: Final = 512
_MOST_WAITING: Final = 2 * MOST_CALLS_ASIDE
# Refusals that may wait, and how many are sent at once.
_MOST_REFUSALS: Final = 16_384
_REFUSERS, _REFUSERS_PER_OWNER = 16, 8
# How long a replica without room leaves a call to the others.
_COURTESY_S: Final = 0.05
_MOST_WAITING_BYTES: Final = 64 << 20
# The longest wait for the store.
_STORE_AWAY_S: Final = 10.0
# Of a run id in an error.
_ID_CHARS: Final = 64

_FAILED: Final = Outcome("The call failed inside the memory service, which has kept a note of it.", done=False)
_AWAY: Final = Outcome(
    "The memory cannot be reached now, so nothing is known to be changed. Try again later.", done=False
)
_TOO_MANY: Final = Outcome(
    "Too many calls are waiting, so this one was not carried out, and nothing is changed. Try again later.", done=False
)


class _Done(NamedTuple):
    """The outcome of a call; `session_id` None for that of its run."""

    event: Event
    outcome: Outcome
    session_id: str | None
    retryable: bool = False


class ToolCallService:
    """Carries out calls of memory tools while `running()`; `pending` are accepted calls without a result.

    `ping_store` returns when the store answers, and raises as `DocumentStore.ping`; `is_announced` tells whether some
    runner has announced a tool of that name.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        memory: WorkingMemory,
        bus: Bus,
        ledger: RequestLedger,
        dead_letters: DeadLetterWriter,
        persistence: PersistenceService,
        ping_store: Callable[[], Awaitable[None]],
        settings: RequestSettings | None = None,
        metrics: Metrics | None = None,
        *,
        is_announced: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._memory = memory
        self._is_announced = is_announced
        self._unanswered = 0
        self._tasks = anyio.create_task_group()
        self._bus = bus
        self._dead_letters = dead_letters
        self._persistence = persistence
        self._ping_store = ping_store
        self._settings = settings or RequestSettings()
        self._metrics = metrics or NoMetrics()
        self._claims = Claims(bus, ledger, dead_letters, self._settings, self._metrics)
        self._calls = FairWorkers[ToolCallRequest](
            self._begin,
            most=MOST_CALLS,
            share=_MOST_CALLS_PER_OWNER,
            waiting=Room(_MOST_WAITING, _MOST_WAITING_BYTES),
            metrics=self._metrics,
            task=_TASK,
        )
        self._refusals = FairWorkers[ToolCallRequest](
            self._refuse,
            most=_REFUSERS,
            share=_REFUSERS_PER_OWNER,
            waiting=Room(_MOST_REFUSALS, _MOST_WAITING_BYTES),
            metrics=self._metrics,
            task=_TASK,
        )
        self.pending = Pending()
        self._metrics.read_from(Reading.UNFINISHED_CALLS, lambda: self.pending.count)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Carry out accepted calls until the context ends. Wait for `pending` first, to finish them."""
        async with self._calls.running(), self._refusals.running(), self._claims.running(), self._tasks:
            try:
                yield self
            finally:
                self._tasks.cancel_scope.cancel()

    def offer(self, call: ToolCallRequest) -> bool:
        """Accept a call, if only to refuse it. False when even too many refusals are waiting."""
        if call.name in MEMORY_TOOLS:
            return self._offer(call)
        is_announced = self._is_announced(call.name)
        if call.fault is not None and not is_announced:
            return self._offer(call)
        if is_announced or self._unanswered >= _MOST_WAITING:
            self._bus.done(call.delivery)
            return True
        self._bus.set_aside(call.delivery, aside=True)
        self._unanswered += 1
        self._tasks.start_soon(supervised, self._metrics, _TASK, partial(self._answer_for_others, call))
        return True

    async def _answer_for_others(self, call: ToolCallRequest) -> None:
        """Refuse a call of an unknown tool that nobody has answered when the time for that is over."""
        after_ms = self._settings.unknown_tools_after_ms or 0
        await anyio.sleep(after_ms / 1_000)
        self._unanswered -= 1
        reason = f"{call.name[:_ID_CHARS]}: nobody has announced such a tool, and no result came within {after_ms} ms"
        if self._is_announced(call.name) or await self._has_result(call):
            self._bus.done(call.delivery)
        elif not self._offer(replace(call, fault=reason)):
            self._bus.done(call.delivery)
            self._dead_letters.lose(call.delivery, "too many calls of tools are waiting")

    async def _has_result(self, call: ToolCallRequest) -> bool:
        if not call.call_id:
            return False
        try:
            return await self._persistence.has_result(call.ids.owner_key, call.ids.run_id, call.call_id)
        except StoreUnavailableError as error:
            # A second result is passed over; a run without one waits for ever.
            _log.warning("tool_call_delayed", request_id=call.ids.id, name=call.name, reason=str(error))
            return False

    def _offer(self, call: ToolCallRequest) -> bool:
        delivery, owner = call.delivery, call.ids.owner_key
        # A bus that keeps messages hands out a bounded number of bytes.
        size = 0 if delivery.shared else len(delivery.payload)
        if not self._calls.is_free(owner):
            self._bus.set_aside(delivery, aside=True)
        taken = self._calls.offer(owner, call, size) or self._refusals.offer(owner, replace(call, surplus=True), size)
        if taken:
            self.pending.begin()
        return taken

    async def _begin(self, call: ToolCallRequest) -> None:
        self._bus.set_aside(call.delivery, aside=False)
        await self._answer(call)

    async def _refuse(self, call: ToolCallRequest) -> None:
        await anyio.sleep(max(_COURTESY_S - call.waited_s, 0))
        await self._answer(call)

    async def _answer(self, call: ToolCallRequest) -> None:
        """Answer a call. Raises nothing but cancellation."""
        try:
            with processed(call, self._settings):
                await self._answer_until_bus_is_back(call)
        except Exception:  # noqa: BLE001  # the outermost handler: one message must not end the service
            _log.exception("tool_call_failed")
            await self._claims.give_up(call.delivery, "answering it failed", DeadLetterCause.POISON)
        finally:
            self.pending.end()

    async def _answer_until_bus_is_back(self, call: ToolCallRequest) -> None:
        asked_at, pauses = call.arrived_at, Pauses()
        await self._until_store_answers(call)
        while True:
            try:
                await self._claims.claim(call, asked_at, self._settle)
            except BusUnavailableError as error:
                if not isinstance(error, BusRefusedError):
                    _log.warning("tool_call_unanswered", request_id=call.ids.id, name=call.name, reason=str(error))
                    if call.may_wait:
                        await pauses.wait()
                        # The latest announcement may be the one that has just failed.
                        asked_at = time.monotonic()
                        continue
                await self._claims.give_up(call.delivery, str(error), DeadLetterCause.OTHER, call.ids.id)
            return

    async def _until_store_answers(self, call: ToolCallRequest) -> None:
        """Wait for the store before the call is claimed, but not for long."""
        pauses = Pauses()
        while not call.surplus and call.fault is None and call.waited_s <= _STORE_AWAY_S:
            try:
                return await self._ping_store()
            except StoreUnavailableError as error:
                await self._delay(call, pauses, error)
        return None

    async def _delay(self, call: ToolCallRequest, pauses: Pauses, error: StoreUnavailableError) -> None:
        if not pauses.begun:
            _log.warning("tool_call_delayed", request_id=call.ids.id, name=call.name, reason=str(error))
        await pauses.wait()

    async def _settle(self, call: ToolCallRequest, claim: Claim) -> None:
        if not isinstance(claim, Acquired):
            await self._claims.leave(call, claim)
            return
        async with self._claims.held(claim):
            done = _refused(call) if call.surplus else await self._carry_out(call, claim.attempts)
            await self._conclude(call, claim, done)

    async def _carry_out(self, call: ToolCallRequest, attempts: int) -> _Done:
        if attempts > MOST_ATTEMPTS:
            return await self._failed(call, f"taken up {attempts - 1} times, and never answered")
        if call.fault is not None:
            return _Done(Event.CALL_REFUSED, Outcome(call.fault, done=False), call.session_id)
        pauses = Pauses()
        while True:
            try:
                caller = await self._caller(call)
                if isinstance(caller, Outcome):
                    return _Done(Event.CALL_REFUSED, caller, call.session_id)
                outcome = await self._memory.run(call.name, call.args, caller)
                return _Done(Event.CALL_DONE if outcome.done else Event.CALL_REFUSED, outcome, caller.session_id)
            except StoreUnavailableError as error:
                if call.waited_s > _STORE_AWAY_S:
                    return _Done(Event.CALL_FAILED, _AWAY, call.session_id, retryable=True)
                await self._delay(call, pauses, error)
            except Exception:  # noqa: BLE001  # whatever goes wrong, there is a result
                _log.exception("tool_call_failed", request_id=call.ids.id, name=call.name)
                return await self._failed(call, "doing it failed")

    async def _failed(self, call: ToolCallRequest, reason: str) -> _Done:
        await self._dead_letters.write(call.delivery, reason, DeadLetterCause.POISON, call.ids.id)
        return _Done(Event.CALL_FAILED, _FAILED, call.session_id)

    async def _caller(self, call: ToolCallRequest) -> Caller | Outcome:
        """The caller, in the session of its run; or why that is not known, or was erased, and nothing is done."""
        run_id, named = call.ids.run_id, call.session_id
        origin = await self._persistence.origins.known(call.ids.owner_key, run_id)
        if origin and named not in {None, origin.session_id}:
            where = f"the run {run_id[:_ID_CHARS]!r} belongs to the session {origin.session_id!r}"
            return Outcome(f"metadata.session_id: is {named!r}, and {where}; leave it out", done=False)
        session_id = origin.session_id if origin else named
        if session_id is None:
            reason = f"run_id: of the run {run_id[:_ID_CHARS]!r} it is not known to which session it belongs; "
            return Outcome(reason + "ask for its context first, or name the session in metadata.session_id", done=False)
        try:
            said = Said(call.ids.owner_key, session_id, call.said_at, run_id, is_result=True)
            await self._persistence.tombstones.raise_if_erased([said])
        except ErasedError as error:
            report_erased(self._metrics, error, request_id=call.ids.id, run_id=run_id)
            return Outcome(f"{error}. Nothing was done.", done=False)
        of_run = origin.sub_agent if origin else None
        sub_agent = of_run if call.sub_agent is None else call.sub_agent
        return Caller(call.ids.owner_key, session_id, run_id, call.result_id, sub_agent)

    async def _conclude(self, call: ToolCallRequest, claim: Acquired, done: _Done) -> None:
        outcome = done.outcome
        result = call.result(outcome.text, done=outcome.done, retryable=done.retryable, session_id=done.session_id)
        encoded = call.encoded(result)
        keep_ms = self._settings.answer_ttl_ms
        receivers = await self._claims.conclude(call, claim, Topics.TOOLS_RESULTS, encoded, keep_ms)
        said = "success" if outcome.done else "error"
        describe({Key.OUTCOME: said, Key.ATTEMPTS: claim.attempts, Key.ANSWER_SIZE: len(encoded)})
        if receivers is not None:
            self._metrics.count(done.event)
            # Every replica that receives the result records it. This one may be stopped before it does.
            if not call.surplus:
                self._persistence.offer(tool_row(result, len(encoded)), len(encoded))
        _log.info(
            "late_answer_discarded" if receivers is None else "tool_call_answered",
            request_id=call.ids.id,
            run_id=call.ids.run_id,
            name=call.name,
            outcome=said,
            bytes=len(encoded),
            ms=round(call.waited_s * 1_000, 1),
        )


def _refused(call: ToolCallRequest) -> _Done:
    return _Done(Event.CALL_FAILED, _TOO_MANY, call.session_id, retryable=True)
