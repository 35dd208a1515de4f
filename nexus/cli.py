"""The command line (CONTRACT §10). Errors are one line and an exit code, never a traceback."""

import errno
import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import anyio
import structlog
import typer
from pydantic import SecretStr, ValidationError
from rich.console import Console

from nexus import __version__, dead_letters, demo, doctor, memory, states, turns
from nexus.bootstrap import open_nexus
from nexus.client import AnswerError
from nexus.config import Settings, load_settings, signing_of
from nexus.connections import open_client
from nexus.core.errors import BusUnavailableError, NexusError
from nexus.core.models import Message, Role, Run, new_run_id
from nexus.core.tasks import ungrouped
from nexus.core.wire import MAX_DEPTH, explain, is_deeper
from nexus.embedded import embedded_servers
from nexus.log import configure_logging
from nexus.terminal import NOBODY, Config, bus_advice, json_of

_log = structlog.get_logger(__name__)

app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(memory.app, name="memory")
app.add_typer(states.app, name="state")
app.add_typer(turns.app, name="turns")
_DATA = Path(".nexus")
# What a stream says that takes no more: the disk is full, or whatever was behind it is gone.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})
_NOT_BELIEVED = "answers came, but none signed with a key known here: compare bus.signing.keys"


def main() -> None:
    """Run the command line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a terminal of another encoding has no letter for is shown as an escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with ungrouped():
            app()
    except NexusError as error:
        _fail(str(error), 1)
    except OSError as error:
        # Files and servers have been spoken of where they are used: what is left is where the words go.
        if error.errno not in _FULL or error.filename is not None:
            raise
        _discard_output()
        _fail(f"standard output: cannot be written: {error.strerror}", 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


@app.callback()
def options(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Nexus, the context service of an LLM agent platform."""
    if show_version:
        version()
        raise typer.Exit


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.command()
def serve(
    config: Config = None,
    embedded: Annotated[bool, typer.Option(help="Run on servers of its own, with data under .nexus/.")] = False,
) -> None:
    """Answer context requests until SIGTERM or SIGINT; then finish what was begun and exit 0."""
    settings = load_settings(config)
    configure_logging(settings.system.log_level, settings.system.log_format)
    anyio.run(_serve, settings, embedded)
    # Everything has ended in order. Python would now wait for Motor's threads, and those for a server that may be gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@app.command()
def request(  # noqa: PLR0917  # typer makes options of them
    owner: Annotated[str, typer.Option(help="Whose context: the owner_key.")],
    text: Annotated[str, typer.Option("--input", help="What the person says.")],
    session: Annotated[str, typer.Option(help="The session that the run belongs to.")] = "default",
    layout: Annotated[str | None, typer.Option(help="The layout; the service's default when not given.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="The form of the messages: openai, anthropic or gemini.")
    ] = None,
    more: Annotated[
        str, typer.Option("--metadata", help="More of run.metadata, as a JSON object: agent, state, ...")
    ] = "{}",
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds to wait.")] = 5.0,
    config: Config = None,
) -> None:
    """Ask a running service for a context, as an orchestrator would. Exit 1 on an error answer, 2 on time-out.

    The input is recorded like any other: the next context of this owner shows it.
    """
    configure_logging("error", "console")
    settings = load_settings(config)
    if settings.bus.mode == "memory":
        _fail("bus.mode is memory: there is no other process to ask", 1)
    given = {"session_id": session, "layout": layout, "format": form}
    metadata = _json_object("--metadata", more) | {name: value for name, value in given.items() if value}
    run_id = new_run_id()
    try:
        "".join((owner, text, session, layout or "", form or "")).encode()
        human = Message(run_id=run_id, owner_key=owner, role=Role.HUMAN, content=text)
        run = Run(id=run_id, owner_key=owner, history=[human], metadata=metadata)
    except UnicodeEncodeError:
        _fail("--owner, --input, --session, --layout and --format: UTF-8 text is needed", 1)
    except ValidationError as error:
        _fail(explain(error).replace("owner_key", "--owner"), 1)
    try:
        content = anyio.run(_request, settings, run, timeout)
    except AnswerError as error:
        if as_json:
            typer.echo(json.dumps(error.content, ensure_ascii=False, indent=2))
        _fail(str(error), 1)
    except TimeoutError as error:
        _fail(f"no answer within {timeout:g} s: {error}", 2)
    except BusUnavailableError as error:
        _fail(f"{error}: {bus_advice(error)}", 1)
    if as_json:
        typer.echo(json.dumps(content, ensure_ascii=False, indent=2))
    else:
        demo.show_context(Console(), content)


@app.command("demo")
def demo_command() -> None:
    """Play a sample conversation through servers of its own and show the context that comes out."""
    configure_logging("error", "console")
    anyio.run(demo.play, Console())


@app.command("doctor")
def doctor_command(
    config: Config = None,
    quick: Annotated[bool, typer.Option(help="Only ask whether both servers answer.")] = False,
) -> None:
    """Check Redis, MongoDB, indexes, settings, tools and the model. Exit 1 when something is wrong, with what to do."""
    configure_logging("error", "console")
    settings = load_settings(config)
    raise typer.Exit(0 if anyio.run(doctor.examine, settings, Console(), quick) else 1)


async def _serve(settings: Settings, embedded: bool) -> None:
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            starting, ready, stop = anyio.CancelScope(), anyio.Event(), anyio.Event()
            await tasks.start(_watch_signals, lambda: stop.set() if ready.is_set() else starting.cancel())
            # A start that waits for a server is given up; once it is through, what was begun is finished first.
            with starting:
                async with _servers(settings, embedded) as ready_settings, open_nexus(ready_settings) as nexus:
                    ready.set()
                    mode, port = ready_settings.bus.mode, nexus.http_port
                    _log.info("ready", version=__version__, mode=mode, pid=os.getpid(), http_port=port)
                    await stop.wait()
                    _log.info("draining", seconds=ready_settings.system.drain_seconds)
            _log.info("stopped")
            tasks.cancel_scope.cancel()
        # On its way out the process needs no further telling; the default would end it with a signal's exit code.
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
        typer.echo(f"Servers of its own, data under {_DATA}/. To use them from another terminal:")
        typer.echo(f"  export NEXUS_BUS__URL={servers.redis_url} NEXUS_DATABASE__URI='{servers.mongo_uri}'")
        yield on_servers(settings, servers.redis_url, servers.mongo_uri)


def on_servers(settings: Settings, redis_url: str, mongo_uri: str) -> Settings:
    """`settings` with other addresses of Redis and MongoDB."""
    mode = "streams" if settings.bus.mode == "streams" else "pubsub"
    bus = settings.bus.model_copy(update={"url": SecretStr(redis_url), "mode": mode})
    database = settings.database.model_copy(update={"uri": SecretStr(mongo_uri)})
    return settings.model_copy(update={"bus": bus, "database": database})


async def _request(settings: Settings, run: Run, timeout: float) -> dict[str, Any]:  # noqa: ASYNC109  # passed on
    bus = settings.bus
    async with open_client(
        bus.url.get_secret_value(),
        mode="streams" if bus.mode == "streams" else "pubsub",
        channel_prefix=bus.channel_prefix,
        signing=signing_of(bus.signing),
        connect_s=timeout,
    ) as client:
        try:
            return await client.build(run, timeout=timeout)
        except TimeoutError:
            raise TimeoutError(_NOT_BELIEVED if client.disbelieved else NOBODY) from None


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json_of(option, os.fsencode(text))
    except NexusError:
        value = None
    if not isinstance(value, dict):
        _fail(f"{option}: a JSON object is needed", 1)
    if is_deeper(value, MAX_DEPTH):
        _fail(f"{option}: nested deeper than {MAX_DEPTH}", 1)
    return value


def _discard_output() -> None:
    """Python would try to write what is left once more on its way out, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _fail(message: str, code: int) -> NoReturn:
    print(f"nexus: {message}", file=sys.stderr)  # noqa: T201  # the last word of a program
    raise SystemExit(code)
