"""Plays cells in rounds, side by side: whatever else the machine does meets all of them alike.

A round is made of slices. In each slice every cell has its turn, and who is first changes from slice to slice. After a
slice of a responder that records, what it recorded is taken back, so that a history stays as long as its shape says.
Who keeps what it read in memory would still have that in it: before each of its slices it reads anew what is stored.
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
from nexus.tuning import CLAIMS_FIRST_MS

SLICES: Final = 4
_WARMING: Final = 40
_RENEWED_AT_ONCE: Final = 32
# A process is at rest that takes less of a processor than a tenth in each of so many looks: what may wait until it is
# done together with others waits 0.25 s at most, and may bring on more that waits. It is waited for so long.
_LOOK_EVERY_S: Final = 0.05
_IDLE_CPU_S: Final = 0.005
_IDLE_LOOKS: Final = 8
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
            unrecorded = await self.settled(requests)
        # With what was done in the background: recording belongs to an answer.
        cpu_ms = (self.cpu_seconds - before) / max(1, len(requests)) * 1e3
        if self.responder.kind == "nexus":
            await self.place.forget(requests)
        return Played(sample, cpu_ms, unrecorded)

    async def settled(self, requests: Sequence[Request]) -> int:
        """Wait until what these requests bring about is done. Returns how much was not recorded in time."""
        unrecorded = await self.place.recorded(requests)
        await self.at_rest()
        return unrecorded

    async def at_rest(self) -> None:
        """Wait until nothing is done in the background any more, so that whoever comes next is alone."""
        with anyio.move_on_after(_AT_REST_S):
            before, idle = self.cpu_seconds, 0
            while idle < _IDLE_LOOKS:
                await anyio.sleep(_LOOK_EVERY_S)
                now = self.cpu_seconds
                idle = idle + 1 if now - before < _IDLE_CPU_S else 0
                before = now

    async def renew(self, requests: Sequence[Request], cell: Cell) -> None:
        """Have what is in memory of these owners be what is stored, but for two inputs. Nothing of it counts.

        Args:
            requests: whose owners.
            cell: what they ask for.
        """
        if not self.responder.keeps_tails:
            return
        owners = [*dict.fromkeys(request.owner for request in requests)]
        await self.place.forget_versions(self.responder.prefix(self.place.servers), owners)
        asked: list[Request] = []
        # What is kept of an owner may have been let go: then it is there after two requests, since before the first the
        # owner has no version.
        for _ in range(2):
            again = [request(owner, cell.layout, self.asker.reply_to, 0) for owner in owners]
            await self.asker.ask(again, _RENEWED_AT_ONCE)
            asked += again
        await self.settled(asked)
        await self.place.forget(asked)

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
        if any(responder.kind == "nexus" for responder in responders):
            with telling.part("waiting until replicas do as they do when they have been up for a while", 1):
                await anyio.sleep(CLAIMS_FIRST_MS / 1_000)
        with telling.part("measuring", rounds * slices * len(cells)) as advance:
            for number in range(rounds):
                sliced: dict[Cell, list[Played]] = {cell: [] for cell in cells}
                for turn in range(number * slices, (number + 1) * slices):
                    for cell in _from(cells, turn):
                        many = max(1, cell.requests // slices)
                        telling.say(cell.name)
                        desk = desks[cell.responder]
                        asked = desk.requests(cell, turn * many, many, sizes[cell])
                        await desk.renew(asked, cell)
                        sliced[cell].append(await desk.ask(asked, cell.at_once))
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
        requests = desk.requests(cell, 0, max(_WARMING, cell.at_once), sizes.get(key, 0))
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
