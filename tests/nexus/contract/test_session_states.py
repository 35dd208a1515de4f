"""The promises of `nexus.core.ports.SessionStateStore`, on every adapter and on the fake that other tests use."""

from typing import Any

import anyio
import pytest

from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Store
from tests.nexus.contract.test_store import OWNERS, Place, bare_place, place

__all__ = ["bare_place", "place"]

WRITERS = 50
DOCUMENT: dict[str, Any] = {
    "todos": {"floor": "", "given": True, "items": [{"id": "a.b", "fields": {"text": ["$x\u0000😀", "0"]}}]},
    "n": None,
}


async def add(store: Store, number: int) -> None:
    """Add a number to a session's, however often others come first."""
    while True:
        row = await store.find_session_state("o", "s")
        numbers = row["document"]["numbers"] if row else []
        if await store.put_session_state("o", "s", {"numbers": [*numbers, number]}, row["revision"] if row else 0):
            return


async def test_a_document_comes_back_as_it_was(place: Place) -> None:
    """With its owner, its session and its first revision."""
    async with place.open() as store:
        assert await store.find_session_state("o", "s") is None
        assert await store.put_session_state("o", "s", DOCUMENT, 0)
        found = await store.find_session_state("o", "s")
    assert found is not None
    del found["updated_at"]
    assert found == {"owner_key": "o", "session_id": "s", "document": DOCUMENT, "revision": 1}


async def test_what_was_not_seen_is_not_replaced(place: Place) -> None:
    """A document is put by whoever knows the revision that is there, and by nobody else."""
    async with place.open() as store:
        for revision, counts in ((1, False), (0, True), (0, False), (2, False), (1, True), (1, False), (2, True)):
            assert await store.put_session_state("o", "s", {"revision": revision}, revision) is counts
        found = await store.find_session_state("o", "s")
    assert found is not None
    assert (found["document"], found["revision"]) == ({"revision": 2}, 3)


async def test_many_writers(bare_place: Place) -> None:
    """Of any number that write at once none is lost."""
    async with bare_place.open() as store:
        await store.prepare()
        async with anyio.create_task_group() as tasks:
            for number in range(WRITERS):
                tasks.start_soon(add, store, number)
        found = await store.find_session_state("o", "s")
    assert found is not None
    assert sorted(found["document"]["numbers"]) == [*range(WRITERS)]
    assert found["revision"] == WRITERS


async def test_owners_and_sessions_are_texts(place: Place) -> None:
    """Whatever an owner or a session is called, each has its own state and no other."""
    names = [(owner, session) for owner in OWNERS for session in ("s", owner)]
    async with place.open() as store:
        for number, (owner, session) in enumerate(names):
            assert await store.find_session_state(owner, session) is None
            assert await store.put_session_state(owner, session, {"number": number}, 0)
        for number, (owner, session) in enumerate(names):
            found = await store.find_session_state(owner, session)
            assert found is not None
            assert (found["owner_key"], found["session_id"], found["document"]) == (owner, session, {"number": number})


@pytest.mark.parametrize("bad", ["\ud800", 2**64, "x" * (17 << 20)], ids=["half a pair", "too big", "too long"])
async def test_what_cannot_be_kept(place: Place, bad: Any) -> None:
    """It is refused, and what was there stays."""
    async with place.open() as store:
        assert await store.put_session_state("o", "s", DOCUMENT, 0)
        with pytest.raises(StoreRejectedError):
            await store.put_session_state("o", "s", {"x": bad}, 1)
        found = await store.find_session_state("o", "s")
    assert found is not None
    assert (found["document"], found["revision"]) == (DOCUMENT, 1)


async def test_what_somebody_else_has_written(place: Place) -> None:
    """A row that Nexus would not write comes as it is; without a revision nobody replaces it by mistake."""
    place.plant("session_states", [{"owner_key": "o", "session_id": "s", "document": [1], "revision": "x"}])
    async with place.open() as store:
        found = await store.find_session_state("o", "s")
        assert not await store.put_session_state("o", "s", DOCUMENT, 0)
        assert not await store.put_session_state("o", "s", DOCUMENT, 1)
    assert found is not None
    assert (found["document"], found["revision"]) == ([1], "x")
