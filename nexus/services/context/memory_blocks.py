"""Blocks of the memory: goal, turns, working memory and the summary of compacted messages (contract §6, §7). Pure.

    [TASK_CONTEXT]
    User's Goal: find reviews on SGLT2 inhibitors

    [TURN_MEMORY level=detailed count=2]
    [Turn 1] Searched PubMed: 156 articles.

    [WORKING_MEMORY revision=3 bytes=412 details=1]
    - flights (note, 1204 bytes)

    # Working memory
    ...

    [CONVERSATION_SUMMARY compactions=2 messages=148]
    - 2026-03-01 10:02 Asked: Which trains go to Porto? ...

Rules of this module:

- The goal may have several lines; what looks like the head of something else in it is marked.
- The list of details comes before the overview, so that nothing in the overview can pass for an item of it: names of
  details are plain and on one line, and the head gives their number. Where that is more than are ever listed, the last
  line says so.
- The template is shown where there is no overview yet. It is no content, and is never stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from nexus.core.turns import Level
from nexus.core.working_memory import Detail, Snapshot
from nexus.services.context.blocks import Block
from nexus.services.memory.documents import MOST_ARCHIVES, MOST_NOTES, TEMPLATE
from nexus.services.text.escape import CountingEscape, LabelEscape, canonical, one_line
from nexus.services.turns.documents import RememberedTurn, turns_text

GOAL: Final = "User's Goal: "


@dataclass(frozen=True, slots=True)
class Remembered:
    """The goal and the turns that one build shows.

    Attributes:
        goal: as it was given; `""` for none.
        goal_source: id of the turn that it was read from, or of the message that brought it; `""` if unknown.
        turns: the lowest number first.
        dropped: number of older turns that are not shown.
    """

    goal: str = ""
    goal_source: str = ""
    level: Level = "detailed"
    turns: tuple[RememberedTurn, ...] = ()
    dropped: int = 0

    @property
    def is_by_model(self) -> bool:
        """Whether all summaries were written by a model: one made by rules is replaced where there is a model."""
        return all(turn.source == "model" for turn in self.turns)

    def to_json(self) -> list[Any]:
        """The form in which it is kept for later builds of the run."""
        turns = [[turn.number, turn.id, turn.text, list(turn.insights), turn.source] for turn in self.turns]
        return [self.goal, self.goal_source, self.level, turns, self.dropped]

    @classmethod
    def from_json(cls, kept: list[Any]) -> Self:
        """The value of which `kept` is the `to_json`."""
        goal, source, level, turns, dropped = kept
        read = tuple(
            RememberedTurn(number, turn_id, text, tuple(insights), by) for number, turn_id, text, insights, by in turns
        )
        return cls(goal, source, level, read, dropped)


NOTHING: Final = Remembered()


def without_oldest(remembered: Remembered, count: int) -> Remembered:
    """Without the `count` oldest turns."""
    if not count:
        return remembered
    return replace(remembered, turns=remembered.turns[count:], dropped=remembered.dropped + count)


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
    """Sources of the goal, for the manifest."""
    return (remembered.goal_source,) if remembered.goal_source else ()


def working_memory_block(snapshot: Snapshot) -> Block:
    """`[WORKING_MEMORY]`: the overview, or the template, and the names of the details."""
    counting = CountingEscape()
    overview, details = snapshot.overview, snapshot.details
    content = overview.content if overview else TEMPLATE
    shown = [*_latest(details, "note", MOST_NOTES), *_latest(details, "archive", MOST_ARCHIVES)]
    listed = [_item(detail, counting) for detail in sorted(shown, key=lambda detail: detail.name)]
    others = snapshot.detail_count - len(shown)
    if others:
        listed.append(f"- ({others} older ones, which search_memory finds)")
    revision, size = (overview.revision, len(content.encode("utf-8", "replace"))) if overview else (0, 0)
    head = f"[WORKING_MEMORY revision={revision} bytes={size} details={snapshot.detail_count}]"
    text = "\n\n".join(filter(None, ("\n".join([head, *listed]), counting(content).strip("\n"))))
    return Block("WORKING_MEMORY", "system", text, dropped=others, escaped=counting.marked)


def summary_block(snapshot: Snapshot) -> list[Block]:
    """`[CONVERSATION_SUMMARY]`, if something is compacted."""
    compaction = snapshot.compaction
    if compaction is None:
        return []
    counting = CountingEscape()
    head = f"[CONVERSATION_SUMMARY compactions={compaction.number} messages={compaction.total}]"
    text = f"{head}\n{counting(compaction.summary).strip()}"
    return [Block("CONVERSATION_SUMMARY", "user", text, escaped=counting.marked)]


def _latest(details: Sequence[Detail], kind: str, most: int) -> list[Detail]:
    of_kind = (detail for detail in details if detail.kind == kind)
    return sorted(of_kind, key=lambda detail: detail.updated_at)[-most:]


def _item(detail: Detail, escape: CountingEscape) -> str:
    return f"- {escape(one_line(detail.name))} ({detail.kind}, {detail.bytes} bytes)"
