"""What a context does not show is named in its manifest and counted (contract §8, §11)."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.adapters.prometheus import PrometheusMetrics
from nexus.core.models import LeftOut, Why
from nexus.services.context.blocks import MOST_LEFT_OUT, listed
from nexus.services.context.budget import Budget
from nexus.services.context.memory_blocks import Remembered
from nexus.services.context.run_prefix import RunPrefix
from nexus.services.context.thinking import ThinkingInput, assemble_thinking, fit_thinking
from nexus.services.history.messages import HistoryMessage
from nexus.services.history.transcript import admit
from nexus.services.text.tokens import Measure
from nexus.services.turns.documents import RememberedTurn
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.unit.services.parts import opened, past, request

EMPTY = [{"id": "blank", "role": "AI", "content": " \u200b"}, {"id": "said", "role": "AI", "content": "on it"}]


def entries(content: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The entries of an answer's manifest."""
    return [(each["what"], each["where"], each["why"]) for each in content["context"]["left_out"]]


class TestGate:
    """The validity gate."""

    def test_empty_and_unmatched(self) -> None:
        """Each has an entry, and no note; without an id its place is the list."""
        messages = [
            HistoryMessage("user", "hi", source="m1", run_id="r"),
            HistoryMessage("assistant", "", source="m2", run_id="r"),
            HistoryMessage("tool", "found", source="m3", run_id="r", call_id="nobody"),
            HistoryMessage("tool", "found", run_id="r"),
        ]
        made = admit(messages, "history")
        assert made.left_out == [
            ("message", "m2", Why.EMPTY),
            ("tool result", "m3", Why.UNMATCHED),
            ("tool result", "history", Why.UNMATCHED),
        ]
        assert made.repairs == []

    def test_what_was_left_out_when_it_was_read(self) -> None:
        """Goes on with the message, in order, whether that is shown or not."""
        image, thought = LeftOut("image", "m1", Why.MEDIA), LeftOut("thinking", "m2", Why.THINKING)
        messages = [
            HistoryMessage("user", "[image: image/png, 20 KB]", source="m1", left_out=(image,)),
            HistoryMessage("assistant", "", source="m2", left_out=(thought,)),
        ]
        assert admit(messages, "history").left_out == [image, thought, ("message", "m2", Why.EMPTY)]


@given(st.integers(0, 3 * MOST_LEFT_OUT))
def test_as_many_as_are_listed(count: int) -> None:
    """At most 100, of which the last stands for all that are not listed."""
    made = listed([LeftOut("image", f"m{number}", Why.MEDIA) for number in range(count)])
    assert len(made) == min(count, MOST_LEFT_OUT)
    assert all(set(each) == {"what", "where", "why"} and all(each.values()) for each in made)
    named = [each for each in made if each["what"] == "image"]
    assert [each["where"] for each in named] == [f"m{number}" for number in range(len(named))]
    assert len(named) == count if count <= MOST_LEFT_OUT else made[-1]["what"] == f"{count - len(named)} more"


class TestBuild:
    """From the request to the answer."""

    @pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
    async def test_usually_nothing(self, layout: str) -> None:
        """The list is there all the same."""
        metrics = RecordingMetrics()
        async with opened(metrics=metrics) as parts:
            content = await parts.build(request(run_metadata={"layout": layout}))
        assert content["context"]["left_out"] == []
        assert not metrics.counted

    @pytest.mark.parametrize("form", ["openai", "anthropic", "gemini"])
    async def test_in_every_build_and_format(self, form: str) -> None:
        """Of the kept beginning as of the later messages, and each build counts what it leaves out."""
        metrics = RecordingMetrics()
        old = ("older messages", "SHARED_MEMORY", Why.TOO_MANY.value)
        blank = ("message", "blank", Why.EMPTY.value)
        async with opened(metrics=metrics, settings=settings_with(history_size=2)) as parts:
            parts.store.plant("messages", past(5))
            first = await parts.build(request(run_metadata={"format": form}))
            parts.store.plant("messages", [])
            later = await parts.build(request(request_id="msg_2", later=EMPTY, run_metadata={"format": form}))
        assert entries(first) == [old]
        assert entries(later) == [old, blank]
        assert metrics.counted == {Why.TOO_MANY: 2, Why.EMPTY: 1}

    @pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
    async def test_results_beside_the_input(self, layout: str) -> None:
        """What is left out of them is named once, whether the layout has a place for them or not."""
        thought, said = {"type": "thinking", "thinking": "x"}, {"type": "text", "text": "see"}
        result = {"type": "tool_result", "tool_use_id": "c", "content": [said, thought]}
        async with opened() as parts:
            content = await parts.build(
                request([result, {"type": "odd", "x": 1}, said], run_metadata={"layout": layout})
            )
        assert sorted(what for what, _, _ in entries(content)) == ["odd", "thinking", "tool result"]

    async def test_more_than_are_listed_are_counted(self) -> None:
        """All of them."""
        metrics = RecordingMetrics()
        blanks = [{"id": f"m{number}", "role": "AI", "content": ""} for number in range(250)]
        async with opened(metrics=metrics) as parts:
            content = await parts.build(request(later=blanks))
        assert len(entries(content)) == MOST_LEFT_OUT
        assert entries(content)[-1][0] == "151 more"
        assert metrics.counted == {Why.EMPTY: 250}

    def test_a_kept_beginning(self) -> None:
        """Is what it was, also with texts that no JSON has."""
        left_out = [LeftOut("image", "m\ud800", Why.MEDIA), LeftOut("2 turns", "TURN_MEMORY", Why.NO_ROOM)]
        prefix = RunPrefix([{"role": "user", "content": "x"}], {"blocks": []}, [], [], ["a note"], left_out)
        assert RunPrefix.from_bytes(prefix.to_bytes()) == prefix


def test_reasons_that_can_be_counted() -> None:
    """Each has a series of its own."""
    metrics = PrometheusMetrics()
    for why in Why:
        metrics.left_out(why)
    series = [line for line in metrics.exposition({}).decode().splitlines() if line.startswith("nexus_left_out_total{")]
    counted = Counter(line.split()[1] for line in series)
    assert counted == {"1.0": len(Why), "0.0": 1}


def test_why_a_block_is_shorter() -> None:
    """The window has left it out, or whoever asked wanted no more of it."""
    measure = Measure(FakeCounter())
    turns = tuple(RememberedTurn(number, f"t{number}", "word " * 50) for number in range(1, 9))
    asked = ThinkingInput("now", Remembered("goal", turns=turns, dropped=4))
    assert assemble_thinking(asked).left_out == [("4 turns", "TURN_MEMORY", Why.TOO_MANY)]
    whole = measure.messages(assemble_thinking(asked).messages)

    def within(tokens: int) -> list[LeftOut]:
        return fit_thinking(asked, Budget(tokens, measure=measure)).left_out

    assert within(whole) == [("4 turns", "TURN_MEMORY", Why.TOO_MANY)]
    assert within(whole - 60) == [("6 turns", "TURN_MEMORY", Why.NO_ROOM)]
    assert within(0) == [("the whole block", "TURN_MEMORY", Why.NO_ROOM)]


class TestResultsOfEarlierRuns:
    """The result of a call that an earlier run made comes with the request of a later one."""

    RESULT = [{"id": "res", "role": "TOOL", "content": "paid", "metadata": {"call_id": "c1"}}]  # noqa: RUF012

    @pytest.mark.parametrize("is_there", [True, False])
    async def test_is_shown_at_its_call_or_named(self, *, is_there: bool) -> None:
        """Where the context no longer has the call, the result is in `left_out`."""
        call = {"id": "c1", "name": "pay", "arguments": "{}"}
        (asked, answer) = past(1)[::-1] if past(1)[0]["role"] != "HUMAN" else past(1)
        async with opened() as parts:
            rows = [asked, {**answer, "metadata": {"tool_calls": [call]}}] if is_there else [asked, answer]
            parts.store.plant("messages", rows)
            content = await parts.build(request("yes", later=self.RESULT, run_metadata={"layout": "agent"}))
        results = [message["content"] for message in content["messages"] if message["role"] == "tool"]
        assert results == (["paid"] if is_there else [])
        assert entries(content) == ([] if is_there else [("tool result", "res", Why.UNMATCHED.value)])

    @pytest.mark.parametrize("layout", ["dialogue", "thinking"])
    async def test_where_no_calls_are_shown(self, layout: str) -> None:
        """It is named."""
        async with opened() as parts:
            content = await parts.build(request("yes", later=self.RESULT, run_metadata={"layout": layout}))
        assert entries(content) == [("tool result", "res", Why.UNMATCHED.value)]
