"""Building the context of a request in time, for as long as its lease is held (CONTRACT §1.4, §1.5)."""

import time

import anyio
import structlog

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import DeadLetterCause, Metrics, Stage
from nexus.core.models import Message
from nexus.core.ports import Acquired, Past, RequestLedger
from nexus.services.asks import Ask, RequestSettings
from nexus.services.burying import Burying
from nexus.services.context.ahead import Ahead
from nexus.services.context.build_dialogue import Prepared
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

    def prepare(self, ask: Ask, ahead: Ahead) -> Prepared | None:
        """All that `build_at_once` needs but for the past; None where it would not build it."""
        try:
            return self._builder.prepare(ahead)
        except Exception:  # noqa: BLE001  # what is wrong is told where it is built with more time
            _log.exception("not_built_at_once", request_id=ask.ids.id)
            return None

    def build_at_once(self, ask: Ask, ahead: Ahead, past: Past, prepared: Prepared | None = None) -> bytes | None:
        """The encoded answer, if it can be made of what is at hand, now; else None, and nothing has happened.

        Args:
            ask: whose.
            ahead: what was made of it; has what is to happen with the answer.
            past: of the owner.
            prepared: what `prepare` made of it, where that is made already.
        """
        queue_s, gather_s = ahead.since - ask.at, time.monotonic() - ahead.since
        ahead.timings_ms = {"queue": round(queue_s * 1_000, 3), "gather": round(gather_s * 1_000, 3)}
        prepared = prepared or self.prepare(ask, ahead)
        try:
            built = self._builder.build_at_once(ahead, prepared, past) if prepared else None
            content = ask.encoded(built) if built else None
        except Exception:  # noqa: BLE001  # what is wrong is told where it is built with more time
            _log.exception("not_built_at_once", request_id=ask.ids.id)
            content = None
        if content is None:
            ahead.begin_again()
        return content

    def count_times(self, ahead: Ahead) -> None:
        """Count how long what was built at once has taken; not before it is certain that it is the answer."""
        for stage in (Stage.QUEUE, Stage.GATHER, Stage.ASSEMBLE, Stage.BUILD):
            self._metrics.took(stage, ahead.timings_ms[stage.value] / 1_000)

    async def build(
        self, ask: Ask, message: Message, claim: Acquired, ahead: Ahead | None
    ) -> tuple[bytes, ErrorCode | None]:
        """The encoded answer, and its code when it is an error.

        The lease is renewed meanwhile, and given back should the service stop.
        """
        if ahead and (content := self._build_of_what_is_at_hand(ask, claim, ahead)):
            self.count_times(ahead)
            return content, None
        async with self.leases.held(claim):
            return await self._build(ask, message, claim, ahead)

    def _build_of_what_is_at_hand(self, ask: Ask, claim: Acquired, ahead: Ahead) -> bytes | None:
        # Not the claim's: another build of the run may have been answered since.
        standing = ahead.standing
        if ahead.past is None or standing is None or standing.kept:
            return None
        past = ahead.past.at_hand(standing)
        in_time = past and _waited_s(ask, claim) < building_s(ahead.allowed_ms)
        return self.build_at_once(ask, ahead, past) if past and in_time else None

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
        waited_s = _waited_s(ask, claim)
        self._metrics.took(Stage.QUEUE, waited_s)
        left_s = building_s(allowed_ms) - waited_s
        if left_s > 0:
            timings_ms = {"queue": round(waited_s * 1_000, 3)}
            with anyio.move_on_after(left_s):
                return await self._builder.handle_build_request(
                    message, budget_s=left_s, timings_ms=timings_ms, ahead=ahead
                )
        reason = f"metadata.deadline_ms: the {allowed_ms} ms have passed"
        raise RequestError(ErrorCode.DEADLINE_EXCEEDED, reason)


def building_s(allowed_ms: int) -> float:
    """How long after it was asked for a context may be built, if the requester waits so long for it."""
    return allowed_ms / 1_000 - min(_TELLING_S, allowed_ms / 1_000 * _TELLING)


def _waited_s(ask: Ask, claim: Acquired) -> float:
    """For how long the requester has waited."""
    return max(time.monotonic() - ask.at, claim.waited_ms(ask.delivery) / 1_000)
