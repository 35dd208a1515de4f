"""The details of working memory in MongoDB: one document a version (CONTRACT §7)."""

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from operator import itemgetter
from typing import Any, Final

import anyio
from pymongo import ASCENDING, DESCENDING
from pymongo.errors import BulkWriteError, OperationFailure

from nexus.adapters.mongo_calls import Calls, completed
from nexus.adapters.mongo_schema import WORDS, containing, of_session
from nexus.adapters.mongo_search import check_phrase, inner_word
from nexus.core.ports import Row
from nexus.core.working_memory import Detail

_WHOLE: Final = {"_id": 0}
_HEADER: Final = {**_WHOLE, "content": 0}
_FIELDS: Final = ("owner_key", "session_id", *(name for name in Detail.model_fields if name != "content"))
_PLACE: Final = {"name": 1, "version": 1, "updated_at": 1}
_IN_ORDER: Final = [("name", ASCENDING), ("version", ASCENDING)]
_NEWEST_FIRST: Final = [("version", DESCENDING)]
# By the whole of the index, and backwards: so the server goes from name to name and passes over older versions.
_BACKWARDS: Final = ("owner_key", "session_id", "name", "version")
_BACKWARDS_OF_KIND: Final = ("owner_key", "session_id", "kind", "name", "version")
# Several archives may be of one moment.
_LAST_FIRST: Final = [("updated_at", DESCENDING), ("name", DESCENDING)]
_NAME: Final = itemgetter("name")
_DUPLICATE: Final = 11000
# How long it may take until an index of words is noticed.
_LOOKED_AGAIN_S: Final = 60


class MongoDetails:
    """The details of `nexus.core.ports.memory.MemoryStore` on a collection.

    Args:
        details: the collection, of motor or of pymongo's asyncio client.
        calls: through which the client is called.
        prepared: returns once the indexes are made.
    """

    def __init__(self, details: Any, calls: Calls, prepared: Callable[[], Awaitable[None]]) -> None:
        self.calls = calls
        self._details = details
        self._prepared = prepared
        self._words = False
        self._look_again_at = 0.0

    @completed
    async def insert_details(self, details: Sequence[Row]) -> int:
        """Keep these up to the first whose name and version are taken. Returns how many were kept."""
        if not details:
            return 0
        await self._prepared()
        try:
            await self._details.insert_many([dict(detail) for detail in details])
        except BulkWriteError as error:
            faults = error.details.get("writeErrors") or [{}]
            if faults[0].get("code") != _DUPLICATE:
                raise
            return int(error.details["nInserted"])
        return len(details)

    @completed
    async def list_details(self, owner_key: str, session_id: str) -> list[Row]:
        """The newest version of each detail, by name, without `content`."""
        return sorted(await self._aggregated(newest_of_each(of_session(owner_key, session_id))), key=_NAME)

    @completed
    async def recent_details(
        self, owner_key: str, session_id: str, *, notes: int, archives: int
    ) -> tuple[list[Row], int]:
        """Of so many notes and archives, those written last, the newest version; and how many there are."""
        session = of_session(owner_key, session_id)
        noted = await self._aggregated(newest_of_each(session, "note"))
        # Nobody writes a second version of an archive.
        archived = {**session, "kind": {"$eq": "archive"}}
        count = await self._details.count_documents(archived)
        cursor = self._details.find(archived, _HEADER).sort(_LAST_FIRST).limit(archives)
        recent: list[Row] = await cursor.to_list(archives) if archives else []
        noted.sort(key=lambda detail: (detail["updated_at"], detail["name"]), reverse=True)
        return sorted([*noted[:notes], *recent], key=_NAME), len(noted) + count

    @completed
    async def find_detail(
        self, owner_key: str, session_id: str, name: str, *, version: int | None = None
    ) -> Row | None:
        """That version of the detail; its newest where none is named."""
        query: dict[str, Any] = {**of_session(owner_key, session_id), "name": {"$eq": name}}
        if version is not None:
            query["version"] = {"$eq": version}
        row: Row | None = await self._details.find_one(query, _WHOLE, sort=_NEWEST_FIRST)
        return row

    @completed
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

    @completed
    async def search_details(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` details whose content has `text` in it, whole, the last written first."""
        check_phrase(text)
        session = of_session(owner_key, session_id)
        newest: dict[str, Row] = {}
        for header in await self._having(session, text):
            known = newest.get(header["name"])
            if known is None or known["version"] < header["version"]:
                newest[header["name"]] = header
        last_first = sorted(newest.values(), key=lambda each: (each["updated_at"], each["_id"]), reverse=True)
        ids = [header["_id"] for header in last_first[:limit]]
        rows = await self._details.find({"_id": {"$in": ids}, **session}).to_list(None)
        found = {row.pop("_id"): row for row in rows}
        return [found[each] for each in ids if each in found]

    async def _having(self, session: Row, text: str) -> list[Row]:
        """Where every version is that has the text: each is compared with it, whatever an index says."""
        query = {**session, "content": containing(text)}
        word = inner_word(text)
        if word and await self._has_words():
            try:
                return await self._places({**query, "$text": {"$search": word}})
            except OperationFailure:
                # Somebody has just dropped the index.
                self._look_again_at = 0.0
        return await self._places(query)

    async def _has_words(self) -> bool:
        """Whether the collection has the index of words, and not another's, which would do for the query as well."""
        now = anyio.current_time()
        if now >= self._look_again_at:
            known = await self._details.index_information()
            self._words = known.get(WORDS, {}).get("weights") == {"content": 1}
            self._look_again_at = now + _LOOKED_AGAIN_S
        return self._words

    async def _places(self, query: Row) -> list[Row]:
        found: list[Row] = await self._details.find(query, _PLACE).to_list(None)
        return found

    async def _aggregated(self, pipeline: Sequence[Row]) -> list[Row]:
        cursor = self._details.aggregate(pipeline)
        # Of pymongo's asyncio client it is a coroutine that gives the cursor; of motor the cursor.
        found: list[Row] = await (await cursor if isawaitable(cursor) else cursor).to_list(None)
        return found

    async def _in_order(self, query: Row, limit: int) -> list[Row]:
        cursor = self._details.find(query, _WHOLE).sort(_IN_ORDER).limit(limit)
        found: list[Row] = await cursor.batch_size(limit + 1).to_list(limit)
        return found


def newest_of_each(session: Row, kind: str | None = None) -> list[Row]:
    """The stages that give the headers of a session's details, or of those of a kind, the newest version of each.

    Field by field, since a group of whole documents holds all contents at once.
    """
    order = _BACKWARDS if kind is None else _BACKWARDS_OF_KIND
    return [
        {"$match": session if kind is None else {**session, "kind": {"$eq": kind}}},
        {"$sort": dict.fromkeys(order, DESCENDING)},
        {"$group": {"_id": "$name", **{field: {"$first": f"${field}"} for field in _FIELDS}}},
        {"$project": {"_id": 0}},
    ]
