"""What of the turn memory a build shows: read for the first build of a run, and kept for the others (CONTRACT §6).

Rules of this module:

- The goal is the one that the request brings; else that of the run's own turn, which another build may have brought
  since; else the one with which the run began; where nothing is stored of the session, the current input.
- Turns are shown as the run began with them, so that their bytes stay; but another level of detail is honoured.
- A turn that has just got its answer is waited for, a moment: its summary is about to be made.
- What cannot be read is missing, which the answer says, and never taken for nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import anyio

from nexus.core.metrics import Part
from nexus.core.models import utc_now
from nexus.core.ports import Row, TurnSource
from nexus.core.turns import CLOSE, Goal, Level, TurnStatus
from nexus.services.context.build_parts import Build
from nexus.services.context.gathering import within
from nexus.services.context.remembered import Remembered, read_turns
from nexus.services.context.request import BuildRequest
from nexus.services.context.window import Window

# For how long a build waits for the turn of an answer that was heard a moment ago, and how often it looks.
_CLOSED_S: Final = 0.25
_LOOKED_S: Final = 0.02
_LATELY: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known before turns are read.

    Attributes:
        goal: as it is stored; None where it was not read.
        kept: what the first build of the run has shown; None in that build.
        shown: runs of which everything from the input on is shown as it was said.
        all_shown: there are no others, as far as the session's rows tell.
    """

    goal: Goal | None
    kept: Remembered | None = None
    shown: Collection[str] = ()
    all_shown: bool = False

    @classmethod
    def beside(cls, window: Window, goal: Goal | None, kept: Remembered | None, *, missing: bool) -> "Known":
        """What is known where this part of the session is shown; `missing` if it could not be read."""
        return cls(goal, kept, window.runs, all_shown=not (window.cut or missing))

    @property
    def needs_turns(self) -> bool:
        """Whether there may be turns of which the input is not shown."""
        # Rows may have been removed, turns have come without them, or runs from before there were turns: then there are
        # more turns than inputs, or fewer.
        earlier = self.goal.earlier if self.goal else 0
        return not self.all_shown or len(self.shown) != earlier


def needs_goal(request: BuildRequest, kept: Remembered | None) -> bool:
    """Whether the stored goal has to be read; with it the number of the run's turn."""
    return kept is None or not request.turn.task_context or _another_level(request, kept)


async def recall(
    turns: TurnSource | None, build: Build, known: Known, *, deadline: float, degraded: list[str], notes: list[str]
) -> Remembered:
    """What the build shows.

    Args:
        turns: where turns are; None where none are kept, and then there is no goal but one that is given.
        build: for which.
        known: what is known already.
        deadline: until when turns may be read.
        degraded: gets `turns` where they could not be.
        notes: gets what was wrong with them.
    """
    request, kept = build.request, known.kept
    level = request.turn.summary_detail_level or (kept.level if kept else build.settings.summary_detail_level)
    text, source = _goal(request, known)
    remembered = replace(kept or Remembered(level=level), goal=text, goal_source=source)
    if not turns or known.goal is None or not (_another_level(request, kept) if kept else known.needs_turns):
        return remembered
    found = await _read(turns, build, known, level, deadline=deadline, degraded=degraded, notes=notes)
    return replace(found, goal=text, goal_source=source) if found else remembered


def _another_level(request: BuildRequest, kept: Remembered) -> bool:
    level = request.turn.summary_detail_level
    return bool(kept.turns) and level not in {None, kept.level}


def _goal(request: BuildRequest, known: Known) -> tuple[str, str]:
    """The goal and where it is from."""
    given, stored, kept = request.turn.task_context, known.goal or Goal(), known.kept
    if given:
        return given, request.human.id
    # Of a run that has no turn, a stored goal is that of another, which may change while the run goes on.
    if kept and (stored.turn_number is None or stored.text in {"", kept.goal}):
        return kept.goal, kept.goal_source
    if known.goal and not stored.text and request.origin.sub_agent is None:
        # The first turn of the session could not be taken in; it would have had this goal.
        return request.current_input, request.human.id
    return stored.text, stored.turn_id


async def _read(
    turns: TurnSource,
    build: Build,
    known: Known,
    level: Level,
    *,
    deadline: float,
    degraded: list[str],
    notes: list[str],
) -> Remembered | None:
    request, most = build.request, build.settings.turns_shown
    rows: list[Row] = []

    async def read_rows(limit: int, before: int | None) -> None:
        without = sorted({*known.shown, request.run_id})
        found = await turns.past_turns(
            request.owner_key, request.session_id, limit=limit, before=before, without_runs=without
        )
        rows.extend(row for row in found if row.get("owner_key") == request.owner_key)

    # One more than are shown tells whether there are more.
    first = partial(read_rows, most + 1, known.goal.turn_number if known.goal else None)
    closed_by = min(anyio.current_time() + _CLOSED_S, deadline)
    while True:
        if not await within(deadline, Part.TURNS, first, degraded):
            return None
        if anyio.current_time() >= closed_by or not any(map(_is_being_closed, rows)):
            break
        # What is shown of it now would change with the next run, and all that stands behind it with that.
        await anyio.sleep(_LOOKED_S)
        rows.clear()
    shown, malformed = read_turns(rows[:most], level)
    if malformed and rows[most:] and isinstance(rows[most].get("turn_number"), int):
        # As many older ones may take their places.
        await within(deadline, Part.TURNS, partial(read_rows, malformed, rows[most]["turn_number"]), degraded)
        most += malformed
        shown, malformed = read_turns(rows[:most], level)
    if malformed:
        notes.append(f"turns: {malformed} of those that are stored cannot be read and are not shown")
    dropped = malformed + sum(map(_and_before, rows[most : most + 1]))
    if dropped and not shown:
        # There is no block that could say so.
        notes.append(f"turns: {dropped} earlier ones are not shown")
    return Remembered(level=level, turns=shown, dropped=dropped)


def _is_being_closed(row: Row) -> bool:
    """Whether the answer of the turn was heard a moment ago, so that somebody is at its summary now."""
    heard_at = row.get("heard_at")
    lately = isinstance(heard_at, datetime) and utc_now() - heard_at < _LATELY
    return lately and row.get("work") == CLOSE and row.get("status") == TurnStatus.ACTING


def _and_before(row: Row) -> int:
    """How many turns there are up to this one: their numbers have no gaps."""
    number = row.get("turn_number")
    return number if isinstance(number, int) else 1
