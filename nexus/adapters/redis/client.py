"""Clients of Redis: opening one, its master by Sentinel, and what errors become.

- redis-py repeats a failed command ten times by default, which may send a PUBLISH or an XADD twice. Here it repeats
  nothing; `repeated` does, for operations whose repetition does no harm.
- Where redis-py's pool fails a command that finds all connections in use, these wait.
- With Sentinel, every connection is checked when it is taken from the pool: one to a former master is opened anew.
  redis-py would use it, and a former master that lives on accepts a PUBLISH without an error. Sentinel is asked every
  second for the master, so that a subscription to a former master ends, too.
"""

import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache, partial
from typing import Any, Final, TypeVar, TypeVarTuple

import anyio
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from nexus.adapters.redis.cluster import ClusterRedis
from nexus.adapters.redis.urls import Address, RedisUrl, parse_redis_url
from nexus.core.concurrency import Pauses, items_of, ungrouped
from nexus.core.errors import BusRefusedError, BusUnavailableError, ConfigError, NexusError
from nexus.core.ports import Delivery

# Errors of Redis and of the socket, and those to which a reply leads that is not as it should be: it counts as none. A
# RuntimeError is what redis-py raises for a subscription that such a reply has ended.
FAULTS: Final = (RedisError, OSError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")

_CONNECT_S: Final = 2.0
# Longer than any blocking read waits.
_COMMAND_S: Final = 2.0
# A subscription holds one for as long as it lasts.
_MOST_CONNECTIONS: Final = 100
_POOL: Final[dict[str, Any]] = {"max_connections": _MOST_CONNECTIONS, "timeout": _COMMAND_S}
_OPTIONS: Final[dict[str, Any]] = {
    "retry": Retry(NoBackoff(), 0),
    "socket_connect_timeout": _CONNECT_S,
    "socket_timeout": _COMMAND_S,
    "socket_keepalive": True,
    "client_name": "nexus",
}
# Of operations that are repeated.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.04, 0.5
# How often Sentinel is asked, and how long one reply counts for all callers.
_ASKED_EVERY_S: Final = 1.0
_ADDRESS_LASTS_S: Final = 0.1


@asynccontextmanager
async def open_redis(url: str) -> AsyncIterator[Redis]:
    """A client for `url`: a server, the master that Sentinel watches, or a cluster. Connects when it is first used.

    Raises:
        ConfigError: the URL, or a file that it names, cannot be used. The text does not repeat the URL.
    """
    parsed = parse_redis_url(url)
    _check_files(parsed.tls)
    if parsed.kind == "sentinel":
        async with _open_sentinel(parsed) as client:
            yield client
        return
    client = ClusterRedis(parsed.addresses, partial(_open, parsed)) if parsed.kind == "cluster" else _open(parsed)
    try:
        yield client
    finally:
        with anyio.move_on_after(_COMMAND_S, shield=True):
            await client.aclose()


def _check_files(tls: Mapping[str, Any]) -> None:
    """ConfigError for a file that TLS cannot use. A connection would fail as one to a server that is away."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authorities, certificate, key = (tls.get(name) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
    named = f"ssl_ca_certs {authorities}"
    try:
        if authorities:
            context.load_verify_locations(authorities)
        named = f"ssl_certfile {certificate}" + (f" with ssl_keyfile {key}" if key else "")
        if certificate:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise ConfigError(f"bus.url: {named}: cannot be used: {error.strerror or type(error).__name__}") from None


def _open(url: RedisUrl, address: Address | None = None) -> Redis:
    """A client for one server, which is the only one of `url` unless an address is given."""
    options = {**_OPTIONS, **url.login, **url.tls, "db": url.database}
    if url.path:
        # A Unix socket has nothing to keep alive.
        del options["socket_keepalive"]
        options |= {"path": url.path, "connection_class": robust(UnixDomainSocketConnection)}
    else:
        host, port = address or url.addresses[0]
        options |= {"host": host, "port": port, "connection_class": robust(SSLConnection if url.secure else Connection)}
    return Redis.from_pool(BlockingConnectionPool(**_POOL, **options))


@asynccontextmanager
async def _open_sentinel(url: RedisUrl) -> AsyncIterator[Redis]:
    """A client for the master of the service that `url` names."""
    tls = {"ssl": True, **url.tls} if url.secure else {}
    sentinels: Any = Sentinel
    manager = sentinels(url.addresses, sentinel_kwargs={**_OPTIONS, **tls, **url.sentinel_login})
    options: dict[str, Any] = {**_OPTIONS, **_POOL, **url.login, **url.tls, "db": url.database}
    connection = robust(SentinelManagedSSLConnection if url.secure else SentinelManagedConnection)
    masters = _MasterPool(service_name=url.service, sentinel_manager=manager, connection_class=connection, **options)
    client = _MasterRedis.from_pool(masters)
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(masters.watch)
            try:
                yield client
            finally:
                tasks.cancel_scope.cancel()
                with anyio.move_on_after(_COMMAND_S, shield=True):
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
            with suppress(*FAULTS):
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


class BufferedSubscription:
    """Deliveries that wait in a buffer until they are iterated over."""

    def __init__(self, buffered: int) -> None:
        self.reconnects = 0
        self.backlogs: dict[str, int] = {}
        # The kind of the last error on the way to Redis.
        self.failure = ""
        self._send, self._receive = anyio.create_memory_object_stream[Delivery](buffered)

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return items_of(self._receive)

    def close(self) -> None:
        """End iterating."""
        self._send.close()
        self._receive.close()

    @contextmanager
    def connecting(self, longest_s: float | None) -> Iterator[None]:
        """While Redis is waited for: BusUnavailableError after so many seconds."""
        try:
            with anyio.fail_after(longest_s):
                yield
        except TimeoutError:
            reason = f": {self.failure}" if self.failure else ""
            raise BusUnavailableError(f"no answer from Redis within {longest_s:g} s{reason}") from None


def subscriber_count(client: Redis, counted: int) -> int:
    """How many subscribers received a PUBLISH, of which its reply `counted` so many.

    A node of a cluster counts only its own subscribers; there, at least one is assumed.
    """
    return max(counted, 1) if isinstance(client, ClusterRedis) else counted


def payload_of(value: Any) -> bytes:
    """The payload in a reply; TypeError, one of `FAULTS`, where the reply was spoilt and it is something else."""
    if not isinstance(value, bytes):
        raise TypeError("a spoilt reply: the payload is no text")
    return value


@contextmanager
def translated() -> Iterator[None]:
    """Turn `FAULTS` into `BusUnavailableError`, whose text names no host."""
    try:
        yield
    except FAULTS as error:
        raise _translation(error) from error


def _translation(error: Exception) -> BusUnavailableError:
    if "WRONGTYPE" in str(error):
        return BusRefusedError("a key of that name is of another type")
    return BusUnavailableError(kind_of(error))


def kind_of(error: Exception) -> str:
    """What to say of one of `FAULTS`, whose own text names hosts."""
    if isinstance(error, NexusError):
        return str(error)
    return "no answer in time" if isinstance(error, TimeoutError | RedisTimeoutError) else type(error).__name__


async def repeated(
    operation: Callable[[*_Arguments], Awaitable[_Result]], *arguments: *_Arguments, for_s: float
) -> _Result:
    """Call `operation`, whose repetition does no harm, and again after `FAULTS` until `for_s` seconds have passed.

    BusUnavailableError where every attempt failed, or Redis refused one.
    """
    end = time.monotonic() + for_s
    pauses = Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while True:
        try:
            return await operation(*arguments)
        except FAULTS as error:
            failed: Exception = error
        failure = _translation(failed)
        if isinstance(failure, BusRefusedError) or time.monotonic() + pauses.next_s > end:
            raise failure from failed
        await pauses.wait()


@cache
def robust(connection_class: type[Any]) -> type[Any]:
    """A subclass of one of redis-py's connection classes, to which writing fails with an error of Redis.

    On uvloop, writing to a connection that was lost a moment ago is a RuntimeError, which redis-py lets pass.
    """

    class RobustConnection(connection_class):  # type: ignore[misc]  # the base is a parameter
        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            """Write, or raise an error of Redis."""
            try:
                await super().send_packed_command(command, check_health=check_health)
            except RuntimeError as error:
                await self.disconnect(nowait=True)
                raise RedisConnectionError("the connection was lost") from error

    return RobustConnection
