"""Recorded rows of MongoDB in the order of their moments, whatever form their timestamps have (CONTRACT §2)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio
from pymongo.errors import OperationFailure

from nexus.adapters.mongo_ids import id_of, id_text
from nexus.adapters.mongo_schema import (
    NEWEST_FIRST,
    NO_TEXT_TIME,
    OLDEST_FIRST,
    TEXT_TIME,
    cut,
    excerpt,
    newest_first,
)
from nexus.core.ports import Row

_Order = Sequence[tuple[str, int]]

# What $substrCP and $strLenCP say of a text that is not UTF-8.
_NOT_UTF8: Final = range(34450, 34474)
# No index has the fields of the hint.
_NO_SUCH_INDEX: Final = 2
_IDS_AT_ONCE: Final = 500
# Rows with text timestamps come from other writers; how long it may take until the first of them is noticed.
_LOOKED_AGAIN_S: Final = 60


class MongoMessages:
    """Reads the rows of one collection. One row that the server cannot cut or sort spoils none around it."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages
        self._text_times = False
        self._look_again_at = 0.0

    async def newest(
        self,
        query: Mapping[str, Any],
        *,
        limit: int,
        skip: int = 0,
        excerpt_chars: int | None = None,
        index: _Order | None = None,
    ) -> list[Row]:
        """Up to `limit` rows after the newest `skip`, newest first.

        Args:
            query: which rows.
            limit: rows at most.
            skip: rows that are passed over.
            excerpt_chars: contents longer than twice this come without their middle.
            index: the fields of the index to use, once it is made.
        """
        find = partial(self.find, excerpt_chars=excerpt_chars, index=index)
        if not await self._has_text_times():
            return await find(query, limit=limit, skip=skip)
        end = skip + limit
        dated = await find({**query, **NO_TEXT_TIME}, limit=end)
        texts = await find({**query, **TEXT_TIME}, limit=end)
        return newest_first([*dated, *texts])[skip:end]

    async def oldest(self, query: Mapping[str, Any], *, index: _Order | None = None) -> Row | None:
        """The first row of all."""
        find = partial(self.find, index=index, order=OLDEST_FIRST, limit=1)
        if not await self._has_text_times():
            rows = await find(query)
        else:
            rows = newest_first([*await find({**query, **NO_TEXT_TIME}), *await find({**query, **TEXT_TIME})])
        return rows[-1] if rows else None

    async def _has_text_times(self) -> bool:
        now = anyio.current_time()
        if now >= self._look_again_at:
            self._text_times = await self._messages.find_one(TEXT_TIME, {"_id": 1}) is not None
            self._look_again_at = now + _LOOKED_AGAIN_S
        return self._text_times

    async def find(
        self,
        query: Mapping[str, Any],
        *,
        limit: int,
        skip: int = 0,
        excerpt_chars: int | None = None,
        only: Mapping[str, Any] | None = None,
        index: _Order | None = None,
        order: _Order = NEWEST_FIRST,
    ) -> list[Row]:
        """Up to `limit` rows in the order in which the server sorts them; the rest as for `newest`.

        Args:
            query: which rows.
            limit: rows at most.
            skip: rows that are passed over.
            excerpt_chars: contents longer than twice this come without their middle.
            only: the projection, where there is no excerpt.
            index: the fields of the index to use, once it is made.
            order: the fields to sort by.
        """
        projection = only if excerpt_chars is None else excerpt(excerpt_chars)
        cursor = self._messages.find(query, projection, hint=index).sort(order).skip(skip).limit(limit)
        try:
            # One batch holds all, so that there is no second round trip.
            rows: list[Row] = await cursor.batch_size(limit + 1).to_list(limit)
        except OperationFailure as error:
            again = partial(self.find, query, limit=limit, skip=skip, order=order)
            if index and error.code == _NO_SUCH_INDEX:
                # Nobody has made it yet.
                return await again(excerpt_chars=excerpt_chars, only=only)
            if excerpt_chars is None or error.code not in _NOT_UTF8:
                raise
            return [cut(row, excerpt_chars) for row in await again()]
        return [{**row, "_id": id_text(row["_id"])} for row in rows]

    async def of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """The rows of the owner with these `_id`s, in any order."""
        found: list[Row] = []
        for first in range(0, len(row_ids), _IDS_AT_ONCE):
            ids = [id_of(row_id) for row_id in row_ids[first : first + _IDS_AT_ONCE]]
            # In this order and with no hint: every server then looks up each `_id` by itself.
            found += await self._messages.find({"_id": {"$in": ids}, "owner_key": {"$eq": owner_key}}).to_list(None)
        return [{**row, "_id": id_text(row["_id"])} for row in found]
