"""What of the turn memory a build shows: read for the first build of a run, and kept for the others (contract §6).

Rules of this module:

- Turns are shown as the run began with them, so that their bytes stay; but another level of detail is honoured.
- A turn whose answer came a moment ago is waited for, briefly: its summary is about to be made.
- What cannot be read is missing, which the answer says, and never taken for nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

import anyio

from nexus.core.metrics import Part
from nexus.core.models import utc_now
from nexus.core.ports import Row, TurnSource
from nexus.core.turns import CLOSE, Goal, Level, TurnStatus
from nexus.services.context.gather import (
    Build,
    Read,
    SessionSources,
    Sources,
    goal_of,
    needs_goal,
    read_all,
    wants_another_level,
)
from nexus.services.context.memory_blocks import Remembered
from nexus.services.context.request import BuildRequest
from nexus.services.history.transcript import Window
from nexus.services.turns.documents import read_turns

_ANSWERED_LATELY: Final = timedelta(seconds=2)
# For how long a build waits for a turn to be summarised, and how often it reads it.
_CLOSED_S: Final = 0.25
_READ_AGAIN_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a build shows of the goal and of earlier turns; `missing` and `notes` as for `DialogueSources`."""

    remembered: Remembered
    missing: Sequence[Part] = ()
    notes: Sequence[str] = ()


async def recall_beside(
    sources: Sources, build: Build, session: SessionSources, window: Window, kept: Remembered | None, *, partly: bool
) -> Recalled:
    """What is shown of the goal and of the turns whose input is not in the window.

    Args:
        sources: where turns are.
        build: for which.
        session: what was read of it.
        window: what is shown of the session as it was said.
        kept: what the run's first build has shown; None in that build.
        partly: not all of the session was to be read, or could be.
    """
    earlier = session.goal.earlier if session.goal else 0
    # Rows may have been removed, turns have come without them, or runs from before there were turns: then there are
    # more turns than inputs, or fewer.
    needs_turns = window.cut or partly or len(window.runs) != earlier
    return await _recall(sources, build, _Known(session.goal, kept, needs_turns, window.runs))


async def recall_all(sources: Sources, build: Build, kept: Remembered | None) -> Recalled:
    """What is shown of the goal and of all earlier turns; `kept` is what the run's first build has shown."""
    request = build.request
    if not (sources.turns and needs_goal(request, kept)):
        return await _recall(sources, build, _Known(None, kept))
    found = await read_all({Part.TURNS: Read(goal_of(sources.turns, request), build.deadline)})
    recalled = await _recall(sources, build, _Known(found.get(Part.TURNS), kept))
    return recalled if found else replace(recalled, missing=[Part.TURNS])


class _Known(NamedTuple):
    """What is known before turns are read.

    Attributes:
        goal: as it is stored; None where it was not read.
        kept: what the first build of the run has shown; None in that build.
        needs_turns: there may be turns of which the input is not shown.
        shown_runs: runs of which everything from the input on is shown as it was said.
    """

    goal: Goal | None
    kept: Remembered | None
    needs_turns: bool = True
    shown_runs: Collection[str] = ()


async def _recall(sources: Sources, build: Build, known: _Known) -> Recalled:
    request, goal, kept = build.request, known.goal, known.kept
    level = request.turn.summary_detail_level or (kept.level if kept else build.settings.summary_detail_level)
    text, source = _goal_shown(request, goal, kept)
    remembered = replace(kept or Remembered(level=level), goal=text, goal_source=source)
    wanted = wants_another_level(request, kept) if kept else known.needs_turns
    if not sources.turns or goal is None or not wanted:
        return Recalled(remembered)
    found = await _past_turns(sources.turns, build, goal, level, known.shown_runs)
    if not found.remembered:
        return Recalled(remembered, [Part.TURNS])
    shown = replace(found.remembered, goal=text, goal_source=source)
    return Recalled(shown, [] if found.complete else [Part.TURNS], found.notes)


class _PastTurns(NamedTuple):
    remembered: Remembered | None
    notes: Sequence[str] = ()
    complete: bool = True


async def _past_turns(
    turns: TurnSource, build: Build, goal: Goal, level: Level, shown_runs: Collection[str]
) -> _PastTurns:
    request, most = build.request, build.settings.turns_shown
    without = sorted({*shown_runs, request.run_id})

    async def read(limit: int, before: int | None) -> list[Row] | None:
        call = partial(
            turns.past_turns,
            request.owner_key,
            request.session_id,
            limit=limit,
            before=before,
            without_runs=without,
        )
        found = await read_all({Part.TURNS: Read(call, build.deadline)})
        rows = found.get(Part.TURNS)
        return None if rows is None else [row for row in rows if row.get("owner_key") == request.owner_key]

    closed_by = min(anyio.current_time() + _CLOSED_S, build.deadline)
    # One more than are shown tells whether there are more.
    rows = await read(most + 1, goal.turn_number)
    while rows and anyio.current_time() < closed_by and any(map(_is_being_closed, rows)):
        # What is shown of it now would change with the next run, and all that stands behind it with that.
        await anyio.sleep(_READ_AGAIN_S)
        rows = await read(most + 1, goal.turn_number)
    if rows is None:
        return _PastTurns(None)
    complete = True
    shown, malformed = read_turns(rows[:most], level)
    if malformed and rows[most:] and isinstance(rows[most].get("turn_number"), int):
        # As many older ones may take their places.
        older = await read(malformed, rows[most]["turn_number"])
        complete = older is not None
        rows = [*rows, *(older or [])]
        most += malformed
        shown, malformed = read_turns(rows[:most], level)
    notes = [f"turns: {malformed} of those that are stored cannot be read and are not shown"] if malformed else []
    dropped = malformed + sum(map(_and_before, rows[most : most + 1]))
    if dropped and not shown:
        # There is no block that could say so.
        notes.append(f"turns: {dropped} earlier ones are not shown")
    return _PastTurns(Remembered(level=level, turns=shown, dropped=dropped), notes, complete)


def _goal_shown(request: BuildRequest, stored: Goal | None, kept: Remembered | None) -> tuple[str, str]:
    """The goal and where it is from.

    It is the one that the request brings; else that of the run's own turn, which another build may have brought since;
    else the one with which the run began; where nothing is stored of the session, the current input.
    """
    if request.turn.task_context:
        return request.turn.task_context, request.human.id
    goal = stored or Goal()
    # Of a run that has no turn, a stored goal is that of another, which may change while the run goes on.
    if kept and (goal.turn_number is None or goal.text in {"", kept.goal}):
        return kept.goal, kept.goal_source
    if stored and not stored.text and request.origin.sub_agent is None:
        # The first turn of the session could not be taken in; it would have had this goal.
        return request.current_input, request.human.id
    return goal.text, goal.turn_id


def _is_being_closed(row: Row) -> bool:
    """Whether the answer of the turn came a moment ago, so that its summary is being made now."""
    heard_at = row.get("heard_at")
    lately = isinstance(heard_at, datetime) and utc_now() - heard_at < _ANSWERED_LATELY
    return lately and row.get("work") == CLOSE and row.get("status") == TurnStatus.ACTING


def _and_before(row: Row) -> int:
    """How many turns there are up to this one: their numbers have no gaps."""
    number = row.get("turn_number")
    return number if isinstance(number, int) else 1
