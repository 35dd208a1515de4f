"""One build: its values and its reads (contract §1.5, §4).

- All reads run at once, under one deadline, and each catches its own errors. A part that was not read in time is
  missing, which the answer says in `degraded`; it is never taken for empty.
- A read on which another depends (the working memory, the profile), or that may stand beside such a one (the
  constraints), gets half of the time.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import anyio
import structlog

from nexus.core.concurrency import OuterHandler, computed
from nexus.core.errors import NexusError, StoreUnavailableError, reason_of
from nexus.core.metrics import Metrics, Part
from nexus.core.models import LONG_AGO, LeftOut
from nexus.core.person import Constraint, Fact
from nexus.core.ports import (
    ConstraintSource,
    DocumentStore,
    FactSource,
    MemorySource,
    Past,
    RecallSource,
    RequestLedger,
    Row,
    TurnSource,
)
from nexus.core.recall import Found
from nexus.core.tracing import span
from nexus.core.turns import Level
from nexus.services.context.budget import Budget, WindowSettings
from nexus.services.context.person_blocks import NO_FACTS, KnownFacts, known_facts
from nexus.services.context.pinned import Placement
from nexus.services.context.recall_block import MOST_HITS, RecallBlock, recall_block
from nexus.services.context.request import BuildRequest, read_history_size
from nexus.services.context.run_messages import RunMessages, run_messages_in
from nexus.services.context.run_prefix import prefix_key
from nexus.services.history.merge import newest
from nexus.services.history.parts import Media
from nexus.services.history.rows import chars_of
from nexus.services.persistence import PersistenceService
from nexus.services.session_state.state import SessionState
from nexus.services.tools.memory_tools import MEMORY_TOOLS, READING_TOOLS
from nexus.services.tools.registry import ToolRegistry

_log = structlog.get_logger(__name__)

# The part of the time for reads on which others depend.
FIRST: Final = 0.5
# The time that the ledger has at least, also where that for reading is over.
LEDGER_S: Final = 0.25
# About what a fact costs to be shown, in characters of text.
_FACT_CHARS: Final = 200
# What a run's first build kept, beside the parts.
BEGINNING: Final = "beginning"
_PROGRESS: Final = "progress"
_CONDENSED: Final = "condensed results"
_Name = TypeVar("_Name", bound=str)
_Beginning = TypeVar("_Beginning")
_STOPPED_EARLY: Final = "history: reading stopped early"
_INCOMPLETE: Final = "history: what was heard last is not written yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderSettings:
    """The settings of the builder, as `docs/operations.md` describes them (contract §9). Defaults are `nexus.config`'s.

    `recall`: layouts whose contexts have `[RECALL]`. `dialogue_tools`: memory tools that the layout dialogue offers.
    `mood`: contexts have `[MOOD]`. `constraint_tokens`: how much of `[CONSTRAINTS]` those of one request may take.
    `summaries_by_model`: a model replaces summaries made by rules.
    `count_tokens="always"`: also in contexts that surely fit, in layouts that do not show the number.
    `condense_above`: bytes of a result of the run above which the layout `agent` shows it condensed; 0 for none.
    `version`: stands for all settings that the service has, those in its files and variables included.
    """

    version: str
    default_layout: str
    history_size: int
    truncate_chars: int
    show_tool_results: bool
    default_profile: str
    on_history_failure: Literal["degrade", "error"]
    keep_prefix_ms: int
    history_messages: int
    placement: Placement
    pinned_from_end: int
    summary_detail_level: Level
    turns_shown: int
    recall: frozenset[str]
    dialogue_tools: frozenset[str]
    mood: bool
    constraint_tokens: int
    summaries_by_model: bool
    count_tokens: Literal["needed", "always"]
    condense_above: int
    window: WindowSettings


class Build(NamedTuple):
    """One build.

    Attributes:
        read_until: when reading ends, by `anyio.current_time()`; the request's deadline is later.
        budget: the tokens of the context, with the tools that are offered now.
        input_row: the run's human input as a row.
        images: those of the input that are passed on, and what else of it is no text.
        run_chars: about how many characters the run's later messages hold.
        unrecorded: how many of the messages that the request is to come after (`after`) are not recorded.
        outbox_waiting: recorded rows of some owner wait in the outbox.
        preview: nothing is kept for later builds, and nothing is compacted.
        run: what comes with the request besides its input.
        said_at: when the run's input was said, by the clock of its sender or, where that is ahead, of the bus.
    """

    request: BuildRequest
    settings: BuilderSettings
    read_until: float
    budget: Budget
    input_row: Row
    images: tuple[Sequence[Media], list[LeftOut]] = ((), [])
    run_chars: int = 0
    unrecorded: int = 0
    outbox_waiting: bool = False
    preview: bool = False
    run: RunMessages = RunMessages()
    said_at: datetime = LONG_AGO

    @property
    def recalls(self) -> bool:
        """Whether the context has `[RECALL]`."""
        asked = self.request.recall
        return self.request.layout in self.settings.recall if asked is None else asked

    def budget_with(self, tools: Sequence[dict[str, Any]]) -> Budget:
        """The budget with other tools."""
        return replace(self.budget, tools=tools)


def offered(tools: ToolRegistry, request: BuildRequest, in_dialogue: Collection[str] = ()) -> list[dict[str, Any]]:
    """The tools that go with a context, not to be changed.

    The memory tools go with the agent layout alone, but for those of `in_dialogue`. A sub-agent may read; writing is
    the main agent's.
    """
    shown = {"agent": MEMORY_TOOLS, "dialogue": MEMORY_TOOLS.intersection(in_dialogue)}.get(request.layout, frozenset())
    if request.agent.kind == "sub":
        shown &= READING_TOOLS
    return tools.definitions(MEMORY_TOOLS - shown)


class StateSource(Protocol):
    """The stored states of sessions."""

    async def get(self, owner_key: str, session_id: str) -> SessionState:
        """The state; an empty one where there is none. Raises StoreUnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where builds read and record; `None` for a source where nothing of its kind is kept."""

    conversation: PersistenceService
    documents: DocumentStore
    tools: ToolRegistry
    ledger: RequestLedger
    states: StateSource | None
    turns: TurnSource | None
    memory: MemorySource | None
    recall: RecallSource | None
    facts: FactSource | None
    constraints: ConstraintSource | None
    metrics: Metrics

    def stored_constraints(self, build: Build) -> dict[Part, "Read"]:
        """The read of the constraints that are stored for the run; nothing where none are kept."""
        if self.constraints is None:
            return {}
        request = build.request
        call = partial(self.constraints.constraints, request.owner_key, request.session_id, request.run_id)
        return {Part.CONSTRAINTS: Read(call, first_deadline(build))}

    def beginning(self, build: Build, parse: Callable[[bytes], _Beginning], since: str = "") -> "Read":
        """The read of what the first build of the run kept of its beginning, see `prefix_key`; None for nothing."""

        async def call() -> _Beginning | None:
            kept = await self.ledger.kept(prefix_key(build.request, since))
            return parse(kept) if kept else None

        return Read(call, max(first_deadline(build), anyio.current_time() + LEDGER_S))

    async def kept(self, build: Build, parse: Callable[[bytes], _Beginning], since: str = "") -> _Beginning | None:
        """The beginning of the run; None also where it cannot be read."""
        found = await self.read_all({BEGINNING: self.beginning(build, parse, since)})
        return found.get(BEGINNING)

    async def read_all(self, reads: Mapping[_Name, "Read"]) -> dict[_Name, Any]:
        """The results of reads that run at once, without those that failed, however, or were not done in time."""
        found: dict[_Name, Any] = {}

        async def read(name: _Name, call: Callable[[], Awaitable[Any]], deadline: float) -> None:
            with OuterHandler(self.metrics, "reads", part=name):
                limit_s = max(deadline - anyio.current_time(), 0)
                try:
                    with span(f"read {name}"), anyio.fail_after(limit_s):
                        found[name] = await call()
                except (NexusError, TimeoutError) as error:
                    _log.warning("degraded", part=name, reason=reason_of(error, limit_s))

        async with anyio.create_task_group() as tasks:
            for name, (call, deadline) in reads.items():
                tasks.start_soon(read, name, call, deadline)
        return found


class Read(NamedTuple):
    """One read, and when it is given up, by `anyio.current_time()`."""

    call: Callable[[], Awaitable[Any]]
    deadline: float


def first_deadline(build: Build) -> float:
    """When to give up a read on which others depend."""
    now = anyio.current_time()
    return now + (build.read_until - now) * FIRST


async def read_run_messages(
    sources: Sources, request: BuildRequest, until: float, chars: int, condense_above: int
) -> RunMessages:
    """What comes with the request, of about so many `chars`, and what is recorded of its calls and large results.

    That is nothing where it is not read `until` then.
    """
    run = await computed(request.owner_key, chars, partial(run_messages_in, request))
    conversation, reads = sources.conversation, dict[str, Read]()
    if run.awaits_results:
        reads[_PROGRESS] = Read(partial(conversation.progress_of, request.owner_key, request.run_id), until)
    if request.layout == "agent":
        find = partial(run.large_results, request.run_id, condense_above)
        if handles := await computed(request.owner_key, chars, find):
            reads[_CONDENSED] = Read(partial(conversation.condensed_results, request.owner_key, handles), until)
    found = await sources.read_all(reads)
    return run.condensed(request.run_id, found.get(_CONDENSED, {}))._replace(progress=found.get(_PROGRESS, ()))


@dataclass(frozen=True, slots=True)
class DialogueSources:
    """The data of one dialogue context.

    Attributes:
        profile: the owner's; None for none.
        rows: of the owner's history, enough for `history_size` messages.
        recall: what long-term memory has besides; None for nothing.
        facts: what is known of the owner.
        constraints: as stored; those that were given where they could not be read.
        complete: no row that was accepted before is missing among those that were read.
        missing: parts that were not read in time.
        notes: for the manifest.
    """

    profile: Mapping[str, Any] | None
    rows: Sequence[Row]
    history_size: int
    complete: bool
    missing: Sequence[Part]
    notes: Sequence[str]
    recall: RecallBlock | None = None
    facts: KnownFacts = NO_FACTS
    constraints: Sequence[Constraint] = ()


async def read_beginning(
    sources: Sources, build: Build, parse: Callable[[bytes], _Beginning]
) -> tuple[_Beginning | None, Sequence[Constraint] | None]:
    """What the first build of the run kept, and the stored constraints; None for each that could not be read."""
    reads: dict[str, Read] = {BEGINNING: sources.beginning(build, parse)}
    constraints = sources.stored_constraints(build)
    found = await sources.read_all(reads | constraints)
    return found.get(BEGINNING), found.get(Part.CONSTRAINTS) if constraints else ()


async def gather_dialogue(sources: Sources, build: Build, begun_with: Sequence[Constraint] = ()) -> DialogueSources:
    """Read history, profile, facts and constraints, and then what else there is to recall.

    `begun_with` are the constraints with which the run began, for the case that they cannot be read.
    """
    request, settings = build.request, build.settings

    def history(messages: int) -> Read:
        call = partial(
            sources.conversation.get_past,
            request.owner_key,
            messages=messages,
            excerpt_chars=settings.truncate_chars,
            asked=request.human,
            own_row_id=build.input_row["_id"],
            continued=request.continuation,
            outbox_waiting=build.outbox_waiting,
            results=settings.show_tool_results,
        )
        return Read(call, build.read_until)

    first_size, _ = read_history_size(request.user_profile, settings.history_size)
    reads = {Part.HISTORY: history(first_size), **sources.stored_constraints(build)}
    if sources.facts:
        reads[Part.FACTS] = Read(partial(sources.facts.facts, request.owner_key), build.read_until)
    if request.user_profile is None:
        reads[Part.PROFILE] = Read(partial(_profile, sources.documents, request.owner_key), first_deadline(build))
    found = await sources.read_all(reads)
    profile = found.get(Part.PROFILE, request.user_profile)
    size, size_notes = read_history_size(profile, settings.history_size)
    missing = [part for part in reads if part not in found]
    past: Past = found.get(Part.HISTORY, Past([]))
    if size > first_size and Part.HISTORY in found:
        # The stored profile wants more messages than the default.
        more = await sources.read_all({Part.HISTORY: history(size)})
        past = more.get(Part.HISTORY, past)
        missing += [] if more else [Part.HISTORY]
    notes = [
        *request.notes,
        *size_notes,
        *([_STOPPED_EARLY] if past.stopped_early else []),
        *incomplete_notes(build, complete=past.complete),
    ]
    complete = past.complete and not build.unrecorded
    recall = None
    if build.recalls:
        shown = newest(past.rows, size, current_run_id=request.run_id).utterances
        recall, not_read = await search_recall(sources, build, (entry.row for each in shown for entry in each.entries))
        missing += not_read
    facts: Sequence[Fact] = found.get(Part.FACTS, ())
    known = partial(known_facts, facts, build.budget.bounds)
    shown_facts = await computed(request.owner_key, len(facts) * _FACT_CHARS, known)
    constraints = found.get(Part.CONSTRAINTS, begun_with)
    return DialogueSources(profile, past.rows, size, complete, missing, notes, recall, shown_facts, constraints)


async def search_recall(
    sources: Sources, build: Build, shown: Iterable[Row]
) -> tuple[RecallBlock | None, Sequence[Part]]:
    """What long-term memory has for the input beside rows that are shown, and the part if it could not be searched.

    Nothing is asked where the context has no `[RECALL]`.
    """
    if not build.recalls or sources.recall is None:
        return None, []
    request = build.request
    without = {row_id for row in (build.input_row, *shown) if isinstance(row_id := row.get("_id"), str)}
    # What was said again and again would take the places of all else.
    call = partial(
        sources.recall.search,
        request.owner_key,
        request.current_input,
        limit=MOST_HITS,
        without=without,
        distinct=True,
    )
    found: Mapping[Part, Found] = await sources.read_all({Part.RECALL: Read(call, build.read_until)})
    if Part.RECALL not in found:
        return None, [Part.RECALL]
    render = partial(
        recall_block,
        found[Part.RECALL],
        request.owner_key,
        request.run_id,
        without,
        truncate_chars=build.settings.truncate_chars,
        timezone_offset=request.timezone_offset,
        bounds=build.budget.bounds,
    )
    chars = sum(chars_of(row) for hit in found[Part.RECALL].hits for row in hit.around)
    return await computed(request.owner_key, chars, render), []


def incomplete_notes(build: Build, *, complete: bool) -> list[str]:
    """The notes on a history without the latest rows; none on a complete one."""
    asked = len(build.request.after)
    unrecorded = (
        [f"metadata.after: {build.unrecorded} of {asked} messages are not recorded"] if build.unrecorded else []
    )
    return unrecorded if complete else [*unrecorded, _INCOMPLETE]


async def _profile(documents: DocumentStore, owner_key: str) -> Row | None:
    profile = await documents.find_identity(owner_key)
    if profile and profile.get("public_key") != owner_key:
        raise StoreUnavailableError("the store answered with the profile of another owner")
    return profile
