"""What the build of any layout needs of the outside: the stores, the ledger, what is measured (CONTRACT §1.4, §4.6)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple

import anyio
import structlog

from nexus.core.errors import BusUnavailableError, ErrorCode, RequestError
from nexus.core.metrics import Event, Metrics, Part, Stage
from nexus.core.ports import (
    MOST_JOURNALED,
    Conversation,
    DocumentStore,
    JournalRow,
    MemorySource,
    Moved,
    OfferedInput,
    RequestLedger,
    RunOrigin,
    TurnSource,
)
from nexus.core.turns import Level, TurnStart
from nexus.services.context.ahead import Ahead
from nexus.services.context.futile import Futile
from nexus.services.context.gathering import StateSource
from nexus.services.context.limits import WindowSettings
from nexus.services.context.placement import PINNED_FROM_END, Placement
from nexus.services.context.prefix import RunPrefix, prefix_key
from nexus.services.context.request import DEFAULT_SESSION, BuildRequest
from nexus.services.context.tokens import Bound, Measure
from nexus.tools.registry import ToolRegistry

_log = structlog.get_logger(__name__)

# How long an answer that is otherwise ready waits for its input to be recorded, and for its turn.
_RECORDING_S: Final = 0.25
_OF_ANOTHER: Final = (
    "run.metadata.agent: another agent began the run, so results that are not marked are recorded as that one's"
)
_IN_ANOTHER: Final = (
    "run.metadata.session_id: the run was begun in another session, so results that name none are recorded there"
)


@dataclass(frozen=True, slots=True)
class BuilderSettings:
    """What the builder needs of the settings (CONTRACT §9).

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
    """One build: its request, the settings that it began with, and the time it has.

    Attributes:
        seconds: for gathering what it needs.
        deadline: when they are over, by `anyio.current_time()`.
        timings_ms: what was measured, for the manifest.
        measure: counts tokens; None where nobody does, and then nothing has a limit.
        bound: tells without counting what surely fits; None where everything is counted.
        ahead: of a request that was claimed at the ledger.
    """

    request: BuildRequest
    settings: BuilderSettings
    seconds: float
    deadline: float
    timings_ms: dict[str, float]
    measure: Measure | None = None
    bound: Bound | None = None
    ahead: Ahead | None = None

    @property
    def limit(self) -> int:
        """How many tokens the context may take."""
        return self.settings.window.limit(self.request.layout, self.request.context_window)


@dataclass(frozen=True, slots=True)
class Begun:
    """A run as its first build has begun it.

    Attributes:
        notes: for the manifest.
        recorded: its input, where it is stored now.
    """

    notes: list[str]
    recorded: OfferedInput | None


class Journalable(NamedTuple):
    """A run's input as an answer can take it along, and as it is offered for recording."""

    row: JournalRow
    offered: OfferedInput


def _not_journaled(offered: OfferedInput, _moved: Moved | None) -> None:
    offered.not_journaled()


class BuildParts:
    """The parts that builds are made with."""

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        conversation: Conversation,
        documents: DocumentStore,
        tools: ToolRegistry,
        ledger: RequestLedger,
        states: StateSource,
        turns: TurnSource | None,
        memory: MemorySource | None,
        metrics: Metrics,
    ) -> None:
        self.conversation = conversation
        self.documents = documents
        self.tools = tools
        self.states = states
        self.turns = turns
        self.memory = memory
        self.futile = Futile()
        self._ledger = ledger
        self._metrics = metrics

    async def begin_run(self, build: Build, *, journaled: bool = False) -> Begun:
        """Have every replica know where the run belongs, and its input recorded, in its first build.

        Args:
            build: that one.
            journaled: the answer may take the input along. Then nobody waits for anything of the run, and the rest is
                done when the answer is published.
        """
        notes = await self._say_origin(build)
        if journaled and (made := self.for_journal(build.request)) and self.journal(build, made):
            return Begun(notes, None)
        return Begun(notes, self._record(build))

    def for_journal(self, request: BuildRequest) -> Journalable | None:
        """The run's input as an answer can take it along; None where none can."""
        offered = self.conversation.input_of(request.human, request.current_input, request.origin)
        row = offered.for_journal()
        return Journalable(row, offered) if row else None

    def journal(self, build: Build, made: Journalable) -> bool:
        """Have the answer take the run's input along, and the run remembered then. False where it cannot.

        Args:
            build: the run's first.
            made: what `for_journal` has made of it.
        """
        ahead = build.ahead
        if not ahead or (ahead.standing and ahead.standing.waiting >= MOST_JOURNALED):
            return False
        ahead.row = made.row
        ahead.afterwards = partial(self._journaled, build.request, made.row, made.offered)
        return True

    def _journaled(self, request: BuildRequest, row: JournalRow, offered: OfferedInput, moved: Moved | None) -> None:
        if moved:
            offered.journaled(row, moved)
        elif not offered.not_journaled():
            self._count_lost(request)
        self.begin_turn(request)

    def begin_turn(self, request: BuildRequest) -> None:
        """Have the run remembered as a turn.

        Nobody waits for that: should this replica be killed, whoever hears of the run next does it.
        """
        if self.turns is None or request.origin.sub_agent is not None:
            # What a sub-agent does is part of the turn of the run that sent it.
            return
        kept = self.turns.begin_turn(
            TurnStart(
                owner_key=request.owner_key,
                session_id=request.session_id,
                run_id=request.run_id,
                timestamp=request.human.timestamp,
                input=request.current_input,
                input_id=request.human.id,
                task_context=request.turn.task_context,
                workspace_context=request.turn.workspace_context,
                thinking=request.layout == "thinking",
                rounds=request.turn.thinking_rounds,
            )
        )
        if kept is None:
            self._metrics.count(Event.TURN_LOST)
            _log.error("turn_not_recorded", request_id=request.request_id, reason="too much is waiting")

    def go_on(self, build: Build, goal: str = "") -> None:
        """Have the run's turn take over what a later build brings; nobody waits for that.

        Args:
            build: the later build.
            goal: the one that the run began with; `""` where nobody knows.
        """
        brought = build.request.turn
        thought = build.request.layout == "thinking" and brought.thinking_rounds
        if thought or brought.task_context not in {"", goal}:
            self.begin_turn(build.request)

    async def _say_origin(self, build: Build) -> list[str]:
        request = build.request
        mine = request.origin
        if request.layout == "dialogue" and mine == RunOrigin(DEFAULT_SESSION):
            # What nobody knows of a run is just this.
            return []
        first = await self.conversation.begin_run(
            request.owner_key, request.run_id, mine, build.settings.keep_prefix_ms
        )
        return [
            *([] if first.sub_agent == mine.sub_agent else [_OF_ANOTHER]),
            *([] if first.session_id == mine.session_id else [_IN_ANOTHER]),
        ]

    def _record(self, build: Build) -> OfferedInput | None:
        request = build.request
        offered = self.conversation.input_of(request.human, request.current_input, request.origin)
        if not offered.offer():
            self._count_lost(request)
            return None
        if build.ahead:
            build.ahead.afterwards = partial(_not_journaled, offered)
        return offered

    def _count_lost(self, request: BuildRequest) -> None:
        self._metrics.count(Event.ROW_LOST)
        _log.error("input_not_recorded", request_id=request.request_id, reason="too much is waiting")

    async def written(self, begun: Begun, prefix: RunPrefix, deadline: float) -> None:
        """Wait a moment for the run's input to be stored, unless the store is away."""
        if begun.recorded and not {Part.HISTORY, Part.TURNS} & {*prefix.degraded}:
            with anyio.move_on_after(min(_RECORDING_S, deadline - anyio.current_time())):
                await begun.recorded.wait()

    async def write_journal(self, build: Build) -> bool:
        """Have the store catch up with the journal, for who reads a session there. False if not in time."""
        standing = build.ahead.standing if build.ahead else None
        return not (standing and standing.rows) or await self.conversation.write_journal(standing.rows)

    async def kept(self, build: Build, compactions: int = 0) -> bytes | None:
        """What an earlier build of the run has kept for this one; see `prefix_key`."""
        if not compactions and build.ahead and build.ahead.standing:
            return build.ahead.standing.kept
        try:
            return await self._ledger.kept(prefix_key(build.request, compactions))
        except BusUnavailableError:
            return None

    async def keep(self, build: Build, mine: bytes, compactions: int = 0) -> bytes:
        """Keep `mine` for later builds of the run; what counts is what was kept earlier, if something was."""
        key = prefix_key(build.request, compactions)
        try:
            return await self._ledger.keep_first(key, mine, build.settings.keep_prefix_ms)
        except BusUnavailableError:
            return mine

    def keep_with_answer(self, build: Build, mine: bytes) -> bool:
        """Have the answer take along what later builds of the run begin with. False where it cannot."""
        if not (build.ahead and (build.ahead.standing or build.ahead.row)):
            return False
        build.ahead.kept, build.ahead.keep_ms = mine, build.settings.keep_prefix_ms
        return True

    def take_note(self, degraded: list[str], settings: BuilderSettings) -> None:
        """Add the tools to what is missing, if they are, put it in order, and count it.

        Raises:
            RequestError: HISTORY_UNAVAILABLE, where settings want that rather than a context without history.
        """
        if not self.tools.complete:
            degraded.append(Part.TOOLS.value)
        # Which part failed first is chance; the answer must not depend on it.
        degraded.sort()
        for part in degraded:
            self._metrics.degraded(Part(part))
        if Part.HISTORY in degraded and settings.on_history_failure == "error":
            raise RequestError(ErrorCode.HISTORY_UNAVAILABLE, "the history could not be read in time")

    @contextmanager
    def measured(self, stage: Stage, timings_ms: dict[str, float]) -> Iterator[None]:
        """Measure what is done inside, whatever becomes of it."""
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            timings_ms[stage.value] = round(seconds * 1_000, 3)
            self._metrics.took(stage, seconds)
