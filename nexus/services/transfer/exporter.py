"""Export of a session with all that its next context is made of (contract §7).

Compactions are read before messages, so that none of the export names a message that was recorded later. The header is
written last, when the counts are known.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel

from nexus.core.errors import NexusError
from nexus.core.ports import MemoryStore, Row, TurnStore
from nexus.core.ports.store import TransferableStore
from nexus.core.turns import Turn
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.transfer import lines
from nexus.services.transfer.lines import Header, NewFolder, json_line, json_of_model

_PAGE: Final = 50
# Above every number of a turn, a revision or a compaction.
_ABOVE_ALL: Final = 2**63 - 1

_Page = Callable[[int], Awaitable[list[Row]]]


@dataclass(frozen=True, slots=True)
class Exported:
    """What was exported.

    Attributes:
        unreadable: the numbers of turns that are malformed, and left out.
    """

    header: Header
    unreadable: tuple[int, ...] = ()


async def export_session(
    store: TransferableStore,
    owner_key: str,
    session_id: str,
    folder: NewFolder,
    *,
    exported_at: datetime,
    advance: Callable[[int], None] = lambda _: None,
) -> Exported:
    """Write all of a session to a folder; `advance` is called with each number of messages written.

    Raises:
        NexusError: nothing is stored of it, or a document other than a turn is malformed.
        StoreUnavailableError: the store did not answer.
    """
    key = owner_key, session_id
    compactions = await _compactions(store.memory, *key, folder)
    revisions = await _revisions(store.memory, *key, folder)
    details = await _details(store.memory, *key, folder)
    has_state = await _state(store, *key, folder)
    turns, unreadable = await _turns(store.turns, *key, folder)
    messages = await _messages(store, *key, folder, advance)
    header = Header(
        format="nexus-session",
        version=1,
        owner_key=owner_key,
        session_id=session_id,
        exported_at=exported_at,
        messages=messages,
        turns=turns,
        compactions=compactions,
        revisions=revisions,
        details=details,
        has_state=has_state,
    )
    if not any(header.counts.values()):
        raise NexusError("there is nothing of it")
    folder.write(lines.HEADER, f"{json_line(header.model_dump(mode='json'))}\n")
    return Exported(header, unreadable)


async def _messages(
    store: TransferableStore, owner_key: str, session_id: str, folder: NewFolder, advance: Callable[[int], None]
) -> int:
    count = 0
    async with aclosing(store.transfer.rows(owner_key, session_id)) as pages:
        async for page in pages:
            for row in page:
                folder.put(lines.MESSAGES, json_line(row))
            count += len(page)
            advance(len(page))
    return count


async def _turns(store: TurnStore, owner_key: str, session_id: str, folder: NewFolder) -> tuple[int, tuple[int, ...]]:
    async def page(before: int) -> list[Row]:
        return await store.turns(owner_key, session_id, limit=_PAGE, before=before, whole=True)

    count, unreadable = 0, list[int]()
    async for document in _lowest_first(page, "turn_number"):
        try:
            folder.put(lines.TURNS, json_line(json_of_model(Turn, document)))
            count += 1
        except ValueError:
            unreadable.append(document["turn_number"])
    return count, tuple(unreadable)


async def _compactions(store: MemoryStore, owner_key: str, session_id: str, folder: NewFolder) -> int:
    async def page(before: int) -> list[Row]:
        return await store.compactions(owner_key, session_id, limit=_PAGE, before=before, whole=True)

    count = 0
    async for document in _lowest_first(page, "number"):
        folder.put(lines.COMPACTIONS, json_line(_json(Compaction, document, "number")))
        count += 1
    return count


async def _revisions(store: MemoryStore, owner_key: str, session_id: str, folder: NewFolder) -> int:
    newest = await store.latest_overview(owner_key, session_id)
    if newest is None:
        return 0
    end = newest["revision"] + 1

    async def page(before: int) -> list[Row]:
        return await store.overviews(owner_key, session_id, limit=_PAGE, before=min(before, end))

    count = 0
    async for document in _lowest_first(page, "revision"):
        value = _json(Overview, document, "revision")
        if value["revision"] == newest["revision"]:
            folder.write(lines.OVERVIEW, value.pop("content"))
        folder.put(lines.REVISIONS, json_line(value))
        count += 1
    return count


async def _details(store: MemoryStore, owner_key: str, session_id: str, folder: NewFolder) -> int:
    newest = {row["name"]: row["version"] for row in await store.list_details(owner_key, session_id)}
    files = lines.detail_files(newest)
    count, after = 0, None
    while page := await store.detail_versions(owner_key, session_id, limit=_PAGE, after=after):
        for document in page:
            # A version that was written since is not part of the export.
            if document["version"] <= newest.get(document["name"], 0):
                _put_detail(folder, _json(Detail, document, "name"), newest, files)
                count += 1
        after = page[-1]["name"], page[-1]["version"]
    return count


def _put_detail(folder: NewFolder, value: dict[str, Any], newest: dict[str, int], files: dict[str, str]) -> None:
    name = value["name"]
    if value["version"] == newest[name]:
        value["file"] = files[name]
        folder.write(f"{lines.DETAIL_FOLDER}/{files[name]}", value.pop("content"))
    folder.put(lines.DETAILS, json_line(value))


async def _state(store: TransferableStore, owner_key: str, session_id: str, folder: NewFolder) -> bool:
    row = await store.find_session_state(owner_key, session_id)
    document = row.get("document") if row else None
    if not document:
        return False
    folder.write(lines.STATE, f"{json_line(store.transfer.to_json(document))}\n")
    return True


async def _lowest_first(read: _Page, field: str) -> AsyncIterator[Row]:
    """The documents of pages that the store gives from the highest number down; one page is held at a time."""
    marks = list[int]()
    before = _ABOVE_ALL
    while page := await read(before):
        marks.append(min(page[0][field] + 1, _ABOVE_ALL))
        before = page[-1][field]
    last = 0
    for mark in reversed(marks):
        for document in reversed(await read(mark)):
            if document[field] > last:
                yield document
                last = document[field]


def _json(model: type[BaseModel], document: Row, field: str) -> dict[str, Any]:
    try:
        return json_of_model(model, document)
    except ValueError as error:
        raise NexusError(f"{model.__name__.lower()} {document.get(field)!r} cannot be read: {error}") from None
