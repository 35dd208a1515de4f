"""Settings to the parts of a service, which is not running yet.

bus.consume ─ Dispatcher ─┬─ RequestService ── ContextBuilder ──┬─ PersistenceService ── MongoStore
                          ├─ PersistenceService ─ TurnMemory    ├─ TurnMemory ── TurnWorker ─ LanguageModel
                          ├─ ToolCallService ─ WorkingMemory    ├─ WorkingMemory ── Compactor, SummaryRefiner
                          ├─ SessionStates, Facts, Constraints  ├─ SessionStates, Facts, Constraints
                          ├─ ToolCatalog                        ├─ ToolRegistry
                          └─ stored settings                    └─ RequestLedger

Recall (asked by WorkingMemory, ContextBuilder and RequestService), Indexer ── RecallIndex, Embedder
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import structlog

from nexus import __version__
from nexus.adapters.prometheus import PrometheusMetrics
from nexus.adapters.tokenizer import open_tokenizer
from nexus.config import Settings, signing_of
from nexus.config.loading import with_stored
from nexus.config.sources import origins, version_of
from nexus.connections import Transport
from nexus.core.models import Topics
from nexus.core.person import CONSTRAINT_SCOPES
from nexus.core.ports import Bus, Embedder, LanguageModel, Row, Store, Subscription, TokenCounter
from nexus.core.shares import BUDGET, Share
from nexus.services.context.budget import WindowSettings
from nexus.services.context.builder import BuilderSettings, ContextBuilder
from nexus.services.context.person_blocks import constraints_text
from nexus.services.context.request import AUTO, HISTORY_SIZES
from nexus.services.erasure import Eraser
from nexus.services.history.tombstones import Tombstones
from nexus.services.memory.compactor import CompactionSettings, Compactor
from nexus.services.memory.refiner import RefiningSettings, SummaryRefiner
from nexus.services.memory.service import WorkingMemory
from nexus.services.persistence import PersistenceService
from nexus.services.person.constraints import Constraints
from nexus.services.person.extractor import FactExtractor
from nexus.services.person.facts import Facts
from nexus.services.recall.indexer import Indexer
from nexus.services.recall.service import Recall
from nexus.services.records.service import BuildRecords
from nexus.services.requests.answer_recorder import AnswerRecorder
from nexus.services.requests.answerer import RequestService
from nexus.services.requests.claims import DeadLetterWriter, SuspectReader
from nexus.services.requests.envelope import RequestSettings
from nexus.services.requests.tool_calls import ToolCallService
from nexus.services.retention import Retention, RetentionSettings
from nexus.services.session_queue import MessageQueue
from nexus.services.session_state.service import SessionStates
from nexus.services.tools.memory_tools import MemoryLimits, definitions
from nexus.services.tools.registry import ToolCatalog, ToolRegistry, discover
from nexus.services.turns.service import TurnMemory
from nexus.services.turns.worker import TurnSettings, TurnWorker

_log = structlog.get_logger(__name__)

# Turns are summarised by the same model, and are many more.
_REFINED_AT_ONCE: Final = 2


@dataclass(slots=True)
class ServiceState:
    """Of a running service: its subscription to the bus, None until there is one, and whether it is stopping."""

    subscription: Subscription | None = None
    draining: bool = False


@dataclass(frozen=True, slots=True)
class MemoryServices:
    """The services of working memory; without a configured model no summary is refined."""

    memory: WorkingMemory
    compactor: Compactor
    refiner: SummaryRefiner | None
    tool_calls: ToolCallService


@dataclass(frozen=True, slots=True)
class Nexus:
    """A running service and its parts."""

    settings: Settings
    bus: Bus
    suspects: SuspectReader
    dead_letter_writer: DeadLetterWriter
    store: Store
    registry: ToolRegistry
    persistence: PersistenceService
    builder: ContextBuilder
    requests: RequestService
    catalog: ToolCatalog
    states: SessionStates
    facts: Facts
    constraints: Constraints
    turns: TurnMemory
    working_memory: MemoryServices | None  # None where none is kept
    records: BuildRecords | None  # None where none are kept
    recall: Recall | None  # None where it is off, as the next
    indexer: Indexer | None
    retention: Retention
    eraser: Eraser
    metrics: PrometheusMetrics
    http_port: int = 0  # where health and metrics are served
    state: ServiceState = field(default_factory=ServiceState)

    @property
    def queues(self) -> Mapping[str, MessageQueue[Any]]:
        """What stores the messages of a topic, by topic."""
        return {
            Topics.SESSION_STATE: self.states,
            Topics.MEMORY_FACTS: self.facts,
            Topics.SESSION_CONSTRAINTS: self.constraints,
        }

    async def load_stored(self) -> None:
        """Prepare the store and load its settings and tools.

        Raises:
            StoreUnavailableError: the store did not answer.
            StoreRejectedError: what is stored stands in the way of an index.
            ConfigError: the stored settings are wrong.
        """
        await self.store.prepare()
        await self.reload_settings()
        await self.catalog.refresh()

    async def reload_settings(self) -> None:
        """Take over the `configurations` document of the environment; without one the file's settings hold.

        Raises:
            StoreUnavailableError, ConfigError: as for `load_stored`; the settings stay as they are.
        """
        document = await self.store.find_configuration(self.settings.environment)
        settings = settings_in_force(self.settings, document or {})
        self.builder.settings = builder_settings(settings)
        self.turns.worker.settings = turn_settings(settings)
        self.constraints.most_tokens = constraint_tokens(settings)
        if services := self.working_memory:
            services.memory.limits = memory_limits(settings)
            for definition in definitions(services.memory.limits):
                self.registry.renew(definition)
            services.compactor.settings = compaction_settings(settings)
            if services.refiner:
                services.refiner.settings = refining_settings(settings)


def create_nexus(
    settings: Settings,
    transport: Transport,
    store: Store,
    model: LanguageModel | None,
    embedder: Embedder | None = None,
) -> Nexus:
    """A service that is not running yet; ConfigError for a tool module or tokenizer that is missing or wrong."""
    bus, ledger = transport.bus, transport.ledger
    metrics = PrometheusMetrics(version=__version__)
    registry = ToolRegistry()
    discover(registry, settings.tools.modules)
    counter = open_tokenizer(settings.memory.tokenizer)
    if settings.memory.count_tokens == "always" or settings.layouts.default == "agent":
        # Contexts will surely be counted: the vocabulary is read before there is anything to serve.
        counter.count("")
    bodies_up_to = settings.bus.max_payload_bytes if settings.bus.dead_letter_bodies else None
    letters = DeadLetterWriter(transport.dead_letters, metrics, bodies_up_to)
    input_tokens = settings.llm.max_input_tokens

    async def add_key(owner_key: str, message_id: str, text: str) -> None:
        if settings.recall.enabled:
            await store.recall.add_key(owner_key, message_id, text)

    tombstones = Tombstones(store, transport.outbox)
    facts = Facts(store.facts, tombstones, metrics)
    extractor = None
    if model and settings.facts.extract == "model":
        extractor = FactExtractor(facts, model, store, max_input_tokens=input_tokens, metrics=metrics)
    worker = TurnWorker(
        store.turns,
        store,
        model,
        max_input_tokens=input_tokens,
        settings=turn_settings(settings),
        metrics=metrics,
        summarised=add_key,
        extract=extractor.extract if extractor else None,
    )
    turns = TurnMemory(store.turns, store, tombstones, worker, metrics, refused=letters.write_refused)
    recall = Recall(store.recall, embedder, language=settings.recall.language) if settings.recall.enabled else None
    indexer = (
        Indexer(
            store.recall,
            embedder,
            metrics=metrics,
            language=settings.recall.language,
            idle_s=lambda: requests.pending.idle_s,
        )
        if settings.recall.enabled
        else None
    )

    async def note_row(row: Row) -> None:
        if indexer:
            indexer.wake()
        await turns.note_row(row)
        # Else a replica that is killed takes turns with it of which everything else is stored.
        await turns.written(row["owner_key"], row["session_id"])

    persistence = PersistenceService(
        store,
        tombstones,
        metrics,
        ledger=ledger,
        recorded=note_row,
        refused=letters.write_refused,
        outbox=transport.outbox,
        redelivers=settings.bus.mode == "streams",
    )
    states = SessionStates(store, tombstones, metrics)
    constraints = create_constraints(settings, store, tombstones, counter, metrics)
    services = None
    if settings.memory.working_memory:
        services = _memory_services(
            settings,
            transport,
            store,
            model,
            counter,
            letters,
            persistence,
            turns,
            constraints,
            facts,
            registry,
            metrics,
            recall,
        )
        for definition in definitions(memory_limits(settings)):
            registry.register(definition)
    builder = ContextBuilder(
        persistence,
        store,
        registry,
        ledger,
        builder_settings(settings),
        states=states,
        turns=turns,
        memory=services.memory if services else None,
        recall=recall,
        facts=facts,
        constraints=constraints,
        counter=counter,
        metrics=metrics,
    )
    records = None
    if settings.context.record != "off":
        records = BuildRecords(store.records, tombstones, timedelta(days=settings.context.record_days), metrics)
    requests = RequestService(
        builder,
        bus,
        ledger,
        letters,
        request_settings(settings),
        metrics,
        recall=recall,
        record=AnswerRecorder(records, mode=settings.context.record, version=__version__) if records else None,
    )
    catalog = ToolCatalog(registry, store, refresh_s=settings.tools.refresh_seconds, metrics=metrics)
    return Nexus(
        settings,
        bus,
        SuspectReader(ledger, requests.settings),
        letters,
        store,
        registry,
        persistence,
        builder,
        requests,
        catalog,
        states,
        facts,
        constraints,
        turns,
        services,
        records,
        recall,
        indexer,
        Retention(
            store,
            transport.dead_letters,
            retention_settings(settings),
            metrics,
            language=settings.recall.language,
        ),
        create_eraser(settings, store, transport),
        metrics,
    )


def _memory_services(  # noqa: PLR0917  # one for each part
    settings: Settings,
    transport: Transport,
    store: Store,
    model: LanguageModel | None,
    counter: TokenCounter,
    letters: DeadLetterWriter,
    persistence: PersistenceService,
    turns: TurnMemory,
    constraints: Constraints,
    facts: Facts,
    registry: ToolRegistry,
    metrics: PrometheusMetrics,
    recall: Recall | None,
) -> MemoryServices:
    compactor = Compactor(store.memory, store, persistence.tombstones, counter, compaction_settings(settings))
    memory = WorkingMemory(
        store.memory,
        store,
        compactor.compact,
        turns,
        constraints=constraints,
        facts=facts,
        recall=recall,
        limits=memory_limits(settings),
        metrics=metrics,
    )
    refiner = None
    if model:
        refining = refining_settings(settings)
        refiner = SummaryRefiner(store.memory, store, model, counter, settings=refining, metrics=metrics)
    answering = request_settings(settings)
    tool_calls = ToolCallService(
        memory,
        transport.bus,
        transport.ledger,
        letters,
        persistence,
        store.ping,
        answering,
        metrics,
        is_announced=registry.is_tool_registered,
    )
    return MemoryServices(memory, compactor, refiner, tool_calls)


def create_eraser(settings: Settings, store: Store, transport: Transport | None) -> Eraser:
    """What erases in a store, and on a bus where there is one."""
    settle_s, language = settings.database.timeout_ms / 1_000, settings.recall.language
    if transport is None:
        return Eraser(store.erasure, settle_s=settle_s, language=language)
    return Eraser(
        store.erasure,
        settle_s=settle_s,
        kept=transport.kept,
        outbox=transport.outbox,
        letters=transport.dead_letters,
        language=language,
    )


def create_constraints(
    settings: Settings,
    store: Store,
    tombstones: Tombstones,
    counter: TokenCounter,
    metrics: PrometheusMetrics | None = None,
) -> Constraints:
    """Constraints on a store, measured by the text that contexts show."""
    most_tokens = constraint_tokens(settings)
    return Constraints(store.constraints, tombstones, constraints_text, counter, most_tokens, metrics)


def settings_in_force(settings: Settings, document: Mapping[str, Any]) -> Settings:
    """The settings with the stored document over them; logs which values of the settings file it outranks.

    Raises:
        ConfigError: the document is wrong.
    """
    result = with_stored(settings, document)
    if outranked := [origin.key for origin in origins(settings, document) if origin.outranked]:
        reason = f"the settings file has other values: {', '.join(outranked)}"
        _log.info("stored_settings_override_file", environment=settings.environment, reason=reason)
    return result


def window_settings(settings: Settings) -> WindowSettings:
    """How long contexts may be, and when sessions are compacted."""
    layouts, memory = settings.layouts, settings.memory
    constraints = memory.budget.constraints.ceiling
    return WindowSettings(
        context_window=memory.context_window,
        max_tokens={
            "dialogue": layouts.dialogue.max_tokens,
            "agent": layouts.agent.max_tokens,
            "thinking": layouts.thinking.max_tokens,
        },
        shares=memory.shares.model_dump(),
        budget={
            **BUDGET,
            **{name: Share(**share.model_dump()) for name, share in memory.budget.shares.items()},
            "constraints": BUDGET["constraints"]._replace(floor=constraints, ceiling=constraints),
        },
        compact_at=memory.compact_at,
        compact_to=memory.compact_to,
        summary_max_tokens=memory.summary_max_tokens,
    )


def builder_settings(settings: Settings) -> BuilderSettings:
    """How contexts are built."""
    defaults, layouts, memory = settings.user_defaults, settings.layouts, settings.memory
    size = defaults.config.history_context_size or memory.history_context_size
    return BuilderSettings(
        version=version_of(settings),
        default_layout=layouts.default,
        history_size=HISTORY_SIZES[1] if size == AUTO else size,
        truncate_chars=memory.truncate_chars,
        show_tool_results=memory.show_tool_results == "short",
        default_profile=defaults.prompts.friends_profile.content,
        on_history_failure=settings.context.on_history_failure,
        keep_prefix_ms=settings.bus.answer_ttl_s * 1_000,
        history_messages=layouts.agent.history_messages,
        placement=layouts.agent.placement,
        pinned_from_end=layouts.agent.pinned_from_end,
        summary_detail_level=memory.summary_detail_level,
        turns_shown=memory.turns_shown,
        recall=layouts.with_recall,
        dialogue_tools=frozenset(layouts.dialogue.tools),
        mood=settings.context.mood == "rules",
        summaries_by_model=settings.llm.enabled,
        count_tokens=memory.count_tokens,
        condense_above=settings.condense_above,
        window=window_settings(settings),
        constraint_tokens=constraint_tokens(settings),
    )


def turn_settings(settings: Settings) -> TurnSettings:
    """How turns are closed and summarised."""
    return TurnSettings(
        idle_s=settings.memory.turn_idle_s,
        summaries_at_once=settings.llm.max_concurrency,
        max_calls=settings.llm.max_calls_per_turn,
        again_s=settings.llm.again_s,
        settled_s=settings.llm.settle_s,
    )


def constraint_tokens(settings: Settings) -> int:
    """How many tokens the constraints of one scope may take: a third of their share of the smallest context."""
    window = window_settings(settings)
    smallest = min(map(window.limit, ("dialogue", "agent", "thinking")))
    return int(smallest * settings.memory.budget.constraints.ceiling / len(CONSTRAINT_SCOPES))


def memory_limits(settings: Settings) -> MemoryLimits:
    """How large the texts of working memory may be, and how many revisions are kept."""
    memory = settings.memory
    return MemoryLimits(memory.overview_max_bytes, memory.detail_max_bytes, memory.keep_revisions)


def retention_settings(settings: Settings) -> RetentionSettings:
    """How long things are kept."""
    days = settings.retention.model_dump()
    return RetentionSettings(
        **{name.removesuffix("_days"): timedelta(days=count) for name, count in days.items() if count}
    )


def compaction_settings(settings: Settings) -> CompactionSettings:
    """How sessions are compacted."""
    return CompactionSettings(
        idle_s=settings.memory.turn_idle_s,
        summary_max_tokens=settings.memory.summary_max_tokens,
        refine=settings.llm.enabled,
        detail_max_bytes=settings.memory.detail_max_bytes,
    )


def refining_settings(settings: Settings) -> RefiningSettings:
    """How a model rewrites summaries of compacted messages."""
    return RefiningSettings(
        at_once=min(_REFINED_AT_ONCE, settings.llm.max_concurrency),
        again_s=settings.llm.again_s,
        max_input_tokens=settings.llm.max_input_tokens,
        max_calls=settings.llm.max_calls_per_compaction,
        summary_max_tokens=settings.memory.summary_max_tokens,
    )


def request_settings(settings: Settings) -> RequestSettings:
    """Promises about requests and calls of tools, and the keys of their senders."""
    bus = settings.bus
    return RequestSettings(
        deadline_ms=bus.request_deadline_ms,
        lease_ms=bus.lease_ms,
        answer_ttl_ms=bus.answer_ttl_s * 1_000,
        max_payload_bytes=bus.max_payload_bytes,
        max_in_flight=bus.max_in_flight,
        max_in_flight_per_owner=bus.max_in_flight_per_owner,
        unknown_tools_after_ms=settings.tools.unknown_after_ms,
        condense_above=settings.condense_above,
        signing=signing_of(bus.signing),
        mode=bus.mode,
    )
