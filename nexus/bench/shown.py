"""Findings as people read them."""

import statistics
from collections.abc import Iterator
from typing import Any, Final

from rich.table import Table

from nexus.bench.results import Findings, Measure, Played

# Decimals say nothing from here on.
_LARGE: Final = 100
_FIGURES: Final = ("p50 ms", "p99 ms", "answers/s", "CPU ms", "KB")


def measures(findings: Findings) -> Table:
    """Each measure with its median, its lowest and highest round, and what is promised."""
    table = Table(title="medians of the rounds", title_justify="left")
    table.add_column("measure")
    for column in ("value", "rounds", "at most", "", "made of"):
        table.add_column(column, justify="left" if column in {"", "made of"} else "right")
    for measure in findings.measures:
        table.add_row(*_row(measure))
    return table


def cells(findings: Findings) -> Table:
    """Each kind of load, median by median. CPU is the responder's own, for an answer."""
    table = Table(title="what was played", title_justify="left")
    table.add_column("responder, layout, owners x rows of characters, requests at once")
    for column in _FIGURES:
        table.add_column(column, justify="right")
    for cell, played in findings.cells.items():
        table.add_row(cell.name, *_figures(played))
    return table


def about(machine: dict[str, Any]) -> str:
    """The machine in a line."""
    names = ("cores", "system", "python", "loop", "redis", "mongodb", "driver")
    return ", ".join(f"{name} {machine[name]}" for name in names)


def _row(measure: Measure) -> Iterator[str]:
    yield measure.name
    yield f"{_number(measure.value)} {measure.unit}".strip()
    yield f"{_number(min(measure.values))} to {_number(max(measure.values))}"
    yield "" if measure.at_most is None else f"{_number(measure.at_most)} {measure.unit}".strip()
    yield "" if measure.at_most is None else "[red]over[/]" if measure.is_over else "ok"
    yield measure.made_of


def _figures(played: list[Played]) -> Iterator[str]:
    for figure in ("p50", "p99"):
        yield f"{statistics.median(one.figure(figure) for one in played):,.2f}"
    yield f"{statistics.median(one.figure('rate') for one in played):,.0f}"
    yield f"{statistics.median(one.cpu_ms for one in played):,.2f}"
    yield f"{played[-1].sample.answer_bytes / 1_024:,.1f}"


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < _LARGE else f"{value:,.0f}"
