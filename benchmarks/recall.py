"""What long-term memory finds in conversations whose evidence is known, and how fast it is.

    python -m benchmarks.recall quality --locomo locomo10.json --chinese zh_recall.json zh_recall_hard.json
    python -m benchmarks.recall speed

Recall is fractional: of each question the share of its evidence among the first messages, and the share of the sessions
of its evidence among the first sessions, of which each ranks by its best message. Questions without evidence that
exists are left out. `quality --real` and `speed` need NEXUS_TEST_REDIS_URL and NEXUS_TEST_MONGO_URI.
"""

import argparse
import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from rich.table import Table

from benchmarks.bench import Bench, Extent, Measure, console, open_bench, run
from benchmarks.conversations import Conversation, MadeUp, Repeated, read_locomo, read_owners
from benchmarks.recall_quality import (
    CHOSEN,
    Fold,
    Index,
    Recalled,
    choices,
    embed,
    indexed,
    leave_one_out,
    mean,
    measured,
    served,
)
from benchmarks.recall_speed import MEASURES, Texts
from nexus.config import RecallSettings
from nexus.connections import open_embedder

# What is asked for: of LoCoMo by words alone, and with the packaged embedder; of other files beyond their baseline.
_NO_BAR: Final = Recalled(0, 0, 0, 0)
_LOCOMO: Final = {"off": Recalled(0.65, 0.73, 0.88, 0.94), "packaged": Recalled(0.68, 0.76, 0, 0)}
_OVER_BASELINE: Final = {"off": 0.08, "packaged": 0.15}
# What a file's baseline calls them.
_BASELINE: Final = ("recall@5", "recall@10", "session_recall@5", "session_recall@10")


def quality(given: argparse.Namespace) -> None:
    """Print what is recalled."""
    table = Table(title="evidence recall, in brackets what is asked for", title_justify="left")
    for column in ("", "questions", "turns @5", "@10", "sessions @5", "@10"):
        table.add_column(column, justify="right" if column else "left")
    with open_bench(Extent()) if given.real else nullcontext() as bench:
        if given.locomo:
            _measure(table, "LoCoMo", read_locomo(given.locomo), _LOCOMO, given, bench)
        for path in given.chinese:
            conversations, baseline = read_owners(path)
            bars = {}
            if baseline:
                plain = Recalled(*(baseline[name] for name in _BASELINE))
                table.add_row(f"{path.stem}, its baseline", "", *(f"{share:.4f}" for share in plain))
                bars = {
                    name: Recalled(plain.turns_5 + more, plain.turns_10 + more, 0, 0)
                    for name, more in _OVER_BASELINE.items()
                }
            _measure(table, path.stem, conversations, bars, given, bench)
    console.print(table)


def _measure(  # noqa: PLR0917  # what is measured, and where
    table: Table,
    name: str,
    conversations: Sequence[Conversation],
    bars: Mapping[str, Recalled],
    given: argparse.Namespace,
    bench: Bench | None,
) -> None:
    """Add the lines of a file."""
    indexes = [*map(indexed, conversations)]
    for embedder in dict.fromkeys(("off", given.embedder)):
        settings, bar = RecallSettings(embedder=embedder), bars.get(embedder, _NO_BAR)
        label = f"{name}, {'words' if embedder == 'off' else embedder}"
        asyncio.run(_embed(indexes, settings))
        _add(table, label, chain.from_iterable(map(measured, indexes)), bar)
        if given.leave_one_out:
            folds = leave_one_out(indexes, choices(embedder))
            _add(table, f"{label}, left out", chain.from_iterable(fold.results for fold in folds), bar)
            console.print(_folds(folds, label))
        if bench:
            found = served(bench, conversations, settings)
            _add(table, f"{label}, service", found.results, bar)
            same = f"{found.asked - found.different} of {found.asked}"
            console.print(f"{label}: for {same} questions the bus gives the same first messages")


async def _embed(indexes: Sequence[Index], settings: RecallSettings) -> None:
    async with open_embedder(settings) as embedder:
        if embedder:
            await embed(indexes, embedder)


def _add(table: Table, name: str, results: Iterable[Recalled], bar: Recalled) -> None:
    results = [*results]
    table.add_row(name, f"{len(results):,}", *map(_cell, mean(results), bar))


def _cell(share: float, at_least: float) -> str:
    shown = f"{share:.4f} ({at_least:.3g})" if at_least else f"{share:.4f}"
    return shown if share >= at_least else f"[bold red]{shown}[/]"


def _folds(folds: Sequence[Fold], label: str) -> Table:
    title = f"{label}: weights that are best on all others, and what they recall"
    table = Table(title=title, title_justify="left")
    for column in ("", *CHOSEN, "questions", "turns @5", "@10", "sessions @5", "@10"):
        table.add_column(column, justify="right" if column else "left")
    for fold in folds:
        weights = (f"{getattr(fold.weights, name):g}" for name in CHOSEN)
        shares = (f"{share:.3f}" for share in mean(fold.results))
        table.add_row(fold.owner_key, *weights, str(len(fold.results)), *shares)
    return table


def speed(given: argparse.Namespace) -> None:
    """Print how fast it is."""
    extent = Extent(rounds=given.rounds)
    if given.quick:
        extent = replace(extent, one_at_a_time=100, most_messages=10_000)
    texts = Repeated(read_locomo(given.locomo)) if given.locomo else MadeUp()
    run(extent, {name: partial(_timed, name, texts, given.embedder) for name in given.measures or MEASURES})


def _timed(name: str, texts: Texts, embedder: str, bench: Bench) -> list[Measure]:
    return MEASURES[name](bench, texts, embedder)


def main() -> None:
    """Do what is asked for."""
    words = argparse.ArgumentParser(
        prog="python -m benchmarks.recall", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = words.add_subparsers(required=True, title="commands")
    command = commands.add_parser("quality", help="what is found of the evidence of files with questions")
    command.add_argument("--chinese", type=Path, metavar="FILE", nargs="+", default=[], help="files of our own form")
    command.add_argument("--leave-one-out", action="store_true", help="choose weights on all conversations but one")
    command.add_argument("--real", action="store_true", help="also through a service, from MongoDB and from the bus")
    command.set_defaults(run=quality)
    timing = commands.add_parser("speed", help="searches, builds and indexing, on made texts or those of LoCoMo")
    timing.add_argument("--quick", action="store_true", help="less of everything, for a first look")
    timing.add_argument("--rounds", type=int, default=5)
    timing.add_argument("measures", nargs="*", choices=[*MEASURES], help="all without")
    timing.set_defaults(run=speed)
    for each in (command, timing):
        each.add_argument("--locomo", type=Path, metavar="FILE", help="locomo10.json of snap-research/locomo")
        each.add_argument("--embedder", choices=["off", "packaged"], default="off", help="beside words")
    given = words.parse_args()
    if given.run is quality and not (given.locomo or given.chinese):
        command.error("give a file: --locomo FILE, --chinese FILE")
    given.run(given)


if __name__ == "__main__":
    main()
