"""What several starts of turns come to: one for each run, and documents with numbers and goals (CONTRACT §6). Pure."""

from collections.abc import Sequence
from dataclasses import replace

from nexus.core.models import utc_now
from nexus.core.ports import Row
from nexus.core.turns import TurnStart
from nexus.services.turns.documents import begun


def merged(starts: Sequence[TurnStart]) -> dict[str, TurnStart]:
    """One for each run, in the order in which they were asked for; what a later one brings counts."""
    merged: dict[str, TurnStart] = {}
    for start in starts:
        known = merged.get(start.run_id)
        merged[start.run_id] = _joined(known, start) if known else start
    return merged


def _joined(first: TurnStart, later: TurnStart) -> TurnStart:
    return replace(
        first,
        task_context=later.task_context or first.task_context,
        workspace_context=first.workspace_context or later.workspace_context,
        thinking=later.thinking,
        rounds=later.rounds or first.rounds,
    )


def numbered(starts: Sequence[TurnStart], latest: Row | None, goal: str) -> list[Row]:
    """The documents of turns that follow `latest`, each with the goal that holds by then."""
    documents: list[Row] = []
    now = utc_now()
    for start in starts:
        goal = start.task_context or goal
        latest = begun(start, latest, goal, now)
        documents.append(latest)
    return documents


def run_of(latest: Row | None) -> str | None:
    """The run of that turn; None where there is none."""
    return latest.get("run_id") if latest else None
