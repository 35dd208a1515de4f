"""Plays cells in rounds, side by side: whatever else the machine does meets all of them alike.

A round is made of slices. In each slice every cell has its turn, and who is first changes from slice to slice. After a
slice of a responder that records, what it recorded is taken back, so that a history stays as long as its shape says.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio

from nexus.bench.load import Asker, Sample, asking
from nexus.bench.responders import Responder, Started, responding
from nexus.bench.results import Cell, Played
from nexus.bench.servers import Place, Servers
from nexus.bench.shapes import Request, request
from nexus.bench.telling import Telling

SLICES: Final = 4
_WARMING: Final = 40
# A process is at rest that takes less of a processor than a tenth; it is waited for so long.
_LOOK_EVERY_S: Final = 0.05
_IDLE_CPU_S: Final = 0.005
_AT_REST_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Desk:
    """A responder that runs, and who asks it."""

    responder: Responder
    place: Place
    processes: Sequence[Started]
    asker: Asker

    def requests(self, cell: Cell, first: int, many: int, answer_bytes: int) -> list[Request]:
        """So many requests of the cell's owners, from this one on."""
        owners = (cell.shape.owner(first + number) for number in range(many))
        return [request(owner, cell.layout, self.asker.reply_to, answer_bytes) for owner in owners]

    async def ask(self, requests: Sequence[Request], at_once: int) -> Played:
        """Send requests, wait for the answers, and take back what was recorded of them."""
        before = self.cpu_seconds
        sample = await self.asker.ask(requests, at_once)
        unrecorded = 0
        if self.responder.kind == "nexus":
            unrecorded = await self.place.forget(requests)
            await self.at_rest()
        # With what was done in the background: recording belongs to an answer.
        cpu_ms = (self.cpu_seconds - before) / max(1, len(requests)) * 1e3
        return Played(sample, cpu_ms, unrecorded)

    async def at_rest(self) -> None:
        """Wait until nothing is done in the background any more, so that whoever comes next is alone."""
        with anyio.move_on_after(_AT_REST_S):
            before = -_IDLE_CPU_S
            while (now := self.cpu_seconds) - before >= _IDLE_CPU_S:
                before = now
                await anyio.sleep(_LOOK_EVERY_S)

    @property
    def cpu_seconds(self) -> float:
        """Processor time that its processes have taken so far."""
        return sum(process.cpu_seconds for process in self.processes)


@asynccontextmanager
async def opened(servers: Servers, responders: Iterable[Responder]) -> AsyncIterator[dict[Responder, Desk]]:
    """All of these responders, each with somebody who asks it."""
    async with AsyncExitStack() as stack:
        desks = {}
        for responder in responders:
            place = Place(servers, responder.database)
            processes = await stack.enter_async_context(responding(responder, place))
            asker = await stack.enter_async_context(
                asking(servers.redis_url, responder.prefix(servers), responder.mode)
            )
            desks[responder] = Desk(responder, place, processes, asker)
        yield desks


async def filled(servers: Servers, cells: Iterable[Cell], telling: Telling) -> None:
    """Store what the cells ask for, in the databases of their responders."""
    shapes = {
        place: {cell.shape: None for cell in cells if cell.responder.database == place}
        for place in dict.fromkeys(cell.responder.database for cell in cells)
    }
    for name, wanted in shapes.items():
        rows = sum(shape.rows * shape.owners for shape in wanted)
        with telling.part(f"storing {rows:,} rows", rows) as advance:
            await Place(servers, name).fill(wanted, advance)


async def play(
    servers: Servers, cells: Sequence[Cell], rounds: int, telling: Telling, slices: int = SLICES
) -> dict[Cell, list[Played]]:
    """Play every cell in every round, in so many slices."""
    await filled(servers, cells, telling)
    responders = dict.fromkeys(cell.responder for cell in cells)
    found: dict[Cell, list[Played]] = {cell: [] for cell in cells}
    async with opened(servers, responders) as desks:
        sizes = await warmed(desks, cells)
        with telling.part("measuring", rounds * slices * len(cells)) as advance:
            for number in range(rounds):
                sliced: dict[Cell, list[Played]] = {cell: [] for cell in cells}
                for turn in range(number * slices, (number + 1) * slices):
                    for cell in _from(cells, turn):
                        many = max(1, cell.requests // slices)
                        telling.say(cell.name)
                        asked = desks[cell.responder].requests(cell, turn * many, many, sizes[cell])
                        sliced[cell].append(await desks[cell.responder].ask(asked, cell.at_once))
                        advance(1)
                for cell, played in sliced.items():
                    found[cell].append(_together(played))
    return found


async def warmed(desks: dict[Responder, Desk], cells: Sequence[Cell]) -> dict[Cell, int]:
    """Ask each once for all, before it counts. Returns how long Nexus's answers to each cell's requests are."""
    sizes: dict[tuple[object, str], int] = {}
    asked = set()
    # Nexus first: the floor has to know how long its answers are.
    for cell in sorted(cells, key=lambda cell: cell.responder.kind != "nexus"):
        desk = desks[cell.responder]
        key = cell.shape, cell.layout
        if (desk.responder, key) in asked:
            continue
        asked.add((desk.responder, key))
        # What is kept in memory of an owner is there after two requests: before the first the owner has no version.
        many = max(_WARMING, cell.at_once, 2 * cell.shape.owners if desk.responder.tail_cache_mb else 0)
        requests = desk.requests(cell, 0, many, sizes.get(key, 0))
        played = await desk.ask(requests, cell.at_once)
        if cell.responder.kind == "nexus":
            sizes[key] = played.sample.answer_bytes
    return {cell: sizes.get((cell.shape, cell.layout), 0) for cell in cells}


def _from(cells: Sequence[Cell], number: int) -> list[Cell]:
    """The cells in their order, beginning with another each time."""
    first = number % len(cells)
    return [*cells[first:], *cells[:first]]


def _together(played: Sequence[Played]) -> Played:
    """The slices of one round as one."""
    sample = Sample()
    for one in played:
        sample.add(one.sample)
    weights = [len(one.sample.latencies) for one in played]
    cpu_ms = sum(one.cpu_ms * weight for one, weight in zip(played, weights, strict=True)) / max(1, sum(weights))
    return Played(sample, cpu_ms, sum(one.unrecorded for one in played))
