"""A TCP proxy between an adapter and its server, with the faults of networks."""

import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketAttribute, SocketStream

_CHUNK = 1 << 16
# Close with a reset instead of an end: linger for no time.
_RESET = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class _Connection:
    client: SocketStream
    upstream: int = 0
    stalled: bool = False
    muted: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Proxy:
    """Forwards connections to one server.

    Attributes:
        port: where it listens, on 127.0.0.1.
        latency_s: how long every piece is held back, either way.
        bytes_per_s: how much a connection carries, either way; 0 without limit.
        refusing: new connections are reset at once.
        silent: new connections are accepted and carry nothing, like a host that has vanished.
        spoil: what becomes of a piece that came from the server; None for the same, and one cut short ends its
            connection.
        received: bytes that came from the server.
        accepted: connections until now.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.latency_s = 0.0
        self.bytes_per_s = 0
        self.refusing = False
        self.silent = False
        self.spoil: Callable[[bytes], bytes] | None = None
        self.received = 0
        self.accepted = 0
        self._target = (host, port)
        self._connections: set[_Connection] = set()

    def reset(self, most: int | None = None) -> None:
        """Cut every connection, or any `most` of them; both ends are told."""
        connections = list(self._connections)
        random.shuffle(connections)
        for connection in connections[:most]:
            connection.scope.cancel()

    def refuse(self) -> None:
        """Cut every connection, and every new one."""
        self.refusing = True
        self.reset()

    def vanish(self) -> None:
        """From now on no connection carries anything, neither old nor new ones, without an error at either end."""
        self.silent = True
        self.stall()

    def behave(self) -> None:
        """Let new connections through again, without delay. Those that were stalled stay so."""
        self.refusing = self.silent = False
        self.latency_s, self.bytes_per_s = 0.0, 0

    def stall(self) -> None:
        """From now on the connections that there are carry nothing, and neither end is told. New ones work.

        When one end closes such a connection, the other is not told either.
        """
        for connection in self._connections:
            connection.stalled = True

    def mute(self) -> None:
        """From now on replies on the open connections are lost; commands still reach the server."""
        for connection in self._connections:
            connection.muted = True

    def upstream_ports(self) -> set[int]:
        """From where the connections that there are reach the server."""
        return {connection.upstream for connection in self._connections}

    async def serve(self, client: SocketStream) -> None:
        """Carry one connection."""
        self.accepted += 1
        connection = _Connection(client, stalled=self.silent)
        self._connections.add(connection)
        try:
            async with client:
                with connection.scope:
                    if self.refusing:
                        connection.scope.cancel()
                    await self._carry(connection)
                if connection.scope.cancelled_caught:
                    raw: socket.socket = client.extra_attributes[SocketAttribute.raw_socket]()
                    # It may have been closed at the other end in the meantime.
                    with suppress(OSError):
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        finally:
            self._connections.remove(connection)

    async def _carry(self, connection: _Connection) -> None:
        if connection.stalled:
            await anyio.sleep_forever()
        try:
            server = await anyio.connect_tcp(*self._target)
        except OSError:
            connection.scope.cancel()
            return
        connection.upstream = server.extra_attributes[SocketAttribute.local_port]()
        async with server, anyio.create_task_group() as tasks:
            tasks.start_soon(self._pump, connection, connection.client, server, tasks.cancel_scope)
            tasks.start_soon(self._pump, connection, server, connection.client, tasks.cancel_scope)

    async def _pump(
        self, connection: _Connection, source: SocketStream, sink: SocketStream, both: anyio.CancelScope
    ) -> None:
        try:
            async for piece in source:
                await anyio.sleep(self.latency_s + (len(piece) / self.bytes_per_s if self.bytes_per_s else 0))
                if connection.stalled:
                    await anyio.sleep_forever()
                if sink is connection.client:
                    if connection.muted:
                        continue
                    self.received += len(piece)
                    if self.spoil:
                        spoilt = self.spoil(piece)
                        await sink.send(spoilt)
                        if len(spoilt) < len(piece):
                            break
                        continue
                await sink.send(piece)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        if connection.stalled:
            await anyio.sleep_forever()
        both.cancel()


@asynccontextmanager
async def proxied(host: str, port: int) -> AsyncIterator[Proxy]:
    """A proxy in front of the server at `host` and `port`."""
    proxy = Proxy(host, port)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        proxy.port = listener.extra_attributes[SocketAttribute.local_port]()
        tasks.start_soon(listener.serve, proxy.serve)
        try:
            yield proxy
        finally:
            tasks.cancel_scope.cancel()
