"""The agent layout: what placing and assembling cost, and what of a prompt each placement lets a provider use again.

make bench. Ratios of medians of seven, taken side by side; the table of the placements takes about a minute.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.agent_marks import marking
from benchmarks.agent_session import Turn, session, state_at
from nexus.core.models import Message
from nexus.services.context.layouts import AgentInput, assemble_agent
from nexus.services.context.placement import insert_messages_at_position, pinned_position
from nexus.services.context.session_state import SessionState
from nexus.services.context.transcript import said_in_run
from nexus.services.context.validity import admit
from nexus.services.context.window import Window

REPEATS: Final = 7
TURNS: Final = 200
# What a cached token costs of a new one with the providers that name a price for it.
CACHED_PRICE: Final = 0.1

# `front` and `none` are no placements that Nexus has: the block directly behind the system message, and no block.
Variant = Literal["none", "tail", "before_assistant", "from_end", "front"]
VARIANTS: Final[tuple[Variant, ...]] = ("none", "tail", "before_assistant", "from_end", "front")

Chat = dict[str, Any]


def main() -> None:
    """Print the tables."""
    console = Console(width=110)
    console.print(placing(), assembling(), reusing(), marking())


def placing() -> Table:
    """Finding the position and inserting: a history beside one of half its length. Linear: twice the time."""
    table = Table(title="place a pinned block", title_justify="left")
    for column in ("messages", "well-formed, ms", "÷ half", "all blocks overlap, ms", "÷ half"):
        table.add_column(column, justify="right")
    pinned = [{"role": "user", "content": "## Current TODO List"}]
    for count in (25_000, 50_000, 100_000, 200_000):
        cells = []
        for made in (_well_formed, _overlapping):
            half, whole = made(count // 2), made(count)
            times = [
                (_milliseconds(_place, half, pinned), _milliseconds(_place, whole, pinned)) for _ in range(REPEATS)
            ]
            ratio = statistics.median(long / short for short, long in times)
            cells += [f"{statistics.median(long for _, long in times):.1f}", f"{ratio:.2f}"]
        table.add_row(f"{count:,}", *cells)
    return table


def assembling() -> Table:
    """Everything from stored rows to the valid list, over ever longer sessions."""
    table = Table(title="assemble the agent layout", title_justify="left")
    for column in ("rows", "ms", "µs a row", "÷ that of 20"):
        table.add_column(column, justify="right")
    rows = [row for turn in session(TURNS) for row in turn.rows()]
    first = 0.0
    for count in (20, 200, 1_000, len(rows)):
        cost = statistics.median(_milliseconds(_assemble, rows[:count][::-1]) for _ in range(REPEATS)) / count * 1e3
        first = first or cost
        table.add_row(f"{count:,}", f"{cost * count / 1e3:.2f}", f"{cost:.1f}", f"{cost / first:.2f}")
    return table


def _assemble(rows: Sequence[dict[str, Any]]) -> None:
    assemble_agent(AgentInput(window=Window.of(rows), current_input="And now?", role="You help."))


def reusing() -> Table:
    """How much of each prompt is the beginning of the one before it, over a session in which the state changes."""
    table = Table(title=f"what {TURNS} turns let a provider use again", title_justify="left")
    table.add_column("placement")
    for column in ("first call of a run", "later calls", "sent anew, KB a call", "cost, cached at 0.1", "÷ tail"):
        table.add_column(column, justify="right")
    shares = {variant: _reuse(variant) for variant in VARIANTS}
    for variant, share in shares.items():
        table.add_row(
            variant,
            f"{share.first:.1%}",
            f"{share.later:.1%}",
            f"{share.new_kb:.1f}",
            f"{share.cost:.1%}",
            f"{share.cost / shares['tail'].cost:.2f}",
        )
    return table


@dataclass(frozen=True, slots=True)
class Share:
    """Of the characters of all prompts, those that the prompt before began with, and what a prompt has besides."""

    first: float
    later: float
    all: float
    new_kb: float

    @property
    def cost(self) -> float:
        """Relative to sending everything anew."""
        return 1 - self.all * (1 - CACHED_PRICE)


def _reuse(variant: Variant) -> Share:
    totals = {"first": [0, 0], "later": [0, 0]}
    rows: list[dict[str, Any]] = []
    last: list[Chat] = []
    calls = 0
    for turn in session(TURNS):
        for step, later in enumerate(turn.builds()):
            prompt = _prompt(variant, rows, turn, later, step)
            kind = totals["later" if later else "first"]
            kind[0] += sum(_chars(message) for message in _common(last, prompt))
            kind[1] += sum(map(_chars, prompt))
            last, calls = prompt, calls + 1
        rows += turn.rows()
    reused, whole = (sum(kind[part] for kind in totals.values()) for part in (0, 1))
    return Share(
        totals["first"][0] / totals["first"][1],
        totals["later"][0] / totals["later"][1],
        reused / whole,
        (whole - reused) / calls / 1_000,
    )


def _prompt(
    variant: Variant, rows: Sequence[dict[str, Any]], turn: Turn, later: Sequence[Message], step: int
) -> list[Chat]:
    given = AgentInput(
        window=Window.of(rows),
        current_input=turn.messages[0].content,
        role="" if variant == "none" else "You are a careful research assistant. " * 20,
        state=SessionState() if variant == "none" else state_at(turn.number, step),
        placement=variant if variant in {"from_end", "before_assistant", "tail"} else "tail",
    )
    assembled = assemble_agent(given)
    messages = assembled.messages
    if variant == "front":
        first = assembled.manifest["prefix"]["messages"]
        count = sum(block["tag"] not in {"CORE_IDENTITY", "HISTORY", "INPUT"} for block in assembled.manifest["blocks"])
        pinned, others = messages[first : first + count], messages[:first] + messages[first + count :]
        messages = insert_messages_at_position(others, pinned, 1)
    return [*messages, *admit(said_in_run(later), "run", after=messages).messages]


def _common(one: Sequence[Chat], other: Sequence[Chat]) -> Iterator[Chat]:
    for first, second in zip(one, other, strict=False):
        if first != second:
            return
        yield first


def _chars(message: Chat) -> int:
    return len(message["content"] or "") + sum(
        len(call["function"]["arguments"]) for call in message.get("tool_calls", ())
    )


def _place(chat: Sequence[Chat], pinned: Sequence[Chat]) -> list[Chat]:
    return insert_messages_at_position(chat, pinned, pinned_position(chat, "from_end"))


def _well_formed(count: int) -> list[Chat]:
    """A question, two calls, their results, an answer, and so on."""
    chat: list[Chat] = []
    while len(chat) < count:
        ids = [f"call_{len(chat)}", f"call_{len(chat) + 1}"]
        calls = [{"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for call_id in ids]
        chat += [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": calls}]
        chat += [{"role": "tool", "tool_call_id": call_id, "content": "r"} for call_id in ids]
        chat.append({"role": "assistant", "content": "a"})
    return chat[:count]


def _overlapping(count: int) -> list[Chat]:
    """Every call before every result, so that all blocks overlap."""
    half = count // 2
    calls = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": str(number), "function": {"name": "f"}}]}
        for number in range(half)
    ]
    return calls + [{"role": "tool", "tool_call_id": str(number), "content": "r"} for number in range(half)]


def _milliseconds(work: Callable[..., object], *given: Any) -> float:
    """The time of one call. As with timeit, the garbage collector waits: its pauses belong to no function."""
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        work(*given)
        return (time.perf_counter() - started) * 1e3
    finally:
        gc.enable()


if __name__ == "__main__":
    main()
