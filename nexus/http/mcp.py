"""MCP over streamable HTTP: whose memory a request is about, and the application that answers it (contract §16).

- Each request has a token of `mcp.tokens` as its bearer token; one for several owners also the header `Nexus-Owner`.
- Each token has sessions of its own, so that none can take those of others.
- A session of the transport is answered only under the token and for the owner that began it, as the SDK compares them.
- On loopback only requests to a name of this machine are answered, and from pages of no other (DNS rebinding).
"""

import hashlib
import hmac
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import structlog
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from nexus.config import ANY_OWNER, McpToken
from nexus.services.history.rows import read_owner_key

_log = structlog.get_logger(__name__)

OWNER_HEADER: Final = "Nexus-Owner"
# Of one token, and how long one lasts without a request; each takes some 40 kB.
_MOST_SESSIONS: Final = 1_000
_SESSION_IDLE_S: Final = 600
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="Nexus MCP"'}


def create_mcp_app(server: Server[Any], tokens: Iterable[McpToken], host: str, max_body_bytes: int) -> Starlette:
    """The application, at `/mcp`, for a server that listens on `host`. Its lifespan has to run meanwhile.

    A body of more than `max_body_bytes` is refused with 413, and without a token none is read.
    """
    doors = {}
    for each in tokens:
        # One for each token: of sessions the SDK limits those of an application.
        inner = server.streamable_http_app(
            host=host,
            max_request_body_size=max_body_bytes,
            session_idle_timeout=_SESSION_IDLE_S,
            max_sessions=_MOST_SESSIONS,
        )
        inner.add_exception_handler(ClientDisconnect, _broken_off)
        inner.add_exception_handler(Exception, _failed)
        doors[_digest(each.token.get_secret_value().encode())] = _Door(each.owners, inner)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for door in doors.values():
                await stack.enter_async_context(door.app.router.lifespan_context(door.app))
            yield

    return Starlette(routes=[Mount("/", _Gate(doors))], lifespan=lifespan)


def owner_of(request: ServerRequestContext[Any, Request]) -> str:
    """Whose memory a request is about that has passed."""
    assert request.request is not None  # noqa: S101  # all that comes over HTTP has one
    owner = request.request.scope["user"].access_token.subject
    assert isinstance(owner, str)  # noqa: S101  # as `_Gate` gives it
    return owner


@dataclass(frozen=True, slots=True)
class _Door:
    """Of a token: the owners that it is for, and the application that has its sessions."""

    owners: tuple[str, ...]
    app: Starlette


class _Gate:
    """Lets requests with a token pass, each with its owner as the user that the SDK binds sessions to."""

    def __init__(self, doors: Mapping[bytes, _Door]) -> None:
        self._doors = doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope["user"], app = self._user(HTTPConnection(scope))
        except HTTPException as error:
            response = JSONResponse({"error": error.detail}, error.status_code, error.headers)
            await response(scope, receive, send)
            return
        await app(scope, receive, send)

    def _user(self, request: HTTPConnection) -> tuple[AuthenticatedUser, ASGIApp]:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # Headers are bytes, which starlette decodes as Latin-1.
        given = _digest(token.strip().encode("latin-1")) if scheme.lower() == "bearer" else b""
        # Of one length, and all of them, so that the time tells nothing of a token.
        digest = b"".join(known for known in self._doors if hmac.compare_digest(given, known))
        if not digest:
            raise HTTPException(401, "a token of mcp.tokens is needed, as a bearer token", _CHALLENGE)
        door = self._doors[digest]
        owner = _owner(request.headers.getlist(OWNER_HEADER), door.owners)
        name = digest.hex()
        return AuthenticatedUser(AccessToken(token=name, client_id=name, scopes=[], subject=owner)), door.app


def _owner(named: list[str], allowed: tuple[str, ...]) -> str:
    if not named:
        if len(allowed) == 1 and ANY_OWNER not in allowed:
            return allowed[0]
        raise HTTPException(400, f"the header {OWNER_HEADER} is needed: this token is for several owners")
    if len(named) > 1:
        # Which of them a proxy has set, and which came from outside, cannot be told.
        raise HTTPException(400, f"{OWNER_HEADER}: is given {len(named)} times; one is allowed")
    try:
        # What is no ASCII was decoded as Latin-1: it would be another owner.
        owner = read_owner_key(unquote(named[0].encode("ascii"), errors="strict"), OWNER_HEADER)
    except ValueError as error:
        reason = f"{OWNER_HEADER}: is no percent-encoded UTF-8" if isinstance(error, UnicodeError) else str(error)
        raise HTTPException(400, reason) from None
    if owner not in allowed and ANY_OWNER not in allowed:
        raise HTTPException(403, f"{OWNER_HEADER}: this token is not for that owner")
    return owner


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


async def _broken_off(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


async def _failed(_request: Request, _error: Exception) -> Response:
    _log.exception("http_failed")
    return JSONResponse({"error": "internal error"}, 500)
