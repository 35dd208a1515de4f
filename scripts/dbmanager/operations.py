"""The operations: looked up, shown, confirmed, done. Subcommands and menu call the same functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pymongo.errors import PyMongoError

from nexus.config import Settings

from . import analyze, server, stored_settings, terminal
from .documents import (
    PROTECTED,
    STDOUT,
    Criteria,
    Format,
    Meant,
    Sample,
    checked_target,
    delete,
    export,
    find_meant,
    opened,
)
from .server import Client, Refusal, Store, WrongUsage, existing_collection, explain, writable
from .stored_settings import Entry, Plan, make_plan
from .terminal import Terminal, documents, human_size

HINT = "A running service reads them again on a config.changed message (nexus config reload), or when it is restarted."


@dataclass
class Session:
    """One stay at a server. `database` is the selected one, which need not exist yet."""

    client: Client
    server: str
    database: str
    settings: Settings
    terminal: Terminal
    yes: bool = False
    dry_run: bool = False

    @property
    def store(self) -> Store:
        """The selected database."""
        return self.client[self.database]

    def confirm(self, question: str, *, typed: str | None = None) -> None:
        """Ask, unless the operator has said yes to everything."""
        if not self.yes:
            self.terminal.confirm(question, typed=typed)


@dataclass(frozen=True)
class CleanupReport:
    """The result of a cleanup."""

    database: str
    collection: str
    criteria: dict[str, str | int]
    matched: int
    skipped: int
    sample: tuple[Sample, ...]
    dry_run: bool
    deleted: int


@dataclass(frozen=True)
class ExportReport:
    """The result of an export; in a dry run, the expected one."""

    database: str
    collection: str
    documents: int
    bytes: int
    file: str
    dry_run: bool


@dataclass(frozen=True)
class ConfigReport:
    """The result of `init-config`."""

    database: str
    environment: str
    written: bool
    dry_run: bool
    keys: tuple[Entry, ...]
    hint: str


def databases(session: Session) -> None:
    """List the databases of the server."""
    found = server.databases(session.client, session.database)
    session.terminal.show(found, *terminal.databases(found))


def collections(session: Session) -> None:
    """List the collections of the database."""
    found = server.collections(session.store)
    session.terminal.show(found, *terminal.collections(session.database, found))


def stats(session: Session) -> None:
    """Show sizes and index use of every collection."""
    found = server.statistics(session.store)
    session.terminal.show(found, *terminal.statistics(found))


def cleanup(session: Session, name: str, criteria: Criteria, *, everything: bool = False, force: bool = False) -> None:
    """Delete the documents of a collection that meet all criteria, after showing how many they are.

    Raises:
        WrongUsage: no criterion without `everything`, both, or a protected collection without `force`.
        Refusal: there is no such collection, it was not confirmed, or it ended early (with the number deleted).
    """
    _check_cleanup(name, criteria, everything=everything, force=force)
    rows = existing_collection(writable(session.store), name)
    found = find_meant(rows, criteria, datetime.now(UTC))
    session.terminal.say(*terminal.meant(name, found))
    deleted = 0
    if found.matched and not session.dry_run:
        question = f"Delete {documents(found.matched)} of {session.database}.{name}?"
        session.confirm(question, typed=name if everything else None)
        deleted = _deleted(session, rows.name, found)
    report = CleanupReport(
        session.database, name, criteria.given, found.matched, found.skipped, found.sample, session.dry_run, deleted
    )
    done = "Dry run: nothing was deleted." if session.dry_run else f"Deleted {documents(deleted)}."
    session.terminal.show(report, terminal.line(done))


def _check_cleanup(name: str, criteria: Criteria, *, everything: bool, force: bool) -> None:
    if everything and criteria.given:
        raise WrongUsage("--all means every document: leave the criteria out, or leave out --all")
    if not everything and not criteria.given:
        raise WrongUsage("say which documents: --older-than, --role, --run, --owner, --session; or --all for every one")
    if name.startswith("system."):
        raise WrongUsage(f"{name} belongs to the MongoDB server")
    if name == "turns" and criteria.role is not None:
        raise WrongUsage("turns have no role: leave out --role")
    if name in PROTECTED and not force:
        raise WrongUsage(f"{name} is protected: if you mean it, say the subcommand cleanup with --force")


def _deleted(session: Session, name: str, found: Meant) -> int:
    deleted = 0
    try:
        with session.terminal.progress("deleting", found.matched) as advance:
            for count in delete(session.store[name], found.query):
                deleted += count
                advance(count)
    except KeyboardInterrupt:
        raise Refusal(f"interrupted: at least {deleted:,} of {documents(found.matched)} deleted") from None
    except PyMongoError as error:
        raise Refusal(f"{explain(error)}; at least {deleted:,} of {documents(found.matched)} deleted") from None
    return deleted


def export_collection(
    session: Session, name: str, criteria: Criteria, *, output: str = STDOUT, form: Format = "jsonl", raw: bool = False
) -> None:
    """Write the documents of a collection that meet all criteria to a file.

    Raises:
        WrongUsage: no file can be made there.
        Refusal: there is no such collection, the file is not to be overwritten, or cannot be written.
    """
    target = checked_target(output)
    rows = existing_collection(session.store, name)
    query = criteria.query(datetime.now(UTC))
    total = rows.count_documents(query)
    shown = STDOUT if target is None else str(target)
    if session.dry_run:
        report = ExportReport(session.database, name, total, 0, shown, dry_run=True)
        session.terminal.show(report, terminal.line(f"Dry run: {documents(total)} would go to {shown}."))
        return
    if target is not None and target.exists():
        session.confirm(f"{target} exists. Overwrite it?")
    with opened(target) as out, session.terminal.progress("exporting", total) as advance:
        count, size = export(rows, query, out, form=form, raw=raw, advance=advance)
    told = f"{documents(count)}, {human_size(size)}, {'on stdout' if target is None else f'in {shown}'}"
    if target is None:
        session.terminal.remark(told)  # stdout holds the data
    else:
        report = ExportReport(session.database, name, count, size, shown, dry_run=False)
        session.terminal.show(report, terminal.line(f"Exported {told}."))


def analyze_collection(session: Session, name: str) -> None:
    """Show the counts of a collection, in detail for `messages` and `turns`.

    Raises:
        Refusal: there is no such collection.
    """
    rows = existing_collection(session.store, name)
    if name == "messages":
        with session.terminal.progress("reading", rows.estimated_document_count()) as advance:
            report = analyze.analyze_messages(rows, advance)
        session.terminal.show(report, *terminal.messages(report))
    elif name == "turns":
        with session.terminal.progress("reading", rows.estimated_document_count()) as advance:
            turns = analyze.analyze_turns(rows, advance)
        session.terminal.show(turns, *terminal.turns(turns))
    else:
        shape = analyze.analyze_fields(rows)
        session.terminal.show(shape, *terminal.fields(shape))


def init_config(
    session: Session, environment: str, *, template: Path | None = None, reset: Sequence[str] = (), ask: bool = False
) -> None:
    """Create the stored settings of an environment, or complete them from a template; without one they are empty.

    Setting keys back is always confirmed; adding missing ones only if `ask`.

    Raises:
        WrongUsage: the template cannot be read, or `reset` names no key that could be stored.
        Refusal: the template or the result is not valid, or it was not confirmed.
    """
    if not environment or environment != environment.strip() or not environment.isprintable():
        raise WrongUsage(f"{environment!r} is no environment: a name like development or production")
    wanted = stored_settings.load_template(template, environment) if template else {}
    rows = writable(session.store)[stored_settings.COLLECTION]

    def replan(stored: Mapping[str, Any]) -> Plan:
        return make_plan(wanted, stored, reset)

    stored = stored_settings.read(rows, environment)
    plan, written = replan(stored), False
    stored_settings.check(plan, environment)
    session.terminal.say(*terminal.entries(environment, plan.entries))
    if not session.dry_run:
        pending = plan.changes or plan.removed or not stored
        if pending and (ask or any(entry.state in {"reset", "removed"} for entry in plan.entries)):
            session.confirm(f"Write the settings of environment {environment} to {session.database}?")
        plan, written = stored_settings.apply(rows, environment, replan)
    report = ConfigReport(session.database, environment, written, session.dry_run, plan.entries, HINT)
    session.terminal.show(report, *_told(report))


def _told(report: ConfigReport) -> terminal.Parts:
    if report.dry_run:
        return [terminal.line("Dry run: nothing was written.")]
    if not report.written:
        return [terminal.line("Nothing had to be written.")]
    return [terminal.line(f"Written to {report.database}.{stored_settings.COLLECTION}."), terminal.line(HINT)]
