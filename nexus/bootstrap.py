"""Settings to running service: the one place where the parts are put together (DESIGN, habits).

bus.consume ─ Dispatcher ─┬─ RequestService ── ContextBuilder ──┬─ PersistenceService ── MongoStore
                          ├─ PersistenceService ─ TurnMemory    ├─ TurnMemory ── TurnWork ── LanguageModel
                          ├─ SessionStates                      ├─ SessionStates
                          ├─ ToolCatalog                        ├─ ToolRegistry
                          └─ stored settings                    └─ RequestLedger
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
import structlog

from nexus import __version__
from nexus.adapters.prometheus import PrometheusMetrics
from nexus.config import Settings
from nexus.connections import Transport, open_bus, open_model, open_store
from nexus.core.errors import ConfigError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Reading
from nexus.core.ports import Bus, DeadLetters, LanguageModel, RequestLedger, Store, Subscription
from nexus.core.tasks import ungrouped
from nexus.health import Health, serving
from nexus.readiness import Life, checks
from nexus.services.burying import Burying
from nexus.services.context.builder import ContextBuilder
from nexus.services.dispatch import NEWS, Dispatcher, work
from nexus.services.persistence import PersistenceService
from nexus.services.requests import RequestService
from nexus.services.session_states import SessionStates
from nexus.services.tool_catalog import ToolCatalog
from nexus.services.turn_memory import TurnMemory
from nexus.services.turns.work import TurnWork
from nexus.tools.discovery import discover
from nexus.tools.registry import ToolRegistry
from nexus.tuning import builder_settings, request_settings, work_settings

_log = structlog.get_logger(__name__)

_PAUSE_S = 1.0
_PAUSE_AFTER_FAULT_S = 30.0
# Closing connections to servers that are gone takes so long; where the drain is short, that part of it is left.
_CLOSING_S = 1.5
_DRAINING = 0.7


@dataclass(frozen=True, slots=True)
class Nexus:
    """A running service and its parts.

    Attributes:
        http_port: where health and metrics are asked; 0 while nobody listens there.
    """

    settings: Settings
    bus: Bus
    ledger: RequestLedger
    dead_letters: DeadLetters
    burying: Burying
    store: Store
    registry: ToolRegistry
    persistence: PersistenceService
    builder: ContextBuilder
    requests: RequestService
    catalog: ToolCatalog
    states: SessionStates
    turns: TurnMemory
    metrics: PrometheusMetrics
    http_port: int = 0
    life: Life = field(default_factory=Life)

    async def load_stored(self) -> None:
        """Prepare the store and take from it what is kept there: settings and tools.

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
        settings = self.settings.with_stored(document or {})
        self.builder.settings = builder_settings(settings)
        self.turns.work.settings = work_settings(settings)


@asynccontextmanager
async def open_nexus(settings: Settings) -> AsyncIterator[Nexus]:
    """A service that answers, records and registers until the context ends, and then finishes what it has begun.

    Raises:
        ConfigError: settings, tool modules or stored settings are wrong.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(ungrouped())
        transport = await stack.enter_async_context(open_bus(settings.bus))
        store = await stack.enter_async_context(open_store(settings.database))
        model = await stack.enter_async_context(open_model(settings.llm))
        nexus = _put_together(settings, transport, store, model)
        health = Health(checks(nexus.life, store, transport.probe, settings.bus.heartbeat_s), nexus.metrics.exposition)
        http_port = await stack.enter_async_context(
            serving(health, settings.system.http_host, settings.system.http_port)
        )
        nexus = replace(nexus, http_port=http_port)
        await stack.enter_async_context(nexus.turns.running())
        await stack.enter_async_context(nexus.persistence.running())
        await stack.enter_async_context(nexus.requests.running())
        await stack.enter_async_context(nexus.catalog.running())
        await stack.enter_async_context(nexus.states.running())
        await stack.enter_async_context(_listening(nexus))
        yield nexus


def _put_together(settings: Settings, transport: Transport, store: Store, model: LanguageModel | None) -> Nexus:
    metrics = PrometheusMetrics(version=__version__)
    registry = ToolRegistry()
    discover(registry, settings.tools.modules)
    work = TurnWork(
        store.turns,
        store,
        model,
        max_input_tokens=settings.llm.max_input_tokens,
        settings=work_settings(settings),
        metrics=metrics,
    )
    turns = TurnMemory(store.turns, store, work, metrics)
    persistence = PersistenceService(store, metrics, ledger=transport.ledger, recorded=turns.heard)
    states = SessionStates(store, metrics)
    builder = ContextBuilder(
        persistence,
        store,
        registry,
        transport.ledger,
        builder_settings(settings),
        states=states,
        turns=turns,
        metrics=metrics,
    )
    bodies_up_to = settings.bus.max_payload_bytes if settings.bus.dead_letter_bodies else None
    burying = Burying(transport.dead_letters, metrics, bodies_up_to)
    requests = RequestService(
        builder, transport.bus, transport.ledger, burying, request_settings(settings.bus), metrics
    )
    catalog = ToolCatalog(registry, store, refresh_s=settings.tools.refresh_seconds)
    return Nexus(
        settings,
        transport.bus,
        transport.ledger,
        transport.dead_letters,
        burying,
        store,
        registry,
        persistence,
        builder,
        requests,
        catalog,
        states,
        turns,
        metrics,
    )


@asynccontextmanager
async def _listening(nexus: Nexus) -> AsyncIterator[None]:
    dispatcher = Dispatcher(
        nexus.bus,
        nexus.requests,
        nexus.persistence,
        nexus.catalog,
        nexus.states,
        nexus.burying,
        partial(_reload, nexus),
        nexus.requests.settings,
    )
    async with anyio.create_task_group() as tasks:
        try:
            await nexus.load_stored()
        except StoreUnavailableError as error:
            _log.warning("database_unavailable_at_start", reason=str(error))
            tasks.start_soon(_load_later, nexus)
        shared = work(nexus.settings.bus.max_in_flight)
        async with nexus.bus.consume(shared, NEWS) as subscription, dispatcher.running():
            nexus.life.subscription = subscription
            _measure(nexus, subscription)
            ended = anyio.Event()
            tasks.start_soon(dispatcher.dispatch_all, subscription, ended)
            try:
                yield
            finally:
                nexus.life.draining = True
                await _drain(nexus, dispatcher, subscription, ended)
                tasks.cancel_scope.cancel()


def _measure(nexus: Nexus, subscription: Subscription) -> None:
    nexus.metrics.read_from(Reading.BUS_RECONNECTS, lambda: subscription.reconnects)
    for topic in subscription.backlogs:
        nexus.metrics.backlog_from(topic, partial(subscription.backlogs.__getitem__, topic))


async def _load_later(nexus: Nexus) -> None:
    """Load what is stored as soon as the store answers. What is wrong with it is logged; the service goes on."""
    pause = _PAUSE_S
    while True:
        await anyio.sleep(pause)
        try:
            await nexus.load_stored()
        except StoreUnavailableError:
            continue
        except (StoreRejectedError, ConfigError) as error:
            _log.error("stored_settings_refused", reason=str(error))
            pause = _PAUSE_AFTER_FAULT_S
            continue
        _log.info("database_available")
        return


async def _drain(nexus: Nexus, dispatcher: Dispatcher, subscription: Subscription, done: anyio.Event) -> None:
    """Take in nothing more and finish what was taken in, in time to be gone within `system.drain_seconds`."""
    seconds = nexus.settings.system.drain_seconds
    with anyio.move_on_after(max(seconds - _CLOSING_S, seconds * _DRAINING), shield=True):
        await subscription.stop()
        await done.wait()
        await nexus.requests.drained()
        await nexus.persistence.flush()
        await nexus.catalog.pending.none()
        await nexus.states.pending.none()
        await nexus.turns.pending.none()
        await dispatcher.pending.none()
    left = {
        "pending": nexus.requests.pending,
        "unwritten": nexus.persistence.unwritten,
        "tools": nexus.catalog.pending.count,
        "states": nexus.states.pending.count,
        "turns": nexus.turns.pending.count,
        "letters": dispatcher.pending.count,
    }
    if any(left.values()):
        _log.error("drain_incomplete", **left)


async def _reload(nexus: Nexus) -> None:
    try:
        await nexus.reload_settings()
        _log.info("settings_reloaded", environment=nexus.settings.environment)
    except (StoreUnavailableError, StoreRejectedError, ConfigError) as error:
        _log.error("settings_not_reloaded", reason=str(error))
