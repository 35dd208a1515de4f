"""What a context may take of the window, when a session is compacted, and what is cut (contract §7, §8)."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import Why
from nexus.core.wire import compact
from nexus.services.context.blocks import Weights
from nexus.services.context.budget import close, shortened
from nexus.services.context.memory_blocks import MOST_TOKENS, Meta
from nexus.services.context.request import BuildRequest, read_request
from nexus.services.context.run_messages import run_messages_in
from nexus.services.context.run_prefix import RunPrefix
from nexus.services.history.transcript import faults
from nexus.services.text.tokens import Measure
from tests.nexus.support.builder_settings import window_with
from tests.nexus.support.fake_counter import FakeCounter, words_of
from tests.nexus.unit.services.parts import definition, request

SETTINGS = window_with(context_window=10_000, compact_to=0.35, summary_max_tokens=500)
MEASURE = Measure(FakeCounter())
FORMS = st.sampled_from(["openai", "anthropic", "gemini"])
TOKENS = st.integers(0, 100_000)


@st.composite
def weights(draw: st.DrawFn) -> Weights:
    """What a context takes, whose parts are no more than all of it."""
    fixed, history, summary, others = (draw(TOKENS) for _ in range(4))
    return Weights(fixed + history + summary + others, fixed, history, summary)


@pytest.mark.parametrize(
    ("window", "most", "limit"),
    [(None, None, 10_000), (2_000, None, 2_000), (None, 4_000, 4_000), (2_000, 4_000, 2_000), (8_000, 4_000, 4_000)],
)
def test_the_limit(window: int | None, most: int | None, limit: int) -> None:
    """The window of the request, else that of the settings; the layout may have less, and never has more."""
    settings = window_with(context_window=10_000, max_tokens={"agent": most, "dialogue": 1})
    assert settings.limit("agent", window) == limit


@pytest.mark.parametrize(("total", "heavy"), [(7_399, False), (7_400, True), (20_000, True)])
def test_three_quarters(total: int, heavy: bool) -> None:
    """The bound belongs to what is compacted, and what comes with the messages counts."""
    assert SETTINGS.is_heavy(Weights(total, 900, 5_000, 0), 100, 10_000) is heavy


def test_nothing_to_be_gained() -> None:
    """A session is left alone where little of it is shown, or nothing will be: the instructions fill the window."""
    assert not SETTINGS.is_heavy(Weights(9_000, 8_001, 999, 0), 0, 10_000)
    assert SETTINGS.is_heavy(Weights(9_000, 8_000, 1_000, 0), 0, 10_000)
    assert not SETTINGS.is_heavy(Weights(20_000, 4_000, 16_000, 0), 6_000, 10_000)


@given(st.integers(10_000, 100_000), FORMS, st.data())
def test_a_compaction_gains_something(limit: int, form: str, data: st.DataObject) -> None:
    """What stays is less than what is shown, as it is counted there, if the summary is no longer than it may be."""
    measure = Measure(FakeCounter(), form)
    history = data.draw(st.integers(limit // 10 + 1, limit), "history")
    fixed, others = data.draw(st.integers(0, limit // 4), "fixed"), data.draw(st.integers(0, limit // 4), "others")
    summary = data.draw(st.integers(0, measure.scaled(SETTINGS.summary_max_tokens)), "summary")
    weighed = Weights(fixed + history + summary + others, fixed, history, summary)
    taken = max(limit * 3 // 4 + 1 - weighed.total, 0)
    assert SETTINGS.is_heavy(weighed, taken, limit)
    keep = SETTINGS.keep_tokens(weighed, taken, limit, measure, cut=False)
    assert 0 <= measure.scaled(keep) < history
    # Where rows are not shown, none of these stays, and not all of those that are: the next context is not cut again.
    kept_of_many = SETTINGS.keep_tokens(weighed, taken, limit, measure, cut=True)
    assert measure.scaled(kept_of_many) <= min(measure.scaled(keep), history / 2)


@given(weights(), st.integers(1_000, 100_000), FORMS)
def test_too_many_rows(weighed: Weights, limit: int, form: str) -> None:
    """Of a session that is not heavy, half of what is shown stays, whatever the window: it is not the reason."""
    measure = Measure(FakeCounter(), form)
    assume(not SETTINGS.is_heavy(weighed, 0, limit))
    keep = SETTINGS.keep_tokens(weighed, 0, limit, measure, cut=True)
    assert measure.scaled(keep) <= weighed.history / 2 <= measure.scaled(keep) + 3


@given(st.integers(7_000, 20_000), st.integers(0, 2_000), FORMS)
def test_what_is_aimed_at(history: int, taken: int, form: str) -> None:
    """A session that is compacted takes no more than the part that is aimed at, or the least that is kept."""
    measure, fixed = Measure(FakeCounter(), form), 500
    weighed = Weights(fixed + history, fixed, history, 0)
    assert SETTINGS.is_heavy(weighed, taken, 10_000)
    keep = SETTINGS.keep_tokens(weighed, taken, 10_000, measure, cut=False)
    summary = measure.scaled(SETTINGS.summary_tokens(10_000, measure))
    assert measure.scaled(keep) + fixed + summary + taken <= max(3_500, 500 + fixed + summary + taken)


OPENING = [{"role": "system", "content": "You help."}, {"role": "user", "content": "look it up"}]


def a_request(results: list[str]) -> BuildRequest:
    """A run that has called a tool so often, with these results."""
    later: list[dict[str, Any]] = []
    for number, text in enumerate(results):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": '{"q": "x"}'}}
        later.append(
            {"id": f"a{number}", "role": "AI", "content": f"step {number}", "metadata": {"tool_calls": [call]}}
        )
        later.append({"id": f"t{number}", "role": "TOOL", "content": text, "metadata": {"call_id": f"c{number}"}})
    return read_request(request("look it up", later=later, run_metadata={"layout": "agent"}))


def content_of(results: list[str], measure: Measure, tools: int = 1) -> dict[str, Any]:
    """The content of an answer before it is closed."""
    manifest = {"blocks": [{"tag": "OPENING", "index": 0}], "prefix": {"messages": 1}}
    prefix = RunPrefix(OPENING, manifest, [definition(f"t{number}") for number in range(tools)], [], [], [])
    asked = a_request(results)
    return prefix.continued(asked, run_messages_in(asked), measure)


def outcome(content: dict[str, Any], measure: Measure, limit: int, meta: Meta | None) -> dict[str, Any] | RequestError:
    """The content of the answer, or the error that is answered."""
    try:
        return close(content, measure, limit, meta)
    except RequestError as error:
        return error


@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 400).map(words_of), max_size=5),
    st.integers(1, 2_500),
    FORMS,
    st.booleans(),
    st.integers(0, 2),
)
def test_it_fits_or_is_refused(results: list[str], limit: int, form: str, says: bool, tools: int) -> None:
    """Never more than the limit, by a count of its own; what was said and called stays, the newest results too."""
    measure = Measure(FakeCounter(), form)
    content = content_of(results, measure, tools)
    before = compact(content)
    meta = Meta(limit) if says else None
    closed = outcome(content, measure, limit, meta)
    assert compact(content) == before
    if isinstance(closed, RequestError):
        assert closed.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert str(limit) in closed.message
        return
    messages, manifest = closed["messages"], closed["context"]
    assert faults(messages) == []
    used = measure.messages(messages) + measure.tools(closed["tools"])
    assert manifest["tokens"] == {
        "used": used,
        "limit": limit,
        "tools": measure.tools(closed["tools"]),
        "exact": form == "openai",
    }
    assert used <= limit
    assert (messages[-1]["content"].startswith("[CONTEXT_META]\n") and messages[-1]["role"] == "system") is says
    said = messages[:-1] if says else messages
    changed = [place for place, message in enumerate(said) if message != content["messages"][place]]
    assert all(said[place]["role"] == "tool" for place in changed)
    run = next((block for block in manifest["blocks"] if block["tag"] == "RUN"), None)
    if run:
        shown = said[run["index"] :]
        assert run["truncated"] == len(changed)
        assert [each[1:] for each in closed["context"]["left_out"]] == [("RUN", Why.NO_ROOM)] * bool(changed)
        assert run["bytes"] == len(json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode())
        assert run["tokens"] == sum(map(measure.message, shown))
    if says:
        assert manifest["blocks"][-1]["index"] == len(messages) - 1
        assert f"messages: {len(messages)}\n" in messages[-1]["content"]
    assert compact(close(content, measure, limit, meta)) == compact(closed)


@pytest.mark.parametrize("form", ["openai", "anthropic", "gemini"])
def test_to_the_last_token(form: str) -> None:
    """What takes all that there is, is sent as it is; with a token less, a result is left out; then it is refused."""
    measure = Measure(FakeCounter(), form)
    content = content_of([words_of(100), words_of(100)], measure)
    enough = measure.messages(content["messages"]) + measure.tools(content["tools"])
    assert close(content, measure, enough, None)["messages"] == content["messages"]
    tight = close(content, measure, enough - 1, None)["messages"]
    assert tight[3]["content"].startswith("(left out: a result of 499 characters, for which there was no room in the")
    assert tight[5] == content["messages"][5]
    with pytest.raises(RequestError) as refused:
        close(content, measure, 60, None)
    assert refused.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_room_for_what_is_said_of_it() -> None:
    """The block at the end has its room before anything is counted, so that it never brings the list over the limit."""
    measure = Measure(FakeCounter())
    content = content_of([words_of(300)], measure, tools=0)
    taken = measure.messages(content["messages"])
    assert "left out" not in str(close(content, measure, taken + MOST_TOKENS, Meta(taken + MOST_TOKENS)))
    assert "left out" in str(close(content, measure, taken + MOST_TOKENS - 1, Meta(taken + MOST_TOKENS - 1)))


def a_message(role: str, tokens: int) -> dict[str, Any]:
    """One of so many words."""
    return {"role": role, "content": words_of(tokens)}


def total_of(messages: list[dict[str, Any]]) -> int:
    """Tokens of all of them."""
    return sum(map(MEASURE.message, messages))


def is_left_out(item: dict[str, Any]) -> bool:
    """Whether a line says that it is."""
    return str(item["content"]).startswith("(left out: ")


MESSAGES = st.lists(st.builds(a_message, st.sampled_from(["tool", "assistant"]), st.integers(1, 400)), max_size=12)


@given(MESSAGES, st.integers(0, 3_000))
def test_only_results_go(messages: list[dict[str, Any]], room: int) -> None:
    """As few as it takes, and each is replaced by something shorter; what fits stays as it is."""
    shown, gone = shortened(messages, MEASURE, room)
    changed = [(before, after) for before, after in zip(messages, shown, strict=True) if before != after]
    assert len(changed) == gone
    assert all(before["role"] == "tool" and is_left_out(after) for before, after in changed)
    assert all(MEASURE.message(after) < MEASURE.message(before) for before, after in changed)
    if total_of(messages) <= room:
        assert gone == 0
    elif total_of(shown) > room:
        # There is nothing left whose absence would gain anything.
        assert shortened(shown, MEASURE, room) == (shown, 0)


def test_what_cannot_fit_goes_first() -> None:
    """However new it is: for nothing that is older would it be in the list."""
    messages = [a_message("tool", 100), a_message("tool", 100), a_message("tool", 5_000)]
    shown, gone = shortened(messages, MEASURE, 1_000)
    assert ([is_left_out(item) for item in shown], gone) == ([False, False, True], 1)
