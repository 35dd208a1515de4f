"""What remembered turns cost in tokens, at each level, against the messages that they stand for.

make bench. Counted with the vocabulary o200k.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.turn_session import Row, literature
from benchmarks.turn_summaries import BY_HAND, INSIGHTS
from nexus.core.turns import LEVELS, Level, Summaries, Turn
from nexus.services.context.remembered import Remembered, read_turns, turns_block
from nexus.services.context.transcript import said_in_rows
from nexus.services.context.validity import admit
from nexus.services.turns.facts import read_facts
from nexus.services.turns.fallback import summarise_by_rules
from tests.nexus.support.tokens import tokens
from tests.nexus.unit.services.turns.literature import english

SESSIONS: Final = (10, 100, 500)
# A turn's summaries and insights.
Said = tuple[Summaries, tuple[str, ...]]
BEGAN: Final = datetime(2026, 1, 5, 9, tzinfo=UTC)


def main() -> None:
    """Print the tables."""
    Console(width=110).print(levels(), writers())


def levels() -> Table:
    """Sessions of ever more turns: their messages in the agent layout, and the block that stands for them."""
    table = Table(title="tokens of a session, summaries by rules", title_justify="left")
    for column in ("turns", "messages", "raw history", *LEVELS, "brief ÷ detailed"):
        table.add_column(column, justify="right")
    for turns in SESSIONS:
        runs = list(literature(turns))
        messages = _history(row for run in runs for row in run)
        raw = _tokens_of(messages)
        cost = {level: _tokens_of_block(_by_rules(runs), level) for level in LEVELS}
        shown = (f"{cost[level]:,} ({cost[level] / raw:.1%})" for level in LEVELS)
        ratio = f"{cost['brief'] / cost['detailed']:.2f}"
        table.add_row(str(turns), f"{len(messages):,}", f"{raw:,}", *shown, ratio)
    return table


def writers() -> Table:
    """What a turn takes of the block: summarised by rules, and in the length that a model is asked for."""
    table = Table(title="tokens a turn", title_justify="left")
    table.add_column("summaries")
    for column in (*LEVELS, "brief ÷ detailed"):
        table.add_column(column, justify="right")
    written: dict[str, Sequence[Said]] = {
        "by rules, 100 turns": _by_rules(list(literature(100))),
        "by rules, 3 small turns": _by_rules([run.rows for run in english()]),
        "by hand, as a model is asked to, the same 3": list(zip(BY_HAND, INSIGHTS, strict=True)),
    }
    for name, said in written.items():
        cost = {level: _tokens_of_block(said, level) for level in LEVELS}
        shares = (f"{cost[level] / len(said):.0f}" for level in LEVELS)
        table.add_row(name, *shares, f"{cost['brief'] / cost['detailed']:.2f}")
    return table


def _by_rules(runs: Sequence[Sequence[Row]]) -> list[Said]:
    """Rules find no insights."""
    return [(summarise_by_rules(read_facts(run)), ()) for run in runs]


def _tokens_of_block(said: Sequence[Said], level: Level) -> int:
    turns = [_turn(number, *item).model_dump() for number, item in enumerate(said, start=1)]
    (block,) = turns_block(Remembered(level=level, turns=read_turns(turns, level)[0]))
    return tokens(block.text)


def _turn(number: int, summaries: Summaries, insights: tuple[str, ...]) -> Turn:
    return Turn(
        id=f"turn_{number}_0",
        turn_number=number,
        owner_key="ada",
        session_id="s",
        run_id=f"run_{number}",
        timestamp=BEGAN,
        summaries=summaries,
        insights=insights,
    )


def _history(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The messages of the agent layout."""
    return admit(said_in_rows(list(rows))[0], "history").messages


def _tokens_of(messages: Sequence[dict[str, Any]]) -> int:
    """Of contents, and of the names and arguments of calls; what a provider adds to each message is not counted."""
    texts = [message["content"] or "" for message in messages]
    functions = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    return sum(map(tokens, texts)) + sum(tokens(f"{call['name']}{call['arguments']}") for call in functions)


if __name__ == "__main__":
    main()
