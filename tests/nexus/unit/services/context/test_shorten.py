"""Cutting a message to length (CONTRACT §4.3, the line on length)."""

from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.context.formatters import cut

ANSWER: Final = "".join(f"{number:04}" for number in range(250))


def shown_length(texts: list[str]) -> int:
    """How long texts are on as many lines; one without room has no line."""
    return len("\n".join(text for text in texts if text))


@pytest.mark.parametrize(
    ("texts", "reserved", "limit"),
    [
        ([], 0, 500),
        ([], 900, 500),
        (["a"], 0, 500),
        (["a" * 500], 0, 500),
        (["a" * 250, "b" * 249], 0, 500),
        (["a" * 100, "b" * 99], 300, 500),
        (["an answer"], 900, 500),
    ],
)
def test_what_fits_stays(texts: list[str], reserved: int, limit: int) -> None:
    """Up to the limit, line breaks and annotations included; and the last twenty characters whatever they leave."""
    assert cut(texts, reserved, limit) == (texts, False)


def test_one_text_keeps_its_beginning() -> None:
    """Six hundred characters become five hundred that end in three dots."""
    assert cut(["a" * 600], 0, 500) == (["a" * 497 + "..."], True)
    assert cut(["a" * 501], 0, 500) == (["a" * 497 + "..."], True)


def test_the_preamble_gives_way_to_the_answer() -> None:
    """An answer that fits is whole, and the text before it takes what is left."""
    assert cut(["p" * 300, "a" * 400], 0, 500) == (["p" * 96 + "...", "a" * 400], True)
    assert cut(["p" * 300, "a" * 400], 50, 500) == (["p" * 46 + "...", "a" * 400], True)


def test_the_end_of_a_long_answer_is_kept() -> None:
    """After a mark that says something is missing; the text before it is down to its mark."""
    assert cut(["p" * 300, ANSWER], 0, 500) == (["...", "..." + ANSWER[-493:]], True)
    assert cut([ANSWER], 100, 500) == (["..." + ANSWER[-397:]], True)


def test_texts_between_share_what_is_left() -> None:
    """Equally, and what a short one does not need goes to the others."""
    assert cut(["p" * 300, "ok", "q" * 300, "a" * 200], 0, 500) == (
        ["p" * 144 + "...", "ok", "q" * 145 + "...", "a" * 200],
        True,
    )


def test_what_has_no_room_even_for_a_mark_is_left_out() -> None:
    """The oldest texts first, so that a run of very many steps is cut to length too."""
    texts, was_cut = cut(["step"] * 200 + ["the answer"], 0, 100)

    assert was_cut
    assert texts[:180] == [""] * 180
    assert set(texts[180:-1]) == {"...", "step"}
    assert texts[-1] == "the answer"


@given(
    st.lists(st.text(min_size=1, max_size=80) | st.just(ANSWER), min_size=1, max_size=40),
    st.integers(0, 600),
    st.integers(20, 600),
)
def test_the_result_fits_and_says_what_is_missing(texts: list[str], reserved: int, limit: int) -> None:
    """As many texts as given, within the limit where the annotations leave twenty characters, none of them longer."""
    shown, was_cut = cut(texts, reserved, limit)

    assert len(shown) == len(texts)
    assert was_cut == (shown != texts)
    assert shown_length(shown) <= max(limit - reserved, 20)
    assert all(
        kept in {before, ""} or (kept.startswith("...") or kept.endswith("..."))
        for before, kept in zip(texts, shown, strict=True)
    )
    assert shown[-1].endswith(texts[-1][-10:]) or (len(texts) == 1 and not reserved)


@given(
    st.lists(st.text(max_size=400) | st.just(ANSWER), min_size=1, max_size=8),
    st.integers(0, 300),
    st.integers(20, 120),
)
def test_the_middle_of_a_very_long_text_does_not_matter(texts: list[str], reserved: int, limit: int) -> None:
    """A store may leave out what lies further than `limit` from both ends of a text longer than twice that."""
    trimmed = [text if len(text) <= 2 * limit else text[:limit] + text[-limit:] for text in texts]

    assert cut(trimmed, reserved, limit) == cut(texts, reserved, limit)


def test_a_larger_limit_never_shows_less() -> None:
    """Of three texts that are all too long."""
    lengths = [shown_length(cut([ANSWER, ANSWER, ANSWER], 60, limit)[0]) for limit in range(100, 3200, 50)]

    assert all(shorter <= longer for shorter, longer in pairwise(lengths))


def test_a_limit_below_twenty_counts_as_twenty() -> None:
    """There is no message of three dots and nothing else."""
    assert cut([ANSWER], 0, -5) == ([ANSWER[:17] + "..."], True)
