"""Rows of several owners that come with one command: in whatever order, none is shown out of its place."""

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from bson import ObjectId

from nexus.adapters.mongo_messages import MongoMessages, PastOf

Row = dict[str, Any]
FIRST = datetime(2026, 1, 1)  # noqa: DTZ001  # as the driver decodes it
IDS = [ObjectId(f"{number:024x}") for number in range(3)]


def row(number: int, owner_key: str = "ada", **fields: object) -> Row:
    """A row as a reply has it."""
    said = {"_id": IDS[number], "owner_key": owner_key, "id": f"m{number}", "role": "HUMAN", "content": "hi"}
    return {**said, "timestamp": FIRST + number * timedelta(seconds=1), **fields}


class Collection:
    """Replies to a command with these rows, and has none with a text for a time."""

    name = "messages"
    read_preference = None
    read_concern = SimpleNamespace(level=None)

    def __init__(self, rows: list[Row]) -> None:
        self.database = self
        self._rows = rows

    async def find_one(self, *_: object) -> None:
        """No row has a text for a time."""

    async def command(self, *_: object, **__: object) -> Row:
        """All rows in one reply."""
        return {"cursor": {"id": 0, "firstBatch": [{**row} for row in self._rows]}}


async def read(*rows: Row) -> list[list[str] | None]:
    """The ids of the rows that are read of ada and of bob, newest first; None for who is to be read alone."""
    messages = MongoMessages(Collection([*rows]))
    pasts = [PastOf(owner_key, 40, 1_000) for owner_key in ("ada", "bob")]
    found = await messages.of_several(pasts, lambda owner_key: {"owner_key": {"$eq": owner_key}})
    return [None if rows_of is None else [row["id"] for row in rows_of] for rows_of in found]


async def test_each_owner_has_his_rows_newest_first() -> None:
    """Wherever the other's stand, and also of the same moment, or without one."""
    expected = [["m2", "m1"], ["m2", "m0"]]
    ada, bob = [row(2), row(1)], [row(2, "bob"), row(0, "bob")]
    assert await read(*ada, *bob) == expected
    assert await read(ada[0], bob[0], ada[1], bob[1]) == expected
    assert await read(row(2, timestamp=FIRST), row(1, timestamp=FIRST)) == [["m2", "m1"], []]
    assert await read(row(2, timestamp=None), row(0, timestamp=None)) == [["m2", "m0"], []]
    assert await read() == [[], []]


@pytest.mark.parametrize(
    "rows",
    [
        [row(1, "bob"), row(2, "bob")],
        [row(1, "bob", timestamp=FIRST), row(2, "bob", timestamp=FIRST)],
        [row(2, "bob", timestamp=1.5), row(1, "bob")],
        [row(2, "bob"), row(1, "bob", timestamp=None)],
        [row(2, "bob", timestamp=FIRST), row(1, "bob", timestamp=FIRST, _id="m1")],
    ],
    ids=["older first", "smaller id first", "times of two kinds", "one without a time", "ids of two kinds"],
)
async def test_rows_in_another_order_are_read_owner_by_owner(rows: list[Row]) -> None:
    """As a server would send them that mixes the queries of a union, or where nobody can tell."""
    assert await read(row(2), *rows) == [None, None]
