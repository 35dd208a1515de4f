"""What can be measured, and what is promised of it (docs/performance.md)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nexus.bench.costs import costs as measured_costs
from nexus.bench.processes import memory as measured_memory
from nexus.bench.processes import start_up
from nexus.bench.pure import HOSTILE, PLAIN, assembly_cost, escape_cost
from nexus.bench.responders import Responder
from nexus.bench.results import Cell, Findings, Measure, Ratio
from nexus.bench.rounds import SLICES, play
from nexus.bench.servers import Servers
from nexus.bench.shapes import Shape
from nexus.bench.telling import Telling

COLD: Final = Responder("cold")
# Memory for all owners that are asked for.
WARM: Final = Responder("warm", tail_cache_mb=128)
FLOOR: Final = Responder("floor", "floor", reads="cold")
WIRE: Final = Responder("wire", "wire", reads="cold")
STREAMS: Final = Responder("streams", mode="streams")

# A smaller scale leaves so many rows and owners.
_READ: Final = 60
_FEWEST_OWNERS: Final = 10
_FEW: Final = 8
# Many owners, so that a history is hardly longer while the requests of a slice are recorded.
_USUAL: Final = Shape(1_000, owners=100)
_RECENT: Final = Shape(60, owners=1_000)
# As many owners on both sides: what is asked is part of their histories until it is taken back.
_SHORT: Final = Shape(1_000)
_LONG: Final = Shape(1_000_000)
_SMALL_ROWS: Final = Shape(100, owners=4)
_BIG_ROWS: Final = Shape(100, 100_000, owners=4)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        rounds: of each cell.
        scale: of requests and rows; 1 for figures that are to be believed.
        builds: after which memory is looked at.
    """

    rounds: int = 5
    scale: float = 1.0
    builds: int = 10_000

    def scaled(self, number: int, least: int) -> int:
        """So many at this scale."""
        return max(least, int(number * self.scale))

    def cell(self, cell: Cell) -> Cell:
        """The cell at this scale. A history is never shorter than what is read of it."""
        rows, owners = cell.shape.rows, cell.shape.owners
        shape = replace(
            cell.shape,
            rows=self.scaled(rows, min(rows, _READ)),
            owners=self.scaled(owners, min(owners, _FEWEST_OWNERS)),
        )
        return replace(cell, shape=shape, requests=self.scaled(cell.requests, 4 * cell.at_once))


@dataclass(frozen=True, slots=True)
class Bench:
    """Where it is measured, how much, and where what is found goes."""

    servers: Servers
    extent: Extent
    telling: Telling
    findings: Findings

    async def measure(self, cells: Sequence[Cell], ratios: Sequence[Ratio], slices: int = SLICES) -> None:
        """Play the cells, and make the measures of them."""
        of_scale = {cell: self.extent.cell(cell) for cell in cells}
        played = await play(self.servers, [*of_scale.values()], self.extent.rounds, self.telling, slices)
        self.findings.cells |= played
        for ratio in ratios:
            of_cells = replace(ratio, above=of_scale[ratio.above], below=of_scale[ratio.below])
            self.findings.measures.append(of_cells.measured(played))


async def build(bench: Bench) -> None:
    """A dialogue context, against the floor: one request at a time, and 32 at once."""
    one, cold, floor = Cell(WIRE, _USUAL, requests=200), Cell(COLD, _USUAL), Cell(FLOOR, _USUAL)
    warm = Cell(WARM, _USUAL)
    many_cold, many_floor = Cell(COLD, _USUAL, 32, 800), Cell(FLOOR, _USUAL, 32, 1_600)
    many_warm = Cell(WARM, _USUAL, 32, 800)
    ratios = [
        Ratio("build ÷ floor, p50, cold", cold, floor, at_most=1.25),
        Ratio("build ÷ floor, p99, cold", cold, floor, "p99", at_most=1.5),
        Ratio("floor's rate ÷ build's, 32 at once, cold", many_cold, many_floor, "rate", at_most=1.25),
        Ratio("build ÷ floor, p50, warm", warm, floor, at_most=0.7),
        Ratio("floor's rate ÷ build's, 32 at once, warm", many_warm, many_floor, "rate"),
        Ratio("floor ÷ wire, p50", floor, one),
        # Hardly depends on what else the machine does.
        Ratio("CPU of a build ÷ of the floor, 32 at once, cold", many_cold, many_floor, "cpu"),
        Ratio("CPU of a build ÷ of the floor, 32 at once, warm", many_warm, many_floor, "cpu"),
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


async def replicas(bench: Bench) -> None:
    """One, two and four replicas, asked by the same requesters."""
    shape = replace(_RECENT, owners=400)
    found = [Responder(f"replicas-{number}", replicas=number) for number in (1, 2, 4)]
    one, *more = (Cell(responder, shape, 64, 1_600) for responder in found)
    ratios = [
        Ratio(f"rate of 1 replica ÷ of {cell.responder.replicas}, 64 at once", cell, one, "rate") for cell in more
    ]
    await bench.measure([one, *more], ratios)


async def matrix(bench: Bench) -> None:
    """Layouts by histories, contents, requests at once and owners, as far as any machine would hold it."""
    floor, responder = replace(FLOOR, reads="matrix"), replace(COLD, name="matrix")
    shapes = [Shape(40), Shape(1_000), _LONG, Shape(40, owners=1_000), _BIG_ROWS]
    cells, ratios = [], []
    for shape in shapes:
        for at_once in (1, 8, 32, 128):
            cell = Cell(responder, shape, at_once, max(40, 2 * at_once))
            least = replace(cell, responder=floor)
            cells += [cell, least]
            ratios.append(Ratio(f"build ÷ floor, p50: {cell.name.partition(', ')[2]}", cell, least))
            # A context of a long session is a thousand messages: more at once are only a longer queue.
            if at_once <= _FEW or shape not in {_LONG, _BIG_ROWS}:
                cells.append(replace(cell, layout="agent"))
    await bench.measure(cells, ratios, slices=1)


async def assembly(bench: Bench) -> None:
    """The pure part alone."""
    rounds = range(bench.extent.rounds)
    sizes: list[tuple[int, bool, float | None]] = [
        (20, False, 150),
        (200, False, None),
        (2_000, False, None),
        (20, True, None),
    ]
    with bench.telling.part("assembling", len(rounds) * len(sizes)) as advance:
        for messages, counted, at_most in sizes:
            costs = []
            for number in rounds:
                costs.append(assembly_cost(messages, number, counted=counted))
                advance(1)
            name = f"assembly of {messages:,} messages" + (", tokens counted" if counted else "")
            bench.findings.measures.append(Measure(name, "µs", costs, at_most))
    for name, piece, at_most in (("plain", PLAIN, 3), ("hostile", HOSTILE, None)):
        costs = [escape_cost(piece, number) for number in rounds]
        bench.findings.measures.append(Measure(f"escape of {name} text, a KB", "µs", costs, at_most))


async def start(bench: Bench) -> None:
    """From the start of a process until it is ready."""
    seconds = await start_up(bench.servers, bench.extent.rounds, bench.telling)
    bench.findings.measures.append(Measure("start to ready", "s", seconds, 1.0))


async def memory(bench: Bench) -> None:
    """Memory of a replica after 1,000 builds, and after many more."""
    extent = bench.extent
    after = extent.scaled(1_000, 50), extent.scaled(extent.builds, 100)
    # So few that what is kept of each is there after the first builds: what grows then is something else.
    shape = replace(_RECENT, rows=40, owners=extent.scaled(200, 20))
    (early, late), cell, played = await measured_memory(bench.servers, shape, after, bench.telling)
    bench.findings.cells[cell] = [played]
    bench.findings.measures += [
        Measure(
            f"memory after {after[1]:,} builds ÷ after {after[0]:,}",
            "",
            [late / early],
            1.1,
            f"{late:,.1f} MiB ÷ {early:,.1f} MiB",
        ),
        Measure(f"memory after {after[1]:,} builds", "MiB", [late], 120),
    ]


async def costs(bench: Bench) -> None:
    """What a build takes of Nexus, Redis and MongoDB."""
    cells = [bench.extent.cell(Cell(responder, _RECENT, 8, 1_000)) for responder in (COLD, WARM)]
    measures, played = await measured_costs(bench.servers, cells, bench.extent.rounds, bench.telling)
    bench.findings.measures += measures
    bench.findings.cells |= played


GROUPS: Final[dict[str, Callable[[Bench], Awaitable[None]]]] = {
    "build": build,
    "history": history,
    "contents": contents,
    "streams": streams,
    "start": start,
    "assembly": assembly,
    "memory": memory,
    "replicas": replicas,
    "costs": costs,
    "matrix": matrix,
}
# What nothing is promised of takes too long to be measured unasked.
USUAL: Final = ("build", "history", "contents", "streams", "start", "assembly", "memory")
