"""Tables of at most 80 columns, questions and progress for people; one JSON value on stdout for programs.

Everything that came out of a database passes `plain` before it reaches a terminal: stored text could hold escape
sequences. Questions, progress and remarks go to stderr, so that stdout holds results only.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from .analyze import FieldsReport, MessagesReport, Named, ToolUse, TurnsReport
from .documents import Meant, iso
from .server import CollectionInfo, DatabaseInfo, DatabaseStats, NobodyToAskError, Refusal
from .stored_settings import Entry, State

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024
_CELL = 200
_WIDE = 10_000
_IDEOGRAPHIC_SPACE = "\u3000"


def plain(value: object, limit: int = _CELL) -> str:
    """`value` as text that a terminal shows and does not obey, at most `limit` characters long."""
    text = value if isinstance(value, str) else str(value)
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return "".join(c if c.isprintable() or c == _IDEOGRAPHIC_SPACE else "�" for c in cut)


def human_size(size: float | None) -> str:
    """A number of bytes in a unit that keeps it short; `-` where it is not known."""
    if size is None:
        return "-"
    if size < _STEP:
        return f"{size:.0f} B"
    power = 0
    while size >= _STEP and power < len(_UNITS):
        size, power = size / _STEP, power + 1
    return f"{size:.1f} {_UNITS[power - 1]}"


def human_count(count: int | None) -> str:
    """A number with thousands apart; `-` where it is not known."""
    return "-" if count is None else f"{count:,}"


def documents(count: int) -> str:
    """So many documents."""
    return f"{human_count(count)} document{'' if count == 1 else 's'}"


def minute(moment: datetime | None) -> str:
    """A moment in UTC for people."""
    return "-" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


@dataclasses.dataclass(frozen=True)
class Listing:
    """A table that fits a terminal of 80 columns; on one that is too narrow, each row is a list of its cells.

    A header that starts with `>` is the head of a column of numbers. Neither numbers nor words are broken.
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the title, and the form that has room."""
        yield Text(plain(self.title), style="bold")
        made = Table(box=SIMPLE_HEAD, show_header=any(self.headers), pad_edge=False)
        for header in self.headers:
            right = header.startswith(">")
            made.add_column(header.lstrip(">"), justify="right" if right else "left", no_wrap=right)
        for row in self.rows:
            made.add_row(*(Text(plain(cell)) for cell in row))
        if Measurement.get(console, options.update(width=_WIDE), made).minimum <= options.max_width:
            yield made
            return
        names = [header.lstrip(">") for header in self.headers]
        longest = max(map(len, names))
        for row in self.rows:
            yield Text()
            for name, cell in zip(names, row, strict=True):
                if cell:
                    yield Text(f"{name:<{longest}}  {plain(cell)}".strip() if longest else plain(cell))


def table(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Listing:
    """A table, as `Listing` shows it."""
    return Listing(title, headers, [*rows])


class Terminal:
    """Where results, questions and progress go."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._out = Console(highlight=False, emoji=False, markup=False)
        self._err = Console(stderr=True, highlight=False, emoji=False, markup=False)

    def show(self, report: Any, *parts: RenderableType) -> None:
        """The result: `report` (a dataclass) as JSON, or `parts` for people."""
        if self.as_json:
            # Only ASCII: nothing that a terminal might obey.
            print(json.dumps(report, default=_jsonable, indent=2))
            return
        self.say(*parts)

    def say(self, *parts: RenderableType) -> None:
        """For people only: nothing of it is printed with `--json`."""
        if self.as_json:
            return
        for part in parts:
            self._out.print(part, soft_wrap=isinstance(part, str | Text))

    def remark(self, text: str) -> None:
        """A line beside the result, on stderr."""
        self._err.print(Text(plain(text, limit=2_000)), soft_wrap=True)

    def ask(self, question: str) -> str:
        """The operator's answer, stripped. Raises EOFError at the end of the input."""
        self._err.print(Text(plain(question)), end=" ", soft_wrap=True)
        return input().strip()

    def confirm(self, question: str, *, typed: str | None = None) -> None:
        """Go on only if the operator agrees: with `y`, or by typing the word `typed`.

        Raises:
            NobodyToAskError: stdin is no terminal.
            EOFError: the input ended.
            Refusal: the operator does not agree.
        """
        if not sys.stdin.isatty():
            raise NobodyToAskError(f"{question} There is no terminal to ask at: say --yes if it is meant")
        hint = f"Type {typed} to go on:" if typed else "[y/N]"
        answer = self.ask(f"{question} {hint}")
        if answer != typed if typed else answer.casefold() not in {"y", "yes"}:
            raise Refusal("not confirmed: nothing was done")

    @contextlib.contextmanager
    def progress(self, title: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """A progress bar on stderr, if that is a terminal, for the length of the block; yields how to advance it."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._err, transient=True, disable=not self._err.is_terminal) as bar:
            task = bar.add_task(title, total=total)
            yield lambda steps: bar.advance(task, steps)


def _jsonable(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return iso(value) if isinstance(value, datetime) else str(value)


_BAR = 30
_FIELDS = 60
_VALUE = 40
_SETTING = 16
_STATES: dict[State, str] = {
    "added": "added",
    "kept": "kept",
    "same": "same",
    "reset": "reset to the template",
    "removed": "removed",
    "unknown": "kept, unknown to the settings",
}

Parts = Iterable[RenderableType]


def line(text: str) -> Text:
    """One line of text."""
    return Text(plain(text, limit=500))


def databases(found: Sequence[DatabaseInfo]) -> Parts:
    """The databases of a server."""
    rows = [
        (
            each.name,
            human_size(each.size_on_disk),
            human_count(each.collections),
            human_count(each.documents),
            _mark(each),
        )
        for each in found
    ]
    return [table("Databases", ("name", ">size", ">collections", ">documents", ""), rows)]


def _mark(database: DatabaseInfo) -> str:
    return ", ".join(word for word, holds in (("system", database.system), ("selected", database.selected)) if holds)


def collections(name: str, found: Sequence[CollectionInfo]) -> Parts:
    """The collections of a database."""
    if not found:
        return [line(f"Database {name} has no collections.")]
    rows = [(each.name, human_count(each.documents), "" if each.kind == "collection" else each.kind) for each in found]
    return [table(f"Collections of {name}", ("name", ">documents", ""), rows)]


def statistics(stats: DatabaseStats) -> Parts:
    """The statistics of a database."""
    if not stats.collections:
        return [line(f"Database {stats.database} has no collections.")]
    sizes = [
        (
            each.name,
            human_count(each.documents),
            *(human_size(size) for size in (each.data_size, each.average_size, each.storage_size, each.index_size)),
        )
        for each in stats.collections
    ]
    indexes = [
        (each.name, index.name, human_size(index.size), human_count(index.uses), minute(index.since))
        for each in stats.collections
        for index in each.indexes
    ]
    return [
        table(
            f"Collections of {stats.database}",
            ("name", ">documents", ">data", ">average", ">stored", ">indexes"),
            sizes,
        ),
        table("Indexes", ("collection", "index", ">size", ">uses", "counted since"), indexes),
        *(line(f"Note: {note}") for note in stats.notes),
    ]


def meant(collection: str, found: Meant) -> Parts:
    """The documents of a cleanup."""
    yield line(f"Matching: {documents(found.matched)} of {collection}.")
    if found.skipped:
        yield line(f"Skipped: {documents(found.skipped)} whose timestamp is no date.")
    if found.sample:
        rows = [
            (plain(each.id), _or_dash(each.role), _moment(each.timestamp), human_size(each.size))
            for each in found.sample
        ]
        yield table("Some of them", ("id", "role", "timestamp", ">size"), rows)


def _moment(value: Any) -> str:
    return minute(value) if isinstance(value, datetime) else _or_dash(value)


def _or_dash(value: Any) -> str:
    return "-" if value is None else plain(value, _VALUE)


def messages(report: MessagesReport) -> Parts:
    """The counts of a collection of messages."""
    runs = report.runs
    facts = [
        ("messages", human_count(report.messages)),
        ("text", human_size(report.content_bytes)),
        ("first", minute(report.first)),
        ("last", minute(report.last)),
        ("runs", human_count(runs.count)),
        ("messages per run", f"min {runs.min}, median {runs.median:g}, max {runs.max}"),
        ("owners", human_count(report.owners)),
        ("sessions", human_count(report.sessions)),
    ]
    yield table(f"{report.collection} of {report.database}", ("", ""), facts)
    yield from _counted("Roles", "role", report.roles)
    yield from _counted("Owners with most messages", "owner", report.top_owners)
    yield from _tools(report.tools)
    if report.days:
        most = max(day.count for day in report.days)
        rows = [(day.name, human_count(day.count), _bar(day.count, most)) for day in report.days]
        yield table("Messages by day (UTC)", ("day", ">messages", ""), rows)
    if report.malformed:
        yield from _counted("Malformed messages", "fault", report.malformed)
    else:
        yield line("No malformed messages.")


def turns(report: TurnsReport) -> Parts:
    """The counts of a collection of turns."""
    sessions, tokens = report.sessions, report.tokens
    facts = [
        ("turns", human_count(report.turns)),
        ("first", minute(report.first)),
        ("last", minute(report.last)),
        ("owners", human_count(report.owners)),
        ("sessions", human_count(sessions.count)),
        ("turns per session", f"min {sessions.min}, median {sessions.median:g}, max {sessions.max}"),
        *((f"{each.level} summaries", human_size(each.bytes)) for each in report.summaries),
        ("tokens", human_count(tokens.total)),
        ("of these thinking", human_count(tokens.thinking)),
        ("of these action", human_count(tokens.action)),
    ]
    yield table(f"{report.collection} of {report.database}", ("", ""), facts)
    yield from _counted("Statuses", "status", report.statuses, of="turns")
    yield from _counted("Summaries by", "source", report.sources, of="turns")
    yield from _counted("Work that waits", "work", report.waiting, of="turns")
    yield from _counted("Owners with most turns", "owner", report.top_owners, of="turns")
    yield from _tools(report.tools)
    if report.malformed:
        yield from _counted("Malformed turns", "fault", report.malformed, of="turns")
    else:
        yield line("No malformed turns.")


def _counted(title: str, what: str, named: Sequence[Named], *, of: str = "messages") -> Parts:
    if named:
        yield table(title, (what, f">{of}"), [(plain(each.name, _VALUE), human_count(each.count)) for each in named])


def _tools(tools: Sequence[ToolUse]) -> Parts:
    if tools:
        yield table("Tools", ("tool", ">calls", ">results", ">success"), [_tool(each) for each in tools])


def _tool(tool: ToolUse) -> tuple[str, str, str, str]:
    rate = tool.success_rate
    success = "-" if rate is None else f"{rate:.0%}"
    return plain(tool.name, _VALUE), human_count(tool.calls), human_count(tool.results), success


def _bar(count: int, most: int) -> str:
    return "█" * max(1, round(_BAR * count / most))


def fields(report: FieldsReport) -> Parts:
    """The fields of a collection's documents."""
    yield line(f"{documents(report.documents)} in {report.collection} of {report.database}.")
    rows = [
        (
            plain(each.name, _VALUE),
            human_count(each.documents),
            f"{each.documents / max(report.documents, each.documents):.0%}",
            ", ".join(f"{name} {human_count(each.types[name])}" for name in sorted(each.types)),
        )
        for each in report.fields[:_FIELDS]
    ]
    if rows:
        yield table("Fields", ("field", ">documents", ">share", "types"), rows)
    if len(report.fields) > _FIELDS:
        yield line(f"{len(report.fields) - _FIELDS} rarer fields are not shown; --json lists them.")


def entries(environment: str, found: Sequence[Entry]) -> Parts:
    """The changes of the stored settings of an environment."""
    if not found:
        return [
            line(f"Stored settings of environment {environment}: none. init-config --from FILE stores those of FILE.")
        ]
    rows = [(each.key, _setting(each), each.state) for each in found]
    counts = [(sum(each.state == state for each in found), text) for state, text in _STATES.items()]
    return [
        table(f"Stored settings of environment {environment}", ("key", "value", "state"), rows),
        line(f"{', '.join(f'{count} {text}' for count, text in counts if count)}."),
    ]


def _setting(entry: Entry) -> str:
    if entry.state == "unknown":
        return "(not shown)"
    return plain(json.dumps(entry.value, ensure_ascii=False, default=str), _SETTING)
