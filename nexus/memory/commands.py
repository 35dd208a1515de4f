"""The commands of `nexus memory` that look. Errors are one line and exit code 1."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from nexus.cli.terminal import Config, check_names, print_json, run_on_store, session_named
from nexus.core.ports import Store
from nexus.memory import moving
from nexus.memory.options import Json, Owner, Session, loaded
from nexus.memory.reading import Kept, Past, detail, is_unknown, kept, pair, past
from nexus.memory.shown import (
    account_lines,
    as_json,
    detail_lines,
    diff_lines,
    history_as_json,
    history_lines,
    lines,
)
from nexus.services.memory.accounting import Account, account

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at the working memory of a session, check it, export the session, import it.",
)
_ACCOUNT: Final = ("MESSAGES", "IN CONTEXT", "SUMMARISED", "LOST", "TWICE")
_COLOURS: Final = {"+": typer.colors.GREEN, "-": typer.colors.RED, "@": typer.colors.CYAN}


@app.command(
    epilog="Examples:\n\nnexus memory show --owner ada --session s1\n\n"
    "nexus memory show --owner ada --session s1 flights --revision 2"
)
def show(  # noqa: PLR0917  # typer makes options of them
    owner: Owner,
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="A detail, which is shown whole.", show_default=False)
    ] = "",
    session: Session = "default",
    revision: Annotated[
        int | None,
        typer.Option(min=0, help="That revision of the overview, or version of the detail.", show_default=False),
    ] = None,
    as_objects: Json = False,
    config: Config = None,
) -> None:
    """Show the overview, the list of details and the summary of what is compacted; or a detail.

    What a terminal might obey in it is shown escaped.
    """
    settings = loaded(config)
    check_names(owner, session)
    key = owner, session
    if name:
        note = run_on_store(settings.database, lambda store: detail(store.memory, *key, name, revision))
        _print(note.model_dump(mode="json") if as_objects else detail_lines(note))
        return

    async def read(store: Store) -> tuple[Kept, bool]:
        return await kept(store.memory, *key, revision), await is_unknown(store, *key)

    found, unknown = run_on_store(settings.database, read)
    shown = _nothing_of(*key) if unknown else lines(found, settings.memory.overview_max_bytes)
    _print(as_json(found) if as_objects else shown)


@app.command(
    epilog="Examples:\n\nnexus memory history --owner ada --session s1\n\nnexus memory history --owner ada --json"
)
def history(
    owner: Owner,
    session: Session = "default",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Of each so many at most, the newest.")] = 20,
    as_objects: Json = False,
    config: Config = None,
) -> None:
    """Show the revisions of the overview and the compactions of a session, the newest first."""
    settings = loaded(config)
    check_names(owner, session)

    async def read(store: Store) -> tuple[Past, bool]:
        return await past(store.memory, owner, session, limit), await is_unknown(store, owner, session)

    found, unknown = run_on_store(settings.database, read)
    nothing = [f"Nothing is written down or compacted of {session_named(owner, session)}."]
    shown = _nothing_of(owner, session) if unknown else history_lines(found) or nothing
    _print(history_as_json(found) if as_objects else shown)


@app.command(epilog="Examples:\n\nnexus memory diff --owner ada --session s1\n\nnexus memory diff --owner ada 0 3")
def diff(
    owner: Owner,
    first: Annotated[
        int | None, typer.Argument(metavar="[A]", min=0, help="A revision; 0 is the template.", show_default=False)
    ] = None,
    second: Annotated[
        int | None, typer.Argument(metavar="[B]", min=0, help="Another; the newest.", show_default=False)
    ] = None,
    session: Session = "default",
    config: Config = None,
) -> None:
    """Show what differs between two revisions of the overview: the newest two, where none are named."""
    settings = loaded(config)
    check_names(owner, session)
    found = run_on_store(settings.database, lambda store: pair(store.memory, owner, session, first, second))
    differing = diff_lines(*found)
    for line in differing:
        typer.echo(typer.style(line, fg=_COLOURS.get(line[:1])))
    if not differing:
        typer.echo(f"Nothing differs between revisions {found[0].revision} and {found[1].revision}.")


@app.command(epilog="Example:\n\nnexus memory check --owner ada --session s1")
def check(owner: Owner, session: Session = "default", as_objects: Json = False, config: Config = None) -> None:
    """See that every message of a session is read for the next context, or under exactly one compaction.

    Messages that are a sub-agent's own business do not count. Exit 1 when one is lost, or there twice.
    """
    settings = loaded(config)
    check_names(owner, session)

    async def read(store: Store) -> tuple[Account, bool]:
        return await account(store.memory, store, owner, session), await is_unknown(store, owner, session)

    found, unknown = run_on_store(settings.database, read)
    counts = (found.messages, found.in_context, found.summarised, found.lost, found.twice)
    named = {name.lower().replace(" ", "_"): count for name, count in zip(_ACCOUNT, counts, strict=True)}
    shown = [session_named(owner, session), *account_lines(_ACCOUNT, counts)]
    if unknown:
        shown = _nothing_of(owner, session)
    _print({"owner_key": owner, "session_id": session, **named} if as_objects else shown)
    if not found.is_right:
        raise typer.Exit(1)


app.command(
    "export",
    epilog="Example:\n\nnexus memory export --owner ada --session s1 session-s1/",
)(moving.export)
app.command(
    "import",
    epilog="Examples:\n\nnexus memory import session-s1/\n\n"
    "nexus memory import --owner bob --session copy session-s1/ --replace --yes",
)(moving.import_folder)


def _nothing_of(owner: str, session: str) -> list[str]:
    return [f"There is nothing of {session_named(owner, session)}."]


def _print(found: dict[str, Any] | Sequence[str]) -> None:
    if isinstance(found, dict):
        print_json(found)
        return
    for line in found:
        typer.echo(line)
