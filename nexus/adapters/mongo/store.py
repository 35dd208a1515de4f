"""The document store on MongoDB: messages, turns, memory, and the small collections beside them (contract §2)."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

import anyio
import anyio.to_thread
import pymongo
from bson import ObjectId
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import ASCENDING, AsyncMongoClient
from pymongo.errors import ConfigurationError, DuplicateKeyError, InvalidURI
from pymongo.read_concern import ReadConcern

from nexus.adapters.mongo.client import Calls, driver_call, insert_call
from nexus.adapters.mongo.documents import WITHOUT_ID, Documents
from nexus.adapters.mongo.erasure import MongoErasure
from nexus.adapters.mongo.memory import MongoMemory, MongoTurns
from nexus.adapters.mongo.messages import MongoMessages
from nexus.adapters.mongo.person import MongoConstraints, MongoFacts
from nexus.adapters.mongo.recall import MongoRecall
from nexus.adapters.mongo.records import MongoRecords
from nexus.adapters.mongo.replicas import MongoReplicas
from nexus.adapters.mongo.retention import MongoRetention
from nexus.adapters.mongo.schema import CODEC, EXACT_CODEC, Indexes, inventory, of_session
from nexus.adapters.mongo.transfer import MongoTransfer
from nexus.adapters.mongo.versions import check_database, written
from nexus.core.errors import ConfigError
from nexus.core.ports import (
    ConstraintStore,
    ErasureStore,
    FactStore,
    Inventory,
    RecallIndex,
    RecordStore,
    ReplicaStore,
    RetentionStore,
    Row,
    TurnStore,
)
from nexus.core.ports.memory import MemoryStore
from nexus.core.ports.store import TransferStore

Driver = Literal["motor", "pymongo"]

# How long closing the client may take, with the calls that have no caller any more.
_CLOSING_S: Final = 0.5
# Motor runs its calls on threads, five a core unless MOTOR_MAX_WORKERS says otherwise; pymongo has a connection pool.
_MOTOR_CALLS: Final = int(os.environ.get("MOTOR_MAX_WORKERS", (os.cpu_count() or 1) * 5))
_PYMONGO_CALLS: Final = 100
_ALLOWED: Final = "mongodb://[user:password@]host[:port]/[?options] is allowed, user and password percent-encoded"
_TLS_FILES: Final = frozenset({"tlscafile", "tlscertificatekeyfile", "tlscrlfile"})


@asynccontextmanager
async def open_mongo(
    uri: str,
    database: str,
    *,
    driver: Driver = "motor",
    timeout_ms: int = 1_500,
    server_selection_timeout_ms: int = 1_500,
    recall: bool = True,
) -> AsyncIterator["MongoStore"]:
    """A store on the MongoDB at `uri`. Connects when it is first used; no operation takes longer than `timeout_ms`.

    With `recall`, what is recorded is to be indexed for long-term memory.

    Raises:
        ConfigError: the URI cannot be used. The text does not repeat it.
    """
    options: dict[str, Any] = {
        "timeoutMS": timeout_ms,
        "serverSelectionTimeoutMS": server_selection_timeout_ms,
        # The driver's own 20 s would keep its monitor on a connection that a vanished server left behind.
        "connectTimeoutMS": server_selection_timeout_ms,
        # Whatever the URI says: nothing else keeps the promises of the ports.
        "w": "majority",
        "readPreference": "primary",
        "retryReads": True,
        "retryWrites": True,
        "appname": "nexus",
    }
    try:
        client: Any = AsyncIOMotorClient(uri, **options) if driver == "motor" else AsyncMongoClient(uri, **options)
    except (ConfigurationError, InvalidURI, ValueError, OSError) as error:
        raise ConfigError(f"database.uri: {_fault(uri, error)}") from None
    calls = Calls(_MOTOR_CALLS if driver == "motor" else _PYMONGO_CALLS)
    try:
        yield MongoStore(client, database, calls, recall=recall)
    finally:
        # Ending its sessions at a server that is away takes what is left of the time; motor blocks meanwhile.
        with anyio.CancelScope(shield=True), pymongo.timeout(_CLOSING_S):
            await calls.finish(min(timeout_ms / 1_000, _CLOSING_S))
            await (anyio.to_thread.run_sync(client.close) if driver == "motor" else client.close())


def _fault(uri: str, error: Exception) -> str:
    """Why the URI cannot be used, without what it may hold of secrets."""
    if not isinstance(error, OSError) and "certificate" not in str(error):
        return f"cannot be used ({type(error).__name__}); {_ALLOWED}"
    # OpenSSL does not say which file it was.
    named = [(name, path) for name, path in parse_qsl(urlsplit(uri).query) if name.lower() in _TLS_FILES]
    files = [f"{name} {path}" for name, path in named if getattr(error, "filename", None) in {None, path}]
    reason = getattr(error, "strerror", None) or type(error).__name__
    return f"{' or '.join(files) or 'a file in it'}: cannot be used: {reason}"


class MongoStore(MongoMessages):
    """`nexus.core.ports.Store` on MongoDB."""

    def __init__(self, client: Any, database: str, calls: Calls, *, recall: bool) -> None:
        self._client = client
        # What is found there is not written again, so it has to be what no change of the primary takes away.
        self._database = client.get_database(database, codec_options=CODEC, read_concern=ReadConcern("majority"))
        self._indexes = Indexes(client, self._database, calls)
        indexed = self._indexes.ensure
        messages = self._database["messages"]
        # A compaction passes over rows that it does not see, so it is to see those that no majority has yet.
        super().__init__(messages.with_options(read_concern=ReadConcern("local")), calls, indexed, recall=recall)
        self.turns: TurnStore = MongoTurns(self._database["turns"], calls, indexed)
        self.memory: MemoryStore = MongoMemory(self._database, calls, indexed)
        self.retention: RetentionStore = MongoRetention(self._database, calls, indexed)
        self.recall: RecallIndex = MongoRecall(self._database, calls, indexed)
        self.facts: FactStore = MongoFacts(self._database["facts"], calls, indexed)
        self.constraints: ConstraintStore = MongoConstraints(self._database["constraints"], calls, indexed)
        self.records: RecordStore = MongoRecords(self._database, calls, indexed)
        self.replicas: ReplicaStore = MongoReplicas(self._database, calls, indexed)
        self.erasure: ErasureStore = MongoErasure(self._database, calls, indexed)
        exact = messages.with_options(codec_options=EXACT_CODEC)
        self.transfer: TransferStore = MongoTransfer(exact, calls, indexed, recall=recall)

    async def prepare(self) -> None:
        """Make the indexes; StoreRejectedError names a collection whose documents break a promise of uniqueness."""
        await self._indexes.make()

    @driver_call
    async def inspect(self) -> Inventory:
        """What is there; makes nothing."""
        return await inventory(self._client, self._database)

    @driver_call
    async def ping(self) -> None:
        """Return when the server answers, and no newer release has written to the database."""
        await self._client.admin.command("ping")
        await check_database(self._database)

    @driver_call
    async def find_identity(self, public_key: str) -> Row | None:
        """The identity with that public key."""
        return await self._find_one("identities", {"public_key": {"$eq": public_key}})

    @driver_call
    async def find_configuration(self, environment: str) -> Row | None:
        """The `configurations` document of the environment."""
        return await self._find_one("configurations", {"environment": {"$eq": environment}})

    @insert_call
    async def put_tool(self, name: str, definition: Mapping[str, Any] | None, said_at: datetime) -> bool:
        """Keep the definition, or that there is none, unless a later one is kept."""
        not_later = {"name": {"$eq": name}, "$or": [{"said_at": {"$lte": said_at}}, {"said_at": None}]}
        change = {"$set": written({"definition": None if definition is None else dict(definition), "said_at": said_at})}
        tools = self._documents("tools")
        try:
            await tools.update(not_later, change, upsert=True)
        except DuplicateKeyError:
            await tools.read_one({"name": {"$eq": name}})
            # A definition is kept under the name: a later one, or one of another replica in between. An update that
            # changes nothing waits for a majority as well.
            return await tools.update(not_later, change)
        return True

    @driver_call
    async def list_tools(self) -> list[Row]:
        """The definitions that are kept, by name."""
        rows = await self._documents("tools").read_all({}, WITHOUT_ID, [("name", ASCENDING)])
        return [row["definition"] for row in rows if isinstance(row.get("definition"), dict)]

    @driver_call
    async def find_session_state(self, owner_key: str, session_id: str) -> Row | None:
        """The session's document and its revision."""
        return await self._documents("session_states").read_one(of_session(owner_key, session_id), WITHOUT_ID)

    @insert_call
    async def put_session_state(
        self, owner_key: str, session_id: str, document: Mapping[str, Any], revision: int
    ) -> bool:
        """Keep the document in place of the one with that revision. False when another was kept in between."""
        place = {"owner_key": owner_key, "session_id": session_id}
        return await self._documents("session_states").put_revision(place, document, revision)

    def _documents(self, collection: str) -> Documents:
        return Documents(self._database[collection])

    async def _find_one(self, collection: str, query: Mapping[str, Any]) -> Row | None:
        row = await self._documents(collection).read_one(query)
        if row and isinstance(row.get("_id"), ObjectId):
            del row["_id"]
        return row
