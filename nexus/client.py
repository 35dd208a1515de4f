"""The reference client: the whole loop of an orchestrator, from a person's words to the last answer (contract §12).

- A request is sent again, in the same bytes, until it is answered or its deadline ends; the first answer counts that
  names its id, run, owner and bytes. Everything else is sent until somebody has received it, under one id.
- Requests name what was sent before them (`metadata.after`), so that a context shows what this client has said.
- Where the bus has keys the client signs what it sends, and believes nothing without a signature that holds.
- What a model or a tool has given is sent as it is: the service understands its form, not the client.
"""

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import anyio
from pydantic_core import PydanticSerializationError

from nexus.core.concurrency import Pauses, ungrouped
from nexus.core.errors import (
    BusRefusedError,
    BusUnavailableError,
    ErrorCode,
    NobodyListeningError,
    RequestError,
    UnreadablePayloadError,
)
from nexus.core.models import Message, Role, Run, Topics, new_run_id
from nexus.core.payloads import CallState
from nexus.core.ports import Bus, Subscription
from nexus.core.signing import Signing
from nexus.core.tracing import carried, carrier
from nexus.core.wire import EnvelopeError, compact, decode, encode
from nexus.services.history.rows import progress_row, recorded_row

_DEADLINE_MS: Final = (100, 60_000)
_LARGEST_ANSWER: Final = 256 << 20
# The pause after a failed publish, and the first after one that no subscriber received.
_PAUSE_S: Final = 0.1
# What a request may come after, and of how many owners that is known.
_MOST_AFTER: Final = 100
# Bytes of a result that a service may condense.
_LARGE_RESULT: Final = 2_048
_MOST_OWNERS: Final = 10_000
# Tools belong to nobody, and every message has an owner.
_OWNER_OF_TOOLS: Final = "operator"
CHECK_SERVICE: Final = "is a service running on this bus, with this bus.mode and bus.channel_prefix? (nexus doctor)"
UNBELIEVED: Final = "answers came, but none that can be believed: compare bus.signing.keys with the service's"
_UNANSWERED: Final = "it was received and not answered: see the service's log, or allow more time"


class AnswerError(RequestError):
    """An error answer of Nexus, with its content as it came."""

    def __init__(self, code: ErrorCode, message: str, retry_after_ms: int | None, content: dict[str, Any]) -> None:
        super().__init__(code, message, retry_after_ms)
        self.content = content


Outcome = dict[str, Any] | AnswerError


def new_run(owner_key: str, text: Any, **metadata: Any) -> Run:
    """A run that begins with what a person says: a text, or content parts.

    `metadata` is that of the run (contract §1.3): `session_id`, `layout`, `format` and so on.
    """
    run_id = new_run_id()
    human = Message(run_id=run_id, owner_key=owner_key, role=Role.HUMAN, content=_plain(text))
    return Run(id=run_id, owner_key=owner_key, history=[human], metadata=metadata)


@dataclass
class _Waiting:
    """A message to `topic`, and what came of it once that is `answered`.

    Attributes:
        read: what an answer with its id says; None for one to another message, and for what is no answer.
        received: a subscriber has received it.
        fault: why the bus did not take it the last time; `""` where it did.
        disbelieved: an answer came that was not to be believed.
    """

    topic: str
    message: Message
    payload: bytes
    sha256: str
    read: Callable[["_Waiting", Message], Any]
    answered: anyio.Event = field(default_factory=anyio.Event)
    outcome: Any = None
    received: bool = False
    fault: str = ""
    disbelieved: bool = False


class ContextClient:
    """Asks Nexus for contexts and tells it what came of them. Use `listening()`, then all of it concurrently.

    The messages that are returned are those that were sent: append them to `run.history`, for the next context of the
    same run. A context shows what this client has sent before under the same owner, in whichever run.

    `max_payload_bytes` is the service's `bus.max_payload_bytes`; `where` names the bus in errors.

    Attributes:
        unheard: how often something was sent that no subscriber received; it is soon sent again.
        disbelieved: how many messages on its topic could not be read or believed, or answered another run, owner or
            payload than the request that they named.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        resend_s: float = 1.0,
        signing: Signing | None = None,
        max_payload_bytes: int = 1 << 20,
        where: str = "this bus",
    ) -> None:
        self.unheard = 0
        self.disbelieved = 0
        self._bus = bus
        self._signing = signing
        # A service with keys signs every answer.
        self._verifying = replace(signing, required=True) if signing else None
        self._resend_s = resend_s
        self._max_payload_bytes = max_payload_bytes
        self._where = where
        self._shortest_pause = min(resend_s, _PAUSE_S)
        self._reply_to = f"client-{uuid.uuid4().hex}"
        self._waiting: dict[str, _Waiting] = {}
        # By owner, the ids of what was sent since a context showed it, each with its run.
        self._sent: OrderedDict[str, dict[str, str]] = OrderedDict()

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

    async def build(self, run: Run, *, timeout: float = 5.0) -> dict[str, Any]:
        """The content of a successful answer: `messages`, `tools`, `context`, `degraded` (contract §1.4).

        The run's first HUMAN message is the input. The request carries the `timeout`, 0.1 to 60 seconds.

        Raises:
            AnswerError: Nexus answered with an error, named by `code`; `retry_after_ms` says when trying again, with a
                new run of the same content, may help.
            NobodyListeningError: a TimeoutError: no service received it in that time.
            TimeoutError: no answer came in time.
        """
        sent = self._sent.get(run.owner_key, {})
        # What belongs to this run is in its history.
        after = [message_id for message_id, run_id in sent.items() if run_id != run.id]
        message = Message(
            run_id=run.id,
            owner_key=run.owner_key,
            role=Role.HUMAN,
            content=run.model_dump(mode="json"),
            metadata={
                "reply_to": self._reply_to,
                "deadline_ms": _deadline_ms(timeout),
                **({"after": after} if after else {}),
            },
        )
        outcome: Outcome = await self._answer(Topics.CONTEXT_BUILD_REQUEST, message, _content_of_answer, timeout)
        if isinstance(outcome, AnswerError):
            raise outcome
        for message_id in after:
            sent.pop(message_id, None)
        return outcome

    async def record_answer(self, run: Run, completion: Any, *, timeout: float = 5.0) -> Message:
        """Have a model's answer recorded, also one that only makes tool calls.

        `completion` is its text, or in any form of contract §11: a whole chat completion, response or message as an SDK
        gives it, or a dictionary of such.

        Raises:
            ValueError: it is no JSON, or larger than the service takes.
            NobodyListeningError: no subscriber received it within `timeout` seconds. A bus that keeps messages receives
                it also while no service is there.
            BusUnavailableError: the bus did not take it in that time; it may or may not have been received.
        """
        return await self._record(Topics.LLM_RESULTS, run, Role.AI, completion, timeout)

    async def record_tool_result(
        self, run: Run, call_id: str, result: Any, *, name: str, failed: bool = False, timeout: float = 5.0
    ) -> Message:
        """Have the result of a tool recorded, as that of the model's call `call_id`. Raises as `record_answer`.

        `result` is any JSON, or an object of an SDK; of a call that has `failed` the reason.
        """
        content = {
            "result": result,
            "tool_name": name,
            "status": "error" if failed else "success",
            "execution_success": not failed,
            "call_id": call_id,
        }
        return await self._record(Topics.TOOLS_RESULTS, run, Role.TOOL, content, timeout)

    async def report_progress(
        self,
        run: Run,
        call_id: str,
        state: CallState,
        *,
        progress: float | None = None,
        message: str = "",
        timeout: float = 5.0,
    ) -> int:
        """Say how far the model's call `call_id` has come whose result is not there yet. Raises as `record_answer`.

        `progress` is from 0 to 1, where 1 is all of it, or percent; ValueError for what is neither, and for an unknown
        state. It is no message of the run. Returns how many subscribers received it, as `Bus.publish` does.
        """
        said = {"call_id": call_id, "state": state, "progress": progress, "message": message or None}
        reported = _message(run, Role.TOOL, {name: value for name, value in said.items() if value is not None})
        row = progress_row(reported)
        received = await self._send(Topics.TOOLS_PROGRESS, reported, timeout)
        # It is recorded under the id of the call's one row.
        self._remember(reported.model_copy(update={"id": row["id"]}))
        return received

    async def say(self, run: Run, text: Any, *, timeout: float = 5.0) -> Message:
        """Have recorded what the person says while the run is under way. Raises as `record_answer`."""
        return await self._record(Topics.RUNS_INPUT, run, Role.HUMAN, text, timeout)

    async def call_tool(
        self, run: Run, name: str, arguments: Any, *, call_id: str = "", timeout: float = 15.0
    ) -> Message:
        """The result of a tool that Nexus runs (`search_memory` and so on), which Nexus has recorded.

        `arguments` and `call_id` are as the model gave them. The content is `result`, a text for the model, with
        `status`, `success` or `error`.

        Raises:
            NobodyListeningError: a TimeoutError: no service received the call in that time.
            TimeoutError: no result came in time; the call may have been carried out.
        """
        content = {"name": name, "args": arguments, "call_id": call_id}
        message = _message(run, Role.AI, content)
        result: Message = await self._answer_on(
            Topics.TOOLS_RESULTS, Topics.TOOLS_REQUESTS, message, _result_of_call, timeout
        )
        self._remember(result)
        return result

    async def search_memory(
        self,
        owner_key: str,
        query: str,
        *,
        session_id: str | None = None,
        scope: str | None = None,
        limit: int = 10,
        timeout: float = 5.0,
    ) -> dict[str, Any]:
        """What long-term memory finds, best first: `hits`, `considered`, `formula`, `generation` (contract §14).

        Looked at is the session, or without one all that the owner has; `scope`, `session` or `owner`, need not be
        given. Raises as `build`.
        """
        content = {"query": query, "scope": scope, "session_id": session_id, "limit": limit}
        message = Message(
            run_id=new_run_id(),
            owner_key=owner_key,
            role=Role.HUMAN,
            content={name: value for name, value in content.items() if value is not None},
            metadata={"reply_to": self._reply_to, "deadline_ms": _deadline_ms(timeout)},
        )
        topic = f"{Topics.MEMORY_SEARCH_RESULT}.{self._reply_to}"
        outcome: Outcome = await self._answer_on(topic, Topics.MEMORY_SEARCH, message, _content_of_answer, timeout)
        if isinstance(outcome, AnswerError):
            raise outcome
        return outcome

    async def register_tools(self, definitions: Iterable[Any], *, timeout: float = 5.0) -> None:
        """Offer tools to every owner (contract §3). Contexts have them in a moment. Raises as `record_answer`.

        A definition that the service refuses becomes a dead letter.
        """
        for definition in definitions:
            content = _plain(definition)
            message = Message(run_id=new_run_id(), owner_key=_OWNER_OF_TOOLS, role=Role.SYSTEM, content=content)
            await self._send(Topics.TOOLS_REGISTER, message, timeout)

    async def send_state(
        self, owner_key: str, content: Mapping[str, Any], *, session_id: str = "default", timeout: float = 5.0
    ) -> int:
        """Change a session's state (contract §5): `{"op": "set", "state": {…}}`, a `patch` or a `clear`.

        Returns how many subscribers received it, as `Bus.publish` does; there is no answer. Sending the same again
        after an error does no harm. Raises as `record_answer`.
        """
        return await self._send(Topics.SESSION_STATE, owner_message(owner_key, content, session_id), timeout)

    async def send_facts(
        self, owner_key: str, content: Mapping[str, Any], *, session_id: str = "default", timeout: float = 5.0
    ) -> int:
        """Say what holds of a person, or no longer does (contract §15): `{"op": "add", "facts": […]}`, or `"retire"`.

        `session_id` is the one in which it was said. Returns and raises as `send_state`.
        """
        return await self._send(Topics.MEMORY_FACTS, owner_message(owner_key, content, session_id), timeout)

    async def send_constraints(
        self,
        owner_key: str,
        content: Mapping[str, Any],
        *,
        session_id: str = "default",
        run_id: str | None = None,
        timeout: float = 5.0,
    ) -> int:
        """Set constraints, `{"op": "add", "constraints": […]}`, or take them back with `retire` (contract §15).

        Returns and raises as `send_state`; ValueError where one is of scope `run`, and no `run_id` says of which.
        """
        if run_id is None and _is_of_a_run(content):
            raise ValueError("run_id: is needed for constraints of scope run")
        message = owner_message(owner_key, content, session_id, run_id)
        return await self._send(Topics.SESSION_CONSTRAINTS, message, timeout)

    async def _record(self, topic: str, run: Run, role: Role, content: Any, seconds: float) -> Message:
        message = _message(run, role, content)
        await self._send(topic, message, seconds)
        if recorded_row(message):
            # What says nothing is not recorded, so no context could wait for it.
            self._remember(message)
        return message

    def _remember(self, message: Message) -> None:
        sent = self._sent.setdefault(message.owner_key, {})
        self._sent.move_to_end(message.owner_key)
        # A large result is shown as it was recorded, to its own run, too.
        is_large = message.role is Role.TOOL and len(compact(message.content)) > _LARGE_RESULT
        sent[message.id] = "" if is_large else message.run_id
        if len(sent) > _MOST_AFTER:
            # It was on its way while a hundred others were sent.
            del sent[next(iter(sent))]
        if len(self._sent) > _MOST_OWNERS:
            self._sent.popitem(last=False)

    async def _send(self, topic: str, message: Message, seconds: float) -> int:
        """Send a message until a subscriber has received it. Returns how many have."""
        payload = self._encoded(topic, message)
        if len(payload) > self._max_payload_bytes:
            reason = f"{len(payload)} bytes, at most {self._max_payload_bytes} are allowed (bus.max_payload_bytes)"
            raise ValueError(f"{topic}: {reason}")
        pauses = Pauses(self._shortest_pause, self._resend_s)
        failure: BusUnavailableError | None = None
        with anyio.move_on_after(seconds):
            while True:
                try:
                    failure = None
                    if received := await self._bus.publish(topic, payload):
                        return received
                    self.unheard += 1
                except BusRefusedError:
                    raise
                except BusUnavailableError as error:
                    failure = error
                await pauses.wait()
        raise failure or self._nobody_listens(topic, seconds)

    async def _answer(
        self, topic: str, message: Message, read: Callable[[_Waiting, Message], Any], seconds: float
    ) -> Any:
        """What is answered to a message, which is sent until then."""
        payload = self._encoded(topic, message)
        waiting = _Waiting(topic, message, payload, hashlib.sha256(payload).hexdigest(), read)
        self._waiting[message.id] = waiting
        try:
            with anyio.move_on_after(seconds):
                await self._ask(waiting)
        finally:
            del self._waiting[message.id]
        if waiting.outcome is None:
            raise await self._time_out(waiting, seconds)
        return waiting.outcome

    async def _answer_on(
        self, answers: str, topic: str, message: Message, read: Callable[[_Waiting, Message], Any], seconds: float
    ) -> Any:
        """What is answered to a message on a topic that is listened to for it alone."""
        with ungrouped():
            async with self._bus.subscribe(answers) as subscription, anyio.create_task_group() as tasks:
                tasks.start_soon(self._receive, subscription)
                outcome = await self._answer(topic, message, read, seconds)
                tasks.cancel_scope.cancel()
        return outcome

    async def _ask(self, waiting: _Waiting) -> None:
        pause = self._shortest_pause
        while waiting.outcome is None:
            try:
                # Under the name of its bytes: under its id, another sender's message could have been taken already.
                received = await self._bus.publish(waiting.topic, waiting.payload, once=waiting.sha256)
            except BusUnavailableError as error:
                # Whether it was received is unknown; the same bytes again do no harm.
                waiting.fault = f"the bus cannot be reached: {error}"
                await anyio.sleep(self._shortest_pause)
                continue
            waiting.fault = ""
            if received:
                waiting.received = True
                pause = self._resend_s
            else:
                self.unheard += 1
                pause = min(pause * 2, self._resend_s)
            with anyio.move_on_after(pause):
                await waiting.answered.wait()

    async def _time_out(self, waiting: _Waiting, seconds: float) -> TimeoutError:
        if not waiting.fault and not (waiting.received and await self._may_be_read(waiting.topic)):
            return self._nobody_listens(waiting.topic, seconds)
        reason = waiting.fault or (UNBELIEVED if waiting.disbelieved else _UNANSWERED)
        return TimeoutError(f"no answer within {seconds:g} s to {waiting.topic} at {self._where}: {reason}")

    async def _may_be_read(self, topic: str) -> bool:
        """False where it is certain that no service reads the topic."""
        try:
            with anyio.move_on_after(1):
                return await self._bus.is_read(topic) is not False
        except BusUnavailableError:
            pass
        return True

    def _nobody_listens(self, topic: str, seconds: float) -> NobodyListeningError:
        return NobodyListeningError(
            f"nobody listens to {topic} at {self._where}, tried for {seconds:g} s: {CHECK_SERVICE}"
        )

    def _encoded(self, topic: str, message: Message) -> bytes:
        if not carried(message) and (trace := carrier()):
            message = message.model_copy(update={"metadata": {**message.metadata, **trace}})
        try:
            return encode(message, topic=topic, signing=self._signing)
        except PydanticSerializationError as error:
            raise ValueError(f"{topic}: the content is no JSON: {error}") from None

    async def _receive(self, subscription: Subscription) -> None:
        async for delivery in subscription:
            # The results of all tools are for many.
            is_mine = delivery.topic != Topics.TOOLS_RESULTS
            try:
                message = decode(
                    delivery.payload, max_bytes=_LARGEST_ANSWER, topic=delivery.topic, signing=self._verifying
                )
            except (EnvelopeError, UnreadablePayloadError):
                self.disbelieved += is_mine
                for waiting in self._waiting.values():
                    waiting.disbelieved |= is_mine
                continue
            named = self._waiting.get(str(message.metadata.get("request_id")))
            if named is None or named.outcome is not None:
                # An answer that is announced again, or comes too late.
                continue
            named.outcome = named.read(named, message)
            if named.outcome is None:
                self.disbelieved += 1
                named.disbelieved = True
            else:
                named.answered.set()


def owner_message(owner_key: str, content: Mapping[str, Any], session_id: str, run_id: str | None = None) -> Message:
    """A message about an owner, one of its sessions or, where that is named, one of its runs."""
    return Message(
        run_id=run_id or new_run_id(),
        owner_key=owner_key,
        role=Role.COMMAND,
        content=dict(content),
        metadata={"session_id": session_id},
    )


def _is_of_a_run(content: Mapping[str, Any]) -> bool:
    """Whether what is said of constraints is also said of some that hold for a run alone."""
    given = (content.get("constraints"), content.get("ids"))
    named, ids = (one if isinstance(one, list | tuple) else () for one in given)
    return any(isinstance(one, Mapping) and one.get("scope") == "run" for one in named) or any(
        str(one).startswith("run-") for one in ids
    )


def _deadline_ms(seconds: float) -> int:
    low, high = _DEADLINE_MS
    return min(max(int(seconds * 1_000), low), high)


def _message(run: Run, role: Role, content: Any) -> Message:
    """A message of the run, in its session."""
    session = run.metadata.get("session_id")
    metadata = {"session_id": session} if session else {}
    return Message(run_id=run.id, owner_key=run.owner_key, role=role, content=_plain(content), metadata=metadata)


def _plain(value: Any) -> Any:
    """What an SDK has given as JSON, under the names of the provider's API."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True, warnings=False)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _content_of_answer(waiting: _Waiting, answer: Message) -> Outcome | None:
    # A service of release 0.1 does not say which bytes it answers.
    answered = (answer.run_id, answer.owner_key, answer.metadata.get("request_sha256", waiting.sha256))
    asked = (waiting.message.run_id, waiting.message.owner_key, waiting.sha256)
    return _outcome(answer.content) if answered == asked else None


def _result_of_call(waiting: _Waiting, result: Message) -> Message | None:
    asked = (waiting.message.run_id, waiting.message.owner_key)
    return result if (result.run_id, result.owner_key) == asked and result.role is Role.TOOL else None


def _outcome(content: Any) -> Outcome | None:
    """What an answer says (contract §1.4, §14); None for what is no answer."""
    if not isinstance(content, dict):
        return None
    said = content.get("messages", content.get("hits"))
    if content.get("status") == "success" and isinstance(said, list):
        return content
    error = content.get("error")
    if content.get("status") != "error" or not isinstance(error, dict):
        return None
    code = error.get("code")
    known = ErrorCode(code) if code in list(ErrorCode) else ErrorCode.INTERNAL
    retry_after_ms = error.get("retry_after_ms")
    wait_ms = retry_after_ms if type(retry_after_ms) is int else None
    return AnswerError(known, str(error.get("message", "")), wait_ms, content)
