"""What of a session is compacted, and which rows are left afterwards (CONTRACT §7). Pure.

Rules of this module:

- Units are compacted whole (`units`), the oldest first. So what is left is shown as it was before: every result with
  its call, in the same order.
- Rows of a run in progress stay. One of which the beginning, perhaps with its answer, is compacted already is not seen
  to be over by the rows that are left of it: whoever has all its rows says so.
- What no later compaction could find is compacted in any case: rows whose `_id` does not say when they were stored.
- n log n time in the number of rows.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nexus.core.ports import Row
from nexus.core.working_memory import SECOND, Tail, Target, is_object_id
from nexus.services.context.agents import is_internal
from nexus.services.context.clock import LONG_AGO, parse_moment
from nexus.services.context.transcript import SPEAKERS
from nexus.services.memory.units import Item, Unit, in_order, is_steady, units_of
from nexus.services.turns.facts import read_facts

# For clocks that differ, and for what is being written meanwhile. It may be longer where that costs no more than so
# many `_id`s, which have to be read with each context.
_SLACK_S: Final = 120
_LONGEST_SLACK_S: Final = 3_600
_FEW: Final = 200


@dataclass(frozen=True, slots=True)
class Keep:
    """How much stays of what could be compacted.

    Attributes:
        messages: the newest so many, of all but the run that asks; a unit stays if one of them is in it.
        tokens: the newest units that take no more together with all else that stays; not looked at with `messages`.
        cost: how many tokens a row takes in a context.
    """

    messages: int | None = None
    tokens: int | None = None
    cost: Callable[[Row], int] = lambda _: 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compacted and what stays, both in the order in which it was said."""

    covered: tuple[Row, ...]
    kept: tuple[Row, ...]


NOTHING: Final = Keep()


def plan(
    rows: Sequence[Any],
    keep: Keep = NOTHING,
    *,
    now: datetime,
    idle: timedelta | None,
    target: Target = "all",
    run_id: str = "",
    over: Collection[str] = (),
) -> Plan:
    """Which of the rows are compacted.

    Args:
        rows: those of a session that are under no compaction, in any order.
        keep: how much stays of what could be compacted.
        now: the time.
        idle: after so long a silence a run is over although its answer is not known; None where there may be later
            rows, which are not at hand.
        target: `tools` compacts blocks only, `conversation` all that is in none.
        run_id: the run that asks; `""` for none.
        over: runs that are known to be over, whatever these rows say.
    """
    items = in_order(rows)
    units = units_of(items)
    young = _since(now, idle)
    going_on = (_runs_going_on(items, young) - {*over}) | ({run_id} if run_id else set())
    movable = [unit for unit in _over_with(units, items, going_on, young) if _is_meant(unit, target)]
    counted = [item.said is not None and not (run_id and item.run_id == run_id) for item in items]
    if keep.messages is not None:
        gone = _older(movable, counted, keep.messages)
    elif keep.tokens is not None:
        gone = _over(units, movable, lambda place: keep.cost(items[place].row) if counted[place] else 0, keep.tokens)
    else:
        gone = movable
    must = {place for unit in units if _must_go(items, unit) for place in unit.places}
    covered = {place for unit in gone for place in unit.places} | must
    _steady(covered, items, must, whole=target == "all" and keep.messages is None)
    return Plan(
        tuple(item.row for place, item in enumerate(items) if place in covered),
        tuple(item.row for place, item in enumerate(items) if place not in covered),
    )


def cut_runs(rows: Iterable[Row], *, now: datetime, idle: timedelta) -> list[str]:
    """The runs that may be going on and of which the human input is not among the rows, in the order of these."""
    young, begun = _since(now, idle), set()
    runs: dict[str, bool] = {}
    for row in rows:
        run_id, role = row.get("run_id"), row.get("role")
        if isinstance(run_id, str) and run_id:
            heard = stored_at(row) or parse_moment(row.get("timestamp")) or LONG_AGO
            runs[run_id] = runs.get(run_id, False) or heard >= young
            if isinstance(role, str) and SPEAKERS.get(role.lower()) == "user":
                begun.add(run_id)
    return [run_id for run_id, is_young in runs.items() if is_young and run_id not in begun]


def tail_after(tail: Tail, rows: Iterable[Row], covered: Iterable[Row], now: datetime) -> Tail:
    """What is left when these are covered.

    Args:
        tail: what was left before.
        rows: of the tail, all that were stored before `now`.
        covered: some of them.
        now: the time, or an earlier one.
    """
    taken = {row["_id"] for row in covered}
    left = [row for row in rows if row.get("_id") not in taken and not is_internal(row.get("metadata"))]
    edge = min(stored for stored in (now, *map(stored_at, left)) if stored)
    edge_s = int(edge.timestamp())
    # Of those that would have to be listed, the newest that are too many.
    listed = sorted(_second(row_id) for row_id in {*taken, *tail.without} if is_object_id(row_id))
    cheap = listed[-_FEW - 1] + 1 if len(listed) > _FEW else 0
    since = min(max(edge_s - _LONGEST_SLACK_S, cheap), edge_s - _SLACK_S)
    # What was stored before the earlier boundary is covered and no longer listed.
    return tail.after(taken, f"{max(since, int(tail.since, 16), 1):08x}")


def stored_at(row: Row) -> datetime | None:
    """The second in which the row was stored; None where its `_id` does not say."""
    row_id = row.get("_id")
    if isinstance(row_id, str) and is_object_id(row_id):
        return datetime.fromtimestamp(_second(row_id), UTC)
    return None


def _second(row_id: str) -> int:
    return int(row_id[SECOND], 16)


def _must_go(items: Sequence[Item], unit: Unit) -> bool:
    return _are_named(items, unit.places) and any(is_lost_later(items[place].row["_id"]) for place in unit.places)


def is_lost_later(row_id: str) -> bool:
    """Whether no tail but that of a session without compactions has a row with this `_id`."""
    return not is_object_id(row_id) or _second(row_id) == 0


def _are_named(items: Sequence[Item], places: Iterable[int]) -> bool:
    """Whether a compaction can name these rows. All that a store returns can be."""
    return all(isinstance(items[place].row.get("_id"), str) for place in places)


def _since(now: datetime, idle: timedelta | None) -> datetime:
    """From when on a row says that its run may be going on."""
    try:
        return LONG_AGO if idle is None else now - idle
    except OverflowError:
        return LONG_AGO


def _is_young(item: Item, young: datetime) -> bool:
    # What is said of the time may be anything; when the row was stored is known.
    return (stored_at(item.row) or item.moment or LONG_AGO) >= young


def _runs_going_on(items: Iterable[Item], young: datetime) -> set[str]:
    """The runs of which more may come."""
    runs: dict[str, list[Item]] = {}
    for item in items:
        if item.run_id:
            runs.setdefault(item.run_id, []).append(item)
    return {
        run_id
        for run_id, members in runs.items()
        if any(_is_young(item, young) for item in members) and not read_facts([item.row for item in members]).finished
    }


def _over_with(
    units: Iterable[Unit], items: Sequence[Item], going_on: Collection[str], young: datetime
) -> Iterator[Unit]:
    """The units of which no more is expected. Of rows without a run, no block stays before one that goes."""
    held = False
    for unit in units:
        loose_block = unit.is_block and not unit.run_id
        if loose_block and unit.is_open:
            held = held or any(_is_young(items[place], young) for place in unit.places)
        if unit.run_id not in going_on and not (loose_block and held) and _are_named(items, unit.places):
            yield unit


def _is_meant(unit: Unit, target: Target) -> bool:
    return target == "all" or unit.is_block == (target == "tools")


def _older(movable: Sequence[Unit], counted: Sequence[bool], most: int) -> list[Unit]:
    """The units without any of the newest messages."""
    places = [place for place, counts in enumerate(counted) if counts]
    if most >= len(places):
        return []
    oldest_kept = places[-most] if most > 0 else len(counted)
    return [unit for unit in movable if unit.end < oldest_kept]


def _over(units: Sequence[Unit], movable: Sequence[Unit], cost: Callable[[int], int], room: int) -> list[Unit]:
    """The units for which there is no room beside all that stays and those after them."""
    going = {unit.places for unit in movable}
    room -= sum(cost(place) for unit in units if unit.places not in going for place in unit.places)
    for index in range(len(movable) - 1, -1, -1):
        room -= sum(map(cost, movable[index].places))
        if room < 0:
            return list(movable[: index + 1])
    return []


def _steady(covered: set[int], items: Sequence[Item], must: AbstractSet[int], *, whole: bool) -> None:
    """See to it that no run is shown in another order when some of its rows are covered.

    Where one would be, all of it stays; or goes, where something of it has to, or with `whole`.
    """
    runs: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        if item.run_id:
            runs.setdefault(item.run_id, []).append(place)
    for places in runs.values():
        left = [place for place in places if place not in covered]
        if len(left) in {0, len(places)} or is_steady([items[place] for place in left]):
            continue
        if (whole and _are_named(items, places)) or any(place in must for place in places):
            covered.update(places)
        else:
            covered.difference_update(places)
