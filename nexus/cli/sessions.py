"""`nexus sessions`: which sessions an owner has (contract §13)."""

from typing import Annotated, Any, Final

import typer

from nexus.cli.options import Config, Json, Owner, session_settings
from nexus.cli.servers import run_on_store
from nexus.cli.terminal import Columns, counted, print_result, printable, table
from nexus.core.ports import SessionSummary
from nexus.core.ports.store import MOST_COUNTED

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List the sessions of an owner.")
_COLUMNS: Final[Columns] = {
    "MESSAGES": lambda found: f"{MOST_COUNTED}+" if found.messages > MOST_COUNTED else found.messages,
    "FIRST (UTC)": "first",
    "LAST (UTC)": "last",
    "SESSION": "session_id",
}


@app.callback()
def options() -> None:
    """A group, although it has one command."""


@app.command("list", epilog="Example:\n\nnexus sessions list --owner ada --json")
def list_sessions(
    owner: Owner,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Sessions at most.")] = 20,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show the sessions of an owner that have messages, the one with the latest message first."""
    settings = session_settings(config, owner, "default")
    found = run_on_store(settings.database, lambda store: store.sessions(owner, limit=limit + 1))
    shown, more = found[:limit], len(found) > limit
    if as_json:
        print_result({"more": more, "sessions": [*map(_as_json, shown)]})
        return
    of_owner = f"of {printable(owner)}{', the latest; --limit shows more' if more else ''}"
    summary = f"{counted(len(shown), 'session')} {of_owner}." if shown else f"There are no sessions {of_owner}."
    print_result([*table(_COLUMNS, shown), summary])


def _as_json(found: SessionSummary) -> dict[str, Any]:
    return {
        "session_id": found.session_id,
        "messages": min(found.messages, MOST_COUNTED),
        "more_messages": found.messages > MOST_COUNTED,
        "first": found.first.isoformat() if found.first else None,
        "last": found.last.isoformat() if found.last else None,
    }
