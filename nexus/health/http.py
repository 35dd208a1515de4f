"""The HTTP/1.1 of the health port.

Rules of this module:

- Whatever arrives on the port stays here. Connections are bounded in number and bytes, every exchange has a time limit,
  and nothing that a client sends or omits raises into the service or holds up its end.
- Where there are too many connections, the one that has been idle for longest goes. So clients that connect and say
  nothing cannot keep out a probe that asks at once.
"""

import errno
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final, cast

import anyio
import h11
import structlog
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup

from nexus.core.errors import ConfigError
from nexus.health.report import Health, Reply, plain

_log = structlog.get_logger(__name__)

_PAUSE_S: Final = 0.1
_CHUNK: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take up.

    Attributes:
        connections: at once; one more, and the one that has been idle for longest is closed.
        exchange_s: for a request and its answer, the wait for the request included.
        parting_s: how long a client may take to read a last answer and to close.
        head_bytes: request line and header fields.
        body_bytes: that are read over, since no request here needs a body.
    """

    connections: int = 32
    exchange_s: float = 5.0
    parting_s: float = 1.0
    head_bytes: int = 1 << 14
    body_bytes: int = 1 << 16


@asynccontextmanager
async def serving(health: Health, host: str, port: int, limits: Limits | None = None) -> AsyncIterator[int]:
    """Answer on `port` of `host`, for 0 on a free one, until the context ends, which waits for no client.

    Yields:
        The port.

    Raises:
        ConfigError: the port cannot be had.
    """
    try:
        listeners = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=128)
    except (OSError, UnicodeError) as error:
        raise ConfigError(_refused(host, port, error)) from error
    server = _Server(health, limits or Limits())
    async with listeners, anyio.create_task_group() as tasks:
        for listener in listeners.listeners:
            tasks.start_soon(server.accept, cast("SocketListener", listener), tasks)
        taken = listeners.extra(SocketAttribute.local_port)  # noqa: S610  # not Django's
        _log.info("http_listening", http_port=taken)
        try:
            yield taken
        finally:
            tasks.cancel_scope.cancel()


def _refused(host: str, port: int, error: OSError | UnicodeError) -> str:
    number = getattr(error, "errno", None)
    reason = (getattr(error, "strerror", None) or type(error).__name__).lower()
    if number in {errno.EADDRINUSE, errno.EACCES}:
        hint = "; 0 takes a free port" if number == errno.EADDRINUSE else ""
        return f"system.http_port: cannot listen on port {port} of system.http_host {host!r}: {reason}{hint}"
    return f"system.http_host: cannot listen on {host!r}: {reason}; an address or a name of this machine is needed"


class _Server:
    """Connections, those that were idle for longest first."""

    def __init__(self, health: Health, limits: Limits) -> None:
        self._health = health
        self._limits = limits
        self._connections: OrderedDict[SocketStream, anyio.CancelScope] = OrderedDict()

    async def accept(self, listener: SocketListener, tasks: TaskGroup) -> None:
        """Take in connections until cancelled."""
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                # The client is gone already, or the process has no file descriptors left: others may be luckier.
                _log.warning("http_not_accepted", reason=type(error).__name__)
                await anyio.sleep(_PAUSE_S)
                continue
            scope = self._connections[stream] = anyio.CancelScope()
            tasks.start_soon(self._hold, stream, scope)
            if len(self._connections) > self._limits.connections:
                self._connections.popitem(last=False)[1].cancel()

    async def _hold(self, stream: SocketStream, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await _Connection(stream, self._limits).hold(self._reply_on(stream))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # The client did not wait for its answer.
        except Exception:  # noqa: BLE001  # the outermost handler: a fault here ends a connection, not the service
            _log.exception("http_failed")
        finally:
            self._connections.pop(stream, None)
            await anyio.aclose_forcefully(stream)

    def _reply_on(self, stream: SocketStream) -> Callable[[str, str], Awaitable[Reply]]:
        async def reply(method: str, path: str) -> Reply:
            if stream in self._connections:
                self._connections.move_to_end(stream)
            try:
                return await self._health.reply(method, path)
            except Exception:  # noqa: BLE001  # the outermost handler of a request: whatever is wrong, it is answered
                _log.exception("http_failed")
                return plain(500, "internal error")

        return reply


class _Connection:
    """The exchanges on one connection, one after another."""

    def __init__(self, stream: SocketStream, limits: Limits) -> None:
        self._stream = stream
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._heard = False
        self._head_only = False

    async def hold(self, reply: Callable[[str, str], Awaitable[Reply]]) -> None:
        """Answer requests until nothing can follow; then let the client read the last answer."""
        try:
            while await self._exchange(reply):
                self._http.start_next_cycle()
                self._heard, self._head_only = bool(self._http.trailing_data[0]), False
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, "bad request")
        except TimeoutError:
            if self._heard:
                await self._refuse(408, "request timeout")
        with anyio.move_on_after(self._limits.parting_s):
            await self._part()

    async def _exchange(self, reply: Callable[[str, str], Awaitable[Reply]]) -> bool:
        """A request and its answer. False when nothing can follow."""
        with anyio.fail_after(self._limits.exchange_s):
            request = await self._read()
            if request is None:
                return False
            path = request.target.partition(b"?")[0].decode("latin-1")
            await self._send(await reply(request.method.decode("ascii"), path))
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _read(self) -> h11.Request | None:
        """The next request; None when there is none. A body is read over, unless it is long or not sent yet."""
        request: h11.Request | None = None
        unread = self._limits.body_bytes
        while unread >= 0:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                request = event
                self._head_only = event.method == b"HEAD"
            elif isinstance(event, h11.Data):
                unread -= len(event.data)
            elif event is not h11.NEED_DATA or self._http.they_are_waiting_for_100_continue:
                break
            else:
                self._http.receive_data(await self._receive())
        return request

    async def _receive(self) -> bytes:
        try:
            received = await self._stream.receive(_CHUNK)
        except anyio.EndOfStream:
            return b""
        self._heard = True
        return received

    async def _refuse(self, status: int, text: str) -> None:
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            with anyio.move_on_after(self._limits.parting_s):
                await self._send(plain(status, text))

    async def _send(self, reply: Reply) -> None:
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(reply.body))),
            ("Cache-Control", "no-store"),
        ]
        if reply.allow:
            headers.append(("Allow", reply.allow))
        if self._http.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        sent = [self._http.send(h11.Response(status_code=reply.status, headers=headers))]
        if not self._head_only:
            sent.append(self._http.send(h11.Data(data=reply.body)))
        sent.append(self._http.send(h11.EndOfMessage()))
        await self._stream.send(b"".join(part for part in sent if part))

    async def _part(self) -> None:
        """Close in the order that lets the client read what was sent: say so, and read over what it still sends."""
        await self._stream.send_eof()
        try:
            while True:
                await self._stream.receive(_CHUNK)
        except anyio.EndOfStream:
            pass
