"""Import of a session into a store (CONTRACT §7).

Rules of this module:

- Nothing is written unless all of the export can be read, and the session has nothing else, or is to be replaced.
- What has come further in the session since the export stays as it is.
- Messages keep their `_id`s, by which compactions name them, unless the session gets another name or others have them.
- The compactions come after the messages that they name, the newest last: an import that was broken off shows more of
  the history rather than less. It is gone on with by repeating it.
- What is imported is a memory and no work: no model writes its summaries again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace as replace_in
from datetime import datetime
from typing import Final, TypeVar

from pydantic import BaseModel

from nexus.core.errors import NexusError, StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.transfer import TransferableStore
from nexus.core.working_memory import Detail
from nexus.services.memory.transfer_ids import new_ids, renamed_row
from nexus.services.memory.transfer_reading import Folder, Given, read_details, read_rows, told_by, told_by_detail
from nexus.services.memory.transfer_standing import Plan, Standing, plan
from nexus.services.turns.transfer import import_turns

_BATCH: Final = 200
_BATCH_CHARS: Final = 1 << 22
_ASKED: Final = 1_000
_CHANGED: Final = "the files were changed while they were read; import them again"
_OTHERS: Final = "somebody else writes to this session; import it again when nobody does"

_Item = TypeVar("_Item")


class RecordedElsewhereError(NexusError):
    """Another session of the owner has messages of the export."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"messages of the export are recorded in session {session_id!r} of this owner")


async def planned(store: TransferableStore, given: Given, owner_key: str, session_id: str, now: datetime) -> Plan:
    """What is to become of an export in that session.

    Raises:
        RecordedElsewhereError: another session of the owner has its messages; an owner has each once.
        StoreUnavailableError: the store did not answer.
    """
    message_ids = [row.message_id for row in given.rows.values() if row.message_id]
    for some in _parts(message_ids, _ASKED):
        other = await store.transfer.recorded_in(owner_key, session_id, some)
        if other is not None:
            raise RecordedElsewhereError(other)
    ids: dict[str, str] = {}
    header = given.header
    is_renamed = (owner_key, session_id) != (header.owner_key, header.session_id)
    if is_renamed or await _are_taken(store, given, owner_key, session_id):
        ids = new_ids(given.rows, owner_key, session_id)
    return plan(given, owner_key, session_id, ids, now)


async def import_session(
    store: TransferableStore,
    folder: Folder,
    plan: Plan,
    found: Standing,
    *,
    replace: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> int:
    """Keep what an export holds, what is there already from a broken off import excepted.

    Args:
        store: where it is kept.
        folder: where it is read from, once more.
        plan: what is to become of it.
        found: what the session has of it, and what else.
        replace: what the session has is removed first, if it is something else.
        advance: called with how much more is there.

    Returns:
        How much was written.

    Raises:
        NexusError: the session has something else, and it is not to be replaced; or somebody writes to it, or to the
            files, at the same time.
        StoreUnavailableError: the store did not answer; repeating the import goes on with it.
        StoreRejectedError: something of it cannot be kept.
    """
    if not found.differs:
        return await _add(store, folder, plan, found, advance)
    if not replace:
        raise NexusError("the session has something else")
    try:
        await store.memory.delete_memory(plan.owner_key, plan.session_id)
        await store.transfer.delete_rows(plan.owner_key, plan.session_id)
        await store.turns.delete_turns(plan.owner_key, plan.session_id)
        return await _add(store, folder, plan, Standing(has_state=found.has_state), advance)
    except NexusError as error:
        raise type(error)(f"{error}; what was there is removed, repeat the import to go on with it") from error


async def _add(
    store: TransferableStore, folder: Folder, plan: Plan, found: Standing, advance: Callable[[int], None]
) -> int:
    advance(found.there - found.turns)
    written = await _add_rows(store, folder, plan, found, advance)
    if turns := plan.turns:
        stay = tuple(found.further.get(turn.turn_number, turn) for turn in turns.turns)
        written += await import_turns(store.turns, replace_in(turns, turns=stay), advance=advance)
    written += await _add_details(store, folder, plan, found, advance)
    for overview in plan.overviews:
        if overview.revision not in found.overviews:
            _see(await store.memory.insert_overview(_document(plan, overview)))
            advance(1)
            written += 1
    for compaction in plan.compactions:
        if compaction.number not in found.compactions:
            _see(await store.memory.insert_compaction({**_document(plan, compaction), "work": None, "due_at": None}))
            advance(1)
            written += 1
    return written + await _put_state(store, plan, found, advance)


async def _add_rows(
    store: TransferableStore, folder: Folder, plan: Plan, found: Standing, advance: Callable[[int], None]
) -> int:
    written = 0
    for documents in _parts(_missing_rows(store, folder, plan, found), _BATCH, _chars):
        try:
            kept = await store.transfer.insert_rows(documents)
        except StoreRejectedError as error:
            raise StoreRejectedError(f"one of {len(documents)} messages: {error}") from error
        _see(kept == len(documents))
        advance(kept)
        written += kept
    return written


def _missing_rows(store: TransferableStore, folder: Folder, plan: Plan, found: Standing) -> Iterator[Row]:
    header = plan.given.header
    for row in read_rows(folder, store.transfer, header):
        given = plan.given.rows.get(row.row_id)
        if given is None or given.told_by != told_by(row.document):
            raise NexusError(_CHANGED)
        if row.row_id not in found.rows:
            new_id = plan.ids.get(row.row_id, row.row_id)
            yield renamed_row(row.document, row.row_id, new_id, plan.owner_key, plan.session_id)


async def _add_details(
    store: TransferableStore, folder: Folder, plan: Plan, found: Standing, advance: Callable[[int], None]
) -> int:
    written = 0
    for details in _parts(_missing_details(folder, plan, found), _BATCH, lambda detail: detail.bytes):
        kept = await store.memory.insert_details([_document(plan, detail) for detail in details])
        _see(kept == len(details))
        advance(kept)
        written += kept
    return written


def _missing_details(folder: Folder, plan: Plan, found: Standing) -> Iterator[Detail]:
    for detail in read_details(folder):
        if plan.given.details.get((detail.name, detail.version)) != told_by_detail(detail):
            raise NexusError(_CHANGED)
        if (detail.name, detail.version) not in found.details:
            yield detail
    yield from (detail for detail in plan.new_details if (detail.name, detail.version) not in found.details)


async def _put_state(store: TransferableStore, plan: Plan, found: Standing, advance: Callable[[int], None]) -> int:
    if found.has_state:
        return 0
    key = plan.owner_key, plan.session_id
    row = await store.find_session_state(*key)
    if plan.given.state is None and not (row and row.get("document")):
        return 0
    revision = row["revision"] if row else 0
    _see(await store.put_session_state(*key, store.transfer.unspelled(plan.given.state or {}), revision))
    advance(1)
    return 1


async def _are_taken(store: TransferableStore, given: Given, owner_key: str, session_id: str) -> bool:
    for some in _parts([row.spelled_id for row in given.rows.values()], _ASKED):
        if await store.transfer.is_taken(owner_key, session_id, some):
            return True
    return False


def _document(plan: Plan, part: BaseModel) -> Row:
    return {"owner_key": plan.owner_key, "session_id": plan.session_id, **part.model_dump(mode="python")}


def _see(is_kept: bool) -> None:
    if not is_kept:
        raise NexusError(_OTHERS)


def _chars(document: Row) -> int:
    content = document.get("content")
    return len(content) if isinstance(content, str) else 0


def _parts(items: Iterable[_Item], most: int, size: Callable[[_Item], int] = lambda _: 0) -> Iterator[Sequence[_Item]]:
    """The items in lists of at most so many, and no more than what is worth a round trip."""
    some, sizes = list[_Item](), 0
    for item in items:
        some.append(item)
        sizes += size(item)
        if len(some) >= most or sizes >= _BATCH_CHARS:
            yield some
            some, sizes = [], 0
    if some:
        yield some
