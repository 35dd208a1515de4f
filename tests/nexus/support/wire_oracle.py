"""Rules that the wire decoder keeps for any bytes. Used by the tests and by the fuzzer."""

import json
import math
from typing import Any

from nexus.core.errors import ErrorCode, UnreadablePayloadError
from nexus.core.models import Message, Topics, utc_now
from nexus.core.ports import Delivery
from nexus.core.signing import Signing, canonical
from nexus.core.wire import MAX_DEPTH, EnvelopeError, decode, encode, is_deeper
from nexus.services.requests.envelope import IncomingRequest

TOPIC = Topics.CONTEXT_BUILD_REQUEST
SIGNING = Signing({"k1": b"the first secret"}, required=True)
LENIENT = Signing({"k1": b"the first secret"})
# When the seeds were sent, on a bus that says so.
SENT = "2025-12-10T15:30:00Z"
SENT_MS = 1_765_380_600_000

ENVELOPE: dict[str, Any] = {
    "id": "msg_1",
    "run_id": "run_1",
    "owner_key": "ada",
    "role": "HUMAN",
    "content": {
        "id": "run_1",
        "history": [{"role": "HUMAN", "content": 'Say "hi" \\ [x] {y} 你好 😀', "timestamp": None}],
        "numbers": [0, -1, 2.5, 1e-7, 12345678901234567890, True],
    },
    "timestamp": SENT,
    "metadata": {"reply_to": "client-1", "deadline_ms": 4000},
}
# As Nexus sends it, which is verified by its bytes; in another spelling it is verified by its value.
SENT_SIGNED = SIGNING.signed(TOPIC, ENVELOPE)
SIGNED: dict[str, Any] = json.loads(SENT_SIGNED)
SEEDS = [
    *(json.dumps(value, ensure_ascii=in_ascii).encode() for value in (ENVELOPE, SIGNED) for in_ascii in (True, False)),
    SENT_SIGNED,
]


def judge(payload: bytes, max_bytes: int = 1 << 16) -> str:
    """Read `payload` in every way there is. Returns its outcome; raises AssertionError where a rule is broken."""
    outcome, read = _read(payload, max_bytes, None)
    if read is not None:
        _is_fit(read)
    _, lenient = _read(payload, max_bytes, LENIENT)
    _, believed = _read(payload, max_bytes, SIGNING)
    # Keys only ever refuse, and the lenient take every message that the strict take.
    assert believed is None or _same(believed, lenient)
    assert lenient is None or _same(lenient, read)
    if believed is not None:
        assert canonical(json.loads(payload)) == canonical(SIGNED), "forged"
        return "believed"
    return outcome


def _read(payload: bytes, max_bytes: int, signing: Signing | None) -> tuple[str, Message | None]:
    try:
        message = decode(payload, max_bytes=max_bytes, topic=TOPIC, signing=signing, sent_ms=SENT_MS)
    except EnvelopeError as caught:
        error = caught
    except UnreadablePayloadError:
        return "unreadable", None
    else:
        return "message", message
    _can_be_answered(error)
    assert signing or error.code is not ErrorCode.UNAUTHENTICATED
    return error.code, None


def _same(one: Message, other: Message | None) -> bool:
    """But for the time of reading, which a message without a timestamp gets."""
    return other is not None and one.model_copy(update={"timestamp": other.timestamp}) == other


def _is_fit(message: Message) -> None:
    """It can be sent on and stored as it is."""
    again = encode(message)
    assert decode(again, max_bytes=len(again)) == message
    assert encode(decode(again, max_bytes=len(again))) == again
    assert not is_deeper(json.loads(again), MAX_DEPTH)
    for identifier in (message.id, message.run_id, message.owner_key):
        assert 1 <= len(identifier) <= 256
    _is_storable([message.id, message.run_id, message.owner_key, message.content, message.metadata])
    signed = encode(message, topic=TOPIC, signing=SIGNING)
    moment_ms = int(message.timestamp.timestamp() * 1_000)
    if 0 < moment_ms <= utc_now().timestamp() * 1_000:
        believed = decode(signed, max_bytes=len(signed), topic=TOPIC, signing=SIGNING, sent_ms=moment_ms)
        assert believed.content == message.content


def _can_be_answered(error: EnvelopeError) -> None:
    ids = error.ids
    assert ids.id
    _is_storable([ids.id, ids.run_id, ids.owner_key, ids.reply_to, error.message])
    request = IncomingRequest(ids, "", "", TOPIC, error, Delivery(TOPIC, b""), 0.0)
    answer = decode(request.refusal(error))
    assert (answer.metadata["request_id"], answer.content["error"]["message"]) == (ids.id, error.message)


def _is_storable(value: Any) -> None:
    if isinstance(value, dict):
        _is_storable([*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            _is_storable(item)
    elif isinstance(value, str):
        assert "\0" not in value
        value.encode()
    else:
        assert not isinstance(value, float) or math.isfinite(value)
