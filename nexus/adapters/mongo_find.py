"""Finding rows in MongoDB with one command, past the drivers' cursors, which cost as much again (CONTRACT §2)."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from nexus.adapters.mongo_pipelines import NotPipelinedError, Pipelines
from nexus.adapters.mongo_replies import REPLIES, restored
from nexus.core.ports import Row

Order = Sequence[tuple[str, int]]

# No index has the fields of the hint.
_NO_SUCH_INDEX: Final = 2


class Page(NamedTuple):
    """Up to `limit` rows after the first `skip`, sorted by the fields of `order`."""

    limit: int
    skip: int = 0
    order: Order = ()


class Finds(ABC):
    """Finds rows in a collection.

    Args:
        collection: of motor or of pymongo's asyncio client.
    """

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        self._name: str = collection.name
        self._read_concern = collection.read_concern.document

    async def rows(
        self,
        query: Mapping[str, Any],
        page: Page,
        *,
        only: Mapping[str, Any] | None = None,
        index: Order | None = None,
    ) -> list[Row]:
        """A page of rows as they are stored.

        Args:
            query: which rows.
            page: which of them.
            only: the projection.
            index: the fields of the index to use, once it is made.
        """
        rows = await _unless_failed(self.at_once(query, page, only=only, index=index))
        if rows is None:
            return await self._by_cursor(query, page, only, index)
        found: list[Row] = restored(rows)
        return found

    async def at_once(
        self,
        query: Mapping[str, Any],
        page: Page,
        *,
        only: Mapping[str, Any] | None = None,
        index: Order | None = None,
    ) -> list[Row] | None:
        """What `rows` gives, but not restored, if one reply holds it; else None. Nothing is repeated."""
        # One batch holds all, so that the server keeps no cursor.
        command = {"find": self._name, "filter": query, "limit": page.limit, "batchSize": page.limit + 1}
        if page.order:
            command["sort"] = dict(page.order)
        if page.skip:
            command["skip"] = page.skip
        if only:
            command["projection"] = only
        if index:
            command["hint"] = dict(index)
        return await self._first_batch(command)

    async def first_of_each(
        self, queries: Sequence[Mapping[str, Any]], order: Order, *, only: Mapping[str, Any]
    ) -> list[Row]:
        """The first row of each query, in the order of the queries; those of queries without any are left out.

        Args:
            queries: which rows.
            order: which of them is the first; what one index serves.
            only: the projection.
        """
        rows = await _unless_failed(self._firsts_at_once(queries, order, only)) if len(queries) > 1 else None
        if rows is None:
            page = Page(1, order=order)
            found = [await self.rows(query, page, only=only) for query in queries]
            rows = [row for first in found for row in first]
        return rows

    async def _firsts_at_once(
        self, queries: Sequence[Mapping[str, Any]], order: Order, only: Mapping[str, Any]
    ) -> list[Row] | None:
        """What `first_of_each` gives, if one reply holds it; else None. Nothing is repeated."""
        shown = [{"$sort": dict(order)}, {"$limit": 1}, {"$project": only}]
        first, *others = ([{"$match": query}, *shown] for query in queries)
        unions = [{"$unionWith": {"coll": self._name, "pipeline": pipeline}} for pipeline in others]
        command = {"aggregate": self._name, "pipeline": [*first, *unions], "cursor": {"batchSize": len(queries) + 1}}
        rows: list[Row] | None = restored(await self._first_batch(command))
        return rows

    async def _first_batch(self, command: dict[str, Any]) -> list[Row] | None:
        """What the command finds, not restored, if its first reply holds all; else None."""
        if self._read_concern:
            command["readConcern"] = self._read_concern
        cursor = (await self._run(command))["cursor"]
        if cursor["id"]:
            with suppress(PyMongoError, NotPipelinedError):
                await self._run({"killCursors": self._name, "cursors": [cursor["id"]]})
            return None
        rows: list[Row] = cursor["firstBatch"]
        return rows

    @abstractmethod
    async def _run(self, command: dict[str, Any]) -> Mapping[str, Any]:
        """The reply to a command."""

    @abstractmethod
    async def _by_cursor(
        self, query: Mapping[str, Any], page: Page, only: Mapping[str, Any] | None, index: Order | None
    ) -> list[Row]:
        """What `rows` gives."""


class DriverFinds(Finds):
    """Asks the collection's own driver, which repeats what failed where it may be repeated."""

    async def _run(self, command: dict[str, Any]) -> Mapping[str, Any]:
        collection = self._collection
        reply: Mapping[str, Any] = await collection.database.command(
            command, read_preference=collection.read_preference, codec_options=REPLIES
        )
        return reply

    async def _by_cursor(
        self, query: Mapping[str, Any], page: Page, only: Mapping[str, Any] | None, index: Order | None
    ) -> list[Row]:
        try:
            cursor = self._collection.find(query, only, hint=index).skip(page.skip).limit(page.limit)
            if page.order:
                cursor = cursor.sort(page.order)
            found: list[Row] = await cursor.batch_size(page.limit + 1).to_list(page.limit)
        except OperationFailure as error:
            if not index or error.code != _NO_SUCH_INDEX:
                raise
            # Nobody has made it yet.
            return await self.rows(query, page, only=only)
        return found


class FindsAside(DriverFinds):
    """Asks past the driver where that can be done, and else the driver. For what is soon found, of much at once.

    Args:
        collection: as for others.
        pipelines: on which it is asked.
    """

    def __init__(self, collection: Any, pipelines: Pipelines) -> None:
        super().__init__(collection)
        self._pipelines = pipelines

    async def _run(self, command: dict[str, Any]) -> Mapping[str, Any]:
        try:
            return await self._pipelines.run(self._collection.database.name, command, REPLIES)
        except NotPipelinedError:
            return await super()._run(command)


class PipelinedFinds(Finds):
    """Asks past the driver, for who waits. Raises NotPipelinedError where the driver has to be asked.

    Args:
        collection: as for others.
        pipelines: on which it is asked.
    """

    def __init__(self, collection: Any, pipelines: Pipelines) -> None:
        super().__init__(collection)
        self._pipelines = pipelines
        self._database: str = collection.database.name

    async def _run(self, command: dict[str, Any]) -> Mapping[str, Any]:
        self._pipelines.passing.read()
        return await self._pipelines.run(self._database, command, REPLIES)

    async def _by_cursor(self, *_: object) -> list[Row]:
        raise NotPipelinedError


async def _unless_failed(rows: Awaitable[list[Row] | None]) -> list[Row] | None:
    """The rows; None where there are more than one reply holds, or something failed that may be repeated."""
    try:
        return await rows
    except (OperationFailure, ConnectionFailure) as error:
        if error.timeout:
            raise
        return None
