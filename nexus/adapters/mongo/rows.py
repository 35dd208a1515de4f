"""Reads of recorded messages in MongoDB: pages by moment, tails by stored order, and phrases (contract §2, §7).

- MongoDB sorts values of one type before those of another, so rows whose `timestamp` is a text would come after all
  that have a date. Where there are such rows, which other programs write, they are read by themselves and merged here.
- Long contents are cut on the server, so that a page stays small however long its contents are.
- A tail is read by an index that has a session's rows in stored order, so that it takes as long as its own rows. Where
  many rows are left out of it, their `_id`s are compared here: some servers need for it the product of both numbers.
- A phrase is taken literally and found whatever its case.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from time import monotonic
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING
from pymongo.errors import OperationFailure

from nexus.adapters.mongo.client import NO_SUCH_INDEX, Order
from nexus.adapters.mongo.schema import (
    INTERNAL_IN_SESSION,
    NEWEST_FIRST,
    NO_TEXT_TIME,
    NOT_INTERNAL,
    OF_SESSION,
    OLDEST_FIRST,
    STORED_IN_SESSION,
    TEXT_TIME,
    containing,
    id_of,
    id_text,
    internal_to,
    of_session,
    seen_by,
)
from nexus.core.errors import StoreRejectedError
from nexus.core.models import INTERNAL, LONG_AGO, is_object_id, parse_moment
from nexus.core.ports import Row
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.ports.store import STRUCTURED_SEARCHED, TextsOf
from nexus.core.working_memory import Tail

HEADER: Final = dict.fromkeys(("id", "run_id", "owner_key", "session_id", "role", "timestamp"), 1)
# Of a row's metadata, what an excerpt needs.
_KEPT_METADATA: Final = ("tool_calls", INTERNAL)
# Errors of $substrCP and $strLenCP on a text that is not UTF-8.
_NOT_UTF8: Final = range(34450, 34474)
_IDS_AT_ONCE: Final = 500
# How long it may take until the first row with a text as timestamp is noticed.
_TEXT_TIMES_CHECKED_S: Final = 60
_FIRST_STORED_FIRST: Final = [("_id", ASCENDING)]
_LAST_STORED_FIRST: Final = [("_id", DESCENDING)]
# Of a second, the first `_id`.
_FIRST_OF_SECOND: Final = "0" * 16
# So many rows the server may leave out by itself.
_FEW: Final = 16
_STORED_AT_ONCE: Final = 1_000

_STRUCTURED: Final[Row] = {"$type": ["object", "array"]}
_CALLS: Final = "metadata.tool_calls"
# Calls are stored flat or nested.
_NAMES: Final = ("name", "function.name")
_ARGUMENTS: Final = ("arguments", "function.arguments")
# JSON text that is not what a tool is given.
_ESCAPED: Final[Row] = {"$regex": r"\\"}
_STRUCTURED_PAGE: Final = 200
# Words between blanks in a phrase, which stand whole wherever the phrase stands. Not with K or S: a pattern takes other
# letters for these as well, and an index of words does not.
_INNER_WORD: Final = re.compile(r"(?<=[ \n])[0-9A-JL-RT-Za-jl-rt-z]+(?=[ \n])")


class Rows:
    """Reads pages of one collection of messages. A row that the server cannot cut or sort spoils none around it."""

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

        With `excerpt_chars`, contents longer than twice this come without their middle; else the projection is `only`.
        The index with the fields `index` is used, where it was made.
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


class Tails:
    """Reads the tail of one session, the first stored first or the last."""

    def __init__(self, rows: Rows, owner_key: str, session_id: str, tail: Tail, *, oldest_first: bool) -> None:
        self._rows = rows
        self._owner_key = owner_key
        self._session = of_session(owner_key, session_id)
        self._tail = tail
        self._oldest_first = oldest_first
        order: Order = _FIRST_STORED_FIRST if oldest_first else _LAST_STORED_FIRST
        self._stored = partial(rows.find, index=STORED_IN_SESSION, order=order)
        self._internal = partial(rows.find, index=INTERNAL_IN_SESSION, order=order)

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
            page = await self._stored(self._shared(**stored), limit=_STORED_AT_ONCE, only={"_id": 1})
            left += [row["_id"] for row in page if row["_id"] not in self._tail.without]
            is_more = len(page) == _STORED_AT_ONCE
            if is_more:
                stored[beyond] = ObjectId(page[-1]["_id"])
        wanted = left[skip : skip + limit]
        found = {row["_id"]: row for row in await self._rows.of_ids(self._owner_key, wanted)}
        return [found[row_id] for row_id in wanted if row_id in found]

    def _since(self) -> dict[str, Any]:
        # Only values of one type are compared: an `_id` that is no ObjectId is not among them.
        return {"$gte": ObjectId(self._tail.since + _FIRST_OF_SECOND)}

    def _shared(self, **stored: Any) -> Mapping[str, Any]:
        return {**self._session, **NOT_INTERNAL, "_id": stored}


def _stored_at(row: Row) -> str:
    # Rows with an `_id` of another program's stand before all others.
    row_id: str = row["_id"]
    return row_id if is_object_id(row_id) else ""


@dataclass(frozen=True, slots=True)
class Search:
    """A search for a phrase among the rows that meet the condition `session`; see `MessageStore.search_messages`."""

    session: Mapping[str, Any]
    text: str
    texts_of: TextsOf
    without_tools: tuple[str, ...] = ()
    without_run: str | None = None

    async def run(self, rows: Rows, *, limit: int) -> list[Row]:
        """The finds, newest first."""
        check_phrase(self.text)
        pattern = containing(self.text)
        in_calls = [self._in_a_call(field, pattern) for field in (*_NAMES, *_ARGUMENTS)]
        query = {**self._searched(), "$or": [{"content": pattern}, *in_calls]}
        finds = await rows.newest(query, limit=limit, index=OF_SESSION)
        finds += await self._structured(rows, limit)
        # A list of texts may have been found both ways.
        return newest_first({row["_id"]: row for row in finds}.values())[:limit]

    async def _structured(self, rows: Rows, limit: int) -> list[Row]:
        """Finds in objects, lists and escaped JSON, for which the server has no pattern."""
        in_calls = [self._in_a_call(field, each) for field in _ARGUMENTS for each in (_STRUCTURED, _ESCAPED)]
        query = {**self._searched(), "$or": [{"content": _STRUCTURED}, *in_calls]}
        phrase = re.compile(re.escape(self.text), re.IGNORECASE)
        finds: list[Row] = []
        for skip in range(0, STRUCTURED_SEARCHED, _STRUCTURED_PAGE):
            page = await rows.newest(query, limit=_STRUCTURED_PAGE, skip=skip, index=OF_SESSION)
            finds += [
                row for row in page if any(phrase.search(text) for _, text in self.texts_of(row, self.without_tools))
            ]
            if len(page) < _STRUCTURED_PAGE or len(finds) >= limit:
                break
        return finds[:limit]

    def _searched(self) -> Row:
        """The condition for the rows that may be finds."""
        condition: Row = {**self.session, **NOT_INTERNAL}
        if self.without_tools:
            condition["metadata.tool_name"] = {"$nin": [*self.without_tools]}
        if self.without_run is not None:
            condition["run_id"] = {"$ne": self.without_run}
        return condition

    def _in_a_call(self, field: str, condition: Row) -> Row:
        """The condition for a row with a call, of a tool that is not left out, whose field is like this."""
        others: Row = {name: {"$nin": [*self.without_tools]} for name in _NAMES} if self.without_tools else {}
        return {_CALLS: {"$elemMatch": {**others, field: {**others.get(field, {}), **condition}}}}


def check_phrase(text: str) -> None:
    """Refuse a phrase that is too long for a pattern.

    Raises:
        StoreRejectedError: it has more than `LONGEST_QUERY` characters.
    """
    if len(text) > LONGEST_QUERY:
        raise StoreRejectedError(f"no text of more than {LONGEST_QUERY} characters can be searched for")


def inner_word(text: str) -> str | None:
    """The longest word that an index of words has for every text with the phrase; None where there is no such word."""
    return max(_INNER_WORD.findall(text), key=len, default=None)
