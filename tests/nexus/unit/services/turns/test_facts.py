"""What is known of a turn from the rows of its run (CONTRACT §2, §6)."""

import random
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
        facts = read_facts(search().answer("There are 156.").rows, goal="reviews", workspace="a shelf", rounds=rounds)
        assert [(item.speaker, item.text, item.tool, item.success) for item in facts.said] == [
            ("user", "Find reviews.", "", None),
            ("assistant", "Looking.", "", None),
            ("tool", '{"total":156}', "count", True),
            ("tool", "nothing", "search", False),
            ("assistant", "There are 156.", "", None),
        ]
        assert [call.raw_arguments for call in facts.said[1].calls] == ['{"q": "SGLT2", "limit": 5}', "{}"]
        assert (facts.goal, facts.workspace, facts.rounds) == ("reviews", "a shelf", rounds)
        assert (facts.input, facts.answer, facts.finished) == ("Find reviews.", "There are 156.", True)
        assert facts.messages == ("m1", "m2", "m3", "m4", "m5")

    def test_texts_are_not_escaped(self) -> None:
        """Whoever shows them does that."""
        text = "</human_input>\r\n[THIS_MOMENT] \u200b\ud800"
        assert Run(text).answer(text).facts.answer == text

    def test_no_rows(self) -> None:
        """Nothing is known."""
        assert read_facts([]) == TurnFacts()

    @pytest.mark.parametrize(
        "row",
        [None, 7, "row", [], {}, {"role": None}, {"role": "assistant", "content": "x"}, {"role": ["AI"], "id": "x"}],
        ids=str,
    )
    def test_what_is_no_row(self, row: Any) -> None:
        """Is left out, and changes nothing else."""
        rows = search().answer("156").rows
        assert read_facts([*rows[:2], row, *rows[2:]]).outcomes == read_facts(rows).outcomes

    @pytest.mark.parametrize("metadata", [None, 5, "x", [], {"tool_calls": "x"}, {"tool_calls": [None, "x"]}], ids=str)
    def test_metadata_of_no_use(self, metadata: Any) -> None:
        """Says nothing of calls, of success or of tokens."""
        run = Run("q").add("AI", "x").add("TOOL", {"a": 1})
        for row in run.rows:
            row["metadata"] = metadata
        assert run.facts.answer == "x"
        assert outcomes(run) == [("unknown", None, None, {"a": 1})]
        assert run.facts.usage == TokenUsage()

    def test_system_rows_and_those_of_sub_agents(self) -> None:
        """Are no part of the turn."""
        run = search()
        run.add("SYSTEM", "x").add("AI", "mine alone", sub_agent_internal=True, agent_id="scout")
        assert len(run.answer("156").facts.said) == 5

    def test_contents_that_are_no_text(self) -> None:
        """Are told as text in what was said; a result stays what it is."""
        run = Run([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]).result("", None).answer("")
        assert [item.text for item in run.facts.said] == ["a\nb", "", ""]
        assert outcomes(run) == [("unknown", None, True, "")]

    def test_ids_that_are_no_text(self) -> None:
        """A row without an id is said, and not named."""
        run = Run("q").answer("x")
        run.rows[0]["id"] = None
        assert run.facts.input == "q"
        assert run.facts.messages == ("m2",)


class TestOrder:
    """Whatever the order in which rows come."""

    @given(st.randoms(use_true_random=False), st.lists(st.integers(0, 4), max_size=6))
    def test_rows_in_any_order_and_again(self, chance: random.Random, again: list[int]) -> None:
        """The facts are the same, and each message is there once."""
        rows = search().answer("156").rows
        shuffled = [*rows, *(dict(rows[index]) for index in again)]
        chance.shuffle(shuffled)
        assert read_facts(shuffled) == read_facts(rows)

    def test_clocks_that_are_behind(self) -> None:
        """Nothing comes before the question; what comes after goes by its time."""
        run = search().answer("156")
        run.rows[1]["timestamp"] = "2020-01-01T00:00:00Z"
        run.rows[4]["timestamp"] = "2026-01-05T09:10:00+00:00"
        assert run.facts.messages == ("m1", "m2", "m3", "m4", "m5")

    def test_rows_without_a_time(self) -> None:
        """Stay where they were stored."""
        run = search().answer("156")
        for row in run.rows:
            row["timestamp"] = None
        assert read_facts(run.rows[::-1]).messages == ("m1", "m2", "m3", "m4", "m5")


class TestWhetherItIsOver:
    """Its answer is known, and every call is answered."""

    def test_while_calls_are_open(self) -> None:
        """It is not, whatever the model says meanwhile."""
        run = Run("q").calls(("a", "f", {}), ("b", "f", {})).result("a", 1)
        assert not run.facts.finished
        assert not run.answer("Done.").facts.finished
        assert run.facts.answer == "Done."

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

    def test_an_empty_answer(self) -> None:
        """Is one, where it was recorded."""
        assert Run("q").answer("").facts.finished

    def test_thought_is_no_answer(self) -> None:
        """But it was said."""
        run = Run("q").answer("I should search.", phase="thinking")
        assert (run.facts.finished, run.facts.answer) == (False, "")
        assert run.facts.said[1].text == "I should search."
        assert run.answer("Done.").facts.answer == "Done."
        assert run.answer("Was that right?", phase="thinking").facts.answer == "Done."


class TestCalls:
    """As they are stored, in every form."""

    def test_arguments(self) -> None:
        """Parsed where they are a JSON object, whole or broken off; as text where they are none; else none."""
        given_arguments = ['{"b": 1, "a": [2]}', '{"q": "unfin', "look for beans", "[1]", "", " null ", "{}"]
        run = Run("q").calls(*((str(n), "f", text) for n, text in enumerate(given_arguments)))
        assert [item.arguments for item in run.facts.outcomes] == [
            {"b": 1, "a": [2]},
            {"q": "unfin"},
            "look for beans",
            "[1]",
            {},
            {},
            {},
        ]

    def test_the_flat_form(self) -> None:
        """With arguments as an object, as text, or without."""
        calls = [{"id": "a", "name": "f", "arguments": {"x": 1}}, None, {"id": 7, "name": "g", "arguments": "{x"}, {}]
        run = Run("q").add("AI", "", tool_calls=calls).result("7", "seven")
        assert outcomes(run) == [
            ("f", {"x": 1}, None, None),
            ("g", "{x", True, "seven"),
            ("unknown", {}, None, None),
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
        assert (run.facts.outcomes[0].success, run.facts.said[1].success) == (success, success)


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

    def test_more_than_there_can_be(self) -> None:
        """Stays a number that a store can keep."""
        run = Run("q").answer("x", usage={"total_tokens": 2**63 - 1}).answer("y", usage={"total_tokens": 2**63 - 1})
        assert run.facts.usage.total == 2**53


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
