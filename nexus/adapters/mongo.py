"""The document store on MongoDB (CONTRACT §2), through motor or pymongo's asyncio client, which share their interface.

Rules of this module:

- Every operation has a time limit of its own: without `timeoutMS` a server that is black-holed hangs a call for ever.
- An owner is always compared as a text (`$eq`), so that nothing that an owner is called can be an operator.
- Nothing is inserted before the index that makes inserting idempotent exists.
- One row that the server cannot cut or sort by time does not spoil the rows around it.
"""

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial, wraps
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

import anyio
from bson import ObjectId
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import ASCENDING, AsyncMongoClient
from pymongo.errors import ConfigurationError, DuplicateKeyError, InvalidURI, OperationFailure

from nexus.adapters.mongo_calls import Calls
from nexus.adapters.mongo_indexes import make_indexes
from nexus.adapters.mongo_schema import (
    CODEC,
    HEADER,
    NEWEST_FIRST,
    NO_TEXT_TIME,
    NOT_INTERNAL,
    NOT_SHOWN,
    OF_SESSION,
    OLDEST_FIRST,
    ORIGIN,
    TEXT_TIME,
    cut,
    excerpt,
    newest_first,
    origin_of,
    seen_by,
)
from nexus.adapters.mongo_states import COLLECTION as STATES
from nexus.adapters.mongo_states import find_state, put_state
from nexus.core.errors import ConfigError, StoreRejectedError, StoreUnavailableError
from nexus.core.ports import Row, RunOrigin

Driver = Literal["motor", "pymongo"]
_P = ParamSpec("_P")
_Result = TypeVar("_Result")
_Call = Coroutine[Any, Any, _Result]

# How long calls that nobody waits for may still take when the store is closed.
_PARTING_S: Final = 0.5
# Motor runs its calls on threads, five a core unless MOTOR_MAX_WORKERS says otherwise; pymongo has a connection pool.
_THREADS: Final = int(os.environ.get("MOTOR_MAX_WORKERS", (os.cpu_count() or 1) * 5))
_CONNECTIONS: Final = 100
# What $substrCP and $strLenCP say of a text that is not UTF-8.
_NOT_UTF8: Final = range(34450, 34474)
# No index has the fields of the hint.
_NO_SUCH_INDEX: Final = 2
# Rows with text timestamps come from other writers; how long it may take until the first of them is noticed.
_LOOKED_AGAIN_S: Final = 60


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
        # The driver's own 20 s would keep its monitor on a connection that a vanished server left behind.
        "connectTimeoutMS": server_selection_timeout_ms,
        "w": "majority",
        "retryReads": True,
        "retryWrites": True,
        "appname": "nexus",
    }
    try:
        client: Any = AsyncIOMotorClient(uri, **options) if driver == "motor" else AsyncMongoClient(uri, **options)
    except (ConfigurationError, InvalidURI, ValueError) as error:
        raise ConfigError(f"database.uri: cannot be used ({type(error).__name__})") from None
    store = MongoStore(client, database, at_once=_THREADS if driver == "motor" else _CONNECTIONS)
    try:
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.calls.finish(min(timeout_ms / 1_000, _PARTING_S))
            if driver == "motor":
                # It says goodbye to the server, and waits.
                await anyio.to_thread.run_sync(client.close)
            else:
                await client.close()


def _completed(
    method: Callable[Concatenate["MongoStore", _P], _Call[_Result]],
) -> Callable[Concatenate["MongoStore", _P], _Call[_Result]]:
    """A method that runs to its end, although its caller may not wait for it, and raises what the port promises."""

    @wraps(method)
    async def call(store: "MongoStore", /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        return await store.calls.run(partial(method, store, *args, **kwargs))

    return call


class MongoStore:
    """`nexus.core.ports.Store` on MongoDB."""

    def __init__(self, client: Any, database: str, *, at_once: int) -> None:
        self.calls = Calls(at_once)
        self._client = client
        self._database = client.get_database(database, codec_options=CODEC)
        self._messages = self._database["messages"]
        self._prepared = False
        self._text_times = False
        self._look_again_at = 0.0

    @_completed
    async def prepare(self) -> None:
        """Make the indexes.

        Raises:
            StoreRejectedError: what is stored has twice what may be there once; says where.
        """
        await make_indexes(self._client, self._database)
        self._prepared = True

    @_completed
    async def ping(self) -> None:
        """Return when the server answers."""
        await self._client.admin.command("ping")

    @_completed
    async def insert_message(self, row: Row) -> bool:
        """Record a row. False when its owner has a row with that `id`."""
        if not self._prepared:
            await self._prepare_late()
        try:
            await self._messages.insert_one(dict(row))
        except DuplicateKeyError:
            return False
        return True

    @_completed
    async def newest_messages(
        self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows after the newest `skip`, newest first, of any role but tools, system and commands."""
        query = {"owner_key": {"$eq": owner_key}, "role": {"$nin": NOT_SHOWN}, **NOT_INTERNAL}
        return await self._newest(query, limit=limit, skip=skip, excerpt_chars=excerpt_chars)

    @_completed
    async def all_messages(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` rows of every role, whole, newest first."""
        return await self._newest({"owner_key": {"$eq": owner_key}}, limit=limit)

    @_completed
    async def messages_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of these runs, newest first, without those of tools, system and commands."""
        query = {"owner_key": {"$eq": owner_key}, "run_id": {"$in": list(run_ids)}, "role": {"$nin": NOT_SHOWN}}
        return await self._newest(query, limit=limit, excerpt_chars=excerpt_chars)

    @_completed
    async def find_message(self, owner_key: str, message_id: str) -> Row | None:
        """The row with that `id`, without its content."""
        query = {"owner_key": {"$eq": owner_key}, "id": {"$eq": message_id}}
        row: Row | None = await self._messages.find_one(query, HEADER)
        return {**row, "_id": str(row["_id"])} if row else None

    @_completed
    async def session_messages(
        self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a session after the newest `skip`, whole, newest first, of any role."""
        query = {"owner_key": {"$eq": owner_key}, "session_id": {"$eq": session_id}, **seen_by(sub_agent)}
        # Where thousands of the newest rows are not shown, no index does better than another in the server's trials. It
        # takes the owner's then, and what it remembers of that has it hold trials again for every other session.
        return await self._newest(query, limit=limit, skip=skip, index=OF_SESSION)

    @_completed
    async def find_origin(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """Where the run's human input was recorded."""
        query = {"owner_key": {"$eq": owner_key}, "run_id": {"$eq": run_id}, "role": "HUMAN"}
        row: Row | None = await self._messages.find_one(query, ORIGIN, sort=OLDEST_FIRST)
        return origin_of(row or {})

    @_completed
    async def find_identity(self, public_key: str) -> Row | None:
        """The identity with that public key."""
        return await self._find_one("identities", {"public_key": {"$eq": public_key}})

    @_completed
    async def find_configuration(self, environment: str) -> Row | None:
        """The `configurations` document of the environment."""
        return await self._find_one("configurations", {"environment": {"$eq": environment}})

    @_completed
    async def put_tool(self, name: str, definition: Mapping[str, Any] | None, said_at: datetime) -> bool:
        """Keep the definition, or that there is none, unless something that was said later is kept."""
        if not self._prepared:
            await self._prepare_late()
        not_later = {"name": {"$eq": name}, "$or": [{"said_at": {"$lte": said_at}}, {"said_at": None}]}
        change = {"$set": {"definition": None if definition is None else dict(definition), "said_at": said_at}}
        tools = self._database["tools"]
        try:
            await tools.update_one(not_later, change, upsert=True)
        except DuplicateKeyError:
            # Something is kept under the name: said later, or put by another replica in between.
            return bool((await tools.update_one(not_later, change)).matched_count)
        return True

    @_completed
    async def list_tools(self) -> list[Row]:
        """The definitions that are kept, by name."""
        rows = await self._database["tools"].find({}, {"_id": 0}).sort("name", ASCENDING).to_list(None)
        return [row["definition"] for row in rows if isinstance(row.get("definition"), dict)]

    @_completed
    async def find_session_state(self, owner_key: str, session_id: str) -> Row | None:
        """The session's document and its revision."""
        return await find_state(self._database[STATES], owner_key, session_id)

    @_completed
    async def put_session_state(
        self, owner_key: str, session_id: str, document: Mapping[str, Any], revision: int
    ) -> bool:
        """Keep the document in place of the one with that revision. False when another was kept in between."""
        if not self._prepared:
            await self._prepare_late()
        return await put_state(self._database[STATES], owner_key, session_id, document, revision)

    async def _prepare_late(self) -> None:
        try:
            await make_indexes(self._client, self._database)
        except StoreRejectedError as error:
            # It is not the row that is wrong.
            raise StoreUnavailableError(str(error)) from error
        self._prepared = True

    async def _newest(
        self,
        query: Mapping[str, Any],
        *,
        limit: int,
        skip: int = 0,
        excerpt_chars: int | None = None,
        index: Sequence[tuple[str, int]] | None = None,
    ) -> list[Row]:
        find = partial(self._find, excerpt_chars=excerpt_chars, index=index)
        if not await self._has_text_times():
            return await find(query, limit=limit, skip=skip)
        end = skip + limit
        dated = await find({**query, **NO_TEXT_TIME}, limit=end)
        texts = await find({**query, **TEXT_TIME}, limit=end)
        return newest_first([*dated, *texts])[skip:end]

    async def _has_text_times(self) -> bool:
        now = anyio.current_time()
        if now >= self._look_again_at:
            self._text_times = await self._messages.find_one(TEXT_TIME, {"_id": 1}) is not None
            self._look_again_at = now + _LOOKED_AGAIN_S
        return self._text_times

    async def _find(
        self,
        query: Mapping[str, Any],
        *,
        limit: int,
        skip: int = 0,
        excerpt_chars: int | None = None,
        index: Sequence[tuple[str, int]] | None = None,
    ) -> list[Row]:
        projection = None if excerpt_chars is None else excerpt(excerpt_chars)
        cursor = self._messages.find(query, projection, hint=index).sort(NEWEST_FIRST).skip(skip).limit(limit)
        try:
            # One batch holds all, so that there is no second round trip.
            rows: list[Row] = await cursor.batch_size(limit + 1).to_list(limit)
        except OperationFailure as error:
            if index and error.code == _NO_SUCH_INDEX:
                # Nobody has made it yet.
                return await self._find(query, limit=limit, skip=skip, excerpt_chars=excerpt_chars)
            if excerpt_chars is None or error.code not in _NOT_UTF8:
                raise
            whole = await self._find(query, limit=limit, skip=skip)
            return [cut(row, excerpt_chars) for row in whole]
        return [{**row, "_id": str(row["_id"])} for row in rows]

    async def _find_one(self, collection: str, query: Mapping[str, Any]) -> Row | None:
        row: Row | None = await self._database[collection].find_one(query)
        if row and isinstance(row.get("_id"), ObjectId):
            del row["_id"]
        return row
