"""Recorded rows of MongoDB in the order of their moments, whatever form their timestamps have (CONTRACT §2)."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import ge
from typing import Any, Final, NamedTuple

import anyio
from pymongo.errors import ConnectionFailure, OperationFailure

from nexus.adapters.mongo_excerpts import all_small, are_small, excerpt, shown
from nexus.adapters.mongo_find import Order, Page, find_at_once, find_rows, find_several
from nexus.adapters.mongo_ids import id_of, id_text
from nexus.adapters.mongo_schema import NEWEST_FIRST, NO_TEXT_TIME, OLDEST_FIRST, TEXT_TIME, newest_first
from nexus.core.ports import Row

# What $substrCP and $strLenCP say of a text that is not UTF-8.
_NOT_UTF8: Final = range(34450, 34474)
# Owners of whom it is known whether all of their newest rows are small.
_OWNERS_KNOWN: Final = 10_000
_LONG: Final = -1.0
_SMALL_S: Final = 60.0
_IDS_AT_ONCE: Final = 500
# Rows with text timestamps come from other writers; how long it may take until the first of them is noticed.
_LOOKED_AGAIN_S: Final = 60


class PastOf(NamedTuple):
    """An owner's newest rows.

    Attributes:
        limit: rows at most.
        chars: contents longer than twice this come without their middle.
    """

    owner_key: str
    limit: int
    chars: int


class MongoMessages:
    """Reads the rows of one collection. One row that the server cannot cut or sort spoils none around it."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages
        self._text_times = False
        self._look_again_at = 0.0
        self._small_until: OrderedDict[str, float] = OrderedDict()

    async def newest(
        self,
        query: Mapping[str, Any],
        *,
        limit: int,
        skip: int = 0,
        excerpt_chars: int | None = None,
        index: Order | None = None,
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

    async def oldest(self, query: Mapping[str, Any], *, index: Order | None = None) -> Row | None:
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
        index: Order | None = None,
        order: Order = NEWEST_FIRST,
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
        page = Page(limit, skip, order)
        if excerpt_chars is not None:
            return await self._excerpts(query, page, excerpt_chars)
        rows = await find_rows(self._messages, query, page, only=only, index=index)
        for row in rows:
            row["_id"] = id_text(row["_id"])
        return rows

    def may_be_small(self, owner_key: str) -> bool:
        """Whether nothing is known of an owner that has long rows."""
        return self._small_until.get(owner_key) != _LONG

    async def of_several(
        self, pasts: Sequence[PastOf], query_of: Callable[[str], dict[str, Any]]
    ) -> list[list[Row] | None]:
        """The newest rows of several owners, as `newest` gives them; None where they are to be read by themselves.

        Args:
            pasts: which.
            query_of: the query for an owner's rows.
        """
        # Of an owner who is asked for in two ways, one is read here.
        of_owner = {past.owner_key: past for past in pasts}
        found = {} if await self._has_text_times() else await self._of_owners([*of_owner.values()], query_of)
        read: list[list[Row] | None] = []
        given: set[str] = set()
        for past in pasts:
            rows = found.get(past.owner_key) if of_owner[past.owner_key] == past else None
            # Who asks for the same gets rows of his own.
            read.append([{**row} for row in rows] if rows and past.owner_key in given else rows)
            given.add(past.owner_key)
        return read

    async def _of_owners(
        self, pasts: Sequence[PastOf], query_of: Callable[[str], dict[str, Any]]
    ) -> dict[str, list[Row]]:
        """By owner; nothing where one command cannot read them all."""
        now = anyio.current_time()
        asked = {past.owner_key: self._small_until.get(past.owner_key, now) <= now for past in pasts}
        queries = []
        for past in pasts:
            if_small = all_small(past.chars) if asked[past.owner_key] else {}
            queries.append(({**query_of(past.owner_key), **if_small}, past.limit))
        try:
            rows = await find_several(self._messages, queries, NEWEST_FIRST)
        except (OperationFailure, ConnectionFailure):
            # Also a time limit may be one owner's matter.
            rows = None
        if rows is None:
            return {}
        found: dict[str, list[Row]] = {past.owner_key: [] for past in pasts}
        for row in rows:
            owner_key = row["owner_key"]
            if not isinstance(owner_key, str) or owner_key not in found:
                # A list of owners is found under each of them. Whose rows stand around it, nobody can tell.
                return {}
            found[owner_key].append(row)
        if not all(map(_is_newest_first, found.values())):
            # Servers keep the order within each query of a union, but none promises to.
            return {}
        for past in pasts:
            self._note_size(past, found[past.owner_key], asked=asked[past.owner_key])
            shown(found[past.owner_key], past.chars)
        return found

    def _note_size(self, past: PastOf, rows: Sequence[Row], *, asked: bool) -> None:
        if asked:
            self._note(past.owner_key, anyio.current_time() + _SMALL_S)
        elif not are_small(rows, past.chars):
            self._note(past.owner_key, _LONG)

    async def _excerpts(self, query: Mapping[str, Any], page: Page, chars: int) -> list[Row]:
        owner_key = query["owner_key"]["$eq"]
        small_until = self._small_until.get(owner_key)
        if small_until != _LONG:
            # Rows that were small a moment ago are asked for without the condition. Should a long one have come, it is
            # read whole once.
            asked = small_until is None or small_until < anyio.current_time()
            rows = await self._if_small(owner_key, {**query, **all_small(chars)} if asked else query, page)
            if rows is not None:
                self._note_size(PastOf(owner_key, page.limit, chars), rows, asked=asked)
                return shown(rows, chars)
        try:
            rows = await find_rows(self._messages, query, page, only=excerpt(chars))
        except OperationFailure as error:
            if error.code not in _NOT_UTF8:
                raise
            rows = await find_rows(self._messages, query, page)
        return shown(rows, chars)

    async def _if_small(self, owner_key: str, query: Mapping[str, Any], page: Page) -> list[Row] | None:
        """The rows, if the server does not refuse the query because one of them is long."""
        try:
            return await find_at_once(self._messages, query, page)
        except (OperationFailure, ConnectionFailure) as error:
            if error.timeout:
                raise
            if isinstance(error, OperationFailure):
                self._note(owner_key, _LONG)
            return None

    def _note(self, owner_key: str, small_until: float) -> None:
        self._small_until[owner_key] = small_until
        self._small_until.move_to_end(owner_key)
        if len(self._small_until) > _OWNERS_KNOWN:
            self._small_until.popitem(last=False)

    async def of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """The rows of the owner with these `_id`s, in any order."""
        found: list[Row] = []
        for first in range(0, len(row_ids), _IDS_AT_ONCE):
            ids = [id_of(row_id) for row_id in row_ids[first : first + _IDS_AT_ONCE]]
            # In this order and with no hint: every server then looks up each `_id` by itself.
            found += await self._messages.find({"_id": {"$in": ids}, "owner_key": {"$eq": owner_key}}).to_list(None)
        for row in found:
            row["_id"] = id_text(row["_id"])
        return found


def _is_newest_first(rows: Sequence[Row]) -> bool:
    """Whether the rows come in this order. Of times or `_id`s that cannot be compared, nobody can tell."""
    moments: list[Any] = [(row.get("timestamp"), row["_id"]) for row in rows]
    try:
        return all(map(ge, moments, moments[1:]))
    except TypeError:
        return False
