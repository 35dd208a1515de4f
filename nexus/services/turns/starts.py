"""What several starts of turns, and what was heard of them since, come to: documents with numbers and goals. Pure."""

from collections.abc import Container, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from nexus.core.models import utc_now
from nexus.core.ports import Row
from nexus.core.ports.turns import TurnTouch
from nexus.core.turns import TurnStart
from nexus.services.turns.documents import begun, closed_unheard, is_going_on, is_unheard, overtaken, touched

# What tells two times apart that are kept.
_MOMENT: Final = timedelta(milliseconds=1)
# A run that is to be a turn, or what was heard of one.
Piece = TurnStart | TurnTouch


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """One start for each run, where it was asked for first; what a later one brings counts."""
    starts: dict[str, TurnStart] = {}
    for piece in pieces:
        if isinstance(piece, TurnStart):
            known = starts.get(piece.run_id)
            starts[piece.run_id] = _joined(known, piece) if known else piece
    left = dict(starts)
    found = (left.pop(piece.run_id, None) if isinstance(piece, TurnStart) else piece for piece in pieces)
    return [piece for piece in found if piece]


def _joined(first: TurnStart, later: TurnStart) -> TurnStart:
    return replace(
        first,
        task_context=later.task_context or first.task_context,
        workspace_context=first.workspace_context or later.workspace_context,
        thinking=later.thinking,
        rounds=later.rounds or first.rounds,
    )


def starts_in(pieces: Sequence[Piece]) -> dict[str, TurnStart]:
    """The starts among them by their runs, in order."""
    return {piece.run_id: piece for piece in pieces if isinstance(piece, TurnStart)}


def begun_and_left(pieces: Sequence[Piece]) -> set[str]:
    """The runs of which nothing was heard since they began, before another of these began."""
    touched_runs = {piece.run_id for piece in pieces if isinstance(piece, TurnTouch)}
    *earlier, _ = [piece.run_id for piece in pieces if isinstance(piece, TurnStart)]
    return {*earlier} - touched_runs


class WhenOvertaken(NamedTuple):
    """What becomes of turns before which others begin at once.

    Attributes:
        alone: the runs, (owner_key, run_id), of which no more is recorded than an input: their turns are closed.
        settled: how soon the others are looked at.
        idle: how soon a model may summarise a turn that is closed.
    """

    alone: Container[tuple[str, str]]
    settled: timedelta
    idle: timedelta

    def applied_to(self, document: Row, now: datetime) -> Row:
        """The document of a turn before which another has begun now."""
        if is_unheard(document) and (document["owner_key"], document["run_id"]) in self.alone:
            return {**document, **closed_unheard(now + self.idle)}
        return overtaken(document, now + self.settled)


def numbered(pieces: Sequence[Piece], latest: Row | None, goal: str, when_overtaken: WhenOvertaken) -> list[Row]:
    """The documents of turns that follow `latest`, each with the goal that holds by then, and what it has come to.

    Args:
        pieces: one start for each run, and what was heard of these runs, in their order.
        latest: the turn before them.
        goal: the one that it carries.
        when_overtaken: what is made of turns before which another of them begins.
    """
    documents: dict[str, Row] = {}
    going_on: set[str] = set()
    now = utc_now()
    for piece in pieces:
        if isinstance(piece, TurnTouch):
            if piece.run_id in documents:
                document = documents[piece.run_id] = touched(documents[piece.run_id], piece)
                if "heard_at" in piece.changes:
                    # It had begun when this was heard, although it is numbered only now; of others nobody asks when.
                    last = documents[next(reversed(documents))]
                    last["begun_at"] = min(last["begun_at"], document["heard_at"] - _MOMENT)
                going_on = going_on | {piece.run_id} if is_going_on(document) else going_on - {piece.run_id}
            continue
        for run_id in going_on:
            documents[run_id] = when_overtaken.applied_to(documents[run_id], now)
        goal = piece.task_context or goal
        latest = documents[piece.run_id] = begun(piece, latest, goal, now)
        going_on = {piece.run_id}
    return [*documents.values()]


def run_of(document: Row | None) -> str | None:
    """The run of a turn or a row; None where there is none, or the document is malformed."""
    run_id = document.get("run_id") if document else None
    return run_id if isinstance(run_id, str) else None
