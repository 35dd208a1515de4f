"""`[CONTEXT_META]`: how full the window is, and advice on what to do next (contract §7). Pure.

    [CONTEXT_META]
    tokens_used: 18234
    tokens_limit: 32000
    tokens_percent: 56.9
    band: medium
    messages: 84
    overview_bytes: 1204
    turns_since_overview_update: 6
    advice: ...

Rules of this module:

- The service controls the timing: advice depends on these numbers alone, and nothing in it comes from a user.
- Advice stands here only. A reminder in the overview would count as content there, and be stored.
- Advice names a tool only where there are tools, and asks for a compaction only where it would gain something.
- Advice gets longer as the band gets heavier. The block is counted in the number it shows, so it must not be shorter in
  the band into which it brings the list: then no number would be right.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nexus.services.context.blocks import Block
from nexus.services.text.tokens import Measure

TAG: Final = "CONTEXT_META"
# Tokens of the longest block in OpenAI's form; `Measure.scaled` gives those of another.
MOST_TOKENS: Final = 200
# After this many turns the overview is likely to be out of date.
STALE_TURNS: Final = 5


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
        tokens_limit: of everything that is sent, definitions of tools included.
        messages: in the list, this one included.
        overview_bytes, overview_revision: 0 while there is only the template.
        turns_since_overview_update: None if unknown.
        compactable: a compaction would gain something.
        has_tools: the memory tools can be called.
        is_template: no overview has been written yet.
        compact_at: at which part of the window the service compacts by itself.
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
    """The block, whose `tokens_used` includes the block itself.

    Args:
        meta: the other figures.
        tokens_without: tokens of everything that is sent besides it: the other messages, as a list, and the tools.
        measure: with which those were counted.
    """
    used = tokens_without
    while True:
        block = Block(TAG, "system", _text(meta, used))
        with_it = tokens_without + sum(map(measure.message, block.messages))
        # The number only grows, so this ends; should a higher number make a shorter text, it is rather too high.
        if with_it <= used:
            return block
        used = with_it


def _text(meta: Meta, used: int) -> str:
    since = meta.turns_since_overview_update
    band = band_of(used, meta.tokens_limit)
    lines = (
        f"[{TAG}]",
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
