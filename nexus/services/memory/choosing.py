"""Which rows of a tail a compaction covers, and which tail it leaves (CONTRACT §7). Pure.

A tail lists what is covered among what is not. The list is read with every context, so it is kept short: where it would
have more than `MOST_LISTED` rows, the oldest of what lies between goes as well, of whatever kind, until it has half as
many. What is to be kept is not touched by that, nor a run that was heard of lately.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from nexus.core.ports import Row
from nexus.core.working_memory import Tail, Target, Wish
from nexus.services.context.clock import LONG_AGO
from nexus.services.memory.planning import Keep, plan
from nexus.services.memory.progress import NOTHING_KNOWN, Known, stored_at
from nexus.services.memory.reading import Found
from nexus.services.memory.tails import edge_for, tail_after

MOST_LISTED: Final = 2_000
# Before all that is stored.
_FIRST: Final = datetime.fromtimestamp(1, UTC)


@dataclass(frozen=True, slots=True)
class Choice:
    """What is compacted.

    Attributes:
        covered: the rows, in the order in which they were said.
        tail: what is left.
        target: of what kind they are: what was asked for, or `all` where the tail would have become too long a list.
    """

    covered: tuple[Row, ...]
    tail: Tail
    target: Target


@dataclass(frozen=True, slots=True)
class Chooser:
    """Chooses by these rules.

    Attributes:
        now: the time.
        idle: after so long a silence a run is over although its answer is not known.
        cost: how many tokens a row takes in a context.
        known: what is known of runs by other rows.
    """

    now: datetime
    idle: timedelta
    cost: Callable[[Row], int]
    known: Known = NOTHING_KNOWN

    def choose(self, wish: Wish, found: Found, tail: Tail) -> Choice:
        """What is compacted of the rows of this tail; nothing of what may go on in rows that are not at hand."""
        chosen = self._choose(wish, found, tail, LONG_AGO)
        if len(chosen.tail.without) <= MOST_LISTED:
            return chosen
        clear = edge_for(chosen.tail, MOST_LISTED // 2)
        if clear > self.now:
            # All of them are so new that they are listed in any case.
            return chosen
        cleared = self._choose(wish, found, tail, clear)
        return cleared if len(cleared.covered) > len(chosen.covered) else chosen

    def _choose(self, wish: Wish, found: Found, tail: Tail, clear: datetime) -> Choice:
        covered = plan(
            [*found.rows, *(found.newest or [])],
            Keep(wish.keep_recent, wish.keep_tokens, self.cost),
            now=self.now,
            idle=None if found.goes_on else self.idle,
            target=wish.target,
            run_id=wish.run_id,
            known=self.known,
            fixed=frozenset(row["_id"] for row in found.newest or []),
            clear=clear,
        ).covered
        if not covered:
            return Choice((), tail, wish.target)
        until = _until(found) if found.goes_on else self.now
        left = tail_after(tail, found.rows, covered, until)
        return Choice(covered, left, wish.target if clear == LONG_AGO else "all")


def _until(found: Found) -> datetime:
    """Before what was stored later than these rows, which come in that order."""
    return max((moment for row in found.rows if (moment := stored_at(row))), default=_FIRST)
