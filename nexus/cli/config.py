"""`nexus config`: where the value of each setting comes from; services read the stored ones again (contract §13)."""

from typing import Any

import typer

from nexus.cli.options import Config, Json, command_settings
from nexus.cli.servers import run, run_on_store, say_who_heard
from nexus.cli.terminal import Columns, print_result, printable, table
from nexus.client import CHECK_SERVICE
from nexus.config import signing_of
from nexus.config.sources import Origin, origins, text_of
from nexus.connections import open_bus
from nexus.core.errors import NexusError, NobodyListeningError
from nexus.core.models import Message, Role, Topics
from nexus.core.wire import encode

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Show where the value of each setting comes from, and have services read the stored settings again.",
)


@app.command(epilog="Examples:\n\nnexus config show\n\nnexus config show --json --config /etc/nexus.yml")
def show(as_json: Json = False, config: Config = None) -> None:
    """Show the value of every setting, and whether a default, the file, the stored document or a variable gives it.

    Passwords and keys are masked. Where the stored document cannot be read or is wrong, the rest is shown, and exit 1.
    """
    settings = command_settings(config)
    fault = None
    try:
        document = run_on_store(settings.database, lambda store: store.find_configuration(settings.environment))
        found = origins(settings, document or {}, config)
    except NexusError as error:
        fault = NexusError(f"shown without the stored settings: {error}")
        found = origins(settings, {}, config)
    print_result([as_object(origin) for origin in found] if as_json else lines(found))
    if fault:
        raise fault


@app.command("reload")
def reload_settings(config: Config = None) -> None:
    """Have every service read the stored settings again, by a message on `config.changed`.

    Says how many heard it (on pub/sub); exit 1 when none did. Their logs tell whether the settings were accepted.
    """
    settings = command_settings(config).bus
    if settings.mode == "memory":
        raise NexusError("bus.mode is memory: there is no other process to tell")
    changed = Message(run_id="config", owner_key="operator", role=Role.SYSTEM)
    payload = encode(changed, topic=Topics.CONFIG_CHANGED, signing=signing_of(settings.signing))

    async def send() -> int:
        async with open_bus(settings) as transport:
            return await transport.bus.publish(Topics.CONFIG_CHANGED, payload)

    heard = run(send, key=Topics.CONFIG_CHANGED)
    if not heard:
        raise NobodyListeningError(f"nobody listens to {Topics.CONFIG_CHANGED}: {CHECK_SERVICE}")
    say_who_heard(heard, settings, "every service that runs reads it there; streams do not tell how many those are")


def lines(found: list[Origin]) -> list[str]:
    """A line a setting and, below them, one for each value of the file that does not count."""
    columns: Columns = {"setting": "key", "from": "given_by", "value": lambda origin: text_of(origin.shown)}
    outranked = [origin for origin in found if origin.outranked]
    return table(columns, found) + [
        printable(
            f"{origin.key}: the stored document outranks the settings file, which has {text_of(origin.outranked[0])}"
        )
        for origin in outranked
    ]


def as_object(origin: Origin) -> dict[str, Any]:
    """A setting for programs; `outranked` is there where the file has a value that does not count."""
    shown = {"key": origin.key, "value": origin.shown, "source": origin.source, "place": origin.place or None}
    return shown | ({"outranked": origin.outranked[0]} if origin.outranked else {})
