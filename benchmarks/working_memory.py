"""What working memory saves, and what it costs: a session of 300 runs, and one of 50,000 messages beside one of 500.

make bench. On the servers that NEXUS_TEST_REDIS_URL and NEXUS_TEST_MONGO_URI name, else on the packaged ones: those are
slow, and their times say little. Tokens are counted with the vocabulary o200k.
"""

import statistics
from collections.abc import Sequence
from typing import Final

import anyio
from rich.console import Console
from rich.table import Table

from benchmarks.working_memory_play import Request, a_place, play
from benchmarks.working_memory_tail import beside
from tests.nexus.support.long_session import session

RUNS: Final = 300
WINDOW: Final = 32_000
LENGTHS: Final = (500, 50_000)


async def main() -> None:
    """Print the tables."""
    console = Console(width=110)
    with console.status(f"{RUNS} runs, half a minute"):
        async with a_place() as place:
            requests, found = await play(place, [*session(RUNS + 1)], WINDOW)
    console.print(sending(requests), str(found), reusing(requests), answering(requests))
    with console.status(f"sessions of {LENGTHS[0]:,} and {LENGTHS[1]:,} messages, half a minute"):
        async with a_place() as place:
            costs = await beside(place, LENGTHS)
    table = Table(title="a context of a session with the same tail", title_justify="left")
    for column in ("messages", "compacting it, s", "median, ms", f"÷ {LENGTHS[0]}"):
        table.add_column(column, justify="right")
    for cost in costs:
        ratio = f"{cost.median / costs[0].median:.2f}"
        table.add_row(f"{cost.messages:,}", f"{cost.compacting:.2f}", f"{cost.median * 1e3:.1f}", ratio)
    console.print(table)


def sending(requests: Sequence[Request]) -> Table:
    """Tokens in total, against all rows so far with every request."""
    table = Table(title=f"tokens sent in {RUNS} runs, window {WINDOW:,}", title_justify="left")
    for column in ("", "requests", "tokens", "a request", "longest", "fewer"):
        table.add_column(column, justify="right")
    ours, raw = [request.tokens for request in requests], [request.raw for request in requests if request.raw]
    for name, tokens in (("raw history", raw), ("working memory", ours)):
        total = sum(tokens)
        fewer = f"{1 - total / sum(raw):.1%}" if tokens is ours else ""
        table.add_row(name, f"{len(tokens):,}", f"{total:,}", f"{total // len(tokens):,}", f"{max(tokens):,}", fewer)
    return table


def reusing(requests: Sequence[Request]) -> Table:
    """How much of each request is the beginning of the one before it: what a provider's prompt cache can use."""
    table = Table(title="of a request's bytes, those that the one before began with", title_justify="left")
    for column in ("", "requests", "mean over bytes", "median", "worst"):
        table.add_column(column, justify="right")
    later = requests[1:]
    without = [request for request in later if not request.compacted]
    kinds = {
        "without compaction": without,
        "… and the same working memory": [request for request in without if not request.updated],
        "… and a changed working memory": [request for request in without if request.updated],
        "with compaction": [request for request in later if request.compacted],
        "all": later,
    }
    for name, some in kinds.items():
        shares = [request.shared / request.size for request in some] or [0.0]
        mean = sum(request.shared for request in some) / max(sum(request.size for request in some), 1)
        cells = (f"{mean:.1%}", f"{statistics.median(shares):.1%}", f"{min(shares):.1%}")
        table.add_row(name, f"{len(some):,}", *cells)
    return table


def answering(requests: Sequence[Request]) -> Table:
    """How long a requester waits, where its session is compacted before the answer and where it is not."""
    table = Table(title="until a request is answered, ms", title_justify="left")
    for column in ("", "requests", "median", "longest"):
        table.add_column(column, justify="right")
    kinds = {"a plain one": False, "one that finds a new compaction": True}
    for name, compacted in kinds.items():
        times = [request.seconds * 1e3 for request in requests if request.compacted is compacted] or [0.0]
        table.add_row(name, f"{len(times):,}", f"{statistics.median(times):.1f}", f"{max(times):.1f}")
    return table


if __name__ == "__main__":
    anyio.run(main)
