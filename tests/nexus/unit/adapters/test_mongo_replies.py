"""Replies to commands, once restored, hold what a cursor would have given."""

from datetime import UTC, datetime
from typing import Any

import bson
from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import example, given
from hypothesis import strategies as st

from nexus.adapters.mongo_replies import REPLIES, restored
from nexus.adapters.mongo_schema import CODEC

_NAMES = st.sampled_from(["a", "$ref", "$id", "$db", "timestamp", "名", ""])
_TIMES = st.datetimes(timezones=st.just(UTC)) | st.integers(-(2**62), 2**62).map(DatetimeMS)
_SINGLE = st.none() | st.booleans() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | _TIMES
_VALUES = st.recursive(
    _SINGLE | st.builds(ObjectId),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(_NAMES, parts, max_size=4),
    max_leaves=12,
)
_ENDS = [datetime.min.replace(tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)]
_BEFORE_AND_AFTER = [DatetimeMS(-62_135_596_800_001), DatetimeMS(253_402_300_800_000)]


@given(_VALUES)
@example([*_ENDS, *_BEFORE_AND_AFTER])
@example({"$ref": "a", "$id": {"$ref": "b", "$id": _ENDS[0]}, "more": [_ENDS]})
def test_as_from_a_cursor(value: Any) -> None:
    """At any depth times are aware, those that Python cannot hold are as they were, and nothing is a reference."""
    raw = bson.encode({"value": value})
    found = restored(bson.decode(raw, REPLIES))
    assert found == bson.decode(raw, CODEC)
    assert all(time.tzinfo is UTC for time in times(found))


def test_text_that_is_not_utf8() -> None:
    """A text that is none spoils nothing."""
    raw = bson.encode({"text": "ab"}).replace(b"ab", b"a\xff")
    assert restored(bson.decode(raw, REPLIES)) == {"text": "a\ufffd"} == bson.decode(raw, CODEC)


def times(value: Any) -> list[datetime]:
    """Those at any depth."""
    if isinstance(value, datetime):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [time for part in parts for time in times(part)]
