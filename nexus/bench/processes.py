"""What a replica costs besides answers: how long it takes to start, and what memory it has after so many builds."""

from collections.abc import Sequence
from typing import Final

import anyio

from nexus.bench.load import Sample
from nexus.bench.responders import Responder, responding
from nexus.bench.results import Cell, Played
from nexus.bench.rounds import opened
from nexus.bench.servers import Place, Servers
from nexus.bench.shapes import Shape
from nexus.bench.telling import Telling

_MIB: Final = 2**20
_ASKED_AT_ONCE: Final = 500
_SETTLING_S: Final = 1.0
AT_ONCE: Final = 32


async def start_up(servers: Servers, rounds: int, telling: Telling) -> list[float]:
    """Seconds from the start of the process until it is ready, on a database whose indexes there are."""
    responder = Responder("start", tail_cache_mb=None)
    place = Place(servers, responder.database)
    await place.fill([Shape(60)], lambda _: None)
    found = []
    with telling.part("starting", rounds) as advance:
        for _ in range(rounds):
            async with responding(responder, place) as processes:
                found.append(processes[0].seconds)
            advance(1)
    return found


async def memory(
    servers: Servers, shape: Shape, after: Sequence[int], telling: Telling
) -> tuple[list[float], Cell, Played]:
    """MiB of a replica after so many builds, ascending, and the load that made them. What was recorded stays."""
    responder = Responder("memory", tail_cache_mb=None)
    cell = Cell(responder, shape, AT_ONCE, after[-1])
    with telling.part(f"storing {shape.rows * shape.owners:,} rows", shape.rows * shape.owners) as advance:
        await Place(servers, responder.database).fill([shape], advance)
    found, sample, done = [], Sample(), 0
    async with opened(servers, [responder]) as desks:
        desk = desks[responder]
        with telling.part("building", after[-1]) as advance:
            for builds in after:
                while done < builds:
                    many = min(_ASKED_AT_ONCE, builds - done)
                    sample.add(await desk.asker.ask(desk.requests(cell, done, many, 0), AT_ONCE))
                    done += many
                    advance(many)
                await anyio.sleep(_SETTLING_S)
                found.append(desk.processes[0].memory / _MIB)
    return found, cell, Played(sample)
