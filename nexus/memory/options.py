"""What the commands of `nexus memory` share."""

from pathlib import Path
from typing import Annotated

import typer

from nexus.config import Settings, load_settings
from nexus.log import configure_logging

Owner = Annotated[str, typer.Option(help="Whose session: the owner_key.")]
Session = Annotated[str, typer.Option(help="The session.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def loaded(config: Path | None) -> Settings:
    """The settings. Of what happens only errors are said, on standard error."""
    configure_logging("error", "console")
    return load_settings(config)
