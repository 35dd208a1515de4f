"""Blocks of the memory: goal, turns, working memory, the summary of compacted messages, and advice. Pure.

They are shown in docs/contract.md, "Goal and turns", and docs/working-memory.md, "What contexts show" (contract §6,
§7).

- The goal may have several lines; those that look like the head of another block are marked.
- The list of details comes before the overview, so that nothing in the overview can pass for an item of it.
- Advice depends on the numbers of `[CONTEXT_META]` alone. It names a tool only where there are tools, and asks for a
  compaction only where it would gain something.
- Advice gets longer as the band gets heavier: the block is counted in the number it shows, and if it were shorter in
  the band into which it brings the list, no number would be right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from nexus.core.turns import Level
from nexus.core.working_memory import Detail, Snapshot
from nexus.services.context.blocks import Block, source_of
from nexus.services.context.bounds import Bounds
from nexus.services.memory.documents import MOST_ARCHIVES, MOST_NOTES, TEMPLATE
from nexus.services.text.escape import CountingEscape, LabelEscape, canonical, one_line
from nexus.services.text.tokens import Measure
from nexus.services.turns.documents import RememberedTurn, turns_text

# The part of the share of the working memory that the list of its details takes at most.
_OF_DETAILS: Final = 0.5
GOAL: Final = "User's Goal: "
# Tokens of the longest block in OpenAI's form; `Measure.scaled` gives those of another.
MOST_TOKENS: Final = 200
# After this many turns the overview is likely to be out of date.
STALE_TURNS: Final = 5


@dataclass(frozen=True, slots=True)
class Remembered:
    """The goal and the turns that one build shows.

    Attributes:
        goal: unescaped; `""` for none.
        goal_source: id of its turn, or of its message; `""` if unknown.
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
        """Whether a model wrote all summaries: those made by rules are replaced where there is a model."""
        return all(turn.source == "model" for turn in self.turns)


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
    return [
        Block(
            "TASK_CONTEXT",
            "user",
            f"[TASK_CONTEXT]\n{goal}",
            source_of(remembered.goal_source),
            escaped=counting.marked,
        )
    ]


def bounded_goal(remembered: Remembered, bounds: Bounds, render: Callable[[Remembered], str]) -> Remembered:
    """With as much of the goal as is shown; `render` makes the text of its block."""
    goal = bounds.cut("TASK_CONTEXT", remembered.goal, lambda text: render(replace(remembered, goal=text)))
    return replace(remembered, goal=goal)


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


def bounded_memory(snapshot: Snapshot, bounds: Bounds) -> Snapshot:
    """With the newest details, in half of the share at most, and as much of the overview as is shown beside them."""
    tag, newest = "WORKING_MEMORY", sorted(snapshot.details, key=lambda detail: detail.updated_at)

    def with_details(kept: int) -> Snapshot:
        return replace(snapshot, details=tuple(newest[len(newest) - kept :]))

    def listed(kept: int) -> str:
        shown, overview = with_details(kept), snapshot.overview
        return working_memory_block(
            replace(shown, overview=overview.model_copy(update={"content": ""}) if overview else None)
        ).text

    if bounds.hold(tag, working_memory_block(snapshot).text):
        return snapshot
    shown, overview = with_details(bounds.most(tag, len(newest), listed, _OF_DETAILS)), snapshot.overview
    if overview is None:
        return shown
    content = bounds.cut(
        tag,
        overview.content,
        lambda text: working_memory_block(replace(shown, overview=overview.model_copy(update={"content": text}))).text,
    )
    return replace(shown, overview=overview.model_copy(update={"content": content}))


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


class Band(StrEnum):
    """How full the window is."""

    NORMAL = "normal"
    LIGHT = "light"
    MEDIUM = "medium"
    HEAVY = "heavy"
    EMERGENCY = "emergency"


# The lowest percentage of each band.
_BOUNDS: Final = ((0, Band.NORMAL), (20, Band.LIGHT), (40, Band.MEDIUM), (60, Band.HEAVY), (75, Band.EMERGENCY))


@dataclass(frozen=True, slots=True)
class Meta:
    """The figures of a message list and its session.

    Attributes:
        tokens_limit: of the list and the definitions of its tools.
        messages: in the list, this one included.
        overview_bytes, overview_revision: 0 while there is only the template.
        turns_since_overview_update: None if unknown.
        compactable: a compaction would gain something.
        has_tools: the memory tools can be called.
        is_template: no overview has been written yet.
        compact_at: the part of the window at which the service compacts by itself.
    """

    tokens_limit: int
    messages: int = 0
    overview_bytes: int = 0
    overview_revision: int = 0
    turns_since_overview_update: int | None = None
    compactable: bool = False
    has_tools: bool = False
    is_template: bool = True
    compact_at: float = 0.75


def band_of(used: int, limit: int) -> Band:
    """The band of `used` tokens of `limit`; with a limit of 0 any number is an emergency."""
    return next(band for bound, band in reversed(_BOUNDS) if used * 100 >= bound * limit)


def percent_of(used: int, limit: int) -> str:
    """Percentage with one decimal, rounded down: no bound is shown before it is reached."""
    tenths = used * 1_000 // max(limit, 1)
    return f"{tenths // 10}.{tenths % 10}"


def meta_block(meta: Meta, tokens_without: int, measure: Measure) -> Block:
    """`[CONTEXT_META]`, whose `tokens_used` includes the block itself; the list and its tools take `tokens_without`."""
    used = tokens_without
    while True:
        block = Block("CONTEXT_META", "system", _meta_text(meta, used))
        with_it = tokens_without + sum(map(measure.message, block.messages))
        # The number only grows, so this ends; where a higher number makes a shorter text, it stays too high.
        if with_it <= used:
            return block
        used = with_it


def _meta_text(meta: Meta, used: int) -> str:
    since = meta.turns_since_overview_update
    band = band_of(used, meta.tokens_limit)
    lines = (
        "[CONTEXT_META]",
        f"tokens_used: {used}",
        f"tokens_limit: {meta.tokens_limit}",
        f"tokens_percent: {percent_of(used, meta.tokens_limit)}",
        f"band: {band}",
        f"messages: {meta.messages}",
        f"overview_bytes: {meta.overview_bytes}",
        f"turns_since_overview_update: {'unknown' if since is None else since}",
        f"advice: {_advice(meta, band)}",
    )
    return "\n".join(lines)


def _advice(meta: Meta, band: Band) -> str:
    sentences = (_of_overview(meta), _of_room(meta, band))
    return " ".join(filter(None, sentences)) or "Nothing needs to be done."


def _of_overview(meta: Meta) -> str:
    if not meta.has_tools:
        return ""
    if meta.is_template:
        return "The overview is empty: once the goal is clear, write it down with update_working_memory(content)."
    if (meta.turns_since_overview_update or 0) < STALE_TURNS:
        return ""
    return (
        f"The overview is {meta.turns_since_overview_update} turns old: if anything was decided, found out or finished "
        f"since, call update_working_memory(content, base_revision={meta.overview_revision})."
    )


def _of_room(meta: Meta, band: Band) -> str:
    where = (_COMPACTING if meta.compactable else _NOTHING_LEFT) if meta.has_tools else _BY_ITSELF
    return where[band].format(compact_at=f"{round(meta.compact_at * 100)} %")


# Advice where the model can make room.
_COMPACTING: Final = {
    Band.NORMAL: "",
    Band.LIGHT: "When a task is done, let its results go: "
    'compact_history(target="tools", strategy="summarize", keep_recent=20).',
    Band.MEDIUM: "When the step at hand is done, put what is settled where it can be read again: "
    'compact_history(target="all", strategy="archive", keep_recent=20).',
    Band.HEAVY: "Before anything new, see that the overview holds what must not be lost, then call "
    'compact_history(target="all", strategy="summarize", keep_recent=10): at {compact_at} it is done by rules.',
    Band.EMERGENCY: "Before any other tool, put what must not be lost into the overview in a few lines, then call "
    'compact_history(target="all", strategy="summarize", keep_recent=5): next time it may be done by rules.',
}
# Advice where a compaction would gain little.
_NOTHING_LEFT: Final = {
    Band.NORMAL: "",
    Band.LIGHT: "Little would be gained by compacting, and there is no need to.",
    Band.MEDIUM: "Little would be gained by compacting: most of this is what is always shown, and the current run.",
    Band.HEAVY: "Little would be gained by compacting: what is always shown and the current run take the room, so ask "
    "tools for little at a time.",
    Band.EMERGENCY: "Little would be gained by compacting: what is always shown and the current run take the room, so "
    "finish it with as few calls and as short results as you can, or say what you have and what is missing.",
}
# Advice where the model has no memory tools.
_BY_ITSELF: Final = {
    Band.NORMAL: "",
    Band.LIGHT: "There is room, and nothing needs to be done.",
    Band.MEDIUM: "Nothing needs to be done: the service summarises older messages at {compact_at}.",
    Band.HEAVY: "Keep to what matters: at {compact_at} the service summarises older messages, by rules.",
    Band.EMERGENCY: "Be brief, and name in your answer what must not be lost: from {compact_at} on the service "
    "summarises older messages, by rules.",
}
