"""Building the context of a request in time, for as long as its lease is held (CONTRACT §1.4, §1.5)."""

import time

import anyio
import structlog

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import DeadLetterCause, Metrics, Stage
from nexus.core.models import Message
from nexus.core.ports import Acquired, RequestLedger
from nexus.services.asks import Ask, RequestSettings
from nexus.services.burying import Burying
from nexus.services.context.ahead import Ahead
from nexus.services.context.builder import ContextBuilder
from nexus.services.context.request import deadline_ms
from nexus.services.leases import Leases

_log = structlog.get_logger(__name__)

# What is left of a deadline to say that it cannot be kept: so long, but no more than this part of it.
_TELLING_S, _TELLING = 0.15, 0.05


class Building:
    """Builds what is claimed. Whatever goes wrong, there is an answer.

    Attributes:
        leases: on what is being built; `run` it.
    """

    def __init__(
        self,
        builder: ContextBuilder,
        ledger: RequestLedger,
        burying: Burying,
        settings: RequestSettings,
        metrics: Metrics,
    ) -> None:
        self._builder = builder
        self._burying = burying
        self._settings = settings
        self._metrics = metrics
        self.leases = Leases(ledger, settings)

    async def build(
        self, ask: Ask, message: Message, claim: Acquired, ahead: Ahead | None
    ) -> tuple[bytes, ErrorCode | None]:
        """The encoded answer, and its code when it is an error.

        The lease is renewed meanwhile, and given back should the service stop.
        """
        async with self.leases.held(claim):
            return await self._build(ask, message, claim, ahead)

    async def _build(
        self, ask: Ask, message: Message, claim: Acquired, ahead: Ahead | None
    ) -> tuple[bytes, ErrorCode | None]:
        """The encoded answer, and its code when it is an error."""
        try:
            built = await self._build_in_time(ask, message, claim, ahead)
            failed = built.content.get("error")
            return ask.encoded(built), ErrorCode(failed["code"]) if failed else None
        except RequestError as error:
            wrong = error
        except Exception:  # noqa: BLE001  # the outermost handler: whatever goes wrong, the requester is told
            _log.exception("build_failed", request_id=ask.ids.id)
            await self._burying.bury(ask.delivery, "building it failed", DeadLetterCause.POISON, ask.ids.id)
            wrong = RequestError(ErrorCode.INTERNAL, "the context could not be built; the service's log says why")
        return ask.refusal(wrong), wrong.code

    async def _build_in_time(self, ask: Ask, message: Message, claim: Acquired, ahead: Ahead | None) -> Message:
        allowed_ms = deadline_ms(message, self._settings.deadline_ms)
        # All by the clock of the ledger. A copy that is heard later, here or elsewhere, begins no new deadline.
        since_ms = min(filter(None, (claim.asked_ms, ask.delivery.sent_ms)), default=claim.now_ms)
        waited_s = max(time.monotonic() - ask.at, (claim.now_ms - since_ms) / 1_000)
        self._metrics.took(Stage.QUEUE, waited_s)
        left_s = allowed_ms / 1_000 - waited_s - min(_TELLING_S, allowed_ms / 1_000 * _TELLING)
        if left_s > 0:
            timings_ms = {"queue": round(waited_s * 1_000, 3)}
            with anyio.move_on_after(left_s):
                return await self._builder.handle_build_request(
                    message, budget_s=left_s, timings_ms=timings_ms, ahead=ahead
                )
        reason = f"metadata.deadline_ms: the {allowed_ms} ms have passed"
        raise RequestError(ErrorCode.DEADLINE_EXCEEDED, reason)
