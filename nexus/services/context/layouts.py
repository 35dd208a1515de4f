"""The layouts: recipes for the message list (CONTRACT §4, §5, §6). Pure: the same inputs give the same bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple

from nexus.core.turns import ThinkingRound
from nexus.core.working_memory import Snapshot
from nexus.services.context.agents import MAIN, Agent
from nexus.services.context.assembled import Assembled, put_together, sources
from nexus.services.context.blocks import Block, Joined, Passage, Section
from nexus.services.context.budget import Movable, Room, fit, unsaid
from nexus.services.context.formatters import FriendsInfoFormatter, MemoryFormatter, MomentFormatter
from nexus.services.context.placement import PINNED_FROM_END, Placement, pinned_position
from nexus.services.context.prompts import PromptManager
from nexus.services.context.remembered import NOTHING, Remembered, task_block
from nexus.services.context.session_state import SessionState
from nexus.services.context.thinking import (
    THINKING_INSTRUCTION,
    input_part,
    rounds_part,
    task_part,
    turns_part,
    workspace_part,
)
from nexus.services.context.tokens import Measure
from nexus.services.context.validity import Admitted, admit
from nexus.services.context.window import Window, count_others
from nexus.services.context.working import summary_block, working_memory_block
from nexus.services.text.escape import CountingEscape
from nexus.tools.registry import Definitions

# Of the dialogue layout the next build of the same owner shares the identity and the tools; the memory moves on. Where
# the tools may not be all there, it is the identity alone.
_DIALOGUE_PREFIX: Final = 2
_WITHOUT_TOOLS: Final = 1
# Of the thinking layout it shares the instruction.
_THINKING_PREFIX: Final = 1
_NO_ROWS: Final = {"fetched": 0, "merged": 0, "shown": 0, "repaired": 0}


class DialogueInput(NamedTuple):
    """Everything that the five messages of the dialogue layout are made of.

    Attributes:
        tools: tool definitions, in the order in which they are shown.
        tools_complete: there are no others.
        history: stored rows, in any order.
        timestamp_utc: the run's own time, read or as it was sent; `""` for none.
        timezone_offset: minutes west of UTC.
        input_id: id of the message that the input came in.
        measure: counts tokens for the manifest; None where they are not told.
    """

    tools: Sequence[Mapping[str, Any]]
    history: Sequence[Any]
    user_profile: Mapping[str, Any] | None
    current_input: str
    current_run_id: str = ""
    timestamp_utc: str | datetime = ""
    timezone_offset: int = 0
    history_size: int = 20
    truncate_chars: int = 500
    default_profile: str = ""
    tools_complete: bool = True
    input_id: str = ""
    measure: Measure | None = None


@dataclass(frozen=True, slots=True)
class AgentInput:
    """Everything that a context of the agent layout is made of.

    Attributes:
        window: what of the session is shown.
        remembered: the goal, and the turns of which the input is not shown.
        settled: whether all of the session and of what is remembered of it could be read, and no summary is about to be
            replaced.
        role: what is pinned as the agent's role; `""` for none.
        state: what else is pinned.
        pinned_from_end: before which message from the end of the history, or before which assistant message.
        input_id: id of the message that the input came in.
        snapshot: the working memory; None where none is shown.
        memory_missing: that is so because it could not be read.
        room: what may be taken; None for as much as there is.
    """

    window: Window
    current_input: str
    agent: Agent = MAIN
    remembered: Remembered = NOTHING
    settled: bool = True
    role: str = ""
    state: SessionState = field(default_factory=SessionState)
    placement: Placement = "from_end"
    pinned_from_end: int = PINNED_FROM_END
    input_id: str = ""
    snapshot: Snapshot | None = None
    memory_missing: bool = False
    room: Room | None = None


class ThinkingInput(NamedTuple):
    """Everything that a context of the thinking layout is made of.

    Attributes:
        remembered: the goal, and all earlier turns.
        workspace: what was said of the surroundings; `""` for nothing.
        rounds: of thought in this run, in their order.
        rounds_dropped: earlier ones, which are not shown.
        input_id: id of the message that the input came in.
        measure: counts tokens for the manifest; None where they are not told.
    """

    current_input: str
    remembered: Remembered = NOTHING
    workspace: str = ""
    rounds: Sequence[ThinkingRound] = ()
    rounds_dropped: int = 0
    input_id: str = ""
    measure: Measure | None = None


class DialogueFrame(NamedTuple):
    """What stands before the memory in the dialogue layout and what stands behind it, whatever is remembered."""

    before: tuple[Block, Block]
    behind: tuple[Block, Block]


def dialogue_frame(given: DialogueInput) -> DialogueFrame:
    """The four messages beside the memory; the history does not matter."""
    tools = given.tools
    capabilities = tools.once(_capabilities) if isinstance(tools, Definitions) else _capabilities(tools)
    friend = FriendsInfoFormatter.render(given.user_profile, given.default_profile)
    moment = MomentFormatter.render(
        given.current_input, given.timestamp_utc, given.timezone_offset, sources=sources(given.input_id)
    )
    return DialogueFrame((_identity(), capabilities), (friend, moment))


def assemble_dialogue(given: DialogueInput, frame: DialogueFrame | None = None) -> Assembled:
    """The five messages of CONTRACT §4.

    Args:
        given: what they are made of.
        frame: its `dialogue_frame`, where that is made already.
    """
    frame = frame or dialogue_frame(given)
    memory = MemoryFormatter.render(
        given.history,
        given.history_size,
        current_run_id=given.current_run_id,
        truncate_chars=given.truncate_chars,
        timezone_offset=given.timezone_offset,
    )
    sections = [*frame.before, memory.block, *frame.behind]
    history = {
        "fetched": count_others(given.history, given.current_run_id),
        "merged": memory.merged,
        "shown": memory.shown,
        "repaired": memory.repaired,
    }
    stable = _DIALOGUE_PREFIX if given.tools_complete else _WITHOUT_TOOLS
    return put_together("dialogue", sections, history, stable, [], given.measure)


def assemble_agent(given: AgentInput) -> Assembled:
    """The messages of CONTRACT §5 up to the current input, for the main agent and for sub-agents alike."""
    window = given.window
    past = admit(window.said, "history", going_on=True)
    instructions = _instructions(given.agent)
    in_view = [working_memory_block(given.snapshot)] if given.snapshot else []
    opening = [*instructions, *in_view, *task_block(given.remembered)]
    escape = CountingEscape()
    current = Block("INPUT", "user", escape(given.current_input), sources(given.input_id), escaped=escape.marked)
    summary = summary_block(given.snapshot) if given.snapshot else []
    whole, weights = Movable(given.remembered, past, given.role, given.state, summary), None
    movable, settled = whole, given.settled
    if given.room:
        movable, weights = fit([*opening, current], whole, given.room)
        # Where something has gone to make the rest fit, more of it goes when the session is longer.
        settled = settled and weights.total <= given.room.tokens
    shown, pinned = past.messages[movable.start :], movable.pinned
    position = pinned_position(shown, given.placement, given.pinned_from_end)
    before = [*movable.turns, *movable.summary]
    dropped = window.left_out + movable.start
    passages = _history(past, movable.start, position if pinned else len(shown), pinned, dropped=dropped)
    sections = [*opening, *before, *passages, current]
    history = {
        "fetched": window.fetched,
        "merged": window.left_out + len(window.said),
        "shown": len(shown),
        "repaired": window.faults + len(past.repairs),
    }
    # The goal stays. What is shown of settled turns changes no sooner than the window does.
    # Also where nothing is pinned: the next build may have something to pin, or be able to read it.
    stable = len(opening) + (len(before) + _stays(len(shown), position, given) if settled else 0)
    stable = len(instructions) if given.memory_missing else stable
    cut = ["history: older messages of the session are not shown"] if window.cut else []
    notes = [*cut, *unsaid(whole, movable), *past.repairs]
    assembled = put_together("agent", sections, history, stable, notes, given.room.measure if given.room else None)
    return assembled._replace(weights=weights)


def assemble_thinking(given: ThinkingInput) -> Assembled:
    """The two messages of CONTRACT §6: what to do, and what there is to think about."""
    parts = [
        *task_part(given.remembered),
        *workspace_part(given.workspace),
        *turns_part(given.remembered),
        *input_part(given.current_input, given.remembered, sources(given.input_id)),
        *rounds_part(given.rounds, given.rounds_dropped),
    ]
    sections: list[Section] = [*instructions("thinking", MAIN), Joined(parts)]
    return put_together("thinking", sections, _NO_ROWS, _THINKING_PREFIX, [], given.measure)


def instructions(layout: str, agent: Agent) -> list[Block]:
    """What a context of the layout begins with, whatever else is in it."""
    if layout == "thinking":
        return [Block("THINKING_INSTRUCTION", "system", THINKING_INSTRUCTION, constant=True)]
    return _instructions(agent if layout == "agent" else MAIN)


def _instructions(agent: Agent) -> list[Block]:
    escape = CountingEscape()
    if agent.kind == "sub":
        task = escape(agent.task_prompt)
        return [Block("TASK_PROMPT", "user", task, escaped=escape.marked)] if task.strip() else []
    system = escape(agent.system_prompt)
    if system.strip():
        return [Block("SYSTEM_PROMPT", "system", system, escaped=escape.marked)]
    return [_identity()]


@cache
def _identity() -> Block:
    return Block("CORE_IDENTITY", "system", PromptManager().get_core_identity(), constant=True)


def _capabilities(tools: Sequence[Mapping[str, Any]]) -> Block:
    escape = CountingEscape()
    text = PromptManager().get_capabilities_prompt(tools, escape=escape)
    return Block("CAPABILITIES", "user", text, escaped=escape.marked, constant=isinstance(tools, Definitions))


def _history(past: Admitted, start: int, position: int, pinned: Sequence[Block], *, dropped: int) -> list[Section]:
    """The history from `start` on, with the pinned block at this position of that."""
    before = Passage.of("HISTORY", past, start, start + position, dropped=dropped)
    after = Passage.of("HISTORY", past, start + position, dropped=0 if before.messages else dropped)
    return [*([before] if before.messages else []), *pinned, *([after] if after.messages else [])]


def _stays(count: int, position: int, given: AgentInput) -> int:
    """How many messages of the history the next build begins with, wherever the pinned block is then.

    The block only moves on, but for a history so short that it stood at the end: with a message more it stands in
    front of all.
    """
    short = given.placement == "from_end" and count < given.pinned_from_end
    return 0 if short else position
