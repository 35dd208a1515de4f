"""What a payload asks, under which key, and the envelope of its answer (contract §1.3, §1.4, §1.7). Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import Message, Role, Topics
from nexus.core.ports import Delivery
from nexus.core.signing import Signing
from nexus.core.wire import EnvelopeError, EnvelopeIds, decode, encode
from nexus.services.context.request import REPLY_TO, reply_suffix

_KEY_CHARS: Final = 32
# An envelope cannot be without these ids; a request that could not be read may be.
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What answering needs of the settings (contract §9, section `bus`). Times in milliseconds."""

    deadline_ms: int = 5_000
    lease_ms: int = 2_000
    answer_ttl_ms: int = 3_600_000
    max_payload_bytes: int = 1 << 20
    max_in_flight: int = 256
    signing: Signing | None = None

    @property
    def granted_ms(self) -> int:
        """For how long a claim is granted: less than a lease, so that within one another replica has taken over."""
        return self.lease_ms * 9 // 10


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """Something that can be answered.

    Attributes:
        ids: of the sender. The answer repeats them.
        key: what the ledger knows it by: the request id, but for a conflict or a sender who is not known.
        fingerprint: SHA-256 of the payload. The same key with another fingerprint is another request.
        topic: where the answer goes.
        asked: the request, or what is wrong with it.
        delivery: what brought it.
        arrived_at: when, on the monotonic clock.
        signing: with what answers are signed.
    """

    ids: EnvelopeIds
    key: str
    fingerprint: str
    topic: str
    asked: Message | RequestError
    delivery: Delivery
    arrived_at: float
    signing: Signing | None = None

    def answer(self, content: Mapping[str, Any]) -> bytes:
        """The encoded answer with this content."""
        return self._encoded(answer(self.ids.id, self.ids.run_id, self.ids.owner_key, content))

    def refusal(self, error: RequestError) -> bytes:
        """The encoded answer that says what is wrong."""
        return self._encoded(error_answer(self.ids.id, self.ids.run_id, self.ids.owner_key, error))

    def as_conflict(self) -> "IncomingRequest":
        """This, as a request whose id belongs to another one.

        It has a key of its own, so that the conflict too is answered once, and the request it conflicts with is safe.
        """
        error = RequestError(ErrorCode.ID_CONFLICT, "id: belongs to another request; every request needs its own")
        return replace(self, key=_own_key(self.key, self.fingerprint), asked=error)

    def _encoded(self, message: Message) -> bytes:
        return encode(message, topic=self.topic, signing=self.signing)


def answer(request_id: str, run_id: str, owner_key: str, content: Mapping[str, Any]) -> Message:
    """The answer with this content to the request of that id."""
    return Message(
        run_id=run_id or _UNKNOWN,
        owner_key=owner_key or _UNKNOWN,
        role=Role.SYSTEM,
        content=content,
        metadata={"request_id": request_id},
    )


def error_answer(request_id: str, run_id: str, owner_key: str, error: RequestError) -> Message:
    """The answer that tells a requester what is wrong."""
    described: dict[str, Any] = {"code": error.code.value, "message": error.message, "retryable": error.code.retryable}
    if error.retry_after_ms is not None:
        described["retry_after_ms"] = error.retry_after_ms
    return answer(request_id, run_id, owner_key, {"status": "error", "error": described, "messages": [], "tools": []})


def read_message(delivery: Delivery, *, max_bytes: int, signing: Signing | None) -> Message:
    """The message in a delivery, if it may be believed where and when it was sent.

    Raises:
        EnvelopeError, UnreadablePayloadError: as `nexus.core.wire.decode`.
    """
    return decode(
        delivery.payload, max_bytes=max_bytes, topic=delivery.topic, signing=signing, sent_ms=delivery.sent_ms
    )


def read_incoming(
    delivery: Delivery, arrived_at: float, *, max_bytes: int, signing: Signing | None = None
) -> IncomingRequest:
    """The request that a delivery brings.

    Raises:
        UnreadablePayloadError: there is nobody to be answered.
    """
    fingerprint = hashlib.sha256(delivery.payload).hexdigest()
    suffix = ""
    asked: Message | RequestError
    try:
        asked = message = read_message(delivery, max_bytes=max_bytes, signing=signing)
        ids = EnvelopeIds(message.id, message.run_id, message.owner_key)
        key = ids.id
        suffix = reply_suffix(message)
    except EnvelopeError as error:
        asked, ids = error, error.ids
        # The sender may not be the one to whom the id belongs, and must not take it from that one.
        key = _own_key(ids.id, fingerprint) if signing else ids.id
        suffix = f".{ids.reply_to}" if REPLY_TO.fullmatch(ids.reply_to) else ""
    except RequestError as error:
        asked = error
    topic = Topics.CONTEXT_BUILD_RESPONSE + suffix
    return IncomingRequest(ids, key, fingerprint, topic, asked, delivery, arrived_at, signing)


def _own_key(key: str, fingerprint: str) -> str:
    return f"{key}#{fingerprint[:_KEY_CHARS]}"
