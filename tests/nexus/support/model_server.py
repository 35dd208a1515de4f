"""A server on loopback that speaks the OpenAI protocol, with a model behind it that behaves as a test says."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import h11
from anyio.abc import SocketAttribute, SocketStream, TaskStatus
from pydantic import TypeAdapter, ValidationError

from nexus.core.concurrency import ungrouped
from tests.nexus.support.model_behaviours import Behaviour, good
from tests.nexus.support.model_exchange import Asked, Exchange

HOST: Final = "127.0.0.1"
_PATHS: Final = ("/chat/completions", "/embeddings")
_CHUNK: Final = 1 << 16
_JSON: Final = TypeAdapter[Any](Any)


class ModelServer:
    """A model.

    Attributes:
        port: where it listens.
        behaviour: what it does with a call.
        script: what it does with the next calls, one each, before that.
        asked: the calls until now.
        connections: how often somebody connected.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self.port = 0
        self.behaviour = behaviour
        self.script: deque[Behaviour] = deque()
        self.asked: list[Asked] = []
        self.connections = 0

    @property
    def base_url(self) -> str:
        """The value for `llm.base_url`."""
        return f"http://{HOST}:{self.port}/v1"

    async def serve(self, stream: SocketStream) -> None:
        """Answer the requests of a connection, one after the other."""
        self.connections += 1
        http = h11.Connection(h11.SERVER)
        async with stream:
            try:
                while (asked := await _read(http, stream)) is not None:
                    await self._answer(asked, Exchange(asked, http, stream))
                    if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                        return
                    http.start_next_cycle()
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, h11.RemoteProtocolError):
                pass

    async def _answer(self, asked: Asked, exchange: Exchange) -> None:
        if asked.method != "POST" or not asked.path.partition("?")[0].endswith(_PATHS):
            await exchange.answer(404, {"error": {"message": "no such page", "code": None}})
            return
        self.asked.append(asked)
        behave = self.script.popleft() if self.script else self.behaviour
        await behave(exchange)


async def _read(http: h11.Connection, stream: SocketStream) -> Asked | None:
    """The next request; None at the end of the connection."""
    request: h11.Request | None = None
    body = b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            try:
                http.receive_data(await stream.receive(_CHUNK))
            except anyio.EndOfStream:
                http.receive_data(b"")
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
            return Asked(request.method.decode(), request.target.decode(), headers, _parsed(body))
        else:
            return None


def _parsed(body: bytes) -> Any:
    try:
        return _JSON.validate_json(body)
    except ValidationError:
        return None


@asynccontextmanager
async def model_server(behaviour: Behaviour | None = None, *, port: int = 0) -> AsyncIterator[ModelServer]:
    """A server that listens, on a free port unless one is named."""
    with ungrouped():
        async with _served(behaviour or good(), port) as server:
            yield server


@asynccontextmanager
async def _served(behaviour: Behaviour, port: int) -> AsyncIterator[ModelServer]:
    async with anyio.create_task_group() as tasks:
        server = ModelServer(behaviour)
        await tasks.start(_listen, server, port)
        try:
            yield server
        finally:
            tasks.cancel_scope.cancel()


async def _listen(server: ModelServer, port: int, *, task_status: TaskStatus[None]) -> None:
    async with await anyio.create_tcp_listener(local_host=HOST, local_port=port) as listener:
        server.port = listener.extra_attributes[SocketAttribute.local_port]()
        task_status.started()
        await listener.serve(server.serve)
