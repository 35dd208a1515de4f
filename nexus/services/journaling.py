"""Inputs on their way to the store, in the journal that every replica reads (CONTRACT §1.5, §2).

Rules of this module:

- A row stays in the journal for a moment after the store has it: who began to read the store before that, and looks
  into the journal after it, finds it there.
- What somebody put there and did not write, because he was killed, is written by whoever finds it.
- Whatever else is recorded moves the version of its owner as soon as the store has it.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final, Self

import anyio
import structlog
from pydantic_core import from_json

from nexus.core.compact_json import compact
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Journal, JournalRow, Look, Moved, Row, Standing
from nexus.core.tasks import Later, Pending
from nexus.services.context.agents import is_internal
from nexus.services.recording import Recorder
from nexus.services.tails import Tails

_log = structlog.get_logger(__name__)

# Longer than a read takes under load: one that began longer ago than a row stays is made again.
STAYS_S: Final = 0.25
# How long a reader waits for what was heard before.
HEARD_S: Final = 0.25
_MOST_AT_ONCE: Final = 200
# A row that has waited for so long is nobody's any more; how often one is looked for.
_FORSAKEN_MS: Final = 15_000
_LOOKED_S: Final = 5.0
_ADOPTED_AT_ONCE: Final = 100
_NEEDED: Final = ("_id", "id", "run_id", "owner_key", "role", "content")


def is_shown(row: Row) -> bool:
    """Whether the row is one of those that people and Nexus said to each other."""
    role = row.get("role")
    return isinstance(role, str) and role.lower() in {"human", "ai"} and not is_internal(row.get("metadata"))


def journal_row(row: Row) -> JournalRow:
    """The row as the journal has it."""
    return JournalRow(row["owner_key"], _journal_id(row), compact(row))


def _journal_id(row: Row) -> str:
    # The ids of messages may come twice, in different runs.
    return f"{row['run_id']} {row['id']}"


def _key(row: Row) -> tuple[str, str]:
    return row["owner_key"], _journal_id(row)


def read_journal(contents: Iterable[bytes]) -> list[Row]:
    """Rows as they will be read from the store; without those that another release put there in a form of its own."""
    return [row for content in contents if (row := _read(content))]


def _read(content: bytes) -> Row | None:
    try:
        row: dict[str, Any] = from_json(content, cache_strings="keys")
        moment = datetime.fromisoformat(row["timestamp"])
        if all(isinstance(row[name], str) for name in _NEEDED):
            return {**row, "timestamp": moment}
    except (ValueError, KeyError, TypeError):
        pass
    _log.error("journal_row_unreadable", bytes=len(content))
    return None


class Journaling:
    """Clears the journal of what is written, and writes what others left there. Use `running()`.

    Args:
        journal: on the bus.
        tails: what is kept of owners, and grows with what is recorded here.
        recorder: writes what others left.
        stays_s: for how long a row stays in the journal after it was written; the same for all replicas.
    """

    def __init__(self, journal: Journal, tails: Tails, recorder: Recorder, stays_s: float = STAYS_S) -> None:
        self.stays_s: Final = stays_s
        self._journal = journal
        self._tails = tails
        self._recorder = recorder
        # By owner and id, the rows that were put there here and are there still.
        self._put: dict[str, dict[str, Row]] = {}
        self._written: list[JournalRow] = []
        self._something = anyio.Event()
        # By owner and id, what is set when the store has the row, once somebody waits for that.
        self._in_hand: dict[tuple[str, str], anyio.Event | None] = {}
        self._to_clear = Pending()
        self._later = Later()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Clear and adopt, until the context ends. What is left uncleared is adopted, which does no harm."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._clear)
            tasks.start_soon(self._look_for_forsaken)
            tasks.start_soon(self._later.run)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    def put(self, entry: JournalRow, row: Row, moved: Moved, *, in_hand: bool) -> None:
        """The journal has the row, and its owner's version has moved with it; `in_hand` if `written` will be called."""
        if in_hand:
            self._in_hand.setdefault((entry.owner_key, entry.id), None)
            self._put.setdefault(entry.owner_key, {})[entry.id] = row
        self._recorder.heard.visible(entry.owner_key, row["id"])
        self._tails.moved(entry.owner_key, moved, row if is_shown(row) else None)

    def written(self, entry: JournalRow) -> None:
        """The store has the row, and so has the journal."""
        if written := self._in_hand.pop((entry.owner_key, entry.id), None):
            written.set()
        self._to_clear.begin()
        self._written.append(entry)
        self._something.set()

    async def flush(self) -> None:
        """Return when what is written is out of the journal, and versions have moved that are to."""
        await self._to_clear.none()
        await self._later.pending.none()

    def move_later(self, row: Row) -> None:
        """The store has a row that will not be in the journal."""
        if not self._later.do(partial(self.move, row["owner_key"], [row])):
            self._tails.forget(row["owner_key"])

    async def stored(self, rows: Sequence[Row]) -> None:
        """The store has these results, and the versions of their owners move."""
        by_owner: dict[str, list[Row]] = {}
        for row in rows:
            by_owner.setdefault(row["owner_key"], []).append(row)
        if len(by_owner) == 1:
            for owner_key, its_rows in by_owner.items():
                await self.move(owner_key, its_rows)
        elif by_owner:
            async with anyio.create_task_group() as tasks:
                for owner_key, its_rows in by_owner.items():
                    tasks.start_soon(self.move, owner_key, its_rows)

    async def write(self, contents: Sequence[bytes]) -> bool:
        """Write what the journal holds, for a reader who looks into the store alone. False if not in time."""
        events = [self._written_of(row) for row in read_journal(contents)]
        with self._recorder.heard.awaited.awaiting(), anyio.move_on_after(HEARD_S):
            for written in filter(None, events):
                await written.wait()
        return all(written and written.is_set() for written in events)

    def put_here(self, owner_key: str) -> Mapping[str, Row]:
        """The rows of an owner that the journal has from here, by their ids there."""
        return self._put.get(owner_key, {})

    async def standing(self, owner_key: str) -> Standing:
        """How things are with an owner now.

        Raises:
            BusUnavailableError: nobody can tell.
        """
        return await self._journal.standing(Look(owner_key))

    async def move(self, owner_key: str, rows: Sequence[Row]) -> None:
        """Have the owner's version move because of these rows."""
        for row in rows:
            try:
                moved = await self._journal.moved(owner_key, row["id"])
            except BusUnavailableError as error:
                # What others keep of the owner is good for a minute at most. It would take as long for each other row.
                _log.warning("version_not_moved", message_id=row["id"], reason=str(error))
                self._tails.forget(owner_key)
                return
            self._tails.moved(owner_key, moved, row if is_shown(row) else None)

    async def _clear(self) -> None:
        while True:
            await self._something.wait()
            self._something = anyio.Event()
            rows, self._written = self._written, []
            await anyio.sleep(self.stays_s)
            for first in range(0, len(rows), _MOST_AT_ONCE):
                try:
                    await self._journal.written(rows[first : first + _MOST_AT_ONCE])
                except BusUnavailableError as error:
                    # Whoever finds them there writes them once more, which changes nothing.
                    _log.warning("journal_not_cleared", rows=len(rows) - first, reason=str(error))
                    break
            for row in rows:
                self._forget(row)
                self._to_clear.end()

    def _forget(self, entry: JournalRow) -> None:
        rows = self._put.get(entry.owner_key, {})
        if rows.pop(entry.id, None) and not rows:
            del self._put[entry.owner_key]

    async def _look_for_forsaken(self) -> None:
        while True:
            await anyio.sleep(_LOOKED_S)
            try:
                found = read_journal(await self._journal.unwritten(_FORSAKEN_MS, _ADOPTED_AT_ONCE))
            except BusUnavailableError:
                continue
            for row in found:
                if _key(row) not in self._in_hand and self._take(row):
                    _log.info("input_adopted", message_id=row["id"], run_id=row["run_id"])

    def _take(self, row: Row) -> bool:
        """Have a row of the journal written that nobody here has in hand. False when too much is waiting."""
        written = partial(self.written, journal_row(row))
        if not self._recorder.offer(row, len(row["content"]), written, journaled=True):
            return False
        self._in_hand[_key(row)] = None
        return True

    def _written_of(self, row: Row) -> anyio.Event | None:
        """What is set when the store has a row of the journal; None when too much is waiting."""
        key = _key(row)
        if key not in self._in_hand and not self._take(row):
            return None
        self._in_hand[key] = written = self._in_hand[key] or anyio.Event()
        return written
