"""Connections of MongoDB's drivers, handed to an asyncio protocol of ours.

A driver finds the server, opens a connection, encrypts it and logs in. Then a command costs three to five times as much
by the driver as on the wire (docs/decisions/0025-histories-are-read-on-the-wire.md). `taken_over` checks such a
connection out of the driver's pool for as long as it lasts.

Used of pymongo, as in 4.12 to 4.20, and not promised by it: of a client `_conn_for_reads`, which gives a context
manager; of a connection `address`, `is_writable`, `close_conn` and `conn`, of which with motor's blocking client the
socket `sock`, with the asyncio client the pair of transport and protocol that is its `conn`. A version that has
something else there raises AttributeError or TypeError.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import anyio
import pymongo
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import AutoReconnect

from nexus.adapters.mongo_pipelined import PipelinedConnection


class NotTakenError(Exception):
    """Connections of this client cannot be taken over."""


class Taken(NamedTuple):
    """A connection that was taken over.

    Attributes:
        address: host and port of the server.
        is_writable: the server is written to: a primary, a router, or alone.
    """

    address: tuple[str, int]
    is_writable: bool


def taken_over(client: Any, protocol: PipelinedConnection, opening_s: float) -> AbstractAsyncContextManager[Taken]:
    """A connection to the server that is written to, which the protocol has for as long as the context lasts.

    It goes back closed. A ConnectionFailure that leaves the context is told the driver, which then looks for a server.

    Args:
        client: of motor or of pymongo's asyncio client.
        protocol: takes it.
        opening_s: how long it may take to have one, in seconds.

    Returns:
        a context manager, which tells what it is.

    Raises:
        PyMongoError: there is none.
        NotTakenError: none can be had in this way.
    """
    take = _of_asyncio if isinstance(client, AsyncMongoClient) else _of_motor
    return take(client, protocol, opening_s)


@asynccontextmanager
async def _of_asyncio(client: Any, protocol: PipelinedConnection, opening_s: float) -> AsyncIterator[Taken]:
    async with AsyncExitStack() as stack:
        with pymongo.timeout(opening_s):
            checkout = await client._conn_for_reads(ReadPreference.PRIMARY, None, "find")  # noqa: SLF001  # see above
            connection, _ = await stack.enter_async_context(checkout)
        stack.push_async_callback(connection.close_conn, None)
        stack.callback(protocol.end)
        transport, replaced = connection.conn.conn
        _handed_over(transport, replaced, protocol)
        yield Taken(connection.address, connection.is_writable)


def _handed_over(transport: Any, replaced: Any, protocol: PipelinedConnection) -> None:
    if transport.is_closing():
        raise AutoReconnect("connection lost")
    # How a transport reads follows from its protocol when reading begins.
    transport.pause_reading()
    protocol.replaced = replaced
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    transport.resume_reading()


@asynccontextmanager
async def _of_motor(client: Any, protocol: PipelinedConnection, opening_s: float) -> AsyncIterator[Taken]:
    gone = threading.Event()
    try:
        checkout, connection = await anyio.to_thread.run_sync(_checked_out, client.delegate, opening_s, gone)
    except BaseException:
        gone.set()
        raise
    async with AsyncExitStack() as stack:
        stack.push_async_exit(partial(anyio.to_thread.run_sync, _checked_in, checkout, connection))
        stack.callback(protocol.end)
        ours = _another(connection.conn.sock)
        try:
            await asyncio.get_running_loop().create_connection(lambda: protocol, sock=ours)
        except BaseException:
            ours.close()
            raise
        yield Taken(connection.address, connection.is_writable)


def _another(blocking: Any) -> socket.socket:
    """A second one for the same connection: the driver closes its own when that is checked in."""
    if type(blocking) is not socket.socket:
        raise NotTakenError("motor's connections with TLS: no event loop can go on with one")
    return blocking.dup()


def _checked_out(client: Any, opening_s: float, gone: threading.Event) -> tuple[Any, Any]:
    with pymongo.timeout(opening_s):
        checkout = client._conn_for_reads(ReadPreference.PRIMARY, None, "find")  # noqa: SLF001  # see above
        connection, _ = checkout.__enter__()
    if gone.is_set():
        # Whoever waited for it was cancelled.
        _checked_in(checkout, connection, None, None, None)
    return checkout, connection


def _checked_in(checkout: Any, connection: Any, *error: Any) -> None:
    connection.close_conn(None)
    checkout.__exit__(*error)
