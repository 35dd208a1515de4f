"""Turns as the commands read them, just as they would be exported. What is malformed is left out, and said to be."""

from dataclasses import dataclass
from typing import Final

from nexus.core.errors import NexusError, TurnNotFoundError
from nexus.core.ports import Row, TurnStore
from nexus.core.turns import Turn
from nexus.services.turns.transfer_lines import line_of

_PAGE: Final = 50
_HIGHEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Listed:
    """Turns of a session, the latest first.

    Attributes:
        total: how many the session has.
        more: there are more of those that were asked for.
        unreadable: the numbers of those that are malformed, and left out.
    """

    turns: tuple[Turn, ...]
    total: int
    more: bool
    unreadable: tuple[int, ...]


async def latest(store: TurnStore, owner_key: str, session_id: str, *, search: str, limit: int) -> Listed:
    """The latest turns, up to `limit`; only those with a text in a summary or an insight, if it is not empty.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    if search:
        found = await store.search_turns(owner_key, session_id, search, limit=limit + 1)
        numbers = [document["turn_number"] for document in found]
        looked_up = [await store.find_turn(owner_key, session_id, number) for number in numbers]
        documents = [document for document in looked_up if document]
    else:
        documents = await _documents(store, owner_key, session_id, limit + 1)
    read = [(document["turn_number"], _read(document)) for document in documents[:limit]]
    return Listed(
        turns=tuple(turn for _, turn in read if turn),
        total=await store.count_turns(owner_key, session_id),
        more=len(documents) > limit,
        unreadable=tuple(number for number, turn in read if not turn),
    )


async def find(store: TurnStore, owner_key: str, session_id: str, number: int) -> Turn:
    """One turn.

    Raises:
        TurnNotFoundError: there is none with that number.
        NexusError: it is malformed.
        StoreUnavailableError: the store did not answer.
    """
    document = await store.find_turn(owner_key, session_id, number) if number <= _HIGHEST else None
    if document is None:
        raise TurnNotFoundError(number)
    try:
        return Turn.model_validate_json(line_of(document))
    except ValueError as error:
        raise NexusError(f"turn {number} cannot be read: {error}") from None


async def _documents(store: TurnStore, owner_key: str, session_id: str, limit: int) -> list[Row]:
    found: list[Row] = []
    before = _HIGHEST
    while len(found) < limit:
        most = min(_PAGE, limit - len(found))
        page = await store.turns(owner_key, session_id, limit=most, before=before, whole=True)
        if not page:
            break
        found += page
        before = page[-1]["turn_number"]
    return found


def _read(document: Row) -> Turn | None:
    try:
        return Turn.model_validate_json(line_of(document))
    except ValueError:
        return None
