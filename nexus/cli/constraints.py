"""`nexus constraints`: the rules that hold for answers to an owner: show, set and take back (contract §10, §15)."""

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar

import typer

from nexus.adapters.tokenizer import open_tokenizer
from nexus.cli.options import Config, Json, Owner, Session, Yes, is_utf8, require_utf8, session_settings
from nexus.cli.servers import run_on_store
from nexus.cli.terminal import Columns, confirm, counted, print_result, printable, table
from nexus.config import Settings
from nexus.core.errors import NexusError
from nexus.core.models import MAX_ID_CHARS
from nexus.core.person import CONSTRAINT_SCOPES, KINDS, Constraint
from nexus.core.ports import Store
from nexus.services.history.tombstones import Tombstones
from nexus.services.person.constraint_changes import Target, read_id
from nexus.services.person.constraints import Constraints
from nexus.wiring import create_constraints, settings_in_force

_Result = TypeVar("_Result")

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show the rules that hold for answers, set them, take them back."
)
_MOST_PLACES: Final = 1_000
# What errors name, as it is called here.
_OPTIONS: Final = {"text:": "TEXT:", "kind:": "--kind:", "scope:": "--scope:"}
_NAMED: Final = re.compile("^(?:text|kind|scope):")
_ABOUT: Final[Columns] = {
    "ID": "id",
    "KIND": "kind",
    "SESSION": lambda found: found.session_id or None,
    "RUN": lambda found: found.run_id or None,
    "SINCE (UTC)": "valid_from",
}
_UNTIL: Final[Columns] = {"UNTIL (UTC)": lambda found: None if found.holds else found.valid_to}
_TEXT: Final[Columns] = {"TEXT": "text"}

_Run = Annotated[str, typer.Option(help="The run, of those that hold for one run alone.", show_default=False)]


@app.command(
    "list",
    epilog="Examples:\n\nnexus constraints list --owner ada\n\n"
    "nexus constraints list --owner ada --session s1 --all --json",
)
def list_command(
    owner: Owner,
    session: Annotated[
        str | None,
        typer.Option(help="Only those that hold in this session: the owner's and its own.", show_default=False),
    ] = None,
    run: _Run = "",
    every: Annotated[bool, typer.Option("--all", help="Also those that were taken back.")] = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show an owner's constraints in force, those of all sessions and runs where none is named.

    What a terminal might obey is shown escaped.
    """
    settings = session_settings(config, owner, session or "default")

    async def read(constraints: Constraints) -> tuple[list[Constraint], str | None]:
        if session is None and not run:
            return await constraints.known_of_owner(owner, limit=_MOST_PLACES)
        return await constraints.known(_target(owner, session or "default", run)), None

    known, others_behind = _on_constraints(settings, read)
    if others_behind is not None:
        typer.echo(
            f"nexus: of the first {_MOST_PLACES} sessions and runs alone; --session, --run shows others", err=True
        )
    found = [each for each in known if every or each.holds]
    if as_json:
        print_result([each.model_dump(mode="json") for each in found])
        return
    nothing = [f"No constraint of {printable(owner)} {'is known' if every else 'is in force'}."]
    print_result(table({**_ABOUT, **(_UNTIL if every else {}), **_TEXT}, found) or nothing)


@app.command(
    epilog='Examples:\n\nnexus constraints add --owner ada "Answer in French."\n\n'
    'nexus constraints add --owner ada --scope owner --kind must_not "Name no prices."'
)
def add(
    owner: Owner,
    text: Annotated[str, typer.Argument(help="The rule, word for word.")],
    session: Session = "default",
    run: _Run = "",
    kind: Annotated[str, typer.Option(help=f"What sort of rule: {', '.join(KINDS)}.")] = "must",
    scope: Annotated[str, typer.Option(help=f"What it holds for: {', '.join(CONSTRAINT_SCOPES)}.")] = "session",
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Set a constraint, which is in every context from the next one on. One that is in force stays as it is.

    Exit 1 when there are too many, or what there is takes too much room.
    """
    settings = session_settings(config, owner, session)
    require_utf8("TEXT", text)
    target = _target(owner, session, run)
    if scope == "run" and not run:
        raise NexusError("--scope run: --run is needed")
    given = {"text": text, "kind": kind, "scope": scope}
    try:
        constraint, count = _on_constraints(
            settings, lambda constraints: constraints.pin(owner, target.session_id, target.run_id, given)
        )
    except ValueError as error:
        raise NexusError(_NAMED.sub(lambda found: _OPTIONS[found[0]], str(error))) from None
    if as_json:
        print_result(constraint.model_dump(mode="json"))
        return
    print_result([f"{constraint.id} is in force; {counted(count, 'constraint')} in all."])


@app.command(
    epilog="Example:\n\nnexus constraints retire --owner ada --session s1 session-5f2b6c0e9d8a7143",
)
def retire(
    owner: Owner,
    ids: Annotated[list[str], typer.Argument(metavar="ID…", help="As `list` shows them.")],
    session: Session = "default",
    run: _Run = "",
    yes: Yes = False,
    config: Config = None,
) -> None:
    """Take constraints back, by their ids. Asks first."""
    settings, target = session_settings(config, owner, session), _target(owner, session, run)
    names = [*dict.fromkeys(ids)]
    try:
        for name in names:
            read_id(name, printable(name))
        confirm(f"Take back {counted(len(names), 'constraint')} of {printable(owner)}?", yes=yes)
        gone = _on_constraints(settings, lambda constraints: constraints.retire(target, names))
    except ValueError as error:
        raise NexusError(str(error)) from None
    print_result([f"{each.id} is taken back: {printable(each.text)}" for each in gone])


def _target(owner: str, session: str, run: str) -> Target:
    if len(run) > MAX_ID_CHARS or not is_utf8(run):
        raise NexusError(f"--run: UTF-8 text of 1 to {MAX_ID_CHARS} characters is needed")
    return Target(owner, session, run)


def _on_constraints(settings: Settings, work: Callable[[Constraints], Awaitable[_Result]]) -> _Result:
    async def on_store(store: Store) -> _Result:
        document = await store.find_configuration(settings.environment)
        in_force = settings_in_force(settings, document or {})
        return await work(
            create_constraints(in_force, store, Tombstones(store), open_tokenizer(settings.memory.tokenizer))
        )

    return run_on_store(settings.database, on_store)
