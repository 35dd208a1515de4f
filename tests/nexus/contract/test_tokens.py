"""The promises of `nexus.core.ports.TokenCounter`, on every vocabulary and on the fake that other tests use."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nexus.adapters.tokenizer import VOCABULARIES, open_tokenizer
from nexus.core.ports import TokenCounter
from tests.nexus.support.fake_counter import FakeCounter

COUNTERS: dict[str, TokenCounter] = {"fake": FakeCounter(), **{name: open_tokenizer(name) for name in VOCABULARIES}}
# How many tokens a byte may be.
MOST_A_BYTE = {"qwen3": 3}
ANYTHING = st.text(st.characters(exclude_categories=[]))
MEGABYTE = 1 << 20
ONE_MEGABYTE_OF = {
    "spaces": " ",
    "line ends": "\r\n",
    "one letter": "a",
    "digits": "7",
    "marks": "!?.,;:-",
    "Chinese": "今天天气很好",
    "emoji": "👩‍👩‍👧‍👦",
    "combining": "a\u0301\u0323",
    "half pairs": "\ud800",
    "nothing": "\0",
}

every_counter = pytest.mark.parametrize("counter", COUNTERS.values(), ids=COUNTERS.keys())


@every_counter
def test_its_name(counter: TokenCounter) -> None:
    """It says which vocabulary it is."""
    assert COUNTERS[counter.name] is counter


@every_counter
@given(text=ANYTHING)
@example(text="\ud83d\ude00")
@example(text="\udfff" * 3)
@example(text="\u0344\u0958\U0001d160")
@example(text="<|endoftext|><|im_start|>")
def test_any_text_has_a_count(counter: TokenCounter, text: str) -> None:
    """Whatever the text is, it has one count, which its bytes bound."""
    count = counter.count(text)
    assert counter.count(text) == count
    size = len(text.encode("utf-8", "surrogatepass"))
    assert 0 <= count <= MOST_A_BYTE.get(counter.name, 1) * size


@every_counter
@pytest.mark.parametrize("unit", ONE_MEGABYTE_OF.values(), ids=ONE_MEGABYTE_OF.keys())
def test_long_texts(counter: TokenCounter, unit: str) -> None:
    """A megabyte of one thing is counted as any other text is."""
    text = unit * (MEGABYTE // len(unit.encode("utf-8", "surrogatepass")))
    assert 0 <= counter.count(text) <= MEGABYTE
