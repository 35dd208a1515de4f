"""`nexus mcp`: tools and resources for an MCP host, over stdio or streamable HTTP (contract §16)."""

import os
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import anyio
import typer
from starlette.applications import Starlette

from nexus.cli.options import Config, given_of, session_settings
from nexus.cli.servers import bus_advice, service_client, store_error
from nexus.config import Settings
from nexus.connections import open_store
from nexus.core.concurrency import ungrouped
from nexus.core.errors import BusUnavailableError, ConfigError, NexusError, StoreRejectedError, StoreUnavailableError
from nexus.http.server import serving
from nexus.log import configure_logging
from nexus.wiring import memory_limits

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

app = typer.Typer(add_completion=False)
# Escapes in JSON make a text longer than the message that it becomes.
_BODY: Final = 4
_NO_TOKENS: Final = (
    "mcp.tokens: is empty, and --http needs a token for each request; for instance "
    "NEXUS_MCP__TOKENS='[{token: a text of 16 characters or more, owners: [ada]}]'"
)


@app.command(
    epilog="Examples:\n\nnexus mcp --owner ada --session s1\n\nnexus mcp --http --port 8765\n\nSee docs/mcp.md."
)
def command(
    context: typer.Context,
    owner: Annotated[
        str | None,
        typer.Option(help="Whose memory: the owner_key. With --http the token says it.", show_default=False),
    ] = None,
    session: Annotated[str, typer.Option(help="The session of calls that name none.")] = "default",
    http: Annotated[bool, typer.Option("--http", help="Serve streamable HTTP, at /mcp, instead.")] = False,
    host: Annotated[str, typer.Option(help="With --http: the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="With --http: its port; 0 takes a free one.")] = 8765,
    timeout: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds to wait for the service.")] = 15.0,
    config: Config = None,
) -> None:
    """Give an MCP host the memory of an owner, over standard input and output, until that ends or SIGTERM; exit 0.

    A service has to run on the bus: it does what the tools ask.
    """
    if http == (owner is not None):
        raise NexusError("--owner is needed, or --http, where the token says whose memory it is; not both")
    if not http and (useless := given_of(context, {"host": "--host", "port": "--port"})):
        raise NexusError(f"{' and '.join(useless)}: only with --http; without it nothing is listened on")
    settings = session_settings(config, "-" if owner is None else owner, session)
    if find_spec("mcp") is None:
        raise ConfigError("nexus mcp: the MCP SDK is not installed: pip install 'nexus-context[mcp]'")
    configure_logging(settings.system.log_level, settings.system.log_format)
    if owner is None and not settings.mcp.tokens:
        raise ConfigError(_NO_TOKENS)
    try:
        with ungrouped():
            anyio.run(_serve, settings, owner, session, timeout, (host, port))
    except ConfigError as error:
        said = str(error).replace("system.http_port", "--port").replace("system.http_host", "--host")
        raise ConfigError(said) from None
    except BusUnavailableError as error:
        raise NexusError(f"{error}: {bus_advice(error)}") from error
    except (StoreUnavailableError, StoreRejectedError) as error:
        raise store_error(error) from error
    _leave()


async def _serve(
    settings: Settings,
    owner: str | None,
    session: str,
    timeout: float,  # noqa: ASYNC109  # passed on
    address: tuple[str, int],
) -> None:
    from nexus.http.mcp import create_mcp_app, owner_of  # noqa: PLC0415  # an extra
    from nexus.mcp_server import create_server  # noqa: PLC0415  # as above

    async with service_client(settings.bus, timeout) as client, open_store(settings.database) as store:
        await store.ping()
        whose = owner_of if owner is None else lambda _: owner
        limits = memory_limits(settings)
        server = create_server(client, store, whose, session=session, timeout_s=timeout, limits=limits)
        if owner is None:
            app = create_mcp_app(server, settings.mcp.tokens, address[0], _BODY * settings.bus.max_payload_bytes)
            await _over_http(app, *address)
        else:
            await _over_stdio(server)


async def _over_stdio(server: "Server[Any]") -> None:
    from mcp.server.stdio import stdio_server  # noqa: PLC0415  # an extra

    async with anyio.create_task_group() as tasks:
        # Nothing cancels the thread that waits for a line, and calls that were sent are the service's.
        await tasks.start(_on_signal, _leave)
        async with stdio_server() as (received, sent):
            await server.run(received, sent, server.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _over_http(app: Starlette, host: str, port: int) -> None:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(_on_signal, stop.set)
        async with app.router.lifespan_context(app), serving(app, host, port):
            await stop.wait()
        tasks.cancel_scope.cancel()


async def _on_signal(end: Callable[[], object], *, task_status: anyio.abc.TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            end()


def _leave() -> NoReturn:
    """End the process with exit code 0. Python would wait for threads: Motor's, and the one that reads a line."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
