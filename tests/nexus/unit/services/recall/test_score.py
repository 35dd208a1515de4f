"""The formula: what counts, what does not, and that leaving out what cannot win changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.recall import EPISODE, Place, Postings, Ranked
from nexus.services.recall.score import WEIGHTS, rank
from nexus.services.recall.terms import dates_named, flags_of, occurrences, terms_of


@dataclass
class Said:
    """A message: its place, its text, its month, and whether an assistant said it."""

    place: int
    text: str
    month: int = 0
    by_assistant: bool = False
    code: bytes | None = None


def postings_of(messages: Sequence[Said]) -> Postings:
    """What an index would have of these messages."""
    terms: dict[str, dict[str, dict[str, int]]] = {}
    flags: dict[str, dict[str, int]] = {}
    codes: dict[str, dict[str, bytes]] = {}
    for said in messages:
        episode, at = map(str, divmod(said.place, EPISODE))
        for term, value in occurrences(said.text).items():
            terms.setdefault(term, {}).setdefault(episode, {})[at] = value
        moment = datetime(2023, said.month, 1, tzinfo=UTC) if said.month else None
        for flag in flags_of(moment, by_assistant=said.by_assistant):
            bits = flags.setdefault(flag, {})
            bits[episode] = bits.get(episode, 0) | 1 << int(at)
        if said.code is not None:
            codes.setdefault(episode, {})[at] = said.code
    return Postings(len(messages), terms, flags, codes)


def found(
    messages: Sequence[Said], question: str, limit: int = 10, code: bytes | None = None, without: tuple[int, ...] = ()
) -> list[Ranked]:
    """The best places for a question."""
    every = postings_of(messages)
    asked = {term: every.terms[term] for term in terms_of(question) if term in every.terms}
    ranking = rank(
        Postings(every.messages, asked, every.flags, every.codes),
        dates_named(question),
        limit=limit,
        question_code=code,
        without={Place(each) for each in without},
    )
    return ranking.best


def scores(messages: Sequence[Said], question: str, code: bytes | None = None) -> Mapping[int, float]:
    """Each place's score."""
    return {each.place: each.score.total for each in found(messages, question, code=code)}


def test_one_word_in_one_message() -> None:
    """The formula as it is written, by hand."""
    idf = log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    words = idf * 1 * 1.9 / (1 + 0.9 * (0.6 + 0.4 * 2 / 20))
    episode = 0.25 * idf * 3 * 1 / (1 + 2)
    score = found([Said(0, "blue kite"), Said(64, "red")], "kites")[0].score
    assert score.terms == {"kite": pytest.approx(words)}
    assert score.session == pytest.approx(episode)
    assert score.total == pytest.approx(words + episode)


def test_an_answer_is_found_beside_its_question() -> None:
    """A word counts half for the message beside it and a quarter for the next; beyond that it does not."""
    others = [Said(at, "on top") for at in (1, 2, 3, 4, 6, 7, 8, 9)]
    places = scores([Said(5, "Where is my kite"), *others], "kite")
    session = found([Said(5, "kite"), Said(40, "x")], "kite")[0].score.session
    assert set(places) == {3, 4, 5, 6, 7}
    at_home = max(places.values())
    assert places[6] < at_home
    assert places[6] - places[7] == pytest.approx(places[4] - places[3])
    assert session > 0


def test_a_word_counts_once_where_it_is_strongest() -> None:
    """Two messages with the same word do not add up on the one between them."""
    alone = found([Said(5, "kite"), Said(99, "a b")], "kite")[0].score.terms["kite"]
    pair = {each.place: each.score.terms["kite"] for each in found([Said(5, "kite"), Said(6, "kite")], "kite")}
    assert pair[Place(5)] / pair[Place(6)] == pytest.approx(1.0)
    assert alone > pair[Place(5)]  # which is rarer


def test_a_place_without_a_message_is_not_found() -> None:
    """Behind the last message of a session, or where one was removed."""
    assert set(scores([Said(0, "kite"), Said(2, "a")], "kite")) == {0, 2}


def test_neighbours_end_with_the_episode() -> None:
    """The first message of a session gains nothing from the last one of another."""
    assert set(scores([Said(30, "a"), Said(31, "kite"), Said(32, "b")], "kite")) == {30, 31}


def test_a_rare_word_counts_more() -> None:
    """A word that stands in every message hardly counts."""
    messages = [Said(32 * number, "kite" if number else "kite comet") for number in range(20)]
    assert found(messages, "kite comet")[0].place == 0


def test_what_an_assistant_said_counts_less() -> None:
    """Of the same text, the person's comes first."""
    first, second = found([Said(0, "my kite", by_assistant=True), Said(64, "my kite")], "kite")[:2]
    assert (first.place, second.place) == (64, 0)
    assistants = next(
        each for each in found([Said(0, "my kite", by_assistant=True), Said(64, "my kite")], "kite") if each.place == 0
    )
    assert assistants.score.total == pytest.approx(first.score.total * WEIGHTS.assistant)


def test_a_date_that_is_named_counts_for_what_has_a_word() -> None:
    """The month of a message is no word: it lifts what was found and finds nothing by itself."""
    places = {
        each.place: each.score.date
        for each in found([Said(0, "my kite", 5), Said(64, "my kite", 6), Said(128, "rain", 5)], "kite in May")
    }
    assert places[Place(0)] == WEIGHTS.date
    assert places[Place(64)] == 0
    assert 128 not in places


def test_of_equal_messages_the_later_comes_first() -> None:
    """The order is certain, whatever order the index answers in."""
    assert [each.place for each in found([Said(0, "kite"), Said(320, "kite")], "kite", limit=2)] == [320, 0]


def test_meaning_finds_what_shares_no_word() -> None:
    """A code near the question's lifts a message, and one that is far pushes it down."""
    messages = [
        Said(0, "kite", code=b"\x00\x00"),
        Said(64, "drachen", code=b"\xff\xfe"),
        Said(128, "x", code=b"\x0f\x00"),
    ]
    best = found(messages, "toy", code=b"\xff\xff")
    assert best[0].place == 64
    assert best[0].score.terms == {}
    assert best[0].score.similarity > 0
    assert best[-1].score.similarity < 0


def test_messages_without_a_code_are_neither_near_nor_far() -> None:
    """While an owner is being embedded, words find what has no vector yet."""
    places = scores(
        [Said(0, "kite"), Said(64, "rain", code=b"\x01"), Said(128, "sun", code=b"\x00")], "kite", code=b"\x01"
    )
    words = scores([Said(0, "kite"), Said(64, "rain"), Said(128, "sun")], "kite")
    assert places[0] == words[0]


def test_nothing_is_found_in_nothing() -> None:
    """No messages, no words of the question, no limit."""
    assert found([], "kite") == []
    assert found([Said(0, "kite")], "") == []
    assert found([Said(0, "kite")], "what is it") == []


def test_what_is_in_the_context_is_passed_over() -> None:
    """Excluded places take the place of no other."""
    messages = [Said(64 * number, "kite") for number in range(5)]
    assert {each.place for each in found(messages, "kite", limit=2, without=(0, 256, 128))} == {64, 192}


_WORDS = st.sampled_from(["kite", "comet", "rain", "sun", "the"])
_MESSAGES = st.lists(
    st.builds(
        Said,
        st.integers(0, 400),
        st.lists(_WORDS, max_size=12).map(" ".join),
        st.integers(0, 12),
        st.booleans(),
        st.none() | st.binary(min_size=2, max_size=2),
    ),
    unique_by=lambda said: said.place,
    max_size=60,
)


@given(_MESSAGES, st.lists(_WORDS, max_size=4).map(" ".join), st.none() | st.binary(min_size=2, max_size=2))
def test_episodes_that_are_passed_over_have_nothing_better(
    messages: list[Said], words: str, code: bytes | None
) -> None:
    """The best five are the first five of all."""
    question = f"{words} in May"
    every = found(messages, question, limit=100_000, code=code)
    best = found(messages, question, limit=5, code=code)
    assert [(each.place, each.score.total) for each in best] == [(each.place, each.score.total) for each in every[:5]]
    assert [each.score.total for each in every] == pytest.approx(sorted((e.score.total for e in every), reverse=True))
