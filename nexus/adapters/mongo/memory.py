"""Turns and working memory in MongoDB, one document each turn, overview, detail or compaction (contract §6, §7).

- A number, run, revision or version that is taken is found out by inserting.
- A turn is changed field by field in one operation, so that of two replicas neither undoes the other's change.
- Long contents stay on the server unless they are asked for.
- What others have stored in place of a number is passed over.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import anyio
from pymongo import ASCENDING, DESCENDING, UpdateOne
from pymongo.errors import OperationFailure

from nexus.adapters.mongo.client import Calls, Operations, driver_call, insert_call
from nexus.adapters.mongo.documents import WITHOUT_ID, Documents, equal
from nexus.adapters.mongo.schema import WORDS, id_text, of_session
from nexus.adapters.mongo.search import check_phrase, containing, inner_word
from nexus.adapters.mongo.versions import FIELD, NOT_NEWER, written
from nexus.core.models import LONG_AGO, parse_moment
from nexus.core.ports import Row
from nexus.core.ports.memory import NewestMemory, TurnTouch
from nexus.core.ports.store import LARGEST
from nexus.core.turns import CLOSE, Structured
from nexus.core.working_memory import Detail

_LAST_TURN_FIRST: Final = [("turn_number", DESCENDING)]
# An earlier version left a `claim` in turns.
_WHOLE_TURN: Final = {"_id": 0, "claim": 0}
_TURN_HEADER: Final = {**_WHOLE_TURN, **dict.fromkeys(("messages", "tool_calls", "removed"), 0)}
_SHORT_TURN: Final = {**_TURN_HEADER, **dict.fromkeys(("thinking_phase", "workspace_context"), 0)}
_RUN_OF_TURN: Final = {"_id": 0, **dict.fromkeys(("owner_key", "session_id", "run_id", FIELD), 1)}
_TURN_TEXTS: Final = (
    "summaries.brief",
    "summaries.detailed",
    *(f"summaries.structured.{name}" for name in Structured.model_fields),
    "insights",
)

_WITHOUT_ROWS: Final = {**WITHOUT_ID, "rows": 0, "removed": 0}
_DETAIL_FIELDS: Final = ("owner_key", "session_id", *(name for name in Detail.model_fields if name != "content"), FIELD)
_PLACE: Final = {"name": 1, "version": 1, "updated_at": 1}
_IN_ORDER: Final = [("name", ASCENDING), ("version", ASCENDING)]
_NEWEST_REVISION_FIRST: Final = [("revision", DESCENDING)]
_HIGHEST_FIRST: Final = [("number", DESCENDING)]
_NEWEST_VERSION_FIRST: Final = [("version", DESCENDING)]
# By the whole of the index, and backwards: so the server goes from name to name and passes over older versions.
_BACKWARDS: Final = ("owner_key", "session_id", "name", "version")
_BACKWARDS_OF_KIND: Final = ("owner_key", "session_id", "kind", "name", "version")
# Several archives may be of one moment.
_LAST_FIRST: Final = [("updated_at", DESCENDING), ("name", DESCENDING)]
# How long it may take until an index of words is noticed.
_WORDS_CHECKED_S: Final = 60


class MongoTurns(Operations):
    """`nexus.core.ports.TurnStore` on a collection; see `MongoMessages`."""

    def __init__(self, turns: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._turns = Documents(turns)

    @insert_call
    async def insert_turns(self, turns: Sequence[Row]) -> int:
        """Keep these up to the first whose number or run is taken. Returns how many were kept."""
        return await self._turns.insert_until_duplicate(turns)

    @driver_call
    async def latest_turn(self, owner_key: str, session_id: str) -> Row | None:
        """The turn with the highest number."""
        session = of_session(owner_key, session_id)
        return await self._turns.read_one(_numbered(session, "turn_number"), _TURN_HEADER, _LAST_TURN_FIRST)

    @driver_call
    async def find_turn(self, owner_key: str, session_id: str, turn_number: int) -> Row | None:
        """The turn with that number."""
        return await self._turns.read_one(_of_number(owner_key, session_id, turn_number), _WHOLE_TURN)

    @driver_call
    async def turns_of_runs(self, owner_key: str, session_id: str, run_ids: Sequence[str]) -> list[Row]:
        """The turns of these runs, in any order."""
        query = {**of_session(owner_key, session_id), "run_id": {"$in": list(run_ids)}}
        return await self._turns.read_all(query, _TURN_HEADER)

    @driver_call
    async def turns(
        self,
        owner_key: str,
        session_id: str,
        *,
        limit: int,
        before: int | None = None,
        without_runs: Sequence[str] = (),
        whole: bool = False,
    ) -> list[Row]:
        """Up to `limit` turns, the highest number first."""
        query = _numbered(of_session(owner_key, session_id), "turn_number", before)
        if without_runs:
            query["run_id"] = {"$nin": list(without_runs)}
        return await self._turns.read_page(query, _WHOLE_TURN if whole else _SHORT_TURN, _LAST_TURN_FIRST, limit)

    @driver_call
    async def search_turns(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` turns with `text` in a summary or an insight; the highest number first."""
        check_phrase(text)
        query = {**of_session(owner_key, session_id), "$or": [{place: containing(text)} for place in _TURN_TEXTS]}
        return await self._turns.read_page(query, _SHORT_TURN, _LAST_TURN_FIRST, limit)

    @driver_call
    async def count_turns(self, owner_key: str, session_id: str) -> int:
        """How many turns the session has."""
        return int(await self._turns.collection.count_documents(of_session(owner_key, session_id)))

    @driver_call
    async def update_turn(
        self, owner_key: str, session_id: str, turn_number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values."""
        query = {**_of_number(owner_key, session_id, turn_number), **equal(seen)}
        return await self._turns.update(query, {"$set": written(changes)})

    @driver_call
    async def touch_runs(self, touches: Sequence[TurnTouch]) -> list[TurnTouch]:
        """Set these fields of the turns of these runs. Returns those of which the run has no turn."""
        if not touches:
            return []
        updates = [update for touch in touches for update in _touching(touch)]
        if (await self._turns.collection.bulk_write(updates)).matched_count >= len(touches):
            return []
        runs: dict[tuple[str, str], list[str]] = {}
        for touch in touches:
            runs.setdefault((touch.owner_key, touch.session_id), []).append(touch.run_id)
        queries = [{**of_session(*place), "run_id": {"$in": of_place}} for place, of_place in runs.items()]
        found = await self._turns.read_all({"$or": queries}, _RUN_OF_TURN)
        # No set: other writers' documents may hold anything there.
        known = [(row.get("owner_key"), row.get("session_id"), row.get("run_id")) for row in found]
        return [touch for touch in touches if (touch.owner_key, touch.session_id, touch.run_id) not in known]

    @driver_call
    async def claim(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Of the turns on which this work is due by `now`, the one last due; it is then due at `until`."""
        return await self._turns.claim_due(work, now, until, projection=_WHOLE_TURN, order=DESCENDING)


class MongoMemory(Operations):
    """`nexus.core.ports.memory.MemoryStore` on three collections of a database; see `MongoMessages`."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._overviews = Documents(database["working_memory"])
        self._details = Documents(database["memory_details"])
        self._compactions = Documents(database["compactions"])
        self._has_words_index = False
        self._check_words_at = 0.0

    @insert_call
    async def insert_overview(self, overview: Row) -> bool:
        """Keep a revision. False when it is taken."""
        return await self._overviews.insert_until_duplicate([overview]) == 1

    @driver_call
    async def latest_overview(self, owner_key: str, session_id: str) -> Row | None:
        """The overview with the highest revision."""
        session = of_session(owner_key, session_id)
        return await self._overviews.read_one(_numbered(session, "revision"), WITHOUT_ID, _NEWEST_REVISION_FIRST)

    @driver_call
    async def overviews(self, owner_key: str, session_id: str, *, limit: int, before: int | None = None) -> list[Row]:
        """Up to `limit` overviews, the highest revision first."""
        query = _numbered(of_session(owner_key, session_id), "revision", before)
        return await self._overviews.read_page(query, WITHOUT_ID, _NEWEST_REVISION_FIRST, limit)

    @driver_call
    async def drop_overviews(self, owner_key: str, session_id: str, *, below: int) -> int:
        """Remove the revisions below this one. Returns how many there were."""
        return await self._overviews.delete({**of_session(owner_key, session_id), "revision": {"$lt": below}})

    @insert_call
    async def insert_details(self, details: Sequence[Row]) -> int:
        """Keep these up to the first whose name and version are taken. Returns how many were kept."""
        return await self._details.insert_until_duplicate(details)

    @driver_call
    async def list_details(
        self, owner_key: str, session_id: str, *, limit: int | None = None, after: str = ""
    ) -> list[Row]:
        """The newest version of each detail, by name, without `content`; up to `limit` of those behind a name."""
        session = of_session(owner_key, session_id)
        stages = newest_versions({**session, "name": {"$gt": after}} if after else session)
        first: list[Row] = [] if limit is None else [{"$sort": {"name": ASCENDING}}, {"$limit": limit}]
        return sorted(self._details.readable(await self._details.aggregate([*stages, *first])), key=_name)

    @driver_call
    async def newest(self, owner_key: str, session_id: str, *, notes: int, archives: int) -> NewestMemory:
        """The working memory of a session as it is now: one operation on the three collections."""
        session = of_session(owner_key, session_id)
        # An archive has one version.
        archived = {"$match": {**session, "kind": {"$eq": "archive"}}}
        last: list[Row] = [archived, {"$sort": dict(_LAST_FIRST)}, {"$limit": archives}, {"$unset": "content"}]
        parts: dict[str, tuple[Documents, list[Row]]] = {
            "note": (self._details, newest_versions(session, "note")),
            "archive": (self._details, last if archives else []),
            "archives": (self._details, [archived, {"$group": {"_id": None, "count": {"$sum": 1}}}]),
            "compaction": (self._compactions, [*_of_highest(session, "number"), {"$unset": ["rows", "removed"]}]),
        }
        unions = [
            {"$unionWith": {"coll": documents.collection.name, "pipeline": [*stages, {"$set": {"_id": part}}]}}
            for part, (documents, stages) in parts.items()
            if stages
        ]
        overview = [*_of_highest(session, "revision"), {"$set": {"_id": "overview"}}]
        found: dict[str, list[Row]] = {part: [] for part in ("overview", *parts)}
        for row in await self._overviews.aggregate([*overview, *unions]):
            part = row.pop("_id")
            found[part] += (self._overviews if part == "overview" else parts[part][0]).readable([row])
        noted = sorted(found["note"], key=lambda detail: (_moment(detail), _name(detail)), reverse=True)
        return NewestMemory(
            next(iter(found["overview"]), None),
            sorted([*noted[:notes], *found["archive"]], key=_name),
            len(noted) + sum(row["count"] for row in found["archives"]),
            next(iter(found["compaction"]), None),
        )

    @driver_call
    async def find_detail(
        self, owner_key: str, session_id: str, name: str, *, version: int | None = None
    ) -> Row | None:
        """That version of the detail; its newest where none is named."""
        query: dict[str, Any] = {**of_session(owner_key, session_id), "name": {"$eq": name}}
        if version is not None:
            query["version"] = {"$eq": version}
        return await self._details.read_one(query, WITHOUT_ID, _NEWEST_VERSION_FIRST)

    @driver_call
    async def detail_versions(
        self, owner_key: str, session_id: str, *, limit: int, after: tuple[str, int] | None = None
    ) -> list[Row]:
        """Up to `limit` versions, whole, by name and then by version."""
        session = of_session(owner_key, session_id)
        if after is None:
            return await self._in_order(session, limit)
        name, version = after
        found = await self._in_order({**session, "name": {"$eq": name}, "version": {"$gt": version}}, limit)
        if len(found) < limit:
            found += await self._in_order({**session, "name": {"$gt": name}}, limit - len(found))
        return found

    @driver_call
    async def search_details(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` details whose content has `text` in it, whole, the last written first."""
        check_phrase(text)
        session = of_session(owner_key, session_id)
        newest: dict[str, Row] = {}
        for header in await self._places_with(session, text):
            known = newest.get(_name(header))
            if isinstance(header.get("version"), int) and (known is None or known["version"] < header["version"]):
                newest[_name(header)] = header
        last_first = sorted(newest.values(), key=lambda each: (_moment(each), id_text(each["_id"])), reverse=True)
        ids = [header["_id"] for header in last_first[:limit]]
        rows = await self._details.read_all({"_id": {"$in": ids}, **session})
        found = {id_text(row.pop("_id")): row for row in rows}
        return [found[each] for each in map(id_text, ids) if each in found]

    @insert_call
    async def insert_compaction(self, compaction: Row) -> bool:
        """Keep a compaction. False when its number is taken."""
        return await self._compactions.insert_until_duplicate([compaction]) == 1

    @driver_call
    async def latest_compaction(self, owner_key: str, session_id: str) -> Row | None:
        """The compaction with the highest number, without `rows`."""
        session = of_session(owner_key, session_id)
        return await self._compactions.read_one(_numbered(session, "number"), _WITHOUT_ROWS, _HIGHEST_FIRST)

    @driver_call
    async def compactions(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None = None, whole: bool = False
    ) -> list[Row]:
        """Up to `limit` compactions, the highest number first; `whole`: with `rows`."""
        query = _numbered(of_session(owner_key, session_id), "number", before)
        return await self._compactions.read_page(query, WITHOUT_ID if whole else _WITHOUT_ROWS, _HIGHEST_FIRST, limit)

    @driver_call
    async def update_compaction(
        self, owner_key: str, session_id: str, number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values."""
        query = {**of_session(owner_key, session_id), "number": {"$eq": number}, **equal(seen)}
        return await self._compactions.update(query, {"$set": written(changes)})

    @driver_call
    async def claim_compaction(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Of the compactions on which this work is due by `now`, the one first due; it is then due at `until`."""
        return await self._compactions.claim_due(work, now, until, projection=WITHOUT_ID, order=ASCENDING)

    async def _places_with(self, session: Row, text: str) -> list[Row]:
        """Where every version is that has the text: each is compared with it, whatever an index says."""
        query = {**session, "content": containing(text)}
        word = inner_word(text)
        if word and await self._can_search_words():
            try:
                return await self._details.read_all({**query, "$text": {"$search": word}}, _PLACE)
            except OperationFailure:
                # The index has just been dropped.
                self._check_words_at = 0.0
        return await self._details.read_all(query, _PLACE)

    async def _can_search_words(self) -> bool:
        """Whether the collection has Nexus's index of words, and not another's, which would serve the query as well."""
        now = anyio.current_time()
        if now >= self._check_words_at:
            known = await self._details.collection.index_information()
            self._has_words_index = known.get(WORDS, {}).get("weights") == {"content": 1}
            self._check_words_at = now + _WORDS_CHECKED_S
        return self._has_words_index

    async def _in_order(self, query: Row, limit: int) -> list[Row]:
        return await self._details.read_page(query, WITHOUT_ID, _IN_ORDER, limit)


def _of_number(owner_key: str, session_id: str, turn_number: int) -> dict[str, Any]:
    return {**of_session(owner_key, session_id), "turn_number": {"$eq": turn_number}}


def _touching(touch: TurnTouch) -> list[UpdateOne]:
    """The updates for a run, of which one at most changes its turn."""
    query = {**of_session(touch.owner_key, touch.session_id), "run_id": {"$eq": touch.run_id}, **NOT_NEWER}
    if touch.message_id is not None:
        query["messages"] = {"$ne": touch.message_id}
    if not touch.unless_due:
        return [UpdateOne(query, {"$set": written(touch.changes)})]
    return [
        UpdateOne({**query, "work": CLOSE}, {"$set": written(touch.changes)}),
        UpdateOne({**query, "work": {"$ne": CLOSE}}, {"$set": written({**touch.changes, **touch.unless_due})}),
    ]


def newest_versions(session: Row, kind: str | None = None) -> list[Row]:
    """The stages that give the newest version of each of a session's details, or of those of a kind, without content.

    Field by field, since a group of whole documents holds all contents at once.
    """
    order = _BACKWARDS if kind is None else _BACKWARDS_OF_KIND
    return [
        {"$match": session if kind is None else {**session, "kind": {"$eq": kind}}},
        {"$sort": dict.fromkeys(order, DESCENDING)},
        {"$group": {"_id": "$name", **{field: {"$first": f"${field}"} for field in _DETAIL_FIELDS}}},
        {"$project": {"_id": 0}},
    ]


def _of_highest(session: Row, name: str) -> list[Row]:
    """The stages that give the document of a session with the highest revision or number."""
    return [{"$match": _numbered(session, name)}, {"$sort": {name: DESCENDING}}, {"$limit": 1}]


def _numbered(session: Row, name: str, before: int | None = None) -> Row:
    """The condition for documents of a session with a number there, below `before`."""
    return {**session, name: {"$gte": 1, "$lte": LARGEST} if before is None else {"$gte": 1, "$lt": before}}


def _name(detail: Row) -> str:
    return str(detail.get("name"))


def _moment(detail: Row) -> datetime:
    return parse_moment(detail.get("updated_at")) or LONG_AGO
