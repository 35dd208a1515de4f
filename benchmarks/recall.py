"""What long-term memory finds in conversations whose evidence is known, and how fast it is.

    python -m benchmarks.recall quality --locomo locomo10.json --chinese zh_recall.json zh_recall_hard.json

Recall is fractional: of each question the share of its evidence among the first messages, and the share of the sessions
of its evidence among the first sessions, of which each ranks by its best message. Questions without evidence that
exists are left out.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.conversations import Conversation, Question, read_locomo, read_owners
from nexus.core.recall import EPISODE, Place, Postings
from nexus.services.recall.score import WEIGHTS, Weights, rank
from nexus.services.recall.service import question_terms
from nexus.services.recall.terms import dates_named, flags_of, occurrences

# Messages that are ranked: enough to have those of ten sessions among them.
_RANKED: Final = 200
_FIRST: Final = (5, 10)
# Among which weights are chosen.
_CHOICES: Final = [
    replace(WEIGHTS, near=near, far=far, session=session, date=date)
    for (near, far), session, date in product(((0.4, 0.2), (0.5, 0.25), (0.6, 0.3)), (0.25, 0.4), (2.0, 4.0))
]

console = Console(width=110)


class Recalled(NamedTuple):
    """Shares of the evidence among the first 5 and 10 messages, and of its sessions among the first 5 and 10."""

    turns_5: float
    turns_10: float
    sessions_5: float
    sessions_10: float


# At least, as shares that are found.
_BAR_LOCOMO: Final = Recalled(0.65, 0.73, 0.88, 0.94)
_OVER_BASELINE: Final = 0.08
# What a file's baseline calls them.
_BASELINE: Final = ("recall@5", "recall@10", "session_recall@5", "session_recall@10")


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one conversation in dictionaries, as `Postings` has it."""

    conversation: Conversation
    ids: dict[Place, str] = field(default_factory=dict)
    terms: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    flags: dict[str, dict[str, int]] = field(default_factory=dict)

    def ranked(self, question: Question, weights: Weights) -> list[str]:
        """The ids of the messages for a question, best first."""
        terms = {term: self.terms[term] for term in question_terms(question.text) if term in self.terms}
        postings = Postings(len(self.ids), terms, self.flags)
        best = rank(postings, dates_named(question.text), limit=_RANKED, weights=weights).best
        return [self.ids[found.place] for found in best if found.place in self.ids]


def indexed(conversation: Conversation) -> Index:
    """Give each message a place, and index it."""
    index, in_session, episodes = Index(conversation), Counter[str](), dict[tuple[str, int], int]()
    for document in conversation.documents:
        session = document["session_id"]
        part, at = divmod(in_session[session], EPISODE)
        in_session[session] += 1
        number = episodes.setdefault((session, part), len(episodes))
        index.ids[Place(number * EPISODE + at)] = document["id"]
        for term, occurrence in occurrences(document["content"]).items():
            index.terms.setdefault(term, {}).setdefault(str(number), {})[str(at)] = occurrence
        for flag in flags_of(document["timestamp"], by_assistant=document["role"] == "AI"):
            bits = index.flags.setdefault(flag, {})
            bits[str(number)] = bits.get(str(number), 0) | 1 << at
    return index


def measured(index: Index, weights: Weights = WEIGHTS) -> list[Recalled]:
    """What is recalled for each question of a conversation."""
    conversation = index.conversation
    sessions = {document["id"]: document["session_id"] for document in conversation.documents}
    return [recalled(question, index.ranked(question, weights), sessions) for question in conversation.questions]


def recalled(question: Question, ranked: Sequence[str], sessions: Mapping[str, str]) -> Recalled:
    """What is recalled for a question by these ids, best first; `sessions` are those of all ids."""
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


def quality(given: argparse.Namespace) -> None:
    """Print what is recalled."""
    table = Table(title="evidence recall, in brackets what is asked for", title_justify="left")
    for column in ("", "questions", "turns @5", "@10", "sessions @5", "@10"):
        table.add_column(column, justify="right" if column else "left")
    if given.locomo:
        indexes = [*map(indexed, read_locomo(given.locomo))]
        _add(table, "LoCoMo, words", chain.from_iterable(map(measured, indexes)), _BAR_LOCOMO)
        if given.leave_one_out:
            folds = leave_one_out(indexes, _CHOICES)
            _add(table, "the same, left out", chain.from_iterable(fold.results for fold in folds), _BAR_LOCOMO)
            console.print(_folds(folds))
    for path in given.chinese:
        conversations, baseline = read_owners(path)
        bar = None
        if baseline:
            plain = Recalled(*(baseline[name] for name in _BASELINE))
            table.add_row(f"{path.stem}, baseline", "", *(f"{share:.4f}" for share in plain))
            bar = Recalled(plain.turns_5 + _OVER_BASELINE, plain.turns_10 + _OVER_BASELINE, 0, 0)
        _add(table, f"{path.stem}, words", chain.from_iterable(measured(indexed(each)) for each in conversations), bar)
    console.print(table)


def _add(table: Table, name: str, results: Iterable[Recalled], bar: Recalled | None) -> None:
    results = [*results]
    cells = [_cell(share, at_least) for share, at_least in zip(mean(results), bar or Recalled(0, 0, 0, 0), strict=True)]
    table.add_row(name, f"{len(results):,}", *cells)


def _cell(share: float, at_least: float) -> str:
    if not at_least:
        return f"{share:.4f}"
    shown = f"{share:.4f} ({at_least:.3g})"
    return shown if share >= at_least else f"[bold red]{shown}[/]"


def _folds(folds: Sequence[Fold]) -> Table:
    table = Table(
        title="weights that are best on the nine others, and what they recall of the tenth", title_justify="left"
    )
    for column in ("", "near", "far", "session", "date", "questions", "turns @5", "@10", "sessions @5", "@10"):
        table.add_column(column, justify="right" if column else "left")
    for fold in folds:
        weights = (fold.weights.near, fold.weights.far, fold.weights.session, fold.weights.date)
        shares = (f"{share:.3f}" for share in mean(fold.results))
        table.add_row(fold.owner_key, *(f"{weight:g}" for weight in weights), str(len(fold.results)), *shares)
    return table


def main() -> None:
    """Do what is asked for."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__)
    commands = words.add_subparsers(required=True)
    command = commands.add_parser("quality", help="what is recalled of the evidence of files with questions")
    command.add_argument("--locomo", type=Path, metavar="FILE", help="locomo10.json of snap-research/locomo")
    command.add_argument("--chinese", type=Path, metavar="FILE", nargs="+", default=[], help="files of our own form")
    command.add_argument("--leave-one-out", action="store_true", help="choose weights on all conversations but one")
    command.set_defaults(run=quality)
    given = words.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
