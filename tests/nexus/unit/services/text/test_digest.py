"""The gist of a text within a weight: its first and last sentence, and those with figures."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.text.digest import digest, excerpt, figures, has_figure
from nexus.services.text.sentences import one_line, weight
from tests.nexus.unit.services.text.test_sentences import hard

REPORT = """## What was found

I looked into the matter. Searching took a while. The search found 156 articles. They are of many kinds.
Of these, 15 are systematic reviews. Some were hard to get. The pooled HR is 0.86 (95% CI 0.80-0.93).
Nobody was surprised. I hope this helps."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("HR 0.86, 95% CI 0.80-0.93.", ["0.86", "95%", "0.80-0.93"]),
        ("45,678 of 1 234, at 12:30 on 3/4.", ["45,678", "1", "234", "12:30", "3/4"]),
        ("一百五十六篇，其中十五篇；一些", ["一百五十六", "十五"]),
        ("1,,,, and v2.", ["1", "2"]),
        ("none", []),
    ],
)
def test_figures(text: str, found: list[str]) -> None:
    """Numbers as they are written, Chinese ones too; a Chinese numeral alone is part of a word."""
    assert figures(text) == found
    assert has_figure(text) == bool(found)


class TestDigest:
    """What is kept of a text, and what shows that it is not all."""

    def test_all_of_it_where_it_fits(self) -> None:
        """On one line."""
        assert digest("It is so.\n\nReally: yes\n- no", 100) == "It is so. Really: yes; no"

    def test_the_sentences_that_count(self) -> None:
        """First, last and those with figures, in their order, with gaps marked."""
        assert digest(REPORT, 240) == (
            "... I looked into the matter. ... The search found 156 articles. ... Of these, 15 are systematic reviews. "
            "... The pooled HR is 0.86 (95% CI 0.80-0.93). ... I hope this helps."
        )

    def test_little_room(self) -> None:
        """The first sentence counts most, then the last."""
        assert digest(REPORT, 80) == "... I looked into the matter. ... I hope this helps."
        assert digest(REPORT, 30) == "... I looked..."

    def test_chinese(self) -> None:
        """As any other."""
        text = "我查了一下。过程有点长。共找到156篇文献。种类很多。其中15篇是系统综述。希望有帮助。"
        assert digest(text, 100) == "我查了一下。 ... 共找到156篇文献。 ... 希望有帮助。"
        assert digest(text, 200) == text

    def test_what_is_said_again(self) -> None:
        """Is told once."""
        assert digest("It is 5. " * 90 + "The end.", 60) == "It is 5. ... The end."

    @pytest.mark.parametrize(("text", "shown"), [("", ""), (" \n", ""), ("👍", "👍"), ("...", "..."), ("7", "7")])
    def test_next_to_nothing(self, text: str, shown: str) -> None:
        """Is what it is."""
        assert digest(text, 50) == shown

    def test_a_number_that_has_no_room(self) -> None:
        """Is left out rather than cut, whatever its digits are."""
        assert digest("١٥٦HR 0.86, ", 8) == "..."
        assert digest("12345678", 8) == "12345678"
        assert digest("123456789", 8) == "..."

    @given(hard | st.lists(st.sampled_from(REPORT.split(". ")), max_size=40).map(". ".join), st.integers(8, 400))
    def test_any_text(self, text: str, room: int) -> None:
        """It fits on one line, and it has no number that the text does not have."""
        shown = digest(text, room)
        assert weight(shown) <= room
        assert shown == one_line(shown)
        shown.encode()
        if not re.search(r"[^\s]{40}", text):
            assert set(re.findall(r"\d+", shown)) <= set(re.findall(r"\d+", one_line(text)))


class TestExcerpt:
    """A sentence that is too long."""

    def test_numbers_with_the_words_around_them(self) -> None:
        """What is counted is told with how many there are."""
        words = "and so it goes on with many more words about nothing in particular "
        text = f"The work began {words * 3}until 156 articles were found {words * 3}with an HR of 0.86 in the end."
        assert excerpt(text, 220) == (
            "The work began and so it goes on with many more words about nothing in ... about nothing in particular "
            "until 156 articles were found and ... nothing in particular with an HR of 0.86 in the end."
        )

    def test_without_numbers(self) -> None:
        """Its beginning."""
        assert excerpt("nothing but words " * 20, 40) == "nothing but words nothing but words..."

    def test_without_spaces(self) -> None:
        """The characters around the number."""
        text = f"{'这项研究' * 100}纳入45678名患者{'结果显示' * 80}。"
        shown = excerpt(text, 200)
        assert shown.startswith("这项研究这项研究")
        assert "纳入45678名患者" in shown

    @given(hard.map(one_line), st.integers(8, 300))
    def test_any_sentence(self, text: str, room: int) -> None:
        """It fits; a short one stays."""
        assert weight(excerpt(text, room)) <= room
        assert excerpt(text, weight(text)) == text
