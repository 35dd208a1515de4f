"""One build, and what it reads (contract §1.4, §4.3, §5, §6, §7): everything at once, under one deadline.

Rules of this module:

- Each read catches its own errors. A part that cannot be had in time is missing, which the answer says in `degraded`;
  it is never taken for empty.
- What is read later than the rest may not take all of the time: the working memory, which says where the history
  begins, and the profile, which may ask for more of it, get half.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol

import anyio
import structlog

from nexus.core.errors import BusUnavailableError, NexusError, StoreUnavailableError
from nexus.core.metrics import Metrics, Part
from nexus.core.ports import (
    DocumentStore,
    MemorySource,
    Past,
    RequestLedger,
    Row,
    RunOrigin,
    TurnSource,
)
from nexus.core.turns import Goal, Level
from nexus.core.working_memory import WHOLE, Snapshot
from nexus.services.context import agent, thinking
from nexus.services.context.budget import Budget, WindowSettings
from nexus.services.context.memory_blocks import Remembered
from nexus.services.context.pinned import PINNED_FROM_END, Placement, is_all_given
from nexus.services.context.prompts import identity_block
from nexus.services.context.request import BuildRequest, read_history_size
from nexus.services.context.run_prefix import RunView, compactions_of, prefix_key
from nexus.services.persistence import PersistenceService
from nexus.services.session_state.state import SessionState
from nexus.services.tools.memory_tools import MEMORY_TOOLS, READING_TOOLS
from nexus.services.tools.registry import ToolRegistry

_log = structlog.get_logger(__name__)

_WRITING_TOOLS: Final = MEMORY_TOOLS - READING_TOOLS

# The part of the time for what is read before the rest.
_FIRST: Final = 0.5

STOPPED_EARLY: Final = "history: reading stopped early"
INCOMPLETE: Final = "history: what was heard last is not written yet"


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
        input_row: the run's human input, as this build records it where it is not recorded yet.
        outbox_waiting: recorded rows wait in the outbox, of whichever owner.
    """

    request: BuildRequest
    settings: BuilderSettings
    deadline: float
    budget: Budget
    input_row: Row
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
        elif request.layout == "agent":
            opening = agent.instructions(request.agent)
        else:
            opening = [identity_block()]
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


class StateSource(Protocol):
    """Where the state of a session is kept."""

    async def get(self, owner_key: str, session_id: str) -> SessionState:
        """The state; an empty one where there is none.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...


class NoStates:
    """A `StateSource` without states."""

    async def get(self, owner_key: str, session_id: str) -> SessionState:  # noqa: ARG002  # as the protocol has it
        """An empty state."""
        return SessionState()


@dataclass(frozen=True, slots=True)
class Sources:
    """What builds read from, and where they keep what later builds of a run begin with.

    Attributes:
        turns, memory: None where none are kept.
    """

    conversation: PersistenceService
    documents: DocumentStore
    tools: ToolRegistry
    ledger: RequestLedger
    states: StateSource
    turns: TurnSource | None
    memory: MemorySource | None
    metrics: Metrics

    async def kept(self, request: BuildRequest, compactions: int = 0) -> bytes | None:
        """What an earlier build of the run has kept; see `prefix_key`. None also where the ledger is away."""
        try:
            return await self.ledger.kept(prefix_key(request, compactions))
        except BusUnavailableError:
            return None

    async def keep(self, build: Build, mine: bytes, compactions: int = 0) -> bytes:
        """Keep `mine` for later builds of the run. Returns what the first build has kept."""
        key = prefix_key(build.request, compactions)
        try:
            return await self.ledger.keep_first(key, mine, build.settings.keep_prefix_ms)
        except BusUnavailableError:
            return mine


@dataclass(frozen=True, slots=True)
class DialogueSources:
    """What was read for one build of the dialogue layout.

    Attributes:
        profile: the owner's; None when there is none.
        rows: of the owner's history, enough for `history_size` messages.
        complete: every row that was accepted before is among what was read.
        missing: parts that could not be had in time.
        notes: what was passed over, for the manifest.
    """

    profile: Mapping[str, Any] | None
    rows: Sequence[Row]
    history_size: int
    complete: bool
    missing: Sequence[Part]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class RunStanding:
    """What is known of a run of the agent layout before its session is read.

    Attributes:
        snapshot: the session's working memory as it is now; None where there is none, or it could not be read.
        view: what the run goes by, as an earlier build has kept it; None where there is none.
        compactions: with which number of compactions the view is kept; see `prefix_key`.
        missing: parts that could not be had in time.
    """

    snapshot: Snapshot | None = None
    view: RunView | None = None
    compactions: int = 0
    missing: Sequence[Part] = ()


@dataclass(frozen=True, slots=True)
class SessionSources:
    """What was read of a session for one build of the agent layout.

    Attributes:
        rows: newest first.
        cut: the session has older rows.
        state: what is stored of the session's state; an empty one also where it was not needed.
        goal: what is stored of it; None where it was not read.
        complete, missing, notes: as for `DialogueSources`.
    """

    rows: Sequence[Row]
    cut: bool
    state: SessionState
    goal: Goal | None
    complete: bool
    missing: Sequence[Part]
    notes: Sequence[str]


class Read(NamedTuple):
    """One read, and when it is given up, by `anyio.current_time()`."""

    call: Callable[[], Awaitable[Any]]
    deadline: float


async def read_all(reads: Mapping[Part, Read]) -> dict[Part, Any]:
    """What the reads return, all at once; without the parts that could not be had in time."""
    found: dict[Part, Any] = {}

    async def read(part: Part, call: Callable[[], Awaitable[Any]], deadline: float) -> None:
        try:
            with anyio.fail_after(max(deadline - anyio.current_time(), 0)):
                found[part] = await call()
        except (NexusError, TimeoutError) as error:
            _log.warning("degraded", part=part, reason=str(error) or "not in time")

    async with anyio.create_task_group() as tasks:
        for part, (call, deadline) in reads.items():
            tasks.start_soon(read, part, call, deadline)
    return found


async def gather_dialogue(sources: Sources, build: Build) -> DialogueSources:
    """Read history and profile, as far as they can be had until the deadline."""
    request, settings = build.request, build.settings

    def history(messages: int) -> Read:
        return Read(partial(_past, sources, build, messages), build.deadline)

    asked_for, _ = read_history_size(request.user_profile, settings.history_size)
    reads = {Part.HISTORY: history(asked_for)}
    if request.user_profile is None:
        reads[Part.PROFILE] = Read(partial(_profile, sources, request.owner_key), _first_part_of(build.deadline))
    found = await read_all(reads)
    profile = found.get(Part.PROFILE, request.user_profile)
    size, size_notes = read_history_size(profile, settings.history_size)
    missing = [part for part in reads if part not in found]
    past: Past = found.get(Part.HISTORY, Past([]))
    if size > asked_for and Part.HISTORY in found:
        # The profile, which was read meanwhile, wants more of the past than was asked for.
        more = await read_all({Part.HISTORY: history(size)})
        past = more.get(Part.HISTORY, past)
        missing += [] if more else [Part.HISTORY]
    notes = [*request.notes, *size_notes, *([STOPPED_EARLY] if past.stopped_early else []), *_incomplete(past)]
    return DialogueSources(profile, past.rows, size, past.complete, missing, notes)


async def read_standing(sources: Sources, build: Build) -> RunStanding:
    """What the run goes by, and the working memory of its session.

    A session that has been compacted since the run's first build has another view; while nobody can tell whether it
    has, the run goes by the first.
    """
    request, memory = build.request, sources.memory
    first: bytes | None = None
    reads: dict[Part, Read] = {}
    if memory:
        call = partial(memory.snapshot, request.owner_key, request.session_id)
        reads[Part.WORKING_MEMORY] = Read(call, _first_part_of(build.deadline))

    async def read_first() -> None:
        nonlocal first
        first = await sources.kept(request)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_first)
        found = await read_all(reads)
    snapshot: Snapshot | None = found.get(Part.WORKING_MEMORY)
    missing = [part for part in reads if part not in found]
    view = RunView.from_bytes(first) if first else None
    compactions = compactions_of(snapshot)
    if view is None or snapshot is None or view.compactions == compactions:
        return RunStanding(snapshot, view, 0, missing)
    later = await sources.kept(request, compactions)
    return RunStanding(snapshot, RunView.from_bytes(later) if later else None, compactions, missing)


async def gather_session(
    sources: Sources, build: Build, view: RunView | None, snapshot: Snapshot | None
) -> SessionSources:
    """Read the rows of the session, its state and its goal, as far as they can be had until the deadline.

    Args:
        sources: where.
        build: for which.
        view: what the run goes by; None in its first build.
        snapshot: the working memory that is shown, which says which rows are under no compaction.
    """
    request = build.request
    kept = view.remembered if view else None
    reads = {Part.HISTORY: Read(partial(_session, sources, build, view, snapshot), build.deadline)}
    if not is_all_given(request.agent, request.state):
        call = partial(sources.states.get, request.owner_key, request.session_id)
        reads[Part.STATE] = Read(call, build.deadline)
    if sources.turns and needs_goal(request, kept):
        reads[Part.TURNS] = Read(goal_of(sources.turns, request), build.deadline)
    found = await read_all(reads)
    past: Past = found.get(Part.HISTORY, Past([]))
    return SessionSources(
        rows=past.rows,
        # A view's rows that are left out may be of the same moment as the others, and are then not read any more.
        cut=view.cut if view else past.stopped_early,
        state=found.get(Part.STATE, SessionState()),
        goal=found.get(Part.TURNS),
        complete=past.complete,
        missing=[part for part in reads if part not in found],
        notes=[*request.notes, *_incomplete(past)],
    )


async def _past(sources: Sources, build: Build, messages: int) -> Past:
    request = build.request
    return await sources.conversation.get_past(
        request.owner_key,
        messages=messages,
        excerpt_chars=build.settings.truncate_chars,
        asked=request.human,
        own_row_id=build.input_row["_id"],
        continued=request.continuation,
        outbox_waiting=build.outbox_waiting,
    )


async def _session(sources: Sources, build: Build, view: RunView | None, snapshot: Snapshot | None) -> Past:
    request = build.request
    return await sources.conversation.get_session(
        request.owner_key,
        RunOrigin(request.session_id, request.agent.sub_agent),
        messages=build.settings.history_messages,
        asked=request.human,
        own_row_id=build.input_row["_id"],
        until=view.until if view else None,
        tail=snapshot.tail if snapshot else WHOLE,
        continued=request.continuation,
        outbox_waiting=build.outbox_waiting,
    )


async def _profile(sources: Sources, owner_key: str) -> Row | None:
    profile = await sources.documents.find_identity(owner_key)
    if profile and profile.get("public_key") != owner_key:
        raise StoreUnavailableError("the store answered with the profile of another owner")
    return profile


def goal_of(turns: TurnSource, request: BuildRequest) -> Callable[[], Awaitable[Goal]]:
    """The read of the goal that is stored for the run."""
    return partial(turns.goal, request.owner_key, request.session_id, request.run_id)


def needs_goal(request: BuildRequest, kept: Remembered | None) -> bool:
    """Whether the stored goal has to be read; with it the number of the run's turn."""
    return kept is None or not request.turn.task_context or wants_another_level(request, kept)


def wants_another_level(request: BuildRequest, kept: Remembered) -> bool:
    """Whether the request asks for turns at another level of detail than the run began with."""
    return bool(kept.turns) and request.turn.summary_detail_level not in {None, kept.level}


def _incomplete(past: Past) -> list[str]:
    return [] if past.complete else [INCOMPLETE]


def _first_part_of(deadline: float) -> float:
    now = anyio.current_time()
    return now + (deadline - now) * _FIRST
