"""What MongoDB is asked for an owner's newest rows (CONTRACT §2)."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import OperationFailure

from nexus.adapters.mongo_find import Finds, Order, Page
from nexus.adapters.mongo_messages import Known, MongoMessages
from nexus.adapters.mongo_past import MongoPast
from nexus.core.ports import Row
from tests.nexus.support.rows import ids, row

# What the server takes for small has four times as many bytes.
_CHARS = 100


class Told(Finds):
    """Gives these rows, and keeps how it was asked for them."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__(SimpleNamespace(name="messages", read_concern=SimpleNamespace(document={})))
        self.given = rows
        self.asked: list[str] = []

    async def _run(self, command: dict[str, Any]) -> Mapping[str, Any]:
        query = command["filter"]
        if "timestamp" in query:
            return {"cursor": {"id": 0, "firstBatch": []}}
        told = [name for name in ("$expr", "metadata.sub_agent_internal") if name in query]
        self.asked.append("excerpt" if "projection" in command else " ".join(told))
        if "$expr" in query and any(len(each["content"].encode()) > 4_096 for each in self.given):
            raise OperationFailure("can't $divide by zero")
        rows = [{**each, "_id": ObjectId(), "metadata": dict(each["metadata"])} for each in self.given]
        return {"cursor": {"id": 0, "firstBatch": rows}}

    async def _by_cursor(self, query: Mapping[str, Any], page: Page, only: Any, index: Order | None) -> list[Row]:
        raise NotImplementedError


async def asked_for(told: Told, times: int) -> list[str]:
    """What is asked for one owner so many times."""
    past = MongoPast(MongoMessages(told, Known()))
    for _ in range(times):
        assert ids(await past.newest("o", limit=5, skip=0, excerpt_chars=_CHARS)) == ids(told.given)
    return told.asked


async def test_rows_that_are_small() -> None:
    """Are asked for without any condition as soon as it is known that they are."""
    assert await asked_for(Told([row(1, content="x" * 50)]), 3) == ["$expr", "", ""]


@pytest.mark.parametrize("content", ["x" * 3_800, "é" * 1_900, "漢" * 1_300], ids=["1 byte", "2 bytes", "3 bytes"])
async def test_rows_that_are_not_worth_cutting(content: str) -> None:
    """What the server takes for small is so here too, though it is cut."""
    assert await asked_for(Told([row(1, content=content)]), 3) == ["$expr", "", ""]


async def test_rows_that_are_long() -> None:
    """Are cut by the server at once, and from then on."""
    internal = "metadata.sub_agent_internal"
    assert await asked_for(Told([row(1, content="x" * 5_000)]), 3) == ["$expr", f"$expr {internal}", *["excerpt"] * 3]


@pytest.mark.parametrize("content", ["x" * 4_097, "漢" * 1_400], ids=["1 byte", "3 bytes"])
async def test_rows_that_come_to_be_long(content: str) -> None:
    """Are read whole once."""
    told = Told([row(1)])
    past = MongoPast(MongoMessages(told, Known()))
    for at, number in ((1, 1), (2, 4)):
        for _ in range(number):
            await past.newest("o", limit=5, skip=0, excerpt_chars=_CHARS)
        told.given = [row(at, content=content)]
    assert told.asked[:3] == ["$expr", "", "$expr metadata.sub_agent_internal"]
    assert told.asked[-2:] == ["excerpt"] * 2


async def test_rows_of_sub_agents() -> None:
    """From the first on, the server is to leave them out."""
    internal = "metadata.sub_agent_internal"
    told = Told([row(1)])
    assert await asked_for(told, 1) == ["$expr"]
    told.given = [row(2, metadata={"sub_agent_internal": [True]})]
    told.asked.clear()
    assert await asked_for(told, 2) == ["$expr", f"$expr {internal}", internal]
