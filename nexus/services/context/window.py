"""Which messages of a session an agent is shown (CONTRACT §5). Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from nexus.services.context.agents import MAIN, Agent
from nexus.services.context.transcript import Said, said_in_rows, window_start

# Nearly all are dictionaries, and that is found out sooner than that something is a mapping.
_STORED: Final = (dict, Mapping)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a session that is shown as it was said.

    Attributes:
        said: oldest first, before the validity gate.
        runs: those whose human input is among it. Of a run that began before, only the end is shown.
        left_out: older messages that were at hand.
        cut: there are older ones, which were not read.
        fetched: rows that were read, without the current run's.
        faults: rows of them that had to be repaired or left out.
    """

    said: Sequence[Said] = ()
    runs: frozenset[str] = frozenset()
    left_out: int = 0
    cut: bool = False
    fetched: int = 0
    faults: int = 0

    @classmethod
    def of(cls, rows: Sequence[Any], agent: Agent = MAIN, *, cut: bool = False, current_run_id: str = "") -> Self:
        """What is shown of these rows, which are in any order, without the current run's or with them.

        Args:
            rows: of the session.
            agent: for whom.
            cut: the session has older rows.
            current_run_id: the run that asks.
        """
        said, faults = said_in_rows(rows, agent, current_run_id=current_run_id)
        start = window_start(said) if cut else 0
        fetched = count_others(rows, current_run_id)
        return cls(said[start:], _begun_from(said, start), start, cut, fetched, faults)


def count_others(rows: Sequence[Any], run_id: str) -> int:
    """How many rows are not of this run.

    Whether the run's own input is among the rows already depends on who was faster, and shall not show.
    """
    if not run_id:
        return len(rows)
    try:
        return len(rows) - [row["run_id"] for row in rows].count(run_id)
    except (LookupError, TypeError):
        # One of them is malformed.
        return len([row for row in rows if not (isinstance(row, _STORED) and row.get("run_id") == run_id)])


def _begun_from(said: Sequence[Said], start: int) -> frozenset[str]:
    begun: dict[str, int] = {}
    for index, item in enumerate(said):
        if item.role == "user" and item.run_id:
            # What is empty is not shown.
            begun.setdefault(item.run_id, index if item.text else -1)
    return frozenset(run_id for run_id, index in begun.items() if index >= start)
