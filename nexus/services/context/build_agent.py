"""How a context of the agent layout comes about, for the main agent and for sub-agents alike (CONTRACT §5).

Rules of this module:

- What is pinned is made anew for every build. The history is that of the run's first build, and so are the tools.
- A sub-agent that has no role has asked nothing: nothing of it is recorded.
"""

from collections.abc import Sequence

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import Part, Stage
from nexus.services.context.agents import missing_role
from nexus.services.context.build_parts import Build, BuildParts
from nexus.services.context.gathering import GatheredSession, gather_session
from nexus.services.context.layouts import AgentInput, Assembled, assemble_agent
from nexus.services.context.pinned import is_role_given, what_to_pin
from nexus.services.context.prefix import RunPrefix, RunView
from nexus.services.context.request import BuildRequest


async def build_agent(parts: BuildParts, build: Build) -> RunPrefix:
    """The messages up to the current input.

    Raises:
        RequestError: MISSING_AGENT_ROLE for a sub-agent without a role; HISTORY_UNAVAILABLE where its role could not be
            read, and as for `BuildParts.take_note`.
    """
    request = build.request
    kept = await parts.kept(request)
    view = RunView.from_bytes(kept) if kept else None
    needs_role = request.agent.kind == "sub" and not is_role_given(request.agent, request.state)
    recorded = None if needs_role else parts.record(request)
    with parts.measured(Stage.GATHER, build.timings_ms):
        gathered = await gather_session(
            request,
            parts.conversation,
            parts.states,
            messages=build.settings.history_messages,
            last_id=view.last_id if view else None,
            seconds=build.seconds,
        )
        parts.take_note(gathered.degraded, build.settings)
    with parts.measured(Stage.ASSEMBLE, build.timings_ms):
        assembled = _assemble(build, gathered)
    if needs_role:
        recorded = parts.record(request)
    if view is None:
        view = RunView.of(gathered.rows, parts.tools.get_all_tool_definitions())
        if gathered.complete and not gathered.degraded:
            view = RunView.from_bytes(await parts.keep(build, view.to_bytes()))
    notes = [*gathered.notes, *assembled.repairs]
    prefix = RunPrefix(assembled.messages, assembled.manifest, view.tools, gathered.degraded, notes)
    await parts.written(recorded, prefix, build.deadline)
    return prefix


def _assemble(build: Build, gathered: GatheredSession) -> Assembled:
    request, settings = build.request, build.settings
    role, state = what_to_pin(request.agent, request.state, gathered.state)
    if request.agent.kind == "sub" and not role:
        raise _without_role(request, gathered.degraded)
    return assemble_agent(
        AgentInput(
            rows=gathered.rows,
            cut=gathered.cut,
            current_input=request.current_input,
            agent=request.agent,
            role=role,
            state=state,
            current_run_id=request.run_id,
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
