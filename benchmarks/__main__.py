"""`make bench`: one table of ratios, medians of the rounds of one run, on real servers.

Needs NEXUS_TEST_REDIS_URL and NEXUS_TEST_MONGO_URI. Some ten minutes; `--quick` takes two, for a first look.
"""

import argparse
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from pymongo import MongoClient
from redis import Redis
from rich.console import Console
from rich.table import Table

from benchmarks.data import Owners, overview_call
from benchmarks.processes import Place, Requester, serving
from nexus.services.context.dialogue import DialogueInput, assemble_dialogue

Mongo = MongoClient[dict[str, Any]]

_USUAL: Final = Owners("usual", rows=100, number=100)
_INSERTED_AT_ONCE: Final = 5_000
_SLICES: Final = 4
_WARM_UP: Final = 100
_ASSEMBLED: Final = 20
_INDEX: Final = [("owner_key", 1), ("timestamp", -1), ("_id", -1)]
_OVERVIEWS_S: Final = 30.0

console = Console(width=110)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    rounds: int = 5
    one_at_a_time: int = 200
    at_once: int = 1_600
    long_rows: int = 1_000_000
    builds: int = 100_000


@dataclass(frozen=True, slots=True)
class Measure:
    """A line of the table: the median of the rounds' values, and how far they spread."""

    name: str
    at_most: float
    values: Sequence[float]
    unit: str = ""

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Bench:
    """Servers, the client that asks, and how much is asked."""

    redis_url: str
    mongo_uri: str
    run: str
    mongo: Mongo
    requester: Requester
    extent: Extent

    def place(self, name: str, owners: Sequence[Owners]) -> Place:
        """A database with these owners' rows, and the index by which their newest are found."""
        place = Place(self.redis_url, self.mongo_uri, f"{self.run}_{name}")
        messages = self.mongo[place.name]["messages"]
        messages.create_index(_INDEX)
        for each in owners:
            documents = each.documents()
            while batch := [*islice(documents, _INSERTED_AT_ONCE)]:
                messages.insert_many(batch, ordered=False)
        return place

    def ask(  # noqa: PLR0917  # what is asked, in one line
        self, place: Place, owners: Owners, layout: str, requests: int, at_once: int = 1, first: int = 0
    ) -> Any:
        """Ask the replica at the place, the owners in turn; see `benchmarks.requester`."""
        keys = [owners.key(number) for number in range(owners.number)]
        return self.requester.ask(place, keys, layout, requests=requests, at_once=at_once, first=first)

    def alternate(
        self, one: Callable[[int, int], Any], other: Callable[[int, int], Any], requests: int
    ) -> Iterator[Any]:
        """In each round let both answer in short slices, in turn. Yields a pair of lists of results a round."""
        size = requests // _SLICES
        for number in range(self.extent.rounds):
            results: tuple[list[Any], list[Any]] = ([], [])
            for slice_number in range(_SLICES):
                first = (number * _SLICES + slice_number) * size
                for side, ask in enumerate((one, other)):
                    results[side].append(ask(size, first))
            yield results


def main() -> None:
    """Measure, and print the table."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--quick", action="store_true", help="less of everything, for a first look")
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("measures", nargs="*", help=f"which of {', '.join(_MEASURES)}; all without")
    given = words.parse_args()
    unknown = {*given.measures} - {*_MEASURES}
    if unknown:
        words.error(f"no such measure: {', '.join(sorted(unknown))}; there are {', '.join(_MEASURES)}")
    extent = Extent(rounds=given.rounds)
    if given.quick:
        extent = replace(extent, one_at_a_time=100, at_once=400, long_rows=100_000, builds=10_000)
    measures: list[Measure] = []
    with _bench(extent) as bench:
        for name in given.measures or _MEASURES:
            with console.status(name):
                measures += _MEASURES[name](bench)
            console.print(f"{datetime.now(UTC):%H:%M:%S} {name}")
    console.print(_table(measures, extent))


@contextmanager
def _bench(extent: Extent) -> Iterator[Bench]:
    redis_url, mongo_uri = (os.environ.get(name, "") for name in ("NEXUS_TEST_REDIS_URL", "NEXUS_TEST_MONGO_URI"))
    if not (redis_url and mongo_uri):
        raise SystemExit("Benchmarks need a real Redis and MongoDB: set NEXUS_TEST_REDIS_URL and NEXUS_TEST_MONGO_URI.")
    run = f"nexus_bench_{uuid.uuid4().hex[:8]}"
    requester = Requester()
    with Mongo(mongo_uri) as mongo, Redis.from_url(redis_url) as redis:
        try:
            yield Bench(redis_url, mongo_uri, run, mongo, requester, extent)
        finally:
            requester.close()
            for name in mongo.list_database_names():
                if name.startswith(run):
                    mongo.drop_database(name)
            for key in redis.scan_iter(f"{run}*", count=1_000):
                redis.unlink(key)


def dialogue_and_floor(bench: Bench) -> list[Measure]:
    """Dialogue contexts against the floor, one at a time and 32 at once; the agent layout against the dialogue."""
    ours, floors = bench.place("build", [_USUAL]), bench.place("floor", [_USUAL])
    with serving(ours):
        size = bench.ask(ours, _USUAL, "dialogue", _WARM_UP)["bytes"]
        _keep_overviews(bench, ours)
        with serving(floors, "floor", {"FLOOR_ANSWER_BYTES": str(size)}):
            bench.ask(floors, _USUAL, "dialogue", _WARM_UP)
            p50s, rates, agents = [], [], []
            for build, floor in bench.alternate(
                lambda size, first: bench.ask(ours, _USUAL, "dialogue", size, first=first),
                lambda size, first: bench.ask(floors, _USUAL, "dialogue", size, first=first),
                bench.extent.one_at_a_time,
            ):
                p50s.append(_p50(build) / _p50(floor))
            for build, floor in bench.alternate(
                lambda size, first: bench.ask(ours, _USUAL, "dialogue", size, 32, first),
                lambda size, first: bench.ask(floors, _USUAL, "dialogue", size, 32, first),
                bench.extent.at_once,
            ):
                rates.append(_rate(floor) / _rate(build))
        bench.ask(ours, _USUAL, "agent", _WARM_UP)
        for agent, dialogue in bench.alternate(
            lambda size, first: bench.ask(ours, _USUAL, "agent", size, first=first),
            lambda size, first: bench.ask(ours, _USUAL, "dialogue", size, first=first),
            bench.extent.one_at_a_time,
        ):
            agents.append(_p50(agent) / _p50(dialogue))
    return [
        Measure("build ÷ floor, p50, one at a time, dialogue", 1.4, p50s),
        Measure("floor's rate ÷ build's, 32 at once", 1.6, rates),
        Measure("agent layout with working memory ÷ dialogue, p50", 2.0, agents),
    ]


def _keep_overviews(bench: Bench, place: Place) -> None:
    overviews = bench.mongo[place.name]["working_memory"]
    with Redis.from_url(bench.redis_url) as redis:
        for number in range(_USUAL.number):
            redis.publish(f"{place.prefix}tools.requests", overview_call(_USUAL.key(number)))
        ends = time.monotonic() + _OVERVIEWS_S
        while overviews.count_documents({}) < _USUAL.number:
            if time.monotonic() > ends:
                raise SystemExit("the overviews were not kept in time")
            time.sleep(0.1)


def long_history(bench: Bench) -> list[Measure]:
    """An owner with a million rows against one with a thousand."""
    long, short = Owners("long", bench.extent.long_rows, 1), Owners("short", 1_000, 1)
    place = bench.place("history", [long, short])
    with serving(place):
        for owners in (long, short):
            bench.ask(place, owners, "dialogue", _WARM_UP // 2)
        ratios = [
            _p50(of_long) / _p50(of_short)
            for of_long, of_short in bench.alternate(
                lambda size, first: bench.ask(place, long, "dialogue", size, first=first),
                lambda size, first: bench.ask(place, short, "dialogue", size, first=first),
                bench.extent.one_at_a_time,
            )
        ]
    return [Measure(f"{bench.extent.long_rows:,} rows an owner ÷ 1,000 rows, p50", 1.15, ratios)]


def assembly(bench: Bench) -> list[Measure]:
    """The pure part of a dialogue context of 20 messages."""
    rows = [*Owners("assembled", 50, 1).documents()]
    given = DialogueInput(tools=(), history=rows, user_profile={}, current_input="Hello", history_size=_ASSEMBLED)
    costs = []
    for _ in range(bench.extent.rounds):
        started = time.perf_counter()
        for _ in range(1_000):
            assemble_dialogue(given)
        costs.append((time.perf_counter() - started) * 1e3)
    return [Measure(f"assembly of {_ASSEMBLED} messages", 250, costs, "µs")]


def memory(bench: Bench) -> list[Measure]:
    """Resident memory of a replica after many builds."""
    place = bench.place("memory", [_USUAL])
    with serving(place) as replica:
        bench.ask(place, _USUAL, "dialogue", 1_000, 32)
        early = replica.resident_mib
        bench.ask(place, _USUAL, "dialogue", bench.extent.builds - 1_000, 32)
        late = replica.resident_mib
    builds = f"{bench.extent.builds:,}"
    return [
        Measure(f"memory after {builds} builds ÷ after 1,000", 1.1, [late / early]),
        Measure(f"memory after {builds} builds", 120, [late], "MiB"),
    ]


def start(bench: Bench) -> list[Measure]:
    """From the start of the process to its log line `ready`."""
    place = bench.place("start", [])
    seconds = []
    for _ in range(bench.extent.rounds):
        with serving(place) as replica:
            seconds.append(replica.start_s)
    return [Measure("start to `ready`", 1.0, seconds, "s")]


_MEASURES: Final[dict[str, Callable[[Bench], list[Measure]]]] = {
    "build": dialogue_and_floor,
    "history": long_history,
    "assembly": assembly,
    "memory": memory,
    "start": start,
}


def _p50(results: Sequence[Any]) -> float:
    times: list[float] = [ms for result in results for ms in result["ms"]]
    return statistics.median(times)


def _rate(results: Sequence[Any]) -> float:
    answers: int = sum(len(result["ms"]) for result in results)
    seconds: float = sum(result["seconds"] for result in results)
    return answers / seconds


def _table(measures: Sequence[Measure], extent: Extent) -> Table:
    table = Table(title=f"medians of {extent.rounds} rounds", title_justify="left")
    table.add_column("measure")
    for column in ("at most", "median", "rounds"):
        table.add_column(column, justify="right")
    for measure in measures:
        spread = f"{min(measure.values):.3g} to {max(measure.values):.3g}"
        shown = f"{measure.median:.3g} {measure.unit}".strip()
        style = None if measure.median <= measure.at_most else "bold red"
        table.add_row(measure.name, f"{measure.at_most:g}", shown, spread, style=style)
    return table


if __name__ == "__main__":
    main()
