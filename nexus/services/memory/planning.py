"""What of a session is compacted (CONTRACT §7). Pure.

Rules of this module:

- Units are compacted whole (`units`), the oldest first. So what is left is shown as it was before: every result with
  its call, in the same order.
- What goes on stays (`progress`).
- What is to be kept stays, whatever else is covered. Only what no later compaction could find is compacted in any case:
  rows whose `_id` does not say when they were stored.
- n log n time in the number of rows.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from nexus.core.ports import Row
from nexus.core.working_memory import Target
from nexus.services.context.clock import LONG_AGO
from nexus.services.memory.progress import NOTHING_KNOWN, Known, Patience, Progress, heard_at
from nexus.services.memory.tails import is_lost_later
from nexus.services.memory.units import Item, Unit, in_order, is_steady, units_of


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
    known: Known = NOTHING_KNOWN,
    fixed: Collection[str] = (),
    clear: datetime = LONG_AGO,
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
        known: what is known of runs, whatever these rows say.
        fixed: `_id`s of rows that stay, with all of their unit: there are others before them, which are not at hand.
        clear: what was stored before is compacted whatever it is, if it is not to be kept.
    """
    items = in_order(rows)
    units = units_of(items)
    progress = Progress.of(items, Patience.at(now, idle, clear), run_id, known)
    movable = [
        unit
        for unit in _over_with(units, items, progress)
        if _is_meant(unit, items, target, clear)
        and not (fixed and any(items[place].row["_id"] in fixed for place in unit.places))
    ]
    counted = [item.said is not None and not (run_id and item.run_id == run_id) for item in items]
    if keep.messages is not None:
        gone = _older(movable, counted, keep.messages)
    elif keep.tokens is not None:
        gone = _over(units, movable, lambda place: keep.cost(items[place].row) if counted[place] else 0, keep.tokens)
    else:
        gone = movable
    must = {place for unit in units if _must_go(items, unit) for place in unit.places}
    covered = {place for unit in gone for place in unit.places} | must
    # Where no message is to be kept, a run may go as a whole, unless there is something in it that has to stay.
    is_free = target == "all" and keep.messages is None
    _steady(covered, items, must, {place for unit in movable for place in unit.places} if is_free else frozenset())
    return Plan(
        tuple(item.row for place, item in enumerate(items) if place in covered),
        tuple(item.row for place, item in enumerate(items) if place not in covered),
    )


def _must_go(items: Sequence[Item], unit: Unit) -> bool:
    return _are_named(items, unit.places) and any(is_lost_later(items[place].row["_id"]) for place in unit.places)


def _are_named(items: Sequence[Item], places: Iterable[int]) -> bool:
    """Whether a compaction can name these rows. All that a store returns can be."""
    return all(isinstance(items[place].row.get("_id"), str) for place in places)


def _over_with(units: Iterable[Unit], items: Sequence[Item], progress: Progress) -> Iterator[Unit]:
    """The units of which no more is expected. Of rows without a run, no block stays before one that goes."""
    going_on, waiting = progress.going_on(), set[str]()
    for unit in units:
        if progress.is_waited_for(unit, items):
            waiting.add(unit.run_id)
        is_held = unit.run_id in waiting and (unit.is_block or bool(unit.run_id))
        if not is_held and unit.run_id not in going_on and _are_named(items, unit.places):
            yield unit


def _is_meant(unit: Unit, items: Sequence[Item], target: Target, clear: datetime) -> bool:
    if target == "all" or unit.is_block == (target == "tools"):
        return True
    return clear > LONG_AGO and all(heard_at(items[place].row) < clear for place in unit.places)


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
    free = room - sum(cost(place) for unit in units if unit.places not in going for place in unit.places)
    costs = [sum(map(cost, unit.places)) for unit in movable]
    for index in range(len(movable) - 1, -1, -1):
        free -= costs[index]
        if free < 0:
            return list(movable[: _at_a_run(movable, costs, index + 1, room - free - costs[index] - room // 2)])
    return []


def _at_a_run(movable: Sequence[Unit], costs: Sequence[int], cut: int, spare: int) -> int:
    """The next place at which no run is divided, if no more than so many tokens lie between; else `cut`."""
    gone = {unit.run_id for unit in movable[:cut]} - {""}
    for place in range(cut, len(movable)):
        if movable[place].run_id not in gone:
            return place
        spare -= costs[place]
        if spare < 0:
            return cut
    return cut


def _steady(covered: set[int], items: Sequence[Item], must: AbstractSet[int], free: AbstractSet[int]) -> None:
    """See to it that no run is shown in another order when some of its rows are covered.

    Where one would be, all of it stays; or goes, where something of it has to, or where all of it is `free` to.
    """
    runs: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        if item.run_id:
            runs.setdefault(item.run_id, []).append(place)
    for places in runs.values():
        left = [place for place in places if place not in covered]
        if len(left) in {0, len(places)} or is_steady([items[place] for place in left]):
            continue
        if free >= {*places} or any(place in must for place in places):
            covered.update(places)
        else:
            covered.difference_update(places)
