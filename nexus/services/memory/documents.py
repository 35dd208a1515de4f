"""Stored documents of the working memory as values and back, and the audit of a session's messages (contract §7).

Every document is checked against its owner and session before it is used. A malformed one is skipped and logged: it
never spoils the rest.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from pydantic import ValidationError

from nexus.core.errors import StoreUnavailableError
from nexus.core.models import is_internal
from nexus.core.ports import MemoryStore, MessageStore, Row, TurnStore
from nexus.core.wire import explain
from nexus.core.working_memory import WHOLE, Compaction, Detail, Overview, Snapshot, Tail
from nexus.services.history.forms import native
from nexus.services.history.rows import texts_of_list
from nexus.services.history.transcript import admit, transcript_of_rows
from nexus.services.text.content import as_text

_log = structlog.get_logger(__name__)

_Stored = TypeVar("_Stored", Overview, Detail, Compaction)

# Details that contexts list. A session with more is searched.
MOST_NOTES, MOST_ARCHIVES = 50, 10

# Shown while there is no overview, and never stored.
TEMPLATE: Final = """\
# Working memory

<!-- Nothing is written down yet. update_working_memory puts a text of your own in place of this one. -->

## Goal

## Done

## Decisions, and why

## Facts to keep

## Open"""

# Revisions that are checked for one that the same message has written: messages are resent soon.
LOOKED_BACK: Final = 20

# Read at once by the audit.
_ROWS_AT_ONCE: Final = 1_000
_DOCUMENTS_AT_ONCE: Final = 20


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a memory tool; `call_id` is the message that asks, which is served once.

    A sub-agent, `sub_agent` by its id, may read the memory of its session and not change it.
    """

    owner_key: str
    session_id: str
    run_id: str
    call_id: str
    sub_agent: str | None = None

    @property
    def session(self) -> tuple[str, str]:
        """Owner and session."""
        return self.owner_key, self.session_id


def read_all(kind: type[_Stored], session: tuple[str, str], documents: Sequence[Row | None]) -> list[_Stored]:
    """These documents of a session, but for None and those that are malformed.

    One of another session, which breaks the store's promise, is a `StoreUnavailableError`.
    """
    found = []
    for document in documents:
        if document is None:
            continue
        if (document.get("owner_key"), document.get("session_id")) != session:
            # Withholding all of it is the only safe answer.
            _log.error("foreign_rows_withheld", rows=1)
            raise StoreUnavailableError("the store gave the memory of another session")
        try:
            found.append(kind.model_validate(document))
        except ValidationError as error:
            _log.warning("stored_memory_passed_over", name=kind.__name__.lower(), reason=explain(error))
    return found


def document_of(value: Overview | Detail | Compaction, session: tuple[str, str]) -> Row:
    """The document as it is stored."""
    return {"owner_key": session[0], "session_id": session[1], **value.model_dump()}


async def read_snapshot(store: MemoryStore, owner_key: str, session_id: str) -> Snapshot:
    """The working memory of a session, as far as a context shows it."""
    session = owner_key, session_id
    newest = await store.newest(*session, notes=MOST_NOTES, archives=MOST_ARCHIVES)
    overview = next(iter(read_all(Overview, session, [newest.overview])), None)
    compaction = next(iter(read_all(Compaction, session, [newest.compaction])), None)
    number, disowned = (compaction.number, compaction.disowned) if compaction else (0, ())
    # The notes, and the archives of stored compactions.
    listed = tuple(
        item
        for item in read_all(Detail, session, newest.details)
        if item.kind == "note" or ((item.compaction or 0) <= number and item.name not in disowned)
    )
    count = newest.detail_count - (len(newest.details) - len(listed))
    return Snapshot(overview, listed, compaction, count)


def disowned_archives(listed: Iterable[Detail], made: Compaction, latest: Compaction | None) -> tuple[str, ...]:
    """Names of archives that belong to no compaction up to `made`, which is about to be stored.

    An archive is stored before its compaction. Where that is then not stored, because another replica was first or the
    process died, the archive names a compaction that is not its own: it can be read and searched, and is listed
    nowhere. An archive of another replica for the number of `latest`, the compaction before, may have come later.
    """
    names = set(latest.disowned if latest else ())
    for compaction in filter(None, (latest, made)):
        of_number = {item.name for item in listed if item.kind == "archive" and item.compaction == compaction.number}
        names |= of_number - {*compaction.details}
    return tuple(sorted(names))


@dataclass(frozen=True, slots=True)
class Audit:
    """Numbers of messages of a session; the others add up to `messages`.

    A message is in the next context, summarised by one compaction, or removed by retention; else it is lost, or there
    twice. Of those under no compaction some are not shown: system messages, results of calls that are not there, and
    what says nothing or is not understood.
    """

    messages: int = 0
    in_context: int = 0
    not_shown: int = 0
    summarised: int = 0
    removed: int = 0
    lost: int = 0
    twice: int = 0

    @property
    def is_right(self) -> bool:
        """Whether no message is lost or twice."""
        return not (self.lost or self.twice)


async def audit(store: MemoryStore, turns: TurnStore, messages: MessageStore, owner_key: str, session_id: str) -> Audit:
    """Check that every message of a session is in the next context, under exactly one compaction, or removed.

    The rows that compactions name are counted one by one, and not the boundary that they leave. One that is named and
    not there is lost, unless it is noted as removed. Rows internal to a sub-agent are not counted: that sub-agent is
    shown them, and they are never compacted.
    """
    under, tail = await _compacted(store, owner_key, session_id)
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    in_tail: list[Row] = []
    while True:
        page = await messages.tail_messages(
            owner_key, session_id, WHOLE, limit=_ROWS_AT_ONCE, skip=len(seen), oldest_first=True
        )
        for row in page:
            if row["_id"] not in seen and not is_internal(row.get("metadata")):
                places = ["summarised"] * under[row["_id"]] + ["in_context"] * tail.includes(row["_id"])
                counts[places[0] if len(places) == 1 else "twice" if places else "lost"] += 1
                in_tail += map(_in_short, native(row) if places == ["in_context"] else ())
            seen.add(row["_id"])
        if len(page) < _ROWS_AT_ONCE:
            break
    counts["in_context"] -= (not_shown := len({row["_id"] for row in in_tail} - _shown(in_tail)))
    counts["not_shown"] = not_shown
    # Read last: what was removed meanwhile had been noted before.
    read = {"number": store.compactions, "turn_number": turns.turns}
    removed = {
        row_id
        for number, documents in read.items()
        async for document in numbered(partial(documents, owner_key, session_id), number)
        for row_id in texts_of_list(document.get("removed"))
    }
    gone = (removed | under.keys()) - seen
    # Pages shift while rows before them are removed.
    gone -= {row["_id"] for row in await messages.messages_of_ids(owner_key, [*(gone - removed)])}
    counts.update(removed=len(gone & removed), lost=len(gone - removed))
    return Audit(messages=counts.total(), **counts)


def _in_short(row: Any) -> Row:
    """A row in the form inside, with no more of its content than whether it says something."""
    return {**row, "content": "…" if as_text(row.get("content")).strip() else ""}


def _shown(rows: Sequence[Row]) -> set[str]:
    """The `_id`s of the rows that a context shows."""
    messages, _ = transcript_of_rows(rows)
    return {origin.row["_id"] for origin in admit(messages, "rows").origins if origin}


async def _compacted(store: MemoryStore, owner_key: str, session_id: str) -> tuple[Counter[str], Tail]:
    session = (owner_key, session_id)
    under: Counter[str] = Counter()
    tail: Tail | None = None
    async for document in numbered(partial(store.compactions, *session), "number"):
        for compaction in read_all(Compaction, session, [document]):
            under.update(compaction.rows)
            tail = tail or compaction.tail
    return under, tail or WHOLE


async def numbered(read: Callable[..., Awaitable[list[Row]]], number: str) -> AsyncIterator[Row]:
    """All documents of a session, whole, the highest number first; `read` gives pages of them."""
    before = None
    while True:
        page = await read(limit=_DOCUMENTS_AT_ONCE, before=before, whole=True)
        for document in page:
            yield document
        if len(page) < _DOCUMENTS_AT_ONCE:
            return
        before = page[-1][number]
