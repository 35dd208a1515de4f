"""What a run has said, where it does not fit: results go, and nothing else (CONTRACT §7)."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nexus.services.context.shortening import shortened
from nexus.services.context.tokens import Measure
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.context.test_budget import words_of

MEASURE = Measure(FakeCounter())


def message(role: str, tokens: int) -> dict[str, Any]:
    """One of so many words."""
    return {"role": role, "content": words_of(tokens)}


def total(messages: list[dict[str, Any]]) -> int:
    """Tokens of all of them."""
    return sum(map(MEASURE.message, messages))


def is_left_out(item: dict[str, Any]) -> bool:
    """Whether a line says that it is."""
    return str(item["content"]).startswith("(left out: ")


MESSAGES = st.lists(st.builds(message, st.sampled_from(["tool", "assistant"]), st.integers(1, 400)), max_size=12)


@given(MESSAGES, st.integers(0, 3_000))
def test_only_results_go(messages: list[dict[str, Any]], room: int) -> None:
    """As few as it takes, and each is replaced by something shorter; what fits stays as it is."""
    shown, gone = shortened(messages, MEASURE, room)
    changed = [(before, after) for before, after in zip(messages, shown, strict=True) if before != after]
    assert len(changed) == gone
    assert all(before["role"] == "tool" and is_left_out(after) for before, after in changed)
    assert all(MEASURE.message(after) < MEASURE.message(before) for before, after in changed)
    if total(messages) <= room:
        assert gone == 0
    elif total(shown) > room:
        # There is nothing left whose absence would gain anything.
        assert shortened(shown, MEASURE, room) == (shown, 0)


def test_what_cannot_fit_goes_first() -> None:
    """However new it is: for nothing that is older would it be in the list."""
    messages = [message("tool", 100), message("tool", 100), message("tool", 5_000)]
    shown, gone = shortened(messages, MEASURE, 1_000)
    assert ([is_left_out(item) for item in shown], gone) == ([False, False, True], 1)


def test_the_oldest_goes_first() -> None:
    """Of those that could be there by themselves."""
    messages = [message("tool", 400), message("assistant", 100), message("tool", 400), message("tool", 400)]
    shown, gone = shortened(messages, MEASURE, 1_000)
    assert ([is_left_out(item) for item in shown], gone) == ([True, False, False, False], 1)
