"""Turns as they are stored, and a reader of turns as they are shown that shares no code with the renderer."""

import json
import re
from dataclasses import dataclass
from typing import Any

from nexus.core.turns import Level

TURN_HEAD = re.compile(r"\[Turn (\d+)\] (.*)")


def stored_turn(number: int, run_id: str = "", **changes: Any) -> dict[str, Any]:
    """The document of that turn, as a store gives it when it is not asked for the whole."""
    document = {
        "id": f"turn_{number}_1764547200000",
        "turn_number": number,
        "owner_key": "ada",
        "session_id": "default",
        "run_id": run_id or f"past_{number - 1}",
        "timestamp": "2025-12-01T00:00:00Z",
        "status": "completed",
        "task_context": "the goal",
        "summaries": {
            "brief": f"brief {number}",
            "detailed": f"detailed {number}",
            "structured": {"overview": f"overview {number}", "actions": [f"did {number}"]},
            "source": "model",
        },
        "insights": [],
    }
    return document | changes


def summaries(text: str) -> dict[str, Any]:
    """Summaries that say the text in every field."""
    lists = {name: [text, text] for name in ("actions", "results", "decisions", "next_steps")}
    return {"brief": text, "detailed": text, "structured": {"overview": text, **lists}, "source": "fallback"}


@dataclass(frozen=True)
class Shown:
    """A turn as it was read back out of a context, its texts still escaped."""

    number: int
    said: str
    insights: str | None


def read_turns_text(text: str) -> list[Shown]:
    """What stands under the head of `[TURN_MEMORY]`; AssertionError for anything that is not a list of turns."""
    shown = []
    for paragraph in text.split("\n\n"):
        first, *more = paragraph.split("\n")
        head = TURN_HEAD.fullmatch(first)
        assert head, paragraph
        assert len(more) <= 1
        assert not more or more[0].startswith("Insights: ")
        shown.append(Shown(int(head[1]), head[2], more[0].removeprefix("Insights: ") if more else None))
    return shown


def read_turn_memory(block: str) -> tuple[str, list[Shown]]:
    """The level of `[TURN_MEMORY]`, and its turns; AssertionError for anything that is not one."""
    head, _, text = block.partition("\n")
    counted = re.fullmatch(r"\[TURN_MEMORY level=(brief|detailed|comprehensive) count=(\d+)\]", head)
    assert counted
    shown = read_turns_text(text)
    assert len(shown) == int(counted[2])
    return counted[1], shown


def texts_of(said: str, level: Level) -> list[str]:
    """The texts that one line of a turn holds, still escaped."""
    if level != "comprehensive":
        return [said]
    structured = json.loads(said)
    assert list(structured) == ["overview", "actions", "results", "decisions", "next_steps"]
    return [structured["overview"], *(item for name in list(structured)[1:] for item in structured[name])]
