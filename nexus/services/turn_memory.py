"""Turns of sessions: begun, heard of, read back (CONTRACT §6).

Rules of this module:

- A run becomes a turn when its first context is asked for. Numbers have no gaps, however many replicas begin turns at
  once: each number is one more than the latest, and who comes second reads the latest again.
- Every turn carries the goal of the one before it, unless it brings its own. The first has the first input of its
  session.
- What a turn was is read from the rows of its run when it is over, by `turns.work`. There is always a summary: until
  then, and without a model, it is made by rules.
- Sub-agents' runs are their own business, and no turns.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final, Self

import anyio
import structlog

from nexus.core.errors import StoreRejectedError, StoreUnavailableError, TurnNotFoundError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.models import utc_now
from nexus.core.ports import MessageStore, Row, TurnStore
from nexus.core.tasks import Later, Pending
from nexus.core.turns import Goal, Level, Turn, TurnStart
from nexus.services.by_session import BySession, Key
from nexus.services.context.agents import is_internal
from nexus.services.context.clock import parse_moment
from nexus.services.context.memory import as_text
from nexus.services.context.remembered import accumulated
from nexus.services.turns.documents import (
    OVERTAKEN,
    begun,
    goal_of,
    heard,
    is_going_on,
    read_turn,
    taken_over,
)
from nexus.services.turns.work import TurnWork

_log = structlog.get_logger(__name__)

# Turns that are read at once where all of a session's are wanted.
_PAGE: Final = 200
_MOST_FOUND: Final = 100
# A build that has just begun a turn need not ask for its goal. Later another replica may know better.
_GOALS_KNOWN: Final = 256
_GOAL_KNOWN_S: Final = 0.5
# Runs that are begun while one goes on that is then given another goal.
_MOST_AFTER: Final = 50


@dataclass(frozen=True, slots=True)
class _Begin:
    start: TurnStart
    kept: anyio.Event


class TurnMemory:
    """Begins and reads turns. Use `running()` to have the background workers at work.

    Args:
        store: where turns are kept.
        messages: where the rows of their runs are.
        work: closes and summarises them.
        metrics: what is counted.
    """

    def __init__(
        self, store: TurnStore, messages: MessageStore, work: TurnWork, metrics: Metrics | None = None
    ) -> None:
        self._store = store
        self._messages = messages
        self._metrics = metrics or NoMetrics()
        self._begins = BySession[_Begin](self._begin, self._settle, self._delayed)
        self._goals: OrderedDict[tuple[str, str, str], tuple[Goal, float]] = OrderedDict()
        self._later = Later()
        self.work = work
        self._metrics.read_from(Reading.UNWRITTEN_TURNS, lambda: self.pending.count)

    @property
    def pending(self) -> Pending:
        """Turns that were begun and are not kept yet."""
        return self._begins.pending

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Keep, close and summarise turns, until the context ends. Wait for `pending` first, to lose nothing."""
        async with self._begins.running(), self.work.running(), anyio.create_task_group() as tasks:
            tasks.start_soon(self._later.run)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
                if self.pending.count:
                    _log.error("turns_unwritten", pending=self.pending.count)
                    self._metrics.count(Event.TURN_LOST, self.pending.count)

    def begin_turn(self, start: TurnStart) -> anyio.Event | None:
        """Have the run remembered as a turn; see `TurnSource.begin_turn`."""
        begin = _Begin(start, anyio.Event())
        size = sum(map(len, (start.input, start.task_context, start.workspace_context)))
        size += sum(len(item.content) for item in start.rounds)
        return begin.kept if self._begins.offer(_key(start), begin, size) else None

    async def start_turn(self, start: TurnStart) -> Turn:
        """Begin a turn now. One of the session that is not over counts as completed.

        Returns:
            The turn; the one that is there, where the run has one.

        Raises:
            StoreUnavailableError: the store did not answer.
            StoreRejectedError: it will never keep the turn.
        """
        await self._begin(_key(start), [_Begin(start, anyio.Event())])
        await self._later.pending.none()
        (kept,) = await self._store.turns_of_runs(start.owner_key, start.session_id, [start.run_id])
        return await self.get_turn_by_number(start.owner_key, start.session_id, kept["turn_number"])

    async def heard(self, row: Row) -> None:
        """A row of a model or a tool was recorded: its turn has gone on.

        A run that is no turn, because a replica was killed before it had begun it, becomes one. A store that does not
        answer now is no harm: somebody looks after unfinished turns before long.
        """
        if row["role"] not in {"AI", "TOOL"} or is_internal(row["metadata"]):
            return
        owner_key, session_id = row["owner_key"], row["session_id"]
        changes, unless_due = heard(row, utc_now())
        touch = partial(
            self._store.touch_run,
            run_id=row["run_id"],
            changes=changes,
            unless_due=unless_due,
            message_id=row["id"],
        )
        try:
            known = await touch(owner_key, session_id)
            if not known and (key := await self._begin_late(row)):
                known = await touch(*key)
            if known and "due_at" in changes:
                self.work.wake()
        except (StoreUnavailableError, StoreRejectedError) as error:
            _log.warning("turn_not_touched", run_id=row["run_id"], reason=str(error))

    async def goal(self, owner_key: str, session_id: str, run_id: str) -> Goal:
        """The goal as the run is to know it; see `TurnSource.goal`."""
        await self._begins.settled((owner_key, session_id))
        known, begun_at = self._goals.pop((owner_key, session_id, run_id), (None, 0.0))
        if known and anyio.current_time() - begun_at <= _GOAL_KNOWN_S:
            return known
        own = await self._store.turns_of_runs(owner_key, session_id, [run_id])
        document = own[0] if own else await self._store.latest_turn(owner_key, session_id)
        return _goal(document, own=bool(own)) if document else Goal()

    async def past_turns(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None, without_runs: Sequence[str] = ()
    ) -> list[Row]:
        """Turns, the highest number first; see `TurnSource.past_turns`."""
        return await self._store.turns(owner_key, session_id, limit=limit, before=before, without_runs=without_runs)

    async def get_turn_by_number(self, owner_key: str, session_id: str, turn_number: int) -> Turn:
        """The turn with that number.

        Raises:
            TurnNotFoundError: there is none that can be read.
            StoreUnavailableError: the store did not answer.
        """
        document = await self._store.find_turn(owner_key, session_id, turn_number)
        turn = read_turn(document) if document else None
        if turn is None:
            raise TurnNotFoundError(turn_number)
        return turn

    async def get_user_facing_summary(self, owner_key: str, session_id: str, turn_number: int) -> str:
        """The detailed summary of a turn. Errors as for `get_turn_by_number`."""
        return (await self.get_turn_by_number(owner_key, session_id, turn_number)).summaries.detailed

    async def get_accumulated_summaries(self, owner_key: str, session_id: str, level: Level = "brief") -> str:
        """What is remembered of all turns at that level, as contexts show it; `""` where there are none.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        documents: list[Row] = []
        before = None
        while True:
            page = await self._store.turns(owner_key, session_id, limit=_PAGE, before=before)
            documents += page
            if len(page) < _PAGE:
                return accumulated(documents, level)
            before = page[-1]["turn_number"]

    async def search(self, owner_key: str, session_id: str, text: str) -> list[Turn]:
        """Up to 100 turns with `text` in a summary or an insight, whatever the case, the highest number first.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        found = await self._store.search_turns(owner_key, session_id, text, limit=_MOST_FOUND)
        return [turn for document in found if (turn := read_turn(document))]

    async def _begin(self, key: Key, begins: Sequence[_Begin]) -> None:
        """Number and keep the turns, however often somebody else comes first."""
        starts = _merged([begin.start for begin in begins])
        latest = await self._store.latest_turn(*key)
        while starts:
            goal = goal_of(latest) or await self._first_goal(key, next(iter(starts.values())))
            documents = _numbered([*starts.values()], latest, goal)
            kept = await self._store.insert_turns(documents)
            for document in documents[:kept]:
                self._remember(document)
                del starts[document["run_id"]]
            if kept and latest and is_going_on(latest):
                self._later.do(partial(self._overtake, key, documents[0]["turn_number"]))
            self._metrics.count(Event.TURN_BEGUN, kept)
            if not starts:
                return
            # A number was taken meanwhile, or a run is a turn already.
            for known in await self._store.turns_of_runs(*key, [*starts]):
                self._goals.pop((*key, known["run_id"]), None)
                if changes := taken_over(starts.pop(known["run_id"]), known):
                    await self._store.touch_run(*key, known["run_id"], changes)
                    await self._pass_on(key, known, changes.get("task_context", ""))
            latest = await self._store.latest_turn(*key)

    async def _pass_on(self, key: Key, turn: Row, goal: str) -> None:
        """Have the turns that began after this one know the goal that it was given since, if they have its old one."""
        if not goal:
            return
        for later in await self._store.turns(*key, limit=_MOST_AFTER):
            if later["turn_number"] > turn["turn_number"] and goal_of(later) == goal_of(turn):
                await self._store.touch_run(*key, later["run_id"], {"task_context": goal})

    async def _begin_late(self, row: Row) -> Key | None:
        """Where the turn of the row's run is, which is begun now if it was not; None where it has no input."""
        rows = await self._messages.run_messages(row["owner_key"], row["run_id"], limit=_PAGE)
        asked = next((item for item in reversed(rows) if item.get("role") == "HUMAN"), None)
        text = as_text(asked.get("content")) if asked else ""
        if not asked or not text or is_internal(asked.get("metadata")):
            return None
        # A result may be said to belong to another session than its run.
        key = row["owner_key"], str(asked.get("session_id"))
        if not await self._store.turns_of_runs(*key, [row["run_id"]]):
            begun_at = parse_moment(asked.get("timestamp")) or utc_now()
            start = TurnStart(*key, row["run_id"], begun_at, text, str(asked.get("id", "")))
            await self._begin(key, [_Begin(start, anyio.Event())])
        return key

    async def _overtake(self, key: Key, turn_number: int) -> None:
        """Have earlier turns that are not over counted as completed."""
        due_by = utc_now() + timedelta(seconds=self.work.settings.settled_s)
        try:
            await self._store.overtake(*key, turn_number, OVERTAKEN, due_by=due_by)
        except StoreUnavailableError as error:
            # They fall silent, and are closed then.
            _log.warning("turn_delayed", reason=str(error), pending=self.pending.count)

    def _remember(self, document: Row) -> None:
        """Know the goal of a turn that was begun here, for the build that waits for it."""
        place = document["owner_key"], document["session_id"], document["run_id"]
        self._goals[place] = _goal(document, own=True), anyio.current_time()
        if len(self._goals) > _GOALS_KNOWN:
            self._goals.popitem(last=False)

    async def _first_goal(self, key: Key, first: TurnStart) -> str:
        """The first input of a session that has no turns yet, but perhaps a past from before there were any."""
        row = await self._messages.first_input(*key)
        return as_text(row.get("content") if row else None) or first.input

    def _settle(self, begin: _Begin, reason: str | None) -> None:
        if reason is not None:
            _log.error("turn_refused", run_id=begin.start.run_id, reason=reason)
            self._metrics.count(Event.TURN_LOST)
        begin.kept.set()

    def _delayed(self, reason: str) -> None:
        _log.warning("turn_delayed", reason=reason, pending=self.pending.count)


def _goal(document: Row, *, own: bool) -> Goal:
    """The goal as the turn of the run, or else the latest one, tells it."""
    number = document["turn_number"]
    text, turn_id = goal_of(document), str(document.get("id", ""))
    return Goal(text, turn_id, number, number - 1) if own else Goal(text, turn_id, None, number)


def _key(start: TurnStart) -> Key:
    return start.owner_key, start.session_id


def _merged(starts: Sequence[TurnStart]) -> dict[str, TurnStart]:
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


def _numbered(starts: Sequence[TurnStart], latest: Row | None, goal: str) -> list[Row]:
    """The documents of turns that follow `latest`, each with the goal that holds by then."""
    documents: list[Row] = []
    now = utc_now()
    for start in starts:
        goal = start.task_context or goal
        latest = begun(start, latest, goal, now)
        documents.append(latest)
    return documents
