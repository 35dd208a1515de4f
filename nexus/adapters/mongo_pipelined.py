"""A connection to MongoDB that carries several commands at once: written together, answered in their order.

A server reads the next command of a connection when it has answered the one before, so what waits for it may be on its
way already.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from pymongo.errors import AutoReconnect, ConnectionFailure, NetworkTimeout

from nexus.adapters.mongo_wire import ReplyReader, WireError, message

_LAST_ID: Final = 2**31 - 1
# Between a client and its server, something may forget a connection that nobody uses, and tell neither.
_IDLE_S: Final = 30.0


class PipelinedConnection(asyncio.Protocol):
    """The calls on one connection. Made within an event loop.

    Args:
        reply_s: for how long a reply may be awaited, in seconds; then the connection ends.

    Attributes:
        lost: resolves when the connection carries no more calls: to what was wrong, or None where nothing was.
        replaced: the protocol that the connection had before, if it had any; is told of the connection's end.
    """

    def __init__(self, reply_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[ConnectionFailure | None] = self._loop.create_future()
        self.replaced: Any = None
        self._reply_s = reply_s
        self._transport: Any = None
        self._reader = ReplyReader()
        self._last_id = 0
        # In the order in which they are answered: the reply to come, and when it was asked for.
        self._sent: dict[int, tuple[asyncio.Future[bytes], float]] = {}
        self._unsent: list[bytes] = []
        self._writable = True
        self._used_at = self._loop.time()

    @property
    def calls(self) -> int:
        """How many have no reply yet."""
        return len(self._sent)

    def call(self, command: Mapping[str, Any]) -> asyncio.Future[bytes]:
        """The reply to come, as BSON: one that says `ok` or one that does not.

        The future may raise ConnectionFailure; whoever cancels it does without the reply.

        Raises:
            BSONError: the command cannot be sent; likewise OverflowError and UnicodeEncodeError.
        """
        message_id = self._last_id = self._last_id % _LAST_ID + 1
        self._unsent.append(message(message_id, command))
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._used_at = self._loop.time()
        self._sent[message_id] = reply, self._used_at
        if len(self._sent) == 1:
            self._write()
        elif len(self._unsent) == 1:
            # What is called in the same pass of the loop goes with it.
            self._loop.call_soon(self._write)
        return reply

    async def watch(self) -> None:
        """Return when the connection has ended; end it when a reply takes too long, or nobody calls any more.

        Raises:
            ConnectionFailure: what was wrong.
        """
        while not self.lost.done():
            now = self._loop.time()
            oldest = next(iter(self._sent.values()), None)
            end = oldest[1] + self._reply_s if oldest else self._used_at + _IDLE_S
            if end <= now:
                self.end(NetworkTimeout("no reply in time") if oldest else None)
            # A call that comes meanwhile is looked at in time.
            await asyncio.wait((self.lost,), timeout=min(end - now, self._reply_s))
        if error := self.lost.result():
            raise error

    def end(self, error: ConnectionFailure | None) -> None:
        """Carry no more calls. Those that have waited for too long hear so; the others that the connection is lost."""
        if self.lost.done():
            return
        # That an idle connection is closed says nothing about the server.
        self.lost.set_result(error if self._sent else None)
        long_ago = self._loop.time() - self._reply_s
        for reply, asked_at in self._sent.values():
            if not reply.done():
                late = isinstance(error, NetworkTimeout) and asked_at <= long_ago
                reply.set_exception(NetworkTimeout("no reply in time") if late else AutoReconnect("connection lost"))
                # Whoever is cancelled before he hears of it does without its error.
                reply.exception()
        self._sent.clear()
        self._unsent.clear()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection on which everything sent has been answered."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Give each reply that is complete to whose it is."""
        try:
            for to, document in self._reader.feed(data):
                self._replied(to, document)
        except WireError as error:
            self.end(AutoReconnect(str(error)))

    def _replied(self, to: int, document: bytes) -> None:
        reply, _ = self._sent.pop(to, (None, 0))
        if reply is None:
            raise WireError("a reply that nobody waits for")
        if not reply.done():
            reply.set_result(document)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever waits, and the protocol that was before."""
        if self.replaced is not None:
            self.replaced.connection_lost(error)
        self.end(AutoReconnect("connection lost"))

    def pause_writing(self) -> None:
        """Have what is to be written wait."""
        self._writable = False

    def resume_writing(self) -> None:
        """Go on."""
        self._writable = True
        self._write()

    def _write(self) -> None:
        if not self._unsent or not self._writable or self.lost.done():
            return
        unsent, self._unsent = self._unsent, []
        try:
            self._transport.writelines(unsent)
        except RuntimeError:
            # uvloop's way to say that it is closed.
            self.end(AutoReconnect("connection lost"))
