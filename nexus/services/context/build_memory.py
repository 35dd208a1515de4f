"""The working memory in the build of a context: read, compacted in time, and offered as tools (CONTRACT §7).

Rules of this module:

- What cannot be read is missing, which the answer says. All else is read after it, so it may not take all the time.
- A session is compacted before the answer, in a part of the time that there is. Where that does not come about, the
  oldest of its messages are left out of this one context, and the next build tries again.
- Where there are more messages than are ever read for a context, those are compacted in the background.
- The session is the main agent's. A sub-agent, whose model may be a smaller one, and whose own messages are under no
  compaction, is shown less of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import Part
from nexus.core.working_memory import Snapshot, Wish
from nexus.services.context.budget import Weights
from nexus.services.context.build_parts import Build, BuildParts
from nexus.services.context.gathering import within
from nexus.services.context.layouts import instructions
from nexus.services.context.meta import MOST_TOKENS
from nexus.services.context.request import BuildRequest
from nexus.services.context.shortening import shortened
from nexus.services.context.tokens import Measure
from nexus.services.context.transcript import said_in_run
from nexus.services.context.validity import admit
from nexus.tools.memory_tools import MEMORY_TOOLS, READING_TOOLS
from nexus.tools.registry import ToolRegistry

# Of the time that is left, what reading may take, and what a compaction may.
_READING: Final = 0.5
_COMPACTING: Final = 0.5
_WRITING_TOOLS: Final = MEMORY_TOOLS - READING_TOOLS
_NOT_IN_TIME: Final = "history: the session could not be compacted in time; it is tried again for the next context"


@dataclass(slots=True)
class Kept:
    """What is known of a session's working memory for one build.

    Attributes:
        snapshot: None where there is none, or it could not be read.
        degraded, notes: as for `Gathered`.
    """

    snapshot: Snapshot | None = None
    degraded: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def read_memory(parts: BuildParts, build: Build) -> Kept:
    """What is kept of the session, as far as it can be had until the deadline of the build."""
    kept, memory = Kept(), parts.memory
    if memory is None:
        return kept

    async def read() -> None:
        kept.snapshot = await memory.snapshot(build.request.owner_key, build.request.session_id)

    now = anyio.current_time()
    await within(now + (build.deadline - now) * _READING, Part.WORKING_MEMORY, read, kept.degraded)
    return kept


async def compact(
    parts: BuildParts,
    build: Build,
    kept: Kept,
    weights: Weights | None,
    tools: Sequence[Mapping[str, Any]],
    *,
    cut: bool,
    run_room: int | None = None,
) -> bool:
    """Compact the session if the context is too heavy. Whether it was, and everything is to be read again.

    Args:
        parts: for the build.
        build: for which.
        kept: what is known of the session's memory; gets a note where it could not be done in time.
        weights: of the context as it would be.
        tools: that go with it.
        cut: the session has messages that are not read for a context.
        run_room: as for `taken_besides`.
    """
    request, measure = build.request, build.measure
    if parts.memory is None or kept.snapshot is None or weights is None or measure is None:
        return False
    taken, window = taken_besides(tools, build, measure, run_room), build.settings.window
    if request.agent.kind == "sub" or not (cut or window.is_heavy(weights, taken, build.limit)):
        return False
    keep_tokens = window.keep_tokens(weights, taken, build.limit, measure, cut=cut)
    wish = Wish(
        request.owner_key,
        request.session_id,
        keep_tokens=keep_tokens,
        summary_tokens=window.summary_tokens(build.limit, measure),
        run_id=request.run_id,
    )
    if parts.futile.lately(wish):
        return False
    job = parts.memory.compact_soon(wish, long=cut)
    if cut:
        # It takes long. Should there be nothing to compact, the next steps of the run need not ask again.
        parts.futile.note(wish)
    if cut or job is None:
        return False
    with anyio.move_on_after(max((build.deadline - anyio.current_time()) * _COMPACTING, 0)):
        await job.done.wait()
    if job.failed or not job.done.is_set():
        kept.notes.append(_NOT_IN_TIME)
    elif job.made is None:
        parts.futile.note(wish)
    return job.made is not None


def taken_besides(
    tools: Sequence[Mapping[str, Any]], build: Build, measure: Measure | None, run_room: int | None = None
) -> int:
    """How many tokens are taken by what comes with the messages of a layout: these tools, and what the run has said.

    Args:
        tools: that go with them.
        build: for which.
        measure: tells how many; None where nothing has a limit.
        run_room: in how many tokens what the run has said is brought.
    """
    if measure is None:
        return 0
    later = admit(said_in_run(build.request.later, build.request.agent), "run.history").messages
    if run_room is not None:
        later, _ = shortened(later, measure, run_room)
    return _besides_run(tools, build, measure) + sum(map(measure.message, later))


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


def room_of_run(tools: Sequence[Mapping[str, Any]], build: Build, weights: Weights | None) -> int | None:
    """In how many tokens what the run has said has to be brought, so that it fits beside what always stays.

    None where it fits: then memory goes before anything of the run does.
    """
    measure = build.measure
    if measure is None or weights is None or weights.fixed + taken_besides(tools, build, measure) <= build.limit:
        return None
    return max(build.limit - weights.fixed - _besides_run(tools, build, measure), 0)


def _besides_run(tools: Sequence[Mapping[str, Any]], build: Build, measure: Measure) -> int:
    return measure.tools(tools) + (measure.told(MOST_TOKENS) if build.request.layout == "agent" else 0)


def offered(tools: ToolRegistry, request: BuildRequest) -> list[dict[str, Any]]:
    """The tools that go with a context: those of the working memory only where it is shown.

    A sub-agent may look into it; what is written there is the main agent's. Nobody may change what is returned.
    """
    if request.layout != "agent":
        return tools.definitions(MEMORY_TOOLS)
    if request.agent.kind == "sub":
        return tools.definitions(_WRITING_TOOLS)
    return tools.definitions()
