"""Sessions of recorded messages out of MongoDB and into it, exactly, as JSON that says all of a document (contract §7).

- Rows of other programs may have an `_id` of any type. MongoDB compares `_id`s within one type only, so rows whose
  `_id` is no ObjectId are read first, by number; there are none where Nexus alone writes.
- MongoDB's Extended JSON says nearly all: text, truth, null, lists and most numbers are themselves, and everything else
  is an object such as `{"$date": "2026-01-01T00:00:00Z"}`. It is not enough where a message itself holds such an
  object, as results of tools do, or a small number of 64 bits. So an object that has a key with a `$` in front stands
  inside another, `{"$object": {…}}`, and an integer of 64 bits that has room in 32 is `{"$numberLong": "…"}`.
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
from pymongo import ASCENDING
from pymongo.errors import BulkWriteError, OperationFailure

from nexus.adapters.mongo.client import NO_SUCH_INDEX, Calls, driver_call, inserted_before_duplicate
from nexus.adapters.mongo.schema import CODEC, STORED_IN_SESSION, Order, id_text, of_session
from nexus.core.ports import Row
from nexus.core.ports.store import SpelledRow

_PAGE: Final = 500
_BY_ID: Final = [("_id", ASCENDING)]
_FOREIGN: Final = {"_id": {"$not": {"$type": "objectId"}}}
_MOST_BYTES: Final = 1 << 24
_LITERAL: Final = "$object"
_SMALL: Final = range(-(2**31), 2**31)
_OPTIONS: Final = JSONOptions(
    json_mode=JSONMode.RELAXED, tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


class MongoTransfer:
    """`nexus.core.ports.store.TransferStore` on the collection of messages.

    Args:
        messages: the collection, of motor or of pymongo's asyncio client.
        calls: through which the client is called.
        indexed: returns once the indexes are made.
    """

    def __init__(self, messages: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        self.calls = calls
        self._messages = messages
        self._indexed = indexed

    def spelled(self, value: Any) -> Any:
        """A value that MongoDB gave, as JSON."""
        return spelled(value)

    def unspelled(self, value: Any) -> Any:
        """What `spelled` was given."""
        return unspelled(value)

    def checked(self, document: Row) -> SpelledRow:
        """The row as it will be spelled once it is kept."""
        try:
            encoded = bson.encode(_unspelled_row(document), codec_options=CODEC)
        except (BSONError, OverflowError, UnicodeEncodeError, TypeError) as error:
            raise ValueError(f"no document can hold it: {type(error).__name__}") from None
        if len(encoded) > _MOST_BYTES:
            raise ValueError(f"as a document it has more than {_MOST_BYTES} bytes")
        row: Row = bson.decode(encoded, codec_options=CODEC)
        if "_id" not in row or isinstance(row["_id"], list | bson.Regex):
            raise ValueError("_id: one is needed that is no list and no pattern")
        return _spelled_row(row)

    @driver_call
    async def count_rows(self, owner_key: str, session_id: str) -> int:
        """How many rows a session has."""
        return int(await self._messages.count_documents(of_session(owner_key, session_id)))

    async def rows(self, owner_key: str, session_id: str) -> AsyncGenerator[list[SpelledRow]]:
        """All rows of a session in the order of their `_id`s, in pages."""
        session = of_session(owner_key, session_id)
        read = 0
        while page := await self._page({**session, **_FOREIGN}, read):
            yield [_spelled_row(row) for row in page]
            read += len(page)
        after = {"$type": "objectId"}
        while page := await self._page({**session, "_id": after}, 0):
            yield [_spelled_row(row) for row in page]
            after = {"$type": "objectId", "$gt": page[-1]["_id"]}

    @driver_call
    async def is_taken(self, owner_key: str, session_id: str, row_ids: Sequence[Any]) -> bool:
        """Whether a row of another session or owner has one of these `_id`s."""
        ids = [unspelled(row_id) for row_id in row_ids]
        query = {"_id": {"$in": ids}, "$nor": [of_session(owner_key, session_id)]}
        return await self._messages.find_one(query, {"_id": 1}) is not None

    @driver_call
    async def recorded_in(self, owner_key: str, session_id: str, message_ids: Sequence[str]) -> str | None:
        """Another session of the owner in which a message with one of these `id`s is recorded."""
        # What the index has, and nothing else: rows that others wrote without an id do not stand in each other's way.
        ids = {"$in": list(message_ids), "$gt": ""}
        query = {"owner_key": {"$eq": owner_key}, "id": ids, "session_id": {"$ne": session_id}}
        row: Row | None = await self._messages.find_one(query, {"session_id": 1})
        return None if row is None else str(row.get("session_id"))

    @driver_call
    async def insert_rows(self, documents: Sequence[Row]) -> int:
        """Keep these, up to the first whose `_id` or `id` is taken. Returns how many were kept."""
        if not documents:
            return 0
        await self._indexed()
        try:
            await self._messages.insert_many([_unspelled_row(document) for document in documents])
        except BulkWriteError as error:
            return inserted_before_duplicate(error)
        return len(documents)

    @driver_call
    async def delete_rows(self, owner_key: str, session_id: str) -> int:
        """Remove the rows of a session. Returns how many there were."""
        return int((await self._messages.delete_many(of_session(owner_key, session_id))).deleted_count)

    @driver_call
    async def _page(self, query: Mapping[str, Any], skip: int) -> list[Row]:
        try:
            return await self._read(query, skip, STORED_IN_SESSION)
        except OperationFailure as error:
            if error.code != NO_SUCH_INDEX:
                raise
            return await self._read(query, skip, None)

    async def _read(self, query: Mapping[str, Any], skip: int, index: Order | None) -> list[Row]:
        # A negative limit: one batch, which is no larger than a large document however large the rows are.
        cursor = self._messages.find(query, hint=index).sort(_BY_ID).skip(skip).limit(-_PAGE)
        rows: list[Row] = await cursor.batch_size(_PAGE).to_list(_PAGE)
        return rows


def _spelled_row(row: Row) -> SpelledRow:
    return SpelledRow(id_text(row["_id"]), {name: spelled(value) for name, value in row.items()})


def _unspelled_row(document: Row) -> Row:
    return {name: unspelled(value) for name, value in document.items()}


def spelled(value: Any) -> Any:
    """A value that MongoDB gave, as JSON."""
    if isinstance(value, dict):
        items = {name: spelled(item) for name, item in value.items()}
        return {_LITERAL: items} if _is_marked(value) else items
    if isinstance(value, list | tuple):
        return [spelled(item) for item in value]
    if isinstance(value, Int64):
        # A range looks for what is no plain `int` one by one.
        plain = int(value)
        return {"$numberLong": str(plain)} if plain in _SMALL else plain
    # A text of MongoDB's code is a `str` too, so the type has to be it.
    if value is None or type(value) in {str, bool, int} or (isinstance(value, float) and math.isfinite(value)):
        return value
    return json.loads(json_util.dumps(value, json_options=_OPTIONS))


def unspelled(value: Any) -> Any:
    """What `spelled` was given.

    Raises:
        ValueError: it gives no such JSON; says what is wrong.
    """
    if isinstance(value, list):
        return [unspelled(item) for item in value]
    if not isinstance(value, dict):
        return value
    if not _is_marked(value):
        return {name: unspelled(item) for name, item in value.items()}
    literal = value.get(_LITERAL)
    if len(value) == 1 and isinstance(literal, dict):
        return {name: unspelled(item) for name, item in literal.items()}
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
