"""The command line: global options, which may also stand behind the subcommand, and the subcommands.

Exit codes: 0 done, 1 the server or the data said no, 2 wrong usage. An error is one line on stderr.
"""

import contextlib
import functools
import inspect
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pymongo.errors import PyMongoError

from nexus.cli import end_of_output
from nexus.config import Settings
from nexus.config.loading import load_settings
from nexus.core.errors import ConfigError

from . import operations
from .documents import STDOUT, Criteria
from .menu import Menu
from .operations import Session
from .server import Refusal, WrongUsage, address_of, checked_database_name, connect, explain, one_line
from .terminal import Terminal, plain

PROGRAM = "database_manager"
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings file (default: NEXUS_CONFIG).")]
Uri = Annotated[str | None, typer.Option("--uri", help="MongoDB URI (default: database.uri of the settings).")]
Database = Annotated[
    str | None, typer.Option("--database", metavar="NAME", help="Database (default: database.name of the settings).")
]
Json = Annotated[bool | None, typer.Option("--json", help="One JSON value on stdout, nothing else.")]
Yes = Annotated[bool | None, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool | None, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]

Name = Annotated[str, typer.Argument(metavar="COLLECTION", help="The collection.")]
OlderThan = Annotated[
    int | None, typer.Option("--older-than", metavar="DAYS", min=0, max=36_500, help="Timestamp more than DAYS ago.")
]
RoleOption = Annotated[str | None, typer.Option("--role", help="Role, in any case: human, ai, tool, …")]
Run = Annotated[str | None, typer.Option("--run", metavar="ID", help="Run (run_id).")]
Owner = Annotated[str | None, typer.Option("--owner", metavar="KEY", help="Owner (owner_key).")]
SessionId = Annotated[str | None, typer.Option("--session", metavar="ID", help="Session (session_id).")]


@dataclass(frozen=True)
class Options:
    """The global options; None: not given."""

    config: Path | None = None
    uri: str | None = None
    database: str | None = None
    json: bool | None = None
    yes: bool | None = None
    dry_run: bool | None = None


@contextlib.contextmanager
def _session(options: Options) -> Iterator[Session]:
    settings = _settings(options)
    uri = options.uri or settings.database.uri.get_secret_value()
    database = checked_database_name(settings.database.name if options.database is None else options.database)
    terminal = Terminal(as_json=bool(options.json))
    client, remarks = connect(uri)
    with client:
        for remark in remarks:
            terminal.remark(f"Note: {remark}")
        server, yes, dry_run = address_of(uri), bool(options.yes), bool(options.dry_run)
        yield Session(client, server, database, settings, terminal, yes, dry_run)


def _settings(options: Options) -> Settings:
    try:
        return load_settings(options.config)
    except ConfigError as error:
        raise WrongUsage("; ".join(str(error).split("\n"))) from None


@app.callback(
    invoke_without_command=True,
    epilog="\b\nExamples:\n"
    "  database_manager.py                             the menu\n"
    "  database_manager.py --database nexus stats\n"
    "  database_manager.py cleanup messages --older-than 90 --dry-run",
)
def _root(
    ctx: typer.Context,
    *,
    config: Config = None,
    uri: Uri = None,
    database: Database = None,
    json: Json = None,
    yes: Yes = None,
    dry_run: DryRun = None,
) -> None:
    """Look after the MongoDB database of Nexus. Without a command: a menu."""
    ctx.obj = Options(config, uri, database, json, yes, dry_run)
    if ctx.invoked_subcommand is not None:
        return
    if json:
        raise WrongUsage("--json needs a command: the menu is for people")
    with _session(ctx.obj) as session:
        Menu(session).run()


def _command(name: str, examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function of a session a subcommand that also takes the global options."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        context, *shared = inspect.signature(_root).parameters.values()
        own = [each for each in inspect.signature(function).parameters.values() if each.name != "session"]

        @functools.wraps(function)
        def run(**given: Any) -> None:
            options: Options = given.pop("ctx").obj
            behind = {field.name: given.pop(field.name) for field in fields(Options)}
            options = replace(options, **{key: value for key, value in behind.items() if value is not None})
            with _session(options) as session:
                function(session, **given)

        parameters = [context, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name, epilog=f"\b\nExamples:\n{examples}")(run)
        return function

    return register


_command("databases", "  database_manager.py databases --json")(operations.databases)
_command("collections", "  database_manager.py collections --database nexus")(operations.collections)
_command("stats", "  database_manager.py stats --json")(operations.stats)


@_command(
    "cleanup",
    "  database_manager.py cleanup messages --older-than 90 --dry-run\n"
    "  database_manager.py cleanup messages --role tool --older-than 30 --yes\n"
    "  database_manager.py cleanup turns --all",
)
def _cleanup(
    session: Session,
    collection: Name,
    *,
    older_than: OlderThan = None,
    role: RoleOption = None,
    run: Run = None,
    owner: Owner = None,
    session_id: SessionId = None,
    everything: Annotated[bool, typer.Option("--all", help="Every document, instead of criteria.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also in configurations and identities.")] = False,
) -> None:
    """Delete the documents that meet all criteria, after showing how many they are."""
    criteria = Criteria(older_than, role, run, owner, session_id)
    operations.cleanup(session, collection, criteria, everything=everything, force=force)


@_command(
    "export",
    "  database_manager.py export messages --output messages.jsonl\n"
    "  database_manager.py export messages --owner alice --format csv --output alice.csv\n"
    "  database_manager.py export messages | gzip > messages.jsonl.gz",
)
def _export(
    session: Session,
    collection: Name,
    *,
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="File to write; - is stdout.")] = STDOUT,
    form: Annotated[Literal["jsonl", "csv"], typer.Option("--format", help="JSON lines or CSV.")] = "jsonl",
    raw: Annotated[bool, typer.Option("--raw", help="CSV: leave cells that look like formulas as they are.")] = False,
    older_than: OlderThan = None,
    role: RoleOption = None,
    run: Run = None,
    owner: Owner = None,
    session_id: SessionId = None,
) -> None:
    """Write the documents that meet all criteria to a file: Extended JSON, one document a line, or CSV."""
    criteria = Criteria(older_than, role, run, owner, session_id)
    operations.export_collection(session, collection, criteria, output=output, form=form, raw=raw)


@_command("analyze", "  database_manager.py analyze messages\n  database_manager.py analyze identities --json")
def _analyze(session: Session, collection: Name = "messages") -> None:
    """Show what is in a collection."""
    operations.analyze_collection(session, collection)


@_command(
    "init-config",
    "  database_manager.py init-config --environment production --from settings.yml\n"
    "  database_manager.py init-config --reset memory.truncate_chars --yes",
)
def _init_config(
    session: Session,
    environment: Annotated[
        str | None, typer.Option("--environment", metavar="NAME", help="Default: NEXUS_ENV, else development.")
    ] = None,
    template: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A settings file with what is to be stored.")
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="KEY", help="Store FILE's value of KEY, or without one remove it; repeatable."),
    ] = None,
) -> None:
    """Create the stored settings of an environment, empty, or complete them; stored values are kept."""
    named = session.settings.environment if environment is None else environment
    operations.init_config(session, named, template=template, reset=reset or ())


def main(words: Sequence[str] | None = None) -> int:
    """Run the program with `words`, else with those of its command line; returns its exit code."""
    try:
        code = app(words, prog_name=f"{PROGRAM}.py", standalone_mode=False)
    except typer.TyperException as error:
        return _fail(f"{one_line(error.format_message())} (--help tells more)", WrongUsage.exit_code)
    except Refusal as refusal:
        return _fail(str(refusal), refusal.exit_code)
    except PyMongoError as error:
        return _fail(explain(error), Refusal.exit_code)
    except typer.Abort:
        return _fail("no answer: nothing was done", Refusal.exit_code)
    except OSError as error:
        said = end_of_output(error)
        # A reader that has gone wants no word.
        return Refusal.exit_code if isinstance(error, BrokenPipeError) else _fail(said, Refusal.exit_code)
    # typer makes a code of Ctrl-C
    return _fail("interrupted", Refusal.exit_code) if code else 0


def end_like_ctrl_c() -> None:
    """Let the ways in which a program is told to end leave nothing half, as Ctrl-C does."""
    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
        signal.signal(number, signal.default_int_handler)


def _fail(text: str, code: int) -> int:
    print(f"{PROGRAM}: {plain(text, limit=2_000)}", file=sys.stderr)
    return code
