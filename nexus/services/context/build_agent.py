"""How a context of the agent layout comes about, for the main agent and for sub-agents alike (CONTRACT §5, §7).

Rules of this module:

- What is pinned is made anew for every build. The history is that of the run's first build, and so are the tools, the
  working memory and what is remembered of earlier turns, until the session is compacted: then all is read again.
- A sub-agent that has no role has asked nothing: nothing of it is recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import Part, Stage
from nexus.core.working_memory import WHOLE, Snapshot
from nexus.services.context.agents import missing_role
from nexus.services.context.assembled import Assembled
from nexus.services.context.build_memory import Kept, compact, offered, read_memory, room_of_run, taken_besides
from nexus.services.context.build_parts import Begun, Build, BuildParts
from nexus.services.context.cutoff import UntilShown
from nexus.services.context.gathering import INCOMPLETE, GatheredSession, gather_session
from nexus.services.context.layouts import AgentInput, assemble_agent
from nexus.services.context.meta import Meta
from nexus.services.context.pinned import is_role_given, what_to_pin
from nexus.services.context.prefix import RunPrefix, RunView, compactions_of
from nexus.services.context.recall import Known, needs_goal, recall
from nexus.services.context.remembered import Remembered
from nexus.services.context.request import BuildRequest
from nexus.services.context.window import Window


@dataclass(slots=True)
class _Made:
    """One attempt at a context.

    Attributes:
        kept: what is known of the working memory now.
        snapshot: what is shown of it.
        view: as an earlier build has kept it; None in the first.
        under: the number of compactions with which it is to be kept; see `prefix_key`.
        begun: the run, if this build has begun it.
    """

    kept: Kept
    snapshot: Snapshot | None
    view: RunView | None
    under: int
    begun: Begun | None
    gathered: GatheredSession
    remembered: Remembered
    assembled: Assembled


async def build_agent(parts: BuildParts, build: Build) -> RunPrefix:
    """The messages up to the current input.

    Raises:
        RequestError: MISSING_AGENT_ROLE for a sub-agent without a role; HISTORY_UNAVAILABLE where its role could not be
            read, and as for `BuildParts.take_note`.
    """
    made = await _make(parts, build, None)
    tools = _tools(parts, build, made.view)
    weights, run_room = made.assembled.weights, made.assembled.run_room
    if await compact(parts, build, made.kept, weights, tools, cut=made.gathered.cut, run_room=run_room):
        made = await _make(parts, build, made.begun)
    prefix = await _finished(parts, build, made)
    return prefix._replace(meta=_meta(parts, build, made), run_room=made.assembled.run_room)


async def _make(parts: BuildParts, build: Build, begun: Begun | None) -> _Made:
    kept = await read_memory(parts, build)
    view, under = await _find_view(parts, build, kept)
    if view:
        parts.go_on(build, view.remembered.goal)
    elif not begun and (build.request.agent.kind == "main" or is_role_given(build.request.agent, build.request.state)):
        begun = await _begin(parts, build)
    snapshot = view.snapshot if view else _shown(build.request, kept.snapshot)
    gathered, remembered, assembled = await _gather(parts, build, view, kept, snapshot)
    return _Made(kept, snapshot, view, under, begun, gathered, remembered, assembled)


async def _find_view(parts: BuildParts, build: Build, kept: Kept) -> tuple[RunView | None, int]:
    """What the run goes by, and with which number of compactions it is kept: none for that of the run's first build.

    While nobody can tell whether the session has been compacted since, the run goes by that.
    """
    first = await parts.kept(build)
    view = RunView.from_bytes(first) if first else None
    under = compactions_of(kept.snapshot)
    if view is None or kept.snapshot is None or view.compactions == under:
        return view, 0
    later = await parts.kept(build, under)
    return (RunView.from_bytes(later) if later else None), under


async def _finished(parts: BuildParts, build: Build, made: _Made) -> RunPrefix:
    """The messages; of the first build with what the others of the run go by, which is kept for them."""
    gathered, view = made.gathered, made.view
    if view:
        return _prefix(made, view)
    begun = made.begun or await _begin(parts, build)
    tools = _tools(parts, build, None)
    view = RunView(UntilShown.of(gathered.rows), gathered.cut, tools, made.remembered, made.snapshot)
    if gathered.complete and not gathered.degraded:
        view = RunView.from_bytes(await parts.keep(build, view.to_bytes(), made.under))
    prefix = _prefix(made, view, begun.notes)
    await parts.written(begun, prefix, build.deadline)
    return prefix


async def _begin(parts: BuildParts, build: Build) -> Begun:
    parts.begin_turn(build.request)
    return await parts.begin_run(build)


def _prefix(made: _Made, view: RunView, notes: Sequence[str] = ()) -> RunPrefix:
    gathered, assembled = made.gathered, made.assembled
    all_notes = [*notes, *gathered.notes, *made.kept.notes, *assembled.repairs]
    return RunPrefix(assembled.messages, assembled.manifest, view.tools, gathered.degraded, all_notes)


def _tools(parts: BuildParts, build: Build, view: RunView | None) -> list[dict[str, Any]]:
    return view.tools if view else offered(parts.tools, build.request)


def _shown(request: BuildRequest, snapshot: Snapshot | None) -> Snapshot | None:
    """What is shown of the working memory: the template is for the main agent, who may put something in its place."""
    return None if request.agent.kind == "sub" and snapshot == Snapshot() else snapshot


async def _gather(
    parts: BuildParts, build: Build, view: RunView | None, memory: Kept, snapshot: Snapshot | None
) -> tuple[GatheredSession, Remembered, Assembled]:
    request, kept, deadline = build.request, view.remembered if view else None, build.deadline
    tail = snapshot.tail if snapshot else WHOLE
    with parts.measured(Stage.GATHER, build.timings_ms):
        caught_up = await parts.write_journal(build)
        gathered = await gather_session(
            request,
            parts.conversation,
            parts.states,
            parts.turns if needs_goal(request, kept) else None,
            messages=build.settings.history_messages,
            until=view.until if view else None,
            tail=tail,
            deadline=deadline,
        )
        gathered.degraded += memory.degraded
        if not caught_up:
            gathered.complete = False
            gathered.notes.append(INCOMPLETE)
        if view:
            # Those that are left out may be of the same moment as the others, and are then not read any more.
            gathered.cut = view.cut
        # Which turns are read depends on what is shown of the session.
        window = Window.of(gathered.rows, request.agent, cut=gathered.cut, current_run_id=request.run_id)
        missing = Part.HISTORY in gathered.degraded or not tail.is_all
        known = Known.beside(window, gathered.goal, kept, missing=missing)
        remembered = await recall(
            parts.turns, build, known, deadline=deadline, degraded=gathered.degraded, notes=gathered.notes
        )
        parts.take_note(gathered.degraded, build.settings)
    with parts.measured(Stage.ASSEMBLE, build.timings_ms):
        tools = _tools(parts, build, view)
        return gathered, remembered, _assemble(build, gathered, window, remembered, snapshot, tools)


def _assemble(  # noqa: PLR0917  # one for each thing that was read
    build: Build,
    gathered: GatheredSession,
    window: Window,
    remembered: Remembered,
    snapshot: Snapshot | None,
    tools: Sequence[Mapping[str, Any]],
) -> Assembled:
    request, settings = build.request, build.settings
    role, state = what_to_pin(request.agent, request.state, gathered.state)
    missing = {Part.HISTORY, Part.TURNS, Part.WORKING_MEMORY} & {*gathered.degraded}
    if request.agent.kind == "sub" and not role:
        raise _without_role(request, gathered.degraded)
    compaction = snapshot.compaction if snapshot else None
    is_by_model = remembered.is_by_model and (compaction is None or compaction.source == "model")
    given = AgentInput(
        window=window,
        remembered=remembered,
        settled=not missing and (is_by_model or not settings.summaries_by_model),
        current_input=request.current_input,
        agent=request.agent,
        role=role,
        state=state,
        placement=settings.placement,
        pinned_from_end=settings.pinned_from_end,
        input_id=request.human.id,
        snapshot=snapshot,
        memory_missing=snapshot is None and Part.WORKING_MEMORY in missing,
    )
    return _in_room(build, given, tools)


def _in_room(build: Build, given: AgentInput, tools: Sequence[Mapping[str, Any]]) -> Assembled:
    """The context as far as there is room for it: a run that fits in no case has its results go before the memory."""
    measure, limit, window = build.measure, build.limit, build.settings.window
    if measure is None:
        return assemble_agent(given)
    assembled = assemble_agent(replace(given, room=window.room(measure, limit, taken_besides(tools, build, measure))))
    run_room = room_of_run(tools, build, assembled.weights)
    if run_room is None:
        return assembled
    room = window.room(measure, limit, taken_besides(tools, build, measure, run_room))
    return assemble_agent(replace(given, room=room))._replace(run_room=run_room)


def _meta(parts: BuildParts, build: Build, made: _Made) -> Meta | None:
    """What is said of the context at its end, as of now: the last message is the one that no cache holds."""
    if parts.memory is None:
        return None
    snapshot, goal = made.kept.snapshot or made.snapshot, made.gathered.goal
    overview = snapshot.overview if snapshot else None
    turn_number = goal.turn_number if goal and snapshot else None
    written_in = overview.turn_number if overview else 0
    weights = made.assembled.weights
    return Meta(
        tokens_limit=build.limit,
        overview_bytes=len(overview.content.encode("utf-8", "replace")) if overview else 0,
        overview_revision=overview.revision if overview else 0,
        turns_since_overview_update=None if turn_number is None else max(turn_number - written_in, 0),
        compactable=bool(weights and build.settings.window.is_worth_compacting(weights, build.limit)),
        has_tools=build.request.agent.kind == "main",
        # Of an overview that could not be read nobody is told that there is none.
        is_template=snapshot is not None and overview is None,
        compact_at=build.settings.window.compact_at,
    )


def _without_role(request: BuildRequest, degraded: Sequence[str]) -> RequestError:
    if Part.STATE in degraded:
        reason = f"the role of sub-agent {request.agent.id!r} could not be read in time"
        return RequestError(ErrorCode.HISTORY_UNAVAILABLE, reason)
    return missing_role(request.agent)
