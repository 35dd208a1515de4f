"""Export and import of the turns of a session (CONTRACT §6).

Rules of this module:

- An export is read in pages, twice: first to see what there is, so that it can say how much follows.
- Nothing is imported but a whole export (`read_export`), into a session without turns or in place of all that it has.
  Turns are written in the order of their numbers; an import that was broken off is gone on with by repeating it.
- What is imported is a memory and no work: nobody closes or summarises it again.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nexus.core.errors import NexusError, StoreRejectedError
from nexus.core.ports import Row, TurnStore
from nexus.core.turns import Turn
from nexus.services.turns.documents import read_turn
from nexus.services.turns.transfer_lines import Export, header_line, line_of

_PAGE: Final = 50
_BATCH: Final = 50
# Above every number of a turn. What is below it is a number, which somebody else's document need not have.
_ABOVE_ALL: Final = 2**63 - 1


class TurnsInTheWayError(NexusError):
    """The session has other turns than those that are to be imported."""

    def __init__(self, there: int, differs: int) -> None:
        are = "1 turn is" if there == 1 else f"{there} turns are"
        super().__init__(f"{are} there, and not as in the export from turn {differs} on")


@dataclass(frozen=True, slots=True)
class Survey:
    """What an export will hold.

    Attributes:
        turns: how many.
        unreadable: the numbers of those that are malformed, which will be left out, lowest first.
        pages: above the highest number of each page, lowest first.
    """

    owner_key: str
    session_id: str
    turns: int
    unreadable: tuple[int, ...]
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """How a session stands to an export that is to be imported.

    Attributes:
        there: how many turns it has.
        differs: the lowest number of which the session has another turn than it would have if an import of the export
            was broken off, or done; None where that may be so: all of them are the first of the export, word for word.
    """

    there: int
    differs: int | None = None


async def survey(store: TurnStore, owner_key: str, session_id: str) -> Survey:
    """What there is to export.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    turns, unreadable, pages = 0, list[int](), list[int]()
    async for page in _pages(store, owner_key, session_id):
        faulty = [document["turn_number"] for document in page if _line_of(document) is None]
        turns += len(page) - len(faulty)
        unreadable += faulty
        pages.append(page[0]["turn_number"] + 1)
    return Survey(owner_key, session_id, turns, tuple(reversed(unreadable)), tuple(reversed(pages)))


async def export_lines(store: TurnStore, found: Survey, exported_at: datetime) -> AsyncGenerator[str]:
    """The export, line by line without their ends: the header, then a turn a line, the lowest number first.

    Raises:
        NexusError: turns of the session were removed meanwhile.
        StoreUnavailableError: the store did not answer.
    """
    yield header_line(found.owner_key, found.session_id, found.turns, exported_at)
    written = last = 0
    for before in found.pages:
        page = await store.turns(found.owner_key, found.session_id, limit=_PAGE, before=before, whole=True)
        for document in reversed(page):
            line = _line_of(document)
            if line is not None and document["turn_number"] > last:
                yield line
                written, last = written + 1, document["turn_number"]
    if written != found.turns:
        raise NexusError("turns of the session were changed while they were read; export it again")


async def standing(store: TurnStore, export: Export) -> Standing:
    """How the session stands to the export.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    there = await store.count_turns(export.owner_key, export.session_id)
    missing = {turn.turn_number: turn for turn in export.turns[:there]}
    differing = list[int]()
    async for page in _pages(store, export.owner_key, export.session_id):
        for document in page:
            number = document["turn_number"]
            if (turn := missing.pop(number, None)) is None or read_turn(document) != turn:
                differing.append(number)
    return Standing(there, min((*differing, *missing), default=None))


async def import_turns(
    store: TurnStore, export: Export, *, replace: bool = False, advance: Callable[[int], None] = lambda _: None
) -> int:
    """Keep the turns of the export, those that are there already from a broken off import excepted.

    Args:
        store: where turns are kept.
        export: what is imported.
        replace: turns that the session has are forgotten first, if they are others.
        advance: called with how many more turns are there.

    Returns:
        How many were written.

    Raises:
        TurnsInTheWayError: the session has other turns, and they are not to be replaced.
        NexusError: somebody else writes turns of the session at the same time. This and the errors of the store say
            so where turns that were to be replaced are gone already.
        StoreUnavailableError: the store did not answer; repeating the import goes on with it.
        StoreRejectedError: a turn cannot be kept; says which.
    """
    found = await standing(store, export)
    if found.differs is None:
        return await _add(store, export.turns, found.there, advance)
    if not replace:
        raise TurnsInTheWayError(found.there, found.differs)
    try:
        await store.delete_turns(export.owner_key, export.session_id)
        return await _add(store, export.turns, 0, advance)
    except NexusError as error:
        raise type(error)(f"{error}; turns that were there are removed, repeat the import to go on with it") from error


async def _add(store: TurnStore, turns: Sequence[Turn], there: int, advance: Callable[[int], None]) -> int:
    """Write those that are missing, of which so many are there. Returns how many were written."""
    advance(there)
    for first in range(there, len(turns), _BATCH):
        await _write(store, turns[first : first + _BATCH], advance)
    return len(turns) - there


async def _write(store: TurnStore, turns: Sequence[Turn], advance: Callable[[int], None]) -> None:
    try:
        kept = await store.insert_turns([_document(turn) for turn in turns])
    except StoreRejectedError as error:
        numbers = f"{turns[0].turn_number} to {turns[-1].turn_number}"
        raise StoreRejectedError(f"one of the turns {numbers}: {error}") from error
    advance(kept)
    if kept < len(turns):
        number = turns[kept].turn_number
        raise NexusError(f"turn {number} or its run is there meanwhile: somebody else writes turns of this session")


def _document(turn: Turn) -> Row:
    return {
        **turn.model_dump(mode="python"),
        "status": turn.status.value,
        "work": None,
        "due_at": None,
        "heard_at": turn.timestamp,
        "rows": 0,
        "attempts": 0,
        "overtaken": False,
    }


def _line_of(document: Row) -> str | None:
    try:
        return line_of(document)
    except ValueError:
        return None


async def _pages(store: TurnStore, owner_key: str, session_id: str) -> AsyncIterator[list[Row]]:
    before = _ABOVE_ALL
    while page := await store.turns(owner_key, session_id, limit=_PAGE, before=before, whole=True):
        yield page
        before = page[-1]["turn_number"]
