"""Whole sessions of messages out of MongoDB and into it, with all that their rows hold (contract §7).

As JSON a row is MongoDB's Extended JSON: text, truth, null, lists and most numbers are themselves, all else is an
object such as `{"$date": "2026-01-01T00:00:00Z"}`. That is not enough where a message holds such an object itself, as
results of tools do, or a small number of 64 bits. So here

- an object that has a key with a `$` in front stands inside of another: `{"$object": {…}}`;
- an integer of 64 bits that has room in 32 is `{"$numberLong": "…"}`.
"""

import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import bson
from bson import json_util
from bson.codec_options import DatetimeConversion
from bson.dbref import DBRef
from bson.errors import BSONError
from bson.int64 import Int64
from bson.json_util import JSONMode, JSONOptions

from nexus.adapters.mongo.client import Calls, Operations, driver_call, insert_call
from nexus.adapters.mongo.documents import BY_ID, Documents
from nexus.adapters.mongo.schema import EXACT_CODEC, STORED_IN_SESSION, id_text, of_owner, rows_of_session, to_index
from nexus.core.ports import Row

_PAGE: Final = 500
_FOREIGN: Final = {"_id": {"$not": {"$type": "objectId"}}}
# Whoever imports a row has it indexed anew.
_WITHOUT_RECALL: Final = {"recall": 0}
_WHERE: Final = dict.fromkeys(("id", "owner_key", "session_id"), 1)
# Less than 16 MiB, for the fields that a store adds.
_MOST_BYTES: Final = (1 << 24) - (1 << 10)
_LITERAL: Final = "$object"
_SMALL: Final = range(-(2**31), 2**31)
_OPTIONS: Final = JSONOptions(
    json_mode=JSONMode.RELAXED, tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


def to_json(value: Any) -> Any:
    """A value that MongoDB gave, as JSON."""
    if isinstance(value, dict):
        items = {name: to_json(item) for name, item in value.items()}
        return {_LITERAL: items} if _is_marked(value) else items
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Int64):
        # As an `int`, since a range looks for other types one by one.
        plain = int(value)
        return {"$numberLong": str(plain)} if plain in _SMALL else plain
    # A text of MongoDB's code is a `str` too, so the type has to be exact.
    if value is None or type(value) in {str, bool, int} or (isinstance(value, float) and math.isfinite(value)):
        return value
    return json.loads(json_util.dumps(value, json_options=_OPTIONS))


def from_json(value: Any) -> Any:
    """The value that `to_json` gave this JSON for; ValueError, which says what is wrong, for other JSON."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if not _is_marked(value):
        return {name: from_json(item) for name, item in value.items()}
    literal = value.get(_LITERAL)
    if len(value) == 1 and isinstance(literal, dict):
        return {name: from_json(item) for name, item in literal.items()}
    return _marked(value)


def _is_marked(value: dict[str, Any]) -> bool:
    return any(name.startswith("$") for name in value)


def _marked(value: dict[str, Any]) -> Any:
    fault = f'an object whose key begins with $ is no Extended JSON; as it is, it is written {{"{_LITERAL}": …}}'
    try:
        found = json_util.loads(json.dumps(value), json_options=_OPTIONS)
    # Its parsers raise whatever the constructors behind them do.
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, BSONError):
        raise ValueError(fault) from None
    if isinstance(found, dict | DBRef):
        raise ValueError(fault)
    return found


def _names(value: Any) -> list[str]:
    """All keys in it, at any depth."""
    if isinstance(value, dict):
        return [*value, *(name for item in value.values() for name in _names(item))]
    return [name for item in value for name in _names(item)] if isinstance(value, list | tuple) else []


class MongoTransfer(Operations):
    """`nexus.core.ports.store.TransferStore` on the collection of messages; see `MongoMessages`."""

    to_json = staticmethod(to_json)
    from_json = staticmethod(from_json)

    def __init__(self, messages: Any, calls: Calls, indexed: Callable[[], Awaitable[None]], *, recall: bool) -> None:
        super().__init__(calls, indexed)
        self._messages = Documents(messages)
        self._to_index: Callable[[Row], Row] = to_index if recall else dict

    def checked(self, document: Row) -> Row:
        """The document as it is read again once it is stored."""
        try:
            encoded = bson.encode(document, codec_options=EXACT_CODEC)
        except OverflowError:
            raise ValueError("a whole number of more than 64 bits; no document may have one") from None
        except (BSONError, UnicodeEncodeError, TypeError) as error:
            if any("\x00" in name for name in _names(document)):
                raise ValueError("a key with a NUL; no document may have one") from None
            raise ValueError(f"no document can hold it: {type(error).__name__}") from None
        if len(encoded) > _MOST_BYTES:
            raise ValueError(f"as a document it has more than {_MOST_BYTES} bytes")
        row: Row = bson.decode(encoded, codec_options=EXACT_CODEC)
        return row

    def row_id(self, row: Row) -> str:
        """The `_id` of a row in JSON as a text."""
        return id_text(from_json(row["_id"]))

    @driver_call
    async def count_rows(self, owner_key: str, session_id: str) -> int:
        """How many rows a session has."""
        return int(await self._messages.collection.count_documents(rows_of_session(owner_key, session_id)))

    async def rows(self, owner_key: str, session_id: str) -> AsyncGenerator[list[Row]]:
        """All rows of a session in the order of their `_id`s, in pages.

        MongoDB compares `_id`s within one type only. So rows whose `_id` is no ObjectId are read first, and counted
        off; there are none where Nexus alone writes.
        """
        session = rows_of_session(owner_key, session_id)
        read = 0
        while page := await self._page({**session, **_FOREIGN}, read):
            yield [to_json(row) for row in page]
            read += len(page)
        after = {"$type": "objectId"}
        while page := await self._page({**session, "_id": after}, 0):
            yield [to_json(row) for row in page]
            after = {"$type": "objectId", "$gt": page[-1]["_id"]}

    @driver_call
    async def find_elsewhere(self, owner_key: str, session_id: str, rows: Sequence[Row]) -> Row | None:
        """A row of another session whose `_id`, or whose owner and `id`, one of these rows has."""
        ids = [from_json(row["_id"]) for row in rows]
        query = {"_id": {"$in": ids}, "$nor": [rows_of_session(owner_key, session_id)]}
        found = await self._messages.read_one(query, _WHERE)
        if found is None:
            # What the unique index covers: rows of other writers without an `id` do not stand in each other's way.
            message_ids = {"$in": [row["id"] for row in rows if isinstance(row.get("id"), str)], "$gt": ""}
            query = {**of_owner(owner_key), "id": message_ids, "$nor": [rows_of_session(owner_key, session_id)]}
            found = await self._messages.read_one(query, _WHERE)
        return found and to_json(found)

    @insert_call
    async def insert_rows(self, rows: Sequence[Row]) -> int:
        """Store these, up to the first whose `_id` or `id` is taken. Returns how many."""
        return await self._messages.insert_until_duplicate([self._to_index(from_json(row)) for row in rows])

    @driver_call
    async def _page(self, query: Mapping[str, Any], skip: int) -> list[Row]:
        return await self._messages.read_page(
            query, _WITHOUT_RECALL, BY_ID, _PAGE, skip=skip, index=STORED_IN_SESSION, one_reply=True
        )
