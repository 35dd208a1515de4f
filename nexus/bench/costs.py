"""What a build takes of every part, for a model of capacity (docs/scale.md): processor time, bytes and rows.

The servers' own counters are read before and after, so whatever else they do meanwhile is counted along: for figures
that are to be believed nobody else uses them. The load is a requester that answers come to once, recording included.
"""

from collections.abc import Sequence
from typing import Any, Final

import anyio

from nexus.adapters.redis_client import open_redis
from nexus.bench.results import Cell, Measure, Played
from nexus.bench.rounds import filled, opened, warmed
from nexus.bench.servers import Servers
from nexus.bench.telling import Telling

_SETTLING_S: Final = 0.5
_KB: Final = 1_024
_Counters = dict[str, float]


async def costs(
    servers: Servers, cells: Sequence[Cell], rounds: int, telling: Telling
) -> tuple[list[Measure], dict[Cell, list[Played]]]:
    """The costs of a build in each of the cells, and the cells as they were played. What was recorded is taken back."""
    await filled(servers, cells, telling)
    found: dict[Cell, list[_Counters]] = {cell: [] for cell in cells}
    played: dict[Cell, list[Played]] = {cell: [] for cell in cells}
    async with opened(servers, dict.fromkeys(cell.responder for cell in cells)) as desks:
        await warmed(desks, cells)
        with telling.part("counting", rounds * len(cells)) as advance:
            for number in range(rounds):
                for cell in cells:
                    desk = desks[cell.responder]
                    requests = desk.requests(cell, number * cell.requests, cell.requests, 0)
                    await desk.renew(requests, cell)
                    before = await _counters(servers, desk.cpu_seconds)
                    sample = await desk.asker.ask(requests, cell.at_once)
                    # Recording and what belongs to turns is counted too; the servers finish a little later.
                    await desk.at_rest()
                    await anyio.sleep(_SETTLING_S)
                    after = await _counters(servers, desk.cpu_seconds)
                    # To look whether all is there costs MongoDB more than to record it.
                    unrecorded = await desk.settled(requests)
                    found[cell].append({name: (after[name] - before[name]) / len(requests) for name in after})
                    played[cell].append(Played(sample, found[cell][-1]["CPU of Nexus, ms"], unrecorded))
                    await desk.place.forget(requests)
                    advance(1)
    names = next(iter(found.values()))[0]
    measures = [
        Measure(f"{name.partition(', ')[0]}, a build, {cell.responder.name}", name.partition(", ")[2], values)
        for cell, counted in found.items()
        for name in names
        for values in [[one[name] for one in counted]]
    ]
    return measures, played


async def _counters(servers: Servers, cpu_seconds: float) -> _Counters:
    """What has been counted so far, in the units of the measures."""
    async with open_redis(servers.redis_url) as redis:
        told: dict[str, Any] = await redis.info()
    status = await servers.mongo.admin.command("serverStatus")
    mongod = status["extra_info"]
    return {
        "CPU of Nexus, ms": cpu_seconds * 1e3,
        "CPU of Redis, ms": (told["used_cpu_user"] + told["used_cpu_sys"]) * 1e3,
        "CPU of MongoDB, ms": (mongod.get("user_time_us", 0) + mongod.get("system_time_us", 0)) / 1e3,
        "bytes into Redis, KB": told["total_net_input_bytes"] / _KB,
        "bytes out of Redis, KB": told["total_net_output_bytes"] / _KB,
        "memory of Redis, KB": told["used_memory"] / _KB,
        "bytes out of MongoDB, KB": status["network"]["bytesOut"] / _KB,
        "documents inserted, ": float(status["metrics"]["document"]["inserted"]),
        "documents updated, ": float(status["metrics"]["document"]["updated"]),
        "documents read, ": float(status["metrics"]["document"]["returned"]),
    }
