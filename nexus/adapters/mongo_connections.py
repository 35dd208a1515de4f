"""Connections of MongoDB's drivers, handed to an asyncio protocol of ours.

A driver finds the server, opens a connection, encrypts it and logs in. Then a command costs three to five times as much
by the driver as on the wire (docs/decisions/0025-histories-are-read-on-the-wire.md). `taken_over` checks such a
connection out of the driver's pool for as long as it lasts.

Used of pymongo, as in 4.12 to 4.20, and not promised by it: of a client `_conn_for_reads`; of a connection `conn`, with
motor's blocking client its socket `sock`, with the asyncio client the pair of transport and protocol that is its
`conn`. A version that has something else there raises AttributeError or TypeError.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import AutoReconnect

from nexus.adapters.mongo_pipelined import PipelinedConnection


class NotTakenError(Exception):
    """Connections of this client cannot be taken over."""


def taken_over(client: Any, protocol: PipelinedConnection) -> AbstractAsyncContextManager[tuple[str, int]]:
    """A connection to the server that is written to, which the protocol has for as long as the context lasts.

    It goes back closed. What leaves the context is told the driver, which then knows of a server that is gone.

    Args:
        client: of motor or of pymongo's asyncio client.
        protocol: takes it.

    Returns:
        a context manager, which gives the address of the server.

    Raises:
        PyMongoError: there is none.
        NotTakenError: none can be had in this way.
    """
    take = _of_asyncio if isinstance(client, AsyncMongoClient) else _of_motor
    return take(client, protocol)


@asynccontextmanager
async def _of_asyncio(client: Any, protocol: PipelinedConnection) -> AsyncIterator[Any]:
    checkout = await client._conn_for_reads(ReadPreference.PRIMARY, None, "find")  # noqa: SLF001  # see above
    async with checkout as (connection, _):
        try:
            transport, replaced = connection.conn.conn
            if transport.is_closing():
                raise AutoReconnect("connection lost")
            # How a transport reads follows from its protocol when reading begins.
            transport.pause_reading()
            protocol.replaced = replaced
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            transport.resume_reading()
            yield connection.address
        finally:
            protocol.end(None)
            with anyio.CancelScope(shield=True):
                await connection.close_conn(None)


@asynccontextmanager
async def _of_motor(client: Any, protocol: PipelinedConnection) -> AsyncIterator[Any]:
    checkout, connection = await anyio.to_thread.run_sync(_checked_out, client.delegate)
    error: BaseException | None = None
    try:
        ours = _another(connection.conn.sock)
        try:
            await asyncio.get_running_loop().create_connection(lambda: protocol, sock=ours)
        except BaseException:
            ours.close()
            raise
        yield connection.address
    except BaseException as raised:
        error = raised
        raise
    finally:
        protocol.end(None)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_checked_in, checkout, connection, error)


def _another(blocking: Any) -> socket.socket:
    """A second one for the same connection: the driver closes its own when that is checked in."""
    if type(blocking) is not socket.socket:
        raise NotTakenError("motor's connections with TLS: no event loop can go on with one")
    return blocking.dup()


def _checked_out(client: Any) -> tuple[Any, Any]:
    checkout = client._conn_for_reads(ReadPreference.PRIMARY, None, "find")  # noqa: SLF001  # see above
    connection, _ = checkout.__enter__()
    return checkout, connection


def _checked_in(checkout: Any, connection: Any, error: BaseException | None) -> None:
    connection.close_conn(None)
    checkout.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
