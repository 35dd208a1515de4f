"""From one request to its one effective answer (CONTRACT §1.4, §1.5).

Rules of this module:

- A request is claimed at the ledger and finished there: answer kept, published and the delivery acknowledged in one
  step. What is already answered is announced again. What another replica is at is left to it; where the delivery is
  this replica's charge, it waits until that one has answered or is gone.
- What can be made of what is in memory, or read in a moment, is made before that (`unclaimed`).
- A deadline is a duration, by the clock of the ledger: from when the bus took the request, where it says so, else from
  when a replica that asked the ledger heard it first. No sender's clock is ever asked.
- A request that was taken up five times without an answer coming of it is taken for one that kills who builds it. But
  whatever a replica has in hand when it dies is taken up again together, and would die together five times. So what is
  taken up for the third time is claimed and built alone among its like: a death then counts for that one only.
- An answer that says "try again" is kept as long as copies of the request may be on their way, which is well beyond any
  deadline, and no longer: under overload they are many. Trying again means a new id.
"""

import time
from typing import Final

import anyio
import structlog

from nexus.core.errors import BusRefusedError, BusUnavailableError, ErrorCode, RequestError, UnreadablePayloadError
from nexus.core.metrics import DeadLetterCause, Event, Metrics
from nexus.core.models import Message
from nexus.core.polling import BusyPolling
from nexus.core.ports import (
    Acquired,
    Announced,
    Answered,
    Bus,
    Claim,
    Concluded,
    Conflict,
    Delivery,
    Ending,
    KeptBefore,
    RequestLedger,
)
from nexus.services.asks import Ask, RequestSettings, read_ask
from nexus.services.building import Building
from nexus.services.burying import Burying
from nexus.services.claiming import Claiming
from nexus.services.context.ahead import Ahead
from nexus.services.context.builder import ContextBuilder
from nexus.services.telling import Telling
from nexus.services.unclaimed import Unclaimed, Unread

_log = structlog.get_logger(__name__)

# A request that was begun more often without being finished is a dead letter (CONTRACT §1.5); from which attempt on it
# is begun alone.
_MOST_ATTEMPTS: Final = 5
_SUSPECT: Final = 3
# Reading a message comes before any attempt. One that was handed out more often has never been read to its end. Far
# more, because what waits for a database that is away is handed out again whenever its replica dies.
MOST_DELIVERIES: Final = 100
_PAUSE_S: Final = 1.0


class Answerer:
    """Answers requests, one at a time for each caller.

    Args:
        builder, bus, ledger, burying, metrics: whom it asks and tells.
        settings: what is promised of requests.
        polling: entered while the history of one is read.
    """

    def __init__(  # noqa: PLR0917  # one for each port
        self,
        builder: ContextBuilder,
        bus: Bus,
        ledger: RequestLedger,
        burying: Burying,
        settings: RequestSettings,
        metrics: Metrics,
        polling: BusyPolling,
    ) -> None:
        self._builder = builder
        self._building = Building(builder, ledger, burying, settings, metrics)
        self._bus = bus
        self._ledger = ledger
        self._burying = burying
        self._settings = settings
        self._metrics = metrics
        self._suspects = anyio.Lock()
        self._claiming = Claiming(ledger, settings)
        self._telling = Telling(bus, settings, metrics)
        self._unclaimed = Unclaimed(builder, self._building, self._claiming, self._telling, ledger, polling, settings)

    async def run(self) -> None:
        """Hold what is being built, until cancelled. Run in a task of its own."""
        await self._building.leases.run()

    async def answer(self, delivery: Delivery, at: float, *, refused: RequestError | None = None) -> None:
        """Bring about the answer to what arrived at `at`, on the monotonic clock; with `refused`, that it is not built.

        Raises nothing but cancellation. Where the bus keeps messages, it goes on until Redis is back.
        """
        try:
            if delivery.deliveries > MOST_DELIVERIES:
                await self._give_up(delivery, handed_out_too_often(delivery), DeadLetterCause.POISON)
                return
            ask = read_ask(delivery, at, max_bytes=self._settings.max_payload_bytes, signing=self._settings.signing)
            await self._bring_about(ask, refused)
        except UnreadablePayloadError as error:
            too_large = len(delivery.payload) > self._settings.max_payload_bytes
            cause = DeadLetterCause.TOO_LARGE if too_large else DeadLetterCause.UNREADABLE
            await self._give_up(delivery, str(error), cause)
        except Exception:  # noqa: BLE001  # the outermost handler: one message must not end the service
            _log.exception("request_failed")
            await self._give_up(delivery, "answering it failed", DeadLetterCause.POISON)

    async def _give_up(self, delivery: Delivery, reason: str, cause: DeadLetterCause, message_id: str = "") -> None:
        await self._burying.bury(delivery, reason, cause, message_id)
        self._bus.done(delivery)

    async def _bring_about(self, ask: Ask, refused: RequestError | None) -> None:
        delivery, asked_at = ask.delivery, ask.at
        while True:
            try:
                await self._serve(ask, asked_at, refused)
            except BusRefusedError as error:
                await self._give_up(delivery, str(error), DeadLetterCause.OTHER, ask.ids.id)
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
        message = ask.asked if isinstance(ask.asked, Message) and not refused else None
        seen = self._builder.glance(message) if message else None
        if message and seen and seen.past and self._claiming.reading.is_worth_it(ask.delivery):
            outcome = await self._unclaimed.claim(Unread(ask, message, asked_at, seen, seen.past))
            if outcome is None:
                return
            claim, ahead = outcome
        else:
            ahead = self._builder.look_ahead(message, seen, self._settings.deadline_ms) if message and seen else None
            claim = await self._claiming.claim(ask, asked_at, ahead)
        await self._serve_claimed(ask, claim, asked_at, refused, ahead)

    async def _serve_claimed(
        self, ask: Ask, claim: Claim, asked_at: float, refused: RequestError | None, ahead: Ahead | None
    ) -> None:
        if isinstance(claim, Conflict):
            ask, ahead = ask.as_conflict(), None
            claim = await self._claiming.claim(ask, asked_at, ahead)
        if isinstance(claim, Acquired) and claim.attempts >= _SUSPECT:
            await self._ledger.release(claim)
            async with self._suspects:
                await self._settle(ask, await self._claiming.claim(ask, asked_at, ahead), refused, ahead)
        else:
            await self._settle(ask, claim, refused, ahead)

    async def _settle(self, ask: Ask, claim: Claim, refused: RequestError | None, ahead: Ahead | None) -> None:
        if isinstance(claim, Acquired):
            await self._answer(ask, claim, refused, ahead)
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

    async def _answer(self, ask: Ask, claim: Acquired, refused: RequestError | None, ahead: Ahead | None) -> None:
        asked = ask.asked
        if claim.attempts > 1:
            self._metrics.count(Event.LEASE_TAKEN_OVER)
            _log.info("request_taken_over", request_id=ask.ids.id, attempts=claim.attempts)
        if isinstance(asked, Message) and refused:
            asked = refused
        if claim.attempts > _MOST_ATTEMPTS:
            reason = f"taken up {claim.attempts - 1} times, and never answered"
            await self._burying.bury(ask.delivery, reason, DeadLetterCause.POISON, ask.ids.id)
            asked = RequestError(
                ErrorCode.INTERNAL, "the context could not be built; the dead letters name the request"
            )
        if not isinstance(asked, Message):
            await self._finish(ask, claim, ask.refusal(asked), asked.code, None)
            return
        while True:
            content, code = await self._building.build(ask, asked, claim, ahead)
            first = await self._finish(ask, claim, content, code, ahead)
            if not (first and ahead):
                return
            # Another build of the run was answered meanwhile. Whatever is said next begins as that did.
            ahead.begun_by_another(first.kept)

    async def _finish(
        self, ask: Ask, claim: Acquired, content: bytes, code: ErrorCode | None, ahead: Ahead | None
    ) -> KeptBefore | None:
        """Publish the answer; nothing, where another build of the run has kept what this one has to begin with."""
        started = time.monotonic()
        done = await self._published(ask, claim, content, self._telling.keep_ms(code, len(content)), ahead)
        if isinstance(done, KeptBefore):
            return done
        self._telling.tell(ask, done.heard if done else None, code, len(content), started)
        return None

    async def _published(
        self, ask: Ask, claim: Acquired, content: bytes, keep_ms: int, ahead: Ahead | None
    ) -> Concluded | KeptBefore | None:
        """What `conclude` returns."""
        ending = ahead.ending if ahead else Ending()
        done: Concluded | KeptBefore | None = None
        try:
            done = await self._concluded(ask, claim, content, keep_ms, ending)
        finally:
            if ahead and not isinstance(done, KeptBefore):
                ahead.answered(done.moved if done else None)
        return done

    async def _concluded(
        self, ask: Ask, claim: Acquired, content: bytes, keep_ms: int, ending: Ending
    ) -> Concluded | KeptBefore | None:
        """The same; with charge of the delivery, when the bus is back: an outage is no failed attempt."""
        while True:
            try:
                return await self._ledger.conclude(claim, ask.topic, content, keep_ms, ask.delivery, ending)
            except BusUnavailableError as error:
                if isinstance(error, BusRefusedError) or not ask.delivery.shared:
                    raise
                _log.warning("answer_delayed", request_id=ask.ids.id, reason=str(error))
            await anyio.sleep(_PAUSE_S)


def handed_out_too_often(delivery: Delivery) -> str:
    """Why a message is not even read any more."""
    return f"handed out {delivery.deliveries - 1} times, and never read to its end"
