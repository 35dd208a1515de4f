"""What tools did, in words within a weight."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.turns import ToolOutcome
from nexus.services.text.digest import (
    call_and_result,
    call_with_arguments,
    describe_calls,
    read_result,
    result_of_call,
    tools_used,
)
from nexus.services.text.sentences import one_line, weight
from tests.nexus.unit.services.text.test_digest import documents

pytestmark = pytest.mark.heavy


def outcome(name: str = "f", arguments: Any = None, result: Any = None, success: bool | None = None) -> ToolOutcome:
    """A call and what came of it."""
    return ToolOutcome(name=name, arguments=arguments, success=success, result=result)


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
        assert call_and_result(call, 300) == sentence

    def test_errors_of_servers_of_tools(self) -> None:
        """Are failures with what they say as the reason, whether or not the call itself succeeded."""
        result = {"content": [{"type": "text", "text": "Error from server: no index"}], "isError": True}
        for success in (True, False, None):
            assert (
                call_and_result(read_result(outcome("f", {}, result, success)), 300)
                == "f failed: Error from server: no index"
            )
        assert call_and_result(read_result(outcome("f", {}, {**result, "isError": False}, True)), 300) == (
            "f gave Error from server: no index"
        )

    def test_little_room(self) -> None:
        """Is shared by arguments and results."""
        call = outcome(
            "fetch", {"url": "https://a.example/" + "x" * 200}, "A long story. " * 30 + "156 articles.", True
        )
        assert call_and_result(call, 100) == (
            "fetch (url: https://a.example/xxxxxxxxxxxxxxxxx...) gave A long story. ... 156 articles."
        )
        assert call_and_result(call, 20) == "fetch gave A long..."
        assert call_and_result(call, 12) == "fetch gave a result"


class TestSeveralCalls:
    """As many as there is room for."""

    def test_all(self) -> None:
        """Are told in their order where they fit."""
        calls = [outcome("find", {"q": f"topic {n}"}, {"hits": n}, True) for n in range(12)]
        assert describe_calls(calls, call_and_result, 600) == (
            [f"find (q: topic {n}) gave hits: {n}" for n in range(12)],
            [],
        )
        assert describe_calls([], call_and_result, 600) == ([], [])

    def test_those_with_figures(self) -> None:
        """Are told before others, but for the last; a failure has none that counts, whatever its reason says."""
        calls = [outcome("find", {}, "nothing of any use to anybody", True) for _ in range(40)]
        calls[5] = outcome("find", {}, "HR 0.86, 95% CI 0.74-0.99", True)
        calls[6] = outcome("find", {}, "time-out after 30 s", False)
        sentences, others = describe_calls(calls, call_and_result, 250)
        assert sentences == ["find gave HR 0.86, 95% CI 0.74-0.99", *["find gave nothing of any use to anybody"] * 2]
        assert others == [*calls[:5], *calls[6:38]]

    def test_little_room(self) -> None:
        """Is enough for one."""
        calls = [*[outcome("find", {"q": "x" * 90}, "y" * 90, True)] * 2, outcome("load", {}, 7, True)]
        assert describe_calls(calls, call_and_result, 200) == (["load gave 7"], calls[:2])

    @given(
        st.lists(st.builds(outcome, st.sampled_from("abc"), st.none() | documents, documents), max_size=30),
        st.integers(280, 1_500),
    )
    def test_no_call_is_lost(self, calls: list[ToolOutcome], room: int) -> None:
        """Each is told or among the others, and all that is told has room."""
        sentences, others = describe_calls(calls, call_and_result, room)
        assert len(sentences) + len(others) == len(calls)
        assert bool(sentences) == bool(calls)
        assert sum(weight(sentence) + 2 for sentence in sentences) <= room + 40


class TestToolsUsed:
    """In a sentence."""

    def test_counts(self) -> None:
        """How often each was call_with_arguments, and how many calls came to nothing."""
        good, bad, lost = outcome("find", {}, 1, True), outcome("load", {}, 1, False), outcome("find", {})
        assert tools_used([], 100) == ""
        assert tools_used([good], 100) == "Used find."
        assert tools_used([good], 100, "Also used") == "Also used find."
        assert tools_used([good, bad, good, lost], 100) == (
            "Used find 3 times, load (of 4 calls 1 failed, 1 without a result)."
        )

    def test_little_room(self) -> None:
        """At least one is named, and the others are counted."""
        calls = [outcome(f"tool_{number}", {}, 1) for number in range(2_000)]
        assert tools_used(calls, 60) == "Used tool_0, tool_1, tool_2, tool_3 and 1,996 more."
        assert tools_used(calls, 0) == "Used tool_0 and 1,999 more."


@given(st.builds(outcome, st.text(max_size=9), documents, documents, st.none() | st.booleans()), st.integers(60, 400))
def test_any_call(call: ToolOutcome, room: int) -> None:
    """What is told of it is one line that UTF-8 can carry, not much heavier than allowed."""
    for teller in (call_and_result, call_with_arguments, result_of_call):
        line = teller(read_result(call), room)
        assert line == one_line(line)
        assert weight(line) <= room + 40
        line.encode()
