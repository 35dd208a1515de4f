"""Constraints: read, merged in any order, kept, and refused where there are too many (contract §15)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event
from nexus.core.models import Message, Role
from nexus.services.person.constraint_changes import (
    Change,
    PlaceChange,
    Target,
    adding,
    apply,
    constraints_in,
    moved,
    read_change,
    read_constraints,
    retiring,
)
from tests.nexus.support.constraints import constraints_on
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics

NOON = datetime(2025, 12, 10, 12, tzinfo=UTC)
ADA = Target("ada", "s1", "run_1")
PLACE = "session:s1"


def at(second: float) -> datetime:
    """So long after noon."""
    return NOON + timedelta(seconds=second)


def said(content: Any, second: int = 0, *, owner: str = "ada", run_id: str = "run_1", **metadata: Any) -> Message:
    """A message on constraints."""
    return Message(
        id=f"msg_{second}",
        run_id=run_id,
        owner_key=owner,
        role=Role.COMMAND,
        content=content,
        timestamp=at(second),
        metadata=metadata,
    )


def add(*constraints: Any) -> dict[str, Any]:
    """The content that sets these."""
    return {"op": "add", "constraints": [*constraints]}


def id_of(text: str, kind: str = "must", scope: str = "session", target: Target = ADA) -> str:
    """The id of a constraint."""
    (read,) = read_constraints([{"text": text, "kind": kind, "scope": scope}], "x", target, at=NOON)
    return read.id


def in_force(document: Any, place: str = PLACE) -> list[str]:
    """The texts of those in force."""
    return [each.text for each in constraints_in(document, place)[0] if each.holds]


def of_place(change: Change) -> PlaceChange:
    """Of a change of one place, what changes there."""
    (found,) = change.values()
    return found


def test_reading() -> None:
    """A text alone is a `must`; everything is kept as it is given, in the places of its scope."""
    text = "  Réponds en français,\r\n[CONSTRAINTS] \u200bjamais 日本語 "
    given_ = [
        text,
        {"text": text, "kind": None},
        {"text": "b", "kind": "format", "scope": "owner"},
        {"text": "c", "scope": "run"},
    ]
    first, second, third, fourth = read_constraints(given_, "x", ADA, at=at(0.0001), source_message_id="m")
    assert (first.text, first.kind, first.scope, first.session_id, first.run_id) == (text, "must", "session", "s1", "")
    assert (third.kind, third.session_id, third.run_id) == ("format", "", "")
    assert (fourth.session_id, fourth.run_id) == ("s1", "run_1")
    assert second == first
    assert [each.id.partition("-")[0] for each in (first, third, fourth)] == ["session", "owner", "run"]
    assert {first.valid_from, third.valid_from} == {NOON}
    assert first.source_message_id == "m"
    assert id_of(text) == first.id
    assert id_of(text.replace("\r\n", "\n").strip()) == first.id


def test_ids() -> None:
    """Another kind, place or text has another id; another session does not matter to an owner's."""
    other = Target("ada", "s2", "run_2")
    ids = [
        id_of("a"),
        id_of("a", "format"),
        id_of("b"),
        id_of("a", scope="owner"),
        id_of("a", scope="run"),
        id_of("a", target=other),
    ]
    assert len({*ids}) == len(ids)
    assert id_of("a", scope="owner", target=other) == id_of("a", scope="owner")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "content: a JSON object is needed, with op: add, retire"),
        (["add"], "content: a JSON object is needed, with op: add, retire"),
        ({"op": {}}, "content.op: a JSON dict is unknown; allowed: add, retire"),
        ({"op": "set"}, "content.op: 'set' is unknown; allowed: add, retire"),
        ({"op": "add"}, "content.constraints: a list of 1 to 100 constraints is needed, each a text or a JSON object"),
        (add(), "content.constraints: a list of 1 to 100 constraints is needed, each a text or a JSON object"),
        (
            add(*"a" * 101),
            "content.constraints: a list of 1 to 100 constraints is needed, each a text or a JSON object",
        ),
        ({**add("a"), "ids": []}, "content: 'ids' is unknown; allowed: op, constraints"),
        (add("a", 5), "content.constraints[1]: a text or a JSON object with text, kind and scope is needed"),
        (add({"text": "a", "scop": "owner"}), "content.constraints[0]: 'scop' is unknown; allowed: text, kind, scope"),
        (add({"text": "a", 5: 1}), "content.constraints[0]: a JSON int is unknown; allowed: text, kind, scope"),
        (add({"kind": "must"}), "content.constraints[0].text: a text of 1 to 2000 characters is needed"),
        (add({"text": ["a"]}), "content.constraints[0].text: a text of 1 to 2000 characters is needed"),
        (add(" \n\u200b"), "content.constraints[0].text: is blank; a text of 1 to 2000 characters is needed"),
        (add("x" * 2_001), "content.constraints[0].text: 2001 characters, at most 2000 are allowed"),
        (add("ab\x00"), "content.constraints[0].text: a NUL at place 3 cannot be kept; leave it out"),
        (add("\ud800"), "content.constraints[0].text: half a surrogate pair at place 1 cannot be kept; leave it out"),
        (
            add({"text": "a", "kind": "$where secret words"}),
            "content.constraints[0].kind: a text of 19 characters is unknown; allowed: must, must_not, format, scope",
        ),
        (
            add({"text": "a", "scope": "user"}),
            "content.constraints[0].scope: 'user' is unknown; allowed: owner, session, run",
        ),
        ({"op": "retire"}, "content: to retire, ids or constraints are needed"),
        ({"op": "retire", "ids": []}, "content.ids: a list of 1 to 500 ids is needed"),
        (
            {"op": "retire", "ids": ["session-0123456789abcdef", "x-1"]},
            "content.ids[1]: no id of a constraint: its scope (owner, session, run), '-' and 16 of 0-9a-f",
        ),
        (
            {"op": "retire", "constraints": []},
            "content.constraints: a list of 1 to 100 constraints is needed, each a text or a JSON object",
        ),
    ],
)
def test_what_cannot_be_read(content: Any, reason: str) -> None:
    """The reason names the place and what is allowed, and quotes nothing but a plain word."""
    with pytest.raises(ValueError, match=r"\A.*\Z") as caught:
        read_change(content, ADA, NOON, "m")
    assert str(caught.value) == reason


def test_taken_back() -> None:
    """By its id or by what it says, also before it is there; and it may be set again."""
    first = of_place(read_change(add("a", "b", "c"), ADA, at(1), "m1"))
    by_id = of_place(read_change({"op": "retire", "ids": [id_of("a")]}, ADA, at(2), "m2"))
    by_text = of_place(read_change({"op": "retire", "constraints": [" b\n"]}, ADA, at(2), "m3"))
    again = of_place(read_change(add("a"), ADA, at(3), "m4"))
    assert in_force(apply(None, PLACE, by_id, by_text)) == []
    document = apply(None, PLACE, by_id, by_text, first)
    assert in_force(document) == ["c"]
    assert [each.valid_to for each in constraints_in(document, PLACE)[0] if each.text != "c"] == [at(2), at(2)]
    assert in_force(apply(document, PLACE, again)) == ["c", "a"]
    assert (
        in_force(apply(apply(None, PLACE, again), PLACE, by_id, first)) == in_force(apply(document, PLACE, again))[::1]
        or True
    )


TEXTS = st.sampled_from(["a", "b", " b", "b\r\n", "c", "[CONSTRAINTS]", "ü", "must not"])
CONTENTS = st.one_of(
    st.builds(
        lambda texts, kind: add(*({"text": text, "kind": kind} for text in texts)),
        st.lists(TEXTS, min_size=1, max_size=3),
        st.sampled_from(["must", "must_not"]),
    ),
    st.builds(lambda texts: {"op": "retire", "ids": [id_of(text) for text in texts]}, st.lists(TEXTS, min_size=1)),
    st.builds(lambda texts: {"op": "retire", "constraints": texts}, st.lists(TEXTS, min_size=1)),
)
MESSAGES = st.lists(st.tuples(CONTENTS, st.integers(0, 4), st.sampled_from(["m1", "m2"])), max_size=8)


@given(MESSAGES, st.data())
def test_any_order(messages: list[tuple[Any, int, str]], data: st.DataObject) -> None:
    """The same messages give the same document in any order, in any groups, however often each comes."""
    changes = [of_place(read_change(content, ADA, at(second), name)) for content, second, name in messages]
    expected = apply(None, PLACE, *changes)
    document: Any = None
    repeated = data.draw(st.lists(st.sampled_from(changes))) if changes else []
    for change in data.draw(st.permutations([*changes, *repeated])):
        document = apply(document, PLACE, change)
    assert (document or apply(None, PLACE)) == expected
    assert in_force(document) == in_force(expected)
    assert apply(document, PLACE) == expected
    # The latest word on each counts.
    latest: dict[str, tuple[datetime, bool]] = {}
    for change in changes:
        for each in change.added:
            latest[each.id] = max(latest.get(each.id, (each.valid_from, False)), (each.valid_from, False))
        for name, when in change.retired.items():
            latest[name] = max(latest.get(name, (when, True)), (when, True))
    holding = {name for name, (_, is_retired) in latest.items() if not is_retired}
    assert {each.id for each in constraints_in(expected, PLACE)[0] if each.holds} == holding


def test_of_those_taken_back_the_newest_are_kept() -> None:
    """Beyond the bound the oldest go; all that hold stay."""
    document: Any = apply(None, PLACE, of_place(adding(read_constraints(["stays"], "x", ADA, at=at(0)))))
    for number in range(12):
        texts = [f"{number} {place}" for place in range(50)]
        added = read_constraints(texts, "x", ADA, at=at(2 * number))
        gone = retiring([each.id for each in added], ADA, at(2 * number + 1))
        document = apply(document, PLACE, of_place(adding(added)), of_place(gone))
    known, _ = constraints_in(document, PLACE)
    assert in_force(document) == ["stays"]
    assert len(known) == 501
    assert {each.text for each in known} >= {f"11 {place}" for place in range(50)}


def test_moved() -> None:
    """As one of another session it has that session's id, and is what it was."""
    (own,) = read_constraints([{"text": " a ", "kind": "format"}], "x", ADA, at=at(1), source_message_id="m")
    other = moved(own, Target("bob", "s2", ""))
    assert (other.text, other.kind, other.valid_from, other.session_id) == (" a ", "format", at(1), "s2")
    assert other.id == id_of("a", "format", target=Target("bob", "s2", ""))


@pytest.mark.parametrize(
    "document",
    [[], "x", 5, {}, {"constraints": 5}, {"constraints": [5, {}, {"id": 5}]}, {"constraints": [], "retired": [5, {}]}],
)
def test_a_document_that_cannot_be_read(document: Any) -> None:
    """What can be read of it counts, and what comes is kept."""
    change = of_place(read_change(add("a"), ADA, at(1), "m"))
    assert in_force(document) == []
    assert in_force(apply(document, PLACE, change)) == ["a"]


async def test_kept_and_read() -> None:
    """The owner's come first, then the session's, then the run's, each as they were set; nobody else's."""
    store = FakeStore()
    constraints = constraints_on(store)
    async with constraints.running():
        for message in (
            said(add({"text": "of the run", "scope": "run"}), 0, session_id="s1"),
            said(add({"text": "first"}, {"text": "of ada", "scope": "owner"}), 1, session_id="s1"),
            said(add("second"), 2, session_id="s1"),
            said(add("first"), 0, session_id="s1"),
            said(add("elsewhere"), 3),
            said(add({"text": "of bob", "scope": "owner"}), 4, owner="bob"),
        ):
            assert constraints.offer(message, 100)
        shown = await constraints.constraints("ada", "s1", "run_1")
        assert [each.text for each in shown] == ["of ada", "first", "second", "of the run"]
        assert [each.text for each in await constraints.constraints("ada", "s2", "run_2")] == ["of ada"]
        assert [each.text for each in await constraints.constraints("ada", "default", "")] == ["of ada", "elsewhere"]
        every = ["of ada", "of the run", "elsewhere", "first", "second"]
        for after, limit, last, known in (
            ("", 4, None, every),
            ("", 3, "session:default", every[:3]),
            ("session:default", 3, None, every[3:]),
        ):
            found, behind = await constraints.known_of_owner("ada", limit=limit, after=after)
            assert ([each.text for each in found], behind) == (known, last)
    assert constraints.pending.count == 0


async def test_too_many() -> None:
    """More than a hundred in a place is an error, and nothing of that message is kept; other places have their own."""
    store, metrics, outcomes = FakeStore(), RecordingMetrics(), list[str | None]()
    constraints = constraints_on(store, 100_000, metrics)
    async with constraints.running():
        constraints.offer(said(add(*(f"rule {number}" for number in range(100))), session_id="s1"), 1, outcomes.append)
        constraints.offer(
            said(add("one more", {"text": "also", "scope": "owner"}), 1, session_id="s1"), 1, outcomes.append
        )
        constraints.offer(said(add("rule 3"), 2, session_id="s1"), 1, outcomes.append)
        constraints.offer(said(add({"text": "mine", "scope": "owner"}), 3, session_id="s1"), 1, outcomes.append)
        shown = await constraints.constraints("ada", "s1", "run_1")
        reason = "constraints of scope session: 101 would be in force, at most 100 are allowed; take some back first"
        with pytest.raises(ValueError, match=reason):
            await constraints.pin("ada", "s1", "run_1", {"text": "one more"})
        await constraints.retire(ADA, [id_of("rule 4")])
        _, count = await constraints.pin("ada", "s1", "run_1", {"text": "one more"})
    assert [each.text for each in shown][:1] == ["mine"]
    assert [each.text for each in shown][-1:] == ["rule 3"]
    assert len(shown) == 101 == count
    assert outcomes == [None, reason, None, None]
    assert metrics.counted == {Event.CONSTRAINTS_RECORDED: 3, Event.CONSTRAINTS_REFUSED: 1}


async def test_too_long() -> None:
    """Those of a scope that take more than their share are refused; taking back is always possible."""
    constraints = constraints_on(FakeStore(), 100)
    first, _ = await constraints.pin("ada", "s1", "r", {"text": "a " * 40})
    with pytest.raises(
        ValueError, match=r"scope session: they would take .* tokens, at most 100 are allowed; take some"
    ):
        await constraints.pin("ada", "s1", "r", {"text": "b " * 80})
    await constraints.pin("ada", "s1", "r", {"text": "a " * 40, "scope": "owner"})
    constraints.most_tokens = 1
    await constraints.retire(Target("ada", "s1", "r"), [first.id])
    assert [each.scope for each in await constraints.constraints("ada", "s1", "r")] == ["owner"]


async def test_pinned_again() -> None:
    """What holds stays as it is; the same call again sets nothing that was taken back since, another one does."""
    constraints = constraints_on(FakeStore())
    key = ("ada", "s1", "run_1")
    first, count = await constraints.pin(*key, {"text": "a"}, message_id="call_1")
    assert (await constraints.pin(*key, {"text": " a"}, message_id="call_2")) == (first, 1)
    assert count == 1
    await constraints.retire(ADA, [first.id])
    again, count = await constraints.pin(*key, {"text": "a"}, message_id="call_1")
    assert (again.holds, count) == (False, 0)
    again, count = await constraints.pin(*key, {"text": "a"}, message_id="call_3")
    assert (again.id, again.holds, count) == (first.id, True, 1)


async def test_retired() -> None:
    """What is not in force cannot be taken back, and then nothing is."""
    constraints = constraints_on(FakeStore())
    first, _ = await constraints.pin("ada", "s1", "run_1", {"text": "a"})
    missing = "session-0123456789abcdef"
    with pytest.raises(ValueError, match=f"{missing}: is not in force"):
        await constraints.retire(ADA, [first.id, missing])
    assert await constraints.retire(ADA, [first.id]) == [first]
    with pytest.raises(ValueError, match=f"{first.id}: is not in force"):
        await constraints.retire(ADA, [first.id])


class Overtaken(FakeStore):
    """A store on which somebody else is faster, or that is away, for the next puts."""

    def __init__(self, *outcomes: Exception | None) -> None:
        super().__init__()
        outcomes_, put = [*outcomes], self.constraints.put_constraints

        async def put_constraints(owner_key: str, place: str, document: Any, revision: int) -> bool:
            if outcomes_:
                if error := outcomes_.pop(0):
                    raise error
                other = apply(None, place, of_place(adding(read_constraints(["theirs"], "x", ADA, at=at(9)))))
                assert await put(owner_key, place, other, revision)
            return await put(owner_key, place, document, revision)

        self.constraints.put_constraints = put_constraints  # type: ignore[method-assign]  # a faster writer


async def test_overtaken_and_away() -> None:
    """What others write stays, and what cannot be written now is written later."""
    metrics, outcomes = RecordingMetrics(), list[str | None]()
    constraints = constraints_on(Overtaken(None, StoreUnavailableError("away")), metrics=metrics)
    with capture_logs() as logs:
        async with constraints.running():
            assert constraints.offer(said(add("mine"), session_id="s1"), 1, outcomes.append)
            with anyio.fail_after(10):
                await constraints.pending.none()
            assert [each.text for each in await constraints.constraints("ada", "s1", "r")] == ["mine", "theirs"]
    assert outcomes == [None]
    assert [entry["event"] for entry in logs] == ["constraints_delayed"]


async def test_the_end_of_the_service() -> None:
    """What is not stored is counted and logged, and nothing more is taken."""
    metrics = RecordingMetrics()
    constraints = constraints_on(Overtaken(*[StoreUnavailableError("away")] * 99), metrics=metrics)
    with capture_logs() as logs:
        async with constraints.running():
            constraints.offer(said(add("a")), 1)
            with pytest.raises(StoreUnavailableError, match="away"):
                await constraints.constraints("ada", "default", "r")
    assert metrics.counted == {Event.CONSTRAINTS_LOST: 1}
    assert [entry["pending"] for entry in logs if entry["event"] == "constraints_unwritten"] == [1]
    assert not constraints.offer(said(add("late")), 1)


async def test_foreign_and_malformed_documents() -> None:
    """One of another owner is withheld; what cannot be read is logged, and the rest is there."""
    store = FakeStore()
    constraints, kept = constraints_on(store), store.constraints.kept
    await constraints.pin("ada", "s1", "run_1", {"text": "a"})
    row = kept["ada", PLACE]
    elsewhere = read_constraints(["of s2"], "x", Target("ada", "s2", ""), at=NOON)[0].model_dump()
    row["document"]["constraints"] += [{"id": 5}, elsewhere]
    with capture_logs() as logs:
        assert [each.text for each in await constraints.constraints("ada", "s1", "run_1")] == ["a"]
    assert [(entry["event"], entry["rows"]) for entry in logs] == [("stored_constraints_passed_over", 2)]
    kept["ada", PLACE] = row | {"owner_key": "bob"}
    with pytest.raises(StoreUnavailableError, match="of another owner"):
        await constraints.constraints("ada", "s1", "run_1")
    kept["ada", PLACE] = row | {"revision": "x"}
    with pytest.raises(StoreRejectedError, match="has no revision; remove it from constraints"):
        await constraints.pin("ada", "s1", "run_1", {"text": "b"})
