"""The rows of a session in order, in units that are compacted as a whole, and which runs may go on (contract §7). Pure.

- Order of rows, and calls of results, are those of the validity gate: compaction and contexts cannot differ.
- A block is a message with calls and everything of its run up to the last of its results. Overlapping blocks are one,
  and so are units of which one row is in both: a result may come in another run, and one row may be several messages.
- Rows that no context shows (SYSTEM, COMMAND, malformed ones) are units too. Rows internal to a sub-agent are left
  out.
- A call that is reported to be under way, or to wait for input, is pending: its block stays, and so does the row that
  says so, by itself, for it may have been recorded long after.
- A run is over when it has its answer and every call its result, or after a long enough silence. A call without a
  result is awaited for a day. A sub-agent's rows say that its run goes on; they are in no tail, so that has to be
  read from whole runs (`KnownRuns`).
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from nexus.core.models import LONG_AGO, is_internal, is_object_id, parse_moment, seconds_of
from nexus.core.ports import Row
from nexus.services.history.messages import HistoryMessage, in_order, places_in_run, read_messages
from nexus.services.history.progress import GIVEN_UP, PENDING
from nexus.services.history.run_facts import facts_in
from nexus.services.history.transcript import answers_of

# No call is awaited longer, nor does a run stay open longer by its silence (`memory.turn_idle_s`).
LONGEST_CALL: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows of which all are compacted or none: their places in the ordered list, ascending.

    A block holds tool calls; it is open where one of them has no result. What is pending is never compacted. `run_id`
    is `""` for rows of no run.
    """

    places: tuple[int, ...]
    run_id: str
    is_block: bool = False
    is_open: bool = False
    is_pending: bool = False

    @property
    def end(self) -> int:
        """The place of its last row."""
        return self.places[-1]


def ordered_messages(rows: Sequence[Row]) -> list[HistoryMessage]:
    """What the rows say, in the order of the conversation, whatever order they come in."""
    return in_order([item for item in read_messages(rows) if not is_internal(item.metadata)])


def keeps_order(items: Iterable[HistoryMessage]) -> bool:
    """Whether these rows of a run would be shown in this order without the run's other rows.

    Where clocks differ the order rests on the human input, before which nothing comes.
    """
    places = places_in_run([item for item in items if item.role])
    return all(one < following for one, following in pairwise(places))


def units_of(items: Sequence[HistoryMessage]) -> list[Unit]:
    """The units of ordered rows, by their last row."""
    runs: defaultdict[str, list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        runs[item.run_id].append(place)
    blocks: defaultdict[str, list[Unit]] = defaultdict(list)
    found, pending = _blocks(items)
    for block in found:
        blocks[block.run_id].append(block)
    units: list[Unit] = []
    for run_id, places in runs.items():
        units += _units_of_run(run_id, places, _merged(blocks[run_id]))
    units = [replace(unit, is_pending=unit.is_pending or not pending.isdisjoint(unit.places)) for unit in units]
    return _joined(units, items)


def _joined(units: Iterable[Unit], items: Sequence[HistoryMessage]) -> list[Unit]:
    """The units by their last row, those of which a row is in both as one."""
    of_row: dict[str, Unit] = {}
    for unit in sorted(units, key=lambda unit: unit.end):
        rows = {items[place].row["_id"] for place in unit.places}
        same = {other.places: other for row_id in rows if (other := of_row.get(row_id))}
        joined = unit
        for other in same.values():
            places = tuple(sorted({*joined.places, *other.places}))
            first = min(joined, other, key=lambda each: each.places)
            joined = Unit(
                places,
                first.run_id,
                is_block=joined.is_block or other.is_block,
                is_open=joined.is_open or other.is_open,
                is_pending=joined.is_pending or other.is_pending,
            )
        of_row |= dict.fromkeys((items[place].row["_id"] for place in joined.places), joined)
    distinct = {unit.places: unit for unit in of_row.values()}
    return sorted(distinct.values(), key=lambda unit: unit.end)


def _units_of_run(run_id: str, places: Sequence[int], blocks: Sequence[Unit]) -> list[Unit]:
    units, inside = [], set[int]()
    for block in blocks:
        # Rows without a run have nothing to do with each other.
        if run_id:
            between = places[bisect_left(places, block.places[0]) : bisect_right(places, block.end)]
            units.append(replace(block, places=tuple(sorted({*between, *block.places}))))
        else:
            units.append(block)
        inside.update(units[-1].places)
    return units + [Unit((place,), run_id) for place in places if place not in inside]


def _merged(blocks: Iterable[Unit]) -> list[Unit]:
    groups: list[list[Unit]] = []
    end = -1
    for block in sorted(blocks, key=lambda block: block.places):
        if block.places[0] > end:
            groups.append([])
        groups[-1].append(block)
        end = max(end, block.end)
    return [
        Unit(
            tuple(sorted({place for block in group for place in block.places})),
            group[0].run_id,
            is_block=True,
            is_open=any(block.is_open for block in group),
            is_pending=any(block.is_pending for block in group),
        )
        for group in groups
    ]


def _blocks(items: Sequence[HistoryMessage]) -> tuple[list[Unit], set[int]]:
    """Messages with calls and their results, and the places of the rows that say that a call is pending."""
    found, pending = [], set[int]()
    for declared, answers in answers_of(items):
        known = [place for place in answers if place is not None]
        waiting = {place for place in known if items[place].state in PENDING}
        places = tuple(sorted({declared, *known} - waiting))
        is_open = len(known) < len(answers) or any(
            items[place].state and items[place].state not in GIVEN_UP for place in known
        )
        run_id = items[places[0]].run_id
        found.append(Unit(places, run_id, is_block=True, is_open=is_open, is_pending=bool(waiting)))
        pending |= waiting
    return found, pending


@dataclass(frozen=True, slots=True)
class KnownRuns:
    """Runs that are known by other rows to be over, and to go on."""

    over: Collection[str] = frozenset()
    alive: Collection[str] = frozenset()


class RunProgress:
    """Which runs may go on: by default for ever, else until a silence of `idle`.

    `asking` is the run that asks for a compaction, `""` for none. Calls recorded before `given_up` are awaited no
    longer than other messages.
    """

    def __init__(
        self,
        items: Sequence[HistoryMessage],
        known: KnownRuns,
        *,
        now: datetime,
        idle: timedelta | None,
        asking: str,
        given_up: datetime,
    ) -> None:
        self._items = items
        self._young = LONG_AGO if idle is None else now - idle
        young_calls = LONG_AGO if idle is None else now - LONGEST_CALL
        self._young_calls = min(max(young_calls, given_up), self._young)
        self._asking = asking
        self._known = known
        self._runs = _by_run(items)
        self._finished: dict[str, bool] = {}

    def finished(self, units: Iterable[Unit]) -> Iterator[Unit]:
        """The units of which no more is expected. Of rows without a run, no block stays before one that goes.

        Only what is pending is expected for ever.
        """
        going_on = {
            run_id
            for run_id, members in self._runs.items()
            if (run_id in self._known.alive or _newest(members) >= self._young) and not self._is_over(run_id)
        }
        awaited = set[str]()
        for unit in units:
            if self._is_awaited(unit):
                awaited.add(unit.run_id)
            runs = {self._items[place].run_id for place in unit.places} | {unit.run_id}
            is_held = bool(runs & awaited) and (unit.is_block or bool(unit.run_id))
            is_asking = self._asking != "" and self._asking in runs
            if not (unit.is_pending or is_held or runs & going_on or is_asking):
                yield unit

    def _is_awaited(self, unit: Unit) -> bool:
        """Whether a call of this unit may still be answered."""
        return (
            unit.is_open
            and any(recorded_at(self._items[place].row) >= self._young_calls for place in unit.places)
            and not (unit.run_id and self._is_over(unit.run_id))
        )

    def _is_over(self, run_id: str) -> bool:
        if run_id not in self._finished:
            self._finished[run_id] = run_id in self._known.over or facts_in(self._runs[run_id]).finished
        return self._finished[run_id]


def headless_runs(rows: Sequence[Row], *, now: datetime, idle: timedelta) -> list[str]:
    """The runs that may go on and whose human input is not among the rows, in the order of the rows."""
    return [
        run_id
        for run_id, members in _by_run(read_messages(rows)).items()
        if _newest(members) >= now - idle and "user" not in {item.role for item in members}
    ]


def silent_runs(rows: Sequence[Row], *, now: datetime, idle: timedelta) -> list[str]:
    """The runs that are not over and have been silent, by these rows; the most recently recorded first."""
    silent = {
        run_id: newest
        for run_id, members in _by_run(read_messages(rows)).items()
        if now - LONGEST_CALL <= (newest := _newest(members)) < now - idle and not facts_in(members).finished
    }
    return sorted(silent, key=silent.__getitem__, reverse=True)


def stored_at(row: Row) -> datetime | None:
    """The second in which the row was stored; None where its `_id` does not say."""
    row_id = row.get("_id")
    if isinstance(row_id, str) and is_object_id(row_id):
        return datetime.fromtimestamp(seconds_of(row_id), UTC)
    return None


def recorded_at(row: Row) -> datetime:
    """When the row was stored, where its `_id` says; else its own time, which may be anything."""
    return stored_at(row) or parse_moment(row.get("timestamp")) or LONG_AGO


def _newest(messages: Iterable[HistoryMessage]) -> datetime:
    return max((recorded_at(item.row) for item in messages), default=LONG_AGO)


def _by_run(messages: Iterable[HistoryMessage]) -> Mapping[str, list[HistoryMessage]]:
    runs: defaultdict[str, list[HistoryMessage]] = defaultdict(list)
    for item in messages:
        if item.run_id:
            runs[item.run_id].append(item)
    return runs
