"""The rows of a session's tail that a compaction covers, and the tail that it leaves (contract §7).

- Units are compacted whole (`units`), the oldest first. Runs that may go on stay, and so do the messages to keep.
- What is pending stays (`units`), however long it is.
- Rows whose `_id` does not say when they were stored, which no later compaction could find, are compacted in any
  case.
- A tail lists the covered rows among those that are left. Where it would list more than `MOST_LISTED`, the oldest
  rows between go as well, until it has half as many; but not the messages to keep, nor a run with recent messages.
- n log n time in the number of rows.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from anyio import to_thread

from nexus.core.models import LONG_AGO, SECOND, is_internal, is_object_id
from nexus.core.ports import MessageStore, Row
from nexus.core.ports.store import LONGEST_CONTENT
from nexus.core.working_memory import CompactionRequest, Tail, Target
from nexus.services.history.condense import is_condensed
from nexus.services.history.messages import HistoryMessage
from nexus.services.history.rows import chars_of
from nexus.services.history.run_facts import read_facts
from nexus.services.memory.units import (
    KnownRuns,
    RunProgress,
    Unit,
    headless_runs,
    keeps_order,
    ordered_messages,
    recorded_at,
    silent_runs,
    stored_at,
    units_of,
)

MOST_ROWS: Final = 5_000
MOST_LISTED: Final = 2_000
_PAGE: Final = 100
# The window of a model that takes a million tokens. What is read of a session is held in memory several times.
_MOST_CHARS: Final = 4 << 20
# Runs of which more than the tail is read. Others are over, once they have been silent for long.
_MOST_RUNS: Final = 100
# Rows of a run are listed by their own time, which may be wrong.
_LAST_ROWS: Final = 20
# What a run's messages say does not matter to whether it is over.
_EXCERPT: Final = 20
# The boundary lies this long before the oldest row that is left, for clocks that differ and for inserts under way. It
# may lie further back where that lists no more than a few `_id`s.
_SLACK_S: Final = 120
_LONGEST_SLACK_S: Final = 3_600
_FEW: Final = 200
_FIRST_SECOND: Final = datetime.fromtimestamp(1, UTC)


@dataclass(frozen=True, slots=True)
class TailRows:
    """The oldest rows of a tail, as stored, and the newest, which decide what is kept; None where `rows` are all."""

    rows: list[Row]
    newest: list[Row] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether there are rows stored later than `rows`."""
        return self.newest is not None


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that a compaction covers, in the order of the conversation, and the tail that is left.

    `target` is the requested one, or `all` where the list of the tail would have become too long.
    """

    covered: tuple[Row, ...]
    tail: Tail
    target: Target


async def read_tail(
    messages: MessageStore,
    owner_key: str,
    session_id: str,
    tail: Tail,
    *,
    most_rows: int = MOST_ROWS,
    whole: bool = False,
) -> TailRows:
    """The oldest rows of a tail, and the newest: up to `most_rows` of the former, fewer where they are long.

    `whole`: large results, which come in short, are to be read whole afterwards.

    The first compaction of a session covers every row whose `_id` does not say when it was stored: all these are read.
    """
    rows: dict[str, Row] = {}
    skip, chars, goes_on = 0, 0, False
    while True:
        page = await messages.tail_messages(owner_key, session_id, tail, limit=_PAGE, skip=skip, oldest_first=True)
        skip += len(page)
        for row in page:
            if goes_on := goes_on or len(rows) >= most_rows or chars >= _MOST_CHARS * most_rows // MOST_ROWS:
                if tail.is_all and _is_lost_later(row["_id"]):
                    rows[row["_id"]] = row
                continue
            # A row may come twice when others were recorded between two pages.
            rows[row["_id"]] = row
            chars += LONGEST_CONTENT if whole and is_condensed(row) else chars_of(row)
        if len(page) < _PAGE or (goes_on and not tail.is_all):
            newest = await _read_newest(messages, owner_key, session_id, tail, rows) if goes_on else None
            return TailRows(list(rows.values()), newest)


async def _read_newest(
    messages: MessageStore, owner_key: str, session_id: str, tail: Tail, known: Container[str]
) -> list[Row]:
    rows: dict[str, Row] = {}
    skip, chars = 0, 0
    while len(rows) < MOST_ROWS and chars < _MOST_CHARS:
        page = await messages.tail_messages(owner_key, session_id, tail, limit=_PAGE, skip=skip)
        skip += len(page)
        new = {row["_id"]: row for row in page if row["_id"] not in known}
        rows |= new
        chars += sum(map(chars_of, new.values()))
        if len(page) < _PAGE or len(new) < len(page):
            break
    return [*reversed(rows.values())]


async def look_at_runs(
    messages: MessageStore, owner_key: str, found: TailRows, *, now: datetime, idle: timedelta
) -> KnownRuns:
    """Which runs are over or go on, by all their rows, of those that are in the tail in part or without recent rows."""
    headless, silent = await to_thread.run_sync(_open_runs, found, now, idle, abandon_on_cancel=True)
    over = set()
    for run_id in headless[:_MOST_RUNS]:
        rows = await messages.run_messages(owner_key, run_id, limit=MOST_ROWS, excerpt_chars=_EXCERPT)
        if (await to_thread.run_sync(read_facts, rows, abandon_on_cancel=True)).finished:
            over.add(run_id)
    alive = set()
    for run_id in silent[:_MOST_RUNS]:
        newest = await messages.run_messages(owner_key, run_id, limit=_LAST_ROWS, excerpt_chars=_EXCERPT)
        if any(recorded_at(row) >= now - idle for row in newest):
            alive.add(run_id)
    return KnownRuns(over, alive)


def _open_runs(found: TailRows, now: datetime, idle: timedelta) -> tuple[list[str], list[str]]:
    # Of rows behind the last of these nothing is known either way.
    silent = [] if found.goes_on else silent_runs(found.rows, now=now, idle=idle)
    return headless_runs(found.rows, now=now, idle=idle), silent


def select(
    request: CompactionRequest,
    found: TailRows,
    tail: Tail,
    *,
    now: datetime,
    idle: timedelta,
    cost: Callable[[Row], int],
    known: KnownRuns,
) -> Selection:
    """The rows of this tail to compact, without runs that may go on in rows that are not at hand. Pure.

    A run is over after the silence `idle` although its answer is not known; `cost` is the tokens that a row takes.
    """

    def select_before(clear: datetime) -> Selection:
        covered = plan(
            [*found.rows, *(found.newest or [])],
            request,
            now=now,
            idle=None if found.goes_on else idle,
            cost=cost,
            known=known,
            fixed=frozenset(row["_id"] for row in found.newest or []),
            clear=clear,
        )
        if not covered:
            return Selection((), tail, request.target)
        until = now
        if found.goes_on:
            until = max((moment for row in found.rows if (moment := stored_at(row))), default=_FIRST_SECOND)
        left = tail_after(tail, found.rows, covered, until)
        return Selection(covered, left, request.target if clear == LONG_AGO else "all")

    selected = select_before(LONG_AGO)
    if len(selected.tail.without) <= MOST_LISTED:
        return selected
    # Where all before this is covered, half of them need not be listed.
    clear = datetime.fromtimestamp(_seconds(selected.tail.without)[-MOST_LISTED // 2] + _SLACK_S + 1, UTC)
    if clear > now:
        # All of them are so new that they are listed in any case.
        return selected
    cleared = select_before(clear)
    return cleared if len(cleared.covered) > len(selected.covered) else selected


def plan(
    rows: Sequence[Row],
    request: CompactionRequest,
    *,
    now: datetime,
    idle: timedelta | None,
    cost: Callable[[Row], int],
    known: KnownRuns,
    fixed: Collection[str] = (),
    clear: datetime = LONG_AGO,
) -> tuple[Row, ...]:
    """The rows to compact, of those of a session under no compaction, in the order of the conversation. Pure.

    - `idle` is the silence after which a run is over; None where later rows may exist that are not at hand.
    - The target `tools` compacts blocks only, `conversation` everything but blocks.
    - Of the rows that could be compacted, `keep_recent` messages stay, else `keep_tokens` tokens, else none. The
      messages are the newest, the run that asks aside; a unit stays if one of them is in it. The tokens are those of
      the newest units, with everything else that stays; a row takes `cost` tokens in a context.
    - `fixed` are `_id`s of rows that stay with all of their unit: rows before them are not at hand.
    - Rows stored before `clear` are compacted whatever their kind, unless they are to be kept.
    """
    items = ordered_messages(rows)
    units = units_of(items)
    target, run_id = request.target, request.run_id
    progress = RunProgress(items, known, now=now, idle=idle, asking=run_id, given_up=clear)
    movable = [
        unit
        for unit in progress.finished(units)
        if _is_meant(unit, items, target, clear)
        and not (fixed and any(items[place].row["_id"] in fixed for place in unit.places))
    ]
    counted = [item.role is not None and not (run_id and item.run_id == run_id) for item in items]
    if request.keep_recent is not None:
        gone = _before_newest(movable, counted, request.keep_recent)
    elif request.keep_tokens is not None:
        costs = [cost(item.row) if counted[place] else 0 for place, item in enumerate(items)]
        gone = _beyond_tokens(units, movable, costs, request.keep_tokens)
    else:
        gone = movable
    lost_later = {place for place, item in enumerate(items) if _is_lost_later(item.row["_id"])}
    must = {place for unit in units if lost_later & {*unit.places} for place in unit.places}
    covered = {place for unit in gone for place in unit.places} | must
    # Where no message is to be kept, a run may go as a whole, unless something in it has to stay.
    is_free = target == "all" and request.keep_recent is None
    free = {place for unit in movable for place in unit.places} if is_free else set[int]()
    before = set[int]()
    while covered != before:
        before = {*covered}
        _keep_order(covered, items, must, free)
        _keep_whole(covered, units, must)
        # From now on only what must go takes more along, so that this ends.
        free = set()
    pending = (unit for unit in units if unit.is_pending and lost_later.isdisjoint(unit.places))
    covered.difference_update(place for unit in pending for place in unit.places)
    return tuple(item.row for place, item in enumerate(items) if place in covered)


def _is_meant(unit: Unit, items: Sequence[HistoryMessage], target: Target, clear: datetime) -> bool:
    if target == "all" or unit.is_block == (target == "tools"):
        return True
    return clear > LONG_AGO and all(recorded_at(items[place].row) < clear for place in unit.places)


def _before_newest(movable: Sequence[Unit], counted: Sequence[bool], most: int) -> list[Unit]:
    if most <= 0:
        return list(movable)
    places = [place for place, counts in enumerate(counted) if counts]
    return [unit for unit in movable if most < len(places) and unit.end < places[-most]]


def _beyond_tokens(units: Sequence[Unit], movable: Sequence[Unit], costs: Sequence[int], room: int) -> list[Unit]:
    """The units for which there is no room beside those after them and everything that stays in any case."""
    going = {unit.places for unit in movable}
    free = room - sum(costs[place] for unit in units if unit.places not in going for place in unit.places)
    of_units = [sum(costs[place] for place in unit.places) for unit in movable]
    for index in range(len(movable) - 1, -1, -1):
        free -= of_units[index]
        if free < 0:
            spare = room - free - of_units[index] - room // 2
            return list(movable[: _between_runs(movable, of_units, index + 1, spare)])
    return []


def _between_runs(movable: Sequence[Unit], costs: Sequence[int], cut: int, spare: int) -> int:
    """The next place between two runs, if at most `spare` tokens lie before it; else `cut`."""
    gone = {unit.run_id for unit in movable[:cut]} - {""}
    for place in range(cut, len(movable)):
        if movable[place].run_id not in gone:
            return place
        spare -= costs[place]
        if spare < 0:
            return cut
    return cut


def _keep_order(covered: set[int], items: Sequence[HistoryMessage], must: set[int], free: AbstractSet[int]) -> None:
    """Change `covered` so that the rest of each run is shown in the same order as before.

    A run for which this is not so stays whole; or goes whole, where some of it must go or all of it may.
    """
    runs: defaultdict[str, list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        if item.run_id:
            runs[item.run_id].append(place)
    for places in runs.values():
        left = [place for place in places if place not in covered]
        if len(left) in {0, len(places)} or keeps_order([items[place] for place in left]):
            continue
        is_forced = any(place in must for place in places)
        must.update(places if is_forced else ())
        if is_forced or free >= {*places}:
            covered.update(places)
        else:
            covered.difference_update(places)


def _keep_whole(covered: set[int], units: Iterable[Unit], must: set[int]) -> None:
    """Change `covered` so that units of several runs go or stay whole; they go where some of it must go."""
    for unit in units:
        if covered.isdisjoint(unit.places) or covered.issuperset(unit.places):
            continue
        if must.isdisjoint(unit.places):
            covered.difference_update(unit.places)
        else:
            covered.update(unit.places)
            must.update(unit.places)


def tail_after(tail: Tail, rows: Iterable[Row], covered: Iterable[Row], now: datetime) -> Tail:
    """The tail that is left of `rows`, all that were stored before `now`, with as few `_id`s as possible. Pure."""
    taken = {row["_id"] for row in covered}
    left = [row for row in rows if row.get("_id") not in taken and not is_internal(row.get("metadata"))]
    edge = min(stored for stored in (now, *map(stored_at, left)) if stored)
    edge_s = int(edge.timestamp())
    # Of those that would have to be listed, the newest that are too many.
    listed = _seconds({*taken, *tail.without})
    cheap = listed[-_FEW - 1] + 1 if len(listed) > _FEW else 0
    since = min(max(edge_s - _LONGEST_SLACK_S, cheap), edge_s - _SLACK_S)
    # Rows stored before the earlier boundary are covered and no longer listed.
    return tail.after(taken, f"{max(since, int(tail.since, 16), 1):08x}")


def _is_lost_later(row_id: str) -> bool:
    """Whether no tail but that of a session without compactions has a row with this `_id`."""
    return not is_object_id(row_id) or int(row_id[SECOND], 16) == 0


def _seconds(row_ids: Collection[str]) -> list[int]:
    return sorted(int(row_id[SECOND], 16) for row_id in row_ids if is_object_id(row_id))
