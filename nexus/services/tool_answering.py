"""From one call of a memory tool to its one result (CONTRACT §7).

Rules of this module:

- A call is claimed at the ledger before it is done and finished there, as a build request is: of any number of
  replicas and resends one does it, and there is one result. What is done is known to the memory by the call, so that
  a replica that takes over from one that died does not do it again.
- Nobody sends a call again on a bus that keeps nothing. So there every replica that hears one waits until it has a
  result, within a bound, and does it itself should the one that was at it be gone.
- Whatever goes wrong, there is a result that says so; see `tool_doing`.
"""

import time
from typing import Final

import anyio
import structlog

from nexus.core.errors import BusRefusedError, BusUnavailableError, UnreadablePayloadError
from nexus.core.metrics import DeadLetterCause, Metrics
from nexus.core.models import Message
from nexus.core.ports import Acquired, Announced, Answered, Bus, Busy, Claim, Conflict, Delivery, RequestLedger
from nexus.core.tasks import Pauses
from nexus.core.topics import Topics
from nexus.core.wire import EnvelopeError
from nexus.services.answering import MOST_DELIVERIES, handed_out_too_often
from nexus.services.asks import RequestSettings
from nexus.services.burying import Burying
from nexus.services.leases import Leases
from nexus.services.origins import RunOrigins
from nexus.services.persistence import PersistenceService
from nexus.services.tool_asks import ToolAsk, read_tool_ask
from nexus.services.tool_doing import Doing, Ended
from nexus.services.working_memory import WorkingMemory

_log = structlog.get_logger(__name__)

# As for build requests; see `answering`.
_SUSPECT: Final = 3
_ASKED_AGAIN: Final = 0.03
# For how long another replica, or Redis, is waited for on a bus that keeps nothing.
_LONGEST_S: Final = 120.0


class ToolAnswerer:
    """Brings results about, one at a time for each caller.

    Attributes:
        leases: on what is being done; `run` it.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        memory: WorkingMemory,
        bus: Bus,
        ledger: RequestLedger,
        burying: Burying,
        persistence: PersistenceService,
        origins: RunOrigins,
        settings: RequestSettings,
        metrics: Metrics,
    ) -> None:
        self._doing = Doing(memory, origins, burying)
        self._bus = bus
        self._ledger = ledger
        self._burying = burying
        self._persistence = persistence
        self._settings = settings
        self._metrics = metrics
        self._suspects = anyio.Lock()
        self.leases = Leases(ledger, settings)

    async def answer(self, delivery: Delivery, at: float) -> None:
        """Bring about the result of what arrived at `at`, on the monotonic clock, if it is a call of one of our tools.

        Raises nothing but cancellation. Where the bus keeps messages, it goes on until Redis is back.
        """
        try:
            ask = self._read(delivery, at)
            if ask is None:
                self._bus.done(delivery)
            elif delivery.deliveries > MOST_DELIVERIES:
                await self._give_up(delivery, handed_out_too_often(delivery), DeadLetterCause.POISON, ask.ids.id)
            else:
                await self._bring_about(ask)
        except EnvelopeError as error:
            await self._give_up(delivery, str(error), DeadLetterCause.UNAUTHENTICATED, error.ids.id)
        except UnreadablePayloadError as error:
            too_large = len(delivery.payload) > self._settings.max_payload_bytes
            cause = DeadLetterCause.TOO_LARGE if too_large else DeadLetterCause.UNREADABLE
            await self._give_up(delivery, str(error), cause)
        except Exception:  # noqa: BLE001  # the outermost handler: one message must not end the service
            _log.exception("tool_call_failed")
            await self._give_up(delivery, "answering it failed", DeadLetterCause.POISON)

    def _read(self, delivery: Delivery, at: float) -> ToolAsk | None:
        settings = self._settings
        return read_tool_ask(delivery, at, max_bytes=settings.max_payload_bytes, signing=settings.signing)

    async def _give_up(self, delivery: Delivery, reason: str, cause: DeadLetterCause, message_id: str = "") -> None:
        await self._burying.bury(delivery, reason, cause, message_id)
        self._bus.done(delivery)

    async def _bring_about(self, ask: ToolAsk) -> None:
        delivery, asked_at = ask.source.delivery, ask.source.at
        pauses = Pauses()
        while True:
            try:
                await self._serve(ask, asked_at)
            except BusRefusedError as error:
                await self._give_up(delivery, str(error), DeadLetterCause.OTHER, ask.ids.id)
            except BusUnavailableError as error:
                _log.warning("tool_call_unanswered", request_id=ask.ids.id, name=ask.name, reason=str(error))
                if delivery.shared or ask.waited_s < _LONGEST_S:
                    await pauses.wait()
                    # What was announced last may be what has just failed.
                    asked_at = time.monotonic()
                    continue
                await self._give_up(delivery, str(error), DeadLetterCause.OTHER, ask.ids.id)
            return

    async def _serve(self, ask: ToolAsk, asked_at: float) -> None:
        claim = await self._claim(ask, asked_at)
        if isinstance(claim, Conflict):
            ask = ask.as_conflict()
            claim = await self._claim(ask, asked_at)
        if isinstance(claim, Acquired) and claim.attempts >= _SUSPECT:
            # What dies with this replica should be counted against this call alone; see `answering`.
            await self._ledger.release(claim)
            async with self._suspects:
                await self._settle(ask, await self._claim(ask, asked_at))
        else:
            await self._settle(ask, claim)

    async def _claim(self, ask: ToolAsk, asked_at: float) -> Claim:
        """What the ledger says, when it is settled who does it."""
        while True:
            waited_ms = int((time.monotonic() - asked_at) * 1_000)
            granted_ms = self._settings.granted_ms
            claim = await self._ledger.claim(ask.key, ask.source.fingerprint, granted_ms, waited_ms)
            given_up = not ask.source.delivery.shared and ask.waited_s >= _LONGEST_S
            if not isinstance(claim, Busy) or given_up:
                return claim
            await anyio.sleep(self._settings.lease_ms / 1_000 * _ASKED_AGAIN)

    async def _settle(self, ask: ToolAsk, claim: Claim) -> None:
        match claim:
            case Acquired():
                async with self.leases.held(claim):
                    ended = await self._doing.do(ask, claim.attempts)
                await self._finish(ask, claim, ended)
                return
            case Answered(topic, kept):
                _log.info("answered_again", request_id=ask.ids.id)
                await self._bus.publish(topic, kept)
            case Announced():
                _log.debug("announced_a_moment_ago", request_id=ask.ids.id)
            case _:
                _log.debug("left_to_another_replica", request_id=ask.ids.id)
        self._bus.done(ask.source.delivery)

    async def _finish(self, ask: ToolAsk, claim: Acquired, ended: Ended) -> None:
        outcome = ended.outcome
        result = ask.result(outcome.text, done=outcome.done, retryable=ended.retryable, session_id=ended.session_id)
        encoded = ask.encoded(result)
        heard = await self._published(ask, claim, encoded)
        if heard is None:
            self._bus.done(ask.source.delivery)
        else:
            self._metrics.count(ended.event)
            self._record(result, len(encoded))
        _log.info(
            "late_answer_discarded" if heard is None else "tool_call_answered",
            request_id=ask.ids.id,
            run_id=ask.ids.run_id,
            name=ask.name,
            outcome="success" if outcome.done else "error",
            bytes=len(encoded),
            ms=round(ask.waited_s * 1_000, 1),
        )

    def _record(self, result: Message, size: int) -> None:
        """Have it recorded, which whoever hears it would do too: at the end of a service nobody may be left to hear."""
        self._persistence.offer(Topics.TOOLS_RESULTS, result, size)

    async def _published(self, ask: ToolAsk, claim: Acquired, encoded: bytes) -> int | None:
        """What `finish` returns, when the bus is back: an outage is no failed attempt."""
        keep_ms, delivery = self._settings.answer_ttl_ms, ask.source.delivery
        pauses = Pauses()
        while True:
            try:
                return await self._ledger.conclude(claim, Topics.TOOLS_RESULTS, encoded, keep_ms, delivery)
            except BusUnavailableError as error:
                given_up = not delivery.shared and ask.waited_s >= _LONGEST_S
                if isinstance(error, BusRefusedError) or given_up:
                    raise
                _log.warning("answer_delayed", request_id=ask.ids.id, reason=str(error))
            await pauses.wait()
