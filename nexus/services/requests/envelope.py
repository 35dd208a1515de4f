"""Requests and tool calls as read from their payloads, and their answers' envelopes (contract §1, §7). Pure.

Every runner of tools listens to `tools.requests`: a message that names none of the memory tools is ignored, unless
what nobody answers is to be answered (`unknown_tools_after_ms`). An unusable call gets an error result where it has a
run and an owner, but none where a required signature is missing.
"""

import hashlib
import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from nexus.core.erasure import owner_mark
from nexus.core.errors import ErrorCode, RequestError, UnreadablePayloadError
from nexus.core.models import (
    ANSWER_TOPICS,
    CALL_ARGUMENTS,
    CALL_IDS,
    CALL_NAMES,
    LONG_AGO,
    Message,
    Role,
    Topics,
    named_agent,
)
from nexus.core.payloads import ErrorContent, ErrorDetail, ToolResult
from nexus.core.ports import Delivery
from nexus.core.signing import FIELD, Signing
from nexus.core.tracing import Key, carried, carrier, processing
from nexus.core.wire import EnvelopeError, EnvelopeIds, compact, decode, encode
from nexus.services.context.request import REPLY_TO, reply_suffix
from nexus.services.history.forms import native
from nexus.services.history.parts import first_of
from nexus.services.history.rows import BEFORE_ALL, REVISION, internal_marks, read_session_id
from nexus.services.history.tool_calls import as_id, described, given_arguments
from nexus.services.tools.memory_tools import MEMORY_TOOLS

# For the ids that an envelope needs and an unreadable request may lack.
_UNKNOWN: Final = "unknown"

_ID_CHARS: Final = 256
_DIGEST_CHARS: Final = 32
# How long a call waits for another replica, or for Redis, on a bus that keeps nothing.
_LONGEST_S: Final = 120.0
_NAMES: Final = tuple(name.encode() for name in sorted(MEMORY_TOOLS))
# A message has one of these, or a result.
_OF_NO_CALL: Final = ("role", "result", "output", "tool_name")
_NO_CALL: Final = 'content: holds no call that is understood; {"name", "args", "call_id"} is, and what models send'
# JSON may spell the letters of a name as \u0061.
_ESCAPED_LETTER: Final = b"\\u00"
# For payloads that cannot be parsed. Within a text, quotation marks have a backslash before them.
_NAME: Final = re.compile(rf'(?<!\\)"(?:{"|".join(CALL_NAMES)})"\s*+:\s*+"({"|".join(sorted(MEMORY_TOOLS))})"'.encode())
_CALL_ID: Final = re.compile(
    rf'(?<!\\)"(?:{"|".join(CALL_IDS)})"\s*+:\s*+"([\x20\x21\x23-\x5b\x5d-\x7e]{{1,256}})"'.encode()
)
_CALL_ID_WITHIN: Final = 4_096


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """The settings of answering (contract §9, section `bus`). Times in milliseconds."""

    deadline_ms: int = 5_000
    lease_ms: int = 2_000
    answer_ttl_ms: int = 3_600_000
    max_payload_bytes: int = 1 << 20
    max_in_flight: int = 256
    max_in_flight_per_owner: int = 32
    # When a call of a tool that nobody has announced gets an error result; None for never.
    unknown_tools_after_ms: int | None = None
    # Results of more bytes are condensed where they are recorded; 0 for none.
    condense_above: int = 0
    signing: Signing | None = None
    mode: str = "pubsub"

    @property
    def granted_ms(self) -> int:
        """The length of a claim: less than a lease, so that another replica takes over within one."""
        return self.lease_ms * 9 // 10


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request that can be answered.

    Attributes:
        ids: the sender's; the answer repeats them.
        key: its key at the ledger, of id and owner; of the payload alone where these may be another sender's. A search
            and a build have different ones.
        fingerprint: SHA-256 of the payload. The same key with another fingerprint is another request.
        topic: where the answer goes.
        asked: the message, or the fault of an unusable one.
        arrived_at, decoded_at: on the monotonic clock.
        signing: for the answer.
        trace: the trace context that it carries.
    """

    ids: EnvelopeIds
    key: str
    fingerprint: str
    topic: str
    asked: Message | RequestError
    delivery: Delivery
    arrived_at: float
    signing: Signing | None = None
    decoded_at: float = 0.0
    trace: Mapping[str, str] = field(default_factory=dict)

    @property
    def may_wait(self) -> bool:
        """Whether to wait for Redis or another replica: only where the bus keeps the request, else it is sent again."""
        return self.delivery.shared

    def answer(self, content: Mapping[str, Any]) -> bytes:
        """The encoded answer with this content."""
        message = Message(
            run_id=self.ids.run_id or _UNKNOWN,
            owner_key=self.ids.owner_key or _UNKNOWN,
            role=Role.SYSTEM,
            content=content,
            # The same id may come with several payloads; a requester takes the answer to its own.
            metadata={"request_id": self.ids.id, "request_sha256": self.fingerprint, **carrier()},
        )
        return encode(message, topic=self.topic, signing=self.signing)

    def refusal(self, error: RequestError) -> bytes:
        """The encoded error answer."""
        return self.answer(error_content(error))

    def as_conflict(self) -> Self:
        """This request refused, since its id belongs to another.

        It has a key of its own, so that the conflict too is answered once, and the other request is safe.
        """
        error = RequestError(ErrorCode.ID_CONFLICT, "id: belongs to another request; every request needs its own")
        return replace(self, key=self.fingerprint, asked=error)


def too_large_result(delivery: Delivery, error: EnvelopeError) -> Message | None:
    """What is recorded of a result that is larger than a message may be: that it was; None where its run is unknown.

    Without it a model would be told that the call has no result yet. A version that is small enough takes its place.
    Where messages have to be signed, one that is too large is `UNAUTHENTICATED`, and nothing is recorded.
    """
    ids = error.ids
    if error.code is not ErrorCode.PAYLOAD_TOO_LARGE or not (ids.run_id and ids.owner_key):
        return None
    text = f"(too large to be recorded: {error.message})"
    known = {"id": ids.id, "run_id": ids.run_id, "owner_key": ids.owner_key}
    if delivery.topic == Topics.LLM_RESULTS:
        return Message(**known, role=Role.AI, content=text, metadata={REVISION: BEFORE_ALL})
    ends = delivery.payload[:_CALL_ID_WITHIN], delivery.payload[-_CALL_ID_WITHIN:]
    found = next((match for end in ends if (match := _CALL_ID.search(end))), None)
    call = {"call_id": found[1].decode() if found else "", "status": "error", "execution_success": False}
    return Message(**known, role=Role.TOOL, content=text, metadata={**call, REVISION: BEFORE_ALL})


def error_content(error: RequestError) -> ErrorContent:
    """The content of an error answer (contract §1.4)."""
    described: ErrorDetail = {"code": error.code, "message": error.message, "retryable": error.code.retryable}
    if error.retry_after_ms is not None:
        described["retry_after_ms"] = error.retry_after_ms
    return {"status": "error", "error": described, "messages": [], "tools": []}


def read_message(delivery: Delivery, settings: RequestSettings) -> Message:
    """The message in a delivery, its signature checked for its topic and time. Raises as `nexus.core.wire.decode`."""
    return decode(
        delivery.payload,
        max_bytes=settings.max_payload_bytes,
        topic=delivery.topic,
        signing=settings.signing,
        sent_ms=delivery.sent_ms,
    )


def read_incoming(delivery: Delivery, arrived_at: float, settings: RequestSettings) -> IncomingRequest:
    """The request in a delivery; UnreadablePayloadError where it has no id for an answer to name."""
    fingerprint = hashlib.sha256(delivery.payload).hexdigest()
    suffix = ""
    asked: Message | RequestError
    try:
        asked = message = read_message(delivery, settings)
        ids = EnvelopeIds(message.id, message.run_id, message.owner_key)
        if delivery.topic == Topics.MEMORY_SEARCH:
            key = f"search:{_ledger_key(message, settings)}"
        else:
            key = _ledger_key(message, settings) if _holds_its_run(message) else fingerprint
        suffix = reply_suffix(message)
    except EnvelopeError as error:
        asked, ids = error, error.ids
        # Its id may belong to another sender, whose request must stay safe.
        key = fingerprint
        suffix = f".{ids.reply_to}" if REPLY_TO.fullmatch(ids.reply_to) else ""
    except RequestError as error:
        asked = error
    topic = ANSWER_TOPICS[delivery.topic] + suffix
    return IncomingRequest(
        ids,
        key,
        fingerprint,
        topic,
        asked,
        delivery,
        arrived_at,
        settings.signing,
        decoded_at=time.monotonic(),
        trace=carried(asked),
    )


def _ledger_key(message: Message, settings: RequestSettings) -> str:
    """The key of a request: another one for each owner, and for an unsigned message where others are signed."""
    return f"{message.id}{'-' if _is_unsigned(message, settings) else ':'}{owner_mark(message.owner_key)}"


def _is_unsigned(message: Message, settings: RequestSettings) -> bool:
    """Whether any stranger may have sent it, to a bus on which others sign."""
    return settings.signing is not None and FIELD not in message.metadata


def _holds_its_run(message: Message) -> bool:
    """Whether the content is a run of the envelope's owner and id. Otherwise the message is refused."""
    run = message.content
    return (
        isinstance(run, Mapping)
        and isinstance(run.get("history"), list)
        and (run.get("owner_key"), run.get("id", message.run_id)) == (message.owner_key, message.run_id)
    )


@dataclass(frozen=True, slots=True)
class ToolCallRequest:
    """A call of a memory tool that can be answered.

    Attributes:
        ids: the message's; the result repeats run and owner.
        name: of the tool.
        call_id: the model's id of the call; `""` for none.
        result_id: of the result, so that it is recorded once; the memory knows the call by it, too.
        arrived_at, decoded_at: on the monotonic clock.
        fingerprint: SHA-256 of the payload. The same message id with another one is another call.
        signing: for the result.
        session_id, sub_agent: named by the message; None for none.
        fault: the reason why it cannot be carried out; None for none.
        surplus: too many calls are waiting, so this one is to be refused.
        said_at: by the clock of its sender or, where that is ahead, of the bus.
        trace: the trace context that it carries.
    """

    ids: EnvelopeIds
    name: str
    call_id: str
    result_id: str
    delivery: Delivery
    arrived_at: float
    fingerprint: str
    signing: Signing | None = None
    args: Any = None
    session_id: str | None = None
    sub_agent: str | None = None
    fault: str | None = None
    surplus: bool = False
    said_at: datetime = LONG_AGO
    decoded_at: float = 0.0
    trace: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its key at the ledger; no build request has the same."""
        return f"tool:{self.result_id}"

    @property
    def waited_s(self) -> float:
        """The seconds since it arrived."""
        return time.monotonic() - self.arrived_at

    @property
    def may_wait(self) -> bool:
        """Whether to wait for Redis or another replica: long, as calls are not resent; always if the bus keeps it.

        Not with the refusal of one for which another replica had room.
        """
        return self.delivery.shared or (not self.surplus and self.waited_s < _LONGEST_S)

    def as_conflict(self) -> Self:
        """This call, refused because its message id belongs to another; with a key of its own."""
        result_id = _digest("conflict", self.result_id, self.fingerprint)
        return replace(self, result_id=result_id, fault="id: belongs to another call; every call needs its own")

    def result(self, text: str, *, done: bool, retryable: bool = False, session_id: str | None = None) -> Message:
        """The result of the call, with a text for the model.

        `retryable`: the same call may succeed later. It is recorded in `session_id`, None for that of its run.
        """
        content: ToolResult = {
            "result": text,
            "tool_name": self.name,
            "status": "success" if done else "error",
            "execution_success": done,
            "call_id": self.call_id,
        }
        if not done:
            content["error"] = {"message": text, "retryable": retryable}
        session = {"session_id": session_id} if session_id else {}
        return Message(
            id=self.result_id,
            run_id=self.ids.run_id,
            owner_key=self.ids.owner_key,
            role=Role.TOOL,
            content=content,
            metadata={"request_id": self.ids.id, **session, **internal_marks(self.sub_agent), **carrier()},
        )

    def encoded(self, result: Message) -> bytes:
        """The bytes of the result, signed where results are."""
        return encode(result, topic=Topics.TOOLS_RESULTS, signing=self.signing)


def processed(item: IncomingRequest | ToolCallRequest, settings: RequestSettings) -> AbstractContextManager[None]:
    """The span of a request or call, around answering it."""
    delivery, ids = item.delivery, item.ids
    attributes = {
        Key.SYSTEM: "nexus" if settings.mode == "memory" else "redis",
        Key.BUS_MODE: settings.mode,
        Key.REQUEST_ID: ids.id,
        Key.RUN_ID: ids.run_id,
        Key.BODY_SIZE: len(delivery.payload),
        Key.DELIVERIES: delivery.deliveries,
    }
    return processing(delivery.topic, item.trace, item.arrived_at, item.decoded_at, attributes)


def sent_at(delivery: Delivery) -> datetime | None:
    """When the bus took it; None where it does not say."""
    return datetime.fromtimestamp(delivery.sent_ms / 1_000, UTC) if delivery.sent_ms else None


def may_name_memory_tool(payload: bytes) -> bool:
    """Whether the payload may name a memory tool. Fast; a False is certain."""
    return any(name in payload for name in _NAMES) or _ESCAPED_LETTER in payload


def read_tool_call(delivery: Delivery, arrived_at: float, settings: RequestSettings) -> ToolCallRequest | None:
    """The call in a delivery; None where it names no memory tool, unless all calls are to be answered.

    Raises:
        EnvelopeError: its sender may not send it (`UNAUTHENTICATED`).
        UnreadablePayloadError: it names no run or owner.
    """
    fingerprint, signing = hashlib.sha256(delivery.payload).hexdigest(), settings.signing
    answers_all = settings.unknown_tools_after_ms is not None
    try:
        message = read_message(delivery, settings)
    except (EnvelopeError, UnreadablePayloadError) as error:
        named = _NAME.search(delivery.payload)
        if named is None and not answers_all:
            return None
        if not isinstance(error, EnvelopeError) or error.code is ErrorCode.UNAUTHENTICATED:
            raise
        ids = error.ids
        if not ids.run_id or not ids.owner_key:
            raise UnreadablePayloadError(error.message) from error
        found = _CALL_ID.search(delivery.payload)
        call_id = found[1].decode() if found else ""
        # An unsigned id may belong to another sender.
        result_id = _digest(ids.owner_key, ids.run_id, ids.id, fingerprint)
        name = named[1].decode() if named else _UNKNOWN
        return ToolCallRequest(
            ids,
            name,
            call_id,
            result_id,
            delivery,
            arrived_at,
            fingerprint,
            signing,
            fault=error.message,
            decoded_at=time.monotonic(),
        )
    name, args, call_id = _called(message.content)
    if name not in MEMORY_TOOLS and not answers_all:
        return None
    session_id, fault = _session_in(message)
    unsigned = ["unsigned"] if _is_unsigned(message, settings) else []
    fault = fault if name else _NO_CALL
    if len(call_id) > _ID_CHARS:
        call_id, fault = "", f"content.call_id: {len(call_id)} characters, at most {_ID_CHARS} are allowed"
    return ToolCallRequest(
        EnvelopeIds(message.id, message.run_id, message.owner_key),
        name or _UNKNOWN,
        call_id,
        _digest(message.owner_key, message.run_id, message.id, *unsigned),
        delivery,
        arrived_at,
        fingerprint,
        signing,
        args=args,
        session_id=session_id,
        sub_agent=named_agent(message.metadata),
        fault=fault,
        said_at=min(message.timestamp, sent_at(delivery) or message.timestamp),
        decoded_at=time.monotonic(),
        trace=carried(message),
    )


def _called(content: Any) -> tuple[str, Any, str]:
    """Name, arguments and id of the call in a content: a call by itself, else the only one in a message of a model.

    The arguments are as they came: what is repaired to be shown must not be carried out. `""` for no name and no id.
    """
    whole = content if isinstance(content, Mapping) else {}
    call = whole if _is_call(whole) else _only_call(content)
    inner = described(call)
    name = first_of(inner, *CALL_NAMES)
    ids = (as_id(each.get(key)) for each in (inner, call) for key in (*CALL_IDS, "id"))
    return name if isinstance(name, str) else "", given_arguments(call), next(filter(None, ids), "")


def _is_call(given: Mapping[str, Any]) -> bool:
    """Whether it is no message of a model, which may have a name, too, and no result."""
    inner, calls = described(given), given.get("tool_calls")
    is_message = "role" in given or (isinstance(calls, list) and len(calls) == 1)
    has_arguments = any(inner.get(name) is not None for name in CALL_ARGUMENTS)
    return has_arguments and isinstance(first_of(inner, *CALL_NAMES), str) and not is_message and "result" not in given


def _only_call(content: Any) -> Mapping[str, Any]:
    """The call in a message, or in a part of one; `{}` where there are several, or results."""
    rows = native({"role": Role.AI.value, "content": content, "metadata": {}})
    made = [each for row in rows for each in row["metadata"].get("tool_calls", ())]
    made = [each for each in made if each.get("type") != "invalid_tool_call"]
    if any(row["role"] == Role.TOOL.value for row in rows) or len(made) > 1:
        return {}
    # A call without arguments may have no type, and is then no part of a message.
    is_bare = isinstance(content, Mapping) and content.keys().isdisjoint(_OF_NO_CALL)
    return made[0] if made else content if is_bare else {}


def _session_in(message: Message) -> tuple[str | None, str | None]:
    try:
        return (read_session_id(message.metadata) if message.metadata.get("session_id") else None), None
    except ValueError as error:
        return None, str(error)


def _digest(*parts: str) -> str:
    return f"msg_{hashlib.sha256(compact([*parts])).hexdigest()[:_DIGEST_CHARS]}"
