"""A context of the agent layout, of what was read; for the main agent and for sub-agents (contract §5, §7). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import Part
from nexus.core.working_memory import Snapshot
from nexus.services.context.agent import AgentInput, fit_agent
from nexus.services.context.blocks import Assembled
from nexus.services.context.gather import Build, RunStanding, SessionSources
from nexus.services.context.meta import Meta
from nexus.services.context.pinned import what_to_pin
from nexus.services.context.recall import Recalled
from nexus.services.context.request import BuildRequest
from nexus.services.context.run_prefix import RunView
from nexus.services.history.reader import UntilShown
from nexus.services.history.rows import missing_role
from nexus.services.history.transcript import Window


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The messages of the agent layout up to the current input, and what they were made of.

    Attributes:
        snapshot: the working memory that is shown; None for none.
        tools: the definitions that go with the messages.
        degraded: parts that are missing.
    """

    standing: RunStanding
    snapshot: Snapshot | None
    session: SessionSources
    recalled: Recalled
    assembled: Assembled
    tools: list[dict[str, Any]]
    degraded: list[str]

    @property
    def view(self) -> RunView:
        """What later builds of the run go by, where this is the first."""
        session = self.session
        return RunView(UntilShown.of(session.rows), session.cut, self.tools, self.recalled.remembered, self.snapshot)

    @property
    def notes(self) -> list[str]:
        """What was passed over, for the manifest."""
        return [*self.session.notes, *self.recalled.notes]

    def meta(self, build: Build) -> Meta:
        """What `[CONTEXT_META]` is to say, as of now: the last message is the one that no cache holds."""
        snapshot, goal = self.standing.snapshot or self.snapshot, self.session.goal
        overview = snapshot.overview if snapshot else None
        turn_number = goal.turn_number if goal and snapshot else None
        written_in = overview.turn_number if overview else 0
        weights, window, limit = self.assembled.weights, build.settings.window, build.budget.limit
        return Meta(
            tokens_limit=limit,
            overview_bytes=len(overview.content.encode("utf-8", "replace")) if overview else 0,
            overview_revision=overview.revision if overview else 0,
            turns_since_overview_update=None if turn_number is None else max(turn_number - written_in, 0),
            compactable=bool(weights and window.is_worth_compacting(weights, limit)),
            has_tools=build.request.agent.kind == "main",
            # Where an overview could not be read, it is not said that there is none.
            is_template=snapshot is not None and overview is None,
            compact_at=window.compact_at,
        )


def agent_context(  # noqa: PLR0917  # one for each thing that was read
    build: Build,
    standing: RunStanding,
    snapshot: Snapshot | None,
    session: SessionSources,
    window: Window,
    recalled: Recalled,
    tools: list[dict[str, Any]],
    degraded: list[str],
) -> AgentContext:
    """The messages of the agent layout, as far as there is room for them.

    Args:
        build: for which.
        standing: the run's view, and the working memory as it is now.
        snapshot: the working memory that is shown.
        session: what was read of it.
        window: what is shown of the session as it was said.
        recalled: the goal and earlier turns.
        tools: that go with them.
        degraded: what is missing.

    Raises:
        RequestError: MISSING_AGENT_ROLE for a sub-agent without a role; HISTORY_UNAVAILABLE where its role could not be
            read.
    """
    request, settings = build.request, build.settings
    role, state = what_to_pin(request.agent, request.state, session.state)
    if request.agent.kind == "sub" and not role:
        raise _without_role(request, degraded)
    missing = {Part.HISTORY, Part.TURNS, Part.WORKING_MEMORY} & {*degraded}
    compaction = snapshot.compaction if snapshot else None
    is_by_model = recalled.remembered.is_by_model and (compaction is None or compaction.source == "model")
    given = AgentInput(
        window=window,
        remembered=recalled.remembered,
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
    assembled = fit_agent(given, build.budget_with(tools), settings.window)
    return AgentContext(standing, snapshot, session, recalled, assembled, tools, degraded)


def shown_snapshot(request: BuildRequest, standing: RunStanding) -> Snapshot | None:
    """The working memory that the run goes by. The template is for the main agent, who may replace it."""
    if standing.view:
        return standing.view.snapshot
    is_template = standing.snapshot == Snapshot()
    return None if request.agent.kind == "sub" and is_template else standing.snapshot


def _without_role(request: BuildRequest, degraded: Sequence[str]) -> RequestError:
    if Part.STATE in degraded:
        reason = f"the role of sub-agent {request.agent.id!r} could not be read in time"
        return RequestError(ErrorCode.HISTORY_UNAVAILABLE, reason)
    return missing_role(request.agent)
