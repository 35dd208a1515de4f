"""One spelling for every JSON value: RFC 8785 (JCS), with integers of any size. Pure.

What RFC 8785 fixes: no white space, keys in the order of their UTF-16 units, the shortest escapes, numbers as
ECMAScript writes them. It leaves open what becomes of an integer that a double cannot hold; here it keeps all its
digits, so that no two integers are spelled alike (docs/decisions/0009-what-is-signed.md).
"""

import json
import math
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, Final

# Where ECMAScript begins to write exponents: above so many digits before the point, below so many zeros after it.
_DIGITS_BEFORE_THE_POINT: Final = 21
_ZEROS_AFTER_THE_POINT: Final = 6
# Between these Python writes none either.
_PLAIN_FROM: Final = 1e-4
_PLAIN_BELOW: Final = 1e16

# The default is plain Python; json replaces it by its C version where there is one.
_quoted: Final[Callable[[str], str]] = encode_basestring


def parsed(found: bytes) -> Any:
    """The JSON value in these bytes, if it has a canonical form.

    Raises:
        ValueError: it is none, or has none; says where.
    """
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
    parts: list[str] = []
    try:
        _write(value, parts.append)
    except RecursionError:
        raise ValueError("nested too deep") from None
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair") from None


def _write(value: Any, put: Callable[[str], None]) -> None:
    if isinstance(value, str):
        put(_quoted(value))
    elif isinstance(value, dict):
        _write_object(value, put)
    elif isinstance(value, list | tuple):
        separator = "["
        for item in value:
            put(separator)
            _write(item, put)
            separator = ","
        put("]" if value else "[]")
    else:
        put(_scalar(value))


def _write_object(value: dict[str, Any], put: Callable[[str], None]) -> None:
    separator = "{"
    for key in _ordered(value):
        put(separator)
        put(_quoted(key))
        put(":")
        _write(value[key], put)
        separator = ","
    put("}" if value else "{}")


def _ordered(value: dict[str, Any]) -> list[str]:
    try:
        if "".join(value).isascii():
            return sorted(value)
        return sorted(value, key=lambda key: key.encode("utf-16-be"))
    except TypeError:
        raise ValueError("a key that is no text") from None
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair") from None


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _as_ecmascript(value)
    raise ValueError(f"a {type(value).__name__}")


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
