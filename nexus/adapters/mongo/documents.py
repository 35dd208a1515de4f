"""One collection as Nexus reads and changes it: what a newer release wrote is neither passed over nor changed.

Reads check the version of what they find, and changes have the condition for it (`versions`). Whoever asks the driver
itself (`Documents.collection`) sees to that by itself; `unit/adapters/mongo/test_documents.py` has the list.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from inspect import isawaitable
from typing import Any, Final

from pymongo import ASCENDING, ReturnDocument
from pymongo.errors import BulkWriteError, ExecutionTimeout, NetworkTimeout, OperationFailure

from nexus.adapters.mongo.client import DUPLICATE_KEY, NO_SUCH_INDEX, code_of
from nexus.adapters.mongo.versions import NOT_NEWER, readable, written
from nexus.core.models import Row, utc_now

Order = Sequence[tuple[str, int]]

BY_ID: Final = [("_id", ASCENDING)]
ONLY_ID: Final = {"_id": 1}
WITHOUT_ID: Final = {"_id": 0}


def equal(values: Mapping[str, Any]) -> Row:
    """The condition for documents whose fields have these values, none of which can be an operator."""
    return {name: {"$eq": value} for name, value in values.items()}


class Documents:
    """Documents of a `collection` of motor or of pymongo's asyncio client."""

    def __init__(self, collection: Any) -> None:
        self.collection = collection

    async def read_one(
        self, query: Mapping[str, Any], projection: Mapping[str, Any] | None = None, order: Order | None = None
    ) -> Row | None:
        """The first document in this order."""
        row: Row | None = await self.collection.find_one(query, projection, sort=order)
        return None if row is None else self.readable([row])[0]

    async def read_page(
        self,
        query: Mapping[str, Any],
        projection: Mapping[str, Any],
        order: Order | None,
        limit: int,
        *,
        skip: int = 0,
        index: Order | None = None,
        one_reply: bool = False,
    ) -> list[Row]:
        """Up to `limit` documents after the first `skip` in this order, in one batch: so the server keeps no cursor.

        The index with the fields `index` is used, where it was made. With `one_reply` they are no more than one reply
        holds, which is no larger than a large document.
        """
        most = -limit if one_reply else limit
        page = {"sort": order, "limit": most, "skip": skip, "hint": index, "batch_size": limit + 1}
        try:
            return self.readable(await self.collection.find(query, projection, **page).to_list(limit))
        except OperationFailure as error:
            if not index or error.code != NO_SUCH_INDEX:
                raise
            return await self.read_page(query, projection, order, limit, skip=skip, one_reply=one_reply)

    async def read_all(
        self,
        query: Mapping[str, Any],
        projection: Mapping[str, Any] | None = None,
        order: Order | None = None,
        *,
        batch: int = 0,
    ) -> list[Row]:
        """All documents, in this order; `batch` at a time, where that is given."""
        cursor = self.collection.find(query, projection, sort=order, batch_size=batch)
        return self.readable(await cursor.to_list(None))

    async def aggregate(self, pipeline: Sequence[Row]) -> list[Row]:
        """The documents that a pipeline gives, with their version: they may be of several collections."""
        cursor = self.collection.aggregate(pipeline)
        # pymongo's asyncio client has a coroutine that returns the cursor; motor returns the cursor.
        found: list[Row] = await (await cursor if isawaitable(cursor) else cursor).to_list(None)
        return found

    async def count(self, query: Mapping[str, Any]) -> int | None:
        """How many documents there are; None where counting takes longer than an operation may."""
        try:
            return int(await self.collection.count_documents(query))
        except (ExecutionTimeout, NetworkTimeout):
            return None

    async def insert_until_duplicate(self, documents: Sequence[Row]) -> int:
        """Insert in this order, up to the first that breaks a promise of uniqueness. Returns how many were inserted.

        What is inserted, and what is there already, is on a majority: the server waits for that after a duplicate, too.
        """
        if not documents:
            return 0
        try:
            # For one document, too: of a duplicate that no majority has, `insert_one` reports the duplicate alone.
            await self.collection.insert_many([written(document) for document in documents])
        except BulkWriteError as error:
            if code_of(error) != DUPLICATE_KEY:
                raise
            return int(error.details["nInserted"])
        return len(documents)

    async def put_revision(self, place: Mapping[str, str], document: Mapping[str, Any], revision: int) -> bool:
        """Keep the document of a place instead of the one with that revision; 0 where there is none yet.

        False, and no change, when another was kept in between.
        """
        changes = written({"document": dict(document), "revision": revision + 1, "updated_at": utc_now()})
        if revision == 0:
            return await self.insert_until_duplicate([{**place, **changes}]) == 1
        return await self.update(equal({**place, "revision": revision}), {"$set": changes})

    async def update(self, query: Mapping[str, Any], change: Mapping[str, Any], *, upsert: bool = False) -> bool:
        """Change a document; whether there is one. With `upsert` one is made where there is none."""
        result = await self.collection.update_one({**query, **NOT_NEWER}, change, upsert=upsert)
        return bool(result.matched_count)

    async def update_ids(self, ids: Sequence[Any], query: Mapping[str, Any], change: Mapping[str, Any]) -> int:
        """Change those of the documents with these `_id`s that the query matches. Returns how many were changed."""
        # With the hint: else the server may go through all that the query matches for a few of them.
        query = {"_id": {"$in": [*ids]}, **query, **NOT_NEWER}
        return int((await self.collection.update_many(query, change, hint=BY_ID)).modified_count)

    async def delete(self, query: Mapping[str, Any]) -> int:
        """Delete documents. Returns how many there were."""
        return int((await self.collection.delete_many({**query, **NOT_NEWER})).deleted_count)

    async def claim_due(
        self, work: str, now: datetime, until: datetime, *, projection: Mapping[str, Any], order: int
    ) -> Row | None:
        """Of the documents on which this work is due by `now`, the first by `due_at`, which becomes `until`."""
        row: Row | None = await self.collection.find_one_and_update(
            {"work": {"$eq": work}, "due_at": {"$lte": now}, **NOT_NEWER},
            {"$set": {"due_at": until}},
            projection=projection,
            sort=[("due_at", order)],
            return_document=ReturnDocument.AFTER,
        )
        return None if row is None else self.readable([row])[0]

    async def write_all(self, writes: Sequence[Any]) -> bool:
        """Make these writes, in any order. False where some broke a promise of uniqueness, and the others are made.

        Their own conditions say which documents are not to be changed.
        """
        try:
            if writes:
                await self.collection.bulk_write(writes, ordered=False)
        except BulkWriteError as error:
            faults = [*error.details["writeErrors"], *error.details["writeConcernErrors"]]
            if any(fault.get("code") != DUPLICATE_KEY for fault in faults):
                raise
            return False
        return True

    def readable(self, rows: Iterable[Row]) -> list[Row]:
        """Documents as the driver gave them, without their version; see `versions.readable`."""
        return readable(self.collection.name, rows)
