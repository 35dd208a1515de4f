"""Which runs of a session go on, so that what more may come of them finds its place (CONTRACT §7). Pure.

Rules of this module:

- A run is over when it has its answer and every call its result, or after a silence that is long enough.
- A call without a result is waited for longer than for a word: somebody may have to approve it, or a sub-agent works
  on it. From such a call on nothing of its run is compacted.
- What a sub-agent does says that its run goes on. No tail has it, so whoever reads runs whole says so (`Known`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from nexus.core.ports import Row
from nexus.core.working_memory import SECOND, is_object_id
from nexus.services.context.clock import LONG_AGO, parse_moment
from nexus.services.context.transcript import SPEAKERS
from nexus.services.memory.units import Item, Unit
from nexus.services.turns.facts import read_facts

# Nobody waits longer for the result of a call.
LONGEST_CALL: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of runs by all of their rows.

    Attributes:
        over: they are over, whatever is left of them.
        alive: they go on, whatever they do not say.
    """

    over: Collection[str] = frozenset()
    alive: Collection[str] = frozenset()


NOTHING_KNOWN: Final = Known()


@dataclass(frozen=True, slots=True)
class Patience:
    """From when on a row says that its run goes on, and a call that its result may come."""

    rows: datetime
    calls: datetime

    @classmethod
    def at(cls, now: datetime, idle: timedelta | None, given_up: datetime = LONG_AGO) -> "Patience":
        """What it is now.

        Args:
            now: the time.
            idle: how long a silence says nothing; None for any.
            given_up: no call that was made before is waited for longer than for a word.
        """
        rows = _before(now, idle)
        calls = _before(now, None if idle is None else max(idle, LONGEST_CALL))
        return cls(rows, min(max(calls, given_up), rows))


@dataclass(slots=True)
class Progress:
    """Which of the runs go on.

    Attributes:
        patience: how long more is expected of them.
        asking: the run that asks; `""` for none.
        known: what is known by other rows.
    """

    patience: Patience
    asking: str
    known: Known
    _runs: dict[str, list[Item]]
    _finished: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(
        cls, items: Iterable[Item], patience: Patience, asking: str = "", known: Known = NOTHING_KNOWN
    ) -> "Progress":
        """Of the runs of which these are the rows."""
        runs: dict[str, list[Item]] = {}
        for item in items:
            if item.run_id:
                runs.setdefault(item.run_id, []).append(item)
        return cls(patience, asking, known, runs)

    def going_on(self) -> set[str]:
        """The runs of which nothing is compacted."""
        found = {
            run_id
            for run_id, members in self._runs.items()
            if (run_id in self.known.alive or any(_heard(item) >= self.patience.rows for item in members))
            and not self._is_over(run_id)
        }
        return found | ({self.asking} if self.asking else set())

    def is_waited_for(self, unit: Unit, items: Sequence[Item]) -> bool:
        """Whether a call of this unit may still be answered."""
        return (
            unit.is_open
            and any(_heard(items[place]) >= self.patience.calls for place in unit.places)
            and not (unit.run_id and self._is_over(unit.run_id))
        )

    def _is_over(self, run_id: str) -> bool:
        if run_id not in self._finished:
            rows = [item.row for item in self._runs[run_id]]
            self._finished[run_id] = run_id in self.known.over or read_facts(rows).finished
        return self._finished[run_id]


def cut_runs(rows: Iterable[Row], *, now: datetime, idle: timedelta) -> list[str]:
    """The runs that may be going on and of which the human input is not among the rows, in the order of these."""
    young = _before(now, idle)
    return [
        run_id
        for run_id, members in _by_run(rows).items()
        if _newest(members) >= young and not any(map(_is_human, members))
    ]


def silent_runs(rows: Iterable[Row], *, now: datetime, idle: timedelta) -> list[str]:
    """The runs that are not over and have been silent, as far as the rows say; those first that were heard last."""
    patience = Patience.at(now, idle)
    runs = {run_id: (_newest(members), members) for run_id, members in _by_run(rows).items()}
    silent = {
        run_id: heard
        for run_id, (heard, members) in runs.items()
        if patience.calls <= heard < patience.rows and not read_facts(members).finished
    }
    return sorted(silent, key=lambda run_id: silent[run_id], reverse=True)


def stored_at(row: Row) -> datetime | None:
    """The second in which the row was stored; None where its `_id` does not say."""
    row_id = row.get("_id")
    if isinstance(row_id, str) and is_object_id(row_id):
        return datetime.fromtimestamp(int(row_id[SECOND], 16), UTC)
    return None


def heard_at(row: Row) -> datetime:
    """When the row was stored, which is known; else what it says, which may be anything."""
    return stored_at(row) or parse_moment(row.get("timestamp")) or LONG_AGO


def _heard(item: Item) -> datetime:
    return stored_at(item.row) or item.moment or LONG_AGO


def _newest(rows: Iterable[Row]) -> datetime:
    return max(map(heard_at, rows), default=LONG_AGO)


def _is_human(row: Row) -> bool:
    role = row.get("role")
    return isinstance(role, str) and SPEAKERS.get(role.lower()) == "user"


def _by_run(rows: Iterable[Row]) -> Mapping[str, list[Row]]:
    runs: dict[str, list[Row]] = {}
    for row in rows:
        run_id = row.get("run_id")
        if isinstance(run_id, str) and run_id:
            runs.setdefault(run_id, []).append(row)
    return runs


def _before(now: datetime, idle: timedelta | None) -> datetime:
    try:
        return LONG_AGO if idle is None else now - idle
    except OverflowError:
        return LONG_AGO
