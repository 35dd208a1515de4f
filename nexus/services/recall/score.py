"""Which messages answer a question best: BM25 over a message, the ones beside it, and its episode (contract §14). Pure.

    words(i)  = sum over terms t of the question of max(s(t, i), 1/2 s(t, i±1), 1/4 s(t, i±2))
    episode   = 1/4 of the sum over t of idf(t) * 3 n / (n + 2), where n is how often t occurs in the episode
    score(i)  = (words(i) + episode) * (0.8 if an assistant said it)
                + 4 if the question names the month or year of the message, which has a score
                + z(i) * (0.8 if an assistant said it), only with an embedder
    s(t, i)   = idf(t) * tf * 1.9 / (tf + 0.9 * (0.6 + 0.4 * length / 20))
    idf(t)    = ln(1 + (N - df + 0.5) / (df + 0.5)); N and df are of what is searched

A term counts once, where it is strongest near the message: answers often do not repeat the words of the question. z is
by how many standard deviations a message is nearer to the question than the average one. Of equal scores the later
message comes first; recency has no other weight, since with one less is found. docs/recall.md has the measurements.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from nexus.core.recall import EPISODE, LONGEST, Occurrence, Place, Postings, Ranked, Score
from nexus.services.recall.terms import BY_ASSISTANT, MESSAGE

# The version of the formula and its weights.
FORMULA: Final = 1
# A bound is summed in another order than the score.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Weights:
    """The numbers of the formula: of terms one and two messages away, of the episode, and so on."""

    near: float = 0.5
    far: float = 0.25
    session: float = 0.25
    date: float = 4.0
    assistant: float = 0.8
    similarity: float = 1.0
    k1: float = 0.9
    b: float = 0.4
    length: float = 20.0
    saturation: float = 2.0


WEIGHTS: Final = Weights()


class Ranking(NamedTuple):
    """The best places, best first, and how many were scored: those that cannot be among the best are not."""

    best: list[Ranked]
    considered: int


def rank(
    postings: Postings,
    dates: Sequence[Sequence[str]],
    *,
    limit: int,
    question_code: bytes | None = None,
    without: Collection[Place] = (),
    weights: Weights = WEIGHTS,
) -> Ranking:
    """The best `limit` places but those in `without`.

    `dates` are the flags of each date that the question names; see `dates_named`. The postings have the flags `MESSAGE`
    and `BY_ASSISTANT`, too.
    """
    scorer = _Scorer(postings, dates, question_code, weights)
    bounds = sorted(((bound, episode) for episode, bound in scorer.bounds().items()), reverse=True)
    best: list[tuple[float, Place]] = []
    considered = 0
    for bound, episode in bounds:
        if len(best) == limit and bound + _ROUNDING < best[0][0]:
            break
        for place, score in scorer.scores(episode):
            if place in without:
                continue
            considered += 1
            if len(best) < limit:
                heapq.heappush(best, (score, place))
            elif (score, place) > best[0]:
                heapq.heapreplace(best, (score, place))
    return Ranking([Ranked(place, scorer.parts(place)) for _, place in sorted(best, reverse=True)], considered)


class _Scorer:
    """Scores of episodes, of which most are never computed: the best have the highest bounds."""

    def __init__(
        self, postings: Postings, dates: Sequence[Sequence[str]], question_code: bytes | None, weights: Weights
    ) -> None:
        self._weights = weights
        self._terms = {
            term: (_idf(postings.messages, sum(map(len, by_place.values()))), by_place)
            for term, by_place in postings.terms.items()
        }
        self._flags = postings.flags
        self._dates = dates
        self._nearer = _nearer(postings.codes, question_code) if question_code else {}
        self._strengths = _Strengths(weights)
        near, far = weights.near, weights.far
        self._around = ((0, 1.0), (-1, near), (1, near), (-2, far), (2, far))

    def bounds(self) -> dict[str, float]:
        """By episode in which something has a score, at least the highest."""
        weights, strengths = self._weights, self._strengths
        bounds: dict[str, float] = defaultdict(float)
        for idf, by_place in self._terms.values():
            for episode, occurrences in by_place.items():
                best = max(map(strengths.__getitem__, occurrences.values()))
                # The lengths in the sum make it greater at most.
                times = sum(occurrences.values()) >> 12
                bounds[episode] += idf * (best + weights.session * self._saturated(times))
        for episode in bounds if self._dates else ():
            bounds[episode] += weights.date if self._dated(episode) else 0.0
        for episode, nearer in self._nearer.items():
            bounds[episode] += weights.similarity * max(*nearer.values(), 0.0)
        return bounds

    def scores(self, episode: str) -> Iterator[tuple[Place, float]]:
        """The score of each place of an episode that has one."""
        weights = self._weights
        words = [0.0] * EPISODE
        session = 0.0
        for idf, by_place in self._terms.values():
            if occurrences := by_place.get(episode):
                session += idf * self._saturated(_times(occurrences))
                for at, strength in self._spread(occurrences).items():
                    words[at] += idf * strength
        session *= weights.session
        there, by_assistant = self._bits(MESSAGE, episode), self._bits(BY_ASSISTANT, episode)
        dated = self._dated(episode)
        nearer = self._nearer.get(episode, {})
        first = int(episode) * EPISODE
        for at, of_words in enumerate(words):
            if not there >> at & 1:
                continue
            factor = weights.assistant if by_assistant >> at & 1 else 1.0
            score = (of_words + session) * factor if of_words else 0.0
            if of_words and dated >> at & 1:
                score += weights.date
            if of_words or at in nearer:
                yield Place(first + at), score + weights.similarity * nearer.get(at, 0.0) * factor

    def parts(self, place: Place) -> Score:
        """The parts of a place's score."""
        weights = self._weights
        number, at = divmod(place, EPISODE)
        episode = str(number)
        factor = weights.assistant if self._bits(BY_ASSISTANT, episode) >> at & 1 else 1.0
        terms: dict[str, float] = {}
        session = 0.0
        for term, (idf, by_place) in self._terms.items():
            if occurrences := by_place.get(episode):
                session += idf * self._saturated(_times(occurrences)) * weights.session * factor
                if strength := self._spread(occurrences).get(at):
                    terms[term] = idf * strength * factor
        similarity = weights.similarity * self._nearer.get(episode, {}).get(at, 0.0) * factor
        if not terms:
            return Score({}, similarity=similarity)
        return Score(terms, session, weights.date if self._dated(episode) >> at & 1 else 0.0, similarity)

    def _spread(self, occurrences: Mapping[str, int]) -> dict[int, float]:
        """How strong a term is at each place near one where it occurs."""
        strongest: dict[int, float] = {}
        for key, value in occurrences.items():
            strength, at = self._strengths[value], int(key)
            for offset, part in self._around:
                place, here = at + offset, strength * part
                if 0 <= place < EPISODE and here > strongest.get(place, 0.0):
                    strongest[place] = here
        return strongest

    def _saturated(self, times: int) -> float:
        return times * (self._weights.saturation + 1) / (times + self._weights.saturation)

    def _bits(self, flag: str, episode: str) -> int:
        return self._flags.get(flag, {}).get(episode, 0)

    def _dated(self, episode: str) -> int:
        """The bits of the places that are of a date that the question names."""
        bits = 0
        for flags in self._dates:
            of_date = -1
            for flag in flags:
                of_date &= self._bits(flag, episode)
            bits |= of_date
        return bits


class _Strengths(dict[Occurrence, float]):
    """How strong a term is where it occurs so often."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self._weights = weights

    def __missing__(self, value: Occurrence) -> float:
        weights, times = self._weights, value >> 12
        length = 1 - weights.b + weights.b * (value & LONGEST) / weights.length
        strength = self[value] = times * (weights.k1 + 1) / (times + weights.k1 * length)
        return strength


def _times(occurrences: Mapping[str, Occurrence]) -> int:
    return sum(value >> 12 for value in occurrences.values())


def _idf(messages: int, with_term: int) -> float:
    # What is searched may have changed between the two counts.
    return math.log(1 + (max(messages - with_term, 0) + 0.5) / (with_term + 0.5))


def _nearer(codes: Mapping[str, Mapping[str, bytes]], question: bytes) -> dict[str, dict[int, float]]:
    """By episode and place, by how many standard deviations a code is nearer to the question's than the average."""
    asked = int.from_bytes(question)
    distances = {
        episode: {int(at): (int.from_bytes(code) ^ asked).bit_count() for at, code in by_place.items()}
        for episode, by_place in codes.items()
    }
    every = [distance for by_place in distances.values() for distance in by_place.values()]
    if not every:
        return {}
    mean = sum(every) / len(every)
    deviation = math.sqrt(sum((distance - mean) ** 2 for distance in every) / len(every)) or 1.0
    return {
        episode: {at: (mean - distance) / deviation for at, distance in by_place.items()}
        for episode, by_place in distances.items()
    }
