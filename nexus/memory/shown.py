"""The working memory as people and programs read it.

What it holds was written by models and by whoever spoke on the bus: nothing of it reaches a terminal but printable
characters, and no text can look like a title, or like one of the facts.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from difflib import unified_diff
from typing import Any, Final

from nexus.cli.terminal import printable
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.memory.reading import Kept, Past
from nexus.services.context.working import TEMPLATE

_DETAILS: Final = ("NAME", "KIND", "VERSION", "BYTES", "TIME (UTC)")
_REVISIONS: Final = ("REVISION", "TIME (UTC)", "BY", "BYTES", "TURN")
_COMPACTIONS: Final = (
    "COMPACTION",
    "TIME (UTC)",
    "TARGET",
    "STRATEGY",
    "ASKED BY",
    "MESSAGES",
    "IN ALL",
    "TOKENS",
    "SUMMARY BY",
)
_NOTHING: Final = "-"


def lines(found: Kept, most_bytes: int) -> list[str]:
    """All that is kept, with the size of the overview against what is allowed."""
    overview, compaction = found.overview, found.compaction
    facts = {
        "overview": _overview(overview, most_bytes),
        "details": str(len(found.details)),
        "compacted": _compacted(compaction),
    }
    shown = [f"{name:<10}  {value}" for name, value in facts.items()]
    sections = {
        "Overview" if overview else "Template": text(overview.content if overview else TEMPLATE),
        "Details": table(_DETAILS, map(_detail, found.details)) if found.details else [],
        "Summary of what is compacted": text(compaction.summary) if compaction else [],
    }
    return [*shown, *_sections(sections)]


def detail_lines(found: Detail) -> list[str]:
    """A detail, whole."""
    facts = {
        "detail": printable(found.name),
        "kind": found.kind if found.compaction is None else f"{found.kind} of compaction {found.compaction}",
        "version": str(found.version),
        "bytes": str(found.bytes),
        "time": f"{_when(found.updated_at)} UTC",
    }
    return [*(f"{name:<10}  {value}" for name, value in facts.items()), "", *_indented(text(found.content))]


def history_lines(found: Past) -> list[str]:
    """A line a revision, then a line a compaction, the newest first."""
    revisions = table(_REVISIONS, map(_revision, found.overviews)) if found.overviews else []
    compactions = table(_COMPACTIONS, map(_compaction, found.compactions)) if found.compactions else []
    return [*revisions, *([""] if revisions and compactions else []), *compactions]


def diff_lines(first: Overview, second: Overview) -> list[str]:
    """What differs between two revisions, as `diff -u` says it; `[]` for nothing."""
    names = [f"revision {overview.revision}" for overview in (first, second)]
    return [*unified_diff(text(first.content), text(second.content), names[0], names[1], lineterm="")]


def account_lines(head: tuple[str, ...], counts: Sequence[int]) -> list[str]:
    """Counts under their names."""
    return table(head, [tuple(map(str, counts))])


def as_json(found: Kept) -> dict[str, Any]:
    """All that is kept, for programs. Revision 0 is the template."""
    overview = found.overview
    return {
        "overview": overview.model_dump(mode="json") if overview else {"revision": 0, "content": TEMPLATE},
        "details": [_header(detail) for detail in found.details],
        "compaction": compaction_as_json(found.compaction) if found.compaction else None,
    }


def history_as_json(found: Past) -> dict[str, Any]:
    """Revisions and compactions, for programs."""
    return {
        "overviews": [
            {**overview.model_dump(mode="json", exclude={"content"}), "bytes": _bytes(overview.content)}
            for overview in found.overviews
        ],
        "compactions": [compaction_as_json(compaction) for compaction in found.compactions],
    }


def compaction_as_json(compaction: Compaction) -> dict[str, Any]:
    """A compaction, for programs, without the names of rows."""
    return compaction.model_dump(mode="json", exclude={"rows", "without", "since"})


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A line a row under a line of headings."""
    all_rows = [head, *rows]
    widths = [max(len(row[column]) for row in all_rows) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in all_rows]


def text(content: str) -> list[str]:
    """Lines that somebody else wrote, as they may be printed."""
    return [printable(line) for line in content.splitlines()]


def _overview(overview: Overview | None, most_bytes: int) -> str:
    if overview is None:
        return "nothing is written down; models are shown the template"
    by = "an import" if overview.author == "import" else f"the {overview.author}"
    turn = f" in turn {overview.turn_number}" if overview.turn_number else ""
    size = f"{_bytes(overview.content)} of {most_bytes} bytes"
    return f"revision {overview.revision}, {size}, {_when(overview.updated_at)} UTC by {by}{turn}"


def _compacted(compaction: Compaction | None) -> str:
    if compaction is None:
        return "nothing"
    how = f"{compaction.target}, {compaction.strategy}, asked for by {_asked_by(compaction)}"
    return (
        f"{compaction.total} messages, {compaction.count} of them by compaction {compaction.number} at "
        f"{_when(compaction.created_at)} UTC ({how}); summary by {_summary_by(compaction)}"
    )


def _asked_by(compaction: Compaction) -> str:
    return {"tool": "the model", "automatic": "the service", "operator": "an operator"}[compaction.trigger]


def _summary_by(compaction: Compaction) -> str:
    return "a model" if compaction.source == "model" else "rules"


def _detail(found: Detail) -> tuple[str, ...]:
    return printable(found.name), found.kind, str(found.version), str(found.bytes), _when(found.updated_at)


def _revision(overview: Overview) -> tuple[str, ...]:
    return (
        str(overview.revision),
        _when(overview.updated_at),
        overview.author,
        str(_bytes(overview.content)),
        str(overview.turn_number or _NOTHING),
    )


def _compaction(compaction: Compaction) -> tuple[str, ...]:
    counted = compaction.tokens_before or compaction.tokens_after
    return (
        str(compaction.number),
        _when(compaction.created_at),
        compaction.target,
        compaction.strategy,
        compaction.trigger,
        str(compaction.count),
        str(compaction.total),
        f"{compaction.tokens_before} -> {compaction.tokens_after}" if counted else _NOTHING,
        compaction.source,
    )


def _header(found: Detail) -> dict[str, Any]:
    return found.model_dump(mode="json", exclude={"content"})


def _sections(sections: dict[str, list[str]]) -> Iterator[str]:
    for title, content in sections.items():
        if content:
            yield from ("", title, "", *_indented(content))


def _indented(content: Sequence[str]) -> list[str]:
    return [f"  {line}".rstrip() for line in content]


def _bytes(content: str) -> int:
    return len(content.encode("utf-8", "replace"))


def _when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")
