"""Cutting long text so that nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.text.sentences import leading, prompt_json, size, slices

TEXTS = st.text(st.characters(exclude_categories=()) | st.sampled_from(' \n."\\。😀\x00\ud800'), max_size=400)


@given(TEXTS, st.integers(8, 120))
def test_nothing_is_lost(text: str, room: int) -> None:
    """The pieces are the text, in order; none is empty, none needs more than there is room for."""
    pieces = list(slices(text, room))
    assert "".join(pieces) == text
    assert all(pieces)
    assert all(size(piece) <= room for piece in pieces)


@given(TEXTS)
def test_what_fits_is_not_cut(text: str) -> None:
    """It is one piece; no text is none."""
    assert list(slices(text, size(text))) == ([text] if text else [])


@pytest.mark.parametrize("room", [-5, 0, 1, 2])
def test_no_room(room: int) -> None:
    """A character at a time, rather than for ever."""
    assert list(slices("a😀b", room)) == ["a", "😀", "b"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("First line.\nSecond line, which is longer.", ["First line.\n", "Second line, which is ", "longer."]),
        ("It was HR 0.86. Then it went on.", ["It was HR 0.86.", " Then it went on."]),
        ("找到156篇文献。筛选出15篇。", ["找到156篇", "文献。", "筛选出15篇", "。"]),
        ("with some words and no end", ["with some words and ", "no end"]),
        ("x" * 30, ["x" * 22, "x" * 8]),
    ],
)
def test_where_it_is_cut(text: str, pieces: list[str]) -> None:
    """After a line, else a sentence, else a word, else anywhere."""
    room = 16 if "找" in text else 24
    assert list(slices(text, room)) == pieces


def test_figures_stay_whole() -> None:
    """As long as there are words between them."""
    text = " ".join(f"{number}.{number:03}" for number in range(5_000))
    assert {word for piece in slices(text, 300) for word in piece.split()} == {*text.split()}


def test_a_long_text_in_reasonable_time() -> None:
    """Megabytes of it, also without any boundary."""
    for text in ("x" * 3_000_000, "\n" * 300_000, "。" * 300_000, "." * 300_000, ". " * 300_000, '."' * 300_000):
        assert "".join(slices(text, 70_000)) == text
        assert text.startswith(leading(text, 100_000))


def test_json_that_can_be_sent() -> None:
    """Half a surrogate pair is not; all else is as it is."""
    assert prompt_json(["\ud800", "😀汉\x00"]) == '["?", "😀汉\\u0000"]'
    assert size("汉") == 5


@pytest.mark.parametrize(
    ("text", "most", "kept"),
    [
        ("One. Two. Three.", 9, "One. Two."),
        ("One. Two. Three.", 100, "One. Two. Three."),
        ("One. Two. Three.", 0, "One."),
        ("It fell to 0.86 (e.g. in men). It rose.", 5, "It fell to 0.86 (e.g. in men)."),
        ("找到156篇。筛选出15篇。下载5篇。", 15, "找到156篇。筛选出15篇。"),
        ("“Done!” She left.", 8, "“Done!”"),
        ("no end at all", 3, "no end at all"),
        ("", 3, ""),
    ],
)
def test_the_first_sentences(text: str, most: int, kept: str) -> None:
    """As many as there is room for, and the first one in any case."""
    assert leading(text, most) == kept


@given(TEXTS, st.integers(0, 100))
def test_the_first_sentences_of_any_text(text: str, most: int) -> None:
    """They are its beginning, and more than what was asked for only if they are one sentence."""
    kept = leading(text, most)
    assert text.startswith(kept)
    assert len(kept) <= most or kept == leading(text, 0)
