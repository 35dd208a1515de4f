"""One connection to Redis that many callers share: commands are written together, replies come in their order.

What is called while nothing is under way is written at once; the rest, in one write for each pass of the event loop.
Of hiredis `pack_command`, which takes a seventh of the time of redis-py's own.
"""

import asyncio
import copy
import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from nexus.adapters.redis_connections import RedisProtocol

Argument: TypeAlias = str | bytes | int | float

_WRITTEN_AT_ONCE: Final = 1 << 18
# What a call counts for besides its command.
_CALL_BYTES: Final = 512
# What a server may say unasked; there is none before hiredis 3.2, which reads it as a list.
_PUSH: Final = getattr(hiredis, "PushNotification", ())


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


class MultiplexedConnection(RedisProtocol):
    """The calls on one connection: those to be written and, in the order of their replies, those written.

    Args:
        command_s: for how long no reply may come, in seconds, before the connection counts as stalled.
        on_reply: called whenever `load` has become less.
        on_end: called once, with this, as soon as it carries no more calls.

    Attributes:
        load: bytes of the calls that have no reply yet.
        loaded: the scripts that Redis has been sent here, by `sha`.
    """

    def __init__(
        self,
        command_s: float,
        on_reply: Callable[[], None],
        on_end: Callable[["MultiplexedConnection"], None],
    ) -> None:
        super().__init__()
        self.load = 0
        self.loaded: set[str] = set()
        self._command_s = command_s
        self._on_reply = on_reply
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[_Call] = deque()
        self._sent: deque[_Call] = deque()
        self._gathering = False
        self._heard_at = 0.0

    def call(self, command: bytes, script: Script | None = None) -> asyncio.Future[Any]:
        """The reply to come to a command that is `packed`. Its script is loaded just before, unless it is `loaded`."""
        if script is not None and script.sha not in self.loaded:
            self.loaded.add(script.sha)
            self._unsent.append(self._counted(_Call(packed("SCRIPT", "LOAD", script.text), None)))
        reply = self._loop.create_future()
        self._unsent.append(self._counted(_Call(command, reply)))
        if not self._sent:
            self.writable_again()
        elif not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._write_gathered)
        return reply

    async def watch(self) -> None:
        """Wait for the end of the connection, which comes when there has been no reply for too long."""
        while not self.lost.done():
            now = self._loop.time()
            end = (self._heard_at if self._sent else now) + self._command_s
            if end <= now:
                self.end(RedisTimeoutError("no reply"))
            await asyncio.wait((self.lost,), timeout=end - now)

    def end(self, error: Exception) -> None:
        """Fail every call."""
        if self.lost.done():
            return
        super().end(error)
        self._on_end(self)
        for call in (*self._sent, *self._unsent):
            self._settle(call, copy.copy(error))
        self._sent.clear()
        self._unsent.clear()

    def replied(self, reply: Any) -> None:
        """Give a reply to whose it is."""
        if isinstance(reply, _PUSH):
            return
        if not self._sent:
            self.end(RedisConnectionError("a reply that nobody waits for"))
            return
        self._heard_at = self._loop.time()
        self._settle(self._sent.popleft(), reply)

    def writable_again(self) -> None:
        """Write what is to be written, as long as the server keeps up."""
        while self._unsent and self.writable:
            if self.is_to_master() and (batch := self._batch()):
                self.write(batch)

    def _write_gathered(self) -> None:
        self._gathering = False
        self.writable_again()

    def _counted(self, call: _Call) -> _Call:
        self.load += call.size
        return call

    def _settle(self, call: _Call, result: Any) -> None:
        self.load -= call.size
        self._on_reply()
        if call.reply is None or call.reply.done():
            return
        if isinstance(result, Exception):
            call.reply.set_exception(result)
            # Whoever is cancelled before he hears of it does without its error.
            call.reply.exception()
        else:
            call.reply.set_result(result)

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
