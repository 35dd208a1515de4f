"""`nexus serve`: the service as a process, from its settings to the signal that ends it."""

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import anyio
import structlog
import typer
from pydantic import SecretStr

from nexus import __version__
from nexus.bootstrap import open_nexus
from nexus.cli.options import Config
from nexus.config import Settings
from nexus.config.loading import exposed_secrets, load_settings
from nexus.core.concurrency import ungrouped
from nexus.core.errors import ConfigError
from nexus.embedded import ADDRESSES, embedded_servers
from nexus.log import configure_logging

_log = structlog.get_logger(__name__)

app = typer.Typer(add_completion=False)
_DATA: Final = Path(".nexus")


@app.command()
def command(
    config: Config = None,
    embedded: Annotated[bool, typer.Option(help="Run on servers of its own, with data under .nexus/.")] = False,
) -> None:
    """Answer context requests until SIGTERM or SIGINT; then finish what was begun and exit 0."""
    settings = load_settings(config)
    configure_logging(settings.system.log_level, settings.system.log_format, for_good=True)
    if warning := exposed_secrets(config):
        _log.warning("settings_file_exposed", reason=warning)
    loop = event_loop(settings.system.event_loop)
    anyio.run(_serve, settings, config, embedded, loop, backend_options={"use_uvloop": loop == "uvloop"})
    # Everything has ended in order. Python would now wait for Motor's threads, and those for a server that may be gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def event_loop(wanted: str, *, find: Callable[[str], object] = find_spec) -> str:
    """The event loop for the setting `system.event_loop`; a ConfigError where uvloop is wanted and not installed."""
    if wanted != "asyncio" and find("uvloop"):
        return "uvloop"
    if wanted == "uvloop":
        raise ConfigError("system.event_loop: uvloop is not installed: pip install 'nexus-context[speed]'")
    return "asyncio"


async def _serve(settings: Settings, config: Path | None, embedded: bool, loop: str) -> None:
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            starting, ready, stop = anyio.CancelScope(), anyio.Event(), anyio.Event()
            await tasks.start(_watch_signals, lambda: stop.set() if ready.is_set() else starting.cancel())
            # A signal gives up a start that waits for a server; after the start, builds in flight are finished first.
            with starting:
                async with _servers(settings, embedded) as ready_settings, open_nexus(ready_settings, config) as nexus:
                    # Searching all that the start has made for cycles would take some 40 ms of a request's time.
                    gc.freeze()
                    ready.set()
                    mode, port = ready_settings.bus.mode, nexus.http_port
                    _log.info("ready", version=__version__, mode=mode, pid=os.getpid(), http_port=port, loop=loop)
                    await stop.wait()
                    _log.info("draining", seconds=ready_settings.system.drain_seconds)
            _log.info("stopped")
            tasks.cancel_scope.cancel()
        # A further signal on the way out would end the process with a signal's exit code.
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, signal.SIG_IGN)


async def _watch_signals(end: Callable[[], None], *, task_status: anyio.abc.TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            end()


@asynccontextmanager
async def _servers(settings: Settings, embedded: bool) -> AsyncIterator[Settings]:
    if not embedded:
        yield settings
        return
    async with embedded_servers(_DATA) as servers:
        addresses = _DATA / ADDRESSES
        for port in servers.taken:
            typer.echo(f"Port {port} is taken by another program. A free one is used from now on: see {addresses}.")
        typer.echo(f"Servers of its own, data under {_DATA}/, addresses in {addresses}, the same at the next start.")
        typer.echo("Commands in another terminal find them by:")
        typer.echo(f"  export NEXUS_BUS__URL={servers.redis_url} NEXUS_DATABASE__URI='{servers.mongo_uri}'")
        mode = "streams" if settings.bus.mode == "streams" else "pubsub"
        bus = settings.bus.model_copy(update={"url": SecretStr(servers.redis_url), "mode": mode})
        database = settings.database.model_copy(update={"uri": SecretStr(servers.mongo_uri)})
        yield settings.model_copy(update={"bus": bus, "database": database})
