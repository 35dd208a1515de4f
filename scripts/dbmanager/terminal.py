"""Tables, questions and progress for people; one JSON value on stdout for programs.

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
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from .server import NobodyToAskError, Refusal

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024
_CELL = 200
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


def iso(moment: datetime) -> str:
    """A moment in UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def documents(count: int) -> str:
    """So many documents."""
    return f"{human_count(count)} document{'' if count == 1 else 's'}"


def minute(moment: datetime | None) -> str:
    """A moment in UTC for people."""
    return "-" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def table(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Group:
    """A table that stays readable in 80 columns. A header that starts with `>` is the head of a column of numbers."""
    made = Table(box=SIMPLE_HEAD, show_header=any(headers), pad_edge=False)
    for header in headers:
        right = header.startswith(">")
        made.add_column(header.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        made.add_row(*(Text(plain(cell)) for cell in row))
    return Group(Text(plain(title), style="bold"), made)


class Terminal:
    """Where results, questions and progress go."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._out = Console(highlight=False, emoji=False, markup=False)
        self._err = Console(stderr=True, highlight=False, emoji=False, markup=False)

    def show(self, report: Any, *parts: RenderableType) -> None:
        """The result: `report` (a dataclass) as JSON, or `parts` for people."""
        if self.as_json:
            print(json.dumps(report, default=_jsonable, ensure_ascii=False, indent=2))
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
