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
from nexus.services.context.entries import Entry, as_text, read_rows, text_of_parts

__all__ = ["Entry", "Utterance", "as_text", "merge", "places_in_run", "read_rows", "stored_order", "text_of_parts"]

_NO_ID: Final = "0" * 24
_OBJECT_IDS: Final = re.compile(f"{OBJECT_ID.pattern}(?:,{OBJECT_ID.pattern})*+")
_OBJECT_ID_STEP: Final = len(_NO_ID) + 1


# The sort key of an utterance, and what it was made of.
_Side = tuple[datetime, int, bool, int, tuple[Entry, ...]]


class Utterance(NamedTuple):
    """What one side said: a human row, or the AI rows of a run together, in the order of time.

    Attributes:
        id: that of the row, or `merged_ai_<run_id>`.
        moment: the latest of its rows'; None when none has a readable time.
        merged: several rows may stand behind it (it is the AI's side of a run).
        order: the sort key, which no other has; ascending is oldest first.
    """

    id: str
    run_id: str
    role: Literal["human", "ai", ""]
    entries: tuple[Entry, ...]
    moment: datetime | None
    merged: bool
    order: tuple[datetime, int, bool, int]


def merge(entries: Sequence[Entry]) -> list[Utterance]:
    """The entries that are shown as utterances, newest first."""
    return [_utterance(side) for side in _sides(entries, [entry.row for entry in entries])]


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
        sides: what each side said in each run, newest first.
        lines: how messages were shown before, by what they are made of and how; for whoever shows them.

    Args:
        rows: as stored.
        lines: those of rows of which most are among these.
    """

    def __init__(self, rows: Iterable[Any], lines: dict[Any, Any] | None = None) -> None:
        super().__init__(rows)
        self.lines: dict[Any, Any] = {} if lines is None else lines
        self.entries, self.repaired = read_rows(self)
        self.runs = {entry.run_id for entry in self.entries if entry.run_id}
        self.sides = _sides(self.entries, self)


def newest(rows: Sequence[Any], count: int, *, current_run_id: str = "") -> Newest:
    """The newest `count` utterances of these rows, those of the current run left out; none for 0 or less."""
    if isinstance(rows, ReadRows) and current_run_id not in rows.runs:
        sides, repaired = rows.sides, rows.repaired
    else:
        entries, repaired = read_rows(rows, current_run_id=current_run_id)
        sides = _sides(entries, rows)
    return Newest([_utterance(side) for side in sides[: max(count, 0)]], len(sides), repaired)


def _utterance(side: _Side) -> Utterance:
    at, rank, is_answer, place, entries = side
    first = entries[0]
    merged = is_answer and first.run_id != ""
    uid = f"merged_ai_{first.run_id}" if merged else first.id
    moment = first.moment if len(entries) == 1 else max([e.moment for e in entries if e.moment], default=None)
    return Utterance(uid, first.run_id, first.role, entries, moment, merged, (at, rank, is_answer, place))


def _sides(entries: Sequence[Entry], rows: Sequence[Any]) -> list[_Side]:
    """What each side said in each run, newest first, by what each of the rows says."""
    sides: list[_Side] = []
    runs: dict[str, list[tuple[int, Entry]]] = {}
    untimed: set[str] = set()
    for placed in zip(stored_order(rows), entries, strict=True):
        rank, entry = placed
        run_id = entry.run_id
        if not run_id:
            if entry.role:
                sides.append((entry.moment or LONG_AGO, rank, entry.role == "ai", rank, (entry,)))
            continue
        if entry.moment is None:
            untimed.add(run_id)
        if run_id in runs:
            runs[run_id].append(placed)
        else:
            runs[run_id] = [placed]
    for run_id, members in runs.items():
        _add_run(members, sides, untimed=run_id in untimed)
    # No two have the same rank, so that nothing but moments and numbers is compared.
    sides.sort(reverse=True)
    return sides


def _add_run(members: list[tuple[int, Entry]], sides: list[_Side], *, untimed: bool) -> None:
    """Add what the two sides said in a run: of rows that come newest first, the newest first."""
    first = min(members)[0]
    moments = _assumed_moments([(rank, entry.moment) for rank, entry in members]) if untimed else None
    humans: list[_Side] = []
    spoken: list[tuple[datetime, int, Entry]] = []
    for rank, entry in members:
        at = moments[rank] if moments else entry.moment or LONG_AGO
        if entry.role == "ai":
            spoken.append((at, rank, entry))
        else:
            humans.append((at, first, False, rank, (entry,)))
    if spoken:
        spoken.sort()
        at, rank, last = spoken[-1]
        # Clocks differ: an answer that claims to be older than its question still comes after it.
        if humans and (asked := min(humans)[0]) > at:
            at = asked
        said = (last,) if len(spoken) == 1 else tuple([entry for _, _, entry in spoken])
        sides.append((at, first, True, rank, said))
    sides += humans


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
    # Nearly all are dictionaries, and asking for the type is several times as fast as asking for a mapping.
    ids: list[Any] = [row.get("_id") if type(row) is dict or isinstance(row, Mapping) else _NO_ID for row in rows]
    if _are_object_ids(ids):
        # The later of two with the same `_id` comes first, as it does by place.
        ranks = [0] * len(rows)
        for rank, index in enumerate(sorted(range(len(rows) - 1, -1, -1), key=ids.__getitem__)):
            ranks[index] = rank
        return ranks
    moments = [moment for row in rows if isinstance(row, Mapping) and (moment := parse_moment(row.get("timestamp")))]
    oldest_first = bool(moments) and moments[0] < moments[-1]
    return list(range(len(rows))) if oldest_first else list(range(len(rows) - 1, -1, -1))


def _are_object_ids(ids: list[Any]) -> bool:
    """Whether all of them are; there has to be one."""
    try:
        joined = ",".join(ids)
    except TypeError:
        return False
    # One match over all of them is several times as fast as one each. None of them can hold a comma: then there would
    # be more than there are.
    return len(joined) == len(ids) * _OBJECT_ID_STEP - 1 and _OBJECT_IDS.fullmatch(joined) is not None
