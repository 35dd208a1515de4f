"""Export of a session with all that its next context is made of, its owner's constraints and facts too (contract §7).

Compactions are read before messages, so that none of the export names a message that was recorded later. The header is
written last, when the counts are known.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from nexus.core.errors import NexusError
from nexus.core.ports import MemoryStore, Row
from nexus.core.ports.store import LARGEST, TransferableStore
from nexus.core.turns import Turn
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.history.tombstones import Tombstones
from nexus.services.person.constraint_changes import Target
from nexus.services.person.constraints import known_in
from nexus.services.person.facts import Facts
from nexus.services.transfer import folder as files
from nexus.services.transfer.folder import Header, NewFolder, json_line, json_of_model

_PAGE: Final = 50


async def export_session(
    store: TransferableStore,
    owner_key: str,
    session_id: str,
    folder: NewFolder,
    *,
    exported_at: datetime,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Header, list[int]]:
    """Write all of a session to a folder; `advance` is called with each number of messages written.

    Returns the header, and the numbers of turns that are malformed and left out.

    Raises:
        NexusError: nothing is stored of it, or a document other than a turn is malformed.
        StoreUnavailableError: the store did not answer.
    """
    key, unreadable = (owner_key, session_id), list[int]()
    counts = {
        "compactions": await _put_all(folder, files.COMPACTIONS, _compactions(store.memory, key)),
        "revisions": await _put_all(folder, files.REVISIONS, _revisions(store.memory, key, folder)),
        "details": await _put_all(folder, files.DETAILS, _details(store.memory, key, folder)),
    }
    has_state = await _write_state(store, key, folder)
    constraints = [each for each in await known_in(store.constraints, Target(*key, "")) if each.holds]
    for each in constraints:
        folder.put(files.CONSTRAINTS, json_line(each.model_dump(mode="json")))
    counts["constraints"] = len(constraints)
    counts["facts"] = await _put_all(folder, files.FACTS, _facts(store, owner_key))
    counts["turns"] = await _put_all(folder, files.TURNS, _turns(store, key, unreadable))
    counts["messages"] = await _put_all(folder, files.MESSAGES, _messages(store, key, advance))
    header = Header(
        format="nexus-session",
        version=1,
        owner_key=owner_key,
        session_id=session_id,
        exported_at=exported_at,
        has_state=has_state,
        **counts,
    )
    # Facts and some constraints are the owner's, whether there is such a session or not.
    of_session = sum(each.scope == "session" for each in constraints)
    if not any({**header.counts, files.FACTS: 0, files.CONSTRAINTS: of_session}.values()):
        raise NexusError("there is nothing of it")
    folder.write(files.HEADER, f"{json_line(header.model_dump(mode='json'))}\n")
    return header, unreadable


async def _put_all(folder: NewFolder, file: str, values: AsyncIterator[Row]) -> int:
    count = 0
    async for value in values:
        folder.put(file, json_line(value))
        count += 1
    return count


async def _messages(
    store: TransferableStore, key: tuple[str, str], advance: Callable[[int], None]
) -> AsyncIterator[Row]:
    async with aclosing(store.transfer.rows(*key)) as pages:
        async for page in pages:
            for row in page:
                yield row
            advance(len(page))


async def _turns(store: TransferableStore, key: tuple[str, str], unreadable: list[int]) -> AsyncIterator[Row]:
    async for document in _lowest_first(partial(store.turns.turns, *key, limit=_PAGE, whole=True), "turn_number"):
        try:
            value = json_of_model(Turn, document)
        except ValueError:
            unreadable.append(document["turn_number"])
        else:
            yield value


async def _compactions(store: MemoryStore, key: tuple[str, str]) -> AsyncIterator[Row]:
    async for document in _lowest_first(partial(store.compactions, *key, limit=_PAGE, whole=True), "number"):
        yield _json(Compaction, document, "number")


async def _revisions(store: MemoryStore, key: tuple[str, str], folder: NewFolder) -> AsyncIterator[Row]:
    newest = await store.latest_overview(*key)
    async for document in _lowest_first(partial(store.overviews, *key, limit=_PAGE), "revision"):
        value = _json(Overview, document, "revision")
        # A revision that was written since is not part of the export.
        if newest is None or value["revision"] > newest["revision"]:
            return
        if value["revision"] == newest["revision"]:
            folder.write(files.OVERVIEW, value.pop("content"))
        yield value


async def _details(store: MemoryStore, key: tuple[str, str], folder: NewFolder) -> AsyncIterator[Row]:
    headers = [_json(Detail, row, "name") for row in await store.list_details(*key)]
    newest = {header["name"]: header["version"] for header in headers}
    names, after = files.detail_files(newest), None
    while page := await store.detail_versions(*key, limit=_PAGE, after=after):
        for document in page:
            value = _json(Detail, document, "name")
            name, version = value["name"], value["version"]
            # A version that was written since is not part of the export.
            if version > newest.get(name, 0):
                continue
            if version == newest[name]:
                value["file"] = names[name]
                folder.write(f"{files.DETAIL_FOLDER}/{names[name]}", value.pop("content"))
            yield value
        after = page[-1]["name"], page[-1]["version"]


async def _facts(store: TransferableStore, owner_key: str) -> AsyncIterator[Row]:
    for said in await Facts(store.facts, Tombstones(store)).statements(owner_key):
        yield said.model_dump(mode="json")


async def _write_state(store: TransferableStore, key: tuple[str, str], folder: NewFolder) -> bool:
    row = await store.find_session_state(*key)
    document = row.get("document") if row else None
    if document:
        folder.write(files.STATE, f"{json_line(store.transfer.to_json(document))}\n")
    return bool(document)


async def _lowest_first(read: Callable[..., Awaitable[list[Row]]], field: str) -> AsyncIterator[Row]:
    """The documents of pages that the store gives from the highest number down; one page is held at a time."""
    marks = list[int]()
    before: int | None = None
    while page := await read(before=before):
        marks.append(min(page[0][field] + 1, LARGEST))
        before = page[-1][field]
    last = 0
    for mark in reversed(marks):
        for document in reversed(await read(before=mark)):
            if document[field] > last:
                yield document
                last = document[field]


def _json(model: type[BaseModel], document: Row, field: str) -> dict[str, Any]:
    try:
        return json_of_model(model, document)
    except ValueError as error:
        raise NexusError(f"{model.__name__.lower()} {document.get(field)!r} cannot be read: {error}") from None
