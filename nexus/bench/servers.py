"""The servers that are measured on, and names on them that nobody else uses."""

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import anyio
from pydantic import SecretStr
from pymongo import AsyncMongoClient, DeleteMany
from pymongo.errors import PyMongoError
from redis.exceptions import RedisError

from nexus.adapters.redis_client import open_redis
from nexus.adapters.redis_journal import JournalKeys, short
from nexus.bench.shapes import Document, Request, Shape
from nexus.config import DatabaseSettings
from nexus.connections import open_store
from nexus.core.errors import ConfigError, NexusError

_PATIENCE_S: Final = 3.0
_INSERTED_AT_ONCE: Final = 2_000
_DELETED_AT_ONCE: Final = 1_000
# Of an error's text.
_LONGEST: Final = 200
# How long what was asked may take to be recorded, and how often that is looked at.
_RECORDED_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.02

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Servers:
    """Where Redis and MongoDB are.

    Attributes:
        mongo: a client for filling and cleaning.
        driver: as `database.driver`, of what is measured.
        run: goes before the names of this run's databases and topics.
    """

    redis_url: str
    mongo_uri: str
    driver: str
    run: str
    mongo: AsyncMongoClient[Document]

    async def drop(self) -> None:
        """Drop all that was made on them so far."""
        for name in await self.mongo.list_database_names():
            if name.startswith(self.run):
                await self.mongo.drop_database(name)
        async with open_redis(self.redis_url) as redis:
            keys: list[Any] = []
            async for key in redis.scan_iter(f"{self.run}*", count=_DELETED_AT_ONCE):
                keys.append(key)
                if len(keys) == _DELETED_AT_ONCE:
                    await redis.unlink(*keys)
                    keys = []
            if keys:
                await redis.unlink(*keys)


@contextmanager
def _in_words() -> Iterator[None]:
    """Errors of the servers' clients as ours. A text of theirs may be as long as what was stored."""
    try:
        yield
    except (PyMongoError, RedisError) as error:
        raise NexusError(
            f"a server does not do what was asked: {type(error).__name__}: {str(error)[:_LONGEST]}"
        ) from error


@asynccontextmanager
async def on_servers(redis_url: str, mongo_uri: str, driver: str) -> AsyncIterator[Servers]:
    """The servers, seen to be there. All that was made on them is dropped at the end.

    Raises:
        NexusError: one of them does not answer. The text repeats no address.
    """
    try:
        client = AsyncMongoClient[Document](mongo_uri, serverSelectionTimeoutMS=int(_PATIENCE_S * 1_000))
    except (PyMongoError, ValueError) as error:
        raise ConfigError(f"--mongo-uri: cannot be used ({type(error).__name__})") from None
    servers = Servers(redis_url, mongo_uri, driver, f"nexus_bench_{uuid.uuid4().hex[:8]}", client)
    async with client:
        await _see(servers)
        try:
            with _in_words():
                yield servers
        finally:
            with anyio.CancelScope(shield=True):
                await servers.drop()


async def _see(servers: Servers) -> None:
    """See that both servers answer."""
    try:
        async with open_redis(servers.redis_url) as redis:
            with anyio.fail_after(_PATIENCE_S):
                await redis.ping()
    except (RedisError, OSError) as error:
        advice = "name one with --redis-url; its address is also taken from NEXUS_TEST_REDIS_URL or bus.url"
        raise NexusError(f"Redis does not answer ({type(error).__name__}): {advice}") from None
    try:
        await servers.mongo.admin.command("ping")
    except PyMongoError as error:
        advice = "name one with --mongo-uri; its address is also taken from NEXUS_TEST_MONGO_URI or database.uri"
        raise NexusError(f"MongoDB does not answer ({type(error).__name__}): {advice}") from None


@dataclass(frozen=True, slots=True)
class Place:
    """A database of the run."""

    servers: Servers
    name: str

    @property
    def database(self) -> str:
        """Its name on the server."""
        return f"{self.servers.run}_{self.name}"

    async def fill(self, shapes: Iterable[Shape], advance: Advance) -> None:
        """Store the rows, and then make the service's own indexes. `advance` is told of every row."""
        messages = self.servers.mongo[self.database]["messages"]
        for shape in shapes:
            rows = shape.all_rows()
            while batch := [*islice(rows, _INSERTED_AT_ONCE if shape.chars < _BIG else _BIG_AT_ONCE)]:
                await messages.insert_many(batch, ordered=False)
                advance(len(batch))
        settings = DatabaseSettings(uri=SecretStr(self.servers.mongo_uri), name=self.database)
        async with open_store(settings) as store:
            await store.prepare()

    async def recorded(self, requests: Sequence[Request]) -> int:
        """Wait until the inputs of these requests, and the turns that they begin, are stored.

        Returns how many inputs and turns were not stored in time.
        """
        left = _stored_by(requests)
        with anyio.move_on_after(_RECORDED_S):
            while left := [one for one in left if await self._missing(one)]:  # noqa: ASYNC110  # another process records
                await anyio.sleep(_LOOK_EVERY_S)
        return sum([await self._missing(one) for one in left])

    async def forget(self, requests: Sequence[Request]) -> None:
        """Take back what these requests had recorded, so that the next find what they found."""
        database = self.servers.mongo[self.database]
        inputs = [DeleteMany(stored.query) for stored in _stored_by(requests) if stored.collection == "messages"]
        await database["messages"].bulk_write(inputs, ordered=False)
        # Also of requests before these, should one have come too late.
        await database["turns"].delete_many({"owner_key": {"$in": [*{request.owner for request in requests}]}})

    async def forget_versions(self, prefix: str, owners: Sequence[str]) -> None:
        """Take the owners' versions from Redis: whoever keeps something of them in memory has to read it anew.

        Args:
            prefix: of the responder's keys.
            owners: whose.
        """
        keys = JournalKeys(prefix)
        async with open_redis(self.servers.redis_url) as redis:
            await redis.unlink(*[keys.version(short(owner)) for owner in owners])

    async def _missing(self, stored: "_Stored") -> int:
        found = await self.servers.mongo[self.database][stored.collection].count_documents(stored.query)
        return max(0, len(stored.ids) - found)


@dataclass(frozen=True, slots=True)
class _Stored:
    """What requests have stored of one owner in one collection, by the field that names it."""

    collection: str
    owner: str
    field: str
    ids: Sequence[str]

    @property
    def query(self) -> Document:
        return {"owner_key": self.owner, self.field: {"$in": [*self.ids]}}


def _stored_by(requests: Sequence[Request]) -> list[_Stored]:
    """What the service stores of these requests, by owner."""
    of_owners: dict[str, list[Request]] = {}
    for request in requests:
        of_owners.setdefault(request.owner, []).append(request)
    found = []
    for owner, those in of_owners.items():
        found.append(_Stored("messages", owner, "id", [request.input_id for request in those]))
        found.append(_Stored("turns", owner, "run_id", [request.run_id for request in those]))
    return found


# Rows longer than that are inserted so many at once.
_BIG: Final = 10_000
_BIG_AT_ONCE: Final = 50
