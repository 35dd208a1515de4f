"""The document store on MongoDB (CONTRACT §2), through motor or pymongo's asyncio client, which share their interface.

Rules of this module:

- Every operation has a time limit of its own: without `timeoutMS` a server that is black-holed hangs a call for ever.
- An owner is always compared as a text (`$eq`), so that nothing that an owner is called can be an operator.
- Big contents stay on the server: a projection cuts their middle out. Rows of tools are skipped in the index.
- Dates that Python cannot hold and text that is not UTF-8 come through changed rather than spoil the rows around them.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Literal

from bson import ObjectId
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import ASCENDING, DESCENDING, AsyncMongoClient, IndexModel
from pymongo.errors import (
    ConfigurationError,
    DocumentTooLarge,
    DuplicateKeyError,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    WriteError,
)

from nexus.core.errors import ConfigError, StoreRejectedError, StoreUnavailableError
from nexus.core.ports import Row

Driver = Literal["motor", "pymongo"]

_CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO, unicode_decode_error_handler="replace"
)
_NEWEST_FIRST: Final = [("timestamp", DESCENDING), ("_id", DESCENDING)]
_NOT_SHOWN: Final = [form for role in ("TOOL", "SYSTEM", "COMMAND") for form in (role, role.lower(), role.title())]
_INDEXES: Final[dict[str, list[IndexModel]]] = {
    "messages": [
        # The role stands last so that the sort is served and rows of tools are passed over without being read.
        IndexModel(
            [("owner_key", ASCENDING), ("timestamp", DESCENDING), ("_id", DESCENDING), ("role", ASCENDING)],
            name="newest_of_owner",
        ),
        # Partial, because rows that others wrote without an id must not stand in each other's way.
        IndexModel(
            [("owner_key", ASCENDING), ("id", ASCENDING)],
            name="one_per_id",
            unique=True,
            partialFilterExpression={"id": {"$gt": ""}},
        ),
        IndexModel([("owner_key", ASCENDING), ("run_id", ASCENDING)], name="run_of_owner"),
    ],
    "identities": [IndexModel([("public_key", ASCENDING)], name="one_per_key", unique=True)],
    "configurations": [IndexModel([("environment", ASCENDING)], name="one_per_environment", unique=True)],
    "tools": [IndexModel([("name", ASCENDING)], name="one_per_name", unique=True)],
}
_HEADER: Final = dict.fromkeys(("id", "run_id", "owner_key", "session_id", "role", "timestamp"), 1)


@asynccontextmanager
async def open_mongo(
    uri: str,
    database: str,
    *,
    driver: Driver = "motor",
    timeout_ms: int = 1_500,
    server_selection_timeout_ms: int = 1_500,
) -> AsyncIterator["MongoStore"]:
    """A store on the MongoDB at `uri`. Connects when it is first used.

    Raises:
        ConfigError: the URI cannot be used. The text does not repeat it.
    """
    options: dict[str, Any] = {
        "timeoutMS": timeout_ms,
        "serverSelectionTimeoutMS": server_selection_timeout_ms,
        "w": "majority",
        "retryReads": True,
        "retryWrites": True,
        "appname": "nexus",
    }
    try:
        client: Any = AsyncIOMotorClient(uri, **options) if driver == "motor" else AsyncMongoClient(uri, **options)
    except (ConfigurationError, InvalidURI, ValueError) as error:
        raise ConfigError(f"database.uri: cannot be used ({type(error).__name__})") from None
    try:
        yield MongoStore(client, database)
    finally:
        closing = client.close()
        if closing is not None:
            await closing


class MongoStore:
    """`nexus.core.ports.Store` on MongoDB."""

    def __init__(self, client: Any, database: str) -> None:
        self._client = client
        self._database = client.get_database(database, codec_options=_CODEC)
        self._messages = self._database["messages"]

    async def prepare(self) -> None:
        """Make the indexes."""
        with _translated():
            for collection, indexes in _INDEXES.items():
                await self._database[collection].create_indexes(indexes)

    async def ping(self) -> None:
        """Return when the server answers."""
        with _translated():
            await self._client.admin.command("ping")

    async def insert_message(self, row: Row) -> bool:
        """Record a row. False when its owner has a row with that `id`."""
        with _translated():
            try:
                await self._messages.insert_one(dict(row))
            except DuplicateKeyError:
                return False
        return True

    async def newest_messages(
        self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows after the newest `skip`, newest first, of any role but tools, system and commands."""
        query = {"owner_key": {"$eq": owner_key}, "role": {"$nin": _NOT_SHOWN}}
        return await self._find(query, limit=limit, skip=skip, projection=_excerpt(excerpt_chars))

    async def all_messages(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` rows of every role, whole, newest first."""
        return await self._find({"owner_key": {"$eq": owner_key}}, limit=limit)

    async def messages_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of these runs, newest first, without those of tools, system and commands."""
        query = {"owner_key": {"$eq": owner_key}, "run_id": {"$in": list(run_ids)}, "role": {"$nin": _NOT_SHOWN}}
        return await self._find(query, limit=limit, projection=_excerpt(excerpt_chars))

    async def find_message(self, owner_key: str, message_id: str) -> Row | None:
        """The row with that `id`, without its content."""
        rows = await self._find(
            {"owner_key": {"$eq": owner_key}, "id": {"$eq": message_id}}, limit=1, projection=_HEADER
        )
        return rows[0] if rows else None

    async def session_of_run(self, owner_key: str, run_id: str) -> str | None:
        """The session in which the run's human input was recorded."""
        query = {"owner_key": {"$eq": owner_key}, "run_id": {"$eq": run_id}, "role": "HUMAN"}
        rows = await self._find(query, limit=1, projection={"session_id": 1})
        session = rows[0].get("session_id") if rows else None
        return session if isinstance(session, str) else None

    async def find_identity(self, public_key: str) -> Row | None:
        """The identity with that public key."""
        return await self._find_one("identities", {"public_key": {"$eq": public_key}})

    async def find_configuration(self, environment: str) -> Row | None:
        """The `configurations` document of the environment."""
        return await self._find_one("configurations", {"environment": {"$eq": environment}})

    async def put_tool(self, name: str, definition: Mapping[str, Any]) -> None:
        """Keep the definition, in place of one of that name."""
        change = {"$set": {"definition": dict(definition)}}
        with _translated():
            try:
                await self._database["tools"].update_one({"name": {"$eq": name}}, change, upsert=True)
            except DuplicateKeyError:
                # Another replica put the same name in between; now it is there to be updated.
                await self._database["tools"].update_one({"name": {"$eq": name}}, change)

    async def delete_tool(self, name: str) -> bool:
        """Forget the definition; False when there was none."""
        with _translated():
            result = await self._database["tools"].delete_one({"name": {"$eq": name}})
        return bool(result.deleted_count)

    async def list_tools(self) -> list[Row]:
        """The definitions that are kept, by name."""
        with _translated():
            rows = await self._database["tools"].find({}, {"_id": 0}).sort("name", ASCENDING).to_list(None)
        return [row["definition"] for row in rows if isinstance(row.get("definition"), dict)]

    async def _find(
        self, query: Mapping[str, Any], *, limit: int, skip: int = 0, projection: Mapping[str, Any] | None = None
    ) -> list[Row]:
        with _translated():
            cursor = self._messages.find(query, projection).sort(_NEWEST_FIRST).skip(skip).limit(limit)
            # One batch holds all, so that there is no second round trip.
            rows: list[Row] = await cursor.batch_size(limit + 1).to_list(limit)
        for row in rows:
            row["_id"] = str(row["_id"])
        return rows

    async def _find_one(self, collection: str, query: Mapping[str, Any]) -> Row | None:
        with _translated():
            row: Row | None = await self._database[collection].find_one(query)
        if row and isinstance(row.get("_id"), ObjectId):
            del row["_id"]
        return row


def _excerpt(chars: int | None) -> dict[str, Any] | None:
    if chars is None:
        return None
    length = {"$strLenCP": "$content"}
    ends = [
        {"$substrCP": ["$content", 0, chars]},
        {"$substrCP": ["$content", {"$subtract": [length, chars]}, chars]},
    ]
    # The length in bytes is known without reading the text, so it is asked first; conditions stand inside each other
    # because a length can only be asked of a text.
    by_chars = {"$cond": [{"$gt": [length, 2 * chars]}, {"$concat": ends}, "$content"]}
    by_bytes = {"$cond": [{"$gt": [{"$strLenBytes": "$content"}, 2 * chars]}, by_chars, "$content"]}
    is_text = {"$eq": [{"$type": "$content"}, "string"]}
    is_object = {"$eq": [{"$type": "$metadata"}, "object"]}
    return {
        **_HEADER,
        "content": {"$cond": [is_text, by_bytes, "$content"]},
        "metadata": {"$cond": [is_object, {"tool_calls": "$metadata.tool_calls"}, "$metadata"]},
    }


@contextmanager
def _translated() -> Iterator[None]:
    """What MongoDB and its drivers raise, as the errors that the ports promise. Texts name no host and no content."""
    try:
        yield
    except (BSONError, DocumentTooLarge, WriteError, OverflowError) as error:
        raise StoreRejectedError(type(error).__name__) from error
    except OperationFailure as error:
        raise StoreUnavailableError(f"{type(error).__name__} {error.code}") from error
    except PyMongoError as error:
        raise StoreUnavailableError(type(error).__name__) from error
