"""`make bench`: one table of ratios, medians of the rounds of one run, on real servers.

Needs NEXUS_TEST_REDIS_URL and NEXUS_TEST_MONGO_URI. Some ten minutes; `--quick` takes two, for a first look.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from redis import Redis

from benchmarks.bench import Bench, Extent, Measure, p50, run
from benchmarks.data import Owners, overview_call
from benchmarks.peers import peers
from benchmarks.processes import Place, serving
from benchmarks.records import records
from benchmarks.results import results
from benchmarks.scale import scale
from nexus.services.context.dialogue import DialogueInput, assemble_dialogue

_USUAL: Final = Owners("usual", rows=100, number=100)
_WARM_UP: Final = 100
_ASSEMBLED: Final = 20
_OVERVIEWS_S: Final = 30.0


def main() -> None:
    """Measure, and print the table."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--quick", action="store_true", help="less of everything, for a first look")
    words.add_argument("--rounds", type=int, default=5)
    others = ", ".join(_MEASURES.keys() - _USUALLY)
    which = f"which of {', '.join(_MEASURES)}; all but {others} without"
    words.add_argument("measures", nargs="*", help=which)
    given = words.parse_args()
    unknown = {*given.measures} - {*_MEASURES}
    if unknown:
        words.error(f"no such measure: {', '.join(sorted(unknown))}; there are {', '.join(_MEASURES)}")
    extent = Extent(rounds=given.rounds)
    if given.quick:
        extent = replace(extent, one_at_a_time=100, at_once=400, long_rows=100_000, builds=10_000, turns=40)
    run(extent, {name: _MEASURES[name] for name in given.measures or _USUALLY})


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
                p50s.append(p50(build) / p50(floor))
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
            agents.append(p50(agent) / p50(dialogue))
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
            p50(of_long) / p50(of_short)
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
    "records": records,
    "results": results,
    "scale": scale,
    "peers": peers,
}
# What takes long is measured where it is named.
_USUALLY: Final = [name for name in _MEASURES if name not in {"records", "results", "scale", "peers"}]


def _rate(results: Sequence[Any]) -> float:
    answers: int = sum(len(result["ms"]) for result in results)
    seconds: float = sum(result["seconds"] for result in results)
    return answers / seconds


if __name__ == "__main__":
    main()
