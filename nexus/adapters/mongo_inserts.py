"""Writing recorded messages to MongoDB, many at once, each of which fares by itself (CONTRACT §2)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pymongo.errors import BulkWriteError, DuplicateKeyError

from nexus.adapters.mongo_bulk import Bulk
from nexus.adapters.mongo_calls import is_unacceptable
from nexus.adapters.mongo_ids import id_of
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.ports import Row

_DUPLICATE: Final = 11000

_Fate = bool | StoreRejectedError | StoreUnavailableError


async def insert_row(collection: Any, row: Row) -> bool:
    """Record a row. False when its owner has a row with that `id`."""
    try:
        await collection.insert_one(_document(row))
    except DuplicateKeyError:
        return False
    return True


async def insert_rows(collection: Any, rows: Sequence[Row], bulk: Bulk) -> list[_Fate]:
    """Record rows. Of each what `insert_row` returns or, translated, raises.

    Args:
        collection: of motor or of pymongo's asyncio client.
        rows: which.
        bulk: inserts several into it.

    Raises:
        PyMongoError: nobody knows which of them were recorded; of a single row, what is wrong with it.
    """
    if len(rows) == 1:
        # It costs less by itself.
        return [await insert_row(collection, rows[0])]
    fates: list[_Fate] = [True] * len(rows)
    try:
        await bulk.insert_many([_document(row) for row in rows], ordered=False)
    except BulkWriteError as error:
        if error.details.get("writeConcernErrors"):
            raise
        for fault in error.details["writeErrors"]:
            fates[fault["index"]] = _fate_of(fault)
    return fates


def _fate_of(fault: Mapping[str, Any]) -> _Fate:
    code = fault.get("code")
    if code == _DUPLICATE:
        return False
    return (StoreRejectedError if is_unacceptable(code) else StoreUnavailableError)(f"WriteError {code}")


def _document(row: Row) -> Row:
    return {**row, "_id": id_of(row["_id"])} if "_id" in row else dict(row)
