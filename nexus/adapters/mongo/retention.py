"""What retention reads and removes in MongoDB: headers in the order of storing, and documents by owner and `_id`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from nexus.adapters.mongo.client import Calls, Operations, driver_call
from nexus.adapters.mongo.documents import BY_ID, WITHOUT_ID, Documents, equal
from nexus.adapters.mongo.projections import HEADER
from nexus.adapters.mongo.schema import id_of, of_owner, rows_of_session, with_text_id
from nexus.adapters.mongo.versions import FIELD
from nexus.core.models import INTERNAL
from nexus.core.ports import Row
from nexus.core.ports.retention import HEADERS, Kind, Removable

_COLLECTIONS: Final[Mapping[Kind | Removable, str]] = {
    "messages": "messages",
    "turns": "turns",
    "compactions": "compactions",
    "overviews": "working_memory",
    "details": "memory_details",
}
_FIELDS: Final = {kind: dict.fromkeys(("owner_key", "session_id", *names, FIELD), 1) for kind, names in HEADERS.items()}
_ROW: Final = {**HEADER, f"metadata.{INTERNAL}": 1}
_PASS: Final = {"_id": "pass"}


class MongoRetention(Operations):
    """`nexus.core.ports.RetentionStore` on the collections of a database; see `MongoMessages`."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._collections = {kind: Documents(database[name]) for kind, name in _COLLECTIONS.items()}
        self._passes = Documents(database["retention"])

    @driver_call
    async def claim_pass(self, now: datetime, until: datetime) -> Row | None:
        """Claim the pass, if it is due by `now`; it is then due at `until`."""
        due = {**_PASS, "due_at": {"$lte": now}}
        change = {"$set": {"due_at": until}}
        try:
            found: Row | None = await self._passes.collection.find_one_and_update(
                due, change, projection=WITHOUT_ID, upsert=True, return_document=ReturnDocument.AFTER
            )
        except DuplicateKeyError:
            # There is one, and it is not due.
            return None
        return found

    @driver_call
    async def update_pass(self, changes: Mapping[str, Any], *, seen: Mapping[str, Any]) -> bool:
        """Set these fields of the pass, if those in `seen` still have these values."""
        return await self._passes.update({**_PASS, **equal(seen)}, {"$set": changes})

    @driver_call
    async def stored_before(self, kind: Kind, before: datetime, *, after: str = "", limit: int) -> list[Row]:
        """Headers of up to `limit` documents of all owners, in the order of storing."""
        stored = {"$lt": ObjectId.from_datetime(before), **({"$gt": ObjectId(after)} if after else {})}
        page = await self._collections[kind].read_page({"_id": stored}, _FIELDS[kind], BY_ID, limit)
        return [*map(with_text_id, page)]

    @driver_call
    async def rows_of_runs(self, owner_key: str, session_id: str, run_ids: Sequence[str]) -> list[Row]:
        """Headers of the rows of these runs in a session, in any order."""
        query = {**rows_of_session(owner_key, session_id), "run_id": {"$in": list(run_ids)}}
        return [*map(with_text_id, await self._collections["messages"].read_all(query, _ROW))]

    @driver_call
    async def rows_of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """Headers of the rows with these `_id`s, in any order."""
        query = {"_id": {"$in": [*map(id_of, row_ids)]}, **of_owner(owner_key)}
        return [*map(with_text_id, await self._collections["messages"].read_all(query, _ROW))]

    @driver_call
    async def remove(self, kind: Removable, owner_key: str, ids: Sequence[str]) -> int:
        """Remove the owner's documents with these `_id`s. Returns how many there were."""
        query = {"_id": {"$in": [*map(id_of, ids)]}, **of_owner(owner_key)}
        return await self._collections[kind].delete(query)
