"""What can be measured, and what is promised of it (docs/performance.md)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nexus.bench.responders import Responder
from nexus.bench.results import Cell, Findings, Ratio
from nexus.bench.rounds import play
from nexus.bench.servers import Servers
from nexus.bench.shapes import Shape
from nexus.bench.telling import Telling

COLD: Final = Responder("cold")
WARM: Final = Responder("warm", cached=True)
FLOOR: Final = Responder("floor", "floor", reads="cold")
WIRE: Final = Responder("wire", "wire", reads="cold")
STREAMS: Final = Responder("streams", mode="streams")

# Many owners, so that a history is hardly longer while the requests of a slice are recorded.
_USUAL: Final = Shape(1_000, owners=100)
_RECENT: Final = Shape(60, owners=500)
_SHORT: Final = Shape(1_000, owners=4)
_LONG: Final = Shape(1_000_000)
_SMALL_ROWS: Final = Shape(100, owners=4)
_BIG_ROWS: Final = Shape(100, 100_000, owners=4)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        rounds: of each cell.
        scale: of requests and rows; 1 for figures that are to be believed.
        full: everything, not only what something is promised of.
    """

    rounds: int = 5
    scale: float = 1.0
    full: bool = False

    def scaled(self, number: int, least: int) -> int:
        """So many at this scale."""
        return max(least, int(number * self.scale))

    def cell(self, cell: Cell) -> Cell:
        """The cell at this scale. A history is never shorter than what is read of it."""
        shape = replace(cell.shape, rows=self.scaled(cell.shape.rows, min(cell.shape.rows, 60)))
        return replace(cell, shape=shape, requests=self.scaled(cell.requests, 4 * cell.at_once))


@dataclass(frozen=True, slots=True)
class Bench:
    """Where it is measured, how much, and where what is found goes."""

    servers: Servers
    extent: Extent
    telling: Telling
    findings: Findings

    async def measure(self, cells: Sequence[Cell], ratios: Sequence[Ratio]) -> None:
        """Play the cells, and make the measures of them."""
        of_scale = {cell: self.extent.cell(cell) for cell in cells}
        played = await play(self.servers, [*of_scale.values()], self.extent.rounds, self.telling)
        self.findings.cells |= played
        for ratio in ratios:
            of_cells = replace(ratio, above=of_scale[ratio.above], below=of_scale[ratio.below])
            self.findings.measures.append(of_cells.measured(played))


async def build(bench: Bench) -> None:
    """A dialogue context, against the floor: one request at a time, and 32 at once."""
    one, cold, floor = Cell(WIRE, _USUAL, requests=200), Cell(COLD, _USUAL), Cell(FLOOR, _USUAL)
    warm = Cell(WARM, _RECENT)
    many_cold, many_floor = Cell(COLD, _USUAL, 32, 800), Cell(FLOOR, _USUAL, 32, 1_600)
    many_warm = Cell(WARM, _RECENT, 32, 800)
    ratios = [
        Ratio("build ÷ floor, p50, cold", cold, floor, at_most=1.25),
        Ratio("build ÷ floor, p99, cold", cold, floor, "p99", at_most=1.5),
        Ratio("floor's rate ÷ build's, 32 at once, cold", many_cold, many_floor, "rate", at_most=1.25),
        Ratio("build ÷ floor, p50, warm", warm, floor, at_most=0.7),
        Ratio("floor's rate ÷ build's, 32 at once, warm", many_warm, many_floor, "rate"),
        Ratio("floor ÷ wire, p50", floor, one),
    ]
    await bench.measure([one, floor, cold, warm, many_floor, many_cold, many_warm], ratios)


async def history(bench: Bench) -> None:
    """A dialogue context of an owner with a million rows, against one with a thousand."""
    responder = replace(COLD, name="history")
    short, long = Cell(responder, _SHORT, requests=80), Cell(responder, _LONG, requests=80)
    ratio = Ratio("1,000,000 rows ÷ 1,000 rows, p50, cold", long, short, at_most=1.15)
    await bench.measure([short, long], [ratio])


async def contents(bench: Bench) -> None:
    """A dialogue context of long contents, against one of short ones."""
    responder = replace(COLD, name="contents")
    small, big = Cell(responder, _SMALL_ROWS, requests=80), Cell(responder, _BIG_ROWS, requests=80)
    ratio = Ratio("contents of 100 KB ÷ of 300 bytes, p50, cold", big, small, at_most=1.5)
    await bench.measure([small, big], [ratio])


async def streams(bench: Bench) -> None:
    """Redis Streams against pub/sub."""
    shape = replace(_RECENT, owners=100)
    pubsub, stream = Cell(replace(COLD, name="pubsub"), shape), Cell(STREAMS, shape)
    ratio = Ratio("streams ÷ pub/sub, p50, cold", stream, pubsub, at_most=1.5)
    await bench.measure([pubsub, stream], [ratio])


GROUPS: Final[dict[str, Callable[[Bench], Awaitable[None]]]] = {
    "build": build,
    "history": history,
    "contents": contents,
    "streams": streams,
}
