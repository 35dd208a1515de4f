"""Every JSON value has one spelling: that of RFC 8785, with all the digits of an integer."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.signing import canonical, parsed

TEXTS = st.text(st.characters(codec="utf-8"), max_size=10)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-(2.0**53), 2.0**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("number", "spelled"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (0.0001, "0.0001"),
        (0.000001, "0.000001"),
        (1e-7, "1e-7"),
        (0.000000000000000000000000001, "1e-27"),
        (1e16, "10000000000000000"),
        (1.2345e20, "123450000000000000000"),
        (1e21, "1e+21"),
        (333333333.33333329, "333333333.3333333"),
        (5e-324, "5e-324"),
        (2.2250738585072014e-308, "2.2250738585072014e-308"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (999999999999999900000.0, "999999999999999900000"),
        (9007199254740993, "9007199254740993"),
        (-(2**64), "-18446744073709551616"),
        (10**400, "1" + "0" * 400),
    ],
)
def test_numbers(number: float, spelled: str) -> None:
    """Floats as ECMAScript writes them, integers with all their digits."""
    assert canonical(number) == spelled.encode()


def test_escapes() -> None:
    """Only what must be escaped is: a quote, a backslash and control characters, in their shortest form."""
    assert canonical('\x00\x1f\b\t\n\f\r"\\/\x7f\u2028é😀') == (
        rb'"\u0000\u001f\b\t\n\f\r\"\\/' + '\x7f\u2028é😀"'.encode()
    )


def test_keys_are_in_the_order_of_their_utf_16_units() -> None:
    """So that what lies beyond the first plane comes before U+E000 and above."""
    keys = ["\ufb33", "1", "\U0001f600", "\x80", "\r", "€", "ö", "", "10", "a", "B"]
    expected = ["", "\r", "1", "10", "B", "a", "\x80", "ö", "€", "\U0001f600", "\ufb33"]
    assert [*json.loads(canonical(dict.fromkeys(keys, 0)))] == expected


def test_containers() -> None:
    """Nothing between the parts; empty ones are as short as can be."""
    value = {"b": [], "a": {}, "c": [None, True, False, (1,)], "": {"y": 1, "x": [[]]}}
    assert canonical(value) == b'{"":{"x":[[]],"y":1},"a":{},"b":[],"c":[null,true,false,[1]]}'


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "a number that is not finite"),
        ([-math.inf], "a number that is not finite"),
        ("\ud83d", "half a surrogate pair"),
        ({"\udc00": 1}, "half a surrogate pair"),
        ({1: 2}, "a key that is no text"),
        ([b"bytes"], "a bytes"),
        ({"a": {1}}, "a set"),
    ],
)
def test_what_has_no_canonical_form(value: Any, reason: str) -> None:
    """It is said what is in the way, not what it says."""
    with pytest.raises(ValueError, match=rf"^{reason}$"):
        canonical(value)


def test_depth_has_an_end() -> None:
    """What cannot be walked has no canonical form."""
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deep"):
        canonical(value)


@given(JSON)
def test_it_says_the_same(value: Any) -> None:
    """Parsing it gives the value back, and the canonical form of that is itself."""
    spelled = canonical(value)
    assert json.loads(spelled) == value
    assert canonical(json.loads(spelled)) == spelled


@given(JSON, st.booleans())
def test_bytes_are_read(value: Any, in_ascii: bool) -> None:
    """However they are spelled, and with a byte order mark, the value is the one that was written."""
    assert parsed(json.dumps(value, ensure_ascii=in_ascii).encode("utf-8-sig")) == value


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"{\xff}", "not UTF-8 at byte 1"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a": 1e999}', "not JSON: a number that is not finite"),
        (b"NaN", "not JSON: a number that is not finite"),
        (b'"\\ud800"', "not JSON: half a surrogate pair"),
    ],
)
def test_bytes_that_are_no_value(found: bytes, reason: str) -> None:
    """It is said what is wrong with them, and where."""
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        parsed(found)
