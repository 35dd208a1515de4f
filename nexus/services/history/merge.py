"""The past as messages: rows merged by run, and their order (contract §2, §4.3). Pure.

- All AI rows of a run become one message; humans stay as they are; rows without a run id are never merged.
- Everything is compared as moments. At equal moments humans come before the AI of their run, then stored order counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from nexus.core.models import LONG_AGO, is_object_id, parse_moment
from nexus.services.history.forms import PART
from nexus.services.history.rows import Entry, read_rows

_NO_ID: Final = "0" * 24

# By time, then run by run, the human first, then as it was stored.
Place = tuple[datetime, int, bool, int]


class Utterance(NamedTuple):
    """What one side said: a human row, or the AI rows of a run together. Ascending is oldest first.

    Attributes:
        at: the moment that decides on its place.
        first: the rank, in stored order, of the first row of its run.
        is_answer: at the same moment humans come first.
        rank: the rank of its last row; no other utterance has the same.
        entries: in the order of time.
    """

    at: datetime
    first: int
    is_answer: bool
    rank: int
    entries: tuple[Entry, ...]

    @property
    def id(self) -> str:
        """That of the row, or `merged_ai_<run_id>`."""
        return f"merged_ai_{self.run_id}" if self.is_merged else self.entries[0].id

    @property
    def run_id(self) -> str:
        """That of its rows; `""` for none."""
        return self.entries[0].run_id

    @property
    def role(self) -> Literal["human", "ai", ""]:
        """That of its rows."""
        return self.entries[0].role

    @property
    def moment(self) -> datetime | None:
        """The latest of its rows'; None when none has a readable time."""
        return max([entry.moment for entry in self.entries if entry.moment], default=None)

    @property
    def is_merged(self) -> bool:
        """Whether several rows may stand behind it: it is the AI's side of a run."""
        return self.is_answer and self.run_id != ""


class Newest(NamedTuple):
    """The newest utterances.

    Attributes:
        utterances: newest first.
        total: how many there are in all.
        repaired: rows that had to be repaired or left out.
    """

    utterances: list[Utterance]
    total: int
    repaired: int


def merge(entries: Sequence[Entry]) -> list[Utterance]:
    """The entries that are shown as utterances, newest first."""
    order = _oldest_first([entry.row for entry in entries])
    utterances: list[Utterance] = []
    runs: dict[str, list[tuple[int, Entry]]] = {}
    for rank, index in enumerate(order):
        entry = entries[index]
        if entry.run_id:
            runs.setdefault(entry.run_id, []).append((rank, entry))
        elif entry.role:
            utterances.append(Utterance(entry.moment or LONG_AGO, rank, entry.role == "ai", rank, (entry,)))
    for members in runs.values():
        utterances += _utterances_of_run(members)
    # No two have the same rank, so that entries are never compared.
    utterances.sort(reverse=True)
    return utterances


def newest(rows: Sequence[Any], count: int, *, current_run_id: str = "") -> Newest:
    """The newest `count` utterances of these rows, those of the current run left out; none for 0 or less."""
    entries, repaired = read_rows(rows, current_run_id=current_run_id)
    utterances = merge(entries)
    return Newest(utterances[: max(count, 0)], len(utterances), repaired)


def _utterances_of_run(members: Sequence[tuple[int, Entry]]) -> list[Utterance]:
    """What the two sides said in a run; its rows come in stored order."""
    first = members[0][0]
    utterances: list[Utterance] = []
    answers: list[tuple[datetime, int, Entry]] = []
    for (rank, entry), moment in zip(members, _assumed_moments([entry.moment for _, entry in members]), strict=True):
        if entry.role == "human":
            utterances.append(Utterance(moment, first, False, rank, (entry,)))
        else:
            answers.append((moment, rank, entry))
    if answers:
        answers.sort()
        at, rank, _ = answers[-1]
        # Clocks differ: an answer that claims to be older than its question still comes after it.
        at = max(at, min([human.at for human in utterances], default=at))
        utterances.append(Utterance(at, first, True, rank, tuple([entry for _, _, entry in answers])))
    return utterances


def _assumed_moments(moments: Sequence[datetime | None]) -> list[datetime]:
    """The moments of the rows of a run, in stored order; for None that of the row before, or the run's earliest."""
    assumed = min([moment for moment in moments if moment], default=LONG_AGO)
    return [assumed := moment or assumed for moment in moments]


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A row that can be shown, with all on which its place depends.

    Attributes:
        index: its place in the list that was read.
        moment: in UTC; None when it has no readable time.
        rank: in stored order.
        is_human: it is the user's.
    """

    index: int
    moment: datetime | None
    rank: int
    is_human: bool


def places_in_run(members: Sequence[PlacedRow]) -> dict[int, Place]:
    """By index, the sort key of each row of a run, for rows of every role; ascending is oldest first.

    Clocks differ: nothing comes before the first row of a human.
    """
    ordered = sorted(members, key=attrgetter("rank"))
    assumed = _assumed_moments([row.moment for row in ordered])
    moments = {row.rank: moment for row, moment in zip(ordered, assumed, strict=True)}
    asked, question = min(((moments[row.rank], row.rank) for row in members if row.is_human), default=(LONG_AGO, -1))
    first = min(moments, default=0)
    return {row.index: (max(moments[row.rank], asked), first, row.rank != question, row.rank) for row in members}


def stored_order(rows: Sequence[Any]) -> list[int]:
    """For each row its rank in stored order, oldest lowest.

    By `_id` where every row has an ObjectId, which grows with time. Otherwise by place: stores answer newest first, so
    the last row is the oldest, unless the times at both ends say that the list runs the other way.
    """
    ranks = [0] * len(rows)
    for rank, index in enumerate(_oldest_first(rows)):
        ranks[index] = rank
    return ranks


def _oldest_first(rows: Sequence[Any]) -> Iterable[int]:
    """The places of the rows in the list, in stored order."""
    ids = [row.get("_id") if isinstance(row, dict) else _NO_ID for row in rows]
    back = range(len(rows) - 1, -1, -1)
    if all(isinstance(row_id, str) and is_object_id(row_id) for row_id in ids):
        # The later of two with the same `_id` comes first, as it does by place. So do parts of one row (`native_rows`).
        return sorted(back, key=lambda index: str(ids[index]))
    start, end = _first_moment(rows), _first_moment(reversed(rows))
    if not (start and end and start < end):
        return back
    forward = groupby(range(len(rows)), key=lambda index: ids[index] if _is_part(rows[index]) else index)
    return [index for _, parts in forward for index in reversed([*parts])]


def _is_part(row: Any) -> bool:
    return isinstance(row, dict) and PART in row and "_id" in row


def _first_moment(rows: Iterable[Any]) -> datetime | None:
    read = (parse_moment(row.get("timestamp")) for row in rows if isinstance(row, Mapping))
    return next(filter(None, read), None)
