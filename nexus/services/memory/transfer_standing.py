"""How a session stands to an export that is to be imported into it (CONTRACT §7).

An import that was broken off has left some of what the export holds, word for word, and nothing else. Whatever else
the session has is in the way, but for one thing: what was in the making when it was exported may have come further
since (`transfer_further`). It stays as it is.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from nexus.core.ports import MemoryStore, Row
from nexus.core.ports.transfer import TransferableStore
from nexus.core.turns import Turn
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.memory.transfer_further import compaction_is_further, is_same, turn_is_further
from nexus.services.memory.transfer_ids import renamed_compaction
from nexus.services.memory.transfer_reading import Given, told_by, told_by_detail
from nexus.services.turns.documents import read_turn
from nexus.services.turns.transfer_lines import Export

_PAGE: Final = 50
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Plan:
    """An export on its way into a session.

    Attributes:
        given: the export.
        ids: new `_id`s of messages, by those that they have in the export; empty where they keep them.
        overviews: the revisions as they are to be, with what was edited.
        new_details: what was edited of details.
        compactions: as they are to be, with the new `_id`s.
    """

    given: Given
    owner_key: str
    session_id: str
    ids: Mapping[str, str]
    overviews: tuple[Overview, ...]
    new_details: tuple[Detail, ...]
    compactions: tuple[Compaction, ...]

    @property
    def turns(self) -> Export | None:
        """The turns, of this session."""
        turns = self.given.turns
        if turns is None:
            return None
        names = {"owner_key": self.owner_key, "session_id": self.session_id}
        return Export(**names, turns=tuple(turn.model_copy(update=names) for turn in turns.turns))

    @property
    def total(self) -> int:
        """All that is to be there."""
        return self.given.header.total + len(self.overviews) - len(self.given.overviews) + len(self.new_details)


@dataclass(slots=True)
class Differing:
    """What of a kind is in the way: how many, and what the first is called."""

    count: int = 0
    first: str = ""


@dataclass(slots=True)
class Standing:
    """What a session has.

    Attributes:
        rows: `_id`s, as in the export, of the messages that are there.
        overviews, details, compactions: keys of those that are there.
        turns: how many there are.
        further: of them, those that have come further since the export.
        has_state: there is a state.
        has_messages: a message of the export is recorded, as it is or otherwise.
        differs: what is in the way, by what one of it is called.
    """

    rows: set[str] = field(default_factory=set)
    overviews: set[int] = field(default_factory=set)
    details: set[tuple[str, int]] = field(default_factory=set)
    compactions: set[int] = field(default_factory=set)
    turns: int = 0
    further: dict[int, Turn] = field(default_factory=dict)
    has_state: bool = False
    has_messages: bool = False
    differs: dict[str, Differing] = field(default_factory=dict)

    @property
    def there(self) -> int:
        """How much of what is to be there is there."""
        memory = len(self.overviews) + len(self.details) + len(self.compactions)
        return len(self.rows) + memory + self.turns + self.has_state

    def in_the_way(self, kind: str, name: object, *, downwards: bool = False) -> None:
        """Count one that is in the way. The first of those that are read `downwards` is the last that is read."""
        differing = self.differs.setdefault(kind, Differing())
        differing.count += 1
        if downwards or not differing.first:
            differing.first = str(name)


def plan(given: Given, owner_key: str, session_id: str, ids: Mapping[str, str], now: datetime) -> Plan:
    """What is to become of an export."""
    revision = given.overviews[-1].revision + 1 if given.overviews else 1
    edited = given.edits.new_overview(revision, now)
    compactions = tuple(renamed_compaction(compaction, ids) for compaction in given.compactions)
    overviews = (*given.overviews, edited) if edited else given.overviews
    return Plan(given, owner_key, session_id, ids, overviews, tuple(given.edits.new_details(now)), compactions)


async def standing(store: TransferableStore, planned: Plan) -> Standing:
    """What the session has of the export, and what else.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    found = Standing()
    await _rows(store, planned, found)
    await _overviews(store.memory, planned, found)
    await _details(store.memory, planned, found)
    await _compactions(store.memory, planned, found)
    await _turns(store, planned, found)
    await _state(store, planned, found)
    return found


async def _rows(store: TransferableStore, planned: Plan, found: Standing) -> None:
    names = {new: row_id for row_id, new in planned.ids.items()}
    message_ids = {row.message_id for row in planned.given.rows.values() if row.message_id}
    async with aclosing(store.transfer.rows(planned.owner_key, planned.session_id)) as pages:
        async for page in pages:
            for row in page:
                row_id = names.get(row.row_id, row.row_id)
                given, message_id = planned.given.rows.get(row_id), row.document.get("id")
                found.has_messages = found.has_messages or message_id in message_ids
                if given and given.told_by == told_by(row.document):
                    found.rows.add(row_id)
                else:
                    found.in_the_way("message", message_id or row.row_id)


async def _overviews(store: MemoryStore, planned: Plan, found: Standing) -> None:
    wanted = {overview.revision: overview for overview in planned.overviews}
    key = planned.owner_key, planned.session_id

    async def read(before: int | None) -> list[Row]:
        return await store.overviews(*key, limit=_PAGE, before=before)

    async for document in _downwards(read, "revision"):
        overview = _read(Overview, document)
        if overview is not None and is_same(overview, wanted.get(overview.revision)):
            found.overviews.add(overview.revision)
        else:
            found.in_the_way("revision", document["revision"], downwards=True)


async def _details(store: MemoryStore, planned: Plan, found: Standing) -> None:
    edited = {(detail.name, detail.version): detail for detail in planned.new_details}
    after: tuple[str, int] | None = None
    key = planned.owner_key, planned.session_id
    while page := await store.detail_versions(*key, limit=_PAGE, after=after):
        for document in page:
            detail = _read(Detail, document)
            there = None if detail is None else (detail.name, detail.version)
            if (
                detail
                and there
                and (planned.given.details.get(there) == told_by_detail(detail) or is_same(detail, edited.get(there)))
            ):
                found.details.add(there)
            else:
                found.in_the_way("detail", f"{document['name']}, version {document['version']}")
        after = page[-1]["name"], page[-1]["version"]


async def _compactions(store: MemoryStore, planned: Plan, found: Standing) -> None:
    wanted = {compaction.number: compaction for compaction in planned.compactions}
    key = planned.owner_key, planned.session_id

    async def read(before: int | None) -> list[Row]:
        return await store.compactions(*key, limit=_PAGE, before=before, whole=True)

    async for document in _downwards(read, "number"):
        compaction = _read(Compaction, document)
        given = wanted.get(document["number"])
        if compaction and given and (compaction == given or compaction_is_further(compaction, given)):
            found.compactions.add(compaction.number)
        else:
            found.in_the_way("compaction", document["number"], downwards=True)


async def _turns(store: TransferableStore, planned: Plan, found: Standing) -> None:
    wanted = {turn.turn_number: turn for turn in planned.turns.turns} if planned.turns else {}
    key = planned.owner_key, planned.session_id

    async def read(before: int | None) -> list[Row]:
        return await store.turns.turns(*key, limit=_PAGE, before=before, whole=True)

    there, others = set[int](), set[int]()
    async for document in _downwards(read, "turn_number"):
        number = document["turn_number"]
        turn, given = read_turn(document), wanted.get(number)
        if turn is not None and given is not None and (turn == given or turn_is_further(turn, given)):
            there.add(number)
            if turn != given:
                found.further[number] = turn
        else:
            others.add(number)
            found.in_the_way("turn", number, downwards=True)
    # They are written in this order, and a gap is not filled.
    for number in sorted(set(sorted(wanted)[: len(there)]) - there - others):
        found.in_the_way("turn", number)
    found.turns = len(there)


async def _state(store: TransferableStore, planned: Plan, found: Standing) -> None:
    row = await store.find_session_state(planned.owner_key, planned.session_id)
    if row is None:
        return
    if planned.given.state is not None and store.transfer.spelled(row.get("document")) == planned.given.state:
        found.has_state = True
    elif row.get("document"):
        found.in_the_way("state", "that of the session")


async def _downwards(read: Callable[[int | None], Any], name: str) -> AsyncIterator[Row]:
    before: int | None = None
    while page := await read(before):
        for document in page:
            yield document
        before = page[-1][name]


def _read(model: type[_Model], document: Row) -> _Model | None:
    try:
        return model.model_validate(document)
    except ValidationError:
        return None
