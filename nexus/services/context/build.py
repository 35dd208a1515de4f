"""One build as a value: its request, the settings it began with, and the room it has in the model's window. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.turns import Level
from nexus.services.context.budget import Weights
from nexus.services.context.layouts import instructions
from nexus.services.context.limits import WindowSettings
from nexus.services.context.meta import MOST_TOKENS
from nexus.services.context.placement import PINNED_FROM_END, Placement
from nexus.services.context.request import BuildRequest
from nexus.services.context.shortening import shortened
from nexus.services.context.tokens import Bound, Measure
from nexus.services.context.transcript import said_in_run
from nexus.services.context.validity import admit
from nexus.tools.memory_tools import MEMORY_TOOLS, READING_TOOLS
from nexus.tools.registry import ToolRegistry

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
        measure: counts tokens; None where there is no tokenizer, and then nothing has a limit.
        bound: tells without counting what surely fits; None where everything is counted.
        outbox_waiting: recorded rows wait in the outbox, of whichever owner.
    """

    request: BuildRequest
    settings: BuilderSettings
    deadline: float
    measure: Measure | None = None
    bound: Bound | None = None
    outbox_waiting: bool = False

    @property
    def limit(self) -> int:
        """How many tokens the context may take."""
        return self.settings.window.limit(self.request.layout, self.request.context_window)


def taken_besides(
    tools: Sequence[Mapping[str, Any]], build: Build, measure: Measure | None, run_room: int | None = None
) -> int:
    """How many tokens are taken by what comes with the messages of a layout: tools, and the run's later messages.

    Args:
        tools: the definitions.
        build: the build.
        measure: counts; None where nothing has a limit.
        run_room: tokens to which the run's later messages are shortened; None for as they are.
    """
    if measure is None:
        return 0
    later = admit(said_in_run(build.request.later, build.request.agent), "run.history").messages
    if run_room is not None:
        later, _ = shortened(later, measure, run_room)
    return _besides_run(tools, build, measure) + sum(map(measure.message, later))


def room_of_run(tools: Sequence[Mapping[str, Any]], build: Build, weights: Weights | None) -> int | None:
    """Tokens to which the run's later messages have to be shortened to fit beside what always stays.

    None where they fit: then memory goes before anything of the run does.
    """
    measure = build.measure
    if measure is None or weights is None or weights.fixed + taken_besides(tools, build, measure) <= build.limit:
        return None
    return max(build.limit - weights.fixed - _besides_run(tools, build, measure), 0)


def check_input(tools: Sequence[Mapping[str, Any]], build: Build) -> None:
    """See that there is a context for this input, before anything of the run is recorded.

    Raises:
        RequestError: PAYLOAD_TOO_LARGE, where instructions, tools and the input do not fit into the window.
    """
    request = build.request
    opening = [message for block in instructions(request.layout, request.agent) for message in block.messages]

    def taken(measure: Measure) -> tuple[int, int]:
        return measure.text(request.current_input), measure.messages(opening) + _besides_run(tools, build, measure)

    if build.measure is None or (build.bound and sum(taken(build.bound)) <= build.limit):
        return
    said, others = taken(build.measure)
    if said + others > build.limit:
        reason = (
            f"run.history: the input takes {said} tokens, and instructions and tools {others}; at most {build.limit} "
            "are allowed together"
        )
        raise RequestError(ErrorCode.PAYLOAD_TOO_LARGE, reason)


def offered(tools: ToolRegistry, request: BuildRequest) -> list[dict[str, Any]]:
    """The tools that go with a context: those of the working memory only in the agent layout. Not to be changed.

    A sub-agent may read the working memory; writing there is the main agent's.
    """
    if request.layout != "agent":
        return tools.definitions(MEMORY_TOOLS)
    if request.agent.kind == "sub":
        return tools.definitions(_WRITING_TOOLS)
    return tools.definitions()


def _besides_run(tools: Sequence[Mapping[str, Any]], build: Build, measure: Measure) -> int:
    return measure.tools(tools) + (measure.told(MOST_TOKENS) if build.request.layout == "agent" else 0)
