"""One connection to Redis that many callers share: commands are written together, replies come in their order.

Used of redis-py's connections, as in 6.2 and 8.1: `send_packed_command(check_health=)`,
`read_response(disconnect_on_error=)` and `socket_timeout`, which is None while a connection is here: the time limit is
kept once for all calls on it. Of hiredis `pack_command`, which takes a seventh of the time of redis-py's own.
"""

import asyncio
import copy
import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

import anyio
import hiredis
from redis.exceptions import AuthenticationError, BusyLoadingError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

Argument: TypeAlias = str | bytes | int | float

_WRITTEN_AT_ONCE: Final = 1 << 18
# What a call counts for besides its command.
_CALL_BYTES: Final = 512


class Script:
    """A Lua script, and the name that Redis knows it by.

    Attributes:
        text: the script.
        sha: the SHA-1 of it, in hexadecimal.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def packed(*command: Argument) -> bytes:
    """A command as Redis reads it.

    Raises:
        TypeError: an argument is of another type.
    """
    return hiredis.pack_command(command)  # type: ignore[arg-type, no-any-return]  # its stub knows tuples of one


class _Call:
    __slots__ = ("command", "reply", "size")

    def __init__(self, command: bytes, reply: asyncio.Future[Any] | None) -> None:
        self.command = command
        self.reply = reply
        self.size = len(command) + _CALL_BYTES


class MultiplexedConnection:
    """The calls on one connection: those to be written and, in the order of their replies, those written.

    Attributes:
        load: bytes of the calls that have no reply yet.
        loaded: the scripts that Redis has been sent here, by `sha`.
    """

    def __init__(self, command_s: float, on_reply: Callable[[], None]) -> None:
        self.load = 0
        self.loaded: set[str] = set()
        self._command_s = command_s
        self._on_reply = on_reply
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[_Call] = deque()
        self._sent: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._heard_at = 0.0

    def call(self, command: bytes, script: Script | None = None) -> asyncio.Future[Any]:
        """The reply to come to a command that is `packed`. Its script is loaded just before, unless it is `loaded`."""
        if script is not None and script.sha not in self.loaded:
            self.loaded.add(script.sha)
            self._add(_Call(packed("SCRIPT", "LOAD", script.text), None))
        reply = self._loop.create_future()
        self._add(_Call(command, reply))
        return reply

    async def carry(self, connection: Any, usable: Callable[[Any], bool]) -> None:
        """Carry calls until the connection fails. `usable` is asked before each write.

        Raises:
            ExceptionGroup: of `RedisError` and `OSError`.
        """
        limit, connection.socket_timeout = connection.socket_timeout, None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, connection, usable)
                tasks.start_soon(self._watch)
                await self._read(connection)
        finally:
            connection.socket_timeout = limit

    def fail(self, error: Exception) -> None:
        """Fail every call."""
        for call in (*self._sent, *self._unsent):
            self._settle(call, copy.copy(error))
        self._sent.clear()
        self._unsent.clear()

    def _add(self, call: _Call) -> None:
        self.load += call.size
        self._unsent.append(call)
        self._wake.set()

    def _settle(self, call: _Call, result: Any) -> None:
        self.load -= call.size
        self._on_reply()
        if call.reply is None or call.reply.done():
            return
        if isinstance(result, Exception):
            call.reply.set_exception(result)
        else:
            call.reply.set_result(result)

    async def _write(self, connection: Any, usable: Callable[[Any], bool]) -> NoReturn:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unsent:
                if not usable(connection):
                    raise RedisConnectionError("another server is the master")
                await connection.send_packed_command(self._batch(), check_health=False)

    def _batch(self) -> list[bytes]:
        """The commands to be written next, whose calls count as written from now on."""
        if not self._sent:
            self._heard_at = self._loop.time()
        batch: list[bytes] = []
        size = 0
        while self._unsent and size < _WRITTEN_AT_ONCE:
            call = self._unsent.popleft()
            if call.reply is not None and call.reply.cancelled():
                self._settle(call, None)
                continue
            batch.append(call.command)
            size += call.size
            call.command = b""
            self._sent.append(call)
        return batch

    async def _read(self, connection: Any) -> NoReturn:
        while True:
            try:
                reply = await connection.read_response(disconnect_on_error=False)
            except (ResponseError, BusyLoadingError, AuthenticationError) as error:
                # What Redis answers, though redis-py counts some of it among the failures of a connection.
                reply = error
            if not self._sent:
                raise RedisConnectionError("a reply that nobody waits for")
            self._heard_at = self._loop.time()
            self._settle(self._sent.popleft(), reply)

    async def _watch(self) -> NoReturn:
        while True:
            now = self._loop.time()
            end = (self._heard_at if self._sent else now) + self._command_s
            if end <= now:
                raise RedisTimeoutError("no reply")
            await anyio.sleep(end - now)
