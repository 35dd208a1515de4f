"""How much of the evidence is found: in dictionaries, where weights can be compared, and by a running service."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Final, NamedTuple

from benchmarks.bench import Bench
from benchmarks.conversations import Conversation, Question
from benchmarks.recall_speed import database, record, serving_recall, wait_until_done
from nexus.config import DatabaseSettings, RecallSettings
from nexus.connections import open_embedder, open_store
from nexus.core.ports import Embedder
from nexus.core.recall import EPISODE, Place, Postings
from nexus.services.recall.score import WEIGHTS, Weights, rank
from nexus.services.recall.service import Recall, question_terms
from nexus.services.recall.terms import dates_named
from nexus.services.recall.texts import findable, text_of

# Messages that are ranked: enough to have those of ten sessions among them.
_RANKED: Final = 200
_FIRST: Final = (5, 10)
# Weights that are chosen; of the packaged embedder `similarity`, too.
CHOSEN: Final = ("near", "far", "session", "date", "similarity")


class Recalled(NamedTuple):
    """Shares of the evidence among the first 5 and 10 messages, and of its sessions among the first 5 and 10."""

    turns_5: float
    turns_10: float
    sessions_5: float
    sessions_10: float


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one conversation in dictionaries, as `Postings` has it, and the codes of its questions."""

    conversation: Conversation
    ids: dict[Place, str] = field(default_factory=dict)
    terms: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    flags: dict[str, dict[str, int]] = field(default_factory=dict)
    codes: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: dict[str, bytes] = field(default_factory=dict)

    def ranked(self, question: Question, weights: Weights) -> list[str]:
        """The ids of the messages for a question, best first."""
        terms = {term: self.terms[term] for term in question_terms(question.text) if term in self.terms}
        postings = Postings(len(self.ids), terms, self.flags, self.codes)
        dates, code = dates_named(question.text), self.asked.get(question.text)
        best = rank(postings, dates, limit=_RANKED, question_code=code, weights=weights).best
        return [self.ids[found.place] for found in best if found.place in self.ids]


def indexed(conversation: Conversation) -> Index:
    """Give each message a place, and index it by words."""
    index, in_session, episodes = Index(conversation), Counter[str](), dict[tuple[str, int], int]()
    for document in conversation.documents:
        session = document["session_id"]
        part, at = divmod(in_session[session], EPISODE)
        in_session[session] += 1
        number = episodes.setdefault((session, part), len(episodes))
        index.ids[Place(number * EPISODE + at)] = document["id"]
        if found := findable(document):
            for term, occurrence in found.terms.items():
                index.terms.setdefault(term, {}).setdefault(str(number), {})[str(at)] = occurrence
            for flag in found.flags:
                bits = index.flags.setdefault(flag, {})
                bits[str(number)] = bits.get(str(number), 0) | 1 << at
    return index


async def embed(indexes: Sequence[Index], embedder: Embedder) -> None:
    """Add the codes of all messages and questions."""
    for index in indexes:
        texts = [text_of(document) for document in index.conversation.documents]
        for place, code in zip(index.ids, await embedder.codes_of_texts(texts), strict=True):
            episode, at = divmod(place, EPISODE)
            index.codes.setdefault(str(episode), {})[str(at)] = code
        for question in index.conversation.questions:
            index.asked[question.text] = await embedder.code_of_question(question.text)


def choices(embedder: str) -> list[Weights]:
    """Weights around those in use, among which `leave_one_out` chooses."""
    grid = product(
        ((0.4, 0.2), (0.5, 0.25), (0.6, 0.3)), (0.25, 0.4), (2.0, 4.0), (1.0,) if embedder == "off" else (1.0, 1.5)
    )
    return [
        replace(WEIGHTS, near=near, far=far, session=session, date=date, similarity=similarity)
        for (near, far), session, date, similarity in grid
    ]


def measured(index: Index, weights: Weights = WEIGHTS) -> list[Recalled]:
    """What is recalled for each question of a conversation."""
    ranked = [index.ranked(question, weights) for question in index.conversation.questions]
    return recalled_of(index.conversation, ranked)


def recalled_of(conversation: Conversation, ranked: Iterable[Sequence[str]]) -> list[Recalled]:
    """What is recalled for each question by the ids that are ranked for it, best first."""
    sessions = {document["id"]: document["session_id"] for document in conversation.documents}
    return [_recalled(question, ids, sessions) for question, ids in zip(conversation.questions, ranked, strict=True)]


def _recalled(question: Question, ranked: Sequence[str], sessions: Mapping[str, str]) -> Recalled:
    found = [*dict.fromkeys(sessions[each] for each in ranked)]
    wanted = {sessions[each] for each in question.evidence}
    turns = (len(question.evidence.intersection(ranked[:first])) / len(question.evidence) for first in _FIRST)
    return Recalled(*turns, *(len(wanted.intersection(found[:first])) / len(wanted) for first in _FIRST))


def mean(results: Iterable[Recalled]) -> Recalled:
    """Of all questions."""
    columns = [*zip(*results, strict=True)]
    return Recalled(*(sum(column) / len(column) for column in columns))


@dataclass(frozen=True, slots=True)
class Fold:
    """A conversation, the weights that are best on all others, and what those recall here."""

    owner_key: str
    weights: Weights
    results: Sequence[Recalled]


def leave_one_out(indexes: Sequence[Index], choices: Sequence[Weights]) -> list[Fold]:
    """Score each conversation with the weights that are best on the others: those of the highest sum of the figures."""
    table = [[measured(index, weights) for index in indexes] for weights in choices]

    def best_without(left_out: int) -> int:
        sums = [
            sum(mean(chain.from_iterable(of for at, of in enumerate(results) if at != left_out))) for results in table
        ]
        return sums.index(max(sums))

    best = [best_without(at) for at in range(len(indexes))]
    return [
        Fold(index.conversation.owner_key, choices[best[at]], table[best[at]][at]) for at, index in enumerate(indexes)
    ]


@dataclass(frozen=True, slots=True)
class Served:
    """What a running service recalls.

    Attributes:
        results: of each question.
        asked: questions of the first conversation, which were asked from the bus, too.
        different: those of them for which other messages came first.
    """

    results: Sequence[Recalled]
    asked: int
    different: int


def served(bench: Bench, conversations: Sequence[Conversation], settings: RecallSettings) -> Served:
    """Record the conversations, have a service index them, and search."""
    place = bench.place(uuid.uuid4().hex[:8], [])
    asyncio.run(record(place, chain.from_iterable(each.documents for each in conversations)))
    with serving_recall(place, settings.embedder):
        wait_until_done(bench, place)
        ranked = asyncio.run(_search(database(place), conversations, settings))
        first = conversations[0]
        texts = [question.text for question in first.questions]
        answered = bench.requester.ask(place, [first.owner_key], requests=len(texts), texts=texts)["hits"]
    different = sum(found[:10] != ids for found, ids in zip(ranked[0], answered, strict=True))
    results = [recalled_of(each, found) for each, found in zip(conversations, ranked, strict=True)]
    return Served([*chain.from_iterable(results)], len(texts), different)


async def _search(
    store_settings: DatabaseSettings, conversations: Sequence[Conversation], settings: RecallSettings
) -> list[list[list[str]]]:
    """By conversation and question the ids that are found."""
    async with open_store(store_settings) as store, open_embedder(settings) as embedder:
        recall = Recall(store.recall, embedder)

        async def ids(owner_key: str, text: str) -> list[str]:
            found = await recall.search(owner_key, text, limit=_RANKED, beside=0)
            return [hit.row["id"] for hit in found.hits]

        return [[await ids(each.owner_key, question.text) for question in each.questions] for each in conversations]
