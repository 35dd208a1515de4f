"""`nexus context`: the context that an owner's next request would get (contract §13)."""

from functools import partial
from typing import Any

import anyio
import typer
from rich.console import Console

from nexus.cli.terminal import (
    Config,
    Form,
    Input,
    Json,
    Layout,
    Owner,
    Session,
    print_result,
    run_on_store,
    run_with,
    session_settings,
    show_context,
)
from nexus.config import BusSettings, Settings
from nexus.connections import open_bus
from nexus.core.models import Message, Role, Run
from nexus.core.ports import Store
from nexus.services.context.request import Deadline
from nexus.wiring import create_nexus

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Look at the context of an owner's next request.")


@app.callback()
def options() -> None:
    """A group, although it has one command."""


@app.command(
    epilog="Examples:\n\nnexus context show --owner ada --session s1\n\n"
    'nexus context show --owner ada --layout agent --input "And then?" --json'
)
def show(  # noqa: PLR0917  # typer makes options of them
    owner: Owner,
    session: Session = "default",
    layout: Layout = None,
    form: Form = None,
    text: Input = "(what the person says next)",
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show the context that a request would get now. Nothing is recorded, and no service is asked.

    It is built here, from MongoDB and these settings. Inputs that wait in Redis, while MongoDB is away, are not seen.
    """
    settings = session_settings(config, owner, session)
    given = {"session_id": session, "layout": layout, "format": form}
    run = run_with(owner, text, {name: value for name, value in given.items() if value})
    content = run_on_store(settings.database, partial(_preview, settings, run))
    if as_json:
        print_result(content)
    else:
        show_context(Console(), content)


async def _preview(settings: Settings, run: Run, store: Store) -> dict[str, Any]:
    asked = Message(run_id=run.id, owner_key=run.owner_key, role=Role.HUMAN, content=run.model_dump(mode="json"))
    allowed_ms = settings.bus.request_deadline_ms
    async with open_bus(BusSettings(mode="memory")) as transport:
        # No part that writes by itself is started.
        nexus = create_nexus(settings, transport, store, None)
        await nexus.reload_settings()
        async with nexus.catalog.running():
            await nexus.catalog.refresh()
            return await nexus.builder.preview(asked, Deadline(allowed_ms, anyio.current_time() + allowed_ms / 1_000))
