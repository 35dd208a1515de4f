"""`nexus state`: show what is kept of a session for agents, send a change of it, clear it (contract §5, §10).

A change is checked as a service will check it, since nothing answers a `session.state` message.
"""

import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic_core import PydanticSerializationError

from nexus.cli.options import Config, Owner, Session, Yes, session_settings
from nexus.cli.servers import require_session, run, run_on_store, say_who_heard
from nexus.cli.terminal import confirm, print_result, printable, session_named, text_lines
from nexus.client import ContextClient, owner_message
from nexus.config import BusSettings, signing_of
from nexus.connections import open_bus
from nexus.core.errors import NexusError
from nexus.core.models import Topics
from nexus.core.ports import Store
from nexus.core.signing import parsed
from nexus.core.wire import MAX_DEPTH, EnvelopeError, decode, encode
from nexus.services.context.pinned import shown_parts
from nexus.services.session_state.merge import OPS, read_change, state_in
from nexus.services.session_state.service import stored_state
from nexus.services.session_state.state import PARTS, SessionState, as_object

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show what is kept of a session for agents, change it, clear it."
)
# A file may be larger than the message: white space, and six characters for one.
_FILE_TO_PAYLOAD: Final = 16


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
    settings = session_settings(config, owner, session)
    state, faults = run_on_store(settings.database, partial(_stored, owner=owner, session=session))
    if faults:
        first = printable(faults[0])
        typer.echo(f"nexus: {len(faults)} faults in what is kept, left out; the first: {first}", err=True)
    nothing = [f"Nothing is kept of {session_named(owner, session)}."]
    print_result(as_object(state) if as_json else lines(state) or nothing)


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
    """Publish a change from a file: {"op": "set", "patch" or "clear", …}, or a state, whose parts are set.

    What a service would refuse is not sent. Exit 1 when no service heard it (on pub/sub). There is no answer: `nexus
    state show` shows the result.
    """
    settings = _bus_settings(config, owner, session)
    _publish(content_of(path, settings, owner, session), settings, owner, session)


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
    yes: Yes = False,
    config: Config = None,
) -> None:
    """Publish that all of a session's state, or parts of it, are not given any more. Asks first."""
    settings = _bus_settings(config, owner, session)
    parts = [*dict.fromkeys(part or ())]
    content = {"op": "clear", "parts": parts} if parts else {"op": "clear"}
    try:
        _check(content, settings, owner, session)
    except ValueError as error:
        raise NexusError(re.sub(r"content\.parts\[\d+\]", "--part", str(error))) from None
    confirm(f"Clear {', '.join(parts) or 'the whole state'} of {session_named(owner, session)}?", yes=yes)
    _publish(content, settings, owner, session)


def content_of(path: str, settings: BusSettings, owner: str, session: str) -> Mapping[str, Any]:
    """The content of a `session.state` message from a file (`-` is standard input), which holds it or a state to set.

    A NexusError, with the place and what is allowed, where it cannot be read or a service would refuse it.
    """
    name = "standard input" if path == "-" else printable(path)
    try:
        value = parsed(_read(path, name, settings.max_payload_bytes * _FILE_TO_PAYLOAD))
    except ValueError as error:
        raise NexusError(f"{name}: {error}") from None
    if not isinstance(value, dict):
        raise NexusError(f"{name}: a JSON object is needed: a state, or a message with op: {', '.join(OPS)}")
    is_message = "op" in value
    content = value if is_message else {"op": "set", "state": value}
    try:
        _check(content, settings, owner, session)
    except ValueError as error:
        fault = str(error).removeprefix("content" if is_message else "content.state").lstrip(".: ")
        raise NexusError(f"{name}: {fault}") from None
    return content


def lines(state: SessionState) -> list[str]:
    """The parts as they are pinned for the main agent, and the roles of sub-agents; `[]` where nothing is given."""
    return text_lines("\n\n".join(shown_parts(state)))


def _bus_settings(config: Path | None, owner: str, session: str) -> BusSettings:
    bus = session_settings(config, owner, session).bus
    if bus.mode == "memory":
        raise NexusError("bus.mode is memory: there is no other process to tell")
    return bus


async def _stored(store: Store, owner: str, session: str) -> tuple[SessionState, list[str]]:
    """The stored state, and the faults of its unreadable parts."""
    document = await stored_state(store, owner, session)
    if document is None:
        await require_session(store, owner, session)
    return state_in(document)


def _publish(content: Mapping[str, Any], settings: BusSettings, owner: str, session: str) -> None:
    async def send() -> int:
        async with open_bus(settings) as transport:
            client = ContextClient(transport.bus, signing=signing_of(settings.signing))
            return await client.send_state(owner, content, session_id=session)

    say_who_heard(run(send, key="session.state"), settings, "it is on the stream until a service has stored it")


def _check(content: Mapping[str, Any], settings: BusSettings, owner: str, session: str) -> None:
    """Read a message of that content as a service does; a ValueError says where it is wrong, and what is allowed."""
    message = owner_message(owner, content, session)
    signing = signing_of(settings.signing)
    try:
        payload = encode(message, topic=Topics.SESSION_STATE, signing=signing)
        received = decode(payload, max_bytes=settings.max_payload_bytes, topic=Topics.SESSION_STATE, signing=signing)
    except EnvelopeError as error:
        raise ValueError(error.message) from None
    except PydanticSerializationError:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from None
    read_change(received.content, received.timestamp, received.id)


def _read(path: str, name: str, most: int) -> bytes:
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            found = file.read(most + 1)
    except OSError as error:
        raise NexusError(f"{name}: cannot be read: {error.strerror}") from None
    if len(found) > most:
        raise NexusError(f"{name}: more than {most} bytes")
    return found
