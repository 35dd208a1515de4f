"""Every request that can be read gets one effective answer (CONTRACT §1.4 to §1.6).

Rules of this module:

- A request is claimed at the ledger before it is built, and finished there: answer kept and published in one step. What
  is already answered is announced again; what another replica is at is left to it.
- Work is bounded: `max_in_flight` builds, as many requests waiting, beyond that OVERLOADED at once.
- A deadline counts from the arrival here. Nothing but the age on arrival depends on the sender's clock, and that is
  measured by the ledger's clock with a generous allowance.
- An answer that says "try again" is not kept beyond the lease, so that trying again helps.
"""

import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream

from nexus.core.errors import BusUnavailableError, ErrorCode, RequestError, UnreadablePayloadError
from nexus.core.models import Message
from nexus.core.ports import Acquired, Answered, Bus, Busy, Conflict, DeadLetter, RequestLedger
from nexus.core.topics import Topics
from nexus.core.wire import EnvelopeError, decode, encode
from nexus.services.context.builder import ContextBuilder, error_answer
from nexus.services.context.request import REPLY_TO, deadline_ms, reply_suffix

_log = structlog.get_logger(__name__)

# Refusals that may be on their way at once; beyond that they are dropped, and counted.
_REFUSALS: Final = 256


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


@dataclass(frozen=True, slots=True)
class _Ask:
    """What can be answered: ids, where the answer goes, and either a message or what is wrong with it."""

    request_id: str
    run_id: str
    owner_key: str
    topic: str
    fingerprint: str
    at: float
    message: Message | None = None
    error: RequestError | None = None

    def refusal(self, error: RequestError) -> bytes:
        return encode(error_answer(self.request_id, self.run_id, self.owner_key, error))


class RequestService:
    """Answers build requests. Use `running()` to have its workers at work."""

    def __init__(
        self, builder: ContextBuilder, bus: Bus, ledger: RequestLedger, settings: RequestSettings | None = None
    ) -> None:
        self._builder = builder
        self._bus = bus
        self._ledger = ledger
        self._settings = settings or RequestSettings()
        self._send, self._receive = anyio.create_memory_object_stream[_Arrived](self._settings.max_in_flight)
        self._refusing = anyio.CapacityLimiter(_REFUSALS)
        self._pending = 0
        self._idle = anyio.Event()
        self._idle.set()
        self._tasks = anyio.create_task_group()

    @property
    def pending(self) -> int:
        """Requests that were accepted and are not finished yet."""
        return self._pending

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Answer what is offered, until the context ends; `drained` first, to finish what was accepted."""
        async with self._tasks as tasks:
            for _ in range(self._settings.max_in_flight):
                tasks.start_soon(self._work, self._receive.clone())
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
                self._send.close()
                self._receive.close()

    async def drained(self) -> None:
        """Return when everything that was accepted is finished."""
        while self._pending:
            await self._idle.wait()

    def offer(self, payload: bytes) -> None:
        """Accept a request from the bus, or have it refused with OVERLOADED. Returns at once."""
        arrived = _Arrived(payload, time.monotonic())
        try:
            self._send.send_nowait(arrived)
        except anyio.WouldBlock:
            if self._refusing.available_tokens < 1:
                _log.error("request_dropped", reason="too many refusals are on their way", size=len(payload))
                return
            self._tasks.start_soon(self._refuse, arrived)
        self._begin()

    async def _work(self, arrivals: MemoryObjectReceiveStream[_Arrived]) -> None:
        async with arrivals:
            async for arrived in arrivals:
                await self._handle(arrived, overloaded=False)

    async def _refuse(self, arrived: _Arrived) -> None:
        async with self._refusing:
            await self._handle(arrived, overloaded=True)

    async def _handle(self, arrived: _Arrived, *, overloaded: bool) -> None:
        try:
            ask = await self._read(arrived)
            if ask:
                await self._serve(ask, overloaded=overloaded)
        except BusUnavailableError as error:
            # Nobody can be told. The requester asks again, and the bus will be back.
            _log.warning("request_unanswered", reason=str(error))
        finally:
            self._end()

    async def _read(self, arrived: _Arrived) -> _Ask | None:
        payload = arrived.payload
        fingerprint = hashlib.sha256(payload).hexdigest()
        topic = Topics.CONTEXT_BUILD_RESPONSE
        try:
            message = decode(payload, max_bytes=self._settings.max_payload_bytes)
        except EnvelopeError as error:
            suffix = f".{error.ids.reply_to}" if REPLY_TO.fullmatch(error.ids.reply_to) else ""
            ids = error.ids
            return _Ask(ids.id, ids.run_id, ids.owner_key, topic + suffix, fingerprint, arrived.at, error=error)
        except UnreadablePayloadError as error:
            await self.bury(Topics.CONTEXT_BUILD_REQUEST, payload, str(error))
            return None
        wrong: RequestError | None = None
        try:
            topic += reply_suffix(message)
        except RequestError as error:
            wrong = error
        return _Ask(
            message.id, message.run_id, message.owner_key, topic, fingerprint, arrived.at, message=message, error=wrong
        )

    async def bury(self, topic: str, payload: bytes, reason: str) -> None:
        """Log a message that cannot be used, by size and hash, and keep it as a dead letter (CONTRACT §1.4, §1.6)."""
        sha256 = hashlib.sha256(payload).hexdigest()
        _log.warning("unusable_message", topic=topic, reason=reason, size=len(payload), sha256=sha256)
        body = payload if self._settings.dead_letter_bodies else None
        try:
            await self._ledger.bury(DeadLetter(topic, reason, sha256, len(payload), body=body))
        except BusUnavailableError as error:
            _log.error("dead_letter_not_kept", topic=topic, sha256=sha256, reason=str(error))

    async def _serve(self, ask: _Ask, *, overloaded: bool) -> None:
        claim = await self._ledger.begin(ask.request_id, ask.fingerprint, self._settings.lease_ms)
        match claim:
            case Acquired():
                await self._answer(ask, claim, overloaded=overloaded)
            case Answered(topic, kept):
                _log.info("answered_again", request_id=ask.request_id)
                await self._bus.publish(topic, kept)
            case Conflict():
                await self._answer_conflict(ask)
            case Busy():
                _log.debug("left_to_another_replica", request_id=ask.request_id)

    async def _answer_conflict(self, ask: _Ask) -> None:
        # Under a key of its own, so that the conflict too is answered once, and the request it conflicts with is safe.
        key = f"{ask.request_id}#{ask.fingerprint[:32]}"
        claim = await self._ledger.begin(key, ask.fingerprint, self._settings.lease_ms)
        if isinstance(claim, Acquired):
            error = RequestError(ErrorCode.ID_CONFLICT, "id: belongs to another request; every request needs its own")
            await self._finish(ask, claim, ask.refusal(error), error.code)

    async def _answer(self, ask: _Ask, claim: Acquired, *, overloaded: bool) -> None:
        error = ask.error
        if error is None and overloaded:
            error = RequestError(ErrorCode.OVERLOADED, "too many requests are waiting; try again in a second")
        if error is not None or ask.message is None:
            error = error or RequestError(ErrorCode.INTERNAL, "the request could not be read")
            await self._finish(ask, claim, ask.refusal(error), error.code)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_lease, claim)
            try:
                content, code = await self._build(ask, ask.message, claim)
            except anyio.get_cancelled_exc_class():
                with anyio.move_on_after(1, shield=True):
                    await self._ledger.release(claim)
                raise
            tasks.cancel_scope.cancel()
        await self._finish(ask, claim, content, code)

    async def _build(self, ask: _Ask, message: Message, claim: Acquired) -> tuple[bytes, ErrorCode | None]:
        """The encoded answer, and its code when it is an error."""
        try:
            built = await self._build_in_time(ask, message, claim)
            failed = built.content.get("error")
            return encode(built), ErrorCode(failed["code"]) if failed else None
        except RequestError as error:
            wrong = error
        except Exception:  # noqa: BLE001  # the outermost handler: whatever goes wrong, the requester is told
            _log.exception("build_failed", request_id=ask.request_id)
            wrong = RequestError(ErrorCode.INTERNAL, "the context could not be built; the service's log says why")
        return ask.refusal(wrong), wrong.code

    async def _build_in_time(self, ask: _Ask, message: Message, claim: Acquired) -> Message:
        allowed_ms = deadline_ms(message, self._settings.deadline_ms)
        waited_s = time.monotonic() - ask.at
        left_s = allowed_ms / 1_000 - waited_s
        age_ms = claim.now_ms - message.timestamp.timestamp() * 1_000
        if left_s > 0 and age_ms <= allowed_ms + self._settings.clock_skew_ms:
            timings_ms = {"queue": round(waited_s * 1_000, 3)}
            with anyio.move_on_after(left_s):
                return await self._builder.handle_build_request(message, budget_s=left_s, timings_ms=timings_ms)
        reason = f"metadata.deadline_ms: the {allowed_ms} ms have passed"
        raise RequestError(ErrorCode.DEADLINE_EXCEEDED, reason)

    async def _finish(self, ask: _Ask, claim: Acquired, content: bytes, code: ErrorCode | None) -> None:
        keep_ms = self._settings.lease_ms if code and code.retryable else self._settings.answer_ttl_ms
        done = await self._ledger.finish(claim, ask.topic, content, keep_ms)
        _log.info(
            "answered" if done else "late_answer_discarded",
            request_id=ask.request_id,
            run_id=ask.run_id,
            outcome=code.value if code else "success",
            bytes=len(content),
            ms=round((time.monotonic() - ask.at) * 1_000, 1),
        )

    async def _keep_lease(self, claim: Acquired) -> None:
        pause = self._settings.lease_ms / 3_000
        while True:
            await anyio.sleep(pause)
            try:
                await self._ledger.renew(claim, self._settings.lease_ms)
            except BusUnavailableError as error:
                _log.warning("lease_not_renewed", request_id=claim.key, reason=str(error))

    def _begin(self) -> None:
        if not self._pending:
            self._idle = anyio.Event()
        self._pending += 1

    def _end(self) -> None:
        self._pending -= 1
        if not self._pending:
            self._idle.set()
