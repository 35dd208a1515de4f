"""One build as a value: its request, the settings it began with, its time and its tokens. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from nexus.core.turns import Level
from nexus.services.context import agent, thinking
from nexus.services.context.budget import Budget, WindowSettings
from nexus.services.context.placement import PINNED_FROM_END, Placement
from nexus.services.context.request import BuildRequest
from nexus.services.history.agents import MAIN
from nexus.services.tools.memory_tools import MEMORY_TOOLS, READING_TOOLS
from nexus.services.tools.registry import ToolRegistry

_WRITING_TOOLS: Final = MEMORY_TOOLS - READING_TOOLS


@dataclass(frozen=True, slots=True)
class BuilderSettings:
    """What the builder needs of the settings (contract §9).

    Attributes:
        history_size: messages in the memory for owners without a setting of their own, 1 to 200.
        truncate_chars: the length to which a longer message is cut.
        default_profile: the profile text of owners without one.
        on_history_failure: what to do when the history cannot be read.
        keep_prefix_ms: for how long the first messages of a run are kept for its later builds.
        history_messages: rows of a session that the agent layout shows at most.
        placement, pinned_from_end: where the agent layout puts the pinned block.
        summary_detail_level: how much is shown of each earlier turn.
        turns_shown: earlier turns that are shown at most.
        summaries_by_model: a model replaces summaries that were made by rules.
        count_tokens: whether contexts are counted that surely fit, in layouts that do not say how long they are.
        window: what a context may take of the model's window, and when a session is compacted.
    """

    default_layout: str = "dialogue"
    history_size: int = 20
    truncate_chars: int = 500
    default_profile: str = ""
    on_history_failure: Literal["degrade", "error"] = "degrade"
    keep_prefix_ms: int = 3_600_000
    history_messages: int = 1_000
    placement: Placement = "from_end"
    pinned_from_end: int = PINNED_FROM_END
    summary_detail_level: Level = "detailed"
    turns_shown: int = 100
    summaries_by_model: bool = False
    count_tokens: Literal["needed", "always"] = "needed"
    window: WindowSettings = field(default_factory=WindowSettings)


class Build(NamedTuple):
    """One build.

    Attributes:
        deadline: when reading ends, by `anyio.current_time()`.
        budget: the tokens of the context, with the tools that are offered now.
        outbox_waiting: recorded rows wait in the outbox, of whichever owner.
    """

    request: BuildRequest
    settings: BuilderSettings
    deadline: float
    budget: Budget
    outbox_waiting: bool = False

    def budget_with(self, tools: Sequence[dict[str, Any]]) -> Budget:
        """The budget with other tools."""
        return self.budget if tools is self.budget.tools else replace(self.budget, tools=tools)

    def check_input(self) -> None:
        """See that there can be a context for this input, before anything of the run is recorded.

        Raises:
            RequestError: PAYLOAD_TOO_LARGE, where instructions, tools and the input do not fit into the window.
        """
        request = self.request
        if request.layout == "thinking":
            opening = thinking.instructions()
        else:
            opening = agent.instructions(request.agent if request.layout == "agent" else MAIN)
        messages = [message for block in opening for message in block.messages]
        self.budget.check_input(messages, request.current_input)


def offered(tools: ToolRegistry, request: BuildRequest) -> list[dict[str, Any]]:
    """The tools that go with a context: those of the working memory only in the agent layout. Not to be changed.

    A sub-agent may read the working memory; writing there is the main agent's.
    """
    if request.layout != "agent":
        return tools.definitions(MEMORY_TOOLS)
    if request.agent.kind == "sub":
        return tools.definitions(_WRITING_TOOLS)
    return tools.definitions()
