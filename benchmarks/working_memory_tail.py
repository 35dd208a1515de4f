"""What a context costs of a long session and of a short one with the same tail, asked for in turns."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from time import perf_counter
from typing import Any, Final

from bson import ObjectId

from benchmarks.agent_session import session
from benchmarks.working_memory_play import Place
from tests.nexus.e2e.long_player import Heard, Player, on_bus
from tests.nexus.support.long_session import Call, Run, Step

ROUNDS: Final = 60
TAIL: Final = 50
_LAST_RUNS: Final = 15
_ENDS: Final = 1_000_000
_ENDS_LATER: Final = timedelta(days=60)
_BATCH: Final = 5_000
_NOTHING: Final = (Step("Nothing."),)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a session of so many messages: the seconds of its compaction, and the median of those of a context."""

    messages: int
    compacting: float
    median: float


async def beside(place: Place, lengths: Sequence[int]) -> list[Cost]:
    """The costs of sessions of these lengths, which end with the same messages."""
    async with on_bus(place.redis_url, place.prefix, "pubsub") as ends:
        times: dict[int, list[float]] = {length: [] for length in lengths}
        players: dict[int, Player] = {}
        compacting: dict[int, float] = {}
        for length in lengths:
            name = f"of {length}"
            _insert(place, name, length)
            players[length] = Player(*ends, session=name, watch=_noting(times[length]))
            compacting[length] = await _compact(players[length], name)
        for number in range(ROUNDS):
            # In turns, and each as often first: the machine is busy for both alike.
            for length in lengths if number % 2 else lengths[::-1]:
                run = Run(number, f"And now, of {length}?", _NOTHING)
                await players[length].begin(run)
    return [Cost(length, compacting[length], statistics.median(times[length])) for length in lengths]


def _noting(times: list[float]) -> Callable[[Heard], None]:
    return lambda heard: times.append(heard.seconds)


async def _compact(player: Player, name: str) -> float:
    """Have all but the tail compacted; returns how long it took."""
    arguments = {"target": "all", "strategy": "summarize", "keep_recent": TAIL}
    started = perf_counter()
    result = await player.call(Run(_ENDS, name, _NOTHING), Call(f"compact {name}", "compact_history", arguments))
    if result["content"]["status"] != "success":
        raise SystemExit(f"not compacted: {result['content']['result']}")
    return perf_counter() - started


def _insert(place: Place, name: str, length: int) -> None:
    batch: list[dict[str, Any]] = []
    for row in _rows(name, length):
        batch.append(row)
        if len(batch) == _BATCH:
            place.database["messages"].insert_many(batch)
            batch = []
    place.database["messages"].insert_many(batch)


def _rows(name: str, length: int) -> Iterator[dict[str, Any]]:
    """So many rows, or a few more to make a run whole, stored when they were said. The last are always the same."""
    ending = [row for run in session(_LAST_RUNS, first=_ENDS) for row in run.rows()]
    numbers = count()

    def stored(row: dict[str, Any], later: timedelta = timedelta()) -> dict[str, Any]:
        at = row["timestamp"] + later
        row_id = ObjectId(f"{int(at.timestamp()):08x}{length:08x}{next(numbers):08x}")
        own = {"id": f"{name} {row['id']}", "run_id": f"{name} {row['run_id']}", "timestamp": at}
        return {**row, **own, "_id": row_id, "owner_key": "ada", "session_id": name}

    written = 0
    for run in session(length):
        if written + len(ending) >= length:
            break
        rows = [stored(row) for row in run.rows()]
        written += len(rows)
        yield from rows
    for row in ending:
        yield stored(row, _ENDS_LATER)
