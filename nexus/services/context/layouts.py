"""Old names, until the builder uses `dialogue`, `agent` and `thinking`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, NamedTuple

from nexus.core.turns import ThinkingRound
from nexus.services.context import agent, dialogue, thinking
from nexus.services.context.blocks import Assembled, Block
from nexus.services.context.budget import Room
from nexus.services.context.memory_blocks import NOTHING, Remembered
from nexus.services.history.agents import MAIN, Agent
from nexus.services.text.tokens import Measure


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

    def new(self) -> dialogue.DialogueInput:
        """Without the measure."""
        fields = self._asdict()
        del fields["measure"]
        return dialogue.DialogueInput(**fields)


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

    def new(self) -> thinking.ThinkingInput:
        """Without the measure."""
        fields = self._asdict()
        del fields["measure"]
        return thinking.ThinkingInput(**fields)


@dataclass(frozen=True, slots=True)
class AgentInput(agent.AgentInput):
    """With its room."""

    room: Room | None = None


class DialogueFrame(NamedTuple):
    """Nothing is made ahead any more."""


def dialogue_frame(_given: DialogueInput) -> DialogueFrame:
    """Nothing."""
    return DialogueFrame()


def assemble_dialogue(given: DialogueInput, _frame: DialogueFrame | None = None) -> Assembled:
    """As `dialogue.assemble_dialogue`."""
    return dialogue.assemble_dialogue(given.new(), given.measure)


def assemble_agent(given: AgentInput) -> Assembled:
    """As `agent.assemble_agent`."""
    known = {field.name: getattr(given, field.name) for field in fields(agent.AgentInput)}
    return agent.assemble_agent(agent.AgentInput(**known), given.room)


def assemble_thinking(given: ThinkingInput) -> Assembled:
    """As `thinking.assemble_thinking`."""
    return thinking.assemble_thinking(given.new(), given.measure)


def instructions(layout: str, of: Agent) -> list[Block]:
    """What a context of the layout begins with."""
    if layout == "thinking":
        return thinking.instructions()
    return agent.instructions(of if layout == "agent" else MAIN)
