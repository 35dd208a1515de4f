"""What was measured: cells, each played once a round, and measures made of them. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from nexus.bench.load import Sample
from nexus.bench.responders import Responder
from nexus.bench.shapes import Shape

Figure = Literal["p50", "p99", "rate", "cpu"]

_MS: Final = 1e3


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of load on one responder.

    Attributes:
        responder: who is asked.
        shape: the owners whose contexts are asked for, in turns.
        at_once: how many requests wait at any time.
        requests: in one round.
        layout: of the contexts.
    """

    responder: Responder
    shape: Shape
    at_once: int = 1
    requests: int = 400
    layout: str = "dialogue"

    @property
    def name(self) -> str:
        """What it is called in tables and in JSON."""
        shape = self.shape
        what = f"{self.layout}, {shape.owners:,} x {shape.rows:,} rows of {shape.chars:,}"
        return f"{self.responder.name}, {what}, {self.at_once} at once"


@dataclass(frozen=True, slots=True)
class Played:
    """A cell in one round.

    Attributes:
        sample: what asking came to.
        cpu_ms: processor time of the responder for an answer.
        unrecorded: inputs and turns that were not recorded within 10 s.
    """

    sample: Sample
    cpu_ms: float = 0.0
    unrecorded: int = 0

    def figure(self, figure: Figure) -> float:
        """In milliseconds, or answers a second."""
        if figure == "rate":
            return self.sample.rate
        if figure == "cpu":
            return self.cpu_ms
        return self.sample.quantile(int(figure[1:]) / 100) * _MS

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        sample = self.sample
        return {
            "p50_ms": round(self.figure("p50"), 4),
            "p99_ms": round(self.figure("p99"), 4),
            "rate": round(sample.rate, 1),
            "cpu_ms": round(self.cpu_ms, 4),
            "answers": len(sample.latencies),
            "answer_bytes": sample.answer_bytes,
            "errors": sample.errors,
            "degraded": sample.degraded,
            "unrecorded": self.unrecorded,
        }


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure with its values in all rounds, and what is promised of it.

    Attributes:
        name: what it is.
        unit: of its values; `""` for a ratio.
        values: one of each round.
        at_most: what its median must not exceed; None where nothing is promised.
        made_of: what a ratio's two figures were, for people.
    """

    name: str
    unit: str
    values: Sequence[float]
    at_most: float | None = None
    made_of: str = ""

    @property
    def value(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def is_over(self) -> bool:
        """Whether it exceeds what is promised, or could not be taken."""
        return self.at_most is not None and not self.value <= self.at_most

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "unit": self.unit,
            "value": self.value,
            "at_most": self.at_most,
            "over": self.is_over,
            "values": [*self.values],
            "made_of": self.made_of,
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """A measure to be made of two cells, round by round."""

    name: str
    above: Cell
    below: Cell
    figure: Figure = "p50"
    at_most: float | None = None

    def measured(self, played: Mapping[Cell, Sequence[Played]]) -> Measure:
        """The measure. Where a rate is compared, the figure of `below` goes above: faster is less, as with times."""
        above = [one.figure(self.figure) for one in played[self.above]]
        below = [one.figure(self.figure) for one in played[self.below]]
        unit = "/s" if self.figure == "rate" else " ms"
        if self.figure == "rate":
            above, below = below, above
        made_of = f"{statistics.median(above):,.2f}{unit} ÷ {statistics.median(below):,.2f}{unit}"
        values = [one / other for one, other in zip(above, below, strict=True)]
        return Measure(self.name, "", values, self.at_most, made_of)


@dataclass(slots=True)
class Findings:
    """All that was measured."""

    cells: dict[Cell, list[Played]] = field(default_factory=dict)
    measures: list[Measure] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether any measure exceeds what is promised."""
        return any(measure.is_over for measure in self.measures)

    @property
    def faults(self) -> list[str]:
        """What must not be in a measurement, a line for each cell."""
        return [f"{cell.name}: {told}" for cell, played in self.cells.items() if (told := _faults(played))]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        cells = [
            {
                "name": cell.name,
                "responder": cell.responder.name,
                "mode": cell.responder.mode,
                "replicas": cell.responder.replicas,
                "tail_cache_mb": cell.responder.tail_cache_mb,
                "layout": cell.layout,
                "owners": cell.shape.owners,
                "rows": cell.shape.rows,
                "chars": cell.shape.chars,
                "at_once": cell.at_once,
                "rounds": [one.as_json() for one in played],
            }
            for cell, played in self.cells.items()
        ]
        return {"measures": [measure.as_json() for measure in self.measures], "cells": cells}


def _faults(played: Sequence[Played]) -> str:
    counts = {
        "errors": sum(one.sample.errors for one in played),
        "degraded": sum(one.sample.degraded for one in played),
        "inputs or turns not recorded": sum(one.unrecorded for one in played),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)
