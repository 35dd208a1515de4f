"""Layout `thinking`: an instruction, and one message of up to five parts under banners (contract §6). Pure.

`[RECALL]` and `[MOOD]` stand in front of the input.

The parts that change least come first, so that the beginning stays the same while rounds of thought are added at the
end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from nexus.core.turns import ThinkingRound
from nexus.services.context.blocks import Assembled, Block, Dropped, Joined, Section, assemble, source_of, text_of
from nexus.services.context.bounds import Bounds
from nexus.services.context.budget import Budget
from nexus.services.context.fitting import Growing, Kept, fit, kept_aside, whole_blocks
from nexus.services.context.gather import Build
from nexus.services.context.memory_blocks import (
    NOTHING,
    Remembered,
    bounded_goal,
    goal_text,
    without_oldest,
)
from nexus.services.context.person_blocks import aside_blocks, mood_block
from nexus.services.context.prompts import THINKING_INSTRUCTION
from nexus.services.context.run_prefix import RunPrefix
from nexus.services.context.session import ThinkingSources
from nexus.services.text.escape import BANNERS, CountingEscape, LabelEscape, canonical
from nexus.services.text.tokens import Measure
from nexus.services.turns.documents import turns_text

_TASK, _WORKSPACE, _TURNS, _INPUT, _ROUNDS = (f"=== {title} ===" for title in BANNERS)
# The next build shares the instruction.
_STABLE: Final = 1
_NO_ROWS: Final = {"fetched": 0, "merged": 0, "shown": 0, "repaired": 0}


@dataclass(frozen=True, slots=True)
class ThinkingInput:
    """The content of a thinking context.

    Attributes:
        remembered: the goal, and all earlier turns.
        workspace: a text about the surroundings; `""` for none.
        rounds: of thought in this run, in their order.
        rounds_dropped: number of earlier rounds that are not shown.
        input_id: id of the input's message.
        cut: tags of the parts of whose text only the beginning is given.
        aside: `[CONSTRAINTS]`, `[RECALL]` and `[MOOD]`, as far as there are any.
    """

    current_input: str
    remembered: Remembered = NOTHING
    workspace: str = ""
    rounds: Sequence[ThinkingRound] = ()
    rounds_dropped: int = 0
    input_id: str = ""
    cut: frozenset[str] = frozenset()
    aside: Sequence[Block] = ()


def instructions() -> list[Block]:
    """The blocks that every context of this layout begins with."""
    return [Block("THINKING_INSTRUCTION", "system", THINKING_INSTRUCTION)]


def thinking_prefix(
    build: Build, gathered: ThinkingSources, tools: list[dict[str, Any]], degraded: list[str]
) -> RunPrefix:
    """The messages of the layout, of what was read for a build; `degraded` names the missing parts."""
    request, past, recall = build.request, gathered.past, gathered.recall
    given = ThinkingInput(
        current_input=request.current_input,
        remembered=past.remembered,
        workspace=request.turn.workspace_context,
        rounds=request.turn.thinking_rounds,
        input_id=request.human.id,
        aside=aside_blocks(
            [*gathered.constraints, *request.constraints],
            recall.block if recall else None,
            mood_block(request) if build.settings.mood else None,
        ),
    )
    assembled = fit_thinking(given, build.budget_with(tools))
    assembled = recall.counted(assembled) if recall else assembled
    notes = [*gathered.notes, *assembled.repairs]
    left_out = [*past.left_out, *assembled.left_out]
    return RunPrefix(assembled.messages, assembled.manifest, tools, degraded, notes, left_out)


def fit_thinking(given: ThinkingInput, budget: Budget) -> Assembled:
    """The two messages within the budget, as far as leaving out older turns and rounds, or a block, goes."""
    given = _bounded(given, budget.bounds) if budget.bounds else given
    turns, rounds = given.remembered.turns, given.rounds

    def of(part: Callable[[int], Sequence[Block]], most: int) -> Growing:
        return Growing(most, lambda measure, kept: measure.text(text_of(part(kept))))

    def assembled(kept: Kept, measure: Measure | None) -> Assembled:
        gone = len(rounds) - kept.items["rounds"]
        shorter = replace(
            given,
            remembered=without_oldest(given.remembered, len(turns) - kept.items["history"]),
            rounds=rounds[gone:],
            rounds_dropped=given.rounds_dropped + gone,
            aside=kept_aside(given.aside, kept),
        )
        return assemble_thinking(shorter, measure, kept.whole)

    blocks = {
        # Of the past this layout shows turns and nothing else.
        "history": of(lambda kept: _turns_part(without_oldest(given.remembered, len(turns) - kept)), len(turns)),
        "rounds": of(lambda kept: _rounds_part(rounds[len(rounds) - kept :]), len(rounds)),
        **whole_blocks(given.aside),
    }
    return fit(budget, blocks, assembled)


def _bounded(given: ThinkingInput, bounds: Bounds) -> ThinkingInput:
    """What is given, with no more of goal, workspace and rounds than their shares allow: the oldest rounds go."""
    remembered = bounded_goal(given.remembered, bounds, lambda goal: text_of(_task_part(goal)))
    workspace = bounds.cut("WORKSPACE_CONTEXT", given.workspace, lambda text: text_of(_workspace_part(text)))
    every, tag = len(given.rounds), "THINKING_ROUNDS"
    kept = bounds.most(tag, every, lambda count: text_of(_rounds_part(given.rounds[every - count :])))
    rounds = [*given.rounds[every - max(kept, 1) :]]
    if rounds and not kept:
        last = rounds[0]
        content = bounds.cut(
            tag, last.content, lambda text: text_of(_rounds_part([last.model_copy(update={"content": text})]))
        )
        rounds = [last.model_copy(update={"content": content})]
    pairs = (
        ("TASK_CONTEXT", remembered.goal, given.remembered.goal),
        ("WORKSPACE_CONTEXT", workspace, given.workspace),
        (tag, rounds[-1:], [*given.rounds[-1:]]),
    )
    return replace(
        given,
        remembered=remembered,
        workspace=workspace,
        rounds=rounds,
        rounds_dropped=given.rounds_dropped + every - len(rounds),
        cut=frozenset(tag for tag, shown, whole in pairs if shown != whole),
    )


def assemble_thinking(given: ThinkingInput, measure: Measure | None = None, whole: Dropped = None) -> Assembled:
    """The two messages; with a measure the manifest has tokens."""
    parts = [
        *_task_part(given.remembered),
        *_workspace_part(given.workspace),
        *_turns_part(given.remembered),
        *given.aside,
        *_input_part(given.current_input, given.remembered, source_of(given.input_id)),
        *_rounds_part(given.rounds, given.rounds_dropped),
    ]
    sections: list[Section] = [*instructions(), Joined(parts)]
    return assemble("thinking", sections, rows=_NO_ROWS, stable=_STABLE, whole=whole, cut=given.cut, measure=measure)


def _task_part(remembered: Remembered) -> list[Block]:
    counting = LabelEscape()
    return _part(
        "TASK_CONTEXT", _TASK, goal_text(remembered, counting), counting, sources=source_of(remembered.goal_source)
    )


def _workspace_part(workspace: str) -> list[Block]:
    counting = LabelEscape()
    text = counting(canonical(workspace).strip("\n").rstrip())
    return _part("WORKSPACE_CONTEXT", _WORKSPACE, text, counting)


def _turns_part(remembered: Remembered) -> list[Block]:
    counting = CountingEscape()
    text = turns_text(remembered.turns, remembered.level, counting)
    sources = tuple(turn.id for turn in remembered.turns)
    return _part("TURN_MEMORY", _TURNS, text, counting, sources=sources, dropped=remembered.dropped)


def _input_part(current_input: str, remembered: Remembered, sources: tuple[str, ...]) -> list[Block]:
    """The current input, unless it is the goal itself."""
    said = canonical(current_input).strip()
    if said == canonical(remembered.goal).strip():
        return []
    counting = CountingEscape()
    return _part("INPUT", _INPUT, counting(said), counting, sources=sources)


def _rounds_part(rounds: Sequence[ThinkingRound], dropped: int = 0) -> list[Block]:
    """The rounds that are not blank; `dropped` earlier ones are not shown."""
    counting = LabelEscape()
    said = [(item.round_number, canonical(item.content).strip()) for item in rounds]
    shown = [f"Round {number}: " + counting(text).replace("\n", "\n  ") for number, text in said if text]
    return _part("THINKING_ROUNDS", _ROUNDS, "\n\n".join(shown), counting, dropped=dropped)


def _part(
    tag: str, banner: str, text: str, counting: CountingEscape, *, sources: tuple[str, ...] = (), dropped: int = 0
) -> list[Block]:
    if not text:
        return []
    return [Block(tag, "user", f"{banner}\n{text}", sources, dropped=dropped, escaped=counting.marked)]
