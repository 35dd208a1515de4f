"""Tails of sessions by stored order, and messages that contain a phrase, in MongoDB (contract §7).

- A tail is read by an index that has a session's rows in stored order, so that it takes as long as its own rows.
- Where many rows are left out of a tail, their `_id`s are compared here: some servers need for it the product of both
  numbers.
- A phrase is taken literally and found whatever its case.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from heapq import merge
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING

from nexus.adapters.mongo.rows import Rows, newest_first
from nexus.adapters.mongo.schema import (
    INTERNAL_IN_SESSION,
    NOT_INTERNAL,
    OF_SESSION,
    STORED_IN_SESSION,
    Order,
    containing,
    internal_to,
    of_session,
    seen_by,
)
from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.ports.store import STRUCTURED_SEARCHED
from nexus.core.working_memory import Tail, is_object_id
from nexus.services.memory.search import texts_of

_FIRST_STORED_FIRST: Final = [("_id", ASCENDING)]
_LAST_STORED_FIRST: Final = [("_id", DESCENDING)]
# Of a second, the first `_id`.
_FIRST_OF_SECOND: Final = "0" * 16
# So many rows the server may leave out by itself.
_FEW: Final = 16
_IDS_AT_ONCE: Final = 1_000

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


class Tails:
    """Reads the tail of one session.

    Args:
        rows: of which collection.
        owner_key: whose session it is.
        session_id: which one.
        tail: which rows of it are left.
        oldest_first: the first stored first; else the last.
    """

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
            page = await self._stored(self._shared(**stored), limit=_IDS_AT_ONCE, only={"_id": 1})
            left += [row["_id"] for row in page if row["_id"] not in self._tail.without]
            is_more = len(page) == _IDS_AT_ONCE
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
    """A phrase that is searched for in a session; see `MessageStore.search_messages`.

    Attributes:
        session: the condition for the session's rows.
        text: the phrase.
        without_tools: names of tools whose results and calls are no find.
        without_run: a run whose rows are none.
    """

    session: Mapping[str, Any]
    text: str
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
            finds += [row for row in page if any(phrase.search(text) for _, text in texts_of(row, self.without_tools))]
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


def check_phrase(text: str, longest: int = LONGEST_QUERY) -> None:
    """Refuse a phrase that is too long for a pattern.

    Raises:
        StoreRejectedError: it has more than `longest` characters.
    """
    if len(text) > longest:
        raise StoreRejectedError(f"no text of more than {longest} characters can be searched for")


def inner_word(text: str) -> str | None:
    """The longest word that an index of words has for every text with the phrase; None where there is no such word."""
    return max(_INNER_WORD.findall(text), key=len, default=None)
