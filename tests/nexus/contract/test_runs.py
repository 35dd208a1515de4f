"""What `nexus.core.ports.MessageStore` promises of whole runs and of first inputs, on every adapter and on the fake."""

from collections import Counter

import pytest

from nexus.core.ports import Row
from tests.nexus.contract.test_store import INTERNAL, MALFORMED, OWNERS, Place, insert_all, place
from tests.nexus.support.rows import ids, moment, row

__all__ = ["place"]

ROLES = ("HUMAN", "AI", "TOOL", "SYSTEM", "COMMAND", "tool", "HUMAN")
TEXT_TIMES = {1: "2024-01-01T00:01:00Z", 4: "2024-01-01T08:04:00+08:00", 6: "2024-01-01T00:06:00.000001+00:00"}


async def test_the_rows_of_a_run(place: Place) -> None:
    """Newest first and whole, of every role and every session, in pages that follow on each other; of no other run."""
    long = "x" * 100_000
    rows = [row(number, role=role, run_id="r", content=f"{number}{long}") for number, role in enumerate(ROLES)]
    rows[3]["session_id"], rows[4]["metadata"] = "t", INTERNAL
    place.plant("messages", [*rows[::2], row(20, run_id="R"), row(21, run_id="r", owner_key="p"), *rows[1::2]])
    async with place.open() as store:
        whole = await store.run_messages("o", "r", limit=50)
        pages = [ids(await store.run_messages("o", "r", limit=3, skip=skip)) for skip in (0, 3, 6, 9)]
        assert ids(await store.run_messages("p", "r", limit=5)) == ["m21"]
        assert await store.run_messages("p", "R", limit=5) == []
        both = await store.rows_of_runs([("p", "r"), ("o", "r"), ("p", "R")], limit=50)
        assert sorted(ids(both)) == sorted(["m21", *ids(whole)])
        assert [each for each in both if each["owner_key"] == "o"] == whole
        assert len(await store.rows_of_runs([("p", "r"), ("o", "r")], limit=4)) == 4
        assert await store.rows_of_runs([], limit=4) == []
        roles = await store.roles_of_runs([("p", "r"), ("o", "r"), ("p", "R")], limit=50)
        assert Counter((each["owner_key"], each["run_id"], each["role"]) for each in roles) == {
            ("p", "r", "HUMAN"): 1,
            **{("o", "r", role): number for role, number in Counter(ROLES).items()},
        }
        assert len(await store.roles_of_runs([("p", "r"), ("o", "r")], limit=4)) == 4
        assert await store.roles_of_runs([], limit=4) == []
    assert [{name: value for name, value in each.items() if name != "_id"} for each in whole] == rows[::-1]
    assert all(isinstance(each["_id"], str) for each in whole)
    assert pages == [["m6", "m5", "m4"], ["m3", "m2", "m1"], ["m0"], []]


async def test_times_in_a_run_are_compared_as_moments(place: Place) -> None:
    """Times stored as texts stand among the dates where they belong, through every page."""
    rows = [row(number, run_id="r", timestamp=TEXT_TIMES.get(number, moment(number))) for number in range(8)]
    place.plant("messages", rows)
    async with place.open() as store:
        pages = [ids(await store.run_messages("o", "r", limit=3, skip=skip)) for skip in (0, 3, 6)]
    assert pages == [["m7", "m6", "m5"], ["m4", "m3", "m2"], ["m1", "m0"]]


async def test_the_first_input_of_a_session(place: Place) -> None:
    """The oldest row of a human, whole, whatever was recorded first; none that only a sub-agent was told."""
    long = "x" * 100_000
    async with place.open() as store:
        assert await store.first_input("o", "s") is None
        await insert_all(store, [row(9), row(2, content=long), row(5), row(0, role="AI"), row(1, metadata=INTERNAL)])
        await insert_all(store, [row(0, id="other", owner_key="p"), row(0, id="another", session_id="t")])
        found = await store.first_input("o", "s")
        assert ids([row_of(await store.first_input("p", "s"))]) == ["other"]
        assert ids([row_of(await store.first_input("o", "t"))]) == ["another"]
        several = await store.first_inputs([("o", "s"), ("p", "s"), ("p", "t"), ("o", "t")])
        assert {place: each["id"] for place, each in several.items()} == {
            ("o", "s"): "m2",
            ("p", "s"): "other",
            ("o", "t"): "another",
        }
        assert several["o", "s"]["content"] == long
        assert await store.first_inputs([("p", "t")]) == await store.first_inputs([]) == {}
    assert found is not None
    assert isinstance(found.pop("_id"), str)
    assert found == row(2, content=long)


@pytest.mark.parametrize(("texts", "first"), [({3: "2024-01-01T00:01:00Z"}, "m3"), ({3: "2025-01-01T00:00:00Z"}, "m2")])
async def test_the_first_input_among_other_times(place: Place, texts: dict[int, str], first: str) -> None:
    """A time that is stored as a text is compared as the moment that it is."""
    place.plant("messages", [row(number, timestamp=texts.get(number, moment(number))) for number in (4, 3, 2)])
    async with place.open() as store:
        assert ids([row_of(await store.first_input("o", "s"))]) == [first]
        several = await store.first_inputs([("o", "none"), ("o", "s")])
        assert {place: each["id"] for place, each in several.items()} == {("o", "s"): first}


@pytest.mark.parametrize("name", OWNERS)
async def test_owners_runs_and_sessions_are_texts(place: Place, name: str) -> None:
    """Whatever an owner, a run or a session is called, exactly those rows are found."""
    strange = [row(9, id=f"x{number}", run_id=value, session_id=value) for number, value in enumerate((None, ["r"], 1))]
    place.plant("messages", [row(1), *strange])
    async with place.open() as store:
        for owner, called in (("o", name), (name, "r1"), (name, "s")):
            assert await store.run_messages(owner, called, limit=5) == []
            assert await store.first_input(owner, called) is None
            assert await store.first_inputs([(owner, called), ("none", called)]) == {}
        await store.insert_message(row(2, owner_key=name, run_id=name, session_id=name))
        assert ids(await store.run_messages(name, name, limit=5)) == ["m2"]
        assert ids([row_of(await store.first_input(name, name))]) == ["m2"]


@pytest.mark.parametrize("changes", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_row_spoils_no_run(place: Place, changes: Row) -> None:
    """It comes through as it is, between the others of its run, and the session has a first input."""
    rows = [row(number, **{"run_id": "r", **(changes if number == 2 else {})}) for number in (1, 2, 3)]
    place.plant("messages", rows)
    async with place.open() as store:
        found = await store.run_messages("o", "r", limit=5)
        first = row_of(await store.first_input("o", "s"))
        several = await store.first_inputs([("o", "s"), ("o", "none")])
    assert several["o", "s"].get("content") == first.get("content")
    of_run = [each for each in rows if each["run_id"] == "r"]
    assert sorted(map(str, ids(found))) == sorted(map(str, ids(of_run)))
    assert first in [{"_id": first["_id"], **each} for each in rows]


def row_of(found: Row | None) -> Row:
    """The row, which must be there."""
    assert found is not None
    return found
