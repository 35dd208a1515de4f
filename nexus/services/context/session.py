"""The reads of the agent and thinking layouts, and the compaction of a session that is too long (contract §5, §6, §7).

- A session that has been compacted since the run's first build is shown anew; while that is unknown, the run goes on
  as its first build began. Turns are shown as the run began with them, but in the detail that the request names.
- A session is compacted before the answer, in a part of the time. If that does not succeed, the oldest of its
  messages are left out of this one context, and the next build tries again. Sessions with more messages than are ever
  read for a context are compacted in the background.
- The session is the main agent's: a sub-agent, whose model may be a smaller one, is shown less of it and has nothing
  compacted.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import anyio

from nexus.core.concurrency import computed
from nexus.core.metrics import Part
from nexus.core.models import LeftOut, Why
from nexus.core.person import Constraint
from nexus.core.ports import MemorySource, Past, Row, RunOrigin, TurnSource
from nexus.core.turns import Goal, Level
from nexus.core.working_memory import WHOLE, CompactionRequest, Snapshot
from nexus.services.context.blocks import Assembled, number_of
from nexus.services.context.gather import (
    BEGINNING,
    Build,
    Read,
    Sources,
    first_deadline,
    incomplete_notes,
    search_recall,
)
from nexus.services.context.memory_blocks import Remembered
from nexus.services.context.pinned import is_all_given
from nexus.services.context.recall_block import RecallBlock
from nexus.services.context.request import BuildRequest
from nexus.services.context.run_prefix import RunView, compactions_of
from nexus.services.history.reader import MOST_SESSION_CHARS
from nexus.services.history.rows import chars_of
from nexus.services.history.transcript import Window
from nexus.services.session_state.state import SessionState
from nexus.services.turns.documents import read_turns

# The part of the remaining time for a compaction.
_COMPACTING: Final = 0.5
# A session that is heavy with runs in progress would be tried at every build. Runs end, but seldom between two steps.
_COOLDOWN_S: Final = 10.0
_MOST_COOLDOWNS: Final = 1_000
# No more text is read than can fit into the window, where its tokens are twice as long as those of English; but enough
# for a session to be compacted before it is cut.
_CHARS_A_TOKEN: Final = 8
_LEAST_CHARS: Final = 1 << 20
_TURN_MEMORY: Final = "TURN_MEMORY"
TO_COMPACT: Final = "history: a request would have the session compacted; this is the context without that"
NOT_COMPACTED: Final = "history: the session could not be compacted in time; it is tried again for the next context"


@dataclass(frozen=True, slots=True)
class RunMemory:
    """The working memory of a session, and the view of a run on it.

    Attributes:
        snapshot: the working memory now; None where there is none, or it could not be read.
        view: of an earlier build of the run; None in the first.
        since: the number of compactions with which the view is kept; see `prefix_key`.
        missing: parts that were not read in time.
    """

    snapshot: Snapshot | None = None
    view: RunView | None = None
    since: str = ""
    missing: Sequence[Part] = ()

    def shown(self, request: BuildRequest) -> Snapshot | None:
        """The working memory that the context shows. Its template is for the main agent, which may replace it."""
        if self.view:
            return self.view.snapshot
        is_template = self.snapshot == Snapshot()
        return None if request.agent.kind == "sub" and is_template else self.snapshot


async def read_run_memory(sources: Sources, build: Build) -> RunMemory:
    """Read the working memory and the view of the run at once."""
    request, memory = build.request, sources.memory
    reads: dict[str, Read] = {BEGINNING: sources.beginning(build, RunView.from_bytes)}
    if memory:
        call = partial(memory.snapshot, request.owner_key, request.session_id)
        reads[Part.WORKING_MEMORY] = Read(call, first_deadline(build))
    found = await sources.read_all(reads)
    snapshot: Snapshot | None = found.get(Part.WORKING_MEMORY)
    missing = [Part.WORKING_MEMORY] if memory and Part.WORKING_MEMORY not in found else []
    view: RunView | None = found.get(BEGINNING)
    compactions = compactions_of(snapshot)
    if view is None or snapshot is None or compactions_of(view.snapshot) == compactions:
        return RunMemory(snapshot, view, missing=missing)
    since = str(compactions)
    return RunMemory(snapshot, await sources.kept(build, RunView.from_bytes, since), since, missing)


@dataclass(frozen=True, slots=True)
class PastTurns:
    """The goal and earlier turns that a context shows; `missing` as for `DialogueSources`.

    `left_out` has the turns that cannot be read, and the earlier ones where no `[TURN_MEMORY]` counts them.
    """

    remembered: Remembered
    missing: Sequence[Part] = ()
    left_out: Sequence[LeftOut] = ()


@dataclass(frozen=True, slots=True)
class SessionSources:
    """The data of one context of the agent layout.

    Attributes:
        memory: the working memory, and the view of the run.
        rows: of the session, newest first.
        cut: the session has older rows.
        window: the messages that the rows are.
        state: as stored; an empty one also where it was not needed.
        goal: as stored; None where it was not read.
        past: the goal that is shown, and the turns whose input the window does not show.
        recall: what long-term memory has besides, in later builds what the first recalled; None for nothing.
        constraints: as stored; where they could not be read, those with which the run began.
        chars: about how many characters there are to assemble.
        complete, missing, notes: as for `DialogueSources`.
    """

    memory: RunMemory
    rows: Sequence[Row]
    cut: bool
    window: Window
    state: SessionState
    goal: Goal | None
    past: PastTurns
    recall: RecallBlock | None
    constraints: Sequence[Constraint]
    chars: int
    complete: bool
    missing: Sequence[Part]
    notes: Sequence[str]


async def gather_session(sources: Sources, build: Build, memory: RunMemory) -> SessionSources:
    """Read the rows of the session that no compaction covers, its state, its goal and the constraints.

    What of the past those rows do not show is read after them: earlier turns, and what there is to recall.
    """
    request, view, snapshot = build.request, memory.view, memory.shown(build.request)
    history = partial(
        sources.conversation.get_session,
        request.owner_key,
        RunOrigin(request.session_id, request.agent.sub_agent),
        messages=build.settings.history_messages,
        chars=min(max(build.budget.limit * _CHARS_A_TOKEN, _LEAST_CHARS), MOST_SESSION_CHARS),
        asked=request.human,
        own_row_id=build.input_row["_id"],
        until=view.until if view else None,
        tail=snapshot.tail if snapshot else WHOLE,
        continued=request.continuation,
        outbox_waiting=build.outbox_waiting,
    )
    reads = {Part.HISTORY: Read(history, build.read_until), **sources.stored_constraints(build)}
    if sources.states and not is_all_given(request.agent, request.state):
        call = partial(sources.states.get, request.owner_key, request.session_id)
        reads[Part.STATE] = Read(call, build.read_until)
    if sources.turns and _needs_goal(request, view.remembered if view else None):
        reads[Part.TURNS] = _goal_of(sources.turns, build)
    found = await sources.read_all(reads)
    read: Past = found.get(Part.HISTORY, Past([]))
    rows = [*map(view.as_shown, read.rows)] if view else read.rows
    # Rows that the view leaves out may have the time of rows that it shows, and are then not read any more.
    cut = view.cut if view else read.stopped_early
    chars = build.run_chars + sum(map(chars_of, rows))
    make_window = partial(Window.of, rows, request.agent, cut=cut, current_run_id=request.run_id)
    window = await computed(request.owner_key, chars, make_window)
    partly = Part.HISTORY not in found or bool(snapshot and not snapshot.tail.is_all)
    goal: Goal | None = found.get(Part.TURNS)
    # Rows may have been removed, turns may have come without them, and runs may be older than turn memory: then the
    # numbers of turns and of inputs differ.
    needs_turns = window.cut or partly or len(window.runs) != (goal.earlier if goal else 0)
    kept = view.remembered if view else None
    past = await _wanted_turns(sources, build, kept, goal, needs_turns=needs_turns, shown_runs=window.runs)
    shown = (item.row for item in window.messages)
    recall, not_read = (view.recall, ()) if view else await search_recall(sources, build, shown)
    # Other programs may have written an overview of any length.
    chars += len(snapshot.overview.content) if snapshot and snapshot.overview else 0
    return SessionSources(
        memory=memory,
        rows=rows,
        cut=cut,
        window=window,
        state=found.get(Part.STATE, SessionState()),
        goal=goal,
        past=past,
        recall=recall,
        constraints=found.get(Part.CONSTRAINTS, view.constraints if view else ()),
        chars=chars,
        complete=read.complete and not build.unrecorded,
        missing=[*(part for part in reads if part not in found), *memory.missing, *past.missing, *not_read],
        notes=[*request.notes, *incomplete_notes(build, complete=read.complete)],
    )


@dataclass(frozen=True, slots=True)
class ThinkingSources:
    """The data of one context of the thinking layout; attributes as for `SessionSources`, `past` with all turns."""

    past: PastTurns
    recall: RecallBlock | None
    constraints: Sequence[Constraint]
    complete: bool
    missing: Sequence[Part]
    notes: Sequence[str]


async def gather_thinking(
    sources: Sources, build: Build, view: RunView | None, stored: Sequence[Constraint] | None
) -> ThinkingSources:
    """Read the goal, earlier turns and what there is to recall; `view` and `stored` are as of `read_beginning`."""
    request, kept = build.request, view.remembered if view else None
    reads: dict[Part, Read] = {}
    complete = True
    if sources.turns and _needs_goal(request, kept):
        reads[Part.TURNS] = _goal_of(sources.turns, build)
        complete = await sources.conversation.written(request.owner_key, except_run=request.run_id)
    found = await sources.read_all(reads)
    past = await _wanted_turns(sources, build, kept, found.get(Part.TURNS))
    recall, not_read = (view.recall, ()) if view else await search_recall(sources, build, ())
    missing = [*(part for part in reads if part not in found), *past.missing, *not_read]
    if stored is None:
        missing.append(Part.CONSTRAINTS)
        stored = view.constraints if view else ()
    return ThinkingSources(
        past=past,
        recall=recall,
        constraints=stored,
        complete=complete and not build.unrecorded,
        missing=missing,
        notes=[*request.notes, *incomplete_notes(build, complete=complete)],
    )


def _goal_of(turns: TurnSource, build: Build) -> Read:
    request = build.request
    return Read(partial(turns.goal, request.owner_key, request.session_id, request.run_id), build.read_until)


def _needs_goal(request: BuildRequest, kept: Remembered | None) -> bool:
    """Whether the stored goal has to be read; with it the number of the run's turn."""
    return kept is None or not request.turn.task_context or _wants_another_level(request, kept)


def _wants_another_level(request: BuildRequest, kept: Remembered) -> bool:
    return bool(kept.turns) and request.turn.summary_detail_level not in {None, kept.level}


async def _wanted_turns(
    sources: Sources,
    build: Build,
    kept: Remembered | None,
    goal: Goal | None,
    *,
    needs_turns: bool = True,
    shown_runs: Collection[str] = (),
) -> PastTurns:
    """The goal, and with `needs_turns` the turns before it but for those of `shown_runs`.

    `kept` is the memory of the run's first build, None in that build.
    """
    request = build.request
    level = request.turn.summary_detail_level or (kept.level if kept else build.settings.summary_detail_level)
    text, source = _goal_shown(request, goal, kept)
    remembered = replace(kept or Remembered(level=level), goal=text, goal_source=source)
    wanted = _wants_another_level(request, kept) if kept else needs_turns
    if not sources.turns or goal is None or not wanted:
        return PastTurns(remembered)
    past = await _past_turns(sources, sources.turns, build, goal, level=level, shown_runs=shown_runs)
    if past is None:
        return PastTurns(remembered, [Part.TURNS])
    return replace(past, remembered=replace(past.remembered, goal=text, goal_source=source))


async def _past_turns(
    sources: Sources, turns: TurnSource, build: Build, goal: Goal, *, level: Level, shown_runs: Collection[str]
) -> PastTurns | None:
    """The newest turns before the run's own, without those of `shown_runs`; None where they could not be read."""
    request, most = build.request, build.settings.turns_shown
    without = sorted({*shown_runs, request.run_id})

    async def read(limit: int, before: int | None) -> list[Row] | None:
        call = partial(
            turns.past_turns, request.owner_key, request.session_id, limit=limit, before=before, without_runs=without
        )
        found = await sources.read_all({Part.TURNS: Read(call, build.read_until)})
        rows = found.get(Part.TURNS)
        return None if rows is None else [row for row in rows if row.get("owner_key") == request.owner_key]

    # One more than are shown tells whether there are more.
    rows = await read(most + 1, goal.turn_number)
    if rows is None:
        return None
    missing: list[Part] = []
    shown, malformed = read_turns(rows[:most], level)
    if malformed and rows[most:] and isinstance(rows[most].get("turn_number"), int):
        # As many older ones may take their places.
        older = await read(malformed, rows[most]["turn_number"])
        missing = [Part.TURNS] if older is None else []
        rows = [*rows, *(older or [])]
        most += malformed
        shown, malformed = read_turns(rows[:most], level)
    left_out = [LeftOut(number_of(malformed, "turn"), _TURN_MEMORY, Why.UNREADABLE)] if malformed else []
    dropped = malformed + sum(map(_number, rows[most : most + 1]))
    if dropped and not shown:
        # Without a block the manifest has no other place for it.
        left_out.append(LeftOut(number_of(dropped, "turn"), _TURN_MEMORY, Why.TOO_MANY))
    return PastTurns(Remembered(level=level, turns=shown, dropped=dropped), missing, left_out)


def _goal_shown(request: BuildRequest, stored: Goal | None, kept: Remembered | None) -> tuple[str, str]:
    """The goal and its source.

    It is the goal in the request; else that of the run's own turn, which another build may have brought since; else the
    goal with which the run began; where nothing is stored of the session, the current input.
    """
    if request.turn.task_context:
        return request.turn.task_context, request.human.id
    goal = stored or Goal()
    # Without a turn of the run's own the stored goal is that of another run, which may change meanwhile.
    if kept and (goal.turn_number is None or goal.text in {"", kept.goal}):
        return kept.goal, kept.goal_source
    if stored and not stored.text and request.origin.sub_agent is None:
        # The first turn of the session was not accepted; it would have had this goal.
        return request.current_input, request.human.id
    return goal.text, goal.turn_id


def _number(row: Row) -> int:
    """The number of a turn, which counts the turns up to it, those too that retention removed."""
    number = row.get("turn_number")
    return number if isinstance(number, int) else 1


class CompactionCooldown:
    """Sessions that had nothing to compact a moment ago."""

    def __init__(self) -> None:
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def begin(self, request: CompactionRequest) -> None:
        """Hold the session for 10 s."""
        self._until[request.session] = anyio.current_time() + _COOLDOWN_S
        if len(self._until) > _MOST_COOLDOWNS:
            self._until.popitem(last=False)

    def holds(self, request: CompactionRequest) -> bool:
        """Whether the session is not to be tried yet."""
        return anyio.current_time() < self._until.get(request.session, 0.0)


async def compact_session(
    memory: MemorySource,
    cooldown: CompactionCooldown,
    build: Build,
    assembled: Assembled,
    tools: Sequence[dict[str, Any]],
    *,
    cut: bool,
) -> Literal["compacted", "unchanged", "delayed", "due"]:
    """Compact the session if the assembled context is too heavy, or `cut`: older messages are never read.

    A `compacted` session has to be read again. An `unchanged` one had nothing to compact, or no compaction for which
    this build waits. With `delayed` one was needed and failed, or did not end in time. `due`: a preview makes none.
    """
    request = _compaction(build, assembled, tools, cut=cut)
    if request is None or cooldown.holds(request):
        return "unchanged"
    if build.preview:
        return "due"
    job = memory.compact_soon(request, long=cut)
    if cut:
        # It takes long. If there is nothing to compact, the next steps of the run need not try again.
        cooldown.begin(request)
    if cut or job is None:
        return "unchanged"
    with anyio.move_on_after(max((build.read_until - anyio.current_time()) * _COMPACTING, 0)):
        await job.done.wait()
    if job.made is not None:
        return "compacted"
    if job.failed or not job.done.is_set():
        return "delayed"
    cooldown.begin(request)
    return "unchanged"


def _compaction(
    build: Build, assembled: Assembled, tools: Sequence[dict[str, Any]], *, cut: bool
) -> CompactionRequest | None:
    """The compaction that the context needs, if any."""
    request, budget, weights, window = build.request, build.budget_with(tools), assembled.weights, build.settings.window
    measure, limit = budget.measure, budget.limit
    if weights is None or measure is None or request.agent.kind == "sub":
        return None
    taken = budget.besides(assembled.results)
    if not (cut or window.is_heavy(weights, taken, limit)):
        return None
    return CompactionRequest(
        request.owner_key,
        request.session_id,
        keep_tokens=window.keep_tokens(weights, taken, limit, measure, cut=cut),
        summary_tokens=window.summary_tokens(limit, measure),
        run_id=request.run_id,
    )
