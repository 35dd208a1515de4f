"""Beginning turns: numbered without gaps, each with the goal that holds by then (CONTRACT §6).

Rules of this module:

- Each number is one more than the latest. Who comes second is refused by the store, and reads the latest again.
- Every turn carries the goal of the one before it, unless it brings its own. The first has the first input of its
  session. A goal that comes later holds for the turns that began meanwhile, too.
- A turn that begins completes the one before it, if that is not over. What was heard of earlier ones since they were
  completed has them go on, and whoever looks at them then (`closing`) sees that another turn has begun.
- Turns that nobody waits for are begun together, a moment later: what is known of them by then is kept with them.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

import anyio
import structlog
from anyio import lowlevel

from nexus.core.errors import StoreRejectedError
from nexus.core.metrics import Event, Metrics, Reading
from nexus.core.ports import MessageStore, Row, TurnStore
from nexus.core.ports.turns import TurnTouch
from nexus.core.tasks import Awaited, Pending
from nexus.core.turns import CLOSE, Goal, TurnStart
from nexus.services.by_session import BySession, Key
from nexus.services.context.memory import as_text
from nexus.services.turns.documents import goal_of, is_due_now, is_going_on, looked_after, taken_over
from nexus.services.turns.malformed import is_numbered, is_placed
from nexus.services.turns.overtaking import Overtaking
from nexus.services.turns.starts import Piece, WhenOvertaken, begun_and_left, merged, numbered, run_of, starts_in
from nexus.services.turns.work import TurnWork

_log = structlog.get_logger(__name__)

# A build that has just begun a turn need not ask for its goal. Later another replica may know better.
_GOALS_KNOWN: Final = 256
_GOAL_KNOWN_S: Final = 0.5
# A turn that is begun alone costs as much as fifty do together.
_BEGUN_TOGETHER_S: Final = 0.5
# Turns that are put together without a break.
_WITHOUT_BREAK: Final = 8
# Runs that are begun while one goes on that is then given another goal.
_MOST_AFTER: Final = 50


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A piece that waits, and the event that is set when it does no longer."""

    piece: Piece
    kept: anyio.Event | None = None


class Beginnings:
    """Begins turns. Use `running()` to have the background workers at work.

    Args:
        store: where turns are kept.
        messages: where the inputs of sessions are.
        work: says for how long something may be on its way.
        metrics: what is counted.
    """

    def __init__(self, store: TurnStore, messages: MessageStore, work: TurnWork, metrics: Metrics) -> None:
        self._store = store
        self._messages = messages
        self._work = work
        self._metrics = metrics
        self._begins = BySession[_Waiting](self._begin_waiting, self._settle, self._delayed, _BEGUN_TOGETHER_S)
        # How often runs are to be begun that wait for it.
        self._runs: Counter[tuple[str, str, str]] = Counter()
        self._goals: OrderedDict[tuple[str, str, str], tuple[Goal, float]] = OrderedDict()
        # The turns to overtake in sessions in which one may have been kept although the store failed.
        self._unsure: dict[Key, Row] = {}
        self._awaited = Awaited()
        self._overtaking = Overtaking(store, messages, work, metrics, self._awaited)
        self._metrics.read_from(Reading.UNWRITTEN_TURNS, self._runs.total)

    @property
    def pending(self) -> Pending:
        """Turns that were begun and are not kept yet, and what was heard of them."""
        return self._begins.pending

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Keep turns that are begun, until the context ends. Wait for `pending` first, to lose nothing."""
        async with self._begins.running(), anyio.create_task_group() as tasks:
            tasks.start_soon(self._overtaking.run)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
                if lost := self._runs.total():
                    _log.error("turns_unwritten", pending=lost)
                    self._metrics.count(Event.TURN_LOST, lost)

    def offer(self, start: TurnStart) -> anyio.Event | None:
        """Accept a turn; see `TurnSource.begin_turn`."""
        kept = anyio.Event()
        size = sum(map(len, (start.input, start.task_context, start.workspace_context)))
        size += sum(len(item.content) for item in start.rounds)
        if not self._begins.offer(_key(start), _Waiting(start, kept), size):
            return None
        self._runs[_place(start)] += 1
        return kept

    def heard(self, touch: TurnTouch) -> bool:
        """Accept what was heard of a run that waits to be begun. False for any other, or when too much is waiting."""
        return _place(touch) in self._runs and self._begins.offer(_key(touch), _Waiting(touch), 0)

    async def begin(self, start: TurnStart) -> None:
        """Begin a turn now, after those of its session that wait, and complete those before it.

        Raises:
            StoreUnavailableError: the store did not answer.
            StoreRejectedError: it will never keep the turn.
        """
        await self._begins.settled(_key(start))
        await self._begin({_key(start): [start]})
        with self._awaited.awaiting():
            await self._overtaking.pending.none()

    async def goal(self, key: Key, run_id: str) -> Goal | None:
        """The goal of a turn that was begun here a moment ago, with what was offered before; None for any other.

        Raises:
            StoreUnavailableError: what was offered cannot be kept now.
        """
        await self._begins.settled(key)
        known, begun_at = self._goals.pop((*key, run_id), (None, 0.0))
        return known if time.monotonic() - begun_at <= _GOAL_KNOWN_S else None

    async def _begin_waiting(self, waiting: Mapping[Key, Sequence[_Waiting]]) -> None:
        await self._begin({key: [each.piece for each in of_session] for key, of_session in waiting.items()})

    async def _begin(self, begins: Mapping[Key, Sequence[Piece]]) -> None:
        """Number and keep the turns, however often somebody else comes first."""
        left = {key: merged(pieces) for key, pieces in begins.items()}
        of_turns = [touch for pieces in left.values() for touch in _without_start(pieces)]
        while left := {key: pieces for key, pieces in left.items() if starts_in(pieces)}:
            await self._number(left)
            for key, pieces in left.items():
                if starts_in(pieces):
                    # A number was taken meanwhile, or a run is a turn already.
                    left[key] = await self._take_over(key, pieces)
        await self._touch(of_turns)

    async def _number(self, left: dict[Key, list[Piece]]) -> None:
        """Keep turns that follow the latest of their sessions; what is of those that are kept leaves `left`."""
        latest = {(row["owner_key"], row["session_id"]): row for row in await self._store.latest_turns(left)}
        for turn in latest.values():
            if not is_numbered(turn):
                raise StoreRejectedError("the latest turn of the session has no number")
        # The run of the latest turn is a turn already.
        new = [key for key, pieces in left.items() if run_of(latest.get(key)) not in starts_in(pieces)]
        if not new:
            return
        goals = await self._first_goals({key: starts_in(left[key]) for key in new if not goal_of(latest.get(key))})
        unheard = {(key[0], run_id) for key in new for run_id in begun_and_left(left[key])}
        settings = self._work.settings
        when_overtaken = WhenOvertaken(
            await self._overtaking.of_input_alone(unheard),
            timedelta(seconds=settings.settled_s),
            timedelta(seconds=settings.idle_s),
        )
        documents: dict[Key, list[Row]] = {}
        made = 0
        for key in new:
            goal = goal_of(latest.get(key)) or goals[key]
            documents[key] = numbered(left[key], latest.get(key), goal, when_overtaken)
            made += len(documents[key])
            if made >= _WITHOUT_BREAK:
                made = 0
                await lowlevel.checkpoint()
        self._unsure |= {key: latest[key] for key in documents if is_going_on(latest.get(key))}
        kept = await self._store.insert_turns_of_sessions([*documents.values()])
        for key in documents:
            self._unsure.pop(key, None)
        self._metrics.count(Event.TURN_BEGUN, sum(kept))
        for (key, of_session), count in zip(documents.items(), kept, strict=True):
            if count:
                self._kept(of_session[:count], latest.get(key))
                runs = {document["run_id"] for document in of_session[:count]}
                left[key] = [piece for piece in left[key] if piece.run_id not in runs]

    def _kept(self, documents: Sequence[Row], latest: Row | None) -> None:
        """Turns that follow `latest` are kept."""
        for document in documents:
            self._remember(document)
        self._metrics.count(Event.TURN_CLOSED_UNHEARD, sum(document["work"] != CLOSE for document in documents))
        if any(is_due_now(document) for document in documents):
            self._work.wake()
        if latest and is_going_on(latest):
            self._overtaking.complete(latest)

    async def _take_over(self, key: Key, pieces: Sequence[Piece]) -> list[Piece]:
        """Have runs that are turns already take over what they are begun with. Returns what is of other runs."""
        starts, runs = starts_in(pieces), set()
        for known in await self._store.turns_of_runs(*key, [*starts]):
            if not is_placed(known):
                raise StoreRejectedError("the turn of the run is malformed")
            runs.add(known["run_id"])
            self._goals.pop((*key, known["run_id"]), None)
            if key in self._unsure:
                self._overtaking.complete(self._unsure.pop(key))
            if changes := taken_over(starts[known["run_id"]], known):
                await self._store.touch_runs([TurnTouch(*key, known["run_id"], changes, looked_after(changes))])
                await self._pass_on(key, known, changes.get("task_context", ""))
        await self._touch([each for each in pieces if isinstance(each, TurnTouch) and each.run_id in runs])
        return [piece for piece in pieces if piece.run_id not in runs]

    async def _touch(self, touches: Sequence[TurnTouch]) -> None:
        """Have turns that are kept know what was heard of their runs."""
        if touches:
            await self._store.touch_runs(touches)
            self._work.wake()

    async def _pass_on(self, key: Key, turn: Row, goal: str) -> None:
        """Have the turns that began after this one know the goal that it was given since, if they have its old one."""
        if not goal:
            return
        changes = {"task_context": goal}
        later = [
            TurnTouch(*key, each["run_id"], changes)
            for each in await self._store.turns(*key, limit=_MOST_AFTER)
            if is_placed(each) and each["turn_number"] > turn["turn_number"] and goal_of(each) == goal_of(turn)
        ]
        await self._store.touch_runs(later)

    def _remember(self, document: Row) -> None:
        """Know the goal of a turn that was begun here, for the build that waits for it."""
        place = document["owner_key"], document["session_id"], document["run_id"]
        self._goals[place] = goal_in(document, own=True), time.monotonic()
        if len(self._goals) > _GOALS_KNOWN:
            self._goals.popitem(last=False)

    async def _first_goals(self, starts: Mapping[Key, Mapping[str, TurnStart]]) -> dict[Key, str]:
        """The first inputs of sessions that have no turns yet, but perhaps a past from before there were any."""
        found = await self._messages.first_inputs([*starts]) if starts else {}
        return {
            key: as_text(found[key].get("content") if key in found else None) or next(iter(of_session.values())).input
            for key, of_session in starts.items()
        }

    def _settle(self, waiting: _Waiting, reason: str | None) -> None:
        piece, kept = waiting.piece, waiting.kept
        if kept is None:
            if reason is not None:
                _log.warning("turn_not_touched", run_id=piece.run_id, reason=reason)
            return
        if reason is not None:
            self._unsure.pop(_key(piece), None)
            _log.error("turn_refused", run_id=piece.run_id, reason=reason)
            self._metrics.count(Event.TURN_LOST)
        self._runs[_place(piece)] -= 1
        if not self._runs[_place(piece)]:
            del self._runs[_place(piece)]
        kept.set()

    def _delayed(self, reason: str) -> None:
        _log.warning("turn_delayed", reason=reason, pending=self.pending.count)


def goal_in(document: Row, *, own: bool) -> Goal:
    """The goal as the turn of the run, or else the latest one, tells it."""
    number = document["turn_number"]
    text, turn_id = goal_of(document), str(document.get("id", ""))
    return Goal(text, turn_id, number, number - 1) if own else Goal(text, turn_id, None, number)


def _key(piece: Piece) -> Key:
    return piece.owner_key, piece.session_id


def _place(piece: Piece) -> tuple[str, str, str]:
    return piece.owner_key, piece.session_id, piece.run_id


def _without_start(pieces: Sequence[Piece]) -> list[TurnTouch]:
    """What was heard of runs that are not begun with them."""
    starts = starts_in(pieces)
    return [piece for piece in pieces if isinstance(piece, TurnTouch) and piece.run_id not in starts]
