"""Removes what is older than the settings `retention` allow, and no more than is under a summary (contract §7).

- A row goes with its run: when every row of the run in its session is old, by its time and by its storing, and all
  are under compactions or, where nothing of the session is compacted, in the summary of the run's turn. A run whose
  turn is not over stays, and so does what is internal to a sub-agent.
- What goes is noted where its summary is (`removed` of a compaction or turn), and then removed: a pass that is broken
  off leaves no row that is neither there nor noted. `rows_gone` says that none is left.
- A turn goes after its rows, where rows go at all, and never the newest of a session. Of a session without turns the
  first input stays, since it will be the goal.
- A row leaves the index of long-term memory just before it is removed: its text says what the index has of it. What a
  pass that is broken off leaves there leads to no row, and is not found.
- Old revisions and versions go, never the newest. An archive goes once its compaction says so.
- One replica at a time makes a pass, in batches with pauses. A session at which it fails does not end it.
"""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Self

import anyio
import structlog

from nexus.core.concurrency import OuterHandler, computed, report_fault
from nexus.core.errors import BusUnavailableError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics
from nexus.core.models import DEFAULT_SESSION, is_internal, parse_moment, utc_now
from nexus.core.ports import DeadLetters, Row, Store
from nexus.core.ports.retention import Kind, Removable
from nexus.core.recall import Entry, Language, Place
from nexus.core.turns import CLOSE, OVER
from nexus.services.due_work import WorkClaim, WorkSignal, claim_due, run_due_work
from nexus.services.history.rows import chars_of, texts_of_list
from nexus.services.memory.documents import numbered
from nexus.services.memory.units import stored_at
from nexus.services.recall.texts import findable
from nexus.services.turns.documents import is_placed

_log = structlog.get_logger(__name__)

_EVERY: Final = timedelta(hours=6)
_AGAIN: Final = timedelta(minutes=10)
# Between two batches.
_PAUSE_S: Final = 0.05
_LEASE_S: Final = 15.0
_TASK: Final = "retention"
_HEADERS_AT_ONCE: Final = 200
_RUNS_AT_ONCE: Final = 50
_ROWS_AT_ONCE: Final = 500
_TEXTS_AT_ONCE: Final = 50
_EVENTS: Final[Mapping[Removable, Event]] = {
    "messages": Event.ROW_REMOVED,
    "turns": Event.TURN_REMOVED,
    "overviews": Event.REVISION_REMOVED,
    "details": Event.DETAIL_REMOVED,
}

_Key = tuple[str, str]
_Step = Callable[[_Key, Sequence[Row], datetime], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long things are kept; None for ever."""

    messages: timedelta | None = None
    turns: timedelta | None = None
    memory_revisions: timedelta | None = None
    details: timedelta | None = None
    dead_letters: timedelta | None = None


class Retention:
    """Makes passes over everything that is stored while `running()`, where something is to be removed at all.

    `language` is that by which messages are found; see `findable`.
    """

    def __init__(
        self,
        store: Store,
        letters: DeadLetters,
        settings: RetentionSettings,
        metrics: Metrics,
        *,
        language: Language = "english",
    ) -> None:
        self._store = store
        self._language = language
        self._letters = letters
        self._settings = settings
        self._metrics = metrics

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Make passes that are due, until the context ends."""
        async with anyio.create_task_group() as tasks:
            if any(astuple(self._settings)):
                tasks.start_soon(run_due_work, self._claim, self._handle, WorkSignal(), 1, self._metrics)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    async def run_pass(self, now: datetime) -> Counter[Event]:
        """Remove all that is old enough by `now`; returns how much. Errors of the store and of the dead letters."""
        return await _Pass(self._store, self._letters, self._settings, self._metrics, self._language).run(now)

    async def _claim(self) -> WorkClaim | None:
        claim = self._store.retention.claim_pass
        return await claim_due(claim, self._write, lease_s=_LEASE_S, unchanged=())

    async def _write(self, _claimed: Row, changes: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
        return await self._store.retention.update_pass(changes, seen=seen)

    async def _handle(self, claimed: WorkClaim) -> None:
        pause = _EVERY
        with OuterHandler(self._metrics, _TASK):
            try:
                removed = await self.run_pass(utc_now())
            except (StoreUnavailableError, BusUnavailableError) as error:
                _log.warning("retention_delayed", reason=str(error))
                pause = _AGAIN
            else:
                _log.info(
                    "retention_done",
                    rows=removed[Event.ROW_REMOVED],
                    turns=removed[Event.TURN_REMOVED],
                    revisions=removed[Event.REVISION_REMOVED],
                    details=removed[Event.DETAIL_REMOVED],
                    letters=removed[Event.LETTER_REMOVED],
                )
        with suppress(StoreUnavailableError, StoreRejectedError):
            await claimed.finish({"due_at": utc_now() + pause})


@dataclass(slots=True)
class _Covered:
    """The rows under a compaction, and its field `removed` as it is stored."""

    rows: Sequence[str]
    removed: Any


class _Pass:
    """One pass."""

    def __init__(
        self, store: Store, letters: DeadLetters, settings: RetentionSettings, metrics: Metrics, language: Language
    ) -> None:
        self._store = store
        self._letters = letters
        self._settings = settings
        self._metrics = metrics
        self._language = language
        self._removed: Counter[Event] = Counter()
        self._away: StoreUnavailableError | None = None

    async def run(self, now: datetime) -> Counter[Event]:
        """Make it. Returns what was removed."""
        kept = self._settings
        if kept.messages:
            # A compaction of today may stand for old rows.
            await self._walk("compactions", now, self._rows_of_compactions, now - kept.messages)
            await self._walk("turns", now - kept.messages, self._rows_of_turns, now - kept.messages)
        if kept.turns:
            await self._walk("turns", now - kept.turns, self._turns, now - kept.turns)
        if kept.memory_revisions:
            before = now - kept.memory_revisions
            await self._walk("overviews", before, self._revisions, before)
        if kept.details:
            await self._walk("details", now - kept.details, self._details, now - kept.details)
        if kept.dead_letters:
            self._count(Event.LETTER_REMOVED, await self._letters.drop_before(now - kept.dead_letters))
        if self._away:
            raise self._away
        return self._removed

    async def _walk(self, kind: Kind, stored_before: datetime, step: _Step, before: datetime) -> None:
        """Take the step with the documents of each session, in pages of all that were stored by then."""
        after = ""
        while True:
            page = await self._store.retention.stored_before(kind, stored_before, after=after, limit=_HEADERS_AT_ONCE)
            sessions: defaultdict[_Key, list[Row]] = defaultdict(list)
            for header in page:
                owner, session = header.get("owner_key"), header.get("session_id") or DEFAULT_SESSION
                if isinstance(owner, str) and isinstance(session, str):
                    sessions[owner, session].append(header)
            for key, headers in sessions.items():
                await self._try(step, key, headers, before)
            if len(page) < _HEADERS_AT_ONCE:
                return
            after = page[-1]["_id"]
            await anyio.sleep(_PAUSE_S)

    async def _try(self, step: _Step, key: _Key, headers: Sequence[Row], before: datetime) -> None:
        """Take the step with one session, which must not stop the work on all others."""
        try:
            await step(key, headers, before)
        except StoreUnavailableError as error:
            self._away = error
        except StoreRejectedError as error:
            _log.error("retention_refused", reason=str(error))
        except Exception as error:  # noqa: BLE001  # the outermost handler of the work on a session
            report_fault(self._metrics, _TASK, error)

    async def _rows_of_compactions(self, key: _Key, headers: Sequence[Row], before: datetime) -> None:
        due = [
            header["number"]
            for header in headers
            if isinstance(header.get("number"), int)
            and not header.get("rows_gone")
            and _is_before(header.get("first_at") or header.get("created_at"), before)
        ]
        if not due:
            return
        covered = await self._compactions(key)
        under = {row_id for each in covered.values() for row_id in each.rows}
        kept = await self._first_goal(key)
        for number in sorted({*due} & covered.keys()):
            there = await self._rows_of_ids(key, covered[number].rows)
            old = [row for row in there if _is_old(row, before) and _run_of(row) != kept]
            going = await self._whole_runs(key, old, under, before)
            if await self._note(key, going, covered):
                await self._remove("messages", key[0], going)
                if {*going} >= {row["_id"] for row in there}:
                    await self._store.memory.update_compaction(*key, number, {"rows_gone": True}, seen={})

    async def _whole_runs(self, key: _Key, old: Iterable[Row], under: Container[str], before: datetime) -> list[str]:
        """The `_id`s of all rows of these rows' runs that are over, old, and as a whole under compactions: `under`."""
        runs = [*dict.fromkeys(map(_run_of, old))]
        # A row of no run is one by itself.
        going = [row["_id"] for row in old if _run_of(row) == row["_id"]]
        for first in range(0, len(runs), _RUNS_AT_ONCE):
            some = runs[first : first + _RUNS_AT_ONCE]
            turns = await self._store.turns.turns_of_runs(*key, some)
            open_runs = {turn["run_id"] for turn in turns if not _is_settled(turn)}
            for run_id, rows in (await self._rows_of_runs(key, some)).items():
                if run_id not in open_runs and all(_is_old(row, before) and row["_id"] in under for row in rows):
                    going += [row["_id"] for row in rows]
        return going

    async def _note(self, key: _Key, row_ids: Iterable[str], covered: Mapping[int, _Covered]) -> bool:
        """Note in their compactions that these rows are removed. False where another replica does so at this moment."""
        going = {*row_ids}
        for number, each in covered.items():
            known = texts_of_list(each.removed)
            if more := [*(going & {*each.rows}).difference(known)]:
                changes, seen = {"removed": [*known, *more]}, {"removed": each.removed}
                if not await self._store.memory.update_compaction(*key, number, changes, seen=seen):
                    return False
                each.removed = changes["removed"]
        return True

    async def _compactions(self, key: _Key) -> dict[int, _Covered]:
        """All compactions of a session by their numbers."""
        return {
            document["number"]: _Covered(texts_of_list(document.get("rows")), document.get("removed"))
            async for document in numbered(partial(self._store.memory.compactions, *key), "number")
            if isinstance(document["number"], int)
        }

    async def _first_goal(self, key: _Key) -> str | None:
        """The run of the first input of a session that has no turn; see `_run_of`."""
        if await self._store.turns.latest_turn(*key):
            return None
        first = await self._store.first_input(*key)
        return _run_of(first) if first else None

    async def _rows_of_turns(self, key: _Key, headers: Sequence[Row], before: datetime) -> None:
        due = [turn for turn in _summarised(headers, before) if not turn.get("rows_gone")]
        for first in range(0, len(due), _RUNS_AT_ONCE):
            some = due[first : first + _RUNS_AT_ONCE]
            runs = await self._rows_of_runs(key, [turn["run_id"] for turn in some])
            compacted = bool(runs) and await self._store.memory.latest_compaction(*key) is not None
            free: dict[int, list[str]] = {}
            for turn in some:
                rows = runs.get(turn["run_id"], [])
                named = {*texts_of_list(turn.get("messages"))}
                is_under = not compacted and all(_is_old(row, before) and row.get("id") in named for row in rows)
                if not rows or (is_under and await self._note_at_turn(key, turn, rows)):
                    free[turn["turn_number"]] = [row["_id"] for row in rows]
            await self._remove("messages", key[0], [row_id for row_ids in free.values() for row_id in row_ids])
            for number in free:
                await self._store.turns.update_turn(*key, number, {"rows_gone": True}, seen={})

    async def _note_at_turn(self, key: _Key, turn: Row, rows: Iterable[Row]) -> bool:
        """Note in their turn that these rows are removed. False where the turn has changed at this moment."""
        removed = [*dict.fromkeys([*texts_of_list(turn.get("removed")), *(row["_id"] for row in rows)])]
        seen = {name: turn.get(name) for name in ("status", "work", "removed")}
        return await self._store.turns.update_turn(*key, turn["turn_number"], {"removed": removed}, seen=seen)

    async def _turns(self, key: _Key, headers: Sequence[Row], before: datetime) -> None:
        old = [
            turn for turn in _summarised(headers, before) if self._settings.messages is None or turn.get("rows_gone")
        ]
        latest = await self._store.turns.latest_turn(*key) if old else None
        if latest and is_placed(latest):
            going = [turn for turn in old if turn["turn_number"] < latest["turn_number"]]
            noted = [row_id for turn in going for row_id in texts_of_list(turn.get("removed"))]
            # A compaction that was made at that moment may name them too.
            if not noted or await self._note(key, noted, await self._compactions(key)):
                await self._remove("turns", key[0], [turn["_id"] for turn in going])

    async def _revisions(self, key: _Key, headers: Sequence[Row], before: datetime) -> None:
        latest = await self._store.memory.latest_overview(*key)
        ids = [
            header["_id"]
            for header in headers
            if latest and _is_before(header.get("updated_at"), before) and _is_below(header, latest, "revision")
        ]
        await self._remove("overviews", key[0], ids)

    async def _details(self, key: _Key, headers: Sequence[Row], before: datetime) -> None:
        newest = {detail["name"]: detail for detail in await self._store.memory.list_details(*key)}
        old = [header for header in headers if _is_before(header.get("updated_at"), before)]
        archives: defaultdict[int, dict[str, str]] = defaultdict(dict)
        going = []
        for header in old:
            name, number = header.get("name"), header.get("compaction")
            if not isinstance(name, str):
                continue
            if header.get("kind") == "archive" and isinstance(number, int):
                archives[number][name] = header["_id"]
            elif name in newest and _is_below(header, newest[name], "version"):
                going.append(header["_id"])
        for number, named in archives.items():
            if await self._note_archives(key, number, [*named]):
                going += named.values()
        await self._remove("details", key[0], going)

    async def _note_archives(self, key: _Key, number: int, names: Sequence[str]) -> bool:
        """Note in their compaction that these are removed. False where another replica does so at this moment."""
        memory = self._store.memory
        found = await memory.compactions(*key, limit=1, before=number + 1)
        if not found or found[0].get("number") != number:
            # It was never stored.
            return True
        known = found[0].get("details_removed")
        more = [
            name
            for name in names
            if name in texts_of_list(found[0].get("details")) and name not in texts_of_list(known)
        ]
        changes, seen = {"details_removed": [*texts_of_list(known), *more]}, {"details_removed": known}
        return not more or await memory.update_compaction(*key, number, changes, seen=seen)

    async def _rows_of_runs(self, key: _Key, run_ids: Sequence[str]) -> Mapping[str, list[Row]]:
        """The rows of these runs that may be under a summary, by run."""
        runs: defaultdict[str, list[Row]] = defaultdict(list)
        for row in await self._store.retention.rows_of_runs(*key, run_ids):
            if not is_internal(row.get("metadata")):
                runs[row["run_id"]].append(row)
        return runs

    async def _rows_of_ids(self, key: _Key, row_ids: Sequence[str]) -> list[Row]:
        rows: list[Row] = []
        for first in range(0, len(row_ids), _ROWS_AT_ONCE):
            rows += await self._store.retention.rows_of_ids(key[0], row_ids[first : first + _ROWS_AT_ONCE])
        return [row for row in rows if (row.get("session_id") or DEFAULT_SESSION) == key[1]]

    async def _remove(self, kind: Removable, owner_key: str, ids: Sequence[str]) -> None:
        for first in range(0, len(ids), _ROWS_AT_ONCE):
            some = ids[first : first + _ROWS_AT_ONCE]
            if kind == "messages":
                await self._forget(owner_key, some)
            self._count(_EVENTS[kind], await self._store.retention.remove(kind, owner_key, some))
            if len(some) == _ROWS_AT_ONCE:
                await anyio.sleep(_PAUSE_S)

    async def _forget(self, owner_key: str, row_ids: Sequence[str]) -> None:
        """Take these rows out of the index of long-term memory."""
        index = self._store.recall
        for first in range(0, len(row_ids), _TEXTS_AT_ONCE):
            places = await index.places_of(owner_key, row_ids[first : first + _TEXTS_AT_ONCE])
            rows = await index.rows_at(owner_key, places)
            chars = sum(map(chars_of, rows.values()))
            await index.forget(await computed(owner_key, chars, partial(_entries, owner_key, rows, self._language)))

    def _count(self, event: Event, amount: int) -> None:
        self._removed[event] += amount
        self._metrics.count(event, amount)


def _entries(owner_key: str, rows: Mapping[Place, Row], language: Language) -> list[Entry]:
    """What the index has of these rows."""
    found = ((place, findable(row, language)) for place, row in rows.items())
    return [each.at(owner_key, place) for place, each in found if each]


def _summarised(headers: Iterable[Row], before: datetime) -> list[Row]:
    """The turns of these that are old, over and have a summary."""
    old = [turn for turn in headers if is_placed(turn) and _is_before(turn.get("timestamp"), before)]
    return [turn for turn in old if _is_settled(turn) and _has_summary(turn)]


def _is_settled(turn: Row) -> bool:
    return turn.get("status") in OVER and turn.get("work") != CLOSE


def _has_summary(turn: Row) -> bool:
    summaries = turn.get("summaries")
    texts = summaries.values() if isinstance(summaries, Mapping) else ()
    return any(isinstance(text, str) and text.strip() for text in texts)


def _run_of(row: Row) -> str:
    """The run of a row; the `_id` of one that is of no run."""
    run_id = row.get("run_id")
    return run_id if isinstance(run_id, str) and run_id else str(row["_id"])


def _is_old(row: Row, before: datetime) -> bool:
    moments = [moment for moment in (stored_at(row), parse_moment(row.get("timestamp"))) if moment]
    return bool(moments) and max(moments) < before


def _is_before(value: Any, before: datetime) -> bool:
    moment = parse_moment(value)
    return moment is not None and moment < before


def _is_below(header: Row, newest: Row, name: str) -> bool:
    number, highest = header.get(name), newest.get(name)
    return isinstance(number, int) and isinstance(highest, int) and number < highest
