"""Finds messages of an owner by words and, where there is an embedder, by meaning (contract §14)."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import anyio

from nexus.core.concurrency import computed, ungrouped
from nexus.core.errors import ModelUnavailableError
from nexus.core.ports import Embedder, RecallIndex, Row
from nexus.core.recall import EPISODE, Found, Hit, Language, Place, Postings, Ranked
from nexus.services.recall.score import FORMULA, Ranking, rank
from nexus.services.recall.terms import BY_ASSISTANT, MESSAGE, dates_named, terms_of
from nexus.services.recall.texts import text_of
from nexus.services.text.escape import one_line

# Terms of a question: of one with more, or with more characters, those of its beginning and its end. Terms of as many
# characters as an input may have would hold up the loop for a quarter of a second.
_MOST_ASKED: Final = 64
_MOST_CHARS: Final = 2_048
# How long the meaning of a question is waited for: an endpoint that hangs is not to keep words from finding.
_MEANING_S: Final = 1.5
# Where rows of the best places have been removed by another program, or say the same as others: places that are ranked
# beyond the limit, at first and at last.
_SPARE: Final = 16
_MOST_SPARE: Final = 16**3
# About how many characters of other work an entry of the postings is worth.
_CHARS_OF_ENTRY: Final = 8


class Recall:
    """Long-term memory of all owners; `embedder` None for words alone, `language` of words in Latin letters.

    `meaning_s`: after so many seconds without an answer of the embedder words alone find.
    """

    def __init__(
        self,
        index: RecallIndex,
        embedder: Embedder | None = None,
        *,
        language: Language = "english",
        meaning_s: float = _MEANING_S,
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._language = language
        self._meaning_s = meaning_s

    async def search(
        self,
        owner_key: str,
        question: str,
        *,
        session_id: str | None = None,
        limit: int,
        without: Collection[str] = (),
        beside: int = 1,
        distinct: bool = False,
    ) -> Found:
        """The best messages for a question; see `RecallSource`."""
        dates, read = dates_named(_ends_of(question)), _Read()
        with ungrouped():
            async with anyio.create_task_group() as tasks:
                if self._embedder:
                    tasks.start_soon(self._embed, self._embedder, question, read)
                if without:
                    tasks.start_soon(self._exclude, owner_key, without, read)
                flags = {MESSAGE, BY_ASSISTANT, *(flag for date in dates for flag in date)}
                generation = self._embedder.generation if self._embedder else None
                terms = question_terms(question, self._language)
                postings = await self._index.postings(
                    owner_key, terms, flags, session_id=session_id, generation=generation
                )
        spare = 0
        while True:
            call = partial(rank, postings, dates, limit=limit + spare, question_code=read.code, without=read.without)
            ranking: Ranking = await computed(owner_key, _work_of(postings), call)
            hits = await self._hits(owner_key, ranking.best, without, beside)
            hits = (_distinct(hits) if distinct else hits)[:limit]
            if len(hits) == limit or len(ranking.best) < limit + spare or spare == _MOST_SPARE:
                break
            spare = max(spare * _SPARE, _SPARE)
        by_meaning = self._embedder.generation if self._embedder and read.code else ""
        return Found(hits, ranking.considered, FORMULA, by_meaning)

    async def _embed(self, embedder: Embedder, question: str, read: "_Read") -> None:
        # Without it words find, and `Found.generation` says that they alone did.
        with suppress(ModelUnavailableError, ValueError), anyio.move_on_after(self._meaning_s):
            read.code = await embedder.code_of_question(question)

    async def _exclude(self, owner_key: str, row_ids: Collection[str], read: "_Read") -> None:
        read.without = await self._index.places_of(owner_key, row_ids)

    async def _hits(self, owner_key: str, ranked: Sequence[Ranked], without: Collection[str], beside: int) -> list[Hit]:
        """The rows of the best places that still have one, each with those beside it.

        One in `without` may have been given its place after those were read.
        """
        around = {found.place: _beside(found.place, beside) for found in ranked}
        rows = await self._index.rows_at(owner_key, {place for places in around.values() for place in places})
        return [
            Hit(rows[found.place], found.score, _in_order(rows, around[found.place]))
            for found in ranked
            if found.place in rows and rows[found.place]["_id"] not in without
        ]


class _Read:
    """What is read beside the postings."""

    code: bytes | None = None
    without: Collection[Place] = ()


def _distinct(hits: Sequence[Hit]) -> list[Hit]:
    best: dict[str, Hit] = {}
    for hit in hits:
        best.setdefault(one_line(text_of(hit.row)).casefold(), hit)
    return [*best.values()]


def question_terms(question: str, language: Language = "english") -> list[str]:
    """The terms of a question, each once; of a long one those of its beginning and its end."""
    terms = [*dict.fromkeys(terms_of(_ends_of(question), language))]
    half = _MOST_ASKED // 2
    return terms if len(terms) <= _MOST_ASKED else [*terms[:half], *terms[-half:]]


def _ends_of(question: str) -> str:
    half = _MOST_CHARS // 2
    return question if len(question) <= _MOST_CHARS else f"{question[:half]} {question[-half:]}"


def _work_of(postings: Postings) -> int:
    entries = sum(len(places) for by_place in postings.terms.values() for places in by_place.values())
    return _CHARS_OF_ENTRY * (entries + sum(map(len, postings.codes.values())))


def _beside(place: Place, most: int) -> list[Place]:
    first = place - place % EPISODE
    return [Place(each) for each in range(place - most, place + most + 1) if first <= each < first + EPISODE]


def _in_order(rows: dict[Place, Row], places: Sequence[Place]) -> list[Row]:
    return [rows[place] for place in places if place in rows]
