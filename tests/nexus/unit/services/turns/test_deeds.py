"""What tools did, in words within a weight."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.turns import ToolOutcome
from nexus.services.turns.deeds import Deed, deeds, read_result, tools_used
from nexus.services.turns.sentences import one_line, weight
from tests.nexus.unit.services.turns.test_outline import documents


def outcome(name: str = "f", arguments: Any = None, result: Any = None, success: bool | None = None) -> ToolOutcome:
    """A call and what came of it."""
    return ToolOutcome(name=name, arguments=arguments, success=success, result=result)


def told(*outcomes: ToolOutcome, room: int = 300) -> str:
    """The sentence on these calls."""
    return Deed(outcomes[0].name, outcomes).told(room)


class TestOneCall:
    """Its arguments, and what came of it."""

    @pytest.mark.parametrize(
        ("call", "sentence"),
        [
            (
                outcome("find", {"q": "SGLT2", "limit": 5}, {"total": 156}, True),
                "find (q: SGLT2; limit: 5) gave total: 156",
            ),
            (outcome("find", {}, "15 reviews are left.", None), "find gave 15 reviews are left."),
            (outcome("find", "look for beans", 0, True), "find (look for beans) gave 0"),
            (outcome("find", {"q": ""}, "", True), "find (q: none) gave an empty result"),
            (outcome("find", None, [], True), "find gave none"),
            (outcome("load", {"pmid": 5}, "time-out after 30 s", False), "load (pmid: 5) failed: time-out after 30 s"),
            (outcome("load", {}, {"code": 404, "error": "not found"}, False), "load failed: not found"),
            (outcome("load", {}, {"code": 404}, False), "load failed: code: 404"),
            (outcome("load", {}, "", False), "load failed"),
            (outcome("load", {"pmid": 5}), "load (pmid: 5) has no result"),
            (outcome("\u200b\n", {}, 1), "unknown gave 1"),
            (outcome("a\nb", {"x\ny": "1\n2"}, "3\n4"), "a b (x y: 1 2) gave 3; 4"),
        ],
        ids=repr,
    )
    def test_what_is_told(self, call: ToolOutcome, sentence: str) -> None:
        """Success with what it gave, failure with its reason, loss as such."""
        assert told(call) == sentence

    def test_results_that_are_texts_of_json(self) -> None:
        """Are read once, and told as documents."""
        call = read_result(outcome("f", {}, '{"error": "gone", "ci": [0.80, 0.93]}', False))
        assert call.result == {"error": "gone", "ci": ["0.80", "0.93"]}
        assert told(call) == "f failed: gone"

    def test_little_room(self) -> None:
        """Is shared by arguments and results."""
        call = outcome(
            "fetch", {"url": "https://a.example/" + "x" * 200}, "A long story. " * 30 + "156 articles.", True
        )
        assert told(call, room=100) == (
            "fetch (url: https://a.example/xxxxxxxxxxxxxxxxx...) gave A long story. ... 156 articles."
        )
        assert told(call, room=20) == "fetch gave A long..."
        assert told(call, room=12) == "fetch gave a result"


class TestSeveralCalls:
    """Of one tool, told together."""

    def test_many(self) -> None:
        """The first three are told; how many more there are, failed, and came to nothing, is counted."""
        calls = [outcome("find", {"q": f"topic {n}"}, {"hits": n}, n % 4 != 3) for n in range(12)]
        assert told(*calls, *[outcome("find", {"q": "last"})] * 2) == (
            "find 14 times (q: topic 0 | q: topic 1 | q: topic 2 | 11 more) gave hits: 0 | hits: 1 | hits: 2 | 6 more; "
            "3 failed: hits: 3; 2 without a result"
        )

    def test_little_room(self) -> None:
        """Leaves the counts."""
        calls = [outcome("find", {"q": "x" * 90}, "y" * 90, True)] * 5_000
        assert told(*calls, room=40) == "find 5,000 times gave 5,000 results"

    def test_short_ones_leave_room_to_long_ones(self) -> None:
        """So that nothing is cut that need not be."""
        calls = [outcome("f", {}, text, True) for text in ("1", "2", "three and a few more words")]
        assert told(*calls, room=60) == "f 3 times gave 1 | 2 | three and a few more words"


class TestDeeds:
    """Which calls are told together."""

    def test_few(self) -> None:
        """Each by itself, in order."""
        calls = [outcome("f"), outcome("g"), outcome("f")]
        assert deeds(calls, 3) == [Deed(call.name, (call,)) for call in calls]
        assert deeds([], 3) == []

    def test_many(self) -> None:
        """All of a tool together, in the order in which tools were first called."""
        f, g = outcome("f"), outcome("g")
        assert deeds([g, f, g, f], 3) == [Deed("g", (g, g)), Deed("f", (f, f))]

    def test_many_tools(self) -> None:
        """Those beyond the limit are told together, and counted."""
        calls = [outcome(f"t{number // 2}") for number in range(10)]
        assert deeds(calls, 3) == [
            Deed("t0", tuple(calls[:2])),
            Deed("t1", tuple(calls[2:4])),
            Deed("3 other tools", tuple(calls[4:])),
        ]

    @given(st.lists(st.builds(outcome, st.sampled_from("abcdefgh")), max_size=30), st.integers(2, 8))
    def test_no_call_is_left_out(self, calls: list[ToolOutcome], most: int) -> None:
        """And there are not more deeds than allowed."""
        found = deeds(calls, most)
        assert len(found) <= most
        assert sorted(call.name for deed in found for call in deed.outcomes) == sorted(call.name for call in calls)


class TestToolsUsed:
    """In a sentence."""

    def test_counts(self) -> None:
        """How often each was called, and how many calls came to nothing."""
        good, bad, lost = outcome("find", {}, 1, True), outcome("load", {}, 1, False), outcome("find", {})
        assert tools_used([], 100) == ""
        assert tools_used([good], 100) == "Used find."
        assert tools_used([good, bad, good, lost], 100) == (
            "Used find 3 times, load (of 4 calls 1 failed, 1 without a result)."
        )

    def test_little_room(self) -> None:
        """At least one is named, and the others are counted."""
        calls = [outcome(f"tool_{number}", {}, 1) for number in range(2_000)]
        assert tools_used(calls, 60) == "Used tool_0, tool_1, tool_2, tool_3 and 1,996 more."
        assert tools_used(calls, 0) == "Used tool_0 and 1,999 more."


@given(
    st.lists(
        st.builds(outcome, st.text(max_size=9), documents, documents, st.none() | st.booleans()), min_size=1, max_size=5
    ),
    st.integers(60, 400),
)
def test_any_calls(calls: list[ToolOutcome], room: int) -> None:
    """What is told of them is one line that UTF-8 can carry, not much heavier than allowed."""
    deed = Deed(calls[0].name, tuple(map(read_result, calls)))
    for line in (deed.told(room), deed.called(room), deed.resulted(room)):
        assert line == one_line(line)
        assert weight(line) <= room + 40
        line.encode()
