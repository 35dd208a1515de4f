"""Connections to Redis: what their loss is, and reading one in the step in which bytes arrive.

redis-py opens a connection, with its time limits, TLS, users and Sentinel, and then reads it with a task, a stream and
a parser: several passes of the event loop for a reply. `taken_over` hands such a connection to an asyncio protocol of
ours, which parses what arrives at once.

Used of redis-py, as in 6.2 and 8.1: of an open connection its streams `_reader` and `_writer`, and `disconnect`; of
pools `get_connection` and `release`; of parsers `parse_error`. What `disconnect` waits for is the end of the connection
as its own protocol hears of it, so that one is told.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import hiredis
from redis.asyncio.connection import DefaultParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError

_INCOMPLETE: Final = object()


class RedisProtocol(asyncio.Protocol):
    """Both directions of a connection that is `taken_over`. Made within an event loop.

    Attributes:
        reading_paused: nothing is read until `resume_reading`.
        lost: resolves to the error with which the connection has ended.
        writable: `write` may be called: there is a connection, and the server keeps up with what is written.
    """

    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.writable = False
        self.reading_paused = False
        self._connection: Any = None
        self._leads_to_master: Callable[[Any], bool] | None = None
        self._transport: Any = None
        self._replaced: Any = None
        parse_error: Any = DefaultParser.parse_error
        self._reader = hiredis.Reader(InvalidResponse, parse_error, notEnoughData=_INCOMPLETE)

    @abstractmethod
    def replied(self, reply: Any) -> None:
        """Take what the server has sent, in its order: bytes, int, None, lists; an error of Redis as an object."""

    @abstractmethod
    def writable_again(self) -> None:
        """Go on writing, or begin to."""

    def take(self, connection: Any, leads_to_master: Callable[[Any], bool] | None = None) -> None:
        """Be the protocol of an open connection on which everything sent has been answered.

        Args:
            connection: redis-py's.
            leads_to_master: tells whether a connection is to the master; without, any is good.

        Raises:
            RedisError: it is lost, or has brought what nobody asked for.
        """
        reader, writer = connection._reader, connection._writer  # noqa: SLF001  # redis-py has no other way to them
        if reader is None or reader.at_eof() or reader.exception() or writer.transport.is_closing():
            raise RedisConnectionError("the connection was lost")
        if reader._buffer:  # noqa: SLF001  # asyncio does not tell otherwise without waiting
            raise RedisConnectionError("a reply that nobody waits for")
        self._transport = writer.transport
        self._replaced = self._transport.get_protocol()
        self._transport.set_protocol(self)
        self._connection, self._leads_to_master = connection, leads_to_master
        self.writable = True
        self.writable_again()

    def is_to_master(self) -> bool:
        """Whether the server is the one to be spoken to, as far as is known. The connection is given up otherwise."""
        if self._leads_to_master is None or self._leads_to_master(self._connection):
            return True
        self.end(RedisConnectionError("another server is the master"))
        return False

    def write(self, commands: Sequence[bytes]) -> None:
        """Send commands. They need not arrive, as `lost` tells then."""
        try:
            self._transport.writelines(commands)
        except RuntimeError:
            # uvloop's way to say it.
            self.end(RedisConnectionError("the connection was lost"))

    def end(self, error: Exception) -> None:
        """Give the connection up, unless that has been done."""
        if not self.lost.done():
            self.writable = False
            self.lost.set_result(error)

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and have all of it taken that is complete."""
        if self.lost.done():
            return
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _INCOMPLETE:
                self.replied(reply)
        except InvalidResponse as error:
            self.end(error)

    def eof_received(self) -> None:
        """Let the connection be closed: a server that has no more to say does not listen either."""

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever waits, and the protocol that was before."""
        self._replaced.connection_lost(error)
        self.end(RedisConnectionError(f"the connection was lost: {type(error).__name__ if error else 'closed'}"))

    def pause_writing(self) -> None:
        """Have what is to be written wait."""
        self.writable = False

    def resume_writing(self) -> None:
        """Go on."""
        self.writable = not self.lost.done()
        if self.writable:
            self.writable_again()

    def pause_reading(self) -> None:
        """Have the server wait, after what has come already."""
        if not self.reading_paused and not self._transport.is_closing():
            self.reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if self.reading_paused and not self._transport.is_closing():
            self._transport.resume_reading()
        self.reading_paused = False

    def let_go(self) -> None:
        """Do nothing more. What is still to be sent on a lost connection is dropped."""
        if self.lost.done() and self._transport is not None:
            self._transport.abort()
        self.end(RedisConnectionError("closed"))


@asynccontextmanager
async def taken_over(pool: Any, protocol: RedisProtocol) -> AsyncIterator[None]:
    """A connection of the pool, read and written by the protocol for as long as the context lasts. It goes back closed.

    A pool by way of Sentinel tells by `leads_to_master` whether a connection is still of use.

    Raises:
        RedisError: there is none.
        OSError: likewise.
    """
    connection = await pool.get_connection()
    try:
        protocol.take(connection, getattr(pool, "leads_to_master", None))
        yield
    finally:
        protocol.let_go()
        # `disconnect` has a time limit of its own.
        with anyio.CancelScope(shield=True):
            try:
                with suppress(RedisError, OSError):
                    await connection.disconnect()
            finally:
                await pool.release(connection)
