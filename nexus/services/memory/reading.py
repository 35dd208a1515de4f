"""Reading what of a session is under no compaction, the oldest first (CONTRACT §7)."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nexus.core.ports import MessageStore, Row
from nexus.core.working_memory import Tail
from nexus.services.memory.progress import Known, cut_runs, heard_at, silent_runs
from nexus.services.memory.tails import is_lost_later
from nexus.services.turns.facts import read_facts

MOST_ROWS: Final = 5_000
_PAGE: Final = 500
# More text than fits into the window of a model that takes a million tokens, several times.
_MOST_CHARS: Final = 16 << 20
# Of how many runs more than the tail is read: others are over once they have been silent for long.
_MOST_RUNS: Final = 100
# Rows are listed by what they say of the time, which may be wrong.
_LAST_WORDS: Final = 20


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a tail.

    Attributes:
        rows: the oldest, in the order in which they were stored.
        newest: where not all are among these, the newest: they say what is to be kept.
    """

    rows: list[Row]
    newest: list[Row] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether there are others, stored later than `rows`."""
        return self.newest is not None


async def read_tail(
    messages: MessageStore, owner_key: str, session_id: str, tail: Tail, *, most_rows: int = MOST_ROWS
) -> Found:
    """The oldest rows of a tail, and the newest: so many of each, or fewer where they are long.

    The first compaction of a session has to cover every row whose `_id` does not say when it was stored, wherever it
    stands: these are all read.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    rows: dict[str, Row] = {}
    skip, chars, goes_on = 0, 0, False
    while True:
        page = await messages.tail_messages(owner_key, session_id, tail, limit=_PAGE, skip=skip, oldest_first=True)
        skip += len(page)
        for row in page:
            if goes_on := goes_on or len(rows) >= most_rows or chars >= _MOST_CHARS * most_rows // MOST_ROWS:
                if tail.is_all and is_lost_later(row["_id"]):
                    rows[row["_id"]] = row
                continue
            # A row may come twice when others were recorded between two pages.
            rows[row["_id"]] = row
            chars += _chars(row)
        if len(page) < _PAGE or (goes_on and not tail.is_all):
            newest = await _newest(messages, owner_key, session_id, tail, rows) if goes_on else None
            return Found(list(rows.values()), newest)


async def _newest(
    messages: MessageStore, owner_key: str, session_id: str, tail: Tail, known: Container[str]
) -> list[Row]:
    """The newest rows but those that are known, as far as they can be held."""
    rows: dict[str, Row] = {}
    skip, chars = 0, 0
    while len(rows) < MOST_ROWS and chars < _MOST_CHARS:
        page = await messages.tail_messages(owner_key, session_id, tail, limit=_PAGE, skip=skip)
        skip += len(page)
        new = {row["_id"]: row for row in page if row["_id"] not in known}
        rows |= new
        chars += sum(map(_chars, new.values()))
        if len(page) < _PAGE or len(new) < len(page):
            break
    return [*reversed(rows.values())]


async def look_at_runs(
    messages: MessageStore, owner_key: str, found: Found, *, now: datetime, idle: timedelta
) -> Known:
    """What is to be known of runs by all their rows: of those that a tail has only a part of, or no recent word.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    over = set()
    for run_id in cut_runs(found.rows, now=now, idle=idle)[:_MOST_RUNS]:
        if read_facts(await messages.run_messages(owner_key, run_id, limit=MOST_ROWS)).finished:
            over.add(run_id)
    alive = set()
    # What goes on behind the last of these rows is not known either way.
    for run_id in [] if found.goes_on else silent_runs(found.rows, now=now, idle=idle)[:_MOST_RUNS]:
        newest = await messages.run_messages(owner_key, run_id, limit=_LAST_WORDS)
        if any(heard_at(row) >= now - idle for row in newest):
            alive.add(run_id)
    return Known(over, alive)


def _chars(row: Row) -> int:
    content, metadata = row.get("content"), row.get("metadata")
    calls = metadata.get("tool_calls") if isinstance(metadata, Mapping) else None
    return len(content if isinstance(content, str) else str(content)) + (len(str(calls)) if calls else 0)
