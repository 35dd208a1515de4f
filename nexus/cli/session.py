"""`nexus session`: export a whole session to a folder, and import one (contract §7, §10).

- An export appears under its name when it is whole, readable by its owner alone.
- A folder to import is not trusted: no link inside of it is followed, nothing but regular files is read, and no file
  and no line is larger than what is stored may be.
"""

import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Annotated, Final

import typer

from nexus.cli.options import Config, Owner, Session, session_settings
from nexus.cli.servers import require_session, run_on_store
from nexus.cli.terminal import confirm, counted, printable, progress, session_named
from nexus.core.errors import NexusError, StoreUnavailableError
from nexus.core.models import DEFAULT_SESSION, Row, utc_now
from nexus.core.ports.store import TransferableStore
from nexus.services.history.condense import with_condensed
from nexus.services.transfer import folder as files
from nexus.services.transfer.exporter import export_session
from nexus.services.transfer.importer import Plan, Present, compare, read_session, write_session
from nexus.services.transfer.transcripts import Imported, messages_in, rows_of


class _Source(StrEnum):
    NEXUS = "nexus"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    LANGCHAIN = "langchain"


app = typer.Typer(add_completion=False, no_args_is_help=True, help="Export a whole session to a folder, and import it.")
_PREFIX_CHARS: Final = 100
_LINE_CHARS: Final = 100
_BATCH: Final = 200
# A document of 16 MiB, with escapes for much of it.
_LONGEST_LINE: Final = 1 << 26
_LONGEST_FILE: Final = 1 << 26
_MOST_FILES: Final = 100_000
# Opening a pipe must not wait for a writer.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOUNS: Final = {
    files.MESSAGES: "message",
    files.TURNS: "turn",
    files.REVISIONS: "revision",
    files.DETAILS: "detail",
    files.COMPACTIONS: "compaction",
    files.STATE: "state",
    files.CONSTRAINTS: "constraint",
    files.FACTS: "statement",
}


@app.command("export", epilog="Example:\n\nnexus session export --owner ada --session s1 session-s1/")
def export_command(
    owner: Owner,
    path: Annotated[str, typer.Argument(metavar="FOLDER", help="The folder, which is made.")],
    session: Session = "default",
    yes: Annotated[bool, typer.Option("--yes", help="Overwrite an export without asking.")] = False,
    config: Config = None,
) -> None:
    """Write a session to a folder: messages, turns, state, constraints, compactions and memory, in Markdown and JSON.

    The folder appears when it is whole, readable by its owner alone. Exit 1 also when a turn could not be read and was
    left out.
    """
    settings = session_settings(config, owner, session)
    target = _checked_target(path, yes=yes)
    where = session_named(owner, session)

    async def write(store: TransferableStore) -> tuple[files.Header, list[int]]:
        total = await store.transfer.count_rows(owner, session)
        with progress("Messages", total) as advance:
            return await export_session(store, owner, session, folder, exported_at=utc_now(), advance=advance)

    run_on_store(settings.database, lambda store: require_session(store, owner, session))
    with _written(target) as folder:
        try:
            header, unreadable = run_on_store(settings.database, write)
        except NexusError as error:
            raise NexusError(f"{where}: {error}") from error
    typer.echo(f"{_amount(header.counts)} of {where} in {printable(path)}.")
    if unreadable:
        count = counted(len(unreadable), "turn")
        typer.echo(f"nexus: {count} cannot be read and left out; the first is {unreadable[0]}", err=True)
        raise typer.Exit(1)


@app.command(
    "import",
    epilog="Examples:\n\nnexus session import session-s1/\n\n"
    "nexus session import --owner bob --session copy session-s1/ --dry-run\n\n"
    "nexus session import --from openai chat.json --owner ada --session chat",
)
def import_command(
    path: Annotated[str, typer.Argument(metavar="FOLDER|FILE", help="What `export` wrote, or a transcript.")],
    owner: Annotated[str | None, typer.Option(help="Another owner than the export's.", show_default=False)] = None,
    session: Annotated[str | None, typer.Option(help="Another session than the export's.", show_default=False)] = None,
    source: Annotated[
        _Source,
        typer.Option(
            "--from",
            help="nexus for an export. Any other is a transcript, JSON or JSON Lines, whose form is found by itself, "
            "whichever name is given; it needs --owner.",
        ),
    ] = _Source.NEXUS,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and compare only; say what would be written.")
    ] = False,
    config: Config = None,
) -> None:
    """Store an exported session, or a transcript of another system, of which contexts are then made.

    The session of an export must be empty, and the next context is the same as before; nothing is written unless all
    of it can be read and nothing is in its way. Of a transcript, each message is told with what was repaired or left
    out. What is there already is not stored again: an import that broke off is gone on with by repeating it, and a
    transcript may have grown.
    """
    named = DEFAULT_SESSION if session is None else session
    if source is not _Source.NEXUS:
        _import_transcript(path, source.value, owner, named, dry_run=dry_run, config=config)
        return
    settings = session_settings(config, "x" if owner is None else owner, named)
    folder, written = _GivenFolder(path), Counter[str]()
    with _faults_of(path):
        header = files.read_header(folder)
    where = session_named(owner or header.owner_key, session or header.session_id)

    async def work(store: TransferableStore) -> tuple[Plan, Present]:
        with _faults_of(path):
            with progress("Reading", sum(header.counts.values())) as advance:
                plan = read_session(folder, store, owner_key=owner, session_id=session, advance=advance)
            present = await compare(plan)
            if not dry_run:
                await _write(plan, present, written)
            return plan, present

    with _told_when_broken_off(where, lambda: _amount(written) if written else ""):
        plan, present = run_on_store(settings.database, work)
    verb = "would be imported" if dry_run else "imported"
    missing = {file: len(given) - len(present[file]) for file, given in plan.given.items()}
    count = sum(map(len, present.values()))
    already = f"; {count} of {plan.total} documents were there" if count else ""
    typer.echo(f"{_amount(missing)} {verb} into {where}{already}.")


def _import_transcript(
    path: str, source: str, owner: str | None, session: str, *, dry_run: bool, config: Path | None
) -> None:
    if owner is None:
        raise NexusError(f"--from {source}: --owner is needed: a transcript does not say whose it is")
    settings = session_settings(config, owner, session)
    messages = _read_transcript(path, owner, session)
    rows = [
        (message.place, with_condensed(message.row, settings.condense_above)) for message in messages if message.row
    ]
    counts, where = Counter[str](), session_named(owner, session)
    with _told_when_broken_off(
        where, lambda: counted(counts["new"], "message") if counts["new"] and not dry_run else ""
    ):
        run_on_store(settings.database, partial(_look_up if dry_run else _write_rows, rows, counts))
    repaired, left_out = sum(len(each.repaired) for each in messages), sum(len(each.left_out) for each in messages)
    verb = "would be stored" if dry_run else "stored"
    typer.echo(
        f"{counted(len(messages), 'message')} read, {repaired} repaired, {left_out} left out; "
        f"{counts['new']} {verb} in {where}, {counts['there']} were there already."
    )
    unread = len([message for message in messages if not message.said])
    if unread or counts["refused"]:
        raise NexusError(f"{unread} could not be read, {counts['refused']} not stored: see above")


def _read_transcript(path: str, owner: str, session: str) -> list[Imported]:
    try:
        given = messages_in(_file_content(path))
    except ValueError as error:
        raise NexusError(printable(f"{path}: {error}")) from None
    messages = list[Imported]()
    with progress("Reading", len(given)) as advance:
        for message in rows_of(given, owner, session, utc_now()):
            messages.append(message)
            advance(1)
    for message in messages:
        typer.echo(f"{message.place}: {_in_short(message.said or '?')}")
        for note in message.repaired:
            typer.echo(f"    repaired: {printable(note)}")
        for what, _, why in message.left_out:
            typer.echo(f"    left out: {printable(what)}: {why}")
    return messages


async def _look_up(rows: Sequence[tuple[str, Row]], counts: Counter[str], store: TransferableStore) -> None:
    with progress("Comparing", len(rows)) as advance:
        for start in range(0, len(rows), _BATCH):
            batch = [row for _, row in rows[start : start + _BATCH]]
            there = await store.recorded_ids(batch[0]["owner_key"], [row["id"] for row in batch])
            counts["there"] += len(there)
            counts["new"] += len(batch) - len(there)
            advance(len(batch))


async def _write_rows(rows: Sequence[tuple[str, Row]], counts: Counter[str], store: TransferableStore) -> None:
    with progress("Writing", len(rows)) as advance:
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            outcomes = await store.insert_messages([row for _, row in batch])
            for (place, _), outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, StoreUnavailableError):
                    raise outcome
                counts["refused" if isinstance(outcome, Exception) else "new" if outcome else "there"] += 1
                if isinstance(outcome, Exception):
                    typer.echo(f"{place}: not stored: {outcome}", err=True)
            advance(len(batch))


def _in_short(text: str) -> str:
    # Only the beginning is shown of what may be a whole file.
    line = printable(" ".join(text[: _LINE_CHARS * 10].split()))
    return line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}…"


def _file_content(path: str) -> bytes:
    try:
        # A pipe is as good as a file.
        with Path(path).open("rb") as file:
            content = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise NexusError(f"{printable(path)}: cannot be read: {error.strerror}") from None
    if len(content) > _LONGEST_FILE:
        raise ValueError(f"more than {_LONGEST_FILE} bytes")
    return content


@contextmanager
def _told_when_broken_off(where: str, written: Callable[[], str]) -> Iterator[None]:
    """Where an import ends early, say how much is `written`, `""` for nothing, and how to go on."""

    def so_far() -> str:
        amount = written()
        return f"{amount} into {where} were written; repeat the import to go on with it" if amount else ""

    try:
        yield
    except NexusError as error:
        raise NexusError(printable("; ".join(filter(None, (str(error), so_far()))))) from error
    except KeyboardInterrupt:
        if said := so_far():
            typer.echo(f"nexus: {said}", err=True)
        raise


async def _write(plan: Plan, present: Present, written: Counter[str]) -> None:
    with progress("Writing", plan.total) as advance:
        advance(sum(map(len, present.values())))

        def report(file: str, count: int) -> None:
            written[file] += count
            advance(count)

        await write_session(plan, present, report)


@contextmanager
def _faults_of(path: str) -> Iterator[None]:
    """Faults of the files in the folder leave as `NexusError`s."""
    try:
        yield
    except ValueError as error:
        raise NexusError(printable(f"{Path(path)}/{error}")) from None


class _GivenFolder:
    """`nexus.services.transfer.folder.Folder` on the disk; a NexusError where it is missing."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        if not self._path.is_dir():
            is_file = self._path.exists()
            fault = "is a file; the folder that `export` wrote is needed" if is_file else "there is no such folder"
            raise NexusError(f"{printable(path)}: {fault}")

    def lines(self, name: str) -> Iterator[bytes]:
        with self._opened(name) as file:
            lines = iter(lambda: file.readline(_LONGEST_LINE + 1) if file else b"", b"")
            for number, line in enumerate(lines, 1):
                if len(line) > _LONGEST_LINE:
                    raise ValueError(f"{name}: line {number}: more than {_LONGEST_LINE} bytes")
                yield line

    def content(self, name: str) -> bytes | None:
        with self._opened(name) as file:
            content = file.read(_LONGEST_FILE + 1) if file else None
        if content is not None and len(content) > _LONGEST_FILE:
            raise ValueError(f"{name}: more than {_LONGEST_FILE} bytes")
        return content

    def names(self, folder: str) -> list[str]:
        with self._descriptor(folder, os.O_DIRECTORY) as opened:
            names = [] if opened is None else os.listdir(opened)  # noqa: PTH208  # of a descriptor
        if len(names) > _MOST_FILES:
            raise ValueError(f"{folder}: more than {_MOST_FILES} files")
        # Editors leave hidden ones.
        return sorted(name for name in names if not name.startswith("."))

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes] | None]:
        with self._descriptor(name) as opened:
            if opened is None:
                yield None
                return
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise ValueError(f"{name}: is no regular file")
            with os.fdopen(opened, "rb", closefd=False) as file:
                yield file

    @contextmanager
    def _descriptor(self, name: str, flags: int = 0) -> Iterator[int | None]:
        """The file or folder of that name, opened without following a link at any step; None where it is missing."""
        with ExitStack() as stack:
            try:
                opened = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, opened)
                *folders, last = name.split("/")
                for part, as_what in [*((folder, os.O_DIRECTORY) for folder in folders), (last, flags)]:
                    opened = os.open(part, _READ | as_what, dir_fd=opened)
                    stack.callback(os.close, opened)
            except FileNotFoundError:
                yield None
                return
            except OSError as error:
                raise ValueError(f"{name}: cannot be read: {error.strerror}") from None
            yield opened


class _PartFolder:
    """`nexus.services.transfer.folder.NewFolder` on the disk; `opened` closes its files, which are then on the disk."""

    def __init__(self, path: Path, opened: ExitStack) -> None:
        self._path = path
        self._opened = opened
        self._files: dict[str, IO[bytes]] = {}

    def put(self, name: str, line: str) -> None:
        if name not in self._files:
            self._files[name] = self._opened.enter_context(self._new(name))
        self._files[name].write(f"{line}\n".encode())

    def write(self, name: str, text: str) -> None:
        with self._new(name) as file:
            file.write(text.encode())

    @contextmanager
    def _new(self, name: str) -> Iterator[IO[bytes]]:
        path = self._path / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _written(target: Path) -> Iterator[_PartFolder]:
    """A folder beside `target` that takes its place when the context has ended well; else nothing of it stays."""
    try:
        # Readable by its owner alone.
        part = Path(mkdtemp(prefix=f".{target.name[:_PREFIX_CHARS]}.", suffix=".part", dir=target.parent))
        try:
            with ExitStack() as opened:
                yield _PartFolder(part, opened)
            _replace(target, part)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    except OSError as error:
        raise NexusError(f"{printable(str(target))}: cannot be written: {error.strerror}") from None


def _replace(target: Path, part: Path) -> None:
    if not target.exists():
        part.rename(target)
        return
    old = Path(mkdtemp(prefix=f".{target.name[:_PREFIX_CHARS]}.", suffix=".old", dir=target.parent))
    try:
        # A folder may be moved onto an empty one.
        target.rename(old)
        part.rename(target)
    finally:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(target)


def _checked_target(path: str, *, yes: bool) -> Path:
    """The folder that an export may be written to, where an export is there already after a yes."""
    target, name = Path(path).resolve(), printable(path)
    try:
        there = {entry.name for entry in target.iterdir()} if target.exists() else set[str]()
        has_parent = target.parent.is_dir()
    except OSError as error:
        raise NexusError(f"{name}: cannot be written: {error.strerror}") from None
    if not has_parent:
        raise NexusError(f"{name}: there is no folder for it")
    if others := there - files.TOP:
        other = printable(min(others))
        raise NexusError(f"{name}: there is something else in it, {other}; an export has a folder to itself")
    if there:
        confirm(f"{name} exists. Overwrite it?", yes=yes)
    return target


def _amount(counts: Mapping[str, int]) -> str:
    """`604 messages, 2 turns`."""
    rest = {file: count for file, count in counts.items() if count and file != files.MESSAGES}
    named = [counted(rest[file], noun) for file, noun in _NOUNS.items() if file in rest]
    return ", ".join([counted(counts.get(files.MESSAGES, 0), "message"), *named])
