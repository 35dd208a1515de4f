"""Bytes to `Message`, and `Message` to bytes (contract §1.2, §1.6). Nothing else touches JSON on the wire.

- A payload is one JSON object in UTF-8. Its size is judged before it is parsed, its depth before anything walks it.
- An escaped NUL and a lone surrogate become U+FFFD, the last of duplicate keys counts. NaN and infinities are
  refused.
- A payload that cannot be used but names its sender is an `EnvelopeError` with the ids, which are found without
  parsing. Anything else is `UnreadablePayloadError`. No other exception leaves this module.
- Where messages are signed, what is verified is the value as it was sent.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from nexus.core.errors import ErrorCode, RequestError, UnreadablePayloadError
from nexus.core.models import MAX_ID_CHARS, Message, is_ambiguous, utc_now
from nexus.core.signing import FIELD, Signing

MAX_DEPTH: Final = 64
# Beyond this many times the limit a payload is not even searched for ids (contract §1.6).
_SEARCHED_UP_TO: Final = 16
_NESTED: Final = 2
# Strings and brackets looked at in the search for ids: it must end soon, whatever the payload is made of.
_SEARCHED_TOKENS: Final = 20_000
_SEARCHED_BYTES: Final = 4 << 20
# An object begins here, after white space or a byte order mark.
_BEGINNING: Final = 64

_MESSAGE: Final = TypeAdapter(Message)
# In messages of pydantic, of no use to whoever reads them.
_CLASS = re.compile(r" or instance of \w+")
_UNSTORABLE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_ESCAPE = re.compile(
    rb"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<bad>u0000|u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
# A string and whether a colon follows, or a bracket. A string that the payload ends in is none: half an id may be
# another's.
_TOKEN = re.compile(rb'"((?:[^"\\]++|\\.)*+)(?:"(\s*+:)?|\\?\Z(?P<cut>))|([\[{])|([\]}])', re.DOTALL)
# A number may be beyond a double, which the parser reads as an infinity, if it has an exponent of two digits or more
# than 308 digits.
_MAY_OVERFLOW = re.compile(rb"[\s:,\[-](?:[\d.]++[eE]\+?\d\d|[\d.]{309})")
_CONTAINERS: Final = (dict, list)
# In canonical form they stand behind the content.
_CANONICAL_END = re.compile(
    rb'"owner_key":"(?P<owner>(?:[^"\\]|\\.)*+)","role":"[A-Z]*+","run_id":"(?P<run>(?:[^"\\]|\\.)*+)",'
    rb'"timestamp":"[^"]*+"}\Z'
)
_END_BYTES: Final = 4_096
_FEW_TOKENS: Final = 500
_BYTES_A_VALUE, _BYTES_A_CONTAINER = 8, 80


@dataclass(frozen=True, slots=True)
class EnvelopeIds:
    """What is needed to answer a payload that is otherwise of no use.

    Attributes:
        id: the message id; made from the payload's hash where there is none that can be used, so that the same bytes
            always have the same one.
        run_id, owner_key, reply_to: `""` where they cannot be read.
    """

    id: str
    run_id: str = ""
    owner_key: str = ""
    reply_to: str = ""


class EnvelopeError(RequestError):
    """A payload that is no usable message, and names a sender that can be answered."""

    def __init__(self, code: ErrorCode, message: str, ids: EnvelopeIds) -> None:
        super().__init__(code, message)
        self.ids = ids


def compact(value: Any) -> bytes:
    """`value` as compact JSON in UTF-8, the form that is counted, hashed, kept and sent.

    Of what is no JSON, whatever pydantic makes of it; NaN and infinities become null.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_UTC_Z)
    except TypeError:
        # An integer of more than 64 bits, a key that is no text, or deep nesting.
        pass
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        # Half a surrogate pair.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def encode(message: Message, *, topic: str = "", signing: Signing | None = None) -> bytes:
    """The message as one JSON object in UTF-8; where there is `signing`, in canonical form and signed for `topic`.

    A signature that the message holds already is replaced.
    """
    try:
        encoded = orjson.dumps(message.__dict__, option=orjson.OPT_UTC_Z)
    except TypeError:
        encoded = _MESSAGE.dump_json(message)
    if signing is None:
        return encoded
    return signing.signed(topic, from_json(encoded, cache_strings="keys"))


def decode(
    payload: bytes, *, max_bytes: int = 1 << 20, topic: str = "", signing: Signing | None = None, sent_ms: int = 0
) -> Message:
    """The message in `payload`.

    Args:
        payload: the bytes as they came.
        max_bytes: how many there may be.
        topic: on which it came, without prefix. Only a signature depends on it.
        signing: the keys of the bus, where it has any. A message that is not to be believed is `UNAUTHENTICATED`, and
            where a signature is required also one that cannot be parsed: its sender is not known.
        sent_ms: when the bus took the message, where it says so (`Delivery.sent_ms`). A signature is judged by that
            moment, so that a message that waited on the bus is not stale.

    Raises:
        EnvelopeError: too large, too deep, not JSON, not authentic or not a message, but the sender can be answered.
        UnreadablePayloadError: the same, without a sender to answer. The text says what is wrong and holds no content.
    """
    value = _parsed_of_sender(payload, max_bytes, signing)
    if signing is not None and (wrong := _distrust(payload, value, topic, signing, sent_ms)):
        raise _unusable(payload, ErrorCode.UNAUTHENTICATED, f"metadata.{FIELD}: {wrong}")
    if "id" not in value:
        value["id"] = _derived_id(payload)
    try:
        return _MESSAGE.validate_python(value)
    except ValidationError as error:
        raise _unusable(payload, ErrorCode.INVALID_REQUEST, explain(error)) from None


def _parsed_of_sender(payload: bytes, max_bytes: int, signing: Signing | None) -> dict[str, Any]:
    try:
        return _parsed(payload, max_bytes)
    except EnvelopeError as error:
        if signing is None or not signing.required:
            raise
        reason = f"metadata.{FIELD}: cannot be checked: {error.message}"
        raise EnvelopeError(ErrorCode.UNAUTHENTICATED, reason, error.ids) from None


def _parsed(payload: bytes, max_bytes: int) -> dict[str, Any]:
    if len(payload) > max_bytes:
        reason = f"{len(payload)} bytes, at most {max_bytes} are allowed (bus.max_payload_bytes)"
        raise _unusable(
            payload, ErrorCode.PAYLOAD_TOO_LARGE, reason, searched=len(payload) <= max_bytes * _SEARCHED_UP_TO
        )
    try:
        # Ids come once. The parser would keep thousands of them, scattered over the memory that it takes.
        value = from_json(_canonical(payload), allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        reason = f"nested deeper than {MAX_DEPTH}" if "recursion" in str(error) else f"not JSON: {error}"
        raise _unusable(payload, ErrorCode.INVALID_REQUEST, reason) from None
    if not isinstance(value, dict):
        raise UnreadablePayloadError(f"a JSON {type(value).__name__}, an object is needed")
    if payload.count(b"[") + payload.count(b"{") > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise _unusable(payload, ErrorCode.INVALID_REQUEST, f"nested deeper than {MAX_DEPTH}")
    if _MAY_OVERFLOW.search(payload) and _holds_infinity(value):
        raise _unusable(payload, ErrorCode.INVALID_REQUEST, "not JSON: a number is too large")
    return value


def _distrust(payload: bytes, value: dict[str, Any], topic: str, signing: Signing, sent_ms: int) -> str | None:
    now = utc_now().timestamp()
    # A bus whose clock is ahead makes nothing younger than it is.
    sent = min(sent_ms / 1_000, now) if sent_ms else now
    return signing.verify(topic, _as_sent(payload, value), sent, payload)


def _as_sent(payload: bytes, value: dict[str, Any]) -> dict[str, Any]:
    """`value` before anything in it was made canonical, which is what its sender signed."""
    if not _UNSTORABLE.search(payload):
        return value
    sent: dict[str, Any]
    try:
        sent = from_json(payload, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        # Half a surrogate pair, which the parser does not read. With another the signature is refused for that reason.
        sent = {**value, "\ud800": None}
    return sent


def explain(error: ValidationError, prefix: str = "") -> str:
    """The first thing that is wrong, as `run.history[0].role: …`, without names of classes or what was given."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = prefix
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    more = error.error_count() - 1
    return f"{path.lstrip('.') or 'message'}: {_CLASS.sub('', first['msg'])}" + (f" (and {more} more)" if more else "")


def memory_of(payload: bytes) -> int:
    """About how many bytes a payload takes once it is read: each small value takes many times its own."""
    values = payload.count(b",") + payload.count(b":")
    return len(payload) + _BYTES_A_VALUE * values + _BYTES_A_CONTAINER * (payload.count(b"[") + payload.count(b"{"))


def find_ids(payload: bytes, most_tokens: int = _SEARCHED_TOKENS) -> EnvelopeIds | None:
    """The ids at the top of a JSON object, found without parsing it; None without a message id and a run id."""
    found: dict[str, str] = {}
    depth = 0
    section = key = ""
    if b"{" not in payload[:_BEGINNING]:
        return None
    for count, token in enumerate(_TOKEN.finditer(payload, 0, _SEARCHED_BYTES)):
        if count > most_tokens or token["cut"] is not None:
            break
        text, colon, _, opening, closing = token.groups()
        if opening:
            depth += 1
            section = key if depth == _NESTED else section
        elif closing:
            depth -= 1
        elif colon:
            key = _string(text)
        elif depth == 1 or (depth == _NESTED and section == "metadata" and key == "reply_to"):
            found[key] = _string(text)
            key = ""
    ids = {name: found.get(name, "") for name in ("id", "run_id", "owner_key", "reply_to")}
    usable = {name: "" if len(text) > MAX_ID_CHARS or is_ambiguous(text) else text for name, text in ids.items()}
    if not usable["id"] and not usable["run_id"]:
        return None
    return EnvelopeIds(**{**usable, "id": usable["id"] or _derived_id(payload)})


def find_sender(payload: bytes) -> tuple[str, str]:
    """The owner and the run of a message, found fast in a large one, and `""` where they are not; not to be trusted."""
    if end := _CANONICAL_END.search(payload, max(len(payload) - _END_BYTES, 0)):
        return _string(end["owner"]), _string(end["run"])
    ids = find_ids(payload, _FEW_TOKENS)
    return (ids.owner_key, ids.run_id) if ids else ("", "")


def owner_of(payload: bytes) -> str | None:
    """The owner of a message, also of one that cannot be used; None where it does not say."""
    try:
        value = from_json(payload)
    except ValueError:
        ids = find_ids(payload)
        return ids.owner_key or None if ids else None
    owner = value.get("owner_key") if isinstance(value, dict) else None
    return owner if isinstance(owner, str) else None


def is_deeper(value: Any, limit: int) -> bool:
    """Whether objects and arrays are nested more than `limit` deep in `value`, an object or array itself."""
    level = [value]
    for _ in range(limit - 1):
        # Empty ones have nothing inside, and there may be hundreds of thousands.
        level = [item for parent in level for item in _items_of(parent) if item and isinstance(item, _CONTAINERS)]
        if not level:
            return False
    return any(isinstance(item, _CONTAINERS) for parent in level for item in _items_of(parent))


def _holds_infinity(value: Any) -> bool:
    level = [value]
    while level:
        items = [item for parent in level for item in _items_of(parent)]
        if any(isinstance(item, float) and not math.isfinite(item) for item in items):
            return True
        level = [item for item in items if item and isinstance(item, _CONTAINERS)]
    return False


def _items_of(parent: Any) -> Iterable[Any]:
    return parent.values() if isinstance(parent, dict) else parent


def _unusable(
    payload: bytes, code: ErrorCode, reason: str, *, searched: bool = True
) -> EnvelopeError | UnreadablePayloadError:
    ids = find_ids(payload) if searched else None
    return EnvelopeError(code, reason, ids) if ids else UnreadablePayloadError(reason)


def _derived_id(payload: bytes) -> str:
    return f"msg_{hashlib.sha256(payload).hexdigest()[:32]}"


def _canonical(payload: bytes) -> bytes:
    if not _UNSTORABLE.search(payload):
        return payload
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match["bad"] else match[0], payload)


def _string(text: bytes) -> str:
    try:
        value = from_json(b'"' + _canonical(text) + b'"')
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
