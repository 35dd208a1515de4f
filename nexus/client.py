"""The reference requester: what an orchestrator does to get a context (contract §1.5).

It publishes a request, sends the same bytes again until it is answered or its deadline ends, and takes the first answer
that names its id, run, owner and bytes. A bus that keeps messages takes the request once, however often it is sent.
Where the bus has keys the client signs its requests, and believes no answer without a signature that holds. Anything
else on its topic is counted, and the wait goes on.
"""

import hashlib
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import anyio

from nexus.core.concurrency import ungrouped
from nexus.core.errors import BusUnavailableError, ErrorCode, RequestError, UnreadablePayloadError
from nexus.core.models import Message, Role, Run, Topics, new_run_id
from nexus.core.ports import Bus, Subscription
from nexus.core.signing import Signing
from nexus.core.wire import EnvelopeError, decode, encode

_DEADLINE_MS: Final = (100, 60_000)
_LARGEST_ANSWER: Final = 256 << 20
# The pause after a failed publish, and the first after one that no subscriber received.
_PAUSE_S: Final = 0.1


class AnswerError(RequestError):
    """An error answer of Nexus, with its content as it came."""

    def __init__(self, code: ErrorCode, message: str, retry_after_ms: int | None, content: dict[str, Any]) -> None:
        super().__init__(code, message, retry_after_ms)
        self.content = content


Outcome = dict[str, Any] | AnswerError


@dataclass
class _Waiting:
    """A request, and its outcome once it has been `answered`."""

    message: Message
    payload: bytes
    sha256: str
    answered: anyio.Event = field(default_factory=anyio.Event)
    outcome: Outcome | None = None

    def outcome_in(self, answer: Message) -> Outcome | None:
        """What this answer says; None for one to another run, owner or payload, and for what is no answer."""
        # A service of release 0.1 does not say which bytes it answers.
        answered = (answer.run_id, answer.owner_key, answer.metadata.get("request_sha256", self.sha256))
        asked = (self.message.run_id, self.message.owner_key, self.sha256)
        return _outcome(answer.content) if answered == asked else None


class ContextClient:
    """Asks Nexus for contexts. Use `listening()`, then `build` as often and as concurrently as you like.

    Attributes:
        unheard: how often a request was sent that no subscriber received; it is soon sent again.
        disbelieved: how many messages on its topic could not be read or believed, or answered another run, owner or
            payload than the request that they named.
    """

    def __init__(self, bus: Bus, *, resend_s: float = 1.0, signing: Signing | None = None) -> None:
        self.unheard = 0
        self.disbelieved = 0
        self._bus = bus
        self._signing = signing
        # A service with keys signs every answer.
        self._verifying = replace(signing, required=True) if signing else None
        self._resend_s = resend_s
        self._shortest_pause = min(resend_s, _PAUSE_S)
        self._reply_to = f"client-{uuid.uuid4().hex}"
        self._waiting: dict[str, _Waiting] = {}

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Self]:
        """Listen for answers for as long as the context lasts."""
        topic = f"{Topics.CONTEXT_BUILD_RESPONSE}.{self._reply_to}"
        with ungrouped():
            async with self._bus.subscribe(topic) as subscription, anyio.create_task_group() as tasks:
                tasks.start_soon(self._receive, subscription)
                try:
                    yield self
                finally:
                    tasks.cancel_scope.cancel()

    async def build(self, run: Run, *, timeout: float = 5.0) -> dict[str, Any]:  # noqa: ASYNC109  # the contract's name
        """The content of a successful answer: `messages`, `tools`, `context`, `degraded` (contract §1.4).

        The run's first HUMAN message is the input. The request carries the `timeout`, 0.1 to 60 seconds.

        Raises:
            AnswerError: Nexus answered with an error, named by `code`; `retry_after_ms` says when trying again, with a
                new run of the same content, may help.
            TimeoutError: no answer came in time.
        """
        low, high = _DEADLINE_MS
        deadline_ms = min(max(int(timeout * 1_000), low), high)
        message = Message(
            run_id=run.id,
            owner_key=run.owner_key,
            role=Role.HUMAN,
            content=run.model_dump(mode="json"),
            metadata={"reply_to": self._reply_to, "deadline_ms": deadline_ms},
        )
        payload = encode(message, topic=Topics.CONTEXT_BUILD_REQUEST, signing=self._signing)
        waiting = self._waiting[message.id] = _Waiting(message, payload, hashlib.sha256(payload).hexdigest())
        try:
            with anyio.fail_after(timeout):
                outcome = await self._ask(waiting)
        finally:
            del self._waiting[message.id]
        if isinstance(outcome, AnswerError):
            raise outcome
        return outcome

    async def send_state(self, owner_key: str, content: Mapping[str, Any], *, session_id: str = "default") -> int:
        """Change a session's state (contract §5): `{"op": "set", "state": {…}}`, a `patch` or a `clear`.

        Returns how many subscribers received it, as `Bus.publish` does; there is no answer. Sending the same again,
        after an error or where no subscriber received it, does no harm.

        Raises:
            BusUnavailableError: it may or may not have been received.
        """
        message = state_message(owner_key, content, session_id)
        payload = encode(message, topic=Topics.SESSION_STATE, signing=self._signing)
        return await self._bus.publish(Topics.SESSION_STATE, payload)

    async def _ask(self, waiting: _Waiting) -> Outcome:
        pause = self._shortest_pause
        while waiting.outcome is None:
            try:
                # Under the name of its bytes: under its id, another sender's message could have been taken already.
                received = await self._bus.publish(Topics.CONTEXT_BUILD_REQUEST, waiting.payload, once=waiting.sha256)
            except BusUnavailableError:
                # Whether it was received is unknown; the same bytes again do no harm.
                await anyio.sleep(self._shortest_pause)
                continue
            if received:
                pause = self._resend_s
            else:
                self.unheard += 1
                pause = min(pause * 2, self._resend_s)
            with anyio.move_on_after(pause):
                await waiting.answered.wait()
        return waiting.outcome

    async def _receive(self, subscription: Subscription) -> None:
        async for delivery in subscription:
            try:
                message = decode(
                    delivery.payload, max_bytes=_LARGEST_ANSWER, topic=delivery.topic, signing=self._verifying
                )
            except (EnvelopeError, UnreadablePayloadError):
                self.disbelieved += 1
                continue
            waiting = self._waiting.get(str(message.metadata.get("request_id")))
            if waiting is None or waiting.outcome is not None:
                # An answer that is announced again, or comes too late.
                continue
            waiting.outcome = waiting.outcome_in(message)
            if waiting.outcome is None:
                self.disbelieved += 1
            else:
                waiting.answered.set()


def state_message(owner_key: str, content: Mapping[str, Any], session_id: str) -> Message:
    """The message that changes a session's state."""
    return Message(
        run_id=new_run_id(),
        owner_key=owner_key,
        role=Role.COMMAND,
        content=dict(content),
        metadata={"session_id": session_id},
    )


def _outcome(content: Any) -> Outcome | None:
    """What an answer says (contract §1.4); None for what is no answer."""
    if not isinstance(content, dict):
        return None
    if content.get("status") == "success" and isinstance(content.get("messages"), list):
        return content
    error = content.get("error")
    if content.get("status") != "error" or not isinstance(error, dict):
        return None
    code = error.get("code")
    known = ErrorCode(code) if code in list(ErrorCode) else ErrorCode.INTERNAL
    retry_after_ms = error.get("retry_after_ms")
    wait_ms = retry_after_ms if type(retry_after_ms) is int else None
    return AnswerError(known, str(error.get("message", "")), wait_ms, content)
