"""The tail of a session in MongoDB: its rows by when they were stored, without those under a compaction (CONTRACT §7).

Rules of this module:

- A tail is read by an index that has a session's rows in stored order, so that it takes as long as what is in it.
- Where many rows are left out, their `_id`s are compared here: there are servers that need for it the product of both
  numbers.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from heapq import merge
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING

from nexus.adapters.mongo_messages import MongoMessages
from nexus.adapters.mongo_schema import (
    INTERNAL_IN_SESSION,
    NOT_INTERNAL,
    STORED_IN_SESSION,
    internal_to,
    of_session,
    seen_by,
)
from nexus.core.ports import Row
from nexus.core.working_memory import Tail, is_object_id

_Order = Sequence[tuple[str, int]]

_FIRST_STORED_FIRST: Final = [("_id", ASCENDING)]
_LAST_STORED_FIRST: Final = [("_id", DESCENDING)]
# Of a second, the first `_id`.
_FIRST_OF_SECOND: Final = "0" * 16
# So many rows the server may leave out by itself.
_FEW: Final = 16
_IDS_AT_ONCE: Final = 1_000


class MongoTail:
    """Reads the tail of one session.

    Args:
        rows: of which collection.
        owner_key: whose session it is.
        session_id: which one.
        tail: which rows of it are left.
        oldest_first: the first stored first; else the last.
    """

    def __init__(self, rows: MongoMessages, owner_key: str, session_id: str, tail: Tail, *, oldest_first: bool) -> None:
        self._rows = rows
        self._owner_key = owner_key
        self._session = of_session(owner_key, session_id)
        self._tail = tail
        self._oldest_first = oldest_first
        order: _Order = _FIRST_STORED_FIRST if oldest_first else _LAST_STORED_FIRST
        self._stored = partial(rows.find, index=STORED_IN_SESSION, order=order)
        self._internal = partial(rows.find, index=INTERNAL_IN_SESSION, order=order)

    async def read(self, *, limit: int, skip: int, sub_agent: str | None) -> list[Row]:
        """The rows, as `MessageStore.tail_messages` has them."""
        if self._tail.is_all:
            return await self._stored({**self._session, **seen_by(sub_agent)}, limit=limit, skip=skip)
        shared = self._sifted if len(self._tail.without) > _FEW else self._left
        if sub_agent is None:
            return await shared(limit, skip)
        end = skip + limit
        own = await self._internal({**self._session, **internal_to(sub_agent)}, limit=end)
        return [*merge(await shared(end, 0), own, key=_age, reverse=not self._oldest_first)][skip:end]

    async def _left(self, limit: int, skip: int) -> list[Row]:
        without = [ObjectId(row_id) for row_id in self._tail.without if is_object_id(row_id)]
        return await self._stored(self._shared(**self._since(), **{"$nin": without}), limit=limit, skip=skip)

    async def _sifted(self, limit: int, skip: int) -> list[Row]:
        beyond = "$gt" if self._oldest_first else "$lt"
        stored, left, is_more = self._since(), list[str](), True
        while is_more and len(left) < skip + limit:
            page = await self._stored(self._shared(**stored), limit=_IDS_AT_ONCE, only={"_id": 1})
            left += [row["_id"] for row in page if row["_id"] not in self._tail.without]
            is_more = len(page) == _IDS_AT_ONCE
            if is_more:
                stored[beyond] = ObjectId(page[-1]["_id"])
        wanted = left[skip : skip + limit]
        found = {row["_id"]: row for row in await self._rows.of_ids(self._owner_key, wanted)}
        return [found[row_id] for row_id in wanted if row_id in found]

    def _since(self) -> dict[str, Any]:
        # Only what is of one type is compared: an `_id` that is no ObjectId is not among them.
        return {"$gte": ObjectId(self._tail.since + _FIRST_OF_SECOND)}

    def _shared(self, **stored: Any) -> Mapping[str, Any]:
        return {**self._session, **NOT_INTERNAL, "_id": stored}


def _age(row: Row) -> str:
    # What has an `_id` of another program's stands before all others.
    row_id: str = row["_id"]
    return row_id if is_object_id(row_id) else ""
