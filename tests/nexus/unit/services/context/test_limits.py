"""How much of a window a context may take, and when and how far a session is compacted (CONTRACT §7)."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nexus.services.context.blocks import Weights
from nexus.services.context.budget import WindowSettings
from nexus.services.text.tokens import Measure
from tests.nexus.support.fake_counter import FakeCounter

MEASURE = Measure(FakeCounter())
SETTINGS = WindowSettings(context_window=10_000, compact_to=0.35, summary_max_tokens=500)
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
    settings = WindowSettings(context_window=10_000, max_tokens={"agent": most, "dialogue": 1})
    assert settings.limit("agent", window) == limit


def test_what_is_left() -> None:
    """Of the limit what comes with the messages is gone; two blocks have their shares of all of it."""
    room = WindowSettings(turn_share=0.1, pinned_share=0.2).room(MEASURE, 10_000, 4_000)
    assert (room.tokens, room.turns, room.pinned) == (6_000, 1_000, 2_000)
    assert SETTINGS.room(MEASURE, 1_000, 4_000).tokens == 0


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


@given(FORMS, TOKENS)
def test_counting_back(form: str, tokens: int) -> None:
    """What is kept by the vocabulary's count is never told for more than it was taken for, and for hardly less."""
    measure = Measure(FakeCounter(), form)
    assert tokens - 2 <= measure.scaled(measure.unscaled(tokens)) <= tokens
    assert measure.unscaled(measure.scaled(tokens)) == tokens
