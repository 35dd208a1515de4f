"""Every request that can be read gets one effective answer (CONTRACT §1.4 to §1.6).

Rules of this module:

- A request is claimed at the ledger before it is built, and finished there: answer kept and published in one step. What
  is already answered is announced again; what another replica is at is left to it.
- Work is bounded: `max_in_flight` builds, as many requests waiting, beyond that OVERLOADED at once. The same bytes are
  in hand once: who asks again while a request waits does not get it refused.
- A deadline counts from the arrival here. Nothing but the age on arrival depends on the sender's clock, and that is
  measured by the ledger's clock with a generous allowance.
- An answer that says "try again" is kept until no replica can still have the request, and no longer. Trying again
  means a new id.
"""

import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream

from nexus.core.errors import BusUnavailableError, ErrorCode, RequestError, UnreadablePayloadError
from nexus.core.models import Message
from nexus.core.ports import Acquired, Answered, Bus, Conflict, DeadLetter, RequestLedger
from nexus.core.topics import Topics
from nexus.core.wire import encode
from nexus.services.asks import Ask, read_ask
from nexus.services.context.builder import ContextBuilder
from nexus.services.context.request import deadline_ms

_log = structlog.get_logger(__name__)

# Refusals that may wait, and how many are on their way at once. What comes on top is dropped and logged: its sender
# asks again, if it is one that does.
_MOST_REFUSALS: Final = 4_096
_REFUSERS: Final = 16
_MOST_BYTES: Final = 256 << 20
_RELEASE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What this service needs of the settings (CONTRACT §9, section `bus`). Times in milliseconds."""

    deadline_ms: int = 5_000
    clock_skew_ms: int = 30_000
    lease_ms: int = 2_000
    answer_ttl_ms: int = 3_600_000
    max_payload_bytes: int = 1 << 20
    max_in_flight: int = 256
    dead_letter_bodies: bool = False


@dataclass(frozen=True, slots=True)
class _Arrived:
    payload: bytes
    at: float


class RequestService:
    """Answers build requests. Use `running()` to have its workers at work."""

    def __init__(
        self, builder: ContextBuilder, bus: Bus, ledger: RequestLedger, settings: RequestSettings | None = None
    ) -> None:
        self._builder = builder
        self._bus = bus
        self._ledger = ledger
        self._settings = settings or RequestSettings()
        self._to_answer = anyio.create_memory_object_stream[_Arrived](self._settings.max_in_flight)
        self._to_refuse = anyio.create_memory_object_stream[_Arrived](_MOST_REFUSALS)
        self._in_hand: set[bytes] = set()
        self._bytes_in_hand = 0
        self._idle = anyio.Event()
        self._idle.set()

    @property
    def pending(self) -> int:
        """Requests that were accepted and are not finished yet."""
        return len(self._in_hand)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Answer what is offered, until the context ends; `drained` first, to finish what was accepted."""
        streams = (*self._to_answer, *self._to_refuse)
        async with anyio.create_task_group() as tasks:
            for _ in range(self._settings.max_in_flight):
                tasks.start_soon(self._work, self._to_answer[1].clone(), False)
            for _ in range(_REFUSERS):
                tasks.start_soon(self._work, self._to_refuse[1].clone(), True)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
                for stream in streams:
                    stream.close()

    async def drained(self) -> None:
        """Return when everything that was accepted is finished."""
        while self._in_hand:
            await self._idle.wait()

    def offer(self, payload: bytes) -> None:
        """Accept a request from the bus, or have it refused with OVERLOADED. Returns at once."""
        if payload in self._in_hand:
            return
        if self._bytes_in_hand + len(payload) > _MOST_BYTES:
            _log.error("request_dropped", reason="too many bytes are waiting", size=len(payload))
            return
        arrived = _Arrived(payload, time.monotonic())
        for sending, _ in (self._to_answer, self._to_refuse):
            with suppress(anyio.WouldBlock):
                sending.send_nowait(arrived)
                if not self._in_hand:
                    self._idle = anyio.Event()
                self._in_hand.add(payload)
                self._bytes_in_hand += len(payload)
                return
        _log.error("request_dropped", reason="too many refusals are waiting", size=len(payload))

    async def bury(self, topic: str, payload: bytes, reason: str) -> None:
        """Log a message that cannot be used, by size and hash, and keep it as a dead letter (CONTRACT §1.4, §1.6)."""
        sha256 = hashlib.sha256(payload).hexdigest()
        _log.warning("unusable_message", topic=topic, reason=reason, size=len(payload), sha256=sha256)
        body = payload if self._settings.dead_letter_bodies else None
        try:
            await self._ledger.bury(DeadLetter(topic, reason, sha256, len(payload), body=body))
        except BusUnavailableError as error:
            _log.error("dead_letter_not_kept", topic=topic, sha256=sha256, reason=str(error))

    async def _work(self, arrivals: MemoryObjectReceiveStream[_Arrived], overloaded: bool) -> None:
        async with arrivals:
            async for arrived in arrivals:
                await self._handle(arrived, overloaded=overloaded)

    async def _handle(self, arrived: _Arrived, *, overloaded: bool) -> None:
        try:
            ask = read_ask(arrived.payload, arrived.at, max_bytes=self._settings.max_payload_bytes)
            await self._serve(ask, overloaded=overloaded)
        except UnreadablePayloadError as error:
            await self.bury(Topics.CONTEXT_BUILD_REQUEST, arrived.payload, str(error))
        except BusUnavailableError as error:
            # Nobody can be told. The requester asks again, and the bus will be back.
            _log.warning("request_unanswered", reason=str(error))
        finally:
            self._in_hand.discard(arrived.payload)
            self._bytes_in_hand -= len(arrived.payload)
            if not self._in_hand:
                self._idle.set()

    async def _serve(self, ask: Ask, *, overloaded: bool) -> None:
        claim = await self._ledger.begin(ask.key, ask.fingerprint, self._settings.lease_ms)
        if isinstance(claim, Conflict):
            ask = ask.as_conflict()
            claim = await self._ledger.begin(ask.key, ask.fingerprint, self._settings.lease_ms)
        match claim:
            case Acquired():
                await self._answer(ask, claim, overloaded=overloaded)
            case Answered(topic, kept):
                self._overhear(ask)
                _log.info("answered_again", request_id=ask.ids.id)
                await self._bus.publish(topic, kept)
            case _:
                self._overhear(ask)
                _log.debug("left_to_another_replica", request_id=ask.ids.id)

    def _overhear(self, ask: Ask) -> None:
        """What another replica answers is still worth knowing: results of the run may be recorded here first."""
        if isinstance(ask.asked, Message):
            self._builder.overhear(ask.asked)

    async def _answer(self, ask: Ask, claim: Acquired, *, overloaded: bool) -> None:
        asked = ask.asked
        if isinstance(asked, Message) and overloaded:
            asked = RequestError(ErrorCode.OVERLOADED, "too many requests are waiting; try again with a new id")
        if isinstance(asked, Message):
            content, code = await self._build_leased(ask, asked, claim)
        else:
            content, code = ask.refusal(asked), asked.code
        done = await self._ledger.finish(claim, ask.topic, content, self._keep_ms(ask, code))
        _log.info(
            "answered" if done else "late_answer_discarded",
            request_id=ask.ids.id,
            run_id=ask.ids.run_id,
            outcome=code.value if code else "success",
            bytes=len(content),
            ms=round((time.monotonic() - ask.at) * 1_000, 1),
        )

    def _keep_ms(self, ask: Ask, code: ErrorCode | None) -> int:
        """How long an answer is kept. One that may be tried again outlives every replica that still has the request."""
        if not code or not code.retryable:
            return self._settings.answer_ttl_ms
        allowed_ms = self._settings.deadline_ms
        if isinstance(ask.asked, Message):
            with suppress(RequestError):
                allowed_ms = deadline_ms(ask.asked, allowed_ms)
        return allowed_ms + self._settings.lease_ms

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
            return encode(built), ErrorCode(failed["code"]) if failed else None
        except RequestError as error:
            wrong = error
        except Exception:  # noqa: BLE001  # the outermost handler: whatever goes wrong, the requester is told
            _log.exception("build_failed", request_id=ask.ids.id)
            wrong = RequestError(ErrorCode.INTERNAL, "the context could not be built; the service's log says why")
        return ask.refusal(wrong), wrong.code

    async def _build_in_time(self, ask: Ask, message: Message, claim: Acquired) -> Message:
        allowed_ms = deadline_ms(message, self._settings.deadline_ms)
        waited_s = time.monotonic() - ask.at
        left_s = allowed_ms / 1_000 - waited_s
        age_ms = claim.now_ms - message.timestamp.timestamp() * 1_000
        oldest_ms = allowed_ms + self._settings.clock_skew_ms
        if age_ms > oldest_ms:
            reason = f"timestamp: {age_ms / 1_000:.0f} s old on arrival, at most {oldest_ms / 1_000:.0f} s are allowed"
            raise RequestError(ErrorCode.DEADLINE_EXCEEDED, reason)
        if left_s > 0:
            timings_ms = {"queue": round(waited_s * 1_000, 3)}
            with anyio.move_on_after(left_s):
                return await self._builder.handle_build_request(message, budget_s=left_s, timings_ms=timings_ms)
        reason = f"metadata.deadline_ms: the {allowed_ms} ms have passed"
        raise RequestError(ErrorCode.DEADLINE_EXCEEDED, reason)

    async def _keep_lease(self, claim: Acquired) -> None:
        while True:
            await anyio.sleep(self._settings.lease_ms / 3_000)
            try:
                await self._ledger.renew(claim, self._settings.lease_ms)
            except BusUnavailableError as error:
                _log.warning("lease_not_renewed", request_id=claim.key, reason=str(error))

    async def _release(self, claim: Acquired) -> None:
        try:
            with anyio.move_on_after(_RELEASE_S, shield=True):
                await self._ledger.release(claim)
        except BusUnavailableError as error:
            _log.warning("lease_not_released", request_id=claim.key, reason=str(error))
