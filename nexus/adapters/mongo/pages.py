"""Pages of recorded messages in MongoDB: their order, their size, and the tail of a session.

- MongoDB sorts values of one type before those of another, so rows of other programs whose `timestamp` is a text are
  read by themselves and merged here.
- Long contents of rows that are larger than `_LARGEST_SMALL` are cut on the server (`projections`, decision 30).
- A tail is read by an index that has a session's rows in stored order. Where many rows are left out of it, their
  `_id`s are compared here: some servers need the product of both numbers for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import merge
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from bson import ObjectId
from pymongo import DESCENDING
from pymongo.errors import OperationFailure

from nexus.adapters.mongo.batches import chunks
from nexus.adapters.mongo.documents import BY_ID, ONLY_ID, Documents, Order
from nexus.adapters.mongo.projections import BOUNDED, SHOWN, SMALL, View, if_small, projection
from nexus.adapters.mongo.schema import (
    INTERNAL_IN_SESSION,
    NEWEST_FIRST,
    NO_TEXT_TIME,
    NOT_INTERNAL,
    OLDEST_FIRST,
    STORED_IN_SESSION,
    TEXT_TIME,
    id_of,
    id_text,
    internal_to,
    newest_first,
    newest_order,
    of_owner,
    rows_of_session,
    seen_by,
    with_text_id,
)
from nexus.core.models import is_object_id
from nexus.core.ports import Row
from nexus.core.working_memory import Tail

LAST_STORED_FIRST: Final = [("_id", DESCENDING)]
# Errors of $substrCP and $strLenCP on a text that is not UTF-8.
_NOT_UTF8: Final = range(34450, 34474)
# How long it may take until the first row with a text as timestamp is noticed.
_TEXT_TIMES_CHECKED_S: Final = 60
# Of a second, the first `_id`.
_FIRST_OF_SECOND: Final = "0" * 16
# So many rows the server may leave out by itself.
_FEW: Final = 16
_STORED_AT_ONCE: Final = 1_000
# Bytes of a row that comes whole, and of all that may come so.
_LARGEST_SMALL: Final = 1 << 14
_LARGEST_PAGE: Final = 1 << 24


class Rows:
    """Reads pages of one collection of messages. A row that the server cannot cut or sort spoils none around it."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._text_times = False
        self._check_at = 0.0

    async def newest(
        self,
        query: Mapping[str, Any],
        *,
        limit: int,
        skip: int = 0,
        before: Row | None = None,
        view: View = BOUNDED,
        index: Order | None = None,
    ) -> list[Row]:
        """Up to `limit` rows after the newest `skip` or behind the row `before`, newest first; else as for `find`."""
        find = partial(self.find, view=view, index=index)
        if not await self._has_text_times():
            return await find({**query, **(_behind(before) if before else {})}, limit=limit, skip=skip)
        end = skip + limit
        while True:
            dated = await find({**query, **NO_TEXT_TIME}, limit=end)
            texts = await find({**query, **TEXT_TIME}, limit=end)
            found = newest_first([*dated, *texts])
            rows = [row for row in found[:end] if before is None or newest_order(row) < newest_order(before)][skip:]
            # The server cannot tell where `before` stands among times of both kinds.
            if before is None or len(rows) >= limit or max(len(dated), len(texts)) < end:
                return rows[:limit]
            end *= 2

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
        view: View = BOUNDED,
        beside: Mapping[str, Any] = MappingProxyType({}),
        index: Order | None = None,
        order: Order = NEWEST_FIRST,
    ) -> list[Row]:
        """Up to `limit` rows in the order in which the server sorts them, with texts as `_id`s.

        `beside` is a projection of further fields. The index with the fields `index` is used, where it was made.
        """
        small = if_small(min(_LARGEST_SMALL, _LARGEST_PAGE // max(limit, 1)))
        page = await self._documents.read_page(query, {**small, **beside}, order or None, limit, skip=skip, index=index)
        ids = [row["_id"] for row in page if SMALL not in row]
        large = await self._large(ids, view)
        if len(large) < len(ids):
            # One was erased meanwhile, or its `_id` is decoded as another. A page of fewer rows would be the last.
            page = await self._documents.read_page(
                query, {**projection(view), **beside}, order or None, limit, skip=skip, index=index
            )
            return [with_text_id(row) for row in page]
        rows: list[Row] = []
        for row in page:
            row_id = id_text(row["_id"])
            found = view.cut(row.pop(SMALL)) if SMALL in row else large[row_id]
            rows.append({**found, **row, "_id": row_id})
        return rows

    async def of_ids(self, owner_key: str, row_ids: Sequence[str], *, view: View = BOUNDED) -> list[Row]:
        """The rows of the owner with these `_id`s, in any order."""
        found: list[Row] = []
        for ids in chunks([*map(id_of, row_ids)]):
            # In this order, unsorted and without a hint, every server looks up each `_id` by itself.
            query = {"_id": {"$in": ids}, **of_owner(owner_key)}
            found += await self.find(query, limit=len(ids), view=view, order=())
        return found

    async def ids(self, query: Mapping[str, Any], *, limit: int, index: Order, order: Order) -> list[Any]:
        """The `_id`s alone of up to `limit` rows."""
        page = await self._documents.read_page(query, ONLY_ID, order, limit, index=index)
        return [row["_id"] for row in page]

    async def _large(self, ids: Sequence[Any], view: View) -> dict[str, Row]:
        """By the text of their `_id`, those of these rows that are still there."""
        rows: list[Row] = []
        for some in chunks(ids):
            query = {"_id": {"$in": [*some]}}
            try:
                rows += await self._documents.read_page(query, projection(view), None, len(some))
            except OperationFailure as error:
                if error.code not in _NOT_UTF8:
                    raise
                rows += await self._cut_here(query, view)
        return {id_text(row["_id"]): row for row in rows}

    async def _cut_here(self, query: Mapping[str, Any], view: View) -> list[Row]:
        """The rows, cut here because the server cannot cut one of them."""
        whole = projection(replace(view, ends=None))
        # One by one, so that no more than one long content is held at a time.
        found = self._documents.collection.find(query, whole).batch_size(1)
        return [view.cut(each) async for row in found for each in self._documents.readable([row])]

    async def _has_text_times(self) -> bool:
        now = monotonic()
        if now >= self._check_at:
            self._text_times = await self._documents.read_one(TEXT_TIME, ONLY_ID) is not None
            self._check_at = now + _TEXT_TIMES_CHECKED_S
        return self._text_times


class Tails:
    """Reads the tail of one session, the first stored first or the last."""

    def __init__(self, rows: Rows, owner_key: str, session_id: str, tail: Tail, *, oldest_first: bool) -> None:
        self._rows = rows
        self._owner_key = owner_key
        self._session = rows_of_session(owner_key, session_id)
        self._tail = tail
        self._oldest_first = oldest_first
        order: Order = BY_ID if oldest_first else LAST_STORED_FIRST
        self._ids = partial(rows.ids, index=STORED_IN_SESSION, order=order)
        self._stored = partial(rows.find, index=STORED_IN_SESSION, order=order, view=SHOWN)
        self._internal = partial(rows.find, index=INTERNAL_IN_SESSION, order=order, view=SHOWN)

    async def read(self, *, limit: int, skip: int, sub_agent: str | None) -> list[Row]:
        """The rows, as `MessageStore.tail_messages` has them."""
        if self._tail.is_all:
            return await self._stored({**self._session, **seen_by(sub_agent)}, limit=limit, skip=skip)
        shared = self._filtered_here if len(self._tail.without) > _FEW else self._filtered_there
        if sub_agent is None:
            return await shared(limit, skip)
        end = skip + limit
        own = await self._internal({**self._session, **internal_to(sub_agent)}, limit=end)
        return [*merge(await shared(end, 0), own, key=_stored_at, reverse=not self._oldest_first)][skip:end]

    async def _filtered_there(self, limit: int, skip: int) -> list[Row]:
        without = [ObjectId(row_id) for row_id in self._tail.without if is_object_id(row_id)]
        return await self._stored(self._shared(**self._since(), **{"$nin": without}), limit=limit, skip=skip)

    async def _filtered_here(self, limit: int, skip: int) -> list[Row]:
        beyond = "$gt" if self._oldest_first else "$lt"
        stored, left, is_more = self._since(), list[str](), True
        while is_more and len(left) < skip + limit:
            page = await self._ids(self._shared(**stored), limit=_STORED_AT_ONCE)
            left += [row_id for row_id in map(str, page) if row_id not in self._tail.without]
            is_more = len(page) == _STORED_AT_ONCE
            if is_more:
                stored[beyond] = page[-1]
        wanted = left[skip : skip + limit]
        rows = await self._rows.of_ids(self._owner_key, wanted, view=SHOWN)
        found = {row["_id"]: row for row in rows}
        return [found[row_id] for row_id in wanted if row_id in found]

    def _since(self) -> dict[str, Any]:
        # Only values of one type are compared: an `_id` that is no ObjectId is not among them.
        return {"$gte": ObjectId(self._tail.since + _FIRST_OF_SECOND)}

    def _shared(self, **stored: Any) -> Mapping[str, Any]:
        return {**self._session, **NOT_INTERNAL, "_id": stored}


def _behind(row: Row) -> Mapping[str, Any]:
    """The condition for what the server sorts behind the row. Only expressions compare values of different types."""
    time, row_id = {"$literal": row.get("timestamp")}, {"$literal": id_of(row["_id"])}
    # The first part is what an index is read from; in an order, a time that is missing is null.
    earlier = {"$lt": [{"$ifNull": ["$timestamp", None]}, time]}
    return {"$expr": {"$and": [{"$lte": ["$timestamp", time]}, {"$or": [earlier, {"$lt": ["$_id", row_id]}]}]}}


def _stored_at(row: Row) -> str:
    # Rows with an `_id` of another program's stand before all others.
    row_id: str = row["_id"]
    return row_id if is_object_id(row_id) else ""
