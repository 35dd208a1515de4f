"""What the marks for Anthropic's cache make of the cost of one long run, by a model of that cache."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.table import Table

from benchmarks.agent_session import Turn, session, state_at
from nexus.services.context.formats import Converted, convert
from nexus.services.context.layouts import AgentInput, assemble_agent
from nexus.services.context.placement import Placement
from nexus.services.context.transcript import said_in_run
from nexus.services.context.validity import admit
from nexus.services.context.window import Window

ROUNDS: Final = 40
EARLIER_RUNS: Final = 20
# With every how many model calls a TODO is ticked off.
NEVER: Final = ROUNDS + 1
CHANGES: Final = {"never": NEVER, "every 3rd call": 3, "every call": 1}

# What the provider charges for a token that it reads from its cache, and for one that it writes there, of a new one.
READ_PRICE: Final = 0.1
WRITE_PRICE: Final = 1.25
# How many blocks back from a mark, with the marked one, the provider looks for what it has written.
LOOKS_BACK: Final = 20


def marking() -> Table:
    """One run of many rounds, without and with a mark on the last block of a continuation."""
    table = Table(title=f"Anthropic's cache: cost of one run of {ROUNDS} rounds of tools", title_justify="left")
    for column in ("earlier runs", "placement", "a TODO changes"):
        table.add_column(column)
    for column in ("two marks", "three marks"):
        table.add_column(column, justify="right")
    before = [row for turn in session(EARLIER_RUNS) for row in turn.rows()]
    (run,) = session(1, rounds=(ROUNDS, ROUNDS), first=EARLIER_RUNS)
    cases: tuple[tuple[Sequence[dict[str, Any]], Placement], ...] = (
        ((), "from_end"),
        (before, "from_end"),
        (before, "tail"),
    )
    for rows, placement in cases:
        for name, every in CHANGES.items():
            two, three = (_cost(_calls(run, rows, placement, every, marked=marked)) for marked in (False, True))
            table.add_row(str(EARLIER_RUNS if rows else 0), placement, name, f"{two:.2f}", f"{three:.2f}")
    return table


def _calls(
    run: Turn, rows: Sequence[dict[str, Any]], placement: Placement, every: int, *, marked: bool
) -> Iterator[Converted]:
    for step, later in enumerate(run.builds()):
        assembled = assemble_agent(
            AgentInput(
                window=Window.of(rows),
                current_input=run.messages[0].content,
                role="You are a careful research assistant. " * 20,
                state=state_at(EARLIER_RUNS, step // every),
                placement=placement,
            )
        )
        own = admit(said_in_run(later), "run", after=assembled.messages).messages
        stable = assembled.manifest["prefix"]["messages"]
        yield convert("anthropic", [*assembled.messages, *own], [], stable=stable, goes_on=marked and bool(own))


def _cost(calls: Iterator[Converted]) -> float:
    """Of what these calls cost if nothing were cached."""
    cache = _Cache()
    sizes, prices = zip(*(cache.call(converted) for converted in calls), strict=True)
    return float(sum(prices) / sum(sizes))


@dataclass(slots=True)
class _Cache:
    """What the provider has written. It forgets nothing: a run is taken to be faster than its five minutes."""

    _written: set[bytes] = field(default_factory=set)

    def call(self, converted: Converted) -> tuple[int, float]:
        """How many characters were sent, and how many new ones cost as much."""
        ends = list(_ends(converted))
        marks = [index for index, end in enumerate(ends) if end.marked]
        near = {index for mark in marks for index in range(max(0, mark - LOOKS_BACK + 1), mark + 1)}
        read = max((ends[index].chars for index in near if ends[index].key in self._written), default=0)
        cached = max((ends[mark].chars for mark in marks), default=0)
        self._written |= {ends[mark].key for mark in marks}
        return ends[-1].chars, READ_PRICE * read + WRITE_PRICE * (cached - read) + ends[-1].chars - cached


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a block: what there is up to here, how much that is, and whether the block has a mark."""

    key: bytes
    chars: int
    marked: bool


def _ends(converted: Converted) -> Iterator[_End]:
    beginning, chars = hashlib.sha256(), 0
    spoken = [("system", converted.system or ()), *((said["role"], said["content"]) for said in converted.messages)]
    for role, blocks in spoken:
        for block in blocks:
            text = json.dumps([role, {key: value for key, value in block.items() if key != "cache_control"}])
            beginning.update(text.encode())
            chars += len(text)
            yield _End(beginning.digest(), chars, "cache_control" in block)
