"""JSON without blanks."""

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from nexus.core.compact_json import compact

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _FINITE | _TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
    max_leaves=20,
)


@given(_VALUES)
def test_any_value(value: Any) -> None:
    """It is the JSON that pydantic makes: what others have kept is found again."""
    assert compact(value) == to_json(value)
    assert json.loads(compact(value)) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**70, b"1180591620717411303424"),
        ([-(2**64)], b"[-18446744073709551616]"),
        ({1: "a", None: "b"}, b'{"1":"a","None":"b"}'),
        ([math.nan, math.inf], b"[null,null]"),
        ([2**70, math.nan], b"[1180591620717411303424,null]"),
        ('\x00\x1f\x7f\u2028"\\', b'"\\u0000\\u001f\x7f\xe2\x80\xa8\\"\\\\"'),
        ({"a": "\ud83d"}, b'{"a":"\xed\xa0\xbd"}'),
        ((1, [2]), b"[1,[2]]"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), b'"2026-01-02T03:04:05Z"'),
    ],
)
def test_what_is_unusual(value: Any, expected: bytes) -> None:
    """Integers of any size, keys that are no text, numbers that JSON has not, control characters, half a pair."""
    assert compact(value) == expected


def test_deep_nesting() -> None:
    """Deeper than anything that is taken in."""
    value: Any = 1
    for _ in range(200):
        value = [value]
    assert compact(value) == b"[" * 200 + b"1" + b"]" * 200
