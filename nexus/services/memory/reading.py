"""Reading what of a session is under no compaction, the oldest first (CONTRACT §7)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from nexus.core.ports import MessageStore, Row
from nexus.core.working_memory import Tail
from nexus.services.memory.planning import is_lost_later
from nexus.services.turns.facts import read_facts

MOST_ROWS: Final = 5_000
_PAGE: Final = 500
# More text than fits into the window of a model that takes a million tokens, several times.
_MOST_CHARS: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a tail.

    Attributes:
        rows: in the order in which they were stored.
        goes_on: there are others, stored later.
    """

    rows: list[Row]
    goes_on: bool = False


async def read_tail(
    messages: MessageStore, owner_key: str, session_id: str, tail: Tail, *, most_rows: int = MOST_ROWS
) -> Found:
    """The oldest rows of a tail: so many, or fewer where they are long.

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
            return Found(list(rows.values()), goes_on)


async def runs_over(messages: MessageStore, owner_key: str, run_ids: Iterable[str]) -> frozenset[str]:
    """Of these runs those that are over, by all their rows.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    over = set()
    for run_id in run_ids:
        if read_facts(await messages.run_messages(owner_key, run_id, limit=MOST_ROWS)).finished:
            over.add(run_id)
    return frozenset(over)


def _chars(row: Row) -> int:
    content, metadata = row.get("content"), row.get("metadata")
    calls = metadata.get("tool_calls") if isinstance(metadata, Mapping) else None
    return len(content if isinstance(content, str) else str(content)) + (len(str(calls)) if calls else 0)
