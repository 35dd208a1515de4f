"""What is remembered of a session besides its rows, as blocks: the goal, and the turns (CONTRACT §6). Pure.

    [TASK_CONTEXT]
    User's Goal: find reviews on SGLT2 inhibitors

    [TURN_MEMORY level=detailed count=2]
    [Turn 1] Searched PubMed: 156 articles.
    Insights: reviews are recent; most are in English

    [Turn 2] Of these, 15 are systematic reviews.

Rules of this module:

- A turn is one line, or two with its insights: what somebody wrote is put on one line, so that no other line can begin
  a turn. The goal may have several, and what looks like the head of something else in there is marked.
- Insights are shown at every level, but at `brief` only as far as it then takes no more than a third of `detailed`.
- At the level `comprehensive` the line is the JSON of a `Structured`, whose texts are escaped one by one before. JSON
  writes no control character as a letter then, for there is none left, so what is no tag does not become one.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from nexus.core.ports import Row
from nexus.core.turns import Level, Source, Structured, Turn
from nexus.services.context.blocks import Block
from nexus.services.text.escape import CountingEscape, LabelEscape, canonical, escape, one_line

GOAL: Final = "User's Goal: "

_LISTS: Final = [name for name in Structured.model_fields if name != "overview"]
_THIRD: Final = 3
_CONTROLS: Final = re.compile(r"[\x00-\x1f]+")


@dataclass(frozen=True, slots=True)
class RememberedTurn:
    """A turn at one level of detail.

    Attributes:
        text: brief, detailed, or for `comprehensive` the structured summary as JSON; not escaped yet.
        source: who wrote the summary.
    """

    number: int
    id: str
    text: str
    insights: tuple[str, ...] = ()
    source: Source = "fallback"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What one build shows of the goal and of the turns.

    Attributes:
        goal: as it was given; `""` for none.
        goal_source: id of the turn that it was read from, or of the message that brought it; `""` where nobody knows.
        turns: the lowest number first.
        dropped: older turns that are not shown.
    """

    goal: str = ""
    goal_source: str = ""
    level: Level = "detailed"
    turns: tuple[RememberedTurn, ...] = ()
    dropped: int = 0

    @property
    def is_by_model(self) -> bool:
        """Whether no summary that is shown was made by rules, which a model replaces where there is one."""
        return all(turn.source == "model" for turn in self.turns)

    def to_json(self) -> list[Any]:
        """As it is kept for later builds of the run."""
        turns = [[turn.number, turn.id, turn.text, list(turn.insights), turn.source] for turn in self.turns]
        return [self.goal, self.goal_source, self.level, turns, self.dropped]

    @classmethod
    def from_json(cls, kept: list[Any]) -> "Remembered":
        """That of which `kept` is the `to_json`."""
        goal, source, level, turns, dropped = kept
        read = tuple(
            RememberedTurn(number, turn_id, text, tuple(said), by) for number, turn_id, text, said, by in turns
        )
        return cls(goal, source, level, read, dropped)


NOTHING: Final = Remembered()


def read_turns(rows: Sequence[Row], level: Level) -> tuple[tuple[RememberedTurn, ...], int]:
    """Stored turns at that level, the lowest number first, and how many were malformed and left out.

    Of a turn that says nothing at the level the summary of another is taken.
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


def task_block(remembered: Remembered) -> list[Block]:
    """`[TASK_CONTEXT]`, if there is a goal."""
    counting = LabelEscape()
    goal = goal_text(remembered, counting)
    if not goal:
        return []
    return [Block("TASK_CONTEXT", "user", f"[TASK_CONTEXT]\n{goal}", goal_sources(remembered), escaped=counting.marked)]


def turns_block(remembered: Remembered) -> list[Block]:
    """`[TURN_MEMORY]`, if there is a turn to show."""
    if not remembered.turns:
        return []
    counting = CountingEscape()
    text = turns_text(remembered.turns, remembered.level, counting)
    head = f"[TURN_MEMORY level={remembered.level} count={len(remembered.turns)}]"
    sources = tuple(turn.id for turn in remembered.turns)
    return [
        Block("TURN_MEMORY", "user", f"{head}\n{text}", sources, dropped=remembered.dropped, escaped=counting.marked)
    ]


def goal_text(remembered: Remembered, escape: Callable[[str], str]) -> str:
    """The goal as it is shown; `""` for none."""
    goal = canonical(remembered.goal).strip()
    return f"{GOAL}{escape(goal)}" if goal else ""


def goal_sources(remembered: Remembered) -> tuple[str, ...]:
    """Where the goal is from, for the manifest."""
    return (remembered.goal_source,) if remembered.goal_source else ()


def turns_text(turns: Sequence[RememberedTurn], level: Level, escape: Callable[[str], str]) -> str:
    """The turns as they are shown, with a blank line between two; `escape` may be one that counts."""
    return "\n\n".join(_turn_text(turn, level, escape) for turn in turns)


def _turn_text(turn: RememberedTurn, level: Level, escape: Callable[[str], str]) -> str:
    said = _as_json(turn.text, escape) if level == "comprehensive" else escape(one_line(turn.text))
    insights = "; ".join(filter(None, map(one_line, turn.insights)))
    return f"[Turn {turn.number}] {said}" + (f"\nInsights: {escape(insights)}" if insights else "")


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
            said = {"overview": _first(overview, detailed, brief), **lists}
            return json.dumps(said, ensure_ascii=False) if any(said.values()) else ""


def _first(*texts: str) -> str:
    return next((text for text in texts if one_line(text)), "")
