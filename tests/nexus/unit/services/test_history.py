"""How much of a session is read (CONTRACT §5)."""

from datetime import timedelta
from typing import Any

import pytest

from nexus.core.ports import Past, Row, RunOrigin
from nexus.services.history import read_session
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.rows import START

MIB = 1 << 20


def a_row(number: int, content: Any = "x", **metadata: Any) -> Row:
    """A row of the session `s`."""
    return {
        "id": str(number),
        "run_id": "r",
        "owner_key": "o",
        "session_id": "s",
        "role": "AI",
        "content": content,
        "timestamp": START + timedelta(seconds=number),
        "metadata": metadata,
    }


async def read(rows: list[Row], messages: int, **given: Any) -> Past:
    """What is read of a session with these rows."""
    store = FakeStore()
    store.plant("messages", rows)
    return await read_session(store, "o", RunOrigin("s"), messages=messages, **given)


@pytest.mark.parametrize("stored", [1, 249, 250, 251, 499, 500, 501])
@pytest.mark.parametrize("messages", [1, 250, 500, 1_000])
async def test_the_newest_rows(stored: int, messages: int) -> None:
    """As many as are wanted, the newest first; it is cut only where there are more, also at the end of a page."""
    past = await read([a_row(number) for number in range(stored)], messages)
    assert [row["id"] for row in past.rows] == [str(stored - 1 - place) for place in range(min(stored, messages))]
    assert past.stopped_early == (stored > messages)


@pytest.mark.parametrize("size", [MIB, 1_000_000, 100_000])
async def test_more_text_than_a_model_takes(size: int) -> None:
    """Only the rows that have no more than 4 Mi characters together, and not all of the page in which these end."""
    past = await read([a_row(number, "x" * size) for number in range(60)], 1_000)
    assert [row["id"] for row in past.rows] == [str(59 - place) for place in range(4 * MIB // size)]
    assert past.stopped_early


async def test_arguments_count() -> None:
    """What a model writes into a file stands in the arguments of its call."""
    function = {"name": "write", "arguments": "x" * MIB}
    past = await read([a_row(number, tool_calls=[{"function": function}]) for number in range(10)], 1_000)
    assert (len(past.rows), past.stopped_early) == (3, True)


async def test_one_row_with_too_much_text() -> None:
    """Is shown rather than nothing."""
    past = await read([a_row(1, "x" * 5 * MIB), a_row(2, "x" * 5 * MIB)], 1_000)
    assert [row["id"] for row in past.rows] == ["2"]


async def test_the_current_run_does_not_count() -> None:
    """However much of it is recorded already."""
    rows = [a_row(number) for number in range(600)]
    rows[100:] = [{**row, "run_id": "now", "content": "x" * 100_000} for row in rows[100:]]
    past = await read(rows, 1_000, current_run_id="now")
    assert [row["id"] for row in past.rows] == [str(99 - place) for place in range(100)]
    assert not past.stopped_early
