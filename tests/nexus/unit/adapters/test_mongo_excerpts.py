"""What is shown of rows that may be long: the same of a command's reply as of a cursor's rows."""

from datetime import UTC, datetime

import bson
import pytest
from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.adapters.mongo_excerpts import show
from nexus.adapters.mongo_ids import id_text
from nexus.adapters.mongo_replies import REPLIES
from nexus.adapters.mongo_schema import CODEC
from nexus.core.ports import Row

_TIME = datetime(2025, 1, 1, 12, 30, tzinfo=UTC)
_REFERENCE = {"$ref": "a", "$id": {"at": [_TIME]}}
_ODD = [None, 7, _TIME, DatetimeMS(-(2**62)), "", "text", [_TIME, "x"], {"at": _TIME}, _REFERENCE]
_ROWS = st.fixed_dictionaries(
    {"_id": st.builds(ObjectId) | st.sampled_from(["a", "0" * 24, 7, _TIME, _REFERENCE])},
    optional={
        "content": st.sampled_from(["x" * 20, "x" * 21, "世" * 2_000, *_ODD]),
        "timestamp": st.sampled_from([_TIME, *_ODD]),
        "metadata": st.sampled_from(_ODD) | st.fixed_dictionaries({"tool_calls": st.sampled_from(_ODD)}),
    },
)


def looked_for(row: Row) -> Row:
    """The row with nothing but the calls of its metadata."""
    metadata = row.get("metadata")
    return {**row, "metadata": metadata.get("tool_calls") if isinstance(metadata, dict) else metadata}


@settings(max_examples=1_000)
@given(st.lists(_ROWS, max_size=4))
def test_as_from_a_cursor(rows: list[Row]) -> None:
    """Whatever is in the fields that are shown."""
    raw = [bson.encode(row) for row in rows]
    replied, read = [bson.decode(each, REPLIES) for each in raw], [bson.decode(each, CODEC) for each in raw]
    ids = [id_text(row["_id"]) for row in read]
    assert show(replied, 10) == show(read, 10)
    assert [*map(looked_for, replied)] == [*map(looked_for, read)]
    assert [row["_id"] for row in replied] == ids
    times = [row["timestamp"] for row in replied if isinstance(row.get("timestamp"), datetime)]
    assert all(time.tzinfo is UTC for time in times)


@pytest.mark.parametrize(
    ("length", "left", "small"), [(20, 20, True), (21, 20, True), (4_096, 20, True), (4_097, 20, False)]
)
def test_long_contents(length: int, left: int, *, small: bool) -> None:
    """Their middle is left out, and whether the server had better do that is told."""
    rows: list[Row] = [{"_id": ObjectId(), "content": "ab"}, {"_id": ObjectId(), "content": "x" * length}]
    assert show(rows, 10) is small
    assert [len(row["content"]) for row in rows] == [2, left]


def test_the_longest_that_is_shown_whole() -> None:
    """It is small, however long that is."""
    rows: list[Row] = [{"_id": ObjectId(), "content": "x" * 4_000}]
    assert show(rows, 2_000)
    assert len(rows[0]["content"]) == 4_000
