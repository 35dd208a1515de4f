"""The first row of each of many queries with one command: sessions that are served together are read together."""

from collections.abc import Mapping, Sequence
from typing import Any

from pymongo.errors import ConnectionFailure, OperationFailure

from nexus.adapters.mongo_find import DriverFinds, Order, Page
from nexus.core.ports import Row


async def first_of_each(
    collection: Any, queries: Sequence[Mapping[str, Any]], order: Order, *, only: Mapping[str, Any]
) -> list[Row]:
    """The first row of each query, in the order of the queries; those of queries without any are left out.

    Args:
        collection: of motor or of pymongo's asyncio client.
        queries: which rows.
        order: which of them is the first; what one index serves.
        only: the projection.
    """
    finds = DriverFinds(collection)
    rows: list[Row] | None = None
    if len(queries) > 1:
        try:
            rows = await finds.first_of_each(queries, order, only=only)
        except (OperationFailure, ConnectionFailure) as error:
            if error.timeout:
                raise
    if rows is None:
        # Something failed, or there is more than one reply holds. Single reads are repeated by the drivers.
        page = Page(1, 0, order)
        found = [await finds.rows(query, page, only=only) for query in queries]
        rows = [row for first in found for row in first]
    return rows
