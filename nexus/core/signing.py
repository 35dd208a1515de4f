"""The signature of a message, `metadata.signature`: its sender holds a key of the bus (contract §1.7). Pure.

A signature is `v1,<key id>,<base64>`: HMAC-SHA256 of the canonical form of `["v1", topic, id, timestamp, message]`,
where `message` is the JSON value without `metadata.signature`, and the topic the full one without
`bus.channel_prefix`. A copy is refused that comes more than `FRESH_S` after its timestamp; on a bus that keeps
messages it comes when the bus takes it (`nexus.core.ports.Delivery.sent_ms`).

The canonical form is RFC 8785 (JCS), but that integers keep all their digits (docs/decisions/0009-what-is-signed.md).
A message that was sent in this form is verified by the bytes that came, any other by the canonical form of its value.
"""

import base64
import hmac
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from json.encoder import encode_basestring
from types import MappingProxyType
from typing import Any, Final

# How far the timestamp of a signed message may be from the moment it arrived, either way.
FRESH_S: Final = 300.0
FIELD: Final = "signature"

_VERSION: Final = "v1"
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FORM = re.compile(r"(?P<version>v[0-9]{1,9}),(?P<key>[A-Za-z0-9._-]{1,64}),(?P<code>[A-Za-z0-9+/=]{1,512})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Where ECMAScript begins to write exponents: above so many digits before the point, below so many zeros after it.
_DIGITS_BEFORE_THE_POINT: Final = 21
_ZEROS_AFTER_THE_POINT: Final = 6
# Between these Python writes none either.
_PLAIN_FROM: Final = 1e-4
_PLAIN_BELOW: Final = 1e16

_WORDS: Final[Mapping[bool | None, str]] = {None: "null", True: "true", False: "false"}
# The default is plain Python; json replaces it by its C version where there is one.
_quoted: Final[Callable[[str], str]] = encode_basestring


@dataclass(frozen=True, slots=True, repr=False)
class Signing:
    """The keys of a bus. The first one signs, every one verifies. No secret shows in a repr.

    Attributes:
        keys: secret by key id, in order; at least one.
        required: whether a message without a signature is refused. One whose signature is wrong always is.
    """

    keys: Mapping[str, bytes]
    required: bool = False

    def __post_init__(self) -> None:
        if not self.keys or not all(_KEY_ID.fullmatch(key) for key in self.keys) or not all(self.keys.values()):
            raise ValueError("signing needs a key, and every key an id of A-Z a-z 0-9 . _ - and a secret")
        object.__setattr__(self, "keys", MappingProxyType(dict(self.keys)))

    def __repr__(self) -> str:
        return f"Signing(keys={list(self.keys)}, required={self.required})"

    def signed(self, topic: str, value: Mapping[str, Any]) -> bytes:
        """The message `value` in canonical form, signed for `topic`. A signature that it holds already is replaced.

        ValueError where the message has no id, no timestamp or no canonical form.
        """
        if wrong := _unsignable(value):
            raise ValueError(wrong)
        spelled = {name: _spelled(item) for name, item in value.items() if name != "metadata"}
        metadata = _unsigned_metadata(value)
        key = next(iter(self.keys))
        message = _object({**spelled, "metadata": _spelled(metadata)}).encode()
        metadata[FIELD] = self._signature(key, _signed_bytes(topic, value, message))
        return _object({**spelled, "metadata": _spelled(metadata)}).encode()

    def verify(self, topic: str, value: Mapping[str, Any], now: float, sent: bytes = b"") -> str | None:
        """Why the signature of the message `value` on `topic` does not hold; None if it does. Repeats nothing of it.

        `value` is as it was sent, before anything in it was made canonical, and `sent` the bytes that it was read from;
        `now` is when it was sent as far as the receiver knows, in Unix seconds: normally the current moment.
        """
        given = _signature_of(value)
        if given is None:
            return "missing, and only signed messages are taken" if self.required else None
        form = _FORM.fullmatch(given) if isinstance(given, str) else None
        if form is None:
            return f"not of the form {_VERSION},<key id>,<base64>"
        if form["version"] != _VERSION:
            return f"of an unknown version; {_VERSION} is known"
        if form["key"] not in self.keys:
            return "made with a key that is not known here"
        wrong = _unsignable(value) or _staleness(value["timestamp"], now)
        return wrong or self._mismatch(form, topic, value, sent)

    def _mismatch(self, form: re.Match[str], topic: str, value: Mapping[str, Any], sent: bytes) -> str | None:
        try:
            if self._fits(form, topic, value, _without_signature(sent, form[0])):
                return None
            message = canonical({**value, "metadata": _unsigned_metadata(value)})
        except ValueError as error:
            return f"the message has no canonical form: {error}"
        return None if self._fits(form, topic, value, message) else "does not belong to this message, topic and key"

    def _fits(self, form: re.Match[str], topic: str, value: Mapping[str, Any], message: bytes | None) -> bool:
        if message is None:
            return False
        return hmac.compare_digest(self._signature(form["key"], _signed_bytes(topic, value, message)), form[0])

    def _signature(self, key: str, signed: bytes) -> str:
        code = base64.b64encode(hmac.digest(self.keys[key], signed, "sha256")).decode()
        return f"{_VERSION},{key},{code}"


def _signature_of(value: Mapping[str, Any]) -> Any:
    metadata = value.get("metadata")
    return metadata.get(FIELD) if isinstance(metadata, dict) else None


def _unsigned_metadata(value: Mapping[str, Any]) -> dict[str, Any]:
    given = value.get("metadata")
    return {key: item for key, item in given.items() if key != FIELD} if isinstance(given, dict) else {}


def _signed_bytes(topic: str, value: Mapping[str, Any], message: bytes) -> bytes:
    """What is signed of the message `value` whose canonical form, without its signature, is `message`."""
    return canonical([_VERSION, topic, value["id"], value["timestamp"]])[:-1] + b"," + message + b"]"


def _without_signature(sent: bytes, signature: str) -> bytes | None:
    """The bytes without the first member that is this signature, as the canonical form spells it; None without one.

    It may stand at another place than in the metadata at the top. Put back into bytes that were signed, which hold no
    signature there, it is then either no JSON or not found in the metadata of the value, which is unsigned.
    """
    member = f'"{FIELD}":"{signature}"'.encode()
    start = sent.find(member)
    end = start + len(member)
    if start < 1:
        return None
    if sent[start - 1 : start] == b",":
        start -= 1
    elif sent[end : end + 1] == b",":
        end += 1
    return sent[:start] + sent[end:]


def _unsignable(value: Mapping[str, Any]) -> str | None:
    # Without an id of its own, the same message in another spelling would be another request.
    missing = next((name for name in ("id", "timestamp") if not isinstance(value.get(name), str)), None)
    return f"a signed message needs a text as {missing}" if missing else None


def _staleness(timestamp: str, now: float) -> str | None:
    try:
        moment = datetime.fromisoformat(timestamp)
        aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        age = now - (aware - _EPOCH).total_seconds()
    except (ValueError, OverflowError):
        return "a signed message needs a timestamp in ISO 8601"
    return None if abs(age) <= FRESH_S else f"the timestamp is more than {FRESH_S:.0f} s away"


def parsed(found: bytes) -> Any:
    """The JSON value in these bytes; ValueError, which says where, if it is none or has no canonical form."""
    try:
        value = json.loads(found.decode("utf-8-sig"))
        canonical(value)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    return value


def canonical(value: Any) -> bytes:
    """The canonical form of a JSON value, as `json.loads` gives it, in UTF-8.

    Raises:
        ValueError: it has none: it holds half a surrogate pair, NaN, an infinity, or something that is no JSON.
    """
    try:
        return _spelled(value).encode()
    except RecursionError:
        raise ValueError("nested too deep") from None
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair") from None


def _spelled(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return _object({key: _spelled(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return "[" + ",".join([_spelled(item) for item in value]) + "]"
    if isinstance(value, float):
        return _as_ecmascript(value)
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if isinstance(value, int):
        return str(value)
    raise ValueError(f"a {type(value).__name__}")


def _object(members: Mapping[str, str]) -> str:
    """An object of members that are spelled already."""
    return "{" + ",".join([f"{_quoted(key)}:{members[key]}" for key in _ordered(members)]) + "}"


def _ordered(value: Mapping[str, Any]) -> list[str]:
    try:
        if "".join(value).isascii():
            return sorted(value)
        return sorted(value, key=lambda key: key.encode("utf-16-be"))
    except TypeError:
        raise ValueError("a key that is no text") from None


def _as_ecmascript(number: float) -> str:
    """As ECMAScript's `Number::toString` has it. The digits are Python's: both take the shortest that read back."""
    if not math.isfinite(number):
        raise ValueError("a number that is not finite")
    if number == 0:
        return "0"
    if _PLAIN_FROM <= abs(number) < _PLAIN_BELOW:
        return repr(number).removesuffix(".0")
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    padded = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(padded))
    digits = padded.rstrip("0")
    if 0 < point <= _DIGITS_BEFORE_THE_POINT:
        digits = digits.ljust(point, "0")
        return sign + digits[:point] + ("." + digits[point:] if digits[point:] else "")
    if -_ZEROS_AFTER_THE_POINT < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = "." + digits[1:] if digits[1:] else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"
