"""The turn memory of sessions: turns begun, followed and read back (contract §6).

- A run becomes a turn when its first context is asked for, or else when its first result is recorded, or its input
  that waited in the outbox. Runs of sub-agents are no turns.
- Turns and the results of their runs are written by session, in order, in the background. Turns that no caller waits
  for are written half a second later: several of a session are one write.
- A number is one more than the latest of the session. Where another replica has taken it, the latest is read again.
- A turn carries the goal of the one before it, unless it brings its own; the first has the first input of its
  session. A goal that a run brings later also holds for the turns that began meanwhile.
- When a turn begins, the one before it counts as unanswered, if that is not over.
- A turn whose input was erased before it is written is not begun.
- A result that is not noted is found when its turn is looked at next, unless that was closed before (decision 15).
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Self

import anyio
import structlog
from anyio import to_thread

from nexus.core.concurrency import Pauses
from nexus.core.errors import StoreRejectedError, StoreUnavailableError, TurnNotFoundError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.models import DEFAULT_SESSION, is_internal, parse_moment, utc_now
from nexus.core.ports import MessageStore, Row, TurnStore
from nexus.core.ports.memory import TurnTouch
from nexus.core.ports.store import Refused
from nexus.core.turns import CLOSE, Goal, Level, Turn, TurnStart
from nexus.services.history.forms import input_text
from nexus.services.history.progress import is_progress
from nexus.services.history.recorder import UPDATED
from nexus.services.history.tombstones import Said, Tombstones, report_erased
from nexus.services.session_queue import Key, SessionQueue
from nexus.services.turns.documents import (
    OVERTAKEN,
    accumulated,
    changes_by_reading,
    changes_by_request,
    changes_by_row,
    facts_of,
    goal_of,
    is_going_on,
    is_numbered,
    is_placed,
    new_document,
    read_turn,
    repaired,
)
from nexus.services.turns.worker import TurnWorker

_log = structlog.get_logger(__name__)

# Turns that are looked through for the old goal when a run brings another one later.
_MOST_AFTER: Final = 50


@dataclass(frozen=True, slots=True)
class AskedStart:
    """A turn that is to begin, when this process was asked for it, and an event: it is kept, or never will be."""

    start: TurnStart
    asked_at: datetime
    settled: anyio.Event = field(default_factory=anyio.Event)


class TurnStarter:
    """Begins turns in a store, with the inputs of their sessions at hand."""

    def __init__(
        self, store: TurnStore, messages: MessageStore, tombstones: Tombstones, worker: TurnWorker, metrics: Metrics
    ) -> None:
        self._store = store
        self._tombstones = tombstones
        self._messages = messages
        self._metrics = metrics
        self._worker = worker

    async def begin(self, key: Key, asked: Iterable[AskedStart]) -> None:
        """Begin turns of one session in their order; runs that are turns already take over what they bring."""
        waiting = _merged(asked)
        while waiting:
            latest = await self._latest(key, waiting)
            if latest and not is_numbered(latest):
                raise StoreRejectedError("the latest turn of the session has no number")
            # Not a set: another program may have stored anything there.
            if waiting and (latest is None or latest.get("run_id") not in [*waiting]):
                for run_id in await self._insert(key, [*waiting.values()], latest):
                    del waiting[run_id]
            if waiting:
                # A number was taken by another replica, or a run is a turn already.
                runs = [*waiting]
                for known in await self._store.turns_of_runs(*key, runs):
                    if not is_placed(known):
                        raise StoreRejectedError("the turn of the run is malformed")
                    if known["run_id"] not in runs:
                        raise StoreUnavailableError("it answered with the turn of another run")
                    await self._take_over(key, waiting.pop(known["run_id"]).start, known)

    async def _latest(self, key: Key, waiting: dict[str, AskedStart]) -> Row | None:
        """The latest turn of the session. Those of which the input was erased are taken out."""
        said = [Said(*key, each.start.timestamp) for each in waiting.values()]
        for run_id, error in zip([*waiting], await self._tombstones.refusals(said), strict=True):
            if error:
                report_erased(self._metrics, error, run_id=run_id)
                del waiting[run_id]
        return await self._store.latest_turn(*key)

    async def begin_late(self, touch: TurnTouch) -> Key | None:
        """Begin the turn of a run that has only results so far. Returns the session of its input; None without one."""
        row = await self._messages.run_input(touch.owner_key, touch.run_id)
        text = input_text(row) if row else ""
        if not row or not text:
            return None
        key = touch.owner_key, str(row.get("session_id") or DEFAULT_SESSION)
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
            before = documents[-1] if documents else latest
            documents.append(new_document(each.start, before, goal, begun_at=each.asked_at, now=now))
        *earlier, last = documents
        if latest and is_going_on(latest):
            await self._overtake(key, latest, look_at)
        overtaken = [{**turn, **OVERTAKEN, "due_at": min(turn["due_at"], look_at)} for turn in earlier]
        kept = await self._store.insert_turns([*overtaken, last])
        self._metrics.count(Event.TURN_BEGUN, kept)
        return [turn["run_id"] for turn in documents[:kept]]

    async def _overtake(self, key: Key, turn: Row, look_at: datetime) -> None:
        """Have a turn that is not over count as unanswered, unless more of it is recorded at this moment."""
        if not is_placed(turn) or turn.get("work") != CLOSE or not isinstance(turn.get("due_at"), datetime):
            return
        changes = {**OVERTAKEN, "due_at": min(turn["due_at"], look_at)}
        seen = {name: turn.get(name) for name in ("status", "work", "heard_at")}
        await self._store.update_turn(*key, turn["turn_number"], changes, seen=seen)

    async def _first_goal(self, key: Key, start: TurnStart) -> str:
        """The first input of a session, which may have a past from before there were turns."""
        first = await self._messages.first_input(*key)
        return input_text(first) if first else start.input

    async def _take_over(self, key: Key, start: TurnStart, known: Row) -> None:
        """Have the turn of a run know what a later request of the run brings."""
        changes, unless_due = changes_by_request(start, known)
        if not changes:
            return
        await self._store.touch_runs([TurnTouch(*key, start.run_id, changes, unless_due)])
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


_PAUSE_S: Final = 0.5
# Turns that are read at once where all of a session are wanted.
_PAGE: Final = 200
_MOST_FOUND: Final = 100
# Turns of a session that may be open at once and are shown as far as they are recorded, and the rows read for one.
_MOST_OPEN: Final = 3
_MOST_ROWS: Final = 500


async def _ignore(*_: object) -> None:
    pass


class TurnMemory:
    """Begins, follows and reads turns. Use `running()` to have the background tasks at work.

    `refused` is called with every turn that the store refuses. Methods raise `StoreUnavailableError` where the store
    did not answer.
    """

    def __init__(
        self,
        store: TurnStore,
        messages: MessageStore,
        tombstones: Tombstones,
        worker: TurnWorker,
        metrics: Metrics | None = None,
        *,
        refused: Refused = _ignore,
    ) -> None:
        self._store = store
        self._messages = messages
        self._refused = refused
        self._metrics = metrics or NoMetrics()
        self._starter = TurnStarter(store, messages, tombstones, worker, self._metrics)
        self._queue = SessionQueue[AskedStart | TurnTouch](
            self._write, self._settle, self._delayed, _PAUSE_S, self._metrics
        )
        self._unwritten = 0
        self._metrics.read_from(Reading.UNWRITTEN_TURNS, lambda: self._unwritten)
        self.worker = worker

    @property
    def pending(self) -> int:
        """How many turns and results of their runs are accepted but not written yet."""
        return self._queue.pending.count

    async def drained(self) -> None:
        """Return when all turns that were begun, and all results of their runs, are written."""
        await self._queue.drained()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write, close and summarise turns, until the context ends. Wait for `drained()` first to lose nothing."""
        async with self._queue.running(), self.worker.running():
            try:
                yield self
            finally:
                if self._unwritten:
                    _log.error("turns_unwritten", pending=self._unwritten)
                    self._metrics.count(Event.TURN_LOST, self._unwritten)
                if results := self.pending - self._unwritten:
                    # Turns that go on are looked at again after a while.
                    _log.warning("turn_not_touched", pending=results, reason="the service ended")

    def begin_turn(self, start: TurnStart) -> anyio.Event | None:
        """Have the run remembered as a turn; see `TurnSource.begin_turn`."""
        size = sum(map(len, (start.input, start.task_context, start.workspace_context)))
        size += sum(len(item.content) for item in start.rounds)
        asked = AskedStart(start, utc_now())
        if not self._queue.offer(_key(start), asked, size):
            return None
        self._unwritten += 1
        return asked.settled

    async def start_turn(self, start: TurnStart) -> Turn:
        """Begin a turn now. Returns it, or the one that the run has; StoreRejectedError where it is never kept."""
        await self._queue.settled(_key(start))
        await self._starter.begin(_key(start), [AskedStart(start, utc_now())])
        (kept,) = await self._store.turns_of_runs(*_key(start), [start.run_id])
        return await self.get_turn_by_number(*_key(start), kept["turn_number"])

    async def note_row(self, row: Row) -> None:
        """Note a row that was recorded in the background. Never waits.

        One of a model or a tool says that the turn of its run goes on. An input is one that waited in the outbox: where
        the replica that built its context has ended, the turn is not begun yet.
        """
        if is_internal(row["metadata"]) or is_progress(row):
            # When a turn is looked at, its silence is counted from the last progress.
            return
        changes, unless_due = changes_by_row(row, utc_now())
        # A turn that has an earlier version of a message is closed again.
        message_id = None if UPDATED in row else row["id"]
        touch = TurnTouch(row["owner_key"], row["session_id"], row["run_id"], changes, unless_due, message_id)
        if not self._queue.offer(_key(touch), touch, 0, at_once=True):
            _log.warning("turn_not_touched", run_id=touch.run_id, reason="too much is waiting")

    async def written(self, owner_key: str, session_id: str) -> None:
        """Return when all that was accepted of the session until now is written, however long the store is away."""
        pauses = Pauses()
        while True:
            try:
                await self._queue.settled((owner_key, session_id))
            except StoreUnavailableError:
                await pauses.wait()
            else:
                return

    async def goal(self, owner_key: str, session_id: str, run_id: str) -> Goal:
        """The goal as the run is to know it; see `TurnSource.goal`."""
        await self._queue.settled((owner_key, session_id))
        own = await self._store.turns_of_runs(owner_key, session_id, [run_id])
        turn = own[0] if own else await self._store.latest_turn(owner_key, session_id)
        if turn is None:
            # What the session's first turn will carry.
            first = await self._messages.first_input(owner_key, session_id)
            return Goal(input_text(first) if first else "")
        if not is_numbered(turn):
            return Goal()
        number, text, turn_id = turn["turn_number"], goal_of(turn), str(turn.get("id", ""))
        return Goal(text, turn_id, number, number - 1) if own else Goal(text, turn_id, None, number)

    async def past_turns(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None, without_runs: Sequence[str] = ()
    ) -> list[Row]:
        """See `TurnSource.past_turns`."""
        found = await self._store.turns(owner_key, session_id, limit=limit, before=before, without_runs=without_runs)
        newest = [await self._as_recorded(turn) for turn in found[:_MOST_OPEN]]
        return [*newest, *found[_MOST_OPEN:]]

    async def _as_recorded(self, turn: Row) -> Row:
        """The turn with summaries of what is recorded of it, where it is to be closed yet."""
        if turn.get("work") != CLOSE or not is_placed(turn):
            return turn
        whole = await self._store.find_turn(turn["owner_key"], turn["session_id"], turn["turn_number"])
        rows = await self._messages.run_messages(turn["owner_key"], turn["run_id"], limit=_MOST_ROWS)
        if whole is None or len(rows) == _MOST_ROWS:
            return turn
        facts = await to_thread.run_sync(facts_of, whole, rows)
        return {**turn, **await to_thread.run_sync(changes_by_reading, {**whole, **repaired(whole)}, facts, len(rows))}

    async def get_turn_by_number(self, owner_key: str, session_id: str, turn_number: int) -> Turn:
        """The turn with that number; TurnNotFoundError where there is none that can be read."""
        document = await self._store.find_turn(owner_key, session_id, turn_number)
        turn = read_turn(document) if document else None
        if turn is None:
            raise TurnNotFoundError(turn_number)
        return turn

    async def get_user_facing_summary(self, owner_key: str, session_id: str, turn_number: int) -> str:
        """The detailed summary of a turn, or TurnNotFoundError."""
        return (await self.get_turn_by_number(owner_key, session_id, turn_number)).summaries.detailed

    async def get_accumulated_summaries(self, owner_key: str, session_id: str, level: Level = "brief") -> str:
        """All turns of a session at that level, as contexts show them; `""` where there are none."""
        documents: list[Row] = []
        before = None
        while True:
            page = await self._store.turns(owner_key, session_id, limit=_PAGE, before=before)
            documents += page
            if len(page) < _PAGE:
                return accumulated(documents, level)
            before = page[-1]["turn_number"]

    async def search(self, owner_key: str, session_id: str, text: str) -> list[Turn]:
        """Up to 100 turns with `text` in a summary or an insight, whatever the case, the highest number first."""
        found = await self._store.search_turns(owner_key, session_id, text, limit=_MOST_FOUND)
        return [turn for document in found if (turn := read_turn(document))]

    async def _write(self, key: Key, items: Sequence[AskedStart | TurnTouch]) -> None:
        """Begin turns of a session, then have them know the results of their runs."""
        starts = [item for item in items if isinstance(item, AskedStart)]
        try:
            await self._starter.begin(key, starts)
        except StoreRejectedError as error:
            if len(items) == 1:
                # Of several, the queue tries each by itself.
                start = starts[0].start
                await self._refused({**asdict(start), "id": start.input_id}, f"the turn of a run: {error}")
            raise
        touches = [item for item in items if isinstance(item, TurnTouch)]
        if touches:
            for touch in await self._store.touch_runs(touches):
                # A replica was killed before it had begun the turn.
                if session := await self._starter.begin_late(touch):
                    await self._store.touch_runs([replace(touch, session_id=session[1])])
            if any("due_at" in touch.changes for touch in touches):
                self.worker.wake()

    def _settle(self, item: AskedStart | TurnTouch, reason: str | None) -> None:
        if isinstance(item, AskedStart):
            self._unwritten -= 1
            item.settled.set()
            if reason is not None:
                _log.error("turn_refused", run_id=item.start.run_id, reason=reason)
                self._metrics.count(Event.TURN_LOST)
        elif reason is not None:
            _log.warning("turn_not_touched", run_id=item.run_id, reason=reason)

    def _delayed(self, reason: str) -> None:
        _log.warning("turn_delayed", reason=reason, pending=self.pending)


def _key(item: TurnStart | TurnTouch) -> Key:
    return item.owner_key, item.session_id
