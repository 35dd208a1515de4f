"""Reports as tables for people, at most 80 columns wide."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from .analyze import FieldsReport
from .cleanup import Meant
from .inventory import CollectionInfo, DatabaseInfo, DatabaseStats
from .stored_settings import Entry, State
from .tally import MessagesReport, Named, ToolUse, TurnsReport
from .terminal import documents, human_count, human_size, minute, plain, table

_BAR = 30
_FIELDS = 60
_VALUE = 40
_SETTING = 16
_STATES: dict[State, str] = {
    "added": "added",
    "kept": "kept (differs from the template)",
    "same": "same",
    "reset": "reset to the template",
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
    """What a cleanup is about."""
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
    """What is in a collection of messages."""
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
    """What is in a collection of turns."""
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
    """What the documents of a collection look like."""
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
    """What happens to the stored settings of an environment."""
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
