"""A client for the master that Sentinel watches.

- Every connection is checked when it is taken from the pool: one to a former master is opened anew. redis-py would use
  it, and a former master that lives on accepts a PUBLISH without an error.
- Sentinel is asked every second for the master, so that a subscription to a former master ends, too.
- The pool waits when all of its connections are in use; redis-py's fails.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from nexus.adapters.redis.errors import robust
from nexus.adapters.redis.urls import RedisUrl
from nexus.core.concurrency import ungrouped

_ASKED_EVERY_S: Final = 1.0
_ADDRESS_LASTS_S: Final = 0.1


@asynccontextmanager
async def open_sentinel(url: RedisUrl, options: dict[str, Any], pool: dict[str, Any]) -> AsyncIterator[Redis]:
    """A client for the master of the service that `url` names. `options` are those of connections."""
    tls = {"ssl": True, **url.tls} if url.secure else {}
    sentinels: Any = Sentinel
    manager = sentinels(url.addresses, sentinel_kwargs={**options, **tls, **url.sentinel_login})
    arguments: dict[str, Any] = {
        "service_name": url.service,
        "sentinel_manager": manager,
        "connection_class": robust(SentinelManagedSSLConnection if url.secure else SentinelManagedConnection),
        "db": url.database,
    }
    masters = _MasterPool(**{**arguments, **options, **pool, **url.login, **url.tls})
    client = _MasterRedis.from_pool(masters)
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(masters.watch)
            try:
                yield client
            finally:
                tasks.cancel_scope.cancel()
                with anyio.move_on_after(pool["timeout"], shield=True):
                    await client.aclose()
                    await manager.aclose()


class _MasterPool(BlockingConnectionPool, SentinelConnectionPool):
    def __init__(self, **arguments: Any) -> None:
        self._asking = anyio.Lock()
        self._asked_at = float("-inf")
        self._found: Any = None
        super().__init__(**arguments)

    def leads_to_master(self, connection: Any) -> bool:
        """Whether the server at the other end is the master, as far as is known."""
        return self.master_address in {None, (connection.host, connection.port)}

    async def watch(self) -> None:
        """Keep the master's address up to date. Run in a task of its own."""
        while True:
            await anyio.sleep(_ASKED_EVERY_S)
            # Sentinels that are away or know no master now will be asked again.
            with suppress(RedisError, OSError):
                await self.get_master_address()

    async def get_master_address(self) -> Any:
        """Ask Sentinel, or share the reply to a question that is under way.

        One question at a time: redis-py loses sentinels when several ask at once. Connections are left alone, since
        another task may have begun to use one that was idle.
        """
        began = anyio.current_time()
        async with self._asking:
            if self._asked_at + _ADDRESS_LASTS_S < began:
                try:
                    self._found = await self.sentinel_manager.discover_master(self.service_name)
                    self.master_address = self._found
                except MasterNotFoundError:
                    self._found = None
                self._asked_at = anyio.current_time()
            if self._found is None:
                raise MasterNotFoundError("no sentinel knows a master")
            return self._found

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """Connect to the master, unless connected to it."""
        if not self.leads_to_master(connection):
            await connection.disconnect()
        await super().ensure_connection(connection)


class _MasterPubSub(PubSub):
    async def get_message(self, *args: Any, **kwargs: Any) -> Any:
        """The next message; fails when the server of the subscription is no longer the master."""
        connection: Any = self.connection
        pool: Any = self.connection_pool
        if connection is not None and not pool.leads_to_master(connection):
            raise RedisConnectionError("another server is the master")
        return await super().get_message(*args, **kwargs)


class _MasterRedis(Redis):
    def pubsub(self, **kwargs: Any) -> PubSub:
        return _MasterPubSub(self.connection_pool, **kwargs)
