"""`nexus config`: where the value of each setting comes from; services read the stored ones again (contract §13)."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import typer
from pydantic import SecretStr

from nexus.cli.terminal import (
    Columns,
    Config,
    Json,
    command_settings,
    print_result,
    printable,
    run_on_bus,
    run_on_store,
    say_who_heard,
    table,
)
from nexus.client import CHECK_SERVICE
from nexus.config import signing_of
from nexus.config.sources import Origin, origins
from nexus.connections import open_bus
from nexus.core.errors import NexusError, NobodyListeningError
from nexus.core.models import Message, Role, Topics
from nexus.core.wire import encode

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Show where the value of each setting comes from, and have services read the stored settings again.",
)

_MASK: Final = "***"
_ADDRESSES: Final = ("bus.url", "database.uri", "llm.base_url", "recall.base_url")
_HOST: Final = r"(?:[\w.-]+|\[[\w:.%]+\])(?::\d+)?"
_OPTION: Final = r"\w+=[^&@\s]*"
# An address that looks otherwise may have its password anywhere.
_ADDRESS: Final = re.compile(
    r"(?P<scheme>[a-z+]+://)(?P<user>[^?\s]*@)?"
    rf"(?P<place>(?:{_HOST}(?:,{_HOST})*)?(?:/[^?@\s]*)?)(?P<options>(?:\?{_OPTION}(?:&{_OPTION})*)?)"
)
_MAYBE_SECRET: Final = re.compile(r"=(?!(?:true|false)(?:&|$))[^&]*")


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

    heard = run_on_bus(Topics.CONFIG_CHANGED, send)
    if not heard:
        raise NobodyListeningError(f"nobody listens to {Topics.CONFIG_CHANGED}: {CHECK_SERVICE}")
    say_who_heard(heard, settings, "every service that runs reads it there; streams do not tell how many those are")


def lines(found: list[Origin]) -> list[str]:
    """A line a setting and, below them, one for each value of the file that does not count."""
    columns: Columns = {"setting": "key", "from": _place, "value": lambda origin: _text(as_object(origin)["value"])}
    shown = table(columns, found)
    outranked = [origin for origin in found if origin.outranked]
    return shown + [
        printable(
            f"{origin.key}: the stored document outranks the settings file, which has {_text(origin.outranked[0])}"
        )
        for origin in outranked
    ]


def as_object(origin: Origin) -> dict[str, Any]:
    """A setting for programs; `outranked` is there where the file has a value that does not count."""
    shown = {
        "key": origin.key,
        "value": _masked(origin.key, origin.value),
        "source": origin.source,
        "place": origin.place or None,
    }
    return shown | ({"outranked": origin.outranked[0]} if origin.outranked else {})


def _place(origin: Origin) -> str:
    return f"stored for {origin.place}" if origin.source == "stored" else origin.place or origin.source


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _masked(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _masked(f"{key}.{name}", item) for name, item in value.items()}
    if not isinstance(value, SecretStr):
        return value
    text = value.get_secret_value()
    found = _ADDRESS.fullmatch(text) if key in _ADDRESSES else None
    if not found:
        return text and _MASK
    user = f"{_MASK}@" if found["user"] else ""
    return f"{found['scheme']}{user}{found['place']}{_MAYBE_SECRET.sub(f'={_MASK}', found['options'])}"
