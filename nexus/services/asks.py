"""What a payload asks, under which key, and where its answer goes (CONTRACT §1.3, §1.4, §1.7). Pure."""

import hashlib
from dataclasses import dataclass, replace

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import Message
from nexus.core.ports import Delivery
from nexus.core.signing import Signing
from nexus.core.topics import Topics
from nexus.core.wire import EnvelopeError, EnvelopeIds, decode, encode
from nexus.services.context.answers import error_answer
from nexus.services.context.request import REPLY_TO, reply_suffix

_KEY_CHARS = 32


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What answering needs of the settings (CONTRACT §9, section `bus`). Times in milliseconds.

    For `claims_first_ms` from the first request on, and for `claims_first` requests at least, none is built that was
    not claimed: what has killed the last process is counted by the ledger when it is asked for again. By then it is
    known, too, who gets most of what is asked.
    """

    deadline_ms: int = 5_000
    lease_ms: int = 2_000
    answer_ttl_ms: int = 3_600_000
    max_payload_bytes: int = 1 << 20
    max_in_flight: int = 256
    signing: Signing | None = None
    claims_first_ms: int = 0
    claims_first: int = 0

    @property
    def granted_ms(self) -> int:
        """For how long a claim is granted: less than a lease, so that within one whoever takes over is at it."""
        return self.lease_ms * 9 // 10


@dataclass(frozen=True, slots=True)
class Ask:
    """Something that can be answered.

    Attributes:
        ids: who asks. The answer repeats them.
        key: what the ledger knows it by: the request id, but for a conflict or a sender who is not known.
        fingerprint: SHA-256 of the payload. The same key with another fingerprint is another request.
        topic: where the answer goes.
        asked: the request, or what is wrong with it.
        delivery: what brought it.
        at: when it arrived, on the monotonic clock.
        signing: with what answers are signed.
    """

    ids: EnvelopeIds
    key: str
    fingerprint: str
    topic: str
    asked: Message | RequestError
    delivery: Delivery
    at: float
    signing: Signing | None = None

    def encoded(self, answer: Message) -> bytes:
        """The bytes of an answer to this."""
        return encode(answer, topic=self.topic, signing=self.signing)

    def refusal(self, error: RequestError) -> bytes:
        """The encoded answer that says what is wrong."""
        return self.encoded(error_answer(self.ids.id, self.ids.run_id, self.ids.owner_key, error))

    def as_conflict(self) -> "Ask":
        """This, as an ask whose id belongs to another request.

        It has a key of its own, so that the conflict too is answered once, and the request it conflicts with is safe.
        """
        error = RequestError(ErrorCode.ID_CONFLICT, "id: belongs to another request; every request needs its own")
        return replace(self, key=_own_key(self.key, self.fingerprint), asked=error)


def read_message(delivery: Delivery, *, max_bytes: int, signing: Signing | None) -> Message:
    """The message in a delivery, if it may be believed where and when it was sent.

    Raises:
        EnvelopeError, UnreadablePayloadError: as `nexus.core.wire.decode`.
    """
    return decode(
        delivery.payload, max_bytes=max_bytes, topic=delivery.topic, signing=signing, sent_ms=delivery.sent_ms
    )


def read_ask(delivery: Delivery, at: float, *, max_bytes: int, signing: Signing | None = None) -> Ask:
    """What a delivery, which arrived at `at`, asks.

    Raises:
        UnreadablePayloadError: nobody can be answered.
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
        # Whoever sent it may not be who the id belongs to, and must not take it from that one.
        key = _own_key(ids.id, fingerprint) if signing else ids.id
        suffix = f".{ids.reply_to}" if REPLY_TO.fullmatch(ids.reply_to) else ""
    except RequestError as error:
        asked = error
    topic = Topics.CONTEXT_BUILD_RESPONSE + suffix
    return Ask(ids, key, fingerprint, topic, asked, delivery, at, signing)


def _own_key(key: str, fingerprint: str) -> str:
    return f"{key}#{fingerprint[:_KEY_CHARS]}"
