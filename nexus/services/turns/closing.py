"""Closing turns: seeing whether they are over, and writing what they were (CONTRACT §6).

Rules of this module:

- Those that are due are claimed, read and written together: much at once costs little more than one. What cannot be
  done together is done one by one.
- What was heard of a turn meanwhile makes it due again: a result is only kept if the turn is still as it was claimed.
- A large turn is looked at in a thread, and does not hold up the others.
- A turn of which something was heard after it had been completed by the next one goes on, until another begins: who
  looks at it sees whether one has.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import anyio
from anyio import lowlevel, to_thread

from nexus.core.errors import StoreRejectedError
from nexus.core.metrics import Event, Metrics
from nexus.core.models import utc_now
from nexus.core.ports import MessageStore, Row, TurnStore
from nexus.core.ports.turns import TurnPlace, TurnsUpdated, TurnUpdate
from nexus.core.tasks import Way
from nexus.core.turns import CLOSE, SUMMARISE
from nexus.services.turns.batches import Batch
from nexus.services.turns.claims import LOOKED_S, Bell, Claimed, take_several
from nexus.services.turns.documents import OVERTAKEN, facts_of, is_overtaken, is_put_off, looked_at
from nexus.services.turns.facts import TurnFacts, read_facts
from nexus.services.turns.malformed import placed

# How long a piece of work waits while requests are answered: the next context of a session is to tell of its last turn.
_GIVEN_WAY_S: Final = 0.1
# Turns that are closed together, and for how long those that follow on others wait for more.
_TOGETHER: Final = 128
_PAUSE_S: Final = 0.02
# Of how many turns rows are read together, where there are not more.
_READ_TOGETHER: Final = 64
_FEWEST_TOGETHER: Final = 8
_ROWS_AT_ONCE: Final = 200
_MOST_ROWS: Final = 400
# Turns that are looked at without a break.
_WITHOUT_BREAK: Final = 8
# What is read and summarised in less than a millisecond.
_FEW_ROWS: Final = 8
_FEW_CHARS: Final = 8_000
# What has to be as it was claimed.
_UNCHANGED: Final = ("heard_at", "overtaken")

# A turn, and what is changed in it.
_Result = tuple[Claimed, Mapping[str, Any]]


class Closing:
    """Closes turns.

    Args:
        store: where turns are kept.
        messages: where the rows of their runs are.
        metrics: what is counted.
        way: given to what somebody waits for.
        to_close: rung when something is to be looked at again.
        to_summarise: rung when a turn was closed.
    """

    def __init__(
        self,
        store: TurnStore,
        messages: MessageStore,
        metrics: Metrics,
        *,
        way: Way,
        to_close: Bell,
        to_summarise: Bell,
    ) -> None:
        self._store = store
        self._messages = messages
        self._metrics = metrics
        self._way = way
        self._to_close = to_close
        self._to_summarise = to_summarise
        self._next_at = 0.0
        self._all_taken = False

    async def take(self, lease_s: float) -> Batch | None:
        """Turns that are due, in hand; None where there are none."""
        if self._all_taken:
            # Nobody has said that there are more; those that fall due meanwhile are closed together.
            await self._to_close.heard(LOOKED_S)
        await anyio.sleep_until(self._next_at)
        await self._way.given(_GIVEN_WAY_S)
        self._next_at = anyio.current_time() + _PAUSE_S
        claimed = await take_several(self._claim, self.write, lease_s=lease_s, unchanged=_UNCHANGED)
        # Whoever finds nothing waits by himself.
        self._all_taken = 0 < len(claimed) < _TOGETHER
        return Batch(claimed, self._write_all, lease_s) if claimed else None

    async def _claim(self, now: datetime, until: datetime) -> list[Row]:
        return placed(await self._store.claim_all(CLOSE, now, until, limit=_TOGETHER))

    async def close_together(self, batch: Batch, idle: timedelta, settled: timedelta) -> list[Claimed]:
        """Close turns, the small ones first. Returns those that have to be closed by themselves.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        rows: dict[Any, list[Row]] = {}
        for first in range(0, len(batch.claimed), _READ_TOGETHER):
            part = batch.claimed[first : first + _READ_TOGETHER]
            rows |= await self._rows([claimed.document for claimed in part])
        for small, alike in _sorted_out(batch.claimed, rows).items():
            results: list[_Result] = []
            for place, (claimed, of_run) in enumerate(alike, 1):
                look = partial(_changes, claimed.document, of_run, idle, settled)
                # Whatever is wrong with it, the others are closed, and then it is looked at.
                with suppress(Exception):
                    results.append((claimed, look() if small else await to_thread.run_sync(look)))
                if place % _WITHOUT_BREAK == 0:
                    await lowlevel.checkpoint()
            await self._finish(batch, await self._unless_overtaken(results, settled))
        # Those that cannot be kept are still in hand, too.
        return [claimed for claimed in batch.claimed if claimed.is_held]

    async def close(self, claimed: Claimed, idle: timedelta, settled: timedelta) -> None:
        """Close one turn.

        Raises:
            StoreUnavailableError: the store did not answer.
            StoreRejectedError: it will never keep what the turn was.
        """
        rows = await self._all_rows(claimed.document)
        looked = await to_thread.run_sync(partial(_changes, claimed.document, rows, idle, settled))
        [(_, changes)] = await self._unless_overtaken([(claimed, looked)], settled)
        if not await claimed.finish(changes):
            self._to_close.ring()
        elif changes.get("work") == SUMMARISE:
            self._metrics.count(Event.TURN_CLOSED)
            self._to_summarise.ring()

    async def facts(self, document: Row) -> tuple[TurnFacts, int]:
        """The facts of a turn, and of how many rows they are."""
        rows = await self._all_rows(document)
        return await to_thread.run_sync(partial(read_facts, rows, **facts_of(document))), len(rows)

    async def write(self, turn: Row, changes: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
        """Change a turn, if it still has these values."""
        return await self._store.update_turn(*_place(turn), changes, seen=seen)

    async def _unless_overtaken(self, results: Sequence[_Result], settled: timedelta) -> list[_Result]:
        """These, but that those that go on are overtaken if another turn of their session has begun since."""
        sessions = {_session_of(claimed.document) for claimed, changes in results if _goes_on(claimed, changes)}
        if not sessions:
            return [*results]
        latest = {_session_of(turn): turn for turn in await self._store.latest_turns(sessions)}
        overtaken = {**OVERTAKEN, "due_at": utc_now() + settled}
        return [
            (claimed, overtaken)
            if _goes_on(claimed, changes)
            and (turn := latest.get(_session_of(claimed.document)))
            and is_overtaken(claimed.document, turn)
            else (claimed, changes)
            for claimed, changes in results
        ]

    async def _finish(self, batch: Batch, results: Sequence[_Result]) -> None:
        closed = [result for result in results if result[1].get("work") == SUMMARISE]
        others = [result for result in results if result[1].get("work") != SUMMARISE]
        written = await batch.finish(closed)
        self._metrics.count(Event.TURN_CLOSED, written)
        if written:
            self._to_summarise.ring()
        if written + await batch.finish(others) < len(results):
            self._to_close.ring()

    async def _write_all(self, updates: Sequence[tuple[Row, Mapping[str, Any], Mapping[str, Any]]]) -> TurnsUpdated:
        return await self._store.update_turns([TurnUpdate(_place(turn), *given) for turn, *given in updates])

    async def _rows(self, documents: Sequence[Row]) -> dict[Any, list[Row]]:
        """The rows of these turns by owner and run, but of those that have many, or odd ones."""
        rows: dict[Any, list[Row]] = {_run_of(document): [] for document in documents}
        try:
            found = await self._messages.rows_of_runs(rows, limit=_MOST_ROWS)
            for row in found:
                rows[_run_of(row)].append(row)
        except (StoreRejectedError, LookupError, TypeError):
            # One that is malformed is to spoil none but its own turn.
            found = None
        if found is not None and len(found) < _MOST_ROWS:
            return rows
        half = len(documents) // 2
        if half < _FEWEST_TOGETHER:
            return {}
        return await self._rows(documents[:half]) | await self._rows(documents[half:])

    async def _all_rows(self, document: Row) -> list[Row]:
        rows: list[Row] = []
        while True:
            page = await self._messages.run_messages(
                document["owner_key"], document["run_id"], limit=_ROWS_AT_ONCE, skip=len(rows)
            )
            rows += page
            if len(page) < _ROWS_AT_ONCE:
                return rows


def _place(turn: Row) -> TurnPlace:
    return turn["owner_key"], turn["session_id"], turn["turn_number"]


def _goes_on(claimed: Claimed, changes: Mapping[str, Any]) -> bool:
    return is_put_off(changes) and not claimed.document.get("overtaken")


def _session_of(document: Row) -> tuple[str, str]:
    return document["owner_key"], document["session_id"]


def _run_of(document: Row) -> tuple[Any, Any]:
    return document["owner_key"], document["run_id"]


def _sorted_out(
    claimed: Sequence[Claimed], rows: Mapping[Any, list[Row]]
) -> dict[bool, list[tuple[Claimed, list[Row]]]]:
    """Those whose rows are known, with these, the small ones first."""
    looks: dict[bool, list[tuple[Claimed, list[Row]]]] = {True: [], False: []}
    for each in claimed:
        of_run = rows.get(_run_of(each.document))
        if of_run is not None:
            looks[_is_small(each.document, of_run)].append((each, of_run))
    return looks


def _changes(document: Row, rows: Sequence[Row], idle: timedelta, settled: timedelta) -> dict[str, Any]:
    facts = read_facts(rows, **facts_of(document))
    return looked_at(document, facts, len(rows), utc_now(), idle=idle, settled=settled)


def _is_small(document: Row, rows: Sequence[Row]) -> bool:
    """Whether looking at the turn takes no longer than handing it to a thread and back."""
    if len(rows) > _FEW_ROWS or document.get("thinking_phase"):
        return False
    texts = [row.get("content") for row in rows]
    calls = any(isinstance(row.get("metadata"), Mapping) and row["metadata"].get("tool_calls") for row in rows)
    return not calls and sum(len(text) if isinstance(text, str) else _FEW_CHARS for text in texts) <= _FEW_CHARS
