"""The document store on MongoDB (CONTRACT §2), through motor or pymongo's asyncio client, which share their interface.

Rules of this module:

- Every operation has a time limit of its own: without `timeoutMS` a server that is black-holed hangs a call for ever.
- An owner is always compared as a text (`$eq`), so that nothing that an owner is called can be an operator.
- Nothing is inserted before the index that makes inserting idempotent exists.
"""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, Literal

import anyio
from bson import ObjectId
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import ASCENDING, AsyncMongoClient
from pymongo.errors import ConfigurationError, DuplicateKeyError, InvalidURI

from nexus.adapters.mongo_bulk import Bulk
from nexus.adapters.mongo_calls import Calls, completed
from nexus.adapters.mongo_indexes import Indexes
from nexus.adapters.mongo_inserts import insert_row, insert_rows
from nexus.adapters.mongo_memory import MongoMemory
from nexus.adapters.mongo_pipelines import Pipelines
from nexus.adapters.mongo_reads import MongoReads
from nexus.adapters.mongo_schema import CODEC
from nexus.adapters.mongo_states import COLLECTION as STATES
from nexus.adapters.mongo_states import find_state, put_state
from nexus.adapters.mongo_transfer import MongoTransfer
from nexus.adapters.mongo_turns import COLLECTION as TURNS
from nexus.adapters.mongo_turns import MongoTurns
from nexus.core.errors import ConfigError, StoreRejectedError, StoreUnavailableError
from nexus.core.ports import Row, TurnStore
from nexus.core.ports.memory import MemoryStore
from nexus.core.ports.transfer import TransferStore

Driver = Literal["motor", "pymongo"]

# How long calls that nobody waits for may still take when the store is closed.
_PARTING_S: Final = 0.5
# Motor runs its calls on threads, five a core unless MOTOR_MAX_WORKERS says otherwise; pymongo has a connection pool.
_THREADS: Final = int(os.environ.get("MOTOR_MAX_WORKERS", (os.cpu_count() or 1) * 5))
_CONNECTIONS: Final = 100


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
    pipelines = Pipelines(client, reply_s=timeout_ms / 1_000)
    store = MongoStore(client, database, pipelines, at_once=_THREADS if driver == "motor" else _CONNECTIONS)
    try:
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            parting_s = min(timeout_ms / 1_000, _PARTING_S)
            await pipelines.close(parting_s)
            await store.calls.finish(parting_s)
            if driver == "motor":
                # It says goodbye to the server, and waits.
                await anyio.to_thread.run_sync(client.close)
            else:
                await client.close()


class MongoStore(MongoReads):
    """`nexus.core.ports.Store` on MongoDB.

    Attributes:
        pipelines: on which the rows of every context are read, and what is recorded is inserted in passing.
    """

    def __init__(self, client: Any, database: str, pipelines: Pipelines, *, at_once: int) -> None:
        self._client = client
        self._database = client.get_database(database, codec_options=CODEC)
        super().__init__(self._database["messages"], Calls(at_once), pipelines)
        self.pipelines = pipelines
        self._indexes = Indexes(client, self._database)
        self._bulk = Bulk(self._messages, pipelines)
        self.turns: TurnStore = MongoTurns(self._database[TURNS], self.calls, self._prepare_late, pipelines)
        self.transfer: TransferStore = MongoTransfer(self._messages, self.calls, self._prepare_late)
        self.memory: MemoryStore = MongoMemory(self._database, self.calls, self._prepare_late)

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way but the reading of owners' newest messages on the wire."""
        return self.calls.under_way > 0

    @completed
    async def prepare(self) -> None:
        """Make the indexes.

        Raises:
            StoreRejectedError: what is stored has twice what may be there once; says where.
        """
        await self._indexes.make()
        self.pipelines.open_one()

    @completed
    async def ping(self) -> None:
        """Return when the server answers."""
        await self._client.admin.command("ping")

    @completed
    async def insert_message(self, row: Row) -> bool:
        """Record a row. False when its owner has a row with that `id`."""
        await self._prepare_late()
        return await insert_row(self._messages, row)

    @completed
    async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
        """Record rows, each of which fares by itself."""
        await self._prepare_late()
        return await insert_rows(self._messages, rows, self._bulk)

    @completed
    async def find_identity(self, public_key: str) -> Row | None:
        """The identity with that public key."""
        return await self._find_one("identities", {"public_key": {"$eq": public_key}})

    @completed
    async def find_configuration(self, environment: str) -> Row | None:
        """The `configurations` document of the environment."""
        return await self._find_one("configurations", {"environment": {"$eq": environment}})

    @completed
    async def put_tool(self, name: str, definition: Mapping[str, Any] | None, said_at: datetime) -> bool:
        """Keep the definition, or that there is none, unless something that was said later is kept."""
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

    @completed
    async def list_tools(self) -> list[Row]:
        """The definitions that are kept, by name."""
        rows = await self._database["tools"].find({}, {"_id": 0}).sort("name", ASCENDING).to_list(None)
        return [row["definition"] for row in rows if isinstance(row.get("definition"), dict)]

    @completed
    async def find_session_state(self, owner_key: str, session_id: str) -> Row | None:
        """The session's document and its revision."""
        return await find_state(self._database[STATES], owner_key, session_id)

    @completed
    async def put_session_state(
        self, owner_key: str, session_id: str, document: Mapping[str, Any], revision: int
    ) -> bool:
        """Keep the document in place of the one with that revision. False when another was kept in between."""
        await self._prepare_late()
        return await put_state(self._database[STATES], owner_key, session_id, document, revision)

    async def _prepare_late(self) -> None:
        if self._indexes.are_made:
            return
        try:
            await self._indexes.make()
        except StoreRejectedError as error:
            # It is not the row that is wrong.
            raise StoreUnavailableError(str(error)) from error

    async def _find_one(self, collection: str, query: Mapping[str, Any]) -> Row | None:
        row: Row | None = await self._database[collection].find_one(query)
        if row and isinstance(row.get("_id"), ObjectId):
            del row["_id"]
        return row
