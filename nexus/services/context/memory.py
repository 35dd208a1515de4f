"""The past as it was stored: rows read leniently and merged by run (CONTRACT §2, §4.3).

Rules of this module:

- Rows are read by `entries`: one that is malformed never spoils the rest.
- All AI rows of a run become one message; humans stay as they are; rows without a run id are never merged.
- Everything is compared as moments. At equal moments humans come before the AI of their run, then stored order counts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, Protocol

from nexus.core.working_memory import OBJECT_ID
from nexus.services.context.clock import LONG_AGO, parse_moment
from nexus.services.context.entries import Entry, KeptRow, as_text, read_row, read_rows, text_of_parts

__all__ = ["Entry", "Utterance", "as_text", "merge", "places_in_run", "read_rows", "stored_order", "text_of_parts"]

_ID: Final = itemgetter("_id")
_NO_ID: Final = "0" * 24
# Nearly all rows are dictionaries, which is found out several times as fast as that something is a mapping.
_MAPPINGS: Final = (dict, Mapping)
_OBJECT_IDS: Final = re.compile(f"{OBJECT_ID.pattern}(?:,{OBJECT_ID.pattern})*+")
_OBJECT_ID_STEP: Final = len(_NO_ID) + 1
# Makes a named tuple as its class does, without the call in between.
_made: Final = tuple.__new__


# What a row says, after its rank in stored order.
_Placed = tuple[int, Entry]


class Utterance(NamedTuple):
    """What one side said: a human row, or the AI rows of a run together. Ascending is oldest first.

    Attributes:
        at: by when it was said it has its place.
        first: the rank, in stored order, of the first row of its run.
        is_answer: at the same moment what people say comes first.
        rank: that of its last row, which no other has.
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
        return f"merged_ai_{self.run_id}" if self.merged else self.entries[0].id

    @property
    def run_id(self) -> str:
        """That of its rows; `""` for none."""
        return self.entries[0].run_id

    @property
    def role(self) -> Literal["human", "ai", ""]:
        """That of its rows."""
        return self.entries[0].role

    @property
    def order(self) -> tuple[datetime, int, bool, int]:
        """The sort key, which no other has; ascending is oldest first."""
        return self.at, self.first, self.is_answer, self.rank

    @property
    def moment(self) -> datetime | None:
        """The latest of its rows'; None when none has a readable time."""
        if len(self.entries) == 1:
            return self.entries[0].moment
        return max([entry.moment for entry in self.entries if entry.moment], default=None)

    @property
    def merged(self) -> bool:
        """Whether several rows may stand behind it: it is the AI's side of a run."""
        return self.is_answer and self.run_id != ""


def merge(entries: Sequence[Entry]) -> list[Utterance]:
    """The entries that are shown as utterances, newest first."""
    order, _ = _oldest_first([entry.row for entry in entries])
    return _utterances([*enumerate(map(entries.__getitem__, order))])


class Newest(NamedTuple):
    """The newest of what was said.

    Attributes:
        utterances: newest first.
        merged: how many there are in all.
        repaired: rows that had to be repaired or left out.
    """

    utterances: list[Utterance]
    merged: int
    repaired: int


class ReadRows(list[Any]):
    """Rows that nobody may change, nor the list of them: they are read and merged once, however often that is asked.

    Attributes:
        entries, repaired: as `read_rows` returns them.
        runs: that are among them.
        utterances: what is said in them, newest first.
        lines: how messages were shown last, by the way of showing; for whoever shows them.
    """

    __slots__ = ("_last_id", "_placed", "entries", "lines", "repaired", "runs", "utterances")

    def __init__(self, rows: Iterable[Any] = ()) -> None:
        super().__init__(rows)
        self.lines: dict[Any, Any] = {}
        self.entries, self.repaired = read_rows(self)
        self.runs = {entry.run_id for entry in self.entries}
        self.runs.discard("")
        order, self._last_id = _oldest_first(self)
        self._placed = [*enumerate(map(self.entries.__getitem__, order))]
        self.utterances = _utterances(self._placed)

    def with_newer(self, rows: Sequence[Mapping[str, Any]]) -> "ReadRows | None":
        """What `ReadRows([*reversed(rows), *self])` is, in a fraction of the time: all but the rows' runs is as it was.

        None where it is not certain that each was stored after all before it, which is what their `_id`s tell.

        Args:
            rows: at least one, oldest first.
        """
        ids: list[Any] = [self._last_id, *[row.get("_id") for row in rows]]
        if not (self._last_id and _are_object_ids(ids) and ids == sorted(ids)):
            return None
        entries = [row.entry if type(row) is KeptRow else read_row(row) for row in rows]
        places = [*enumerate(entries, len(self))]
        runs = {entry.run_id for entry in entries if entry.run_id}
        others, again = self.utterances, self.runs & runs
        if again:
            others = [said for said in others if said.entries[0].run_id not in again]
            changed = _utterances([*[each for each in self._placed if each[1].run_id in again], *places])
        else:
            changed = _utterances(places)
        grown = ReadRows()
        grown += [*reversed(rows), *self]
        grown.lines = self.lines
        grown.entries = [*reversed(entries), *self.entries]
        grown.repaired = self.repaired + [entry.repaired for entry in entries].count(True)
        grown.runs = self.runs if runs == again else self.runs | runs
        grown.utterances = sorted([*changed, *others], reverse=True)
        grown._placed, grown._last_id = [*self._placed, *places], ids[-1]  # noqa: SLF001  # it is one of this class
        return grown


def newest(rows: Sequence[Any], count: int, *, current_run_id: str = "") -> Newest:
    """The newest `count` utterances of these rows, those of the current run left out; none for 0 or less."""
    read = rows if isinstance(rows, ReadRows) else ReadRows(rows)
    utterances, repaired = read.utterances, read.repaired
    if current_run_id in read.runs:
        utterances = [said for said in utterances if said.entries[0].run_id != current_run_id]
        repaired = [entry.repaired for entry in read.entries if entry.run_id != current_run_id].count(True)
    return Newest(utterances[: max(count, 0)], len(utterances), repaired)


def _utterances(placed: Sequence[_Placed]) -> list[Utterance]:
    """What was said in these rows, newest first."""
    utterances: list[Utterance] = []
    runs: dict[str, list[tuple[datetime, int, Entry]]] = {}
    assumed: dict[int, datetime] | None = None
    for rank, entry in placed:
        role, _, run_id, _, at, _, _, _ = entry
        if at is None:
            assumed = _assumed_in_runs(placed) if assumed is None else assumed
            at = assumed.get(rank, LONG_AGO)
        if run_id in runs:
            runs[run_id].append((at, rank, entry))
        elif run_id:
            runs[run_id] = [(at, rank, entry)]
        elif role:
            utterances.append(Utterance(at, rank, role == "ai", rank, (entry,)))
    for members in runs.values():
        _add_run(members, utterances)
    # No two have the same rank, so that nothing but moments and numbers is compared.
    utterances.sort(reverse=True)
    return utterances


def _add_run(members: list[tuple[datetime, int, Entry]], utterances: list[Utterance]) -> None:
    """Add what the two sides said in a run, of which the rows come in stored order."""
    first = members[0][1]
    asked: datetime | None = None
    answers = []
    for member in members:
        at, rank, entry = member
        if entry.role == "ai":
            answers.append(member)
        else:
            utterances.append(_made(Utterance, (at, first, False, rank, (entry,))))
            asked = at if asked is None or at < asked else asked
    if not answers:
        return
    answers.sort()
    at, rank, last = answers[-1]
    # Clocks differ: an answer that claims to be older than its question still comes after it.
    at = asked if asked and asked > at else at
    entries = (last,) if len(answers) == 1 else tuple([entry for _, _, entry in answers])
    utterances.append(_made(Utterance, (at, first, True, rank, entries)))


def _assumed_in_runs(placed: Iterable[_Placed]) -> dict[int, datetime]:
    """By rank, the moment of each row of a run, also of those without one."""
    runs: dict[str, list[tuple[int, datetime | None]]] = {}
    for rank, entry in placed:
        if entry.run_id:
            runs.setdefault(entry.run_id, []).append((rank, entry.moment))
    return {rank: moment for members in runs.values() for rank, moment in _assumed_moments(members).items()}


def _assumed_moments(members: Sequence[tuple[int, datetime | None]]) -> dict[int, datetime]:
    """By rank, the moment of each row of a run; without one, that of the row stored before it or the run's first."""
    moments = {rank: moment for rank, moment in members if moment is not None}
    if len(moments) < len(members):
        assumed = min(moments.values(), default=LONG_AGO)
        for rank, moment in sorted(members, key=itemgetter(0)):
            assumed = moments[rank] = moment or assumed
    return moments


class _Spoken(Protocol):
    """A row that can be shown, with its place in the list that was read, its time, and its rank in stored order."""

    @property
    def index(self) -> int: ...
    @property
    def moment(self) -> datetime | None: ...
    @property
    def rank(self) -> int: ...
    @property
    def is_human(self) -> bool: ...


# By when it was said, then run by run, the human first, then as it was stored.
Place = tuple[datetime, int, bool, int]


def places_in_run(members: Sequence[_Spoken]) -> dict[int, Place]:
    """By index, the sort key of each row of a run, for rows of every role; ascending is oldest first.

    Clocks differ: nothing comes before the first that a human said.
    """
    moments = _assumed_moments([(row.rank, row.moment) for row in members])
    asked = min((moments[row.rank] for row in members if row.is_human), default=LONG_AGO)
    first = min(moments, default=0)
    return {row.index: (max(moments[row.rank], asked), first, not row.is_human, row.rank) for row in members}


def stored_order(rows: Sequence[Any]) -> list[int]:
    """For each row its rank in stored order, oldest lowest.

    By `_id` where every row has an ObjectId, which grows with time. Otherwise by place: stores answer newest first, so
    the last row is the oldest, unless the times at both ends say that the list runs the other way.
    """
    order, _ = _oldest_first(rows)
    ranks = [0] * len(rows)
    for rank, index in enumerate(order):
        ranks[index] = rank
    return ranks


def _oldest_first(rows: Sequence[Any]) -> tuple[Sequence[int], str]:
    """The places of the rows in the list, in stored order, and the last one's `_id` where that is what they go by."""
    ids: list[Any]
    try:
        ids = [*map(_ID, rows)]
    except (KeyError, TypeError):
        ids = [row.get("_id") if isinstance(row, _MAPPINGS) else _NO_ID for row in rows]
    back = range(len(rows) - 1, -1, -1)
    if _are_object_ids(ids):
        # The later of two with the same `_id` comes first, as it does by place.
        newest_first = sorted(ids, reverse=True)
        return back if ids == newest_first else sorted(back, key=ids.__getitem__), newest_first[0]
    moments = [moment for row in rows if isinstance(row, Mapping) and (moment := parse_moment(row.get("timestamp")))]
    oldest_first = bool(moments) and moments[0] < moments[-1]
    return range(len(rows)) if oldest_first else back, ""


def _are_object_ids(ids: list[Any]) -> bool:
    """Whether all of them are; there has to be one."""
    try:
        joined = ",".join(ids)
    except TypeError:
        return False
    # One match over all of them is several times as fast as one each. None of them can hold a comma: then there would
    # be more than there are.
    return len(joined) == len(ids) * _OBJECT_ID_STEP - 1 and _OBJECT_IDS.fullmatch(joined) is not None
