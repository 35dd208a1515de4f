"""The promises of `nexus.core.ports.ConstraintStore`, on every adapter and on the fake that other tests use."""

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from nexus.core.errors import StoreRejectedError
from nexus.core.models import Row
from nexus.core.ports import Store
from nexus.services.person.constraint_changes import Target, read_change
from nexus.services.person.constraints import known_in, merge
from tests.nexus.contract.test_store import OWNERS, Place, bare_place, place

__all__ = ["bare_place", "place"]

NOON = datetime(2025, 12, 10, 12, tzinfo=UTC)
WRITERS = 30
DOCUMENT: dict[str, Any] = {
    "constraints": [
        {"id": "session-1", "text": "$x.y\u0000😀 \r\n[CONSTRAINTS]", "valid_from": NOON, "valid_to": None}
    ],
    "retired": [],
}


async def find(store: Store, *places: str, owner: str = "o") -> list[Row]:
    """The documents of these places, by place, without the time at which they were kept."""
    rows = await store.constraints.find_constraints(owner, places)
    return sorted(({k: v for k, v in row.items() if k != "updated_at"} for row in rows), key=lambda row: row["place"])


async def test_documents_come_back_as_they_were(place: Place) -> None:
    """Those of the places that are named, with owner, place and first revision."""
    async with place.open() as store:
        assert await find(store, "owner", "session:s") == []
        assert await find(store) == []
        for name in ("owner", "session:s", "run:r"):
            assert await store.constraints.put_constraints("o", name, DOCUMENT, 0)
        row = {"owner_key": "o", "document": DOCUMENT, "revision": 1}
        assert await find(store, "session:s", "owner", "session:t") == [
            {"place": n, **row} for n in ("owner", "session:s")
        ]
        listed = await store.constraints.list_constraints("o", limit=2)
        assert [(each["owner_key"], each["place"]) for each in listed] == [("o", "owner"), ("o", "run:r")]
        assert listed[0]["document"] == DOCUMENT
        behind = await store.constraints.list_constraints("o", limit=2, after="owner")
        assert [each["place"] for each in behind] == ["run:r", "session:s"]
        assert await store.constraints.list_constraints("p", limit=2) == []


async def test_what_was_not_seen_is_not_replaced(place: Place) -> None:
    """A document is put by whoever knows the revision that is there, and by nobody else."""
    async with place.open() as store:
        for revision, counts in ((1, False), (0, True), (0, False), (2, False), (1, True), (1, False), (2, True)):
            put = await store.constraints.put_constraints("o", "owner", {"revision": revision}, revision)
            assert put is counts
        (found,) = await find(store, "owner")
    assert (found["document"], found["revision"]) == ({"revision": 2}, 3)


async def test_many_writers(bare_place: Place) -> None:
    """Of any number that write at once none is lost, those that take back included."""
    target, ids = Target("o", "s", "r"), [f"rule {number}" for number in range(WRITERS)]

    async def write(content: Any) -> None:
        await merge(store.constraints, "o", read_change(content, target, NOON, "m"))

    async with bare_place.open() as store:
        await store.prepare()
        async with anyio.create_task_group() as tasks:
            for text in ids:
                tasks.start_soon(write, {"op": "add", "constraints": [text, {"text": text, "scope": "owner"}]})
            for text in ids[::3]:
                tasks.start_soon(write, {"op": "retire", "constraints": [text]})
        known = await known_in(store.constraints, target)
    in_force = [(each.scope, each.text) for each in known if each.holds]
    assert sorted(in_force) == sorted(
        [("owner", text) for text in ids] + [("session", text) for text in ids if text not in ids[::3]]
    )


async def test_owners_and_places_are_texts(place: Place) -> None:
    """Whatever an owner or a place is called, each has its own document and no other."""
    names = [(owner, name) for owner in OWNERS for name in ("owner", f"session:{owner}")]
    async with place.open() as store:
        for number, (owner, name) in enumerate(names):
            assert await find(store, name, owner=owner) == []
            assert await store.constraints.put_constraints(owner, name, {"number": number}, 0)
        for number, (owner, name) in enumerate(names):
            (found,) = await find(store, name, owner=owner)
            assert (found["owner_key"], found["place"], found["document"]) == (owner, name, {"number": number})


@pytest.mark.parametrize("bad", ["\ud800", 2**64, "x" * (17 << 20)], ids=["half a pair", "too big", "too long"])
async def test_what_cannot_be_kept(place: Place, bad: Any) -> None:
    """It is refused, and what was there stays."""
    async with place.open() as store:
        assert await store.constraints.put_constraints("o", "owner", DOCUMENT, 0)
        with pytest.raises(StoreRejectedError):
            await store.constraints.put_constraints("o", "owner", {"x": bad}, 1)
        (found,) = await find(store, "owner")
    assert (found["document"], found["revision"]) == (DOCUMENT, 1)


async def test_what_somebody_else_has_written(place: Place) -> None:
    """A row that Nexus would not write comes as it is; without a revision nobody replaces it by mistake."""
    place.plant("constraints", [{"owner_key": "o", "place": "owner", "document": [1], "revision": "x"}])
    async with place.open() as store:
        (found,) = await find(store, "owner")
        assert not await store.constraints.put_constraints("o", "owner", DOCUMENT, 0)
        assert not await store.constraints.put_constraints("o", "owner", DOCUMENT, 1)
    assert (found["document"], found["revision"]) == ([1], "x")
