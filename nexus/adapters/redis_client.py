"""What the Redis adapters share: the connection and the translation of its errors.

redis-py repeats a failed command ten times by default, which sends a PUBLISH twice. Here it never repeats anything;
what may be repeated is repeated by whoever knows that it may. And it fails a command that finds all of its 100
connections in use; here the command waits for one.
"""

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple

import anyio
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from nexus.adapters.redis_cluster import ClusterRedis
from nexus.adapters.redis_connections import robust
from nexus.adapters.redis_sentinel import open_sentinel
from nexus.adapters.redis_urls import Address, RedisUrl, parse_redis_url
from nexus.core.errors import BusRefusedError, BusUnavailableError

_Result = TypeVar("_Result")
_Given = TypeVarTuple("_Given")

_CONNECT_S: Final = 2.0
_COMMAND_S: Final = 2.0
# Each subscription holds one for as long as it lasts.
_MOST_CONNECTIONS: Final = 100
_POOL: Final[dict[str, Any]] = {"max_connections": _MOST_CONNECTIONS, "timeout": _COMMAND_S}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


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
        # A socket of this machine has nothing to keep alive.
        del options["socket_keepalive"]
        options |= {"path": url.path, "connection_class": robust(UnixDomainSocketConnection)}
    else:
        host, port = address or url.addresses[0]
        options |= {"host": host, "port": port, "connection_class": robust(SSLConnection if url.secure else Connection)}
    return Redis.from_pool(BlockingConnectionPool(**_POOL, **options))


@contextmanager
def translated() -> Iterator[None]:
    """Redis's and the socket's errors as `BusUnavailableError`. Its text names no host."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise _translation(error) from error


def _translation(error: RedisError | OSError) -> BusUnavailableError:
    if "WRONGTYPE" in str(error):
        return BusRefusedError("a key of that name is of another type")
    return BusUnavailableError(type(error).__name__)


async def repeated(operation: Callable[[*_Given], Awaitable[_Result]], *given: *_Given, for_s: float) -> _Result:
    """`operation`, whose repetition does no harm, tried again after errors until `for_s` seconds have passed.

    Args:
        operation: what is done.
        *given: what it is called with.
        for_s: see above.

    Raises:
        BusUnavailableError: it failed to the end, or was refused.
    """
    end = time.monotonic() + for_s
    pause = _FIRST_PAUSE
    while True:
        try:
            return await operation(*given)
        except (RedisError, OSError) as error:
            failed = error
        failure = _translation(failed)
        pause = min(pause * 2, _LONGEST_PAUSE)
        if isinstance(failure, BusRefusedError) or time.monotonic() + pause > end:
            raise failure from failed
        await anyio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  # jitter needs no secrecy
