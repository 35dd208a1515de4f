"""Sentences of any text, lines cut to a weight, and long texts cut into pieces of which none is lost."""

import re
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.text.sentences import (
    clip,
    first_whole,
    is_blank,
    is_ended,
    leading,
    printable_line,
    sentences,
    shares,
    size,
    slices,
    weight,
)

# What is hard to cut: figures, signs that belong together, no spaces, controls, halves of surrogate pairs.
PIECES: Final = (
    *("HR 0.86, ", "95% CI 0.80-0.93. ", "1,234,567", "١٥٦", "共找到156篇。", "👨‍👩‍👧‍👦", "👍🏽", "🇨🇳🇺🇸", "e\u0301"),
    *("می‌خواهم ", "word ", "\ud800", "\u202e", "\x00\n", "Dr. Who et al. said so! "),
)
hard = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=40).map("".join)


class TestSentences:
    """Where they end, and where not."""

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
            ("HR 0.86, CI 0.80-0.93. Version 1.2.3 is out.", ["HR 0.86, CI 0.80-0.93.", "Version 1.2.3 is out."]),
            ("共找到156篇。其中15篇是综述！好吗？好", ["共找到156篇。", "其中15篇是综述！", "好吗？", "好"]),
            ("他说：“好。”然后走了。", ["他说：“好。”", "然后走了。"]),
            ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
            ("Dr. Who, Smith et al. and J. Doe (e.g. in Fig. 3) agree.", None),
            ("It rose approx. five times, i.e. a lot, in the U.S. market.", None),
            ("See No. 5 there. No. Not here.", ["See No. 5 there.", "No.", "Not here."]),
            ("It was in 2018. Then it ended.", ["It was in 2018.", "Then it ended."]),
            ("1. First thing\n2. Second thing", ["1. First thing", "2. Second thing"]),
            ("Wait... what? Well... Yes.", ["Wait... what?", "Well...", "Yes."]),
            ("## Results\n\n- **156** found\n> quoted\n* -5 °C", ["Results", "**156** found", "quoted", "-5 °C"]),
            ("| a | b |\n|---|---|\n| 1 | 2 |", ["a | b", "1 | 2"]),
            ("a\r\nb\u2028c\x0bd", ["a", "b", "c", "d"]),
            ("see http://a.example/b.html?x=1.5 now", None),
            ("", []),
            (" \n\t\n", []),
            ("--- ... !!!", []),
        ],
        ids=repr,
    )
    def test_where_they_end(self, text: str, found: list[str] | None) -> None:
        """With their line or their mark; not in a number, after an abbreviation, or in an address."""
        assert list(sentences(text)) == ([text] if found is None else found)

    @given(hard)
    def test_any_text(self, text: str) -> None:
        """Each is one line that UTF-8 can carry, and no figure is lost."""
        found = list(sentences(text))
        for sentence in found:
            assert sentence == printable_line(sentence) != ""
            sentence.encode()
        assert re.findall(r"\d+", " ".join(found)) == re.findall(r"\d+", printable_line(text))


class TestClip:
    """Cut to a weight, and torn nowhere."""

    @pytest.mark.parametrize(
        ("text", "room", "shown"),
        [
            ("fits", 4, "fits"),
            ("cut between words", 14, "cut between..."),
            ("the ratio is 0.86 here", 19, "the ratio is..."),
            ("the ratio (0.86)", 14, "the ratio..."),
            ("a,b,c;d " * 9, 12, "a,b,c;d..."),
            ("共找到156篇文献", 14, "共找到..."),
            ("共找到156篇文献", 16, "共找到156..."),
            ("👨‍👩‍👧‍👦👨‍👩‍👧‍👦", 40, "👨‍👩‍👧‍👦..."),
            ("👍🏽👍🏽👍🏽", 18, "👍🏽..."),
            ("🇨🇳🇺🇸🇩🇪", 16, "🇨🇳..."),
            ("e\u0301" * 9, 11, "e\u0301e\u0301..."),
            ("", 8, ""),
        ],
    )
    def test_where_it_falls(self, text: str, room: int, shown: str) -> None:
        """Between words, else between characters; never in a number or in what is seen as one character."""
        assert clip(text, room) == shown

    @given(hard.map(printable_line), st.integers(8, 200))
    def test_any_text(self, text: str, room: int) -> None:
        """It fits, it is the beginning of the text, and each of its numbers is one of the text."""
        shown = clip(text, room)
        assert weight(shown) <= room
        assert shown == text or text.startswith(shown.removesuffix("..."))
        if not re.search(r"[^\s]{40}", text):
            assert re.findall(r"\d+", shown) == re.findall(r"\d+", text)[: len(re.findall(r"\d+", shown))]


@pytest.mark.parametrize("text", ["", " \n", "\u200b\u202e\ufeff", "\x00\x1b"], ids=repr)
def test_blank_texts(text: str) -> None:
    """Are those of which nothing would be seen."""
    assert is_blank(text)
    assert not is_blank(f"{text}👍")
    assert not is_blank(f"{text}x")


@given(st.lists(st.integers(0, 500), max_size=12), st.integers(0, 2_000))
def test_shares(wanted: list[int], room: int) -> None:
    """Nobody gets more than it wants, all together no more than there is, and nothing is kept back."""
    taken = shares(wanted, room)
    assert all(0 <= share <= want for share, want in zip(taken, wanted, strict=True))
    assert sum(taken) <= room
    assert sum(taken) > min(sum(wanted), room) - max(len(wanted), 1)
    short = [share for share, want in zip(taken, wanted, strict=True) if share < want]
    assert not short or max(short) - min(short) <= 1
    assert not short or max(taken) <= max(short) + 1


@given(hard)
def test_the_first_that_is_whole(text: str) -> None:
    """The first sentence that a mark ends, or else the first of all."""
    found = [*sentences(text)]
    assert first_whole(text) == next(filter(is_ended, found), found[0] if found else None)


TEXTS = st.text(st.characters(exclude_categories=()) | st.sampled_from(' \n."\\。😀\x00\ud800'), max_size=400)


@given(TEXTS, st.integers(8, 120))
def test_nothing_is_lost(text: str, room: int) -> None:
    """The pieces are the text, in order; none is empty, none needs more than there is room for."""
    pieces = list(slices(text, room))
    assert "".join(pieces) == text
    assert all(pieces)
    assert all(size(piece) <= room for piece in pieces)


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


def test_a_long_text_in_reasonable_time() -> None:
    """Megabytes of it, also without any boundary."""
    for text in ("x" * 3_000_000, "\n" * 300_000, "。" * 300_000, "." * 300_000, ". " * 300_000, '."' * 300_000):
        assert "".join(slices(text, 70_000)) == text
        assert text.startswith(leading(text, 100_000))


@pytest.mark.parametrize(
    ("text", "most", "kept"),
    [
        ("One. Two. Three.", 9, "One. Two."),
        ("One. Two. Three.", 100, "One. Two. Three."),
        ("One. Two. Three.", 3, ""),
        ("It fell to 0.86 (e.g. in men). It rose.", 29, ""),
        ("It fell to 0.86 (e.g. in men). It rose.", 30, "It fell to 0.86 (e.g. in men)."),
        ("Dr. Ruiz found 5. 3 were new. So what?", 30, "Dr. Ruiz found 5. 3 were new."),
        ("One line\n\nand another", 8, "One line"),
        ("三件目は失敗しました。「はい。」と言いました。", 11, "三件目は失敗しました。"),
        ("पाँच लेख मिले। तीन नए हैं।", 14, "पाँच लेख मिले।"),
        ("هل وجد خمسة؟ نعم.", 12, "هل وجد خمسة؟"),
        ("Done 👩‍👩‍👧‍👦! Then 🎉🎉.", 13, "Done 👩‍👩‍👧‍👦!"),
        ("找到156篇。筛选出15篇。下载5篇。", 15, "找到156篇。筛选出15篇。"),
        ("“Done!” She left.", 8, "“Done!”"),
        ("no end at all", 3, ""),
        ("no end at all", 13, "no end at all"),
        ("", 3, ""),
    ],
)
def test_the_first_sentences(text: str, most: int, kept: str) -> None:
    """As many as there is room for, in any script; none that is cut."""
    assert leading(text, most) == kept
