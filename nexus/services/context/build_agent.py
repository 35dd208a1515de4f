"""How a context of the agent layout comes about, for the main agent and for sub-agents alike (CONTRACT §5).

Rules of this module:

- What is pinned is made anew for every build. The history is that of the run's first build, and so are the tools and
  what is remembered of earlier turns.
- A sub-agent that has no role has asked nothing: nothing of it is recorded.
"""

from collections.abc import Sequence

import anyio

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import Part, Stage
from nexus.services.context.agents import missing_role
from nexus.services.context.assembled import Assembled
from nexus.services.context.build_parts import Begun, Build, BuildParts
from nexus.services.context.cutoff import UntilShown
from nexus.services.context.gathering import GatheredSession, gather_session
from nexus.services.context.layouts import AgentInput, assemble_agent
from nexus.services.context.pinned import is_role_given, what_to_pin
from nexus.services.context.prefix import RunPrefix, RunView
from nexus.services.context.recall import Known, needs_goal, recall
from nexus.services.context.remembered import Remembered
from nexus.services.context.request import BuildRequest
from nexus.services.context.window import Window


async def build_agent(parts: BuildParts, build: Build) -> RunPrefix:
    """The messages up to the current input.

    Raises:
        RequestError: MISSING_AGENT_ROLE for a sub-agent without a role; HISTORY_UNAVAILABLE where its role could not be
            read, and as for `BuildParts.take_note`.
    """
    kept = await parts.kept(build.request)
    if not kept:
        return await _build_first(parts, build)
    view = RunView.from_bytes(kept)
    parts.go_on(build, view.remembered.goal)
    gathered, _, assembled = await _gather(parts, build, view)
    return _prefix(gathered, assembled, view)


async def _build_first(parts: BuildParts, build: Build) -> RunPrefix:
    """The first build of a run, or one of which nothing is kept."""
    begun = None
    if build.request.agent.kind == "main" or is_role_given(build.request.agent, build.request.state):
        begun = await _begin(parts, build)
    gathered, remembered, assembled = await _gather(parts, build, None)
    begun = begun or await _begin(parts, build)
    tools = parts.tools.get_all_tool_definitions()
    view = RunView(UntilShown.of(gathered.rows), gathered.cut, tools, remembered)
    if gathered.complete and not gathered.degraded:
        view = RunView.from_bytes(await parts.keep(build, view.to_bytes()))
    prefix = _prefix(gathered, assembled, view, begun.notes)
    await parts.written(begun, prefix, build.deadline)
    return prefix


async def _begin(parts: BuildParts, build: Build) -> Begun:
    parts.begin_turn(build.request)
    return await parts.begin_run(build)


def _prefix(gathered: GatheredSession, assembled: Assembled, view: RunView, notes: Sequence[str] = ()) -> RunPrefix:
    all_notes = [*notes, *gathered.notes, *assembled.repairs]
    return RunPrefix(assembled.messages, assembled.manifest, view.tools, gathered.degraded, all_notes)


async def _gather(
    parts: BuildParts, build: Build, view: RunView | None
) -> tuple[GatheredSession, Remembered, Assembled]:
    request, kept = build.request, view.remembered if view else None
    deadline = anyio.current_time() + build.seconds
    with parts.measured(Stage.GATHER, build.timings_ms):
        gathered = await gather_session(
            request,
            parts.conversation,
            parts.states,
            parts.turns if needs_goal(request, kept) else None,
            messages=build.settings.history_messages,
            until=view.until if view else None,
            deadline=deadline,
        )
        if view:
            # Those that are left out may be of the same moment as the others, and are then not read any more.
            gathered.cut = view.cut
        # Which turns are read depends on what is shown of the session.
        window = Window.of(gathered.rows, request.agent, cut=gathered.cut, current_run_id=request.run_id)
        known = Known.beside(window, gathered.goal, kept, missing=Part.HISTORY in gathered.degraded)
        remembered = await recall(
            parts.turns, build, known, deadline=deadline, degraded=gathered.degraded, notes=gathered.notes
        )
        parts.take_note(gathered.degraded, build.settings)
    with parts.measured(Stage.ASSEMBLE, build.timings_ms):
        return gathered, remembered, _assemble(build, gathered, window, remembered)


def _assemble(build: Build, gathered: GatheredSession, window: Window, remembered: Remembered) -> Assembled:
    request, settings = build.request, build.settings
    role, state = what_to_pin(request.agent, request.state, gathered.state)
    missing = {Part.HISTORY, Part.TURNS} & {*gathered.degraded}
    if request.agent.kind == "sub" and not role:
        raise _without_role(request, gathered.degraded)
    return assemble_agent(
        AgentInput(
            window=window,
            remembered=remembered,
            settled=not missing and (remembered.is_by_model or not settings.summaries_by_model),
            current_input=request.current_input,
            agent=request.agent,
            role=role,
            state=state,
            placement=settings.placement,
            pinned_from_end=settings.pinned_from_end,
            input_id=request.human.id,
        )
    )


def _without_role(request: BuildRequest, degraded: Sequence[str]) -> RequestError:
    if Part.STATE in degraded:
        reason = f"the role of sub-agent {request.agent.id!r} could not be read in time"
        return RequestError(ErrorCode.HISTORY_UNAVAILABLE, reason)
    return missing_role(request.agent)
