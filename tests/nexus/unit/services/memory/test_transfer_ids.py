"""New `_id`s for an imported session: what is left after a compaction is the same as it was."""

from hypothesis import given
from hypothesis import strategies as st

from nexus.core.working_memory import SECOND, Tail, is_object_id
from nexus.services.memory.transfer_ids import new_ids, renamed_row

_SECONDS = st.sampled_from(["00000000", "65920080", "65920081", "ffffffff"])
_OBJECT_IDS = st.builds(lambda second, rest: f"{second}{rest:016x}", _SECONDS, st.integers(0, 2**64 - 1))
_IDS = st.lists(_OBJECT_IDS | st.text(max_size=6), unique=True, max_size=40)


@given(_IDS, _SECONDS, st.data())
def test_the_same_tail(row_ids: list[str], since: str, data: st.DataObject) -> None:
    """Every row has one of its own, of the same second and in the same order; a tail has the same rows."""
    without = frozenset(data.draw(st.sets(st.sampled_from(row_ids)))) if row_ids else frozenset[str]()
    ids = new_ids(row_ids, "bob", "s1")
    assert len({*ids.values()}) == len(row_ids)
    made = [row_id for row_id in row_ids if is_object_id(row_id)]
    assert all(ids[row_id][SECOND] == row_id[SECOND] for row_id in made)
    assert sorted(made) == sorted(made, key=lambda row_id: ids[row_id])
    assert all(not is_object_id(ids[row_id]) for row_id in {*row_ids} - {*made})
    before, after = Tail(since, without), Tail(since, frozenset(ids[row_id] for row_id in without))
    assert [before.includes(row_id) for row_id in row_ids] == [after.includes(ids[row_id]) for row_id in row_ids]


@given(_IDS)
def test_the_same_each_time(row_ids: list[str]) -> None:
    """An import that is repeated finds what it has written; another session gets others."""
    assert new_ids(row_ids, "bob", "s1") == new_ids(row_ids, "bob", "s1")
    others = {*new_ids(row_ids, "bob", "s2").values()} | {*new_ids(row_ids, "bo", "b s1").values()}
    assert not others & {*new_ids(row_ids, "bob", "s1").values()}


def test_a_row_of_another_session() -> None:
    """Its fields keep their places."""
    row = {"_id": {"$oid": "a" * 24}, "owner_key": "ada", "content": "x", "session_id": "s1"}
    renamed = renamed_row(row, "a" * 24, "b" * 24, "bob", "s2")
    assert list(renamed.items()) == [
        ("_id", {"$oid": "b" * 24}),
        ("owner_key", "bob"),
        ("content", "x"),
        ("session_id", "s2"),
    ]
    assert renamed_row(row, "a" * 24, "a" * 24, "ada", "s1") == row
