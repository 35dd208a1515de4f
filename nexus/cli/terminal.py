"""What commands print, and what they ask a person.

- Much of what is printed was written by users and models: only printable characters of it reach a terminal.
- No answer to a question is a no, also where there is no terminal to ask on.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeAlias

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress
from rich.text import Text

from nexus.core.errors import (
    NexusError,
)
from nexus.services.records.explain import Explained, ShownBlock
from nexus.services.text.escape import PINNED_TAGS

# By its heading, the attribute that a column of a table shows, or a function of the item.
Columns: TypeAlias = Mapping[str, str | Callable[[Any], object]]

# Of a message of a context.
_SHOWN_LINES: Final = 40
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


def confirm(question: str, *, yes: bool, otherwise: str = "--yes does it without asking") -> None:
    """Ask, unless --`yes` is given; a NexusError, with `otherwise`, where the answer is no or there is none."""
    if yes:
        return
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
