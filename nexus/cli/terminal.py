"""Shared by the commands: options, questions, progress, printing, and errors of the servers with advice.

- Much of what is printed was written by users and models: only printable characters of it reach a terminal.
- No answer to a question is a no, also where there is no terminal to ask on.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import anyio
import typer
from pydantic import ValidationError
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress
from rich.text import Text

from nexus.client import AnswerError, ContextClient
from nexus.config import BusSettings, DatabaseSettings, Settings, signing_of
from nexus.config.loading import load_settings
from nexus.connections import counts_subscribers, open_client, open_store
from nexus.core.concurrency import ungrouped
from nexus.core.errors import (
    BusRefusedError,
    BusUnavailableError,
    ErrorCode,
    NexusError,
    StoreRejectedError,
    StoreUnavailableError,
)
from nexus.core.models import DOCTOR, Message, Role, Run, new_run_id
from nexus.core.ports import Bus, Row, Store
from nexus.core.ports.store import TransferableStore
from nexus.core.wire import explain
from nexus.core.working_memory import WHOLE
from nexus.log import configure_logging
from nexus.services.history.rows import read_owner_key, read_session_id
from nexus.services.person.constraint_changes import place_of
from nexus.services.records.explain import Explained, ShownBlock
from nexus.services.text.escape import PINNED_TAGS

_Result = TypeVar("_Result")
# By its heading, the attribute that a column of a table shows, or a function of the item.
Columns: TypeAlias = Mapping[str, str | Callable[[Any], object]]

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

# Of a message of a context.
_SHOWN_LINES: Final = 40
_PAGE: Final = 50
_BLOCKS: Final[Columns] = {
    "BLOCK": "tag",
    "BYTES": "bytes",
    "TOKENS": "tokens",
    "SOURCES": lambda block: len(block.sources),
    "TRUNCATED": "truncated",
    "DROPPED": "dropped",
    "ESCAPED": "escaped",
}
_GAP: Final = "  "
_MARGIN: Final = "    "
# What a column of texts needs to be read.
_NARROWEST: Final = 20
# What stays on one line: a word with the spaces before it, or a letter of a script that has no spaces.
_UNIT: Final = re.compile(r" *(?:[\u2e80-\ud7ff\uf900-\uffef]|[^ \u2e80-\ud7ff\uf900-\uffef]+)")
_MOST_SESSIONS: Final = 10
# Who asks whether a service answers, and how long it is waited for.
_ANSWER_S: Final = 3.0
SEE_MONGODB: Final = "see that MongoDB runs, and database.uri with its user and password (NEXUS_DATABASE__URI)"
_SEE_REDIS: Final = "see that Redis runs, and bus.url with its user and password (NEXUS_BUS__URL)"
# By the kind of the error, or by words of Redis's own where the kind says little.
_BUS_ADVICE: Final = {
    "AuthenticationError": "correct user and password in bus.url (NEXUS_BUS__URL)",
    "NoPermissionError": "give this user the rights in docs/operations.md, 'Users and rights', for your prefix",
    "ReadOnlyError": "name the master in bus.url, or the sentinels that know it: this server is a read-only replica",
    "OutOfMemoryError": "raise maxmemory of Redis or free memory; a lower bus.answer_ttl_s needs less of it",
    "MasterNotFoundError": "see that the sentinels run, and the name of their service in bus.url",
    "BusyLoadingError": "wait: Redis is loading its data",
    "MovedError": "write redis+cluster:// in bus.url: this server is a node of a cluster",
    "cluster support disabled": "write redis:// in bus.url: this server is no node of a cluster",
    "'SENTINEL'": "name sentinels in a redis+sentinel:// URL, or write redis://: this server is no sentinel",
    "MISCONF": "free disk space where Redis runs, and see its log: it cannot save its data",
}


def command_settings(config: Path | None) -> Settings:
    """The settings of a short command, which logs errors alone, on standard error."""
    configure_logging("error", "console")
    return load_settings(config)


def session_settings(config: Path | None, owner: str, session: str) -> Settings:
    """The settings of a short command about a session; a NexusError where no owner or no session can be called so."""
    settings = command_settings(config)
    if not is_utf8(owner + session):
        raise NexusError("--owner and --session: UTF-8 text is needed")
    try:
        read_owner_key(owner, "--owner")
        read_session_id({"session_id": session})
    except ValueError as error:
        raise NexusError(str(error).replace("metadata.session_id", "--session")) from None
    return settings


def is_utf8(text: str) -> bool:
    """Whether all of a word of the command line was UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def run_with(owner: str, text: str, metadata: Mapping[str, Any]) -> Run:
    """A run that begins with this input, for the commands that ask for a context; NexusError for what none can be."""
    run_id = new_run_id()
    try:
        "".join((owner, text, *(value for value in metadata.values() if isinstance(value, str)))).encode()
        human = Message(run_id=run_id, owner_key=owner, role=Role.HUMAN, content=text)
        return Run(id=run_id, owner_key=owner, history=[human], metadata=metadata)
    except UnicodeEncodeError:
        raise NexusError("--owner, --input, --session, --layout and --format: UTF-8 text is needed") from None
    except ValidationError as error:
        raise NexusError(explain(error).replace("owner_key", "--owner")) from None


async def require_session(store: Store, owner: str, session: str) -> None:
    """A NexusError that names the owner's sessions where nothing at all is stored of this one."""
    key, memory = (owner, session), store.memory
    if (
        await store.tail_messages(*key, WHOLE, limit=1)
        or await store.turns.latest_turn(*key)
        or await store.find_session_state(*key)
        or await store.constraints.find_constraints(owner, [place_of("session", session, "")])
        or await memory.latest_overview(*key)
        or await memory.list_details(*key)
        or await memory.latest_compaction(*key)
    ):
        return
    found = await store.sessions(owner, limit=_MOST_SESSIONS + 1)
    names = ", ".join(printable(each.session_id or "-") for each in found[:_MOST_SESSIONS])
    more = " and more (nexus sessions list)" if len(found) > _MOST_SESSIONS else ""
    there = f"there are: {names}{more}" if found else f"no other of {printable(owner)} has messages"
    raise NexusError(f"there is no {session_named(owner, session)}; {there}")


async def newest(field: str, limit: int, read: Callable[..., Awaitable[list[Row]]]) -> list[Row]:
    """Up to `limit` documents, the highest number in `field` first. `read` takes `limit` and `before`."""
    found, before = list[Row](), None
    while most := min(_PAGE, limit - len(found)):
        page = await read(limit=most, before=before)
        found += page
        if len(page) < most:
            break
        before = page[-1][field]
    return found


def printable(text: str) -> str:
    """`text` with an escape for every character that a terminal might obey, or not show."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def text_lines(text: str) -> list[str]:
    """The lines of a stored text, printable."""
    return [printable(line) for line in text.splitlines()]


def indented(lines: Iterable[str]) -> list[str]:
    """Behind two spaces, where no text can look like a title or a fact of the command's own."""
    return [f"  {line}".rstrip() for line in lines]


def facts(values: Mapping[str, object], sections: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """A line a value, behind its name; below them the sections that are not empty, under their titles.

    Values that are longer than a line of the terminal are broken between words.
    """
    found = [line for name, value in values.items() for line in _broken(f"{name:<10}", _cell(value), _columns())]
    for title, content in (sections or {}).items():
        found += ["", title, "", *indented(content)] if content else []
    return found


def table(columns: Columns, items: Iterable[object], *, margin: int = 0) -> list[str]:
    """A line an item under a line of headings, `[]` for none. Nothing is cut, so the longest column comes last.

    Where that is too wide for the terminal, without a `margin`, the last column is broken between words. Where most do
    not have the room for it, each item has a line a value, behind its heading, and an empty line at its end.
    """
    values = [attrgetter(value) if isinstance(value, str) else value for value in columns.values()]
    rows = [[_cell(value(item)) for value in values] for item in items]
    if not rows:
        return []
    *widths, _ = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    width = _columns() - margin
    room = width - sum(size + len(_GAP) for size in widths)
    too_long = sum(cell_len(row[-1]) > room for row in rows)
    if room < len([*columns][-1]) or (room < _NARROWEST and too_long > len(rows) / 2):
        longest = max(map(len, columns))
        items_apart = ([*zip(columns, row, strict=True), ("", "")] for row in rows)
        return [
            line for each in items_apart for name, cell in each for line in _broken(f"{name:<{longest}}", cell, width)
        ]
    starts = [_GAP.join(map(set_cell_size, row, widths)) for row in ([*columns], *rows)]
    return [
        line for start, row in zip(starts, ([*columns], *rows), strict=True) for line in _broken(start, row[-1], width)
    ]


def _broken(start: str, text: str, width: int) -> list[str]:
    """A text behind its `start`, broken between words, or letters of a script without spaces.

    A text for which there is little room, or that has a longer word, begins on a line of its own.
    """
    start = start + _GAP if start else ""
    room = width - cell_len(start)
    # No letter is wider than two columns.
    if len(text) * 2 <= room or cell_len(text) <= room:
        return [(start + text).rstrip()]
    units = _UNIT.findall(text)
    fits = room >= _NARROWEST and all(cell_len(unit.strip()) <= room for unit in units)
    indent = " " * cell_len(start) if fits else _MARGIN
    lines = [start if fits else indent]
    for unit in units:
        if lines[-1].strip() and cell_len(lines[-1] + unit) > width:
            lines.append(indent + unit.lstrip())
        else:
            lines[-1] += unit
    return [line.rstrip() for line in ([] if fits else [start]) + lines]


def _columns() -> int:
    """How wide the terminal is; without one, as wide as may be."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else sys.maxsize


def _cell(value: object) -> str:
    text = timestamp(value) if isinstance(value, datetime) else str(value)
    return "-" if value is None else printable(text) or "-"


def timestamp(moment: datetime) -> str:
    """A time of UTC, to the second."""
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def counted(count: int, noun: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def session_named(owner: str, session: str) -> str:
    """How messages call a session."""
    return f"session {printable(session)} of {printable(owner)}"


def print_result(found: object) -> None:
    """Print lines as they are, any other value as JSON; an empty list is one."""
    if isinstance(found, list) and found and all(isinstance(line, str) for line in found):
        for line in found:
            typer.echo(line)
        return
    # Only ASCII: nothing that a terminal might obey.
    typer.echo(json.dumps(found, indent=2))


def confirm(question: str, otherwise: str) -> None:
    """Ask; a NexusError, with `otherwise` on how to do without an answer, where that is no or there is none."""
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    # As bytes: an answer that is no text is no yes either.
    answer = sys.stdin.buffer.readline()
    if not answer.endswith(b"\n"):
        typer.echo(err=True)
    if answer.strip().lower() not in {b"y", b"yes"}:
        raise NexusError(f"nothing was done; {otherwise}")


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where that is a terminal. Yields the function that is called with each amount done."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


def run_on_store(settings: DatabaseSettings, work: Callable[[TransferableStore], Awaitable[_Result]]) -> _Result:
    """The result of `work` on the store, whose errors become NexusErrors with what to do about them."""

    async def on_store() -> _Result:
        async with open_store(settings) as store:
            return await work(store)

    try:
        with ungrouped():
            return anyio.run(on_store)
    except (StoreUnavailableError, StoreRejectedError) as error:
        raise store_error(error) from error


def store_error(error: StoreUnavailableError | StoreRejectedError) -> NexusError:
    """A store's error, with what to do about it."""
    if isinstance(error, StoreRejectedError):
        return NexusError(f"MongoDB refuses what was asked: {error}")
    return NexusError(f"MongoDB does not do what was asked ({error}): {SEE_MONGODB}")


def service_client(settings: BusSettings, connect_s: float) -> AbstractAsyncContextManager[ContextClient]:
    """A client of the service on this bus; a NexusError where that is one process alone."""
    if settings.mode == "memory":
        raise NexusError("bus.mode is memory: there is no other process to ask")
    return open_client(
        settings.url.get_secret_value(),
        mode=settings.mode,
        channel_prefix=settings.channel_prefix,
        signing=signing_of(settings.signing),
        connect_s=connect_s,
        max_payload_bytes=settings.max_payload_bytes,
    )


def run_on_bus(key: str, work: Callable[[], Awaitable[_Result]]) -> _Result:
    """The result of `work` on that key of Redis (without the prefix). Errors of the bus say what to do about them."""
    try:
        with ungrouped():
            return anyio.run(work)
    except BusRefusedError as error:
        advice = f"see what stands under <prefix>{key} (redis-cli TYPE)"
        raise BusRefusedError(f"Redis does not do what was asked ({error}): {advice}") from error
    except BusUnavailableError as error:
        raise BusUnavailableError(f"Redis does not do what was asked ({error}): {bus_advice(error)}") from error


async def ask_service(bus: Bus, settings: BusSettings) -> None:
    """Ask a question that is refused before anything of it is recorded: it shows that a service listens and answers.

    A NexusError or TimeoutError where none does.
    """
    run_id = new_run_id()
    nothing = Message(run_id=run_id, owner_key=DOCTOR, role=Role.HUMAN, content=" ")
    async with ContextClient(bus, signing=signing_of(settings.signing)).listening() as client:
        try:
            await client.build(Run(id=run_id, owner_key=DOCTOR, history=[nothing]), timeout=_ANSWER_S)
        except AnswerError as error:
            if error.code is not ErrorCode.EMPTY_INPUT:
                raise


def say_who_heard(subscribers: int, settings: BusSettings, on_stream: str) -> None:
    """Say how many services heard what was published; on streams, whose readers are not counted, say `on_stream`."""
    if settings.mode == "streams":
        typer.echo(f"Sent: {on_stream}.")
    elif not counts_subscribers(settings):
        typer.echo("Sent. On a cluster pub/sub cannot tell whether anybody heard it.")
    else:
        typer.echo(f"Sent: {counted(subscribers, 'service')} heard it.")


def bus_advice(error: Exception) -> str:
    """The advice for an error of the bus."""
    words = f"{error} {error.__cause__}"
    return next((advice for known, advice in _BUS_ADVICE.items() if known in words), _SEE_REDIS)


def show_context(console: Console, context: Explained) -> None:
    """Print the missing parts of a context, what was sent, each in a frame, and the manifest as a table."""
    _note(console, "Missing", context.degraded)
    for place, sent in enumerate(context.sent):
        blocks = context.blocks_of(place)
        is_pinned = any(block.tag in PINNED_TAGS for block in blocks)
        where = f"{place + 1}." if sent.where == f"message {place + 1}" else f"{sent.where}:"
        title = "  ".join([f"{where} {sent.role}", *(_label(block, place) for block in blocks)])
        style = "bold green" if is_pinned else "none"
        shown = Text(_shortened(sent.text))
        console.print(Panel(shown, title=Text(printable(title)), title_align="left", border_style=style))
    for line in ["Where it came from", "", *table(_BLOCKS, context.blocks), ""]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    history = context.history
    merged = f"{history.get('merged')} messages after merging, " if context.layout == "dialogue" else ""
    if history and context.layout != "thinking":
        console.print(
            f"History: {history.get('fetched')} rows read, {merged}{history.get('shown')} messages shown, "
            f"{history.get('repaired')} repaired or left out."
        )
    sha256 = printable(context.prefix_sha256[:12])
    console.print(f"Prefix that the next build shares: {context.prefix_messages} messages, sha256 {sha256}...")
    if timings := context.timings_ms:
        console.print("Timings: " + ", ".join(f"{stage} {ms:.1f} ms" for stage, ms in timings.items()))
    _note(console, "Notes", context.notes)
    _note(console, "Left out", [f"{each.what} ({each.where}): {each.why}" for each in context.left_out])


def _label(block: ShownBlock, place: int) -> str:
    """The title of what was sent at this place besides its role: the block, and where that begins its size."""
    pinned = ", pinned" if block.tag in PINNED_TAGS else ""
    return f"[{block.tag}]" + (f"  {block.bytes} bytes{pinned}" if place == block.first else "")


def _note(console: Console, label: str, items: Sequence[str]) -> None:
    if items:
        console.print(f"{label}: {printable('; '.join(items))}", style="yellow", markup=False)


def _shortened(text: str) -> str:
    lines = text_lines(text)
    if len(lines) <= _SHOWN_LINES:
        return "\n".join(lines)
    half = _SHOWN_LINES // 2
    return "\n".join([*lines[:half], f"... ({len(lines) - 2 * half} lines not shown here) ...", *lines[-half:]])
