"""Turns as text, as contexts and the turn commands show them (contract §6). Pure.

    [Turn 1] Searched PubMed: 156 articles.
    Insights: reviews are recent; most are in English

Rules of this module:

- A turn is one line, or two with its insights: every text is put on one line, so that no other line can begin a turn.
- Insights are shown at every level, but at `brief` only as far as it then takes no more than a third of `detailed`.
- At the level `comprehensive` the line is the JSON of a `Structured`, whose texts are escaped one by one before. No
  control character is left that JSON would write as a letter, so escaped text does not become a tag.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from nexus.core.ports import Row
from nexus.core.turns import Level, Source, Structured, Turn
from nexus.services.text.escape import canonical, escape, one_line

_LISTS: Final = [name for name in Structured.model_fields if name != "overview"]
_THIRD: Final = 3
_CONTROLS: Final = re.compile(r"[\x00-\x1f]+")


@dataclass(frozen=True, slots=True)
class RememberedTurn:
    """A turn at one level of detail.

    Attributes:
        text: brief, detailed, or for `comprehensive` the structured summary as JSON; not escaped.
        source: of the summary: a model, or rules.
    """

    number: int
    id: str
    text: str
    insights: tuple[str, ...] = ()
    source: Source = "fallback"


def read_turns(rows: Sequence[Row], level: Level) -> tuple[tuple[RememberedTurn, ...], int]:
    """Stored turns at that level, the lowest number first, and how many were malformed and left out.

    Of a turn without a summary at the level that of another level is taken.
    """
    turns: dict[int, RememberedTurn] = {}
    for row in rows:
        turn = _read_turn(row, level)
        if turn is not None:
            turns.setdefault(turn.number, turn)
    return tuple(turns[number] for number in sorted(turns)), len(rows) - len(turns)


def accumulated(rows: Sequence[Row], level: Level) -> str:
    """Stored turns at that level as a context shows them; `""` where there are none."""
    return turns_text(read_turns(rows, level)[0], level, escape)


def turns_text(turns: Sequence[RememberedTurn], level: Level, escape: Callable[[str], str]) -> str:
    """The turns as they are shown, with a blank line between two; `escape` may be one that counts."""
    return "\n\n".join(_turn_text(turn, level, escape) for turn in turns)


def _turn_text(turn: RememberedTurn, level: Level, escape: Callable[[str], str]) -> str:
    line = _as_json(turn.text, escape) if level == "comprehensive" else escape(one_line(turn.text))
    insights = "; ".join(filter(None, map(one_line, turn.insights)))
    return f"[Turn {turn.number}] {line}" + (f"\nInsights: {escape(insights)}" if insights else "")


def _as_json(text: str, escape: Callable[[str], str]) -> str:
    escaped = {
        name: _plain(value, escape) if isinstance(value, str) else [_plain(item, escape) for item in value]
        for name, value in json.loads(text).items()
    }
    return json.dumps(escaped, ensure_ascii=False, separators=(",", ":"))


def _plain(text: str, escape: Callable[[str], str]) -> str:
    return escape(one_line(_CONTROLS.sub(" ", canonical(text))))


def _read_turn(row: Row, level: Level) -> RememberedTurn | None:
    try:
        turn = Turn.model_validate(row)
    except ValidationError:
        return None
    text = _text(turn, level)
    insights = _fitting(turn, text) if level == "brief" else turn.insights
    return RememberedTurn(turn.turn_number, turn.id, text, insights, turn.summaries.source) if text else None


def _fitting(turn: Turn, brief: str) -> tuple[str, ...]:
    """The first insights of a turn, as many as fit beside `brief` into a third of what `detailed` takes."""
    room = _weight(turn, _text(turn, "detailed"), turn.insights) // _THIRD
    counts = range(len(turn.insights), 0, -1)
    return turn.insights[: next((count for count in counts if _weight(turn, brief, turn.insights[:count]) <= room), 0)]


def _weight(turn: Turn, text: str, insights: tuple[str, ...]) -> int:
    return len(_turn_text(RememberedTurn(turn.turn_number, turn.id, text, insights), "detailed", canonical).encode())


def _text(turn: Turn, level: Level) -> str:
    brief, detailed, structured = turn.summaries.brief, turn.summaries.detailed, turn.summaries.structured
    overview = structured.overview
    match level:
        case "brief":
            return _first(brief, detailed, overview)
        case "detailed":
            return _first(detailed, brief, overview)
        case "comprehensive":
            lists = {name: list(filter(one_line, getattr(structured, name))) for name in _LISTS}
            summary = {"overview": _first(overview, detailed, brief), **lists}
            return json.dumps(summary, ensure_ascii=False) if any(summary.values()) else ""


def _first(*texts: str) -> str:
    return next((text for text in texts if one_line(text)), "")
