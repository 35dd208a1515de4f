"""What the Redis adapters share: the connection and the translation of its errors.

redis-py repeats a failed command ten times by default, which sends a PUBLISH twice. Here it never repeats anything;
what may be repeated is repeated by whoever knows that it may. And it fails a command that finds all of its 100
connections in use; here the command waits for one.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeVar

import anyio
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from nexus.core.errors import BusUnavailableError, ConfigError

_Result = TypeVar("_Result")

_CONNECT_S: Final = 2.0
_COMMAND_S: Final = 2.0
# Each subscription holds one for as long as it lasts.
_MOST_CONNECTIONS: Final = 100
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


@asynccontextmanager
async def open_redis(url: str) -> AsyncIterator[Redis]:
    """A client for `url`. Connects when it is first used.

    Raises:
        ConfigError: the URL cannot be used. The text does not repeat it.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MOST_CONNECTIONS,
            timeout=_COMMAND_S,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=_CONNECT_S,
            socket_timeout=_COMMAND_S,
            socket_keepalive=True,
            client_name="nexus",
        )
    except ValueError as error:
        raise ConfigError("bus.url: redis://, rediss:// or unix:// with a host or path is needed") from error
    client = Redis.from_pool(pool)
    try:
        yield client
    finally:
        with anyio.move_on_after(_COMMAND_S, shield=True):
            await client.aclose()


@contextmanager
def translated() -> Iterator[None]:
    """Redis's and the socket's errors as `BusUnavailableError`. Its text names no host."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise BusUnavailableError(type(error).__name__) from error


async def repeated(operation: Callable[[], Awaitable[_Result]], *, for_s: float) -> _Result:
    """`operation`, whose repetition does no harm, tried again after errors until `for_s` seconds have passed.

    Raises:
        BusUnavailableError: it failed to the end.
    """
    pause = _FIRST_PAUSE
    end = anyio.current_time() + for_s
    while True:
        try:
            with translated():
                return await operation()
        except BusUnavailableError:
            pause = min(pause * 2, _LONGEST_PAUSE)
            if anyio.current_time() + pause > end:
                raise
            await anyio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  # jitter needs no secrecy
