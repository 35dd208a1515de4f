"""A Redis whose master is found by Sentinel.

Rules of this module:

- Every connection is looked at when it is taken from the pool: one to a former master is opened anew. redis-py would
  give it back, and a former master that lives on takes a PUBLISH without an error.
- Sentinel is asked every second who the master is, so that a subscription to a former master ends, too.
- The pool waits when all of its connections are in use; redis-py's fails.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.exceptions import RedisError

from nexus.adapters.redis_connections import robust
from nexus.adapters.redis_urls import RedisUrl
from nexus.core.tasks import ungrouped

_LOOK_EVERY_S: Final = 1.0
_NEWS_LASTS_S: Final = 0.1


@asynccontextmanager
async def open_sentinel(url: RedisUrl, options: dict[str, Any], pool: dict[str, Any]) -> AsyncIterator[Redis]:
    """A client for the master of the service that `url` names. `options` are those of connections."""
    tls = {"ssl": True, **url.tls} if url.secure else {}
    sentinels: Any = Sentinel
    watchers = sentinels(url.addresses, sentinel_kwargs={**options, **tls, **url.sentinel_login})
    arguments: dict[str, Any] = {
        "service_name": url.service,
        "sentinel_manager": watchers,
        "connection_class": robust(SentinelManagedSSLConnection if url.secure else SentinelManagedConnection),
        "db": url.database,
    }
    masters = _MasterPool(**{**arguments, **options, **pool, **url.login, **url.tls})
    client = Redis.from_pool(masters)
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(masters.watch)
            try:
                yield client
            finally:
                tasks.cancel_scope.cancel()
                with anyio.move_on_after(pool["timeout"], shield=True):
                    await client.aclose()
                    await watchers.aclose()


class _MasterPool(BlockingConnectionPool, SentinelConnectionPool):
    """Connections to the master, whoever that is by now."""

    def __init__(self, **arguments: Any) -> None:
        self._asking = anyio.Lock()
        self._told_at = float("-inf")
        self._known: Any = None
        super().__init__(**arguments)

    def leads_to_master(self, connection: Any) -> bool:
        """Whether the server at the other end is the master, as far as is known."""
        return self.master_address in {None, (connection.host, connection.port)}

    async def watch(self) -> None:
        """Keep the master's address up to date. Run in a task of its own."""
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            # Sentinels are away, or have no master at the moment: there will be one.
            with suppress(RedisError, OSError):
                await self.get_master_address()

    async def get_master_address(self) -> Any:
        """Ask Sentinel, or take what somebody else is being told just now.

        One at a time: redis-py loses sentinels when several ask at once. Connections are left alone, since another task
        may have begun to use one that was idle.
        """
        began = anyio.current_time()
        async with self._asking:
            if self._told_at + _NEWS_LASTS_S < began:
                try:
                    self._known = await self.sentinel_manager.discover_master(self.service_name)
                    self.master_address = self._known
                except MasterNotFoundError:
                    self._known = None
                self._told_at = anyio.current_time()
            if self._known is None:
                raise MasterNotFoundError("no sentinel knows a master")
            return self._known

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """Connect to the master, unless connected to it."""
        if not self.leads_to_master(connection):
            await connection.disconnect()
        await super().ensure_connection(connection)
