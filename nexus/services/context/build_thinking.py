"""How a context of the thinking layout comes about (CONTRACT §6).

The goal and what is shown of earlier turns are those of the run's first build, and so are the tools; surroundings and
rounds are those that the request brings.
"""

import anyio

from nexus.core.metrics import Stage
from nexus.services.context.build_memory import offered
from nexus.services.context.build_parts import Build, BuildParts
from nexus.services.context.counting import fitted
from nexus.services.context.fitting import fit_thinking
from nexus.services.context.gathering import gather_goal
from nexus.services.context.layouts import ThinkingInput
from nexus.services.context.prefix import RunPrefix, ThinkingView
from nexus.services.context.recall import Known, needs_goal, recall
from nexus.services.context.remembered import Remembered


async def build_thinking(parts: BuildParts, build: Build) -> RunPrefix:
    """The two messages. What is remembered is not kept where something of it is missing."""
    kept = await parts.kept(build)
    if kept:
        view = ThinkingView.from_bytes(kept)
        parts.go_on(build, view.remembered.goal)
        _, prefix = await _build(parts, build, view)
        return prefix
    parts.begin_turn(build.request)
    begun = await parts.begin_run(build)
    remembered, prefix = await _build(parts, build, None)
    if not prefix.degraded:
        await parts.keep(build, ThinkingView(prefix.tools, remembered).to_bytes())
    prefix.notes.extend(begun.notes)
    await parts.written(begun, prefix, build.deadline)
    return prefix


async def _build(parts: BuildParts, build: Build, view: ThinkingView | None) -> tuple[Remembered, RunPrefix]:
    request, kept = build.request, view.remembered if view else None
    degraded: list[str] = []
    notes = [*request.notes]
    deadline = anyio.current_time() + build.seconds
    with parts.measured(Stage.GATHER, build.timings_ms):
        goal = None
        if parts.turns and needs_goal(request, kept):
            goal = await gather_goal(request, parts.turns, deadline=deadline, degraded=degraded)
        known = Known(goal, kept)
        remembered = await recall(parts.turns, build, known, deadline=deadline, degraded=degraded, notes=notes)
        parts.take_note(degraded, build.settings)
    with parts.measured(Stage.ASSEMBLE, build.timings_ms):
        given = ThinkingInput(
            current_input=request.current_input,
            remembered=remembered,
            workspace=request.turn.workspace_context,
            rounds=request.turn.thinking_rounds,
            input_id=request.human.id,
        )
        tools = view.tools if view else offered(parts.tools, request)
        assembled = fitted(fit_thinking, given, tools, build)
    all_notes = [*notes, *assembled.repairs]
    return remembered, RunPrefix(assembled.messages, assembled.manifest, tools, degraded, all_notes)
