"""What a payload asks, under which key, and where its answer goes (CONTRACT §1.3, §1.4). Pure."""

import hashlib
from dataclasses import dataclass, replace

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import Message
from nexus.core.topics import Topics
from nexus.core.wire import EnvelopeError, EnvelopeIds, decode, encode
from nexus.services.context.answers import error_answer
from nexus.services.context.request import REPLY_TO, reply_suffix

_KEY_CHARS = 32


@dataclass(frozen=True, slots=True)
class Ask:
    """Something that can be answered.

    Attributes:
        ids: who asks. The answer repeats them.
        key: what the ledger knows it by: the request id, but for a conflict.
        fingerprint: SHA-256 of the payload. The same key with another fingerprint is another request.
        topic: where the answer goes.
        asked: the request, or what is wrong with it.
        at: when it arrived, on the monotonic clock.
    """

    ids: EnvelopeIds
    key: str
    fingerprint: str
    topic: str
    asked: Message | RequestError
    at: float

    def refusal(self, error: RequestError) -> bytes:
        """The encoded answer that says what is wrong."""
        return encode(error_answer(self.ids.id, self.ids.run_id, self.ids.owner_key, error))

    def as_conflict(self) -> "Ask":
        """This, as an ask whose id belongs to another request.

        It has a key of its own, so that the conflict too is answered once, and the request it conflicts with is safe.
        """
        error = RequestError(ErrorCode.ID_CONFLICT, "id: belongs to another request; every request needs its own")
        return replace(self, key=f"{self.key}#{self.fingerprint[:_KEY_CHARS]}", asked=error)


def read_ask(payload: bytes, at: float, *, max_bytes: int) -> Ask:
    """What `payload`, which arrived at `at`, asks.

    Raises:
        UnreadablePayloadError: nobody can be answered.
    """
    suffix = ""
    asked: Message | RequestError
    try:
        asked = message = decode(payload, max_bytes=max_bytes)
        ids = EnvelopeIds(message.id, message.run_id, message.owner_key)
        suffix = reply_suffix(message)
    except EnvelopeError as error:
        asked, ids = error, error.ids
        suffix = f".{ids.reply_to}" if REPLY_TO.fullmatch(ids.reply_to) else ""
    except RequestError as error:
        asked = error
    fingerprint = hashlib.sha256(payload).hexdigest()
    return Ask(ids, ids.id, fingerprint, Topics.CONTEXT_BUILD_RESPONSE + suffix, asked, at)
