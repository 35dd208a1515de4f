"""Records of builds in MongoDB (contract §13): `context_records`, and the pieces of their answers in `context_pieces`.

Both have `expires_at`, after which MongoDB removes them by itself (an index with a time to live). Pieces are kept as
they are: MongoDB compresses what it writes, many small ones together, better than each can be by itself.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pymongo import DESCENDING, ReplaceOne, UpdateOne

from nexus.adapters.mongo.client import Calls, Operations, driver_call, insert_call
from nexus.adapters.mongo.documents import ONLY_ID, Documents
from nexus.adapters.mongo.schema import of_owner
from nexus.adapters.mongo.versions import FIELD, NOT_NEWER, written
from nexus.core.errors import StoreUnavailableError
from nexus.core.models import Row
from nexus.core.records import ID_BYTES, BuildRecord, Piece
from nexus.core.wire import explain

_NEWEST_FIRST: Final = [("answered_at", DESCENDING), ("request_id", DESCENDING)]
_FIELDS: Final = {"_id": 0, **{field.name: 1 for field in fields(BuildRecord)}, FIELD: 1}
_RECORD: Final = TypeAdapter(BuildRecord)
# A piece is kept for so much longer than asked for: builds that show it again within that time write nothing.
_LONGER: Final = timedelta(days=1)


class MongoRecords(Operations):
    """`nexus.core.ports.RecordStore` on two collections of a database; see `MongoMessages`."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._records = Documents(database["context_records"])
        self._pieces = Documents(database["context_pieces"])

    @insert_call
    async def missing_pieces(self, pieces: Collection[bytes], until: datetime) -> set[bytes]:
        """Those of these ids whose pieces are not there so long."""
        query = {"_id": {"$in": [*pieces]}, "expires_at": {"$gte": until}}
        # In one batch.
        found = await self._pieces.read_all(query, ONLY_ID, batch=len(pieces) + 1)
        return {*pieces}.difference(row["_id"] for row in found)

    @insert_call
    async def put_pieces(self, pieces: Collection[Piece], until: datetime) -> None:
        """Keep pieces until then, at least."""
        time = {"$max": {"expires_at": until + _LONGER}}
        await self._pieces.write_all(
            [UpdateOne({"_id": each.id}, {"$setOnInsert": _new(each), **time}, upsert=True) for each in pieces]
        )

    @insert_call
    async def put_records(self, records: Collection[BuildRecord], until: datetime) -> None:
        """Keep records until then, each instead of one of an error of the same request."""
        await self._records.write_all(
            [ReplaceOne(_failure_of(each), _document(each, until), upsert=True) for each in records]
        )

    @driver_call
    async def find_record(self, owner_key: str, request_id: str) -> BuildRecord | None:
        """The record of a request."""
        query = {**of_owner(owner_key), "request_id": {"$eq": request_id}}
        row = await self._records.read_one(query, _FIELDS)
        return _record(row) if row else None

    @driver_call
    async def records(
        self, owner_key: str, *, session_id: str | None = None, before: BuildRecord | None = None, limit: int
    ) -> list[BuildRecord]:
        """Up to `limit` records of an owner, newest first."""
        query: Row = {**of_owner(owner_key), **_older(before)}
        if session_id is not None:
            query["session_id"] = {"$eq": session_id}
        return [*map(_record, await self._records.read_page(query, _FIELDS, _NEWEST_FIRST, limit))]

    @driver_call
    async def failures(
        self, *, owner_key: str | None = None, before: BuildRecord | None = None, limit: int
    ) -> list[BuildRecord]:
        """Up to `limit` records of errors, newest first."""
        query: Row = {"is_failure": True, **_older(before)}
        if owner_key is not None:
            query["owner_key"] = {"$eq": owner_key}
        return [*map(_record, await self._records.read_page(query, _FIELDS, _NEWEST_FIRST, limit))]

    @driver_call
    async def pieces(self, owner_key: str, pieces: Sequence[bytes]) -> dict[bytes, bytes]:
        """By id, these pieces."""
        query = {"_id": {"$in": [*pieces]}, **of_owner(owner_key)}
        return {row["_id"]: row["data"] for row in await self._pieces.read_all(query, {"data": 1})}


def _older(record: BuildRecord | None) -> Row:
    if record is None:
        return {}
    at = record.answered_at
    same_time = {"answered_at": at, "request_id": {"$lt": record.request_id}}
    return {"answered_at": {"$lte": at}, "$or": [{"answered_at": {"$lt": at}}, same_time]}


def _failure_of(record: BuildRecord) -> Row:
    return {"owner_key": record.owner_key, "request_id": record.request_id, "is_failure": True, **NOT_NEWER}


def _new(piece: Piece) -> Row:
    return {"owner_key": piece.owner_key, "data": piece.data}


def _record(row: Row) -> BuildRecord:
    ids = row.get("pieces")
    if isinstance(ids, bytes):
        ids = tuple(ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES))
    try:
        return _RECORD.validate_python({**row, "pieces": ids})
    except ValidationError as error:
        name = f"the record of the request {row.get('request_id')!r} of {row.get('owner_key')!r}"
        raise StoreUnavailableError(f"{name} in context_records cannot be read: {explain(error)}") from None


def _document(record: BuildRecord, until: datetime) -> Row:
    # No condition of a partial index can say "not".
    failure = {} if record.outcome == "success" else {"is_failure": True}
    return written({**asdict(record), **failure, "pieces": b"".join(record.pieces), "expires_at": until})
