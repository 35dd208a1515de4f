"""The layouts: recipes for the message list (CONTRACT §4, §5). Pure: the same inputs give the same bytes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nexus.services.context.agents import MAIN, Agent
from nexus.services.context.blocks import Block, Passage, Section, compact
from nexus.services.context.escape import CountingEscape
from nexus.services.context.formatters import FriendsInfoFormatter, MemoryFormatter, MomentFormatter
from nexus.services.context.pinned import pinned_blocks
from nexus.services.context.placement import PINNED_FROM_END, Placement, pinned_position
from nexus.services.context.prompts import PromptManager
from nexus.services.context.session_state import SessionState
from nexus.services.context.transcript import said_in_rows, window_start
from nexus.services.context.validity import Admitted, admit

# Of the dialogue layout the next build of the same owner shares the identity and the tools; the memory moves on. Where
# the tools may not be all there, it is the identity alone.
_DIALOGUE_PREFIX: Final = 2
_WITHOUT_TOOLS: Final = 1


@dataclass(frozen=True, slots=True)
class DialogueInput:
    """Everything that the five messages of the dialogue layout are made of.

    Attributes:
        tools: tool definitions, in the order in which they are shown.
        tools_complete: there are no others.
        history: stored rows, in any order.
        timestamp_utc: the run's own time; `""` for none.
        timezone_offset: minutes west of UTC.
        input_id: id of the message that the input came in.
    """

    tools: Sequence[Mapping[str, Any]]
    history: Sequence[Any]
    user_profile: Mapping[str, Any] | None
    current_input: str
    current_run_id: str = ""
    timestamp_utc: str = ""
    timezone_offset: int = 0
    history_size: int = 20
    truncate_chars: int = 500
    default_profile: str = ""
    tools_complete: bool = True
    input_id: str = ""


@dataclass(frozen=True, slots=True)
class AgentInput:
    """Everything that a context of the agent layout is made of.

    Attributes:
        rows: of the session, in any order, without the current run's or with them.
        cut: there are older rows than these.
        role: what is pinned as the agent's role; `""` for none.
        state: what else is pinned.
        pinned_from_end: before which message from the end of the history, or before which assistant message.
        input_id: id of the message that the input came in.
    """

    rows: Sequence[Any]
    current_input: str
    agent: Agent = MAIN
    role: str = ""
    state: SessionState = field(default_factory=SessionState)
    cut: bool = False
    current_run_id: str = ""
    placement: Placement = "from_end"
    pinned_from_end: int = PINNED_FROM_END
    input_id: str = ""


@dataclass(frozen=True, slots=True)
class Assembled:
    """A message list and the manifest of how it came to be (CONTRACT §8), without notes and timings.

    Attributes:
        repairs: what had to be changed or left out, for the notes.
    """

    messages: list[dict[str, Any]]
    manifest: dict[str, Any]
    repairs: list[str]


def assemble_dialogue(given: DialogueInput) -> Assembled:
    """The five messages of CONTRACT §4."""
    prompts = PromptManager()
    tools_escape = CountingEscape()
    capabilities = prompts.get_capabilities_prompt(given.tools, escape=tools_escape)
    memory = MemoryFormatter.render(
        given.history,
        given.history_size,
        current_run_id=given.current_run_id,
        truncate_chars=given.truncate_chars,
        timezone_offset=given.timezone_offset,
    )
    sections = [
        Block("CORE_IDENTITY", "system", prompts.get_core_identity()),
        Block("CAPABILITIES", "user", capabilities, escaped=tools_escape.marked),
        memory.block,
        FriendsInfoFormatter.render(given.user_profile, given.default_profile),
        MomentFormatter.render(
            given.current_input, given.timestamp_utc, given.timezone_offset, sources=_sources(given.input_id)
        ),
    ]
    history = {
        "fetched": _of_other_runs(given.history, given.current_run_id),
        "merged": memory.merged,
        "shown": memory.shown,
        "repaired": memory.repaired,
    }
    stable = _DIALOGUE_PREFIX if given.tools_complete else _WITHOUT_TOOLS
    return _put_together("dialogue", sections, history, stable, [])


def assemble_agent(given: AgentInput) -> Assembled:
    """The messages of CONTRACT §5 up to the current input, for the main agent and for sub-agents alike."""
    said, faults = said_in_rows(given.rows, given.agent, current_run_id=given.current_run_id)
    start = window_start(said) if given.cut else 0
    past = admit(said[start:], "history", going_on=True)
    opening = _opening(given.agent)
    pinned = pinned_blocks(given.role, given.state)
    position = pinned_position(past.messages, given.placement, given.pinned_from_end)
    escape = CountingEscape()
    current = Block("INPUT", "user", escape(given.current_input), _sources(given.input_id), escaped=escape.marked)
    sections = [
        *opening,
        *_history(past, position if pinned else len(past.messages), pinned, dropped=start),
        current,
    ]
    history = {
        "fetched": _of_other_runs(given.rows, given.current_run_id),
        "merged": len(said),
        "shown": len(past.messages),
        "repaired": faults + len(past.repairs),
    }
    # Also where nothing is pinned: the next build may have something to pin, or be able to read it.
    stable = len(opening) + _stays(past, position, given)
    older = ["history: older messages of the session are not shown"] if given.cut else []
    return _put_together("agent", sections, history, stable, [*older, *past.repairs])


def _opening(agent: Agent) -> list[Block]:
    """What an agent is told first. Its role is not part of it."""
    escape = CountingEscape()
    if agent.kind == "sub":
        task = escape(agent.task_prompt)
        return [Block("TASK_PROMPT", "user", task, escaped=escape.marked)] if task.strip() else []
    system = escape(agent.system_prompt)
    if system.strip():
        return [Block("SYSTEM_PROMPT", "system", system, escaped=escape.marked)]
    return [Block("CORE_IDENTITY", "system", PromptManager().get_core_identity())]


def _history(past: Admitted, position: int, pinned: Sequence[Block], *, dropped: int) -> list[Section]:
    """The history with the pinned block inside of it."""
    before = Passage.of("HISTORY", past, 0, position, dropped=dropped)
    after = Passage.of("HISTORY", past, position, dropped=0 if before.messages else dropped)
    return [*([before] if before.messages else []), *pinned, *([after] if after.messages else [])]


def _stays(past: Admitted, position: int, given: AgentInput) -> int:
    """How many messages of the history the next build begins with, wherever the pinned block is then.

    The block only moves on, but for a history so short that it stood at the end: with a message more it stands in
    front of all.
    """
    short = given.placement == "from_end" and len(past.messages) < given.pinned_from_end
    return 0 if short else position


def _put_together(
    layout: str, sections: Sequence[Section], history: Mapping[str, int], stable: int, repairs: list[str]
) -> Assembled:
    messages: list[dict[str, Any]] = []
    described = []
    for section in sections:
        described.append(section.describe(len(messages)))
        messages += section.messages
    manifest = {
        "layout": layout,
        "blocks": described,
        "history": dict(history),
        "prefix": describe_prefix(messages, stable),
    }
    return Assembled(messages, manifest, repairs)


def _sources(input_id: str) -> tuple[str, ...]:
    return (input_id,) if input_id else ()


def _of_other_runs(rows: Sequence[Any], run_id: str) -> int:
    # Whether the run's own input is among the rows already depends on who was faster, and shall not show.
    return sum(not _is_of_run(row, run_id) for row in rows)


def _is_of_run(row: Any, run_id: str) -> bool:
    return bool(run_id) and isinstance(row, Mapping) and row.get("run_id") == run_id


def describe_prefix(messages: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
    """The leading `count` messages and the SHA-256 of their compact JSON in UTF-8 (CONTRACT §8)."""
    return {"messages": count, "sha256": hashlib.sha256(compact(messages[:count])).hexdigest()}
