"""A connection to MongoDB that carries several commands at once: written together, answered in their order.

A server reads the next command of a connection when it has answered the one before, so what waits for it may be on its
way already.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pymongo.errors import AutoReconnect, ConnectionFailure, NetworkTimeout

from nexus.adapters.mongo_wire import ReplyReader, WireError, message

_LAST_ID: Final = 2**31 - 1
# Between a client and its server, something may forget a connection that nobody uses, and tell neither.
_IDLE_S: Final = 180.0
# After so long a call takes long: who waits behind it would be served sooner elsewhere.
_LONG_S: Final = 0.02
_LATE: Final = "no reply in time"


class PipelinedConnection(asyncio.Protocol):
    """The calls on one connection. Made within an event loop.

    Args:
        reply_s: for how long a reply may be awaited, in seconds. When no reply at all has come for so long, the
            connection ends.

    Attributes:
        lost: resolves when the connection carries no more calls: to what is wrong with the server or with what it says,
            or None where nothing is.
        replaced: the protocol that the connection had before, if it had any; is told of the connection's end.
    """

    def __init__(self, reply_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[ConnectionFailure | WireError | None] = self._loop.create_future()
        self.replaced: Any = None
        self._reply_s = reply_s
        self._transport: Any = None
        self._reader = ReplyReader()
        self._last_id = 0
        # In the order in which they are answered: the reply to come, and when it was asked for.
        self._sent: dict[int, tuple[asyncio.Future[bytes], float]] = {}
        self._inserting: set[int] = set()
        self._unsent: list[bytes] = []
        self._writable = True
        self._used_at = self._heard_at = self._loop.time()

    @property
    def calls(self) -> int:
        """How many have no reply yet."""
        return len(self._sent)

    @property
    def load(self) -> tuple[bool, int]:
        """What to compare with that of another: whether a call takes long, behind which others wait, and how many.

        One that inserts may: until other members of a replica set have it, nothing behind it is read.
        """
        first = next(iter(self._sent.values()), None)
        is_long = first is not None and self._loop.time() - first[1] > _LONG_S
        return is_long or bool(self._inserting), len(self._sent)

    def call(self, command: Mapping[str, Any], documents: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        """The reply to come, as BSON, to a command and what it inserts: one that says `ok` or one that does not.

        The future may raise ConnectionFailure: NetworkTimeout where the reply takes too long. Whoever cancels it does
        without the reply.

        Raises:
            AutoReconnect: the connection has ended.
            BSONError: the command cannot be sent; likewise OverflowError and UnicodeEncodeError.
        """
        if self.lost.done():
            raise AutoReconnect("connection lost")
        message_id = self._last_id = self._last_id % _LAST_ID + 1
        self._unsent.append(message(message_id, command, documents))
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._used_at = self._loop.time()
        if not self._sent:
            self._heard_at = self._used_at
        self._sent[message_id] = reply, self._used_at
        if documents:
            self._inserting.add(message_id)
        if len(self._sent) == 1:
            self._write()
        elif len(self._unsent) == 1:
            # What is called in the same pass of the loop goes with it.
            self._loop.call_soon(self._write)
        return reply

    async def watch(self) -> None:
        """Return when the connection has ended; end it when the server is silent, or nobody calls any more.

        Raises:
            ConnectionFailure: what is wrong with the server.
            WireError: it says something else than replies.
        """
        while not self.lost.done():
            now = self._loop.time()
            end = min(self._expire(now), (self._heard_at + self._reply_s) if self._sent else self._used_at + _IDLE_S)
            if end <= now:
                self.end(NetworkTimeout(_LATE) if self._sent else None)
            # A call that comes meanwhile is looked at in time.
            await asyncio.wait((self.lost,), timeout=min(end - now, self._reply_s))
        if error := self.lost.result():
            raise error

    def end(self, error: ConnectionFailure | WireError | None = None) -> None:
        """Carry no more calls, unless that has been said. Whoever waits hears that the connection is lost.

        Args:
            error: what is wrong with the server; None where nothing is.
        """
        if self.lost.done():
            return
        # That an idle connection is closed says nothing about the server.
        self.lost.set_result(error if self._sent else None)
        # Who asks again elsewhere waits for as long again at most, of which he has half left.
        late = self._loop.time() - self._reply_s / 2 if isinstance(error, NetworkTimeout) else -math.inf
        for reply, asked_at in self._sent.values():
            _fail(reply, NetworkTimeout(_LATE) if asked_at <= late else AutoReconnect("connection lost"))
        self._sent.clear()
        self._inserting.clear()
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
            self.end(error)

    def _replied(self, to: int, document: bytes) -> None:
        reply, _ = self._sent.pop(to, (None, 0))
        self._inserting.discard(to)
        if reply is None:
            raise WireError("a reply that nobody waits for")
        self._heard_at = self._loop.time()
        if not reply.done():
            reply.set_result(document)

    def _expire(self, now: float) -> float:
        """Tell those who have waited for too long. Returns when the next will have."""
        for reply, asked_at in self._sent.values():
            if asked_at + self._reply_s > now:
                return asked_at + self._reply_s
            _fail(reply, NetworkTimeout(_LATE))
        return math.inf

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


def _fail(reply: asyncio.Future[bytes], error: ConnectionFailure) -> None:
    if not reply.done():
        reply.set_exception(error)
        # Whoever is cancelled before he hears of it does without its error.
        reply.exception()
