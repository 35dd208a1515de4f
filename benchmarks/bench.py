"""What the benches share: servers, replicas that are asked in turn, and a table of medians."""

import os
import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from pymongo import MongoClient
from redis import Redis
from rich.console import Console
from rich.table import Table

from benchmarks.data import Owners
from benchmarks.processes import Place, Requester

Mongo = MongoClient[dict[str, Any]]

_INSERTED_AT_ONCE: Final = 5_000
_SLICES: Final = 4
_WHOLE: Final = 100
_INDEX: Final = [("owner_key", 1), ("timestamp", -1), ("_id", -1)]

console = Console(width=110)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    rounds: int = 5
    one_at_a_time: int = 200
    at_once: int = 1_600
    long_rows: int = 1_000_000
    builds: int = 100_000
    most_messages: int = 100_000
    turns: int = 300


@dataclass(frozen=True, slots=True)
class Measure:
    """A line of the table: the median of the rounds' values, and how far they spread."""

    name: str
    at_most: float | None
    values: Sequence[float]
    unit: str = ""
    at_least: float | None = None

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.values)

    @property
    def is_kept(self) -> bool:
        """Whether the median is within the bounds."""
        low, high = self.at_least, self.at_most
        return (low is None or self.median >= low) and (high is None or self.median <= high)

    @property
    def bounds(self) -> str:
        """As shown."""
        of_both = (("≥", self.at_least), ("≤", self.at_most))
        return " ".join(f"{sign} {_number(bound)}" for sign, bound in of_both if bound is not None)


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
        self, place: Place, owners: Owners, layout: str, requests: int, at_once: int = 1, first: int = 0, **also: Any
    ) -> Any:
        """Ask the replica at the place, the owners in turn; see `benchmarks.requester`."""
        keys = [owners.key(number) for number in range(owners.number)]
        return self.requester.ask(place, keys, layout=layout, requests=requests, at_once=at_once, first=first, **also)

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


@contextmanager
def open_bench(extent: Extent) -> Iterator[Bench]:
    """The servers that the environment names; what was made there is removed at the end."""
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


def p50(results: Sequence[Any]) -> float:
    """The median of the milliseconds in these results of `benchmarks.requester`."""
    times: list[float] = [ms for result in results for ms in result["ms"]]
    return statistics.median(times)


def p90(results: Sequence[Any]) -> float:
    """The time within which nine of ten are answered."""
    times: list[float] = [ms for result in results for ms in result["ms"]]
    return statistics.quantiles(times, n=10)[-1]


def run(extent: Extent, chosen: Mapping[str, Callable[[Bench], list[Measure]]]) -> None:
    """Measure what is chosen, and print the table."""
    measures: list[Measure] = []
    with open_bench(extent) as bench:
        for name, measure in chosen.items():
            with console.status(name):
                measures += measure(bench)
            console.print(f"{datetime.now(UTC):%H:%M:%S} {name}")
    console.print(_table(measures, extent))


def _table(measures: Sequence[Measure], extent: Extent) -> Table:
    table = Table(title=f"medians of {extent.rounds} rounds", title_justify="left")
    table.add_column("measure")
    for column in ("bar", "median", "rounds"):
        table.add_column(column, justify="right")
    for measure in measures:
        spread = f"{_number(min(measure.values))} to {_number(max(measure.values))}"
        shown = f"{_number(measure.median)} {measure.unit}".strip()
        table.add_row(measure.name, measure.bounds, shown, spread, style=None if measure.is_kept else "bold red")
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= _WHOLE else f"{value:.3g}"
