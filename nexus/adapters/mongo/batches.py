"""Documents that are read, counted and deleted some at a time, each batch in a call of its own."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from nexus.adapters.mongo.client import Operations
from nexus.adapters.mongo.documents import ONLY_ID, Documents
from nexus.core.ports import Row

_Item = TypeVar("_Item")

AT_ONCE: Final = 500
_CLOSING_S: Final = 1.0


def chunks(items: Sequence[_Item], size: int = AT_ONCE) -> Iterator[Sequence[_Item]]:
    """The items, so many at a time."""
    return (items[first : first + size] for first in range(0, len(items), size))


class TooSlowError(Exception):
    """Counting took longer than an operation may."""


async def counted(operations: Operations, documents: Documents, query: Row) -> int:
    """How many documents there are; TooSlowError where that takes too long."""
    found = await operations.calls.run(partial(documents.count, query))
    if found is None:
        raise TooSlowError
    return found


async def delete(operations: Operations, documents: Documents, ids: Sequence[Any], where: Row | None = None) -> int:
    """Delete documents by their `_id`, those that are still as `where` says, whichever release wrote them.

    Returns how many went.
    """

    async def call() -> int:
        query = {"_id": {"$in": [*ids]}, **(where or {})}
        return int((await documents.collection.delete_many(query)).deleted_count)

    return await operations.calls.run(call) if ids else 0


async def delete_all(operations: Operations, documents: Documents, query: Row) -> AsyncGenerator[int]:
    """Delete documents; how many went with each batch."""
    async with aclosing(pages(operations, documents, query, ONLY_ID)) as found:
        async for page in found:
            yield await delete(operations, documents, [row["_id"] for row in page])


async def pages(
    operations: Operations, documents: Documents, query: Row, projection: Row | None, at_once: int = AT_ONCE
) -> AsyncGenerator[list[Any]]:
    """The documents, some at a time; each page is a call of its own."""
    cursor = documents.collection.find(query, projection, batch_size=at_once)

    async def read() -> list[Any]:
        page: list[Any] = await cursor.to_list(at_once)
        return page

    try:
        while page := await operations.calls.run(read):
            yield page
    finally:
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await cursor.close()
