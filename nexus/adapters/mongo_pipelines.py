"""Connections to MongoDB that carry commands past its driver: as many as there is work for (CONTRACT §2).

Nothing depends on them. Where there is none, or a reply cannot be had on one, whoever asks goes by the driver, which
knows how to find a server that is gone and what may be repeated.
"""

import asyncio
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import bson
import structlog
from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import (
    ConnectionFailure,
    ExecutionTimeout,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
)

from nexus.adapters.mongo_connections import NotTakenError, taken_over
from nexus.adapters.mongo_passing import Passing
from nexus.adapters.mongo_pipelined import PipelinedConnection
from nexus.adapters.mongo_wire import WireError

_log = structlog.get_logger(__name__)

_MOST: Final = 8
# Of the connections that the driver may open.
_SHARE: Final = 4
# Calls on each connection before there is another, and before nothing more is asked here: what nobody waits for any
# longer is still read by the server.
_BUSY: Final = (False, 4)
_MANY_CALLS: Final = 32
# After a connection was lost or could not be had; after something that will hardly be otherwise soon.
_PAUSE_S: Final = 1.0
_LONG_PAUSE_S: Final = 60.0
# What a server has of the time limit, so that it can still say that it takes too long.
_OF_THE_SERVER: Final = 0.9
_TIME_LIMIT: Final = 50
# What a driver looks for another server after, or logs in again.
_NOT_HERE: Final = frozenset({91, 189, 391, 10058, 10107, 11600, 11602, 13435, 13436})

_load: Final = attrgetter("load")


class NotPipelinedError(Exception):
    """The driver is to be asked: there is no connection, or no reply that counts."""


class Pipelines:
    """Connections that are taken from a driver as they are needed, up to eight with 32 calls each.

    Args:
        client: of motor or of pymongo's asyncio client.
        reply_s: for how long a reply may be awaited, in seconds.

    Attributes:
        passing: hears of reads that somebody waits for.
    """

    def __init__(self, client: Any, *, reply_s: float) -> None:
        self.passing = Passing()
        self._client = client
        # Motor's wraps one that tells of itself.
        self._telling: Any = client if isinstance(client, AsyncMongoClient) else client.delegate
        options = self._telling.options
        self._most = min(_MOST, (options.pool_options.max_pool_size or _MOST * _SHARE) // _SHARE)
        if options.read_preference != ReadPreference.PRIMARY:
            self._most = 0
        self._reply_s = reply_s
        self._holding: set[asyncio.Task[None]] = set()
        self._open: dict[PipelinedConnection, Any] = {}
        self._opening = False
        self._read_on: PipelinedConnection | None = None
        self._described: Any = None
        self._not_before = 0.0

    @property
    def connections(self) -> int:
        """How many there are now."""
        return sum(not connection.lost.done() for connection in self._open)

    async def run(
        self, database: str, command: Mapping[str, Any], codec: CodecOptions[Any], documents: Sequence[bytes] = ()
    ) -> dict[str, Any]:
        """The reply to a command. Whoever is cancelled meanwhile harms nobody.

        Args:
            database: the name of the one that is asked.
            command: its name first. Repeated by whoever is told that there is no reply, it must do no harm.
            codec: how the reply is decoded.
            documents: what the command inserts, as BSON.

        Raises:
            NotPipelinedError: there is no reply to be had here. The command may have been done, or not.
            OperationFailure: the server refuses it.
            NetworkTimeout: it takes too long.
        """
        if documents:
            connection = self._last_read()
        else:
            connection = self._read_on = self._least_busy()
        if connection is None:
            raise NotPipelinedError
        limit_ms = max(1, int(self._reply_s * _OF_THE_SERVER * 1_000))
        try:
            reply = await connection.call({**command, "maxTimeMS": limit_ms, "$db": database}, documents)
        except NetworkTimeout:
            raise
        except ConnectionFailure as error:
            # In time for the driver to be asked.
            raise NotPipelinedError from error
        document: dict[str, Any] = bson.decode(reply, codec)
        if document.get("ok") != 1:
            self._refused(connection, document)
        return document

    def open_one(self) -> None:
        """Begin to open a connection, if there is none."""
        if not self._holding:
            self._open_another()

    async def close(self, seconds: float) -> None:
        """Give all connections back. What is still being opened after so long is left to the driver."""
        self._most = 0
        for connection in [*self._open]:
            connection.end()
        if self._holding:
            await asyncio.wait(self._holding, timeout=seconds)
        for task in self._holding:
            task.cancel()
        await asyncio.gather(*self._holding, return_exceptions=True)

    def _least_busy(self) -> PipelinedConnection | None:
        self._look_at_servers()
        connection = min([each for each in self._open if not each.lost.done()], key=_load, default=None)
        if connection is None or connection.load >= _BUSY:
            self._open_another()
        return connection if connection and connection.calls < _MANY_CALLS else None

    def _last_read(self) -> PipelinedConnection | None:
        """Where a read has just gone, if not much has: what comes behind it is done after it, not beside it."""
        self._look_at_servers()
        connection = self._read_on
        is_free = connection and not connection.lost.done() and connection.load < _BUSY
        return connection if is_free else self._least_busy()

    def _look_at_servers(self) -> None:
        """Give up connections to servers that are not written to any more, if the driver knows that."""
        described = self._telling.topology_description
        if described is self._described:
            return
        self._described = described
        servers = described.server_descriptions()
        for connection, address in [*self._open.items()]:
            # Of one that it looks for, it knows nothing.
            known = address not in servers or servers[address].server_type_name != "Unknown"
            if known and not (address in servers and servers[address].is_writable):
                connection.end()

    def _open_another(self) -> None:
        loop = asyncio.get_running_loop()
        # One at a time: what is awaited may do for all.
        if len(self._holding) < self._most and not self._opening and loop.time() >= self._not_before:
            self._opening = True
            task = loop.create_task(self._hold())
            self._holding.add(task)
            task.add_done_callback(self._holding.discard)

    async def _hold(self) -> None:
        connection, opening = PipelinedConnection(self._reply_s), True
        try:
            async with taken_over(self._client, connection, self._reply_s) as taken:
                self._opening = opening = False
                if not taken.is_writable:
                    # A driver that is told of one server alone asks that, whatever it is.
                    self._pause(_LONG_PAUSE_S)
                elif self._most:
                    self._open[connection] = taken.address
                    await connection.watch()
        except (PyMongoError, OSError) as error:
            self._pause(_PAUSE_S)
            _log.debug("mongo_pipeline_lost", reason=type(error).__name__)
        except (NotTakenError, WireError) as error:
            self._most = 0
            _log.info("mongo_not_pipelined", reason=str(error))
        except (AttributeError, TypeError) as error:
            # Reads are slower then, and that is all.
            self._most = 0
            _log.warning(
                "mongo_not_pipelined", reason=f"{type(error).__name__}: this pymongo is not known", exc_info=True
            )
        except Exception as error:  # noqa: BLE001  # whatever it is, reads are slower, and that is all
            self._pause(_LONG_PAUSE_S)
            _log.warning("mongo_not_pipelined", reason=type(error).__name__, exc_info=True)
        finally:
            self._open.pop(connection, None)
            if opening:
                self._opening = False

    def _pause(self, seconds: float) -> None:
        self._not_before = asyncio.get_running_loop().time() + seconds

    def _refused(self, connection: PipelinedConnection, document: Mapping[str, Any]) -> None:
        code, text = document.get("code"), str(document.get("errmsg"))
        if code == _TIME_LIMIT:
            raise ExecutionTimeout(text, code, document)
        if code in _NOT_HERE:
            connection.end()
            self._pause(_PAUSE_S)
            raise NotPipelinedError
        raise OperationFailure(text, code, document)
