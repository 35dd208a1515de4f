"""Pages of recorded messages in MongoDB, in the order of their moments (contract §2).

- MongoDB sorts values of one type before those of another, so rows whose `timestamp` is a text would come after all
  that have a date. Where there are such rows, which other programs write, they are read by themselves and merged here.
- Long contents are cut on the server, so that a page stays small however long its contents are.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from pymongo.errors import OperationFailure

from nexus.adapters.mongo.client import NO_SUCH_INDEX
from nexus.adapters.mongo.schema import NEWEST_FIRST, NO_TEXT_TIME, OLDEST_FIRST, TEXT_TIME, Order, id_of, id_text
from nexus.core.ports import Row
from nexus.services.history.agents import INTERNAL
from nexus.services.history.rows import LONG_AGO, parse_moment

HEADER: Final = dict.fromkeys(("id", "run_id", "owner_key", "session_id", "role", "timestamp"), 1)
# Of a row's metadata, what an excerpt needs.
_KEPT_METADATA: Final = ("tool_calls", INTERNAL)
# Errors of $substrCP and $strLenCP on a text that is not UTF-8.
_NOT_UTF8: Final = range(34450, 34474)
_IDS_AT_ONCE: Final = 500
# How long it may take until the first row with a text as timestamp is noticed.
_TEXT_TIMES_CHECKED_S: Final = 60


class Rows:
    """Reads pages of one collection of messages. A row that the server cannot cut or sort spoils none around it.

    Args:
        collection: of motor or of pymongo's asyncio client.
    """

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        self._text_times = False
        self._check_at = 0.0

    async def newest(
        self,
        query: Mapping[str, Any],
        *,
        limit: int,
        skip: int = 0,
        excerpt_chars: int | None = None,
        index: Order | None = None,
    ) -> list[Row]:
        """Up to `limit` rows after the newest `skip`, newest first; the rest as for `find`."""
        find = partial(self.find, excerpt_chars=excerpt_chars, index=index)
        if not await self._has_text_times():
            return await find(query, limit=limit, skip=skip)
        end = skip + limit
        dated = await find({**query, **NO_TEXT_TIME}, limit=end)
        texts = await find({**query, **TEXT_TIME}, limit=end)
        return newest_first([*dated, *texts])[skip:end]

    async def oldest(self, query: Mapping[str, Any], *, index: Order | None = None) -> Row | None:
        """The first row of all."""
        find = partial(self.find, index=index, order=OLDEST_FIRST, limit=1)
        if not await self._has_text_times():
            rows = await find(query)
        else:
            rows = newest_first([*await find({**query, **NO_TEXT_TIME}), *await find({**query, **TEXT_TIME})])
        return rows[-1] if rows else None

    async def find(
        self,
        query: Mapping[str, Any],
        *,
        limit: int,
        skip: int = 0,
        excerpt_chars: int | None = None,
        only: Mapping[str, Any] | None = None,
        index: Order | None = None,
        order: Order = NEWEST_FIRST,
    ) -> list[Row]:
        """Up to `limit` rows in the order in which the server sorts them, with texts as `_id`s.

        Args:
            query: which rows.
            limit: rows at most.
            skip: rows that are passed over.
            excerpt_chars: contents longer than twice this come without their middle.
            only: the projection, where there is no excerpt.
            index: the fields of the index to use, where it was made.
            order: the fields to sort by.
        """
        page = {"limit": limit, "skip": skip, "sort": [*order] or None, "hint": index}
        if excerpt_chars is not None:
            rows = await self._excerpts(query, excerpt_chars, page)
        else:
            rows = await self._page(query, only, page)
        for row in rows:
            row["_id"] = id_text(row["_id"])
        return rows

    async def of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """The rows of the owner with these `_id`s, in any order."""
        found: list[Row] = []
        for first in range(0, len(row_ids), _IDS_AT_ONCE):
            ids = [id_of(row_id) for row_id in row_ids[first : first + _IDS_AT_ONCE]]
            # In this order, unsorted and without a hint, every server looks up each `_id` by itself.
            query = {"_id": {"$in": ids}, "owner_key": {"$eq": owner_key}}
            found += await self.find(query, limit=len(ids), order=())
        return found

    async def _excerpts(self, query: Mapping[str, Any], chars: int, page: Mapping[str, Any]) -> list[Row]:
        try:
            return await self._page(query, excerpt(chars), page)
        except OperationFailure as error:
            if error.code not in _NOT_UTF8:
                raise
        # One by one, so that no more than one long content is held at a time.
        rows: list[Row] = []
        async for row in self._collection.find(query, **page).batch_size(1):
            content = row.get("content")
            if isinstance(content, str) and len(content) > 2 * chars:
                row["content"] = content[:chars] + content[len(content) - chars :]
            rows.append(row)
        return rows

    async def _page(
        self, query: Mapping[str, Any], projection: Mapping[str, Any] | None, page: Mapping[str, Any]
    ) -> list[Row]:
        try:
            # A batch that holds all of them, so that the server keeps no cursor.
            cursor = self._collection.find(query, projection, batch_size=page["limit"] + 1, **page)
            rows: list[Row] = await cursor.to_list(page["limit"])
        except OperationFailure as error:
            if not page["hint"] or error.code != NO_SUCH_INDEX:
                raise
            return await self._page(query, projection, {**page, "hint": None})
        return rows

    async def _has_text_times(self) -> bool:
        now = monotonic()
        if now >= self._check_at:
            self._text_times = await self._collection.find_one(TEXT_TIME, {"_id": 1}) is not None
            self._check_at = now + _TEXT_TIMES_CHECKED_S
        return self._text_times


def excerpt(chars: int) -> dict[str, Any]:
    """The projection that leaves the first and last `chars` code points of contents longer than twice as many."""
    length = {"$strLenCP": "$content"}
    ends = [{"$substrCP": ["$content", start, chars]} for start in (0, {"$subtract": [length, chars]})]
    shortened = {"$cond": [{"$gt": [length, 2 * chars]}, {"$concat": ends}, "$content"]}
    metadata = {name: f"$metadata.{name}" for name in _KEPT_METADATA}
    # The conditions stand outside because a length can only be asked of a text.
    return {
        **HEADER,
        "content": {"$cond": [{"$eq": [{"$type": "$content"}, "string"]}, shortened, "$content"]},
        "metadata": {"$cond": [{"$eq": [{"$type": "$metadata"}, "object"]}, metadata, "$metadata"]},
    }


def newest_first(rows: Iterable[Row]) -> list[Row]:
    """The rows by moment, whatever form their timestamps have; those without a readable one last."""
    return sorted(rows, key=lambda row: (parse_moment(row.get("timestamp")) or LONG_AGO, row["_id"]), reverse=True)
