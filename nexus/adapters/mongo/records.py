"""Records of builds in MongoDB (contract §13): `context_records`, and the pieces of their answers in `context_pieces`.

Both have `expires_at`, after which MongoDB removes them by itself (an index with a time to live).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any, Final

from pymongo import DESCENDING
from pymongo.errors import BulkWriteError

from nexus.adapters.mongo.client import (
    DUPLICATE_KEY,
    Calls,
    Operations,
    driver_call,
    insert_call,
    insert_until_duplicate,
    read_one,
    read_page,
)
from nexus.core.models import Row
from nexus.core.records import BuildRecord

_NEWEST_FIRST: Final = [("answered_at", DESCENDING), ("request_id", DESCENDING)]
_FIELDS: Final = {"_id": 0, **{field.name: 1 for field in fields(BuildRecord)}}
# A piece is kept for so much longer than asked for: builds that show it again within that time write nothing.
_LONGER: Final = timedelta(days=1)


class MongoRecords(Operations):
    """`nexus.core.ports.RecordStore` on two collections of a database; see `MongoMessages`."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._records = database["context_records"]
        self._pieces = database["context_pieces"]

    @insert_call
    async def missing_pieces(self, owner_key: str, pieces: Sequence[bytes], until: datetime) -> set[bytes]:
        """Those of these pieces that are not there."""
        query = {"owner_key": {"$eq": owner_key}, "piece": {"$in": [*pieces]}}
        found: list[Row] = await self._pieces.find(query, {"_id": 1, "piece": 1, "expires_at": 1}).to_list(None)
        if old := [row["_id"] for row in found if row["expires_at"] < until]:
            await self._pieces.update_many({"_id": {"$in": old}}, {"$set": {"expires_at": until + _LONGER}})
        return {*pieces}.difference(row["piece"] for row in found)

    @insert_call
    async def put_pieces(self, owner_key: str, pieces: Mapping[bytes, bytes], until: datetime) -> None:
        """Keep pieces that are not there yet."""
        rows = [
            {"owner_key": owner_key, "piece": piece, "data": data, "expires_at": until + _LONGER}
            for piece, data in pieces.items()
        ]
        try:
            if rows:
                await self._pieces.insert_many(rows, ordered=False)
        except BulkWriteError as error:
            faults = [*error.details["writeErrors"], *error.details["writeConcernErrors"]]
            if any(fault.get("code") != DUPLICATE_KEY for fault in faults):
                raise

    @insert_call
    async def put_record(self, record: BuildRecord, until: datetime) -> bool:
        """Keep a record, unless there is one of that request."""
        return await insert_until_duplicate(self._records, [_document(record, until)]) == 1

    @driver_call
    async def find_record(self, owner_key: str, request_id: str) -> BuildRecord | None:
        """The record of a request."""
        query = {"owner_key": {"$eq": owner_key}, "request_id": {"$eq": request_id}}
        row = await read_one(self._records, query, _FIELDS)
        return _record(row) if row else None

    @driver_call
    async def records(
        self, owner_key: str, *, session_id: str | None = None, before: BuildRecord | None = None, limit: int
    ) -> list[BuildRecord]:
        """Up to `limit` records of an owner, newest first."""
        query: Row = {"owner_key": {"$eq": owner_key}, **_older(before)}
        if session_id is not None:
            query["session_id"] = {"$eq": session_id}
        return [*map(_record, await read_page(self._records, query, _FIELDS, _NEWEST_FIRST, limit))]

    @driver_call
    async def failures(
        self, *, owner_key: str | None = None, before: BuildRecord | None = None, limit: int
    ) -> list[BuildRecord]:
        """Up to `limit` records of errors, newest first."""
        query: Row = {"is_failure": True, **_older(before)}
        if owner_key is not None:
            query["owner_key"] = {"$eq": owner_key}
        return [*map(_record, await read_page(self._records, query, _FIELDS, _NEWEST_FIRST, limit))]

    @driver_call
    async def pieces(self, owner_key: str, pieces: Sequence[bytes]) -> dict[bytes, bytes]:
        """By id, these pieces."""
        query = {"owner_key": {"$eq": owner_key}, "piece": {"$in": [*pieces]}}
        found: list[Row] = await self._pieces.find(query, {"_id": 0, "piece": 1, "data": 1}).to_list(None)
        return {row["piece"]: row["data"] for row in found}


def _older(record: BuildRecord | None) -> Row:
    if record is None:
        return {}
    at = record.answered_at
    same_time = {"answered_at": at, "request_id": {"$lt": record.request_id}}
    return {"answered_at": {"$lte": at}, "$or": [{"answered_at": {"$lt": at}}, same_time]}


def _record(row: Row) -> BuildRecord:
    return BuildRecord(**{**row, "pieces": tuple(row["pieces"])})


def _document(record: BuildRecord, until: datetime) -> Row:
    # No condition of a partial index can say "not".
    failure = {} if record.outcome == "success" else {"is_failure": True}
    return {**asdict(record), **failure, "expires_at": until}
