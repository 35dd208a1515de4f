"""Layout `agent`: the session word for word, with working memory and the pinned block (contract §5, §7). Pure.

- Where there is no room for all (`fitting.py`), the oldest turns, messages and notes of the pinned block go, `[MOOD]`,
  and the worst hits of `[RECALL]`. A tool call goes together with its results.
- The block's manifest entry counts the lost items; a note names a block that has gone altogether.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import Part
from nexus.core.models import LeftOut, Why
from nexus.core.working_memory import Snapshot
from nexus.services.context.blocks import (
    OLDER,
    Assembled,
    Block,
    Passage,
    Section,
    assemble,
    source_of,
    text_of,
)
from nexus.services.context.bounds import Bounds
from nexus.services.context.budget import Budget
from nexus.services.context.fitting import Growing, Kept, fit, kept_aside, whole_blocks
from nexus.services.context.gather import Build
from nexus.services.context.memory_blocks import (
    NOTHING,
    Meta,
    Remembered,
    bounded_goal,
    bounded_memory,
    summary_block,
    task_block,
    turns_block,
    without_oldest,
    working_memory_block,
)
from nexus.services.context.person_blocks import CONSTRAINTS, aside_blocks, mood_block
from nexus.services.context.pinned import PINNED_FROM_END, Placement, pinned_blocks, pinned_position, what_to_pin
from nexus.services.context.prompts import identity_block
from nexus.services.context.run_prefix import RunView
from nexus.services.context.session import SessionSources
from nexus.services.history.messages import HistoryMessage
from nexus.services.history.progress import is_progress
from nexus.services.history.reader import UntilShown
from nexus.services.history.rows import MAIN, Agent, missing_role, text_or_empty
from nexus.services.history.transcript import Admitted, Window, admit, count_said
from nexus.services.session_state.state import SessionState
from nexus.services.text.escape import CountingEscape, canonical
from nexus.services.text.tokens import Measure


@dataclass(frozen=True, slots=True)
class AgentInput:
    """The content of an agent context.

    Attributes:
        window: the part of the session that is shown.
        results: those of its calls that come with the request.
        remembered: the goal, and the turns whose input the window does not show.
        settled: session and memory were read completely, and no summary is about to be replaced.
        role: the pinned role; `""` for none.
        state: the rest of the pinned block.
        placement, pinned_from_end: the message, or assistant message, from the end of the history that follows it.
        input_id: id of the input's message.
        snapshot: the working memory; None where none is shown.
        memory_missing: the working memory could not be read.
        most_todos: so many of the TODO list are shown; None for all.
        cut: tags of the blocks of whose text only the beginning is given.
        aside: `[CONSTRAINTS]`, the last part of the pinned block, `[RECALL]` and `[MOOD]`, as far as there are any.
    """

    window: Window
    current_input: str
    results: Sequence[HistoryMessage] = ()
    agent: Agent = MAIN
    remembered: Remembered = NOTHING
    settled: bool = True
    role: str = ""
    state: SessionState = field(default_factory=SessionState)
    placement: Placement = "from_end"
    pinned_from_end: int = PINNED_FROM_END
    input_id: str = ""
    snapshot: Snapshot | None = None
    memory_missing: bool = False
    most_todos: int | None = None
    cut: frozenset[str] = frozenset()
    aside: Sequence[Block] = ()


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The messages of the agent layout up to the current input, and their sources.

    Attributes:
        snapshot: the working memory that is shown; None for none.
        mood: `[MOOD]`; None for none.
        tools: the definitions that go with the messages.
        degraded: parts that are missing.
    """

    session: SessionSources
    snapshot: Snapshot | None
    mood: Block | None
    assembled: Assembled
    tools: list[dict[str, Any]]
    degraded: list[str]

    @property
    def view(self) -> RunView:
        """The view for later builds of the run, where this is the first."""
        session = self.session
        # No set: a row may have anything as its id.
        shown = [source for block in self.assembled.manifest["blocks"] for source in block["sources"]]
        progress = {
            row["_id"]: row["metadata"]
            for row in session.rows
            if is_progress(row) and text_or_empty(row.get("id")) in shown
        }
        return RunView(
            self.tools,
            session.past.remembered,
            session.recall,
            tuple(session.constraints),
            UntilShown.of(session.rows),
            session.cut,
            self.snapshot,
            self.mood,
            progress,
            session.goal.turn_number if session.goal else None,
        )

    @property
    def left_out(self) -> list[LeftOut]:
        """What the messages do not show."""
        return [*self.session.past.left_out, *self.assembled.left_out]

    def meta(self, build: Build) -> Meta:
        """The figures of `[CONTEXT_META]`, as of now: no cache holds the last message."""
        memory, goal = self.session.memory, self.session.goal
        snapshot = memory.snapshot or self.snapshot
        overview = snapshot.overview if snapshot else None
        turn_number = goal.turn_number if goal else memory.view.turn_number if memory.view else None
        turns_since = None
        if snapshot and turn_number is not None:
            turns_since = max(turn_number - (overview.turn_number if overview else 0), 0)
        weights, window, limit = self.assembled.weights, build.settings.window, build.budget.limit
        return Meta(
            tokens_limit=limit,
            overview_bytes=len(overview.content.encode("utf-8", "replace")) if overview else 0,
            overview_revision=overview.revision if overview else 0,
            turns_since_overview_update=turns_since,
            compactable=bool(weights and window.is_worth_compacting(weights, limit)),
            has_tools=build.request.agent.kind == "main",
            # An overview that could not be read may exist.
            is_template=snapshot is not None and overview is None,
            compact_at=window.compact_at,
        )


def agent_context(
    build: Build, session: SessionSources, tools: list[dict[str, Any]], degraded: list[str]
) -> AgentContext:
    """The context that fits into the window; `degraded` names the missing parts.

    Raises:
        RequestError: MISSING_AGENT_ROLE for a sub-agent without a role; HISTORY_UNAVAILABLE where its role could not be
            read.
    """
    request, settings, memory = build.request, build.settings, session.memory
    snapshot, recall, remembered = memory.shown(request), session.recall, session.past.remembered
    role, state = what_to_pin(request.agent, request.state, session.state)
    if request.agent.kind == "sub" and not role:
        if Part.STATE in degraded:
            reason = f"the role of sub-agent {request.agent.id!r} could not be read in time"
            raise RequestError(ErrorCode.HISTORY_UNAVAILABLE, reason)
        raise missing_role(request.agent)
    missing = {Part.HISTORY, Part.TURNS, Part.WORKING_MEMORY} & {*degraded}
    compaction = snapshot.compaction if snapshot else None
    mood = memory.view.mood if memory.view else None
    if settings.mood and not memory.view:
        mood = mood_block(request, reversed(session.window.messages))
    is_by_model = remembered.is_by_model and (compaction is None or compaction.source == "model")
    given = AgentInput(
        window=session.window,
        remembered=remembered,
        settled=not missing and (is_by_model or not settings.summaries_by_model),
        current_input=request.current_input,
        results=build.run.earlier,
        agent=request.agent,
        role=role,
        state=state,
        placement=settings.placement,
        pinned_from_end=settings.pinned_from_end,
        input_id=request.human.id,
        snapshot=snapshot,
        memory_missing=snapshot is None and Part.WORKING_MEMORY in missing,
        aside=aside_blocks([*session.constraints, *request.constraints], recall.block if recall else None, mood),
    )
    assembled = fit_agent(given, build.budget_with(tools))
    assembled = recall.counted(assembled) if recall else assembled
    return AgentContext(session, snapshot, mood, assembled, tools, degraded)


def instructions(agent: Agent) -> list[Block]:
    """The blocks that a context for this agent begins with; none for a sub-agent without a task."""
    escape = CountingEscape()
    if agent.kind == "sub":
        task = escape(agent.task_prompt)
        return [Block("TASK_PROMPT", "user", task, escaped=escape.marked)] if task.strip() else []
    system = escape(agent.system_prompt)
    return [Block("SYSTEM_PROMPT", "system", system, escaped=escape.marked)] if system.strip() else [identity_block()]


def bounded_agent(agent: Agent, bounds: Bounds | None) -> Agent:
    """The agent with as much of its instructions as is shown."""
    if bounds is None:
        return agent
    if agent.kind == "sub":

        def shown(text: str) -> str:
            return text_of(instructions(replace(agent, task_prompt=text)))

        return replace(agent, task_prompt=bounds.cut("TASK_PROMPT", agent.task_prompt, shown))
    if not canonical(agent.system_prompt).strip():
        return agent
    system = bounds.cut(
        "SYSTEM_PROMPT", agent.system_prompt, lambda text: text_of(instructions(replace(agent, system_prompt=text)))
    )
    return replace(agent, system_prompt=system)


def _bounded(given: AgentInput, bounds: Bounds) -> AgentInput:
    """What is given, with no more of the texts that always stay than their shares allow."""
    agent = bounded_agent(given.agent, bounds)
    role = bounds.cut("AGENT_ROLE", given.role, lambda text: text_of(pinned_blocks(text, SessionState())))
    remembered = bounded_goal(given.remembered, bounds, lambda goal: text_of(task_block(goal)))
    snapshot = bounded_memory(given.snapshot, bounds) if given.snapshot else None
    todos = SessionState(todos=given.state.todos)
    pairs = (
        ("SYSTEM_PROMPT", agent.system_prompt, given.agent.system_prompt),
        ("TASK_PROMPT", agent.task_prompt, given.agent.task_prompt),
        ("AGENT_ROLE", role, given.role),
        ("TASK_CONTEXT", remembered.goal, given.remembered.goal),
        ("WORKING_MEMORY", _overview(snapshot), _overview(given.snapshot)),
    )
    return replace(
        given,
        agent=agent,
        role=role,
        remembered=remembered,
        snapshot=snapshot,
        most_todos=bounds.most(
            "TODO_LIST", len(todos.todos or ()), lambda kept: text_of(pinned_blocks("", todos, todos=kept))
        ),
        cut=frozenset(tag for tag, shown, whole in pairs if shown != whole),
    )


def _overview(snapshot: Snapshot | None) -> str:
    return snapshot.overview.content if snapshot and snapshot.overview else ""


def fit_agent(given: AgentInput, budget: Budget) -> Assembled:
    """The context within its budget, as far as leaving memory out goes."""
    given = _bounded(given, budget.bounds) if budget.bounds else given
    past = admit([*given.window.messages, *given.results], "history", going_on=True)
    return fit(budget, _growing(given, past), partial(_assemble, given, past))


def _growing(given: AgentInput, past: Admitted) -> dict[str, Growing]:
    """The blocks that can grow."""

    def of(blocks: Callable[[int], Sequence[Block]], most: int) -> Growing:
        def weigh(measure: Measure, kept: int) -> int:
            return sum(measure.message(message) for block in blocks(kept) for message in block.messages)

        return Growing(most, weigh)

    starts = _starts(past.messages)
    items = len(given.state.useful_info or ()) + len(given.state.folder_notes or ())
    summary = summary_block(given.snapshot) if given.snapshot else []
    turns = given.remembered.turns
    return {
        "turns": of(lambda kept: turns_block(without_oldest(given.remembered, len(turns) - kept)), len(turns)),
        "history": Growing(
            len(starts) - 1, lambda measure, kept: sum(map(measure.message, past.messages[starts[kept] :]))
        ),
        "notes": of(lambda kept: pinned_blocks("", replace(given.state, todos=None), most=kept), items),
        "summary": of(lambda kept: summary[:kept], len(summary)),
        **whole_blocks(given.aside),
    }


def _starts(messages: Sequence[dict[str, Any]]) -> list[int]:
    """Where a history may begin, the latest place first: at its end, and where no call is left without its results."""
    return [len(messages), *(index for index in range(len(messages))[::-1] if messages[index]["role"] != "tool")]


def _assemble(given: AgentInput, past: Admitted, kept: Kept, measure: Measure | None) -> Assembled:
    window, snapshot, items = given.window, given.snapshot, kept.items
    opening = instructions(given.agent)
    stable_opening = len(opening)
    opening += [working_memory_block(snapshot)] if snapshot else []
    opening += task_block(given.remembered)
    escape = CountingEscape()
    current = Block("INPUT", "user", escape(given.current_input), source_of(given.input_id), escaped=escape.marked)
    start = _starts(past.messages)[items["history"]]
    shown = past.messages[start:]
    before = turns_block(without_oldest(given.remembered, len(given.remembered.turns) - items["turns"]))
    before += summary_block(snapshot) if snapshot and items["summary"] else []
    pinned = pinned_blocks(given.role, given.state, most=items["notes"], todos=given.most_todos)
    aside = kept_aside(given.aside, kept)
    pinned += [block for block in aside if block.tag == CONSTRAINTS]
    position = pinned_position(shown, given.placement, given.pinned_from_end)
    if not given.memory_missing:
        # A longer session loses more than this one.
        settled = given.settled and not kept.short
        # Also where nothing is pinned: the next build may pin something.
        stable_opening = len(opening) + (len(before) + _stays(len(shown), position, given) if settled else 0)
    dropped = window.left_out + start
    passages = _history(past, start, position if pinned else len(shown), pinned, dropped=dropped)
    aside = [block for block in aside if block.tag != CONSTRAINTS]
    cut = ["history: older messages of the session are not shown"] if window.cut else []
    older = [LeftOut(OLDER, "HISTORY", Why.TOO_MANY)] if window.cut and not dropped else []
    return assemble(
        "agent",
        [*opening, *before, *passages, *aside, current],
        rows={
            "fetched": window.fetched,
            "merged": window.left_out + count_said(window.messages),
            "shown": len(shown),
            "repaired": window.faults + len(past.repairs),
        },
        stable=stable_opening,
        repairs=[*cut, *past.repairs],
        left_out=[*older, *window.unread, *past.left_out],
        whole=kept.whole,
        cut=given.cut,
        measure=measure,
    )


def _history(past: Admitted, start: int, position: int, pinned: Sequence[Block], *, dropped: int) -> list[Section]:
    """The history from `start` on, with the pinned block before its message at `position`."""
    before = Passage.of("HISTORY", past, start, start + position, dropped=dropped)
    after = Passage.of("HISTORY", past, start + position, dropped=0 if before.messages else dropped)
    return [*([before] if before.messages else []), *pinned, *([after] if after.messages else [])]


def _stays(count: int, position: int, given: AgentInput) -> int:
    """The number of messages of the history that the next build begins with, wherever the pinned block is then.

    The block only moves on, except in a history so short that it stood at the end: with one message more it stands in
    front of all.
    """
    short = given.placement == "from_end" and count < given.pinned_from_end
    return 0 if short else position
