"""Whole sessions of messages out of MongoDB and into it, exactly (CONTRACT §7).

Rows of other writers may have an `_id` of any type. MongoDB compares `_id`s within one type only, so rows whose `_id`
is no ObjectId are read first and counted off; there are none where Nexus alone writes.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import bson
from bson.errors import BSONError
from pymongo import ASCENDING
from pymongo.errors import BulkWriteError, OperationFailure

from nexus.adapters.mongo_calls import Calls, completed
from nexus.adapters.mongo_ids import id_text
from nexus.adapters.mongo_json import spelled, unspelled
from nexus.adapters.mongo_schema import CODEC, STORED_IN_SESSION
from nexus.core.ports import Row
from nexus.core.ports.transfer import SpelledRow

_PAGE: Final = 500
_BY_ID: Final = [("_id", ASCENDING)]
_FOREIGN: Final = {"_id": {"$not": {"$type": "objectId"}}}
_MOST_BYTES: Final = 1 << 24
_DUPLICATE: Final = 11000
# No index has the fields of the hint.
_NO_SUCH_INDEX: Final = 2


class MongoTransfer:
    """`nexus.core.ports.transfer.TransferStore` on the collection of messages.

    Args:
        messages: the collection, of motor or of pymongo's asyncio client.
        calls: through which the client is called.
        prepared: returns once the indexes are made.
    """

    def __init__(self, messages: Any, calls: Calls, prepared: Callable[[], Awaitable[None]]) -> None:
        self.calls = calls
        self._messages = messages
        self._prepared = prepared

    def spelled(self, value: Any) -> Any:
        """A value that MongoDB gave, as JSON."""
        return spelled(value)

    def unspelled(self, value: Any) -> Any:
        """What `spelled` was given."""
        return unspelled(value)

    def checked(self, document: Row) -> SpelledRow:
        """The row as it will be spelled once it is kept."""
        try:
            encoded = bson.encode(_unspelled_row(document), codec_options=CODEC)
        except (BSONError, OverflowError, UnicodeEncodeError, TypeError) as error:
            raise ValueError(f"no document can hold it: {type(error).__name__}") from None
        if len(encoded) > _MOST_BYTES:
            raise ValueError(f"as a document it has more than {_MOST_BYTES} bytes")
        row: Row = bson.decode(encoded, codec_options=CODEC)
        if "_id" not in row or isinstance(row["_id"], list | bson.Regex):
            raise ValueError("_id: one is needed that is no list and no pattern")
        return _spelled_row(row)

    @completed
    async def count_rows(self, owner_key: str, session_id: str) -> int:
        """How many rows a session has."""
        return int(await self._messages.count_documents(_of(owner_key, session_id)))

    async def rows(self, owner_key: str, session_id: str) -> AsyncGenerator[list[SpelledRow]]:
        """All rows of a session in the order of their `_id`s, in pages."""
        of_session = _of(owner_key, session_id)
        read = 0
        while page := await self._page({**of_session, **_FOREIGN}, read):
            yield [_spelled_row(row) for row in page]
            read += len(page)
        after = {"$type": "objectId"}
        while page := await self._page({**of_session, "_id": after}, 0):
            yield [_spelled_row(row) for row in page]
            after = {"$type": "objectId", "$gt": page[-1]["_id"]}

    @completed
    async def is_taken(self, owner_key: str, session_id: str, row_ids: Sequence[Any]) -> bool:
        """Whether a row of another session or owner has one of these `_id`s."""
        ids = [unspelled(row_id) for row_id in row_ids]
        query = {"_id": {"$in": ids}, "$nor": [_of(owner_key, session_id)]}
        return await self._messages.find_one(query, {"_id": 1}) is not None

    @completed
    async def recorded_in(self, owner_key: str, session_id: str, message_ids: Sequence[str]) -> str | None:
        """Another session of the owner in which a message with one of these `id`s is recorded."""
        # What the index has, and nothing else: rows that others wrote without an id do not stand in each other's way.
        ids = {"$in": list(message_ids), "$gt": ""}
        query = {"owner_key": {"$eq": owner_key}, "id": ids, "session_id": {"$ne": session_id}}
        row: Row | None = await self._messages.find_one(query, {"session_id": 1})
        return None if row is None else str(row.get("session_id"))

    @completed
    async def insert_rows(self, documents: Sequence[Row]) -> int:
        """Keep these, up to the first whose `_id` or `id` is taken. Returns how many were kept."""
        if not documents:
            return 0
        await self._prepared()
        try:
            await self._messages.insert_many([_unspelled_row(document) for document in documents])
        except BulkWriteError as error:
            faults = error.details.get("writeErrors") or [{}]
            if faults[0].get("code") != _DUPLICATE:
                raise
            return int(error.details["nInserted"])
        return len(documents)

    @completed
    async def delete_rows(self, owner_key: str, session_id: str) -> int:
        """Remove the rows of a session. Returns how many there were."""
        return int((await self._messages.delete_many(_of(owner_key, session_id))).deleted_count)

    @completed
    async def _page(self, query: Mapping[str, Any], skip: int) -> list[Row]:
        try:
            return await self._read(query, skip, STORED_IN_SESSION)
        except OperationFailure as error:
            if error.code != _NO_SUCH_INDEX:
                raise
            # Nobody has made it yet.
            return await self._read(query, skip, None)

    async def _read(self, query: Mapping[str, Any], skip: int, index: Sequence[tuple[str, int]] | None) -> list[Row]:
        # A negative limit: one batch, which is no larger than a large document however large the rows are.
        cursor = self._messages.find(query, hint=index).sort(_BY_ID).skip(skip).limit(-_PAGE)
        rows: list[Row] = await cursor.batch_size(_PAGE).to_list(_PAGE)
        return rows


def _spelled_row(row: Row) -> SpelledRow:
    return SpelledRow(id_text(row["_id"]), {name: spelled(value) for name, value in row.items()})


def _unspelled_row(document: Row) -> Row:
    return {name: unspelled(value) for name, value in document.items()}


def _of(owner_key: str, session_id: str) -> dict[str, Any]:
    return {"owner_key": {"$eq": owner_key}, "session_id": {"$eq": session_id}}
