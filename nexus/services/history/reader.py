"""Reading enough of the past: whole runs for the memory, or the end of a session (contract §4.3, §4.6, §5).

- The history of a run is that of its first build, whatever is recorded later: a cut-off says where it ends.
- An `_id` that Nexus or MongoDB made holds the second in which its row was stored, by the clock of the replica that
  stored it, and then which replica that was. Rows of one second are in order where one replica stored them, and in no
  order otherwise. An `_id` that another program made says nothing, and only older rows have one.
- Rows that MongoDB has not taken yet are given as `waiting`: they were read from the outbox before the store is read,
  so that a row which leaves the outbox meanwhile is found in the store.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Final, Self

from nexus.core.models import LONG_AGO, SECOND, Message, is_internal, is_object_id, named_agent, parse_moment
from nexus.core.ports import Cutoff, MessageStore, Past, Row, RunOrigin
from nexus.core.working_memory import WHOLE, Tail
from nexus.services.history.merge import Utterance, newest
from nexus.services.history.rows import chars_of, is_further

_REPLICA: Final = slice(8, 18)
# The clocks of replicas may differ by this much.
_APART_S: Final = 2
_NEVER: Final = "00000000"


@dataclass(frozen=True, slots=True)
class UntilShown:
    """The rows that a build showed: all that were stored before a second of `_id`s, and some of the later ones."""

    since: str
    ids: frozenset[str]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Self:
        """A cut-off that includes these rows, and of others those that are older than all of them."""
        ids = [row_id for row in rows if is_object_id(row_id := str(row["_id"]))]
        since = f"{max(int(max(ids)[SECOND], 16) - _APART_S, 0):08x}" if ids else _NEVER
        return cls(since, frozenset(row_id for row_id in ids if row_id[SECOND] >= since))

    def includes(self, row: Row) -> bool:
        """Whether the row is part of the history."""
        row_id = str(row["_id"])
        return not is_object_id(row_id) or row_id[SECOND] < self.since or row_id in self.ids


@dataclass(frozen=True, slots=True)
class UntilStored:
    """The rows that were stored no later than a certain one.

    Its time decides between rows that several replicas stored in the same second.
    """

    row_id: str
    moment: datetime | None = None

    @classmethod
    def of(cls, row: Row) -> Self:
        """A cut-off at this row, which it includes."""
        return cls(str(row["_id"]), parse_moment(row.get("timestamp")))

    def includes(self, row: Row) -> bool:
        """Whether the row is part of the history."""
        row_id = str(row["_id"])
        if not (is_object_id(row_id) and is_object_id(self.row_id)):
            return True
        if row_id[SECOND] != self.row_id[SECOND] or row_id[_REPLICA] == self.row_id[_REPLICA]:
            return row_id <= self.row_id
        moment = parse_moment(row.get("timestamp"))
        return moment is None or self.moment is None or moment <= self.moment


# The first page, for each message that is wanted: one query in the usual case.
_ROWS_A_MESSAGE: Final = 2
_LARGEST_PAGE: Final = 500
# Of a result enough for what is shown of it.
_RESULT_CHARS: Final = 400
# A past in which this many rows hold fewer messages than are wanted is shown as far as it was read.
_MOST_ROWS: Final = 5_000
# Pages of a session grow, and none has more rows than there is room for if they are as long as those of the last page.
_FIRST_SESSION_PAGE: Final = 128
_LARGEST_SESSION_PAGE: Final = 400
_SMALLEST_SESSION_PAGE: Final = 25
# More text than fits into the window of a model that takes a million tokens.
MOST_SESSION_CHARS: Final = 4 << 20


async def read_past(
    store: MessageStore,
    owner_key: str,
    *,
    messages: int,
    excerpt_chars: int,
    asked: Message | None = None,
    own_row_id: str | None = None,
    until: Cutoff | None = None,
    waiting: Sequence[Row] = (),
    results: bool = False,
) -> Past:
    """Rows enough for the newest `messages` messages after merging, with every run among them whole.

    Reads in pages and stops as soon as it has enough, so that the cost does not depend on how long the past is. One
    more query completes runs whose beginning lies beyond the last page. Rows of tools are read only for `results`: one
    more query has the beginnings of those in the runs of these messages.

    - `excerpt_chars`: contents longer than twice this may come without their middle.
    - `asked`: the human input of the run that asks. Rows of this run do not count, nor what was stored after the input
      where that is among the rows. None where no run asks.
    - `own_row_id`: the `_id` under which the build that reads inserts this input meanwhile. That row ends no past:
      results that another replica stored before may seem to be later than it.
    - `until`: where the past ends, where that is known.
    - `waiting`: rows of the owner that may not be in the store yet.
    """
    run_id, waiting = asked.run_id if asked else "", [row for row in waiting if _is_dialogue(row)]
    read = partial(_read_dialogue, store, owner_key, messages=messages, excerpt_chars=excerpt_chars)
    past, until = await read(asked=asked, own_row_id=own_row_id, until=until, waiting=waiting)
    if not results:
        return past
    shown = newest(past.rows, messages, current_run_id=run_id).utterances
    if not any(entry.calls for each in shown for entry in each.entries):
        return past
    runs = sorted({each.run_id for each in shown} - {""})
    found = await store.results_of_runs(owner_key, runs, limit=_MOST_ROWS, excerpt_chars=_RESULT_CHARS)
    rows = [*_usable(found, (), until), *past.rows]
    return replace(past, rows=sorted(rows, key=_moment, reverse=True))


def _moment(row: Row) -> datetime:
    return parse_moment(row.get("timestamp")) or LONG_AGO


async def _read_dialogue(
    store: MessageStore,
    owner_key: str,
    *,
    messages: int,
    excerpt_chars: int,
    asked: Message | None,
    own_row_id: str | None,
    until: Cutoff | None,
    waiting: Sequence[Row],
) -> tuple[Past, Cutoff | None]:
    """The rows of the messages, and where the past ends."""
    rows: list[Row] = []
    page_size = _ROWS_A_MESSAGE * messages
    while True:
        page = await store.newest_messages(owner_key, limit=page_size, skip=len(rows), excerpt_chars=excerpt_chars)
        rows += page
        until = until or _up_to_input([*waiting, *page], asked, own_row_id)
        usable = _usable(rows, waiting, until)
        if len(page) < page_size:
            return Past(usable), until
        utterances = newest(usable, len(usable), current_run_id=asked.run_id if asked else "").utterances
        if len(utterances) >= messages or len(rows) >= _MOST_ROWS:
            break
        page_size = min(page_size * 2, _LARGEST_PAGE)
    stopped_early = len(utterances) < messages
    cut_runs = _without_beginning(utterances[:messages], utterances)
    if not cut_runs:
        return Past(usable, stopped_early), until
    completed = await store.messages_of_runs(owner_key, cut_runs, limit=_MOST_ROWS, excerpt_chars=excerpt_chars)
    return Past(_usable([*rows, *completed], waiting, until), stopped_early), until


async def read_session(
    store: MessageStore,
    owner_key: str,
    origin: RunOrigin,
    *,
    messages: int,
    chars: int = MOST_SESSION_CHARS,
    asked: Message | None = None,
    own_row_id: str | None = None,
    until: Cutoff | None = None,
    tail: Tail = WHOLE,
    waiting: Sequence[Row] = (),
) -> Past:
    """The newest rows of a session; `stopped_early` when there are older ones.

    Reads in pages, and stops with the row with which there is enough. How large the pages are does not show in what is
    returned.

    - `origin`: which session, and for which agent: the main one is not given what is internal to others.
    - `messages`, `chars`: rows, and characters in them, at most; one row in any case.
    - `tail`: which rows are under no compaction; where some are, the newest are those that were stored last.
    - `asked`, `own_row_id`, `until` and `waiting` are as for `read_past`.
    """
    waiting = [row for row in waiting if _is_of(row, origin)]
    rows: list[Row] = []
    usable: list[Row] = []
    most_rows, fitting = _FIRST_SESSION_PAGE, messages
    while True:
        wanted = min(messages - len(usable), fitting) + 1
        page_size = min(most_rows, max(wanted, _SMALLEST_SESSION_PAGE))
        page = await _session_page(store, owner_key, origin, tail, limit=page_size, skip=len(rows))
        rows += page
        until = until or _up_to_input([*waiting, *page], asked, own_row_id)
        usable = [row for row in _usable(rows, waiting, until) if asked is None or row.get("run_id") != asked.run_id]
        ends = list(accumulate(map(chars_of, usable)))
        kept = usable[: min(messages, max(bisect_right(ends, chars), 1))]
        if len(kept) < len(usable):
            return Past(kept, stopped_early=True)
        if len(page) < page_size:
            return Past(kept)
        most_rows = min(most_rows * 2, _LARGEST_SESSION_PAGE)
        fitting = _rows_of(chars - sum(ends[-1:]), page)


async def _session_page(
    store: MessageStore, owner_key: str, origin: RunOrigin, tail: Tail, *, limit: int, skip: int
) -> list[Row]:
    session, agent = origin.session_id, origin.sub_agent
    if tail.is_all:
        return await store.session_messages(owner_key, session, limit=limit, skip=skip, sub_agent=agent)
    return await store.tail_messages(owner_key, session, tail, limit=limit, skip=skip, sub_agent=agent)


def _rows_of(chars: int, page: Sequence[Row]) -> int:
    """How many rows fit into so many characters, where rows are as long as those of the page."""
    return max(chars, 0) * len(page) // max(sum(map(chars_of, page)), 1)


def _without_beginning(shown: Sequence[Utterance], read: Sequence[Utterance]) -> list[str]:
    """Runs among the shown messages whose human input was not read; what was said later in a run is none."""
    begun = {utterance.run_id for utterance in read if _is_input(utterance)}
    return sorted({utterance.run_id for utterance in shown if not _is_input(utterance)} - begun - {""})


def _is_input(utterance: Utterance) -> bool:
    return not utterance.is_answer and not is_further(utterance.entries[0].row)


def _up_to_input(rows: Sequence[Row], asked: Message | None, own_row_id: str | None) -> Cutoff | None:
    """Up to the run's own input, if an earlier request recorded it and it is among the rows."""
    if asked is None:
        return None
    inputs = (row for row in rows if row.get("id") == asked.id and row.get("run_id") == asked.run_id)
    earlier = (row for row in inputs if str(row["_id"]) != own_row_id)
    return next(map(UntilStored.of, earlier), None)


def _usable(rows: Sequence[Row], waiting: Sequence[Row], until: Cutoff | None) -> list[Row]:
    """Each row once, newest first, those that are still waiting included, up to where the history ends."""
    # A row may come twice when others were recorded between two pages.
    distinct = [*{row["_id"]: row for row in rows}.values()]
    if waiting:
        stored = {(row.get("run_id"), row.get("id")) for row in distinct if isinstance(row.get("id"), str)}
        more = [row for row in waiting if not {(row["run_id"], row["id"]), (row["run_id"], own_id(row))} & stored]
        distinct = [*sorted(more, key=itemgetter("_id"), reverse=True), *distinct]
    return distinct if until is None else [*filter(until.includes, distinct)]


def own_id(row: Row) -> str:
    """The id under which a row is recorded whose `id` belongs to a row of another run."""
    return f"{row['id']}@{row['run_id']}"


def _is_dialogue(row: Row) -> bool:
    return row["role"] in {"HUMAN", "AI"} and not is_internal(row["metadata"])


def _is_of(row: Row, origin: RunOrigin) -> bool:
    if row["session_id"] != origin.session_id:
        return False
    named = named_agent(row["metadata"])
    return named is None or (origin.sub_agent is not None and named in {"", origin.sub_agent})
