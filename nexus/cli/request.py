"""`nexus request`: asks a running service for a context, as an orchestrator would."""

import os
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console

from nexus.cli.options import Config, Form, Input, Layout, command_settings, run_with
from nexus.cli.servers import bus_advice, service_client
from nexus.cli.terminal import print_result, show_context
from nexus.client import AnswerError
from nexus.config import Settings
from nexus.core.errors import BusUnavailableError, NexusError
from nexus.core.models import Run
from nexus.core.signing import parsed
from nexus.core.wire import MAX_DEPTH, is_deeper
from nexus.services.records.explain import explain_content

app = typer.Typer(add_completion=False)


@app.command()
def command(
    owner: Annotated[str, typer.Option(help="Whose context: the owner_key.")],
    text: Input,
    session: Annotated[
        str | None,
        typer.Option(help="The session of the run; default where --metadata names none.", show_default=False),
    ] = None,
    layout: Layout = None,
    form: Form = None,
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
    settings = command_settings(config)
    given = {"session_id": session, "layout": layout, "format": form}
    metadata = _json_object("--metadata", more) | {name: value for name, value in given.items() if value is not None}
    run = run_with(owner, text, metadata)
    try:
        content = anyio.run(_request, settings, run, timeout)
    except AnswerError as error:
        if as_json:
            print_result(error.content)
        raise
    except TimeoutError as error:
        typer.echo(f"nexus: {error}", err=True)
        raise typer.Exit(2) from error
    except BusUnavailableError as error:
        raise NexusError(f"{error}: {bus_advice(error)}") from error
    if as_json:
        print_result(content)
    else:
        show_context(Console(), explain_content(content))


async def _request(settings: Settings, run: Run, timeout: float) -> dict[str, Any]:  # noqa: ASYNC109  # passed on
    async with service_client(settings.bus, timeout) as client:
        return await client.build(run, timeout=timeout)


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = parsed(os.fsencode(text))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise NexusError(f"{option}: a JSON object is needed")
    if is_deeper(value, MAX_DEPTH):
        raise NexusError(f"{option}: nested deeper than {MAX_DEPTH}")
    return value
