"""Beginning turns: numbered without gaps, each with the goal that holds by then (contract §6).

- A number is one more than the latest of the session. Where another replica has taken it, the store refuses it and the
  latest is read again.
- A turn carries the goal of the one before it, unless it brings its own; the first has the first input of its session.
  A goal that a run brings later also holds for the turns that began meanwhile.
- A turn that begins completes the one before it, if that is not over.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import anyio

from nexus.core.errors import StoreRejectedError
from nexus.core.metrics import Event, Metrics
from nexus.core.models import parse_moment, utc_now
from nexus.core.ports import MessageStore, Row, TurnStore
from nexus.core.ports.memory import TurnTouch
from nexus.core.turns import CLOSE, TurnStart
from nexus.services.session_queue import Key
from nexus.services.text.content import as_text
from nexus.services.turns.documents import (
    OVERTAKEN,
    begun,
    goal_of,
    is_going_on,
    is_numbered,
    is_placed,
    looked_after,
    overtaken,
    taken_over,
)
from nexus.services.turns.worker import TurnWorker

# Turns that are looked through for the old goal when a run brings another one later.
_MOST_AFTER: Final = 50


@dataclass(frozen=True, slots=True)
class AskedStart:
    """A turn that is to begin.

    Attributes:
        start: what it begins with.
        asked_at: when this process was asked for it.
        settled: set when it is kept, or never will be.
    """

    start: TurnStart
    asked_at: datetime
    settled: anyio.Event = field(default_factory=anyio.Event)


class TurnStarter:
    """Begins turns in a store.

    Args:
        store: where turns are kept.
        messages: where the inputs of sessions are.
        metrics: counts turns that were begun.
        worker: has the settings.
    """

    def __init__(self, store: TurnStore, messages: MessageStore, metrics: Metrics, worker: TurnWorker) -> None:
        self._store = store
        self._messages = messages
        self._metrics = metrics
        self._worker = worker

    async def begin(self, key: Key, asked: Iterable[AskedStart]) -> None:
        """Begin turns of one session in their order; runs that are turns already take over what they bring.

        Raises:
            StoreUnavailableError: the store did not answer.
            StoreRejectedError: it will never keep the turns.
        """
        waiting = _merged(asked)
        while waiting:
            latest = await self._store.latest_turn(*key)
            if latest and not is_numbered(latest):
                raise StoreRejectedError("the latest turn of the session has no number")
            if latest is None or latest.get("run_id") not in waiting:
                for run_id in await self._insert(key, [*waiting.values()], latest):
                    del waiting[run_id]
            if waiting:
                # A number was taken by another replica, or a run is a turn already.
                for known in await self._store.turns_of_runs(*key, [*waiting]):
                    await self._take_over(key, waiting.pop(known["run_id"]).start, known)

    async def begin_late(self, touch: TurnTouch) -> Key | None:
        """Begin the turn of a run of which only results are known, from its recorded input.

        Returns:
            Its session, which is that of the input; None where no input is recorded.
        """
        row = await self._messages.run_input(touch.owner_key, touch.run_id)
        text = as_text(row.get("content")) if row else ""
        if not row or not text:
            return None
        key = touch.owner_key, str(row.get("session_id"))
        begun_at = parse_moment(row.get("timestamp")) or utc_now()
        start = TurnStart(*key, touch.run_id, begun_at, text, str(row.get("id", "")))
        await self.begin(key, [AskedStart(start, utc_now())])
        return key

    async def _insert(self, key: Key, asked: Sequence[AskedStart], latest: Row | None) -> list[str]:
        """Insert turns after the latest one. Returns the runs of those that were kept."""
        goal = goal_of(latest) or await self._first_goal(key, asked[0].start)
        now = utc_now()
        look_at = now + timedelta(seconds=self._worker.settings.settled_s)
        documents: list[Row] = []
        for each in asked:
            goal = each.start.task_context or goal
            turn = begun(each.start, documents[-1] if documents else latest, goal, now)
            documents.append({**turn, "begun_at": each.asked_at})
        *earlier, last = documents
        if latest and is_going_on(latest):
            await self._complete(key, latest, look_at)
        kept = await self._store.insert_turns([*(overtaken(turn, look_at) for turn in earlier), last])
        self._metrics.count(Event.TURN_BEGUN, kept)
        return [turn["run_id"] for turn in documents[:kept]]

    async def _complete(self, key: Key, turn: Row, look_at: datetime) -> None:
        """Have a turn that is not over count as completed, unless more of it is recorded at this moment."""
        if not is_placed(turn) or turn.get("work") != CLOSE or not isinstance(turn.get("due_at"), datetime):
            return
        changes = {**OVERTAKEN, "due_at": min(turn["due_at"], look_at)}
        seen = {name: turn.get(name) for name in ("status", "work", "heard_at")}
        await self._store.update_turn(*key, turn["turn_number"], changes, seen=seen)

    async def _first_goal(self, key: Key, start: TurnStart) -> str:
        """The first input of a session, which may have a past from before there were turns."""
        first = await self._messages.first_input(*key)
        return as_text(first.get("content")) if first else start.input

    async def _take_over(self, key: Key, start: TurnStart, known: Row) -> None:
        """Have the turn of a run know what a later request of the run brings."""
        if not is_placed(known):
            raise StoreRejectedError("the turn of the run is malformed")
        changes = taken_over(start, known)
        if not changes:
            return
        await self._store.touch_runs([TurnTouch(*key, start.run_id, changes, looked_after(changes))])
        if goal := changes.get("task_context"):
            await self._pass_on(key, known, goal)

    async def _pass_on(self, key: Key, turn: Row, goal: str) -> None:
        """Have the turns that began after this one with its old goal know the new one."""
        later = [
            TurnTouch(*key, each["run_id"], {"task_context": goal})
            for each in await self._store.turns(*key, limit=_MOST_AFTER)
            if is_placed(each) and each["turn_number"] > turn["turn_number"] and goal_of(each) == goal_of(turn)
        ]
        await self._store.touch_runs(later)


def _merged(asked: Iterable[AskedStart]) -> dict[str, AskedStart]:
    """One start for each run, in the order of the first requests; what later requests bring counts."""
    merged: dict[str, AskedStart] = {}
    for each in asked:
        run_id, start = each.start.run_id, each.start
        if first := merged.get(run_id):
            start = replace(
                first.start,
                task_context=start.task_context or first.start.task_context,
                workspace_context=first.start.workspace_context or start.workspace_context,
                thinking=start.thinking,
                rounds=start.rounds or first.start.rounds,
            )
            merged[run_id] = AskedStart(start, first.asked_at)
        else:
            merged[run_id] = each
    return merged
