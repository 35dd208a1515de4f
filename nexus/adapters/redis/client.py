"""Opening a client of Redis.

redis-py repeats a failed command ten times by default, which may send a PUBLISH or an XADD twice. Here it repeats
nothing: see `errors.repeated`. And where redis-py's pool fails a command that finds all connections in use, this one
waits.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from nexus.adapters.redis.cluster import ClusterRedis
from nexus.adapters.redis.errors import robust
from nexus.adapters.redis.sentinel import open_sentinel
from nexus.adapters.redis.urls import Address, RedisUrl, parse_redis_url

_CONNECT_S: Final = 2.0
# Longer than any blocking read waits.
_COMMAND_S: Final = 2.0
# A subscription holds one for as long as it lasts.
_MOST_CONNECTIONS: Final = 100
_POOL: Final[dict[str, Any]] = {"max_connections": _MOST_CONNECTIONS, "timeout": _COMMAND_S}


@asynccontextmanager
async def open_redis(url: str) -> AsyncIterator[Redis]:
    """A client for `url`: a server, the master that Sentinel watches, or a cluster. Connects when it is first used.

    Raises:
        ConfigError: the URL cannot be used. The text does not repeat it.
    """
    parsed = parse_redis_url(url)
    if parsed.kind == "sentinel":
        async with open_sentinel(parsed, _options(), _POOL) as client:
            yield client
        return
    client = ClusterRedis(parsed.addresses, partial(_open, parsed)) if parsed.kind == "cluster" else _open(parsed)
    try:
        yield client
    finally:
        with anyio.move_on_after(_COMMAND_S, shield=True):
            await client.aclose()


def _options() -> dict[str, Any]:
    return {
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": _CONNECT_S,
        "socket_timeout": _COMMAND_S,
        "socket_keepalive": True,
        "client_name": "nexus",
    }


def _open(url: RedisUrl, address: Address | None = None) -> Redis:
    """A client for one server, which is the only one of `url` unless an address is given."""
    options = {**_options(), **url.login, **url.tls, "db": url.database}
    if url.path:
        # A Unix socket has nothing to keep alive.
        del options["socket_keepalive"]
        options |= {"path": url.path, "connection_class": robust(UnixDomainSocketConnection)}
    else:
        host, port = address or url.addresses[0]
        options |= {"host": host, "port": port, "connection_class": robust(SSLConnection if url.secure else Connection)}
    return Redis.from_pool(BlockingConnectionPool(**_POOL, **options))
