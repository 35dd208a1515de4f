"""The commands of `nexus memory` that move a session: to a folder, and from one into a store."""

from functools import partial
from typing import Annotated

import typer

from nexus.cli.terminal import Config, check_names, confirm, printable, progress, run_on_store, session_named
from nexus.config import DatabaseSettings
from nexus.core.errors import NexusError
from nexus.core.models import utc_now
from nexus.core.ports.transfer import TransferableStore
from nexus.memory.folder import GivenFolder, NewFolder, checked_target, given_folder, written
from nexus.memory.options import Owner, Session, loaded
from nexus.services.memory.transfer import Exported, export_session
from nexus.services.memory.transfer_edits import Limits
from nexus.services.memory.transfer_import import RecordedElsewhereError, import_session, planned
from nexus.services.memory.transfer_lines import Header
from nexus.services.memory.transfer_reading import Given, read_folder
from nexus.services.memory.transfer_standing import Differing, Plan, Standing, standing


def export(
    owner: Owner,
    path: Annotated[str, typer.Argument(metavar="FOLDER", help="The folder, which is made.")],
    session: Session = "default",
    yes: Annotated[bool, typer.Option("--yes", help="Overwrite an export without asking.")] = False,
    config: Config = None,
) -> None:
    """Write a session to a folder: its messages, its working memory as Markdown, and what else its next context needs.

    The folder appears when it is whole, readable by its owner alone. Exit 1 also when a turn could not be read and was
    left out.
    """
    settings = loaded(config)
    check_names(owner, session)
    target = checked_target(path, asks=not yes)
    where = session_named(owner, session)
    with written(target) as folder:
        exported = _exported(settings.database, owner, session, folder, where)
    typer.echo(f"{_amount(exported.header)} of {where} in {printable(path)}.")
    if exported.unreadable:
        typer.echo(f"nexus: {len(exported.unreadable)} turns cannot be read and are left out", err=True)
        raise typer.Exit(1)


def import_folder(  # noqa: PLR0917  # typer makes options of them
    path: Annotated[str, typer.Argument(metavar="FOLDER", help="What `export` wrote.")],
    owner: Annotated[str | None, typer.Option(help="Another owner than the export's.", show_default=False)] = None,
    session: Annotated[str | None, typer.Option(help="Another session than the export's.", show_default=False)] = None,
    replace: Annotated[bool, typer.Option("--replace", help="In place of what the session has. Asks first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: Config = None,
) -> None:
    """Keep the session of an export. Nothing is written unless all of it can be read.

    In an empty database the next context is the same. An overview or a detail that was edited in the folder becomes a
    new revision. An import that was broken off is gone on with by repeating it.
    """
    settings = loaded(config)
    if yes and not replace:
        raise NexusError("--yes says nothing without --replace: nothing else asks")
    check_names("x" if owner is None else owner, "default" if session is None else session)
    folder = given_folder(path)
    limits = Limits(settings.memory.overview_max_bytes, settings.memory.detail_max_bytes)

    async def prepare(store: TransferableStore) -> tuple[Plan, Standing]:
        given = _read(folder, store, limits, path)
        names = owner or given.header.owner_key, session or given.header.session_id
        try:
            plan = await planned(store, given, *names, utc_now())
        except RecordedElsewhereError as error:
            raise NexusError(f"{session_named(*names)}: {error}; --owner OTHER imports a copy") from None
        return plan, await standing(store, plan)

    plan, found = run_on_store(settings.database, prepare)
    where = session_named(plan.owner_key, plan.session_id)
    if found.differs:
        _see_replaced(found, where, replace=replace, asks=not yes)
    with progress("Messages", plan.total) as advance:
        add = partial(import_session, folder=folder, plan=plan, found=found, replace=replace, advance=advance)
        count = run_on_store(settings.database, add)
    there = plan.total - count
    edited = "; what was edited is a new revision" if plan.given.edits else ""
    passed = f"; {there} of {plan.total} documents were there" if there else ""
    typer.echo(f"{_amount(plan.given.header)} imported into {where}{edited}{passed}.")


def _exported(settings: DatabaseSettings, owner: str, session: str, folder: NewFolder, where: str) -> Exported:
    async def write(store: TransferableStore) -> Exported:
        total = await store.transfer.count_rows(owner, session)
        with progress("Messages", total) as advance:
            return await export_session(store, owner, session, folder, exported_at=utc_now(), advance=advance)

    try:
        return run_on_store(settings, write)
    except NexusError as error:
        raise type(error)(f"{where}: {error}") from error


def _read(folder: GivenFolder, store: TransferableStore, limits: Limits, path: str) -> Given:
    try:
        return read_folder(folder, store.transfer, limits)
    except ValueError as error:
        raise NexusError(printable(f"{path}/{error}")) from None


def _see_replaced(found: Standing, where: str, *, replace: bool, asks: bool) -> None:
    """See that what is in the way may be replaced.

    Raises:
        NexusError: it may not.
    """
    differs = ", ".join(_differing(kind, one) for kind, one in found.differs.items())
    if not replace:
        # An owner has each message once.
        copy = "--owner OTHER imports a copy" if found.has_messages else "--session OTHER imports it beside this"
        raise NexusError(
            f"{where} has something that the export has not, or not so: {differs}; {copy}, --replace removes what is "
            "there first"
        )
    if asks:
        confirm(
            f"{where} has {differs}, and not so the export. Remove it and import that?", "--yes does it without asking"
        )


def _differing(kind: str, found: Differing) -> str:
    first = printable(found.first)
    return f"1 {kind} ({first})" if found.count == 1 else f"{found.count} {kind}s (the first: {first})"


def _amount(header: Header) -> str:
    messages = "1 message" if header.messages == 1 else f"{header.messages} messages"
    kinds = {"turn": header.turns, "revision": header.overviews, "detail": header.details}
    rest = {**kinds, "compaction": header.compactions}
    return ", ".join(
        [messages, *(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in rest.items() if count)]
    )
