"""The terms of texts, and the dates that questions name."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.recall import LONGEST, MOST_OCCURRENCES, occurrence
from nexus.services.recall.terms import BY_ASSISTANT, MESSAGE, dates_named, flags_of, occurrences, terms_of


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The agencies adopted two kittens", ["agenc", "adopt", "two", "kitten"]),
        ("I was at the café, naïve as ever!", ["café", "naïv", "ever"]),
        ("snake_case and kebab-case", ["snake", "case", "kebab", "case"]),
        ("WHAT IS IT", []),
        # Two characters that mean something, and their pair; what does not ends the run.
        ("我喜欢咖啡", ["喜", "欢", "咖", "啡", "喜欢", "欢咖", "咖啡"]),
        ("猫的名字", ["猫", "名", "字", "名字"]),
        ("买了iPhone手机", ["买", "iphon", "手", "机", "手机"]),
        ("東京タワー", ["東", "京", "タ", "ワ", "ー", "東京", "京タ", "タワ", "ワー"]),
        ("부산에", ["부", "산", "에", "부산", "산에"]),
        ("книги и книгами", ["книг", "и", "книг"]),
        # Signs that are no letters are parts of words.
        ("हिन्दी किताबें", ["हिन्द", "किताब"]),
        ("தமிழ்", ["தமிழ்"]),
        ("كِتَابٌ كتاب", ["كتاب", "كتاب"]),
        # In either form of Unicode, in full width, and with characters outside the first plane.
        ("cafe\u0301 re\u0301sume\u0301", ["café", "résumé"]),
        ("\u1112\u1161\u11ab\u1100\u116e\u11a8", ["한", "국", "한국"]),
        ("ＡＢＣ２ ｶﾒ", ["abc2", "カ", "メ", "カメ"]),
        ("人々 𠮷野", ["人", "々", "人々", "𠮷", "野", "𠮷野"]),
        # A word of which its stemmer leaves nothing.
        ("\u0640 \u0301", []),
        # Marks without an end, of which eight count; in a bad order all of them would take seconds.
        ("a" + "\u0315" * 50_000 + "\u0323" * 50_000 + " b", ["a" + "\u0315" * 8, "b"]),
        ("", []),
        ("🎉 --- ???", []),
        ("\x00\ud800", []),
    ],
)
def test_terms(text: str, terms: list[str]) -> None:
    """Words are stems, Chinese and its like are characters and their pairs, and words that say nothing are none."""
    assert terms_of(text) == terms


def test_forms_of_a_word_are_one_term() -> None:
    """A question finds other forms of its words."""
    assert terms_of("running shoes") == terms_of("run shoe")


def test_words_in_latin_letters_are_of_one_language() -> None:
    """Other scripts have stems of their own, whatever that language is."""
    assert terms_of("zwei Katzen", "german") == terms_of("zwei Katze", "german")
    assert terms_of("zwei Katzen") != terms_of("zwei Katze")
    assert terms_of("книгами", "german") == terms_of("книги")


def test_a_long_word_is_its_beginning() -> None:
    """Encoded data is one short term, and a text of many words gives a bounded number."""
    assert terms_of("a1" * 5_000) == [("a1" * 20)]
    assert len(terms_of(" ".join(f"w{number}" for number in range(20_000)))) == 4_000


def test_occurrences_are_capped() -> None:
    """A word that is said a hundred times counts as one that is said fifteen times."""
    assert occurrences("no " * 100 + "yes") == {"no": occurrence(15, 101), "yes": occurrence(1, 101)}
    assert occurrence(1_000_000, 1_000_000) == MOST_OCCURRENCES << 12 | LONGEST


@given(st.text())
def test_whatever_is_written_has_terms(text: str) -> None:
    """No text fails; its terms are short, and none could be taken for a flag or a code."""
    for term in terms_of(text):
        assert 0 < len(term) <= 40
        assert not term.startswith(("#", "~"))
        assert "|" not in term


@pytest.mark.parametrize(
    ("question", "dates"),
    [
        ("What did Ann do in May 2023?", [("#05", "#2023")]),
        ("who may come in march?", []),
        ("Who came in March?", [("#03",)]),
        ("what happened in december", [("#12",)]),
        ("In 2022 or 2023?", [("#2022",), ("#2023",)]),
        ("Jan. or Sept. 2024", [("#01", "#2024"), ("#09", "#2024")]),
        ("我三月去哪里了", [("#03",)]),
        ("十二月和10月", [("#12",), ("#10",)]),
        ("2023年5月的会议", [("#05", "#2023")]),
        ("13月", []),
        ("call 12023 or 20231", []),
        ("May 2023, May 2023 " * 1_000, [("#05", "#2023")]),
        ("", []),
    ],
)
def test_dates_that_a_question_names(question: str, dates: list[tuple[str, ...]]) -> None:
    """Months and years, in English and Chinese; words that are also months count where they are capitalised."""
    assert dates_named(question) == dates


def test_a_text_that_names_many_dates() -> None:
    """Of a list of them there are some, not each month of each year."""
    listed = " ".join(f"{month} {year}" for year in range(1900, 2100) for month in ("May", "June", "July"))
    assert len(dates_named(listed)) == 12


def test_flags_of_a_message() -> None:
    """A message is known as one, by its month, its year, and whether an assistant said it."""
    assert flags_of(datetime(2023, 5, 8, tzinfo=UTC), by_assistant=True) == [MESSAGE, BY_ASSISTANT, "#2023", "#05"]
    assert flags_of(None, by_assistant=False) == [MESSAGE]
