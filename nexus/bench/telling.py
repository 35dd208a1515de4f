"""What is told on standard error while it is measured: a bar for each part, drawn only between what is measured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Telling:
    """Progress on a terminal; where there is none, a line a part. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[doing]}"),
        )
        # Drawn when something is told, by nobody else: a thread that draws would be measured too.
        self._bars = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self._part = self._bars.add_task("", total=None, doing="", visible=False)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    @contextmanager
    def part(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Begin a part of the work; what is given is called with how much more of it is done."""
        if not self._console.is_terminal:
            self._console.print(f"{what} ...", highlight=False)
        self._bars.reset(self._part, description=what, total=total, doing="", visible=True)

        def advance(done: int) -> None:
            self._bars.advance(self._part, done)
            self._draw()

        yield advance

    def say(self, doing: str) -> None:
        """Say what comes next."""
        self._bars.update(self._part, doing=doing)
        self._draw()

    def _draw(self) -> None:
        if self._console.is_terminal:
            self._bars.refresh()
