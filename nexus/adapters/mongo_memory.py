"""Working memory in MongoDB: overviews, details and compactions, one document each (CONTRACT §7).

Rules of this module, beside those of `nexus.adapters.mongo`:

- A revision, version or number that is taken is found out by inserting: between looking and inserting stands another
  replica.
- What is long (contents of details, rows of a compaction) stays on the server unless it is asked for.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, ReturnDocument
from pymongo.errors import DuplicateKeyError

from nexus.adapters.mongo_calls import Calls, completed
from nexus.adapters.mongo_details import MongoDetails
from nexus.adapters.mongo_schema import of_session
from nexus.core.ports import Row

_WHOLE: Final = {"_id": 0}
_HEADER: Final = {**_WHOLE, "rows": 0}
_FIRST_DUE_FIRST: Final = [("due_at", ASCENDING)]


class MongoMemory(MongoDetails):
    """`nexus.core.ports.memory.MemoryStore` on three collections.

    Args:
        database: that has them, of motor or of pymongo's asyncio client.
        calls: through which the client is called.
        prepared: returns once the indexes are made.
    """

    def __init__(self, database: Any, calls: Calls, prepared: Callable[[], Awaitable[None]]) -> None:
        super().__init__(database["memory_details"], calls, prepared)
        self._overviews = database["working_memory"]
        self._compactions = database["compactions"]

    @completed
    async def insert_overview(self, overview: Row) -> bool:
        """Keep a revision. False when it is taken."""
        return await self._insert(self._overviews, overview)

    @completed
    async def latest_overview(self, owner_key: str, session_id: str) -> Row | None:
        """The overview with the highest revision."""
        found = await _numbered(self._overviews, of_session(owner_key, session_id), "revision", _WHOLE, 1)
        return found[0] if found else None

    @completed
    async def overviews(self, owner_key: str, session_id: str, *, limit: int, before: int | None = None) -> list[Row]:
        """Up to `limit` overviews, the highest revision first."""
        query = {**of_session(owner_key, session_id), **_below("revision", before)}
        return await _numbered(self._overviews, query, "revision", _WHOLE, limit)

    @completed
    async def insert_compaction(self, compaction: Row) -> bool:
        """Keep a compaction. False when its number is taken."""
        return await self._insert(self._compactions, compaction)

    @completed
    async def latest_compaction(self, owner_key: str, session_id: str) -> Row | None:
        """The compaction with the highest number, without `rows`."""
        found = await _numbered(self._compactions, of_session(owner_key, session_id), "number", _HEADER, 1)
        return found[0] if found else None

    @completed
    async def compactions(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None = None, whole: bool = False
    ) -> list[Row]:
        """Up to `limit` compactions, the highest number first; `whole`: with `rows`."""
        query = {**of_session(owner_key, session_id), **_below("number", before)}
        return await _numbered(self._compactions, query, "number", _WHOLE if whole else _HEADER, limit)

    @completed
    async def update_compaction(
        self, owner_key: str, session_id: str, number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values."""
        unchanged = {name: {"$eq": value} for name, value in seen.items()}
        query = {**of_session(owner_key, session_id), "number": {"$eq": number}, **unchanged}
        return bool((await self._compactions.update_one(query, {"$set": dict(changes)})).matched_count)

    @completed
    async def claim_compaction(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Of the compactions on which this work is due by `now`, the one first due; it is then due at `until`."""
        row: Row | None = await self._compactions.find_one_and_update(
            {"work": {"$eq": work}, "due_at": {"$lte": now}},
            {"$set": {"due_at": until}},
            projection=_WHOLE,
            sort=_FIRST_DUE_FIRST,
            return_document=ReturnDocument.AFTER,
        )
        return row

    @completed
    async def delete_memory(self, owner_key: str, session_id: str) -> int:
        """Forget all of it. Returns how many documents there were."""
        gone = 0
        # Compactions first: whoever is interrupted leaves nothing that hides a row and tells nothing of it.
        for collection in (self._compactions, self._details, self._overviews):
            gone += (await collection.delete_many(of_session(owner_key, session_id))).deleted_count
        return gone

    async def _insert(self, collection: Any, document: Row) -> bool:
        await self._prepared()
        try:
            await collection.insert_one(dict(document))
        except DuplicateKeyError:
            return False
        return True


def _below(name: str, before: int | None) -> dict[str, Any]:
    return {} if before is None else {name: {"$lt": before}}


async def _numbered(
    collection: Any, query: Mapping[str, Any], name: str, projection: Mapping[str, int], limit: int
) -> list[Row]:
    cursor = collection.find(query, projection).sort(name, DESCENDING).limit(limit)
    found: list[Row] = await cursor.batch_size(limit + 1).to_list(limit)
    return found
