"""`/livez`, `/readyz` and `/metrics` on `system.http_port`, by starlette and uvicorn (contract §10).

Each check of whether the service is ready has a time limit.
"""

import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeAlias

import anyio
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from nexus.core.errors import ConfigError, NexusError, reason_of

_log = structlog.get_logger(__name__)

# Returns the fault, or raises a NexusError that names it, without addresses or content; None when all is well.
Check: TypeAlias = Callable[[], Awaitable[str | None]]

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_NO_STORE: Final = {"Cache-Control": "no-store"}
_IDLE_S: Final = 5
_HEAD_BYTES: Final = 1 << 14
# A client that reads slowly holds up the end of the service no longer than this.
_CLOSING_S: Final = 1


class CachedCheck:
    """A check whose outcome counts for `keep_s` seconds, so that frequent probes do not burden the server behind it.

    The check runs at most once in that time, for at most `limit_s` seconds, however many callers wait for it.
    """

    def __init__(self, check: Check, *, limit_s: float = 1.0, keep_s: float = 1.0) -> None:
        self._check = check
        self._limit_s = limit_s
        self._keep_s = keep_s
        self._lock = anyio.Lock()
        self._next = float("-inf")
        self._outcome: str | None = "not known yet"

    async def __call__(self) -> str | None:
        """The outcome of the latest run of the check."""
        async with self._lock:
            if anyio.current_time() >= self._next:
                self._next = anyio.current_time() + self._keep_s
                self._outcome = await _run(self._check, self._limit_s)
        return self._outcome


def create_app(
    checks: Mapping[str, Check],
    metrics: Callable[[Mapping[str, bool]], bytes],
    *,
    check_s: float = 2.0,
    console: Sequence[BaseRoute] = (),
) -> Starlette:
    """The application: the service is ready when all `checks` are well, for which each has `check_s` seconds.

    `metrics` gives the exposition in Prometheus's text format, from which checks are well; `console` are the routes of
    the console.
    """

    async def livez(_request: Request) -> Response:
        return _status(200, "ok")

    async def checked() -> dict[str, str]:
        outcomes = dict.fromkeys(checks, "")

        async def run(name: str, check: Check) -> None:
            outcomes[name] = await _run(check, check_s) or "ok"

        async with anyio.create_task_group() as tasks:
            for name, check in checks.items():
                tasks.start_soon(run, name, check)
        return outcomes

    async def readyz(_request: Request) -> Response:
        outcomes = await checked()
        ready = all(outcome == "ok" for outcome in outcomes.values())
        content = {"status": "ok" if ready else "unavailable", "checks": outcomes}
        return JSONResponse(content, 200 if ready else 503, headers=_NO_STORE)

    async def exposition(_request: Request) -> Response:
        well = {name: outcome == "ok" for name, outcome in (await checked()).items()}
        return Response(metrics(well), media_type=_METRICS_TYPE, headers=_NO_STORE)

    routes = [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", exposition), *console]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _failed})


@asynccontextmanager
async def serving(app: Starlette, host: str, port: int) -> AsyncIterator[int]:
    """Serve `app` on every address of `host` until the context ends; yields the port. 0 takes a free one.

    Raises:
        ConfigError: the port cannot be had.
    """
    try:
        sockets = await _listen(host, port)
    except (OSError, UnicodeError) as error:
        raise ConfigError(_not_listening(host, port, error)) from error
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            # Faults are logged by `_failed`, without the text of the exception.
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=_CLOSING_S,
            h11_max_incomplete_event_size=_HEAD_BYTES,
        )
    )

    async def serve() -> None:
        # Whatever ends the service, the server ends by `should_exit`, and closes its sockets.
        with anyio.CancelScope(shield=True):
            await server.serve(sockets)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        taken = sockets[0].getsockname()[1]
        _log.info("http_listening", http_port=taken)
        try:
            yield taken
        finally:
            server.should_exit = True


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave SIGTERM and SIGINT to the service, which drains first."""
        yield


async def _run(check: Check, seconds: float) -> str | None:
    with anyio.move_on_after(seconds):
        try:
            return await check()
        except NexusError as error:
            return reason_of(error)
    return "no answer in time"


async def _listen(host: str, port: int) -> list[socket.socket]:
    addresses = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, *_, address in addresses:
            at = (address[0], port or (sockets[0].getsockname()[1] if sockets else 0))
            sockets.append(socket.create_server(at, family=family))
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    return sockets


def _not_listening(host: str, port: int, error: OSError | UnicodeError) -> str:
    number = getattr(error, "errno", None)
    # asyncio adds the address in brackets, which is named already.
    reason = (getattr(error, "strerror", None) or type(error).__name__).partition(" (")[0].lower()
    if number in {errno.EADDRINUSE, errno.EACCES}:
        hint = "; 0 takes a free port" if number == errno.EADDRINUSE else ""
        return f"system.http_port: cannot listen on port {port} of system.http_host {host!r}: {reason}{hint}"
    return f"system.http_host: cannot listen on {host!r}: {reason}; an address or a name of this machine is needed"


def _status(code: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"status": text}, code, headers={**_NO_STORE, **(headers or {})})


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # starlette calls it for nothing else
    return _status(error.status_code, error.detail.lower(), error.headers)


async def _failed(_request: Request, _error: Exception) -> Response:
    _log.exception("http_failed")
    return _status(500, "internal error")
