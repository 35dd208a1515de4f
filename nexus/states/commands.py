"""The commands of `nexus state`. Errors are one line and exit code 1."""

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import typer

from nexus.cli.terminal import (
    Config,
    bus_advice,
    check_names,
    confirm,
    mongodb_in_words,
    print_json,
    printable,
    session_named,
)
from nexus.config import DatabaseSettings, Settings, load_settings
from nexus.connections import open_store
from nexus.core.errors import BusRefusedError, BusUnavailableError, NexusError, StoreUnavailableError
from nexus.log import configure_logging
from nexus.services.context.session_state import SessionState
from nexus.services.context.state_document import shown
from nexus.services.context.state_parts import PARTS
from nexus.states.saying import check, content_of, send
from nexus.states.shown import as_object, lines

_Result = TypeVar("_Result")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at what is kept of a session for agents, say something of it, clear it.",
)
Owner = Annotated[str, typer.Option(help="Whose session: the owner_key.")]
Session = Annotated[str, typer.Option(help="The session.")]


@app.command(
    epilog="Examples:\n\nnexus state show --owner ada\n\nnexus state show --owner ada --session s1 --json > state.json"
)
def show(
    owner: Owner,
    session: Session = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON that `send` takes.")] = False,
    config: Config = None,
) -> None:
    """Show what is kept of a session: the parts as they are pinned into the main agent's context, sub-agents' roles.

    What a terminal might obey is shown escaped. Nothing kept is {} with --json.
    """
    settings = _settings(config)
    check_names(owner, session)
    state, faults = _run(partial(_kept, settings.database, owner, session))
    if faults:
        typer.echo(
            f"nexus: {len(faults)} faults in what is kept, left out; the first: {printable(faults[0])}", err=True
        )
    if as_json:
        print_json(as_object(state))
        return
    for line in lines(state) or [f"Nothing is kept of {session_named(owner, session)}."]:
        typer.echo(line)


@app.command(
    "send",
    epilog="Examples:\n\nnexus state send --owner ada --session s1 state.json\n\n"
    'echo \'{"op": "patch", "remove": {"todos": ["t2"]}}\' | nexus state send --owner ada -',
)
def send_state(
    owner: Owner,
    path: Annotated[str, typer.Argument(metavar="FILE", help="A JSON file; - is standard input.")],
    session: Session = "default",
    config: Config = None,
) -> None:
    """Publish what a file says of a session: {"op": "set", "patch" or "clear", …}, or a state, whose parts are set.

    What a service would refuse is not sent. Exit 1 when nobody heard it (on pub/sub). There is no answer: `nexus state
    show` tells what has become of it.
    """
    settings = _settings(config, speaks=True)
    check_names(owner, session)
    _send(content_of(path, settings.bus, owner, session), settings, owner, session)


@app.command(
    epilog="Examples:\n\nnexus state clear --owner ada\n\n"
    "nexus state clear --owner ada --session s1 --part todos --part useful_info --yes"
)
def clear(
    owner: Owner,
    session: Session = "default",
    part: Annotated[
        list[str] | None, typer.Option(help=f"Only this part: {', '.join(PARTS)}.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: Config = None,
) -> None:
    """Publish that all of a session's state, or parts of it, are not given any more. Asks first."""
    settings = _settings(config, speaks=True)
    check_names(owner, session)
    parts = [*dict.fromkeys(part or ())]
    content = {"op": "clear", "parts": parts} if parts else {"op": "clear"}
    try:
        check(content, settings.bus, owner, session)
    except ValueError as error:
        raise NexusError(re.sub(r"content\.parts\[\d+\]", "--part", str(error))) from None
    if not yes:
        wanted = ", ".join(parts) or "the whole state"
        confirm(f"Clear {wanted} of {session_named(owner, session)}?", "--yes does it without asking")
    _send(content, settings, owner, session)


def _settings(config: Path | None, *, speaks: bool = False) -> Settings:
    configure_logging("error", "console")
    settings = load_settings(config)
    if speaks and settings.bus.mode == "memory":
        raise NexusError("bus.mode is memory: there is no other process to tell")
    return settings


async def _kept(settings: DatabaseSettings, owner: str, session: str) -> tuple[SessionState, list[str]]:
    """The state that is kept, and what in it could not be read."""
    async with open_store(settings) as store:
        row = await store.find_session_state(owner, session)
    if row is not None and (row.get("owner_key"), row.get("session_id")) != (owner, session):
        raise StoreUnavailableError("the store gave the state of another session")
    return shown(row.get("document") if row else None)


def _send(content: Mapping[str, Any], settings: Settings, owner: str, session: str) -> None:
    typer.echo(_run(partial(send, content, settings.bus, owner, session)))


def _run(work: Callable[[], Awaitable[_Result]]) -> _Result:
    """What `work` returns. Errors of the servers come in words for somebody at a terminal."""
    try:
        with mongodb_in_words():
            return anyio.run(work)
    except BusRefusedError as error:
        advice = "see what stands under <prefix>session.state (redis-cli TYPE)"
        raise BusRefusedError(f"Redis does not do what was asked ({error}): {advice}") from error
    except BusUnavailableError as error:
        raise BusUnavailableError(f"Redis does not do what was asked ({error}): {bus_advice(error)}") from error
