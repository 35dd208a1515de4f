"""Reading enough of the past: whole runs, whatever lies between them, or a session as it was (CONTRACT §4.3, §5)."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from nexus.core.models import Message
from nexus.core.ports import Cutoff, MessageStore, Past, Row, RunOrigin
from nexus.core.working_memory import WHOLE, Tail
from nexus.services.context.cutoff import UntilStored
from nexus.services.context.entries import kept_rows
from nexus.services.context.memory import ReadRows, Utterance, newest
from nexus.services.page_sizes import LARGEST_PAGE, PageSizes

# A past in which this many rows hold fewer messages than are wanted is shown as far as it was read.
_MOST_ROWS: Final = 5_000
# The store goes past all that was read before to reach a page, so few are better; but rows come whole and may be long.
# So the pages grow, and none is for more rows than have room if they are as long as those of the page before.
_FIRST_SESSION_PAGE: Final = 100
_LARGEST_SESSION_PAGE: Final = 2_000
_SMALLEST_SESSION_PAGE: Final = 25
# More text than fits into the window of a model that takes a million tokens.
_MOST_SESSION_CHARS: Final = 4 << 20


async def read_past(
    store: MessageStore,
    owner_key: str,
    *,
    messages: int,
    excerpt_chars: int,
    asked: Message | None = None,
    until: Cutoff | None = None,
    sizes: PageSizes | None = None,
) -> Past:
    """Rows enough for the newest `messages` messages after merging, with every run among them whole.

    Reads in pages and stops as soon as it has enough, so that the cost does not depend on how long the past is. Rows of
    tools are never read. One more query completes runs whose beginning lies beyond the last page.

    Args:
        store: where to read.
        owner_key: whose past.
        messages: how many are wanted, at least 1.
        excerpt_chars: contents longer than twice this may come without their middle.
        asked: the input of the run that asks. Rows of this run do not count, nor what was stored after the input where
            that is found among the rows. None where no run asks.
        until: where the past ends, where that is known.
        sizes: how much owners have needed; is told what this one has.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    sizes = sizes or PageSizes()
    rows: list[Row] = []
    page_size = sizes.first(owner_key, messages)
    stopped_early = False
    while True:
        page = await store.newest_messages(owner_key, limit=page_size, skip=len(rows), excerpt_chars=excerpt_chars)
        rows = [*rows, *page] if rows else page
        until = until or _up_to_input(page, asked)
        usable = ReadRows(kept_rows(_stored(rows, until) if until or rows is not page else page))
        if len(page) < page_size:
            return Past(usable)
        found = newest(usable, messages, current_run_id=asked.run_id if asked else "")
        if found.merged >= messages:
            break
        if len(rows) >= _MOST_ROWS:
            stopped_early = True
            break
        page_size = min(page_size * 2, LARGEST_PAGE)
    cut_runs = _without_beginning(found.utterances, usable.utterances)
    if not cut_runs:
        sizes.note(owner_key, messages, _reaching(found.utterances, usable))
        return Past(usable, stopped_early)
    completed = await store.messages_of_runs(owner_key, cut_runs, limit=_MOST_ROWS, excerpt_chars=excerpt_chars)
    known = {row["_id"] for row in usable}
    more = [row for row in _stored(completed, until) if row["_id"] not in known]
    # Not all that was read: a run that began far back would have more read each time, and never be reached.
    sizes.note(owner_key, messages, _reaching(found.utterances, usable) + len(more))
    return Past(ReadRows([*usable, *kept_rows(more)]), stopped_early)


async def read_session(
    store: MessageStore,
    owner_key: str,
    origin: RunOrigin,
    *,
    messages: int,
    asked: Message | None = None,
    until: Cutoff | None = None,
    tail: Tail = WHOLE,
) -> Past:
    """The newest rows of a session, whole; `stopped_early` when there are older ones.

    Reads in pages, and stops with the row with which there is enough or more text than any model takes. How large the
    pages are does not show in what is returned.

    Args:
        store: where to read.
        owner_key: whose session.
        origin: which session, and for which agent: the main one is not given what is internal to others.
        messages: rows at most.
        asked: as for `read_past`.
        until: as for `read_past`.
        tail: which rows are under no compaction; where some are, the newest are those that were stored last.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    rows: list[Row] = []
    usable: list[Row] = []
    most_rows, fitting = _FIRST_SESSION_PAGE, messages
    while True:
        wanted = min(messages - len(usable), fitting) + 1
        page_size = min(most_rows, max(wanted, _SMALLEST_SESSION_PAGE))
        page = await _session_page(store, owner_key, origin, tail, limit=page_size, skip=len(rows))
        rows += page
        until = until or _up_to_input(page, asked)
        usable = [row for row in _stored(rows, until) if asked is None or row.get("run_id") != asked.run_id]
        ends = list(accumulate(map(_chars, usable)))
        # One is shown, however long it is.
        kept = usable[: min(messages, max(bisect_right(ends, _MOST_SESSION_CHARS), 1))]
        if len(kept) < len(usable):
            return Past(kept, stopped_early=True)
        if len(page) < page_size:
            return Past(kept)
        most_rows = min(most_rows * 2, _LARGEST_SESSION_PAGE)
        fitting = _rows_of(_MOST_SESSION_CHARS - sum(ends[-1:]), page)


async def _session_page(
    store: MessageStore, owner_key: str, origin: RunOrigin, tail: Tail, *, limit: int, skip: int
) -> list[Row]:
    session, agent = origin.session_id, origin.sub_agent
    if tail.is_all:
        return await store.session_messages(owner_key, session, limit=limit, skip=skip, sub_agent=agent)
    return await store.tail_messages(owner_key, session, tail, limit=limit, skip=skip, sub_agent=agent)


def _rows_of(chars: int, page: Sequence[Row]) -> int:
    """How many rows so many characters are, where rows are as long as those of the page."""
    return max(chars, 0) * len(page) // max(sum(map(_chars, page)), 1)


def _chars(row: Row) -> int:
    content, metadata = row.get("content"), row.get("metadata")
    calls = metadata.get("tool_calls") if isinstance(metadata, Mapping) else None
    return len(content if isinstance(content, str) else str(content)) + (len(str(calls)) if calls else 0)


def _without_beginning(shown: Sequence[Utterance], read: Sequence[Utterance]) -> list[str]:
    """Runs among the shown messages of which the human input was not read."""
    begun = {entries[0].run_id for _, _, is_answer, _, entries in shown if not is_answer}
    cut = {entries[0].run_id for _, _, is_answer, _, entries in shown if is_answer} - begun - {""}
    # Where what is shown begins within a run, its input is nearly always among what was read besides.
    return sorted(cut - {entries[0].run_id for _, _, is_answer, _, entries in read if not is_answer}) if cut else []


def _reaching(shown: Sequence[Utterance], read: ReadRows) -> int:
    """How many of the rows there are up to the last of those runs that the shown messages belong to."""
    runs = {said.run_id for said in shown}
    oldest = shown[-1].entries if shown else ()
    for place in range(len(read.entries), 0, -1):
        entry = read.entries[place - 1]
        if entry.run_id in runs if entry.run_id else entry in oldest:
            return place
    return len(read.entries)


def _up_to_input(rows: Sequence[Row], asked: Message | None) -> Cutoff | None:
    """Up to the run's own input, if it is among the rows: the run has been asked for before."""
    if asked is None:
        return None
    own = (row for row in rows if row.get("id") == asked.id and row.get("run_id") == asked.run_id)
    return next(map(UntilStored.of, own), None)


def _stored(rows: list[Row], until: Cutoff | None) -> list[Row]:
    # A row may come twice when others were recorded between two pages.
    distinct = {row["_id"]: row for row in rows}.values()
    return [*distinct] if until is None else [*filter(until.includes, distinct)]
