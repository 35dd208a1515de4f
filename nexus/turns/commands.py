"""The commands of `nexus turns`. Errors are one line and exit code 1."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nexus.cli.files import STREAM, checked_target, lines_of, name_of
from nexus.cli.terminal import Config, check_names, confirm, print_json, printable, session_named
from nexus.config import DatabaseSettings, load_settings
from nexus.core.errors import NexusError
from nexus.core.ports.turns import LONGEST_SEARCHED
from nexus.core.turns import LEVELS
from nexus.log import configure_logging
from nexus.services.turns.transfer import TurnsInTheWayError, standing, survey
from nexus.services.turns.transfer_lines import read_export
from nexus.turns.reading import find, latest
from nexus.turns.shown import as_json, lines, listed_as_json, table
from nexus.turns.terminal import carry_out_export, carry_out_import, run, summary_of_list, tell_unreadable, turns

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at what is remembered of a session's runs, export it, import it.",
)
Owner = Annotated[str, typer.Option(help="Whose session: the owner_key.")]
Session = Annotated[str, typer.Option(help="The session.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command(
    "list",
    epilog="Examples:\n\nnexus turns list --owner ada --session s1\n\nnexus turns list --owner ada --search 'HR 0.86'",
)
def listturns(  # noqa: PLR0917  # typer makes options of them
    owner: Owner,
    session: Session = "default",
    search: Annotated[
        str, typer.Option(help="Only turns with this text in a summary or an insight.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Turns at most, the latest.")] = 20,
    as_objects: Json = False,
    config: Config = None,
) -> None:
    """Show the turns of a session with their brief summaries, the latest first."""
    settings = _settings(config)
    check_names(owner, session)
    _check_search(search)
    found = run(settings, partial(latest, owner_key=owner, session_id=session, search=search, limit=limit))
    tell_unreadable(found.unreadable)
    if as_objects:
        listed = [listed_as_json(turn) for turn in found.turns]
        print_json({"total": found.total, "more": found.more, "turns": listed})
        return
    for line in table(found.turns) if found.turns else []:
        typer.echo(line)
    typer.echo(summary_of_list(found, session_named(owner, session), search))


@app.command(
    epilog="Examples:\n\nnexus turns show --owner ada --session s1 7\n\n"
    "nexus turns show --owner ada 7 --level comprehensive --json"
)
def show(  # noqa: PLR0917  # typer makes options of them
    owner: Owner,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The turn, as `list` numbers it.")],
    session: Session = "default",
    level: Annotated[
        str, typer.Option(help=f"The summary at this level only: {', '.join(LEVELS)}.", show_default=False)
    ] = "",
    as_objects: Json = False,
    config: Config = None,
) -> None:
    """Show everything that is remembered of a turn. What a terminal might obey in it is shown escaped."""
    settings = _settings(config)
    check_names(owner, session)
    levels = [known for known in LEVELS if level in {known, ""}]
    if not levels:
        raise NexusError(f"--level: {printable(level)!r} is unknown; allowed: {', '.join(LEVELS)}")
    turn = run(settings, partial(find, owner_key=owner, session_id=session, number=number))
    if as_objects:
        print_json(as_json(turn, levels))
        return
    for line in lines(turn, levels):
        typer.echo(line)


@app.command(
    "export",
    epilog="Examples:\n\nnexus turns export --owner ada --session s1 turns.jsonl\n\n"
    "nexus turns export --owner ada | gzip > turns.jsonl.gz",
)
def export_session(
    owner: Owner,
    path: Annotated[str, typer.Argument(metavar="FILE", help="The file; - is standard output.")] = STREAM,
    session: Session = "default",
    yes: Annotated[bool, typer.Option("--yes", help="Overwrite a file without asking.")] = False,
    config: Config = None,
) -> None:
    """Write the turns of a session as JSON Lines: a header, then a turn a line, the lowest number first.

    A file appears when it is whole. Exit 1 also when a turn could not be read and was left out.
    """
    settings = _settings(config)
    check_names(owner, session)
    found = run(settings, partial(survey, owner_key=owner, session_id=session))
    tell_unreadable(found.unreadable)
    if not found.turns:
        raise NexusError(f"{session_named(owner, session)} has no turns")
    checked_target(path, asks=not yes)
    carry_out_export(settings, found, path)
    where = "on standard output" if path == STREAM else f"in {printable(path)}"
    typer.echo(f"{turns(found.turns)} of {session_named(owner, session)} {where}.", err=path == STREAM)
    if found.unreadable:
        raise typer.Exit(1)


@app.command(
    "import",
    epilog="Examples:\n\nnexus turns import turns.jsonl\n\n"
    "nexus turns import --owner ada --session copy turns.jsonl --replace --yes",
)
def import_session(  # noqa: PLR0917  # typer makes options of them
    path: Annotated[str, typer.Argument(metavar="FILE", help="What `export` wrote; - is standard input.")],
    owner: Annotated[str | None, typer.Option(help="Another owner than the file's.", show_default=False)] = None,
    session: Annotated[str | None, typer.Option(help="Another session than the file's.", show_default=False)] = None,
    replace: Annotated[bool, typer.Option("--replace", help="In place of the session's turns. Asks first.")] = False,
    yes: Yes = False,
    config: Config = None,
) -> None:
    """Keep the turns of an export. Nothing is written unless all of it can be read.

    An import that was broken off is gone on with by repeating it. Turns are taken as they are: no model summarises
    them again, and what had not ended counts as completed.
    """
    settings = _settings(config)
    if yes and not replace:
        raise NexusError("--yes says nothing without --replace: nothing else asks")
    check_names("x" if owner is None else owner, "default" if session is None else session)
    try:
        export = read_export(lines_of(path), owner_key=owner, session_id=session)
    except ValueError as error:
        raise NexusError(f"{name_of(path)}: {error}") from None
    where = session_named(export.owner_key, export.session_id)
    found = run(settings, partial(standing, export=export))
    if found.differs is not None:
        if not replace:
            raise NexusError(
                f"{where}: {TurnsInTheWayError(found.there, found.differs)}; --session OTHER keeps these beside them, "
                "--replace puts these in their place"
            )
        if not yes:
            question = f"Replace {turns(found.there)} of {where} by {turns(len(export.turns))}?"
            confirm(question, "--yes does it without asking")
    count = carry_out_import(settings, export, replace=replace)
    passed = len(export.turns) - count
    typer.echo(f"{turns(count)} imported into {where}" + (f"; {passed} were there." if passed else "."))


def _settings(config: Path | None) -> DatabaseSettings:
    configure_logging("error", "console")
    return load_settings(config).database


def _check_search(search: str) -> None:
    if len(search) > LONGEST_SEARCHED:
        raise NexusError(f"--search: more than {LONGEST_SEARCHED} characters")
    try:
        search.encode()
    except UnicodeEncodeError:
        raise NexusError("--search: UTF-8 text is needed") from None
