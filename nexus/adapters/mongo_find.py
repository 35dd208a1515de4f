"""Finding rows in MongoDB with one command, past the drivers' cursors, which cost as much again (CONTRACT §2)."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from nexus.adapters.mongo_replies import REPLIES, restored
from nexus.core.ports import Row

Order = Sequence[tuple[str, int]]

# No index has the fields of the hint.
_NO_SUCH_INDEX: Final = 2


class Page(NamedTuple):
    """Up to `limit` rows after the first `skip`, sorted by the fields of `order`."""

    limit: int
    skip: int
    order: Order


async def find_rows(
    collection: Any,
    query: Mapping[str, Any],
    page: Page,
    *,
    only: Mapping[str, Any] | None = None,
    index: Order | None = None,
) -> list[Row]:
    """A page of rows as they are stored.

    Args:
        collection: of motor or of pymongo's asyncio client.
        query: which rows.
        page: which of them.
        only: the projection.
        index: the fields of the index to use, once it is made.
    """
    rows: list[Row] | None = None
    try:
        rows = await find_at_once(collection, query, page, only=only, index=index)
    except (OperationFailure, ConnectionFailure) as error:
        if error.timeout:
            raise
    if rows is not None:
        return rows
    # There are more than one reply holds, or something failed. A cursor knows how to go on and what may be repeated.
    try:
        cursor = collection.find(query, only, hint=index).sort(page.order).skip(page.skip).limit(page.limit)
        found: list[Row] = await cursor.batch_size(page.limit + 1).to_list(page.limit)
    except OperationFailure as error:
        if not index or error.code != _NO_SUCH_INDEX:
            raise
        # Nobody has made it yet.
        return await find_rows(collection, query, page, only=only)
    return found


async def find_at_once(
    collection: Any,
    query: Mapping[str, Any],
    page: Page,
    *,
    only: Mapping[str, Any] | None = None,
    index: Order | None = None,
) -> list[Row] | None:
    """What `find_rows` gives, if one reply holds it; else None. Nothing is repeated."""
    command: dict[str, Any] = {"find": collection.name, "filter": query, "sort": dict(page.order), "limit": page.limit}
    # One batch holds all, so that the server keeps no cursor.
    command["batchSize"] = page.limit + 1
    if page.skip:
        command["skip"] = page.skip
    if only:
        command["projection"] = only
    if index:
        command["hint"] = dict(index)
    return await _first_batch(collection, command)


async def _first_batch(collection: Any, command: dict[str, Any]) -> list[Row] | None:
    """What the command finds, if its first reply holds all; else None."""
    if collection.read_concern.level:
        command["readConcern"] = collection.read_concern.document
    database, preference = collection.database, collection.read_preference
    reply = await database.command(command, read_preference=preference, codec_options=REPLIES)
    cursor = reply["cursor"]
    if cursor["id"]:
        with suppress(PyMongoError):
            kill = {"killCursors": collection.name, "cursors": [cursor["id"]]}
            await database.command(kill, read_preference=preference)
        return None
    rows: list[Row] = restored(cursor["firstBatch"])
    return rows


async def find_several(
    collection: Any,
    queries: Sequence[tuple[Mapping[str, Any], int]],
    order: Order,
    *,
    only: Mapping[str, Any] | None = None,
) -> list[Row] | None:
    """What several queries find, one after another, if one reply holds all of it; else None. Nothing is repeated.

    Args:
        collection: of motor or of pymongo's asyncio client.
        queries: which rows, and how many of each at most.
        order: which of them are the first of a query; what one index serves.
        only: the projection.
    """
    shown = [{"$project": only}] if only else []
    sort = {"$sort": dict(order)}
    first, *others = ([{"$match": query}, sort, {"$limit": limit}, *shown] for query, limit in queries)
    unions = [{"$unionWith": {"coll": collection.name, "pipeline": pipeline}} for pipeline in others]
    # One batch holds all, so that the server keeps no cursor.
    command: dict[str, Any] = {"aggregate": collection.name, "pipeline": [*first, *unions]}
    command["cursor"] = {"batchSize": sum(limit for _, limit in queries) + 1}
    return await _first_batch(collection, command)
