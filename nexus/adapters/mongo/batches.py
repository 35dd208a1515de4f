"""Documents that are read, counted and deleted some at a time, each batch in a call of its own."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
from pymongo.errors import ExecutionTimeout, NetworkTimeout

from nexus.adapters.mongo.client import Operations
from nexus.core.ports import Row

AT_ONCE: Final = 500
_CLOSING_S: Final = 1.0


class TooSlowError(Exception):
    """Counting took longer than an operation may."""


async def counted(operations: Operations, collection: Any, query: Row) -> int:
    """How many documents there are; TooSlowError where that takes too long."""

    async def count() -> int | None:
        try:
            return int(await collection.count_documents(query))
        except (ExecutionTimeout, NetworkTimeout):
            return None

    found = await operations.calls.run(count)
    if found is None:
        raise TooSlowError
    return found


async def delete(operations: Operations, collection: Any, ids: Sequence[Any], where: Row | None = None) -> int:
    """Delete documents by their `_id`, those that are still as `where` says. Returns how many went."""

    async def call() -> int:
        return int((await collection.delete_many({"_id": {"$in": [*ids]}, **(where or {})})).deleted_count)

    return await operations.calls.run(call) if ids else 0


async def delete_all(operations: Operations, collection: Any, query: Row) -> AsyncGenerator[int]:
    """Delete documents; how many went with each batch."""
    async with aclosing(pages(operations, collection, query, {"_id": 1})) as found:
        async for page in found:
            yield await delete(operations, collection, [row["_id"] for row in page])


async def pages(
    operations: Operations, collection: Any, query: Row, projection: Row | None, at_once: int = AT_ONCE
) -> AsyncGenerator[list[Any]]:
    """The documents, some at a time; each page is a call of its own."""
    cursor = collection.find(query, projection, batch_size=at_once)

    async def read() -> list[Any]:
        page: list[Any] = await cursor.to_list(at_once)
        return page

    try:
        while page := await operations.calls.run(read):
            yield page
    finally:
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await cursor.close()
