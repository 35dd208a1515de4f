"""Export of a session with all that its next context needs (CONTRACT §7).

What is compacted is read before the messages: so no compaction of the export names a message that came later. What the
export says of itself comes last, when it is known how much there is.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from nexus.core.errors import NexusError
from nexus.core.ports import MemoryStore, Row
from nexus.core.ports.transfer import TransferableStore
from nexus.services.context.working import TEMPLATE
from nexus.services.memory import transfer_lines as lines
from nexus.services.memory.transfer_notes import DETAIL_FOLDER, OVERVIEW, file_names
from nexus.services.turns.transfer import export_lines, survey

_PAGE: Final = 50
_HIGHEST: Final = 2**63 - 1

_Read = Callable[[int | None], Awaitable[list[Row]]]


class Target(Protocol):
    """Where an export goes to."""

    def put(self, name: str, line: str) -> None:
        """Write a line, without its end, to a file."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write a file, which has this text."""
        ...


@dataclass(frozen=True, slots=True)
class Exported:
    """What was exported.

    Attributes:
        unreadable: the numbers of turns that are malformed, and left out.
    """

    header: lines.Header
    unreadable: tuple[int, ...] = ()


async def export_session(
    store: TransferableStore,
    owner_key: str,
    session_id: str,
    target: Target,
    *,
    exported_at: datetime,
    advance: Callable[[int], None] = lambda _: None,
) -> Exported:
    """Write all of a session.

    Args:
        store: where it is kept.
        owner_key: whose it is.
        session_id: which.
        target: where it goes to.
        exported_at: now.
        advance: called with how many more messages are written.

    Raises:
        NexusError: there is nothing of it, or something of it cannot be read, or was changed meanwhile.
        StoreUnavailableError: the store did not answer.
    """
    key = owner_key, session_id
    counts: dict[str, Any] = {
        "compactions": await _export_compactions(store.memory, *key, target),
        "overviews": await _export_overviews(store.memory, *key, target),
        "details": await _export_details(store.memory, *key, target),
        "has_state": await _export_state(store, *key, target),
    }
    found = await survey(store.turns, *key)
    if found.turns:
        async with aclosing(export_lines(store.turns, found, exported_at)) as exported:
            async for line in exported:
                target.put(lines.TURNS, line)
    counts |= {"turns": found.turns, "messages": await _export_messages(store, *key, target, advance)}
    if not any(counts.values()):
        raise NexusError("there is nothing of it")
    header = lines.header_of(*key, exported_at, counts)
    target.put(lines.HEADER, lines.header_line(header))
    return Exported(header, found.unreadable)


async def _export_messages(
    store: TransferableStore, owner_key: str, session_id: str, target: Target, advance: Callable[[int], None]
) -> int:
    count = 0
    async with aclosing(store.transfer.rows(owner_key, session_id)) as pages:
        async for page in pages:
            for row in page:
                target.put(lines.MESSAGES, lines.row_line(row.document))
            count += len(page)
            advance(len(page))
    return count


async def _export_overviews(store: MemoryStore, owner_key: str, session_id: str, target: Target) -> int:
    async def read(before: int | None) -> list[Row]:
        return await store.overviews(owner_key, session_id, limit=_PAGE, before=before)

    count, content = 0, TEMPLATE
    async for document in _upwards(read, "revision"):
        target.put(lines.OVERVIEWS, _line(lines.overview_line, document, "revision"))
        count, content = count + 1, document["content"]
    target.write(OVERVIEW, content)
    return count


async def _export_details(store: MemoryStore, owner_key: str, session_id: str, target: Target) -> int:
    names = file_names([document["name"] for document in await store.list_details(owner_key, session_id)])
    count, after, last = 0, None, None
    while page := await store.detail_versions(owner_key, session_id, limit=_PAGE, after=after):
        for document in page:
            target.put(lines.DETAILS, _line(lines.detail_line, document, "name"))
            if last and last["name"] != document["name"]:
                _write_note(target, names, last)
            last = document
        count += len(page)
        after = page[-1]["name"], page[-1]["version"]
    if last:
        _write_note(target, names, last)
    return count


def _write_note(target: Target, names: dict[str, str], document: Row) -> None:
    if document["name"] not in names:
        raise NexusError("details of the session were written while they were read; export it again")
    target.write(f"{DETAIL_FOLDER}/{names[document['name']]}", document["content"])


async def _export_compactions(store: MemoryStore, owner_key: str, session_id: str, target: Target) -> int:
    async def read(before: int | None) -> list[Row]:
        return await store.compactions(owner_key, session_id, limit=_PAGE, before=before, whole=True)

    count = 0
    async for document in _upwards(read, "number"):
        target.put(lines.COMPACTIONS, _line(lines.compaction_line, document, "number"))
        count += 1
    return count


async def _export_state(store: TransferableStore, owner_key: str, session_id: str, target: Target) -> bool:
    row = await store.find_session_state(owner_key, session_id)
    document = row.get("document") if row else None
    if not isinstance(document, dict):
        return False
    target.put(lines.STATE, lines.row_line(store.transfer.spelled(document)))
    return True


async def _upwards(read: _Read, field: str) -> AsyncIterator[Row]:
    """The documents from the lowest on, of pages that are read from the highest on; no more than a page is held."""
    marks = list[int]()
    before: int | None = None
    while page := await read(before):
        marks.append(page[0][field] + 1)
        before = page[-1][field]
    last = 0
    for mark in reversed(marks):
        for document in reversed(await read(min(mark, _HIGHEST))):
            if document[field] > last:
                yield document
                last = document[field]


def _line(line_of: Callable[[Row], str], document: Row, field: str) -> str:
    try:
        return line_of(document)
    except ValueError as error:
        kind = line_of.__name__.removesuffix("_line")
        raise NexusError(f"{kind} {document.get(field)!r} cannot be read: {error}") from None
