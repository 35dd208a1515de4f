"""Recorded rows of MongoDB in the order of their moments, whatever form their timestamps have (CONTRACT §2)."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from pymongo.errors import ConnectionFailure, OperationFailure

from nexus.adapters.mongo_excerpts import all_small, excerpt, show
from nexus.adapters.mongo_find import Finds, Order, Page
from nexus.adapters.mongo_ids import id_of, id_text
from nexus.adapters.mongo_schema import NEWEST_FIRST, NO_TEXT_TIME, OLDEST_FIRST, TEXT_TIME, newest_first
from nexus.core.ports import Row

# What $substrCP and $strLenCP say of a text that is not UTF-8.
_NOT_UTF8: Final = range(34450, 34474)
_OWNERS_KNOWN: Final = 10_000
# Not all of an owner's newest rows are small, which is taken for so until others crowd it out.
LONG: Final = -1.0
_SMALL_S: Final = 60.0
# For how long no content of an owner is cut anywhere after that failed, as it does for most in some languages.
_UNEVEN_S: Final = 600.0
_IDS_AT_ONCE: Final = 500
# Rows with text timestamps come from other writers; how long it may take until the first of them is noticed.
_LOOKED_AGAIN_S: Final = 60


class Noted:
    """Owners of whom something was noticed, and until when it is taken for so: the last 10,000."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def until(self, owner_key: str) -> float | None:
        """Until when it is, by `time.monotonic`; None where nothing was noticed."""
        return self._until.get(owner_key)

    def note(self, owner_key: str, until: float) -> None:
        """Take it for so until then."""
        self._until[owner_key] = until
        self._until.move_to_end(owner_key)
        if len(self._until) > _OWNERS_KNOWN:
            self._until.popitem(last=False)


class Known:
    """What is known of the rows of a collection, and for how long.

    Attributes:
        text_times: there are rows whose timestamp is a text.
        look_again_at: when that is to be looked at again.
        small: owners whose rows were all small when they were last asked for with a condition, or `LONG`.
        uneven: owners of whom not every content could be cut at any byte, or not all rows came in one reply.
    """

    def __init__(self) -> None:
        self.text_times = False
        self.look_again_at = 0.0
        self.small = Noted()
        self.uneven = Noted()


class MongoMessages:
    """Reads the rows of one collection. One row that the server cannot cut or sort spoils none around it.

    Args:
        finds: finds them.
        known: what is known of them.
    """

    def __init__(self, finds: Finds, known: Known) -> None:
        self._finds = finds
        self._known = known

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
        if not await self.has_text_times():
            return await find(query, limit=limit, skip=skip)
        end = skip + limit
        dated = await find({**query, **NO_TEXT_TIME}, limit=end)
        texts = await find({**query, **TEXT_TIME}, limit=end)
        return newest_first([*dated, *texts])[skip:end]

    async def oldest(self, query: Mapping[str, Any], *, index: Order | None = None) -> Row | None:
        """The first row of all."""
        find = partial(self.find, index=index, order=OLDEST_FIRST, limit=1)
        if not await self.has_text_times():
            rows = await find(query)
        else:
            rows = newest_first([*await find({**query, **NO_TEXT_TIME}), *await find({**query, **TEXT_TIME})])
        return rows[-1] if rows else None

    async def has_text_times(self) -> bool:
        """Whether there are rows whose timestamp is a text, as far as anybody has noticed."""
        now = monotonic()
        if now >= self._known.look_again_at:
            self._known.text_times = bool(await self._finds.rows(TEXT_TIME, Page(1), only={"_id": 1}))
            self._known.look_again_at = now + _LOOKED_AGAIN_S
        return self._known.text_times

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
        rows = await self._finds.rows(query, page, only=only, index=index)
        for row in rows:
            row["_id"] = id_text(row["_id"])
        return rows

    async def _excerpts(self, query: Mapping[str, Any], page: Page, chars: int) -> list[Row]:
        small = await self.if_small(self._known.small, query, page, chars)
        if small is not None:
            return small
        rows = await self._cut_anywhere(query, page, chars)
        try:
            if rows is None:
                rows = await self._finds.rows(query, page, only=excerpt(chars))
        except OperationFailure as error:
            if error.code not in _NOT_UTF8:
                raise
            rows = await self._finds.rows(query, page)
        show(rows, chars)
        return rows

    async def _cut_anywhere(self, query: Mapping[str, Any], page: Page, chars: int) -> list[Row] | None:
        """The page as the server cuts it quickest; None where that fails, or did for this owner a moment ago."""
        uneven = self._known.uneven
        if (uneven.until(query["owner_key"]["$eq"]) or 0.0) > monotonic():
            return None
        only = excerpt(chars, anywhere=True)
        return await self._in_one_reply(query, page, uneven, monotonic() + _UNEVEN_S, only=only)

    async def _in_one_reply(
        self, query: Mapping[str, Any], page: Page, noted: Noted, until: float, *, only: Mapping[str, Any] | None = None
    ) -> list[Row] | None:
        """The page; None where it was not to be had so, which is noted of the owner unless the connection was lost."""
        rows = None
        try:
            rows = await self._finds.at_once(query, page, only=only)
        except (OperationFailure, ConnectionFailure) as error:
            if error.timeout:
                raise
            if isinstance(error, ConnectionFailure):
                return None
        if rows is None:
            noted.note(query["owner_key"]["$eq"], until)
        return rows

    async def if_small(self, small: Noted, query: Mapping[str, Any], page: Page, chars: int) -> list[Row] | None:
        """A page of an owner's newest rows as `mongo_excerpts.show` makes them, if they are small; else None.

        Rows that were small a moment ago are asked for without the condition. Should a long one have come, it is read
        whole once.

        Args:
            small: what is known of the rows of such queries.
            query: which rows; nothing but the owner may differ from that of others with the same `small`.
            page: which of them.
            chars: contents longer than twice this come without their middle.
        """
        owner_key = query["owner_key"]["$eq"]
        until = small.until(owner_key)
        if until == LONG:
            return None
        asked = until is None or until < monotonic()
        rows = await self._in_one_reply({**query, **all_small(chars)} if asked else query, page, small, LONG)
        if rows is None:
            return None
        are_small = show(rows, chars)
        if asked:
            small.note(owner_key, monotonic() + _SMALL_S)
        elif not are_small:
            small.note(owner_key, LONG)
        return rows

    async def of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """The rows of the owner with these `_id`s, in any order."""
        found: list[Row] = []
        for first in range(0, len(row_ids), _IDS_AT_ONCE):
            ids = [id_of(row_id) for row_id in row_ids[first : first + _IDS_AT_ONCE]]
            # In this order and with no hint: every server then looks up each `_id` by itself.
            found += await self._finds.rows({"_id": {"$in": ids}, "owner_key": {"$eq": owner_key}}, Page(len(ids)))
        for row in found:
            row["_id"] = id_text(row["_id"])
        return found
