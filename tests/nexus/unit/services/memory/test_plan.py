"""What of a session is compacted, and what is left (contract §7)."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nexus.core.models import is_object_id, parse_moment
from nexus.core.ports import Row
from nexus.core.working_memory import TARGETS, WHOLE, CompactionRequest, Target
from nexus.services.history.transcript import transcript_of_rows
from nexus.services.memory.plan import plan, tail_after
from nexus.services.memory.units import LONGEST_CALL, KnownRuns, headless_runs, ordered_messages, units_of
from tests.nexus.unit.services.memory.sessions import (
    START,
    approvals,
    are_shown_as_before,
    blocks,
    object_id,
    orphans,
    rows,
    with_progress,
)

IDLE = timedelta(seconds=300)
LATER = START + timedelta(days=2)
KEEPS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"keep_recent": st.integers(0, 12)}),
    st.fixed_dictionaries(
        {"keep_tokens": st.integers(0, 60), "cost": st.just(lambda row: len(str(row["content"])) % 9)}
    ),
)
RUNS = st.sampled_from(["", "r1", "r2"])


def row(number: int, role: str = "HUMAN", run: str | None = "r1", **changes: Any) -> Row:
    """A row that was stored `number` seconds after the start."""
    metadata: dict[str, Any] = {}
    if calls := changes.pop("calls", None):
        metadata = {"tool_calls": [{"id": call, "name": "f", "arguments": {}} for call in calls]}
    if (answers := changes.pop("answers", None)) is not None:
        metadata = {"call_id": answers, "tool_name": "f"}
    return {
        "_id": object_id(number, number),
        "id": f"m{number}",
        "run_id": run,
        "role": role,
        "content": f"text {number}",
        "timestamp": START + timedelta(seconds=number),
        "metadata": metadata,
        **changes,
    }


def exchange(first: int, run: str, calls: int = 1) -> list[Row]:
    """A run that is over: a question, calls one after another, an answer."""
    made = [row(first, run=run)]
    for number in range(calls):
        call_id = f"{run}-{number}"
        made += [row(first + 2 * number + 1, "AI", run, calls=[call_id])]
        made += [row(first + 2 * number + 2, "TOOL", run, answers=call_id)]
    return [*made, row(first + 2 * calls + 1, "AI", run)]


# Two calls of one id in two runs, and two results of it in one of them.
TWO_OF_ONE_ID = [
    row(1, "TOOL", answers="a"),
    row(2, "AI", "r2", calls=["a"]),
    row(3, "AI", calls=["a"]),
    row(4, "TOOL", answers="a"),
]


def planned(given: list[Row], **changes: Any) -> tuple[list[Row], list[Row]]:
    """The rows that are compacted, in their order, and those that stay, as given; by default when every run is over."""
    asked = {name: changes.pop(name) for name in ("target", "run_id", "keep_recent", "keep_tokens") if name in changes}
    options = {"now": LATER, "idle": IDLE, "cost": lambda _: 1, "known": KnownRuns(), **changes}
    gone = list(plan(given, CompactionRequest("o", "s", **asked), **options))
    taken = {found["_id"] for found in gone}
    assert len(taken) == len(gone)
    return gone, [found for found in given if found["_id"] not in taken]


def covered(given: list[Row], **changes: Any) -> list[str]:
    """The ids of the rows that are compacted."""
    return [found["id"] for found in planned(given, **changes)[0]]


def runs_beside(given: list[Row], kept: list[Row]) -> list[set[str]]:
    """For each row that stays the runs of the rows that can only stay or go with it."""
    items, ids = ordered_messages(given), {found["_id"] for found in kept}
    return [
        {items[place].run_id for place in unit.places}
        for unit in units_of(items)
        if any(items[place].row["_id"] in ids for place in unit.places)
    ]


class TestAnySession:
    """Properties of every session."""

    @given(
        rows().flatmap(lambda given: st.tuples(st.just(given), st.permutations(given))),
        KEEPS,
        st.sampled_from(TARGETS),
        RUNS,
        st.integers(0, 3_000),
    )
    @example((TWO_OF_ONE_ID, TWO_OF_ONE_ID), {}, "tools", "", 1_000)
    def test_is_shown_as_before(
        self, both: tuple[list[Row], list[Row]], keep: dict[str, Any], target: Target, run_id: str, seconds: int
    ) -> None:
        """The rows that stay have the same calls with the same results as before, in whatever order they come."""
        given, mixed = both
        now = START + timedelta(seconds=seconds)
        gone, left_over = planned(mixed, **keep, now=now, target=target, run_id=run_id)
        kept = [found for found in given if found in left_over]
        assert are_shown_as_before(kept, given)
        assert not any(found["run_id"] == run_id for found in gone if run_id)

    @settings(max_examples=300)
    @given(approvals(), KEEPS, st.sampled_from(TARGETS), st.integers(0, 200_000))
    def test_calls_that_are_answered_in_other_runs(
        self, given_rows: list[Row], keep: dict[str, Any], target: Target, seconds: int
    ) -> None:
        """Go with their results or stay with them, also where one row holds several: no result is shown alone."""
        options: dict[str, Any] = {
            "now": START + timedelta(seconds=seconds),
            "idle": IDLE,
            "cost": lambda _: 1,
            "known": KnownRuns(),
        }
        asked = {name: keep[name] for name in keep if name != "cost"}
        gone = {found["_id"] for found in plan(given_rows, CompactionRequest("o", "s", target, **asked), **options)}
        kept = [found for found in given_rows if found["_id"] not in gone]
        whole, left = blocks(given_rows), blocks(kept)
        assert left == {source: whole[source] for source in left}
        assert orphans(kept) <= orphans(given_rows)

    @given(rows(), st.integers(0, 30), st.sampled_from(TARGETS), RUNS)
    @example([row(1, "SYSTEM")], 0, "all", "")
    def test_the_newest_messages_stay(self, given: list[Row], most: int, target: Target, run_id: str) -> None:
        """So many of them, not counting the run that asks; and with none to keep, everything goes that may."""
        _, kept = planned(given, keep_recent=most, target=target, run_id=run_id)
        shown = transcript_of_rows(given, current_run_id=run_id)[0]
        newest = {item.source for item in shown[len(shown) - min(most, len(shown)) :]}
        assert newest <= {found["id"] for found in kept}
        if most == 0 and target == "all":
            assert all(run_id and run_id in runs for runs in runs_beside(given, kept))

    @given(rows(), st.integers(0, 60))
    def test_the_newest_that_fit(self, given: list[Row], most: int) -> None:
        """What stays takes no more tokens than were said."""
        shown = {item.source for item in transcript_of_rows(given)[0]}
        gone, kept = planned(given, keep_tokens=most, cost=lambda _: 5)
        assert sum(5 for found in kept if found["id"] in shown) <= most
        assert not gone or 5 * len(shown) > most

    @given(rows(foreign=True), KEEPS, st.sampled_from(TARGETS), RUNS)
    def test_what_no_tail_could_find_again(
        self, given: list[Row], keep: dict[str, Any], target: Target, run_id: str
    ) -> None:
        """Is covered whatever is asked for, and takes its block along."""
        _, kept = planned(given, **keep, target=target, run_id=run_id)
        assert all(is_object_id(found["_id"]) for found in kept)

    @given(st.lists(rows(most=8), min_size=1, max_size=4), st.data())
    def test_step_by_step(self, parts: list[list[Row]], data: st.DataObject) -> None:
        """Whatever comes later and however often it is compacted: each row is in the tail or was covered once."""
        tail, everything, done = WHOLE, list[Row](), list[str]()
        for place, part in enumerate(parts):
            everything += [
                {**found, "_id": object_id(place * 10_000 + index * 7, place * 100 + index), "id": f"p{place}-{index}"}
                for index, found in enumerate(part)
            ]
            now = START + timedelta(seconds=place * 10_000 + data.draw(st.integers(0, 9_000)))
            given = [found for found in everything if tail.includes(found["_id"])]
            gone, _ = planned(given, **data.draw(KEEPS), now=now, target=data.draw(st.sampled_from(TARGETS)))
            if gone:
                tail = tail_after(tail, given, gone, now)
            done += [found["_id"] for found in gone]
            assert len(done) == len(set(done))
            for found in everything:
                assert tail.includes(found["_id"]) == (found["_id"] not in done)

    @given(rows(most=20), st.data())
    def test_where_some_are_not_at_hand(self, given: list[Row], data: st.DataObject) -> None:
        """Nothing is covered that would not be if they were, of the newest messages or of another kind."""
        # Where a row without a time belongs is only known beside all others of its run.
        given = [row for row in given if parse_moment(row["timestamp"])]
        first = data.draw(st.integers(0, len(given)))
        last = data.draw(st.integers(first, len(given)))
        keep, target = data.draw(st.integers(0, 12)), data.draw(st.sampled_from(TARGETS))
        newest = given[last:]
        shown = transcript_of_rows(given)[0]
        fixed = {row["_id"] for row in newest}
        gone = {*covered([*given[:first], *newest], keep_recent=keep, target=target, idle=None, fixed=fixed)}
        assert gone <= {row["id"] for row in given[:first]}
        assert not gone & {item.source for item in shown[max(len(shown) - keep, 0) :]}


class TestUnits:
    """Rows that are compacted together."""

    def test_a_block_is_not_split(self) -> None:
        """The newest message to stay is a result, so its call does, and what lies between."""
        given = [
            row(1),
            row(2, "AI", calls=["a", "b"]),
            row(3, "TOOL", answers="b"),
            row(4, "AI"),
            row(5, "TOOL", answers="a"),
            row(6, "AI"),
        ]
        assert covered(given, keep_recent=2) == ["m1"]
        assert covered(given, keep_recent=1) == ["m1", "m2", "m3", "m4", "m5"]
        assert covered(given, keep_tokens=2) == ["m1", "m2", "m3", "m4", "m5"]
        assert covered(given, keep_tokens=0) == ["m1", "m2", "m3", "m4", "m5", "m6"]

    def test_a_call_that_another_run_answers(self) -> None:
        """Stays with its result where the order of that run keeps the result."""
        given = [row(3, "AI", "r2", calls=["c"])]
        results = [{"type": "tool_result", "tool_use_id": "c", "content": "z"}, {"type": "text", "text": "x"}]
        given += [row(403, "user", content=results, timestamp=START + timedelta(seconds=410)), row(404, "AI")]
        given += [row(405, "AI", calls=["d"], timestamp=START - timedelta(seconds=500)), row(804, "AI")]
        assert covered(given, keep_recent=2, target="tools") == []

    def test_runs_are_shown_whole(self) -> None:
        """Where that leaves half of the tokens that may stay; an exact number of messages is what was asked for."""
        given = [found for place in range(4) for found in exchange(10 * place, f"run-{place}")]
        assert len(covered(given, keep_tokens=11)) == 8
        assert len(covered(given, keep_tokens=8)) == 8
        # The run itself would be less than half.
        assert len(covered(given, keep_tokens=7)) == 12
        assert len(covered(exchange(0, "long", calls=9), keep_tokens=7)) == 13
        assert len(covered(given, keep_recent=10)) == 5


class TestRunsInProgress:
    """Nothing of them is compacted."""

    def test_an_unanswered_one(self) -> None:
        """Stays until it has been silent for as long as a run may be."""
        given = [*exchange(1, "one"), row(10, run="two"), row(11, "AI", "two")]
        early, late = START + timedelta(seconds=310), START + timedelta(seconds=312)
        given[-1]["metadata"] = {"phase": "thinking"}
        assert covered(given, now=early) == ["m1", "m2", "m3", "m4"]
        assert covered(given, now=late) == ["m1", "m2", "m3", "m4", "m10", "m11"]
        assert covered(given, idle=None) == ["m1", "m2", "m3", "m4"]

    def test_a_call_that_is_not_answered(self) -> None:
        """Stays for a day with all that came after it: it may need an approval."""
        given = [*exchange(1, "one"), row(10, run="two"), *exchange(20, "two")[1:3]]
        given += [row(31, "AI", "two", calls=["a"]), row(32, "AI", "two")]
        before = ["m1", "m2", "m3", "m4", "m10", "m21", "m22"]
        assert covered(given, now=START + timedelta(seconds=400)) == before
        assert covered(given, now=START + LONGEST_CALL) == before
        assert covered(given, now=START + LONGEST_CALL + timedelta(seconds=32)) == [*before, "m31", "m32"]
        assert covered([*given, row(33, "TOOL", "two", answers="a")])[-3:] == ["m31", "m32", "m33"]

    def test_calls_that_are_waited_for_no_longer(self) -> None:
        """Where too much would be listed because of them."""
        given = [row(1), row(2, "AI", calls=["a"]), row(3, run="two"), row(4, "AI", "two", calls=["b"])]
        now = START + timedelta(seconds=400)
        assert covered(given, now=now) == ["m1", "m3"]
        assert covered(given, now=now, clear=START + timedelta(seconds=3)) == ["m1", "m2", "m3"]
        assert covered(given, now=START + timedelta(seconds=20), clear=START + timedelta(seconds=9)) == []

    def test_what_is_known_by_other_rows(self) -> None:
        """That one goes on, although it is silent; that one is over, although its answer is elsewhere."""
        given = [row(1, run="one"), row(2, "AI", "two", calls=["a"]), row(3, run="three")]
        now = START + timedelta(seconds=400)
        assert covered(given, now=now, known=KnownRuns({"two"}, {"one"})) == ["m2", "m3"]

    def test_the_one_that_asks(self) -> None:
        """Stays although it looks as if it were over."""
        assert covered([*exchange(1, "one"), *exchange(11, "two")], run_id="two") == ["m1", "m2", "m3", "m4"]


def reported(number: int, state: str, call_id: str, run: str = "r1") -> Row:
    """How far a call has come, by a row that was stored `number` seconds after the start."""
    known = {"source": "tool_progress", "call_id": call_id, "progress": {"state": state}}
    return row(number, "TOOL", run, content="", metadata=known)


class TestPendingCalls:
    """Calls without a result that are reported to be under way, or to wait for input."""

    @settings(max_examples=300)
    @given(with_progress(), KEEPS, st.sampled_from(TARGETS), RUNS, st.integers(0, 900_000), st.booleans())
    @example([reported(1, "working", "a"), row(2, "AI", calls=["a"])], {}, "all", "", 900_000, True)
    def test_any_session(  # noqa: PLR0917  # what a compaction depends on
        self, given: list[Row], keep: dict[str, Any], target: Target, run_id: str, seconds: int, clears: bool
    ) -> None:
        """They stay, each with what says so; and what is left is shown as before."""
        now = START + timedelta(seconds=seconds)
        clear = {"clear": now} if clears else {}
        _, kept = planned(given, **keep, **clear, now=now, target=target, run_id=run_id)
        left = blocks(kept)
        for call, results in blocks(given).items():
            if any(said.partition(": ")[2] in {"(working)", "(input_required)"} for said in results):
                assert left.get(call) == results
        assert are_shown_as_before(kept, given)

    @pytest.mark.parametrize("state", ["working", "input_required"])
    def test_what_is_around_them_goes(self, state: str) -> None:
        """However old they are; in their own run what came after them goes when a call would be awaited no longer."""
        given = [*exchange(1, "one"), row(10, run="two"), row(11, "AI", "two", calls=["a"])]
        given += [row(12, "AI", "two"), *exchange(20, "three"), reported(30, state, "a", "two")]
        around = ["m1", "m2", "m3", "m4", "m10", "m20", "m21", "m22", "m23"]
        assert covered(given, now=START + timedelta(seconds=400)) == around
        assert covered(given, now=START + timedelta(days=400)) == [*around[:5], "m12", *around[5:]]
        assert covered(given, now=START + timedelta(days=400), keep_recent=1, target="tools") == [
            "m2",
            "m3",
            "m21",
            "m22",
        ]

    def test_what_they_take_counts_as_staying(self) -> None:
        """So that less of all else stays."""
        given = [row(1, "AI", "two", calls=["a"]), reported(2, "working", "a", "two"), *exchange(20, "three")]
        late = START + timedelta(days=400)
        assert covered(given, now=late, keep_tokens=6) == []
        assert covered(given, now=late, keep_tokens=4, cost=lambda found: 3 if found["id"] == "m1" else 1) == [
            *("m20", "m21", "m22"),
        ]

    def test_where_its_run_has_to_go(self) -> None:
        """Since no later tail could find a row of it, and the rest would be shown in another order."""
        given = [
            row(1, _id="foreign-1", timestamp=START + timedelta(seconds=5)),
            row(2, "AI", calls=["a"], timestamp=START + timedelta(seconds=3)),
            row(3, "AI", timestamp=START + timedelta(seconds=1)),
            reported(9, "working", "a"),
        ]
        assert covered(given, keep_recent=1) == ["m1", "m3"]

    @pytest.mark.parametrize("state", ["failed", "cancelled"])
    def test_one_of_which_nothing_is_to_come(self, state: str) -> None:
        """Goes as one that has its result, and with it what says so."""
        given = [
            row(10, run="two"),
            row(11, "AI", "two", calls=["a"]),
            reported(12, state, "a", "two"),
            row(13, "AI", "two"),
        ]
        assert covered(given, now=START + timedelta(seconds=400)) == ["m10", "m11", "m12", "m13"]
        assert covered(given, now=START + timedelta(seconds=400), target="tools") == ["m11", "m12"]

    def test_one_whose_result_has_come(self) -> None:
        """Goes, whatever was said of it before; also where the result is in another run."""
        given = [row(10, run="two"), row(11, "AI", "two", calls=["a"]), reported(12, "working", "a", "two")]
        for run in ("two", "three"):
            answered = [*given, row(20, "TOOL", run, answers="a"), row(21, "AI", "two")]
            assert {*covered(answered)} == {"m10", "m11", "m12", "m20", "m21"}

    def test_one_that_is_said_to_be_done(self) -> None:
        """Is awaited as any other: for a day."""
        given = [row(11, "AI", "two", calls=["a"]), reported(12, "completed", "a", "two")]
        assert covered(given, now=START + timedelta(seconds=400)) == []
        assert covered(given, now=START + timedelta(days=2)) == ["m11", "m12"]


class TestTail:
    """The tail after a compaction."""

    @given(st.lists(st.integers(0, 9_000), max_size=300), st.integers(0, 300), st.integers(0, 10_000))
    def test_lists_few(self, seconds: list[int], many: int, second: int) -> None:
        """Two hundred, or what is within two minutes; and never leaves out what is not covered."""
        given = [row(at, _id=object_id(at, number)) for number, at in enumerate(sorted(seconds))]
        tail = tail_after(WHOLE, given, given[:many], START + timedelta(seconds=second))
        assert [tail.includes(found["_id"]) for found in given] == [place >= many for place in range(len(given))]
        edge = min([second, *sorted(seconds)[many:]])
        near = sum(at >= edge - 120 for at in sorted(seconds)[:many])
        assert len(tail.without) <= max(200, near)


@given(rows())
def test_only_runs_without_input_are_cut(given_rows: list[Row]) -> None:
    """And a run that is known to be over is compacted, whatever is left of it."""
    now = START + timedelta(seconds=10_000)
    cut = headless_runs(given_rows, now=now, idle=timedelta(days=1))
    asked = {each["run_id"] for each in given_rows if each["role"] == "HUMAN"}
    assert not asked & {*cut}
    _, kept = planned(given_rows, now=now, idle=timedelta(days=1), known=KnownRuns(over=cut))
    # A result may answer a call of a run that stays.
    assert not any(runs <= {*cut} for runs in runs_beside(given_rows, kept))
