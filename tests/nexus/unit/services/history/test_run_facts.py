"""The facts in the rows of a run: messages, calls with their results, whether it is over (contract §2, §6)."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.turns import ThinkingRound, TokenUsage, ToolOutcome
from nexus.services.history.run_facts import TurnFacts, read_facts
from tests.nexus.unit.services.turns.runs import Run


def outcomes(run: Run) -> list[tuple[str, Any, bool | None, Any]]:
    """The calls and what came of them."""
    return [(item.name, item.arguments, item.success, item.result) for item in run.facts.outcomes]


def search() -> Run:
    """A run with two calls of one message, whose results come the other way round."""
    run = Run("Find reviews.").calls(("a", "search", {"q": "SGLT2", "limit": 5}), ("b", "count", {}), text="Looking.")
    return run.result("b", {"total": 156}, "count").result("a", "nothing", "search", status="error")


class TestWhatWasSaid:
    """Everything in its order, as it was recorded."""

    def test_rows_of_one_moment(self) -> None:
        """The answer comes last, whichever replica stored it first."""
        rows = [{**row, "timestamp": "2026-01-01T00:00:00Z"} for row in search().answer("There are 156.").rows]
        for order in (rows, rows[::-1], [rows[-1], *rows[:-1]]):
            facts = read_facts([{**row, "_id": f"{index:024x}"} for index, row in enumerate(order)])
            assert (facts.answer, facts.finished) == ("There are 156.", True)

    def test_a_run_with_tools(self) -> None:
        """The question, the calls, the results, the answer; and what the turn brings along."""
        rounds = (ThinkingRound(round_number=1, content="Search first."),)
        facts = replace(search().answer("There are 156.").facts, goal="reviews", workspace="a shelf", rounds=rounds)
        assert [(item.role, item.text, item.tool_name, item.success) for item in facts.messages] == [
            ("user", "Find reviews.", "", None),
            ("assistant", "Looking.", "", None),
            ("tool", '{"total":156}', "count", True),
            ("tool", "nothing", "search", False),
            ("assistant", "There are 156.", "", None),
        ]
        assert [call.raw_arguments for call in facts.messages[1].calls] == ['{"q": "SGLT2", "limit": 5}', "{}"]
        assert (facts.goal, facts.workspace, facts.rounds) == ("reviews", "a shelf", rounds)
        assert (facts.answer, facts.finished) == ("There are 156.", True)
        assert facts.message_ids == ("m1", "m2", "m3", "m4", "m5")

    @pytest.mark.parametrize(
        "row",
        [None, 7, "row", [], {}, {"role": None}, {"role": "assistant", "content": "x"}, {"role": ["AI"], "id": "x"}],
        ids=str,
    )
    def test_what_is_no_row(self, row: Any) -> None:
        """Is left out, and changes nothing else."""
        rows = search().answer("156").rows
        assert read_facts([*rows[:2], row, *rows[2:]]).outcomes == read_facts(rows).outcomes


class TestOrder:
    """Whatever the order in which rows come."""

    @given(st.randoms(use_true_random=False), st.lists(st.integers(0, 4), max_size=6))
    def test_rows_in_any_order_and_again(self, chance: random.Random, again: list[int]) -> None:
        """The facts are the same, and each message is there once."""
        rows = search().answer("156").rows
        shuffled = [*rows, *(dict(rows[index]) for index in again)]
        chance.shuffle(shuffled)
        found, expected = read_facts(shuffled), read_facts(rows)
        assert replace(found, messages=()) == replace(expected, messages=())
        assert [item.row for item in found.messages] == [item.row for item in expected.messages] == rows

    def test_clocks_that_are_behind(self) -> None:
        """Nothing comes before the question; what comes after goes by its time."""
        run = search().answer("156")
        run.rows[1]["timestamp"] = "2020-01-01T00:00:00Z"
        run.rows[4]["timestamp"] = "2026-01-05T09:10:00+00:00"
        assert run.facts.message_ids == ("m1", "m2", "m3", "m4", "m5")


class TestWhetherItIsOver:
    """Its answer is known, and every call is answered."""

    def test_a_result_after_the_answer(self) -> None:
        """Counts as any other."""
        run = Run("q").calls(("a", "f", {})).answer("Done.").result("a", 1)
        assert (run.facts.finished, run.facts.answer) == (True, "Done.")

    def test_before_the_answer(self) -> None:
        """Nothing is known yet; a model that makes calls has not answered."""
        for run in (Run(), Run("q"), search(), Run("q").calls(("a", "f", {}), text="I will look.")):
            assert (run.facts.finished, run.facts.answer) == (False, "")

    def test_an_answer_before_more_calls(self) -> None:
        """Was none."""
        assert Run("q").answer("Done.").calls(("a", "f", {})).result("a", 1).facts.answer == ""

    def test_thought_is_no_answer(self) -> None:
        """But it was said."""
        run = Run("q").answer("I should search.", phase="thinking")
        assert (run.facts.finished, run.facts.answer) == (False, "")
        assert run.facts.messages[1].text == "I should search."
        assert run.answer("Done.").facts.answer == "Done."
        assert run.answer("Was that right?", phase="thinking").facts.answer == "Done."


class TestCalls:
    """As they are stored, in every form."""

    def test_arguments(self) -> None:
        """Parsed where they are a JSON object, whole or broken off; as text under a name of its own; else none."""
        given_arguments = ['{"b": 1, "a": [2]}', '{"q": "unfin', "look for beans", "[1]", "", " null ", "{}"]
        run = Run("q").calls(*((str(n), "f", text) for n, text in enumerate(given_arguments)))
        assert [item.arguments for item in run.facts.outcomes] == [
            {"b": 1, "a": [2]},
            {"q": "unfin"},
            {"arguments": "look for beans"},
            {"arguments": "[1]"},
            {},
            {},
            {},
        ]

    @pytest.mark.parametrize(
        ("metadata", "success"),
        [
            ({"status": "success", "execution_success": True}, True),
            ({"status": "success"}, True),
            ({"status": "success", "execution_success": False}, False),
            ({"status": "error", "execution_success": False}, False),
            ({"status": "timeout"}, False),
            ({"status": "unknown", "execution_success": False}, None),
            ({"status": "unknown", "execution_success": True}, True),
            ({"status": ["x"], "execution_success": "yes"}, False),
            ({}, None),
        ],
        ids=str,
    )
    def test_success(self, metadata: dict[str, Any], success: bool | None) -> None:
        """As the result says it; what is recorded of one that says nothing is no failure."""
        run = Run("q").add("TOOL", "x", **metadata)
        assert (run.facts.outcomes[0].success, run.facts.messages[1].success) == (success, success)


class TestTokens:
    """As results reported them."""

    def test_by_phase(self) -> None:
        """Those of thought apart from the others; the total where it is given, else both kinds together."""
        run = Run("q").answer("hm", phase="thinking", usage={"total_tokens": 30, "prompt_tokens": 1})
        run.calls(("a", "f", {}), usage={"prompt_tokens": 10, "completion_tokens": 5}).result("a", 1)
        run.answer("x", usage={"prompt_tokens": 7})
        run.rows[3]["metadata"]["usage"] = {"total_tokens": 1_000}
        assert run.facts.usage == TokenUsage(thinking=30, action=22, total=52)

    @pytest.mark.parametrize(
        "usage",
        [None, 5, [], {"total_tokens": "5"}, {"total_tokens": -5}, {"total_tokens": True}, {"prompt_tokens": 1.5}],
        ids=str,
    )
    def test_malformed(self, usage: Any) -> None:
        """Counts as nothing."""
        assert Run("q").answer("x", usage=usage).facts.usage == TokenUsage()


def test_very_many_calls() -> None:
    """Ten thousand of them, half of the results without an id, are matched one to one."""
    count = 10_000
    run = Run("q").calls(*((f"c{n}" if n % 2 else "", "f", {"n": n}) for n in range(count)))
    for number in range(count):
        run.result(f"c{number}" if number % 2 else "", number, "f")
    facts = run.answer("Done.").facts
    assert facts.finished
    assert facts.outcomes == tuple(
        ToolOutcome(name="f", arguments={"n": number}, success=True, result=number) for number in range(count)
    )


# The calls of a message, or a result.
Step = tuple[tuple[str, str, dict[str, Any]], ...] | dict[str, str]


def call(call_id: str, name: str = "f") -> tuple[str, str, dict[str, Any]]:
    """A call."""
    return call_id, name, {}


def came(call_id: str, content: str, tool: str = "f") -> dict[str, str]:
    """A result."""
    return {"call_id": call_id, "content": content, "tool_name": tool}


def run_of(steps: Iterable[Step]) -> TurnFacts:
    """The facts of a run in which the model makes these calls, answered by these results, and is done."""
    run = Run("q")
    for step in steps:
        if isinstance(step, dict):
            run.add("TOOL", step["content"], call_id=step["call_id"], tool_name=step["tool_name"])
        else:
            run.calls(*step)
    return run.answer("Done.").facts


def matched(*steps: Step) -> tuple[list[tuple[str, str | None]], bool]:
    """Names and results, and whether every call has one."""
    facts = run_of(steps)
    return [(item.name, item.result) for item in facts.outcomes], facts.finished


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(
            [(call("a"), call("b", "g")), came("b", "of b"), came("a", "of a", "g")],
            ([("f", "of a"), ("g", "of b")], True),
            id="by id, whatever tool the result names",
        ),
        pytest.param(
            [(call("", "f"), call("", "g"), call("", "g")), came("", "1", "g"), came("", "2", "g"), came("", "3", "h")],
            ([("f", "3"), ("g", "1"), ("g", "2")], True),
            id="without an id, the oldest open call of the tool, else the oldest open one",
        ),
        pytest.param(
            [(call("a"),), (call("a", "g"),), came("a", "x")],
            ([("f", None), ("g", "x")], False),
            id="the newest message that uses an id, an older one stays open",
        ),
        pytest.param(
            [(call("a"),), came("a", "x"), (call("a", "g"),), came("a", "y")],
            ([("f", "x"), ("g", "y")], True),
            id="an id that is used again",
        ),
        pytest.param(
            [(call("a"), call("a", "g")), came("a", "x"), came("a", "y")],
            ([("f", "x"), ("g", "y")], True),
            id="an id that is used twice in a message",
        ),
        pytest.param([came("a", "x"), (call("a"),)], ([("f", "x")], True), id="a result before its call"),
        pytest.param([came("", "x"), (call(""),)], ([("f", "x")], True), id="a result without an id before its call"),
        pytest.param(
            [(call("a"),), came("a", "x"), came("a", "y")], ([("f", "x")], True), id="a second result says nothing new"
        ),
        pytest.param(
            [(call("a"),), (call("a", "g"),), came("a", "x"), came("a", "y")],
            ([("f", None), ("g", "x")], False),
            id="a second result answers no older call",
        ),
        pytest.param(
            [came("", "early"), (call("a"),), came("z", "other", ""), (call("b", "g"),), came("b", "of b")],
            ([("f", "early"), ("unknown", "other"), ("g", "of b")], True),
            id="a result of no call stands by itself, where it came",
        ),
        pytest.param(
            [(call("a"),), came("z", "other", "h")],
            ([("f", None), ("h", "other")], False),
            id="and leaves open calls open",
        ),
    ],
)
def test_matching(steps: list[Step], expected: tuple[list[tuple[str, str | None]], bool]) -> None:
    """Each result answers the call that it most likely belongs to."""
    assert matched(*steps) == expected


_ids = st.sampled_from(["", "a", "b", "c"])
_steps = st.lists(
    st.lists(st.builds(call, _ids, st.sampled_from("fg")), max_size=3).map(tuple)
    | st.builds(came, _ids, st.uuids().map(str), st.sampled_from(["f", "g", "h", ""])),
    max_size=12,
)


@given(_steps)
def test_each_result_once_and_no_call_is_lost(steps: list[Step]) -> None:
    """Each call has its place; a result is there at most once, and always if it names no call."""
    facts = run_of(steps)
    calls = [item for step in steps if not isinstance(step, dict) for item in step]
    results = [step for step in steps if isinstance(step, dict)]
    shown = [item.result for item in facts.outcomes if item.result is not None]
    assert [item.name for item in facts.outcomes if item.arguments is not None] == [name for _, name, _ in calls]
    assert len(shown) == len(set(shown))
    assert {item["content"] for item in results if not item["call_id"]} <= set(shown)
    assert facts.finished == all(item.result is not None for item in facts.outcomes)
