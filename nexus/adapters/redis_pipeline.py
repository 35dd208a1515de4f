"""Scripts and single commands of many callers on one connection, and in its round trips (automatic pipelining).

A call is written in the step of the caller, or together with others at the end of a pass of the event loop; the replies
come in the order of the calls, and each goes to its caller in the step in which it arrives. redis-py takes a connection
out of its pool for every command instead, and reads it with a task, which costs several times the processor time of the
command itself.

Rules of this module:

- Nothing is sent twice, except a script that Redis refused with NOSCRIPT, which has not run.
- A connection that breaks, or that brings no reply for so long that it counts as stalled, fails all calls that are on
  it, whether Redis did them or not. The next call opens another one.
- Connections come from the client's pool and go back closed, so that its options hold: time limits, TLS, users,
  Sentinel. A connection to a server that is no longer the master is given up before anything is written to it.
- Commands that change the connection's state (SUBSCRIBE, MULTI, SELECT) are not for here; those that block, for less
  than `command_s`, only where one caller has a pipeline of one connection to itself.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from nexus.adapters.redis.cluster import ClusterRedis
from nexus.adapters.redis_connections import taken_over
from nexus.adapters.redis_multiplexed import Argument, MultiplexedConnection, Script, packed
from nexus.core.tasks import ungrouped

# From how many bytes on another connection is used, so that what is small need not wait behind what is large.
_CROWDED: Final = 1 << 17


@dataclass(frozen=True)
class PipelineLimits:
    """What the connections of a pipeline may carry.

    Attributes:
        command_s: how long a connection may bring no reply, in seconds, and how long a call waits for room.
        most_connections: a further one is opened only when those that there are have much to carry.
        most_bytes: of commands under way on one connection, each counted with 512 more; above it callers wait.
    """

    command_s: float = 2.0
    most_connections: int = 2
    most_bytes: int = 1 << 24


@asynccontextmanager
async def pipelined(client: Redis, limits: PipelineLimits = PipelineLimits()) -> AsyncIterator["Pipelined"]:
    """Open a `Pipelined` on the pool of `client`. Connects when it is first used; calls under way at the end fail.

    Args:
        client: of one server or of the master that Sentinel watches. To be closed after this one, by its owner.
        limits: what the connections may carry.

    Raises:
        TypeError: the client is of a cluster.
    """
    if isinstance(client, ClusterRedis):
        raise TypeError("the keys of a cluster are on several servers")
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            redis = Pipelined(client.connection_pool, tasks, limits)
            try:
                yield redis
            finally:
                redis.closed = True
                tasks.cancel_scope.cancel()


class Pipelined:
    """Runs scripts and commands on connections that all callers share. `pipelined` opens one.

    Errors are redis-py's: what Redis answers to one caller (READONLY, OOM, LOADING) reaches that one alone. A reply is
    what Redis said, of bytes, int, None and lists; redis-py's conversions by command are not made.

    Attributes:
        closed: calls fail from now on.
        opened: how many connections were opened. After one, Redis may have gone back: to another server, or to what it
            had kept.
    """

    def __init__(self, pool: Any, tasks: TaskGroup, limits: PipelineLimits) -> None:
        self.closed = False
        self.opened = 0
        self._pool = pool
        self._tasks = tasks
        self._limits = limits
        self._connections: list[MultiplexedConnection] = []
        self._room = asyncio.Event()

    @property
    def connections(self) -> int:
        """How many there are, or are being opened."""
        return len(self._connections)

    async def run(self, script: Script, keys: Sequence[Argument] = (), args: Sequence[Argument] = ()) -> Any:
        """What the script returns.

        Raises:
            RedisError: Redis refused it, or what became of it is unknown, as for a caller who is cancelled.
            OSError: likewise.
        """
        command = packed("EVALSHA", script.sha, len(keys), *keys, *args)
        connection = self._uncrowded() or await self._roomy()
        try:
            return await connection.call(command, script)
        except NoScriptError:
            connection = await self._roomy()
            connection.loaded.discard(script.sha)
            return await connection.call(command, script)

    async def execute(self, *command: Argument) -> Any:
        """The reply to one command, such as `execute("GET", key)`. Errors as for `run`."""
        connection = self._uncrowded() or await self._roomy()
        return await connection.call(packed(*command))

    def _uncrowded(self) -> MultiplexedConnection | None:
        """The first that has not much to carry, so that calls share writes; a new one while there may be more."""
        if self.closed:
            return None
        for connection in self._connections:
            if connection.load < _CROWDED and connection.load < self._limits.most_bytes:
                return connection
        if len(self._connections) == self._limits.most_connections:
            return None
        connection = MultiplexedConnection(self._limits.command_s, self._room.set, self._connections.remove)
        self._connections.append(connection)
        self.opened += 1
        self._tasks.start_soon(self._serve, connection)
        return connection

    async def _roomy(self) -> MultiplexedConnection:
        """The one that has least to carry, as soon as it has room for more."""
        with anyio.move_on_after(self._limits.command_s):
            while not self.closed:
                connection = self._uncrowded() or min(self._connections, key=lambda each: each.load)
                if connection.load < self._limits.most_bytes:
                    return connection
                self._room.clear()
                await self._room.wait()
        if self.closed:
            raise RedisConnectionError("closed")
        raise RedisTimeoutError("too much is under way")

    async def _serve(self, calls: MultiplexedConnection) -> None:
        try:
            async with taken_over(self._pool, calls):
                await calls.watch()
        except (RedisError, OSError) as error:
            calls.end(error)
        finally:
            calls.end(RedisConnectionError("closed"))
