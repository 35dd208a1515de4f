"""What MongoDB keeps, spelled as JSON: nothing of it is lost, and nothing that looks like something else becomes it."""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from nexus.adapters.mongo.schema import CODEC
from nexus.adapters.mongo.transfer import from_json, to_json

_NAMES = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["$date", "$oid", "$ref", "$id", "$object", "$numberLong", "$regex", "$", "$x", "$binary"]
)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_PLAIN = (
    st.none()
    | st.booleans()
    | _TEXTS
    | st.floats(allow_nan=False)
    | st.just(math.nan)
    | st.integers(-(2**63), 2**63 - 1)
)
_OWN: st.SearchStrategy[Any] = (
    st.binary(max_size=8)
    | st.binary(min_size=12, max_size=12).map(ObjectId)
    | st.integers(-(2**63), 2**63 - 1).map(Int64)
    | st.integers(-(2**62), 2**62).map(DatetimeMS)
    | st.datetimes(timezones=st.just(UTC))
    | st.sampled_from([Decimal128("1.50"), Regex("a.*", "i"), Timestamp(1, 2), MinKey(), MaxKey(), Code("f()")])
    | st.binary(max_size=8).map(lambda data: Binary(data, 128))
)
_VALUES = st.recursive(
    _PLAIN | _OWN,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(_NAMES, parts, max_size=4),
    max_leaves=12,
)


@given(_VALUES)
def test_there_and_back(value: Any) -> None:
    """Whatever a document holds comes back as the same bytes, through a line of JSON; of NaNs there is one."""
    raw = bson.encode({"value": value}, codec_options=CODEC)
    kept = bson.decode(raw, codec_options=CODEC)["value"]
    line = json.dumps(to_json(kept), allow_nan=False)
    again = bson.encode({"value": from_json(json.loads(line))}, codec_options=CODEC)
    assert again == bson.encode({"value": kept}, codec_options=CODEC)


@pytest.mark.parametrize(
    ("value", "spelling"),
    [
        (datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC), {"$date": "2026-01-01T00:00:00.123Z"}),
        (ObjectId("0123456789abcdef01234567"), {"$oid": "0123456789abcdef01234567"}),
        (5, 5),
        (1.0, 1.0),
        (Int64(5), {"$numberLong": "5"}),
        (Int64(2**40), 2**40),
        ({"$date": "tomorrow"}, {"$object": {"$date": "tomorrow"}}),
        ({"$object": {}}, {"$object": {"$object": {}}}),
        (float("nan"), {"$numberDouble": "NaN"}),
    ],
    ids=repr,
)
def test_spellings(value: Any, spelling: Any) -> None:
    """What JSON has a word for is that; the rest is spelled as MongoDB's Extended JSON has it."""
    assert to_json(value) == spelling


@pytest.mark.parametrize(
    "value",
    [
        {"$date": "tomorrow"},
        {"$oid": "0123"},
        {"$oid": 5},
        {"$ref": "a", "$id": 1},
        {"$unknown": 1},
        {"$object": 5},
        {"$object": {}, "more": 1},
        {"$numberLong": "x"},
        {"$numberDecimal": "x"},
        {"$binary": {"base64": "*", "subType": "zz"}},
        {"$regularExpression": {}},
        {"$timestamp": {"t": -1}},
        {"$": 1},
    ],
    ids=repr,
)
@pytest.mark.parametrize("around", [lambda value: value, lambda value: [{"a": value}]], ids=["bare", "inside"])
def test_what_is_no_spelling(value: Any, around: Callable[[Any], Any]) -> None:
    """It is refused rather than taken for something else."""
    with pytest.raises(ValueError, match=r"no Extended JSON"):
        from_json(around(value))
