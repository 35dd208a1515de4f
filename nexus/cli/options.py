"""What commands ask for alike: their options, and the settings and the run that these give."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from nexus.config import Settings
from nexus.config.loading import load_settings
from nexus.core.errors import NexusError
from nexus.core.models import Message, Role, Run, new_run_id
from nexus.core.wire import explain
from nexus.log import configure_logging
from nexus.services.history.rows import read_owner_key, read_session_id

Config = Annotated[
    Path | None, typer.Option(help="Settings file. Default: what NEXUS_CONFIG names.", show_default=False)
]
Owner = Annotated[str, typer.Option(help="The owner_key of the person.")]
Session = Annotated[str, typer.Option(help="The session.")]
Input = Annotated[str, typer.Option("--input", help="What the person says.")]
Layout = Annotated[str | None, typer.Option(help="The layout; the service's default when not given.")]
Form = Annotated[str | None, typer.Option("--format", help="The form of the messages: openai, anthropic or gemini.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def command_settings(config: Path | None) -> Settings:
    """The settings of a short command, which logs errors alone, on standard error."""
    configure_logging("error", "console")
    return load_settings(config)


def session_settings(config: Path | None, owner: str, session: str) -> Settings:
    """The settings of a short command about a session; a NexusError where no owner or no session can be called so."""
    settings = command_settings(config)
    require_utf8("--owner and --session", owner + session)
    try:
        read_owner_key(owner, "--owner")
        read_session_id({"session_id": session})
    except ValueError as error:
        raise NexusError(str(error).replace("metadata.session_id", "--session")) from None
    return settings


def require_utf8(name: str, text: str) -> None:
    """A NexusError that says so where not all of a word of the command line was UTF-8."""
    if not is_utf8(text):
        raise NexusError(f"{name}: UTF-8 text is needed")


def is_utf8(text: str) -> bool:
    """Whether all of a word of the command line was UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def given_of(context: typer.Context, options: Mapping[str, str]) -> list[str]:
    """Those of these options, named by their parameters, that the command line has."""
    sources = {name: context.get_parameter_source(name) for name in options}
    return [options[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"]


def run_with(owner: str, text: str, metadata: Mapping[str, Any]) -> Run:
    """A run that begins with this input, for the commands that ask for a context; NexusError for what none can be."""
    run_id = new_run_id()
    texts = (owner, text, *(value for value in metadata.values() if isinstance(value, str)))
    require_utf8("--owner, --input, --session, --layout and --format", "".join(texts))
    try:
        human = Message(run_id=run_id, owner_key=owner, role=Role.HUMAN, content=text)
        return Run(id=run_id, owner_key=owner, history=[human], metadata=metadata)
    except ValidationError as error:
        raise NexusError(explain(error).replace("owner_key", "--owner")) from None
