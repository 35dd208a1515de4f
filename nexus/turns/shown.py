"""Turns as people and programs read them.

What a turn holds was written by whoever spoke on the bus, and by models: nothing of it reaches a terminal but printable
characters.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from nexus.cli.terminal import printable
from nexus.core.turns import LEVELS, Level, ToolOutcome, Turn

_COLUMNS: Final = ("TURN", "TIME (UTC)", "STATUS", "SUMMARY BY", "TOOLS", "BRIEF")
_NOTHING: Final = "-"
_OUTCOMES: Final = {True: "succeeded", False: "failed", None: "outcome unknown"}


def table(turns: Sequence[Turn]) -> list[str]:
    """A line a turn under a line of headings. Nothing is cut, and the brief summary comes last."""
    rows = [_COLUMNS, *map(_row, turns)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def lines(turn: Turn, levels: Sequence[Level] = LEVELS) -> list[str]:
    """Everything of a turn, with its summary at these levels."""
    usage = turn.token_usage
    facts = {
        "turn": f"{turn.turn_number}  {printable(turn.id)}",
        "time": f"{_when(turn.timestamp)} UTC",
        "run": printable(turn.run_id),
        "status": turn.status.value,
        "summary by": turn.summaries.source,
        "messages": str(len(turn.messages)),
        "tokens": f"{usage.total} (thinking {usage.thinking}, action {usage.action})",
    }
    found = [f"{name:<10}  {value}" for name, value in facts.items()]
    for title, content in _sections(turn, levels):
        # No text can look like a title, or like one of the facts.
        found += ["", title, "", *(f"  {line}".rstrip() for line in content)]
    return found


def as_json(turn: Turn, levels: Sequence[Level] = LEVELS) -> dict[str, Any]:
    """A turn for programs, with its summary at these levels."""
    value = json.loads(turn.model_dump_json())
    kept = {_key(level) for level in levels} | {"source"}
    return {**value, "summaries": {name: part for name, part in value["summaries"].items() if name in kept}}


def listed_as_json(turn: Turn) -> dict[str, Any]:
    """What a list says of a turn, for programs."""
    return {
        "turn_number": turn.turn_number,
        "id": turn.id,
        "run_id": turn.run_id,
        "timestamp": turn.model_dump(mode="json", include={"timestamp"})["timestamp"],
        "status": turn.status.value,
        "source": turn.summaries.source,
        "tools": dict(_tools(turn)),
        "brief": turn.summaries.brief,
    }


def _row(turn: Turn) -> tuple[str, ...]:
    tools = (f"{printable(name)} ({count})" if count > 1 else printable(name) for name, count in _tools(turn).items())
    return (
        str(turn.turn_number),
        _when(turn.timestamp),
        turn.status.value,
        turn.summaries.source,
        ", ".join(tools) or _NOTHING,
        _on_one_line(turn.summaries.brief) or _NOTHING,
    )


def _tools(turn: Turn) -> Counter[str]:
    return Counter(outcome.name for outcome in turn.tool_calls)


def _sections(turn: Turn, levels: Sequence[Level]) -> Iterator[tuple[str, list[str]]]:
    """The parts that have something to say, under their titles."""
    parts = {
        "Goal": _text(turn.task_context),
        "Surroundings": _text(turn.workspace_context),
        "Brief": _text(turn.summaries.brief) if "brief" in levels else [],
        "Detailed": _text(turn.summaries.detailed) if "detailed" in levels else [],
        "Structured": [*_structured(turn)] if "comprehensive" in levels else [],
        "Insights": [f"- {_on_one_line(insight)}" for insight in turn.insights],
        "Rounds of thought": [*_rounds(turn)],
        "Tools": [line for outcome in turn.tool_calls for line in _outcome(outcome)],
    }
    yield from ((title, content) for title, content in parts.items() if content)


def _structured(turn: Turn) -> Iterator[str]:
    for name, value in turn.summaries.structured:
        title = name.replace("_", " ").capitalize()
        if isinstance(value, str):
            yield f"{title}: {_on_one_line(value) or _NOTHING}"
        elif value:
            yield f"{title}:"
            yield from (f"- {_on_one_line(item)}" for item in value)


def _rounds(turn: Turn) -> Iterator[str]:
    for item in turn.thinking_phase.rounds if turn.thinking_phase else ():
        yield f"Round {item.round_number} ({item.tokens_used} tokens):"
        yield from _indented(item.content)


def _outcome(outcome: ToolOutcome) -> Iterator[str]:
    yield f"- {printable(outcome.name)}: {_OUTCOMES[outcome.success]}"
    for name, value in (("arguments", outcome.arguments), ("result", outcome.result)):
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            yield f"  {name}:"
            yield from (f"  {line}" for line in _indented(text))


def _text(text: str) -> list[str]:
    return [printable(line) for line in text.splitlines()]


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in _text(text)]


def _on_one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _key(level: Level) -> str:
    return "structured" if level == "comprehensive" else level


def _when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")
