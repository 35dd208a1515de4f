"""Settings to running service: the one place where the parts are put together (DESIGN, habits).

bus.subscribe ─ dispatch ─┬─ RequestService ── ContextBuilder ──┬─ PersistenceService ── MongoStore
                          ├─ PersistenceService                 ├─ ToolRegistry
                          ├─ ToolCatalog                        └─ RequestLedger
                          └─ stored settings
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import structlog

from nexus.adapters.memory_bus import MemoryBus, MemoryLedger
from nexus.adapters.mongo import open_mongo
from nexus.adapters.redis_client import open_redis
from nexus.adapters.redis_ledger import RedisLedger
from nexus.adapters.redis_pubsub import RedisPubSubBus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.core.errors import ConfigError, StoreRejectedError, StoreUnavailableError, UnreadablePayloadError
from nexus.core.ports import Bus, Delivery, RequestLedger, Store, Subscription
from nexus.core.tasks import Later, ungrouped
from nexus.core.topics import Topics
from nexus.core.wire import EnvelopeError, decode
from nexus.services.context.builder import BuilderSettings, ContextBuilder
from nexus.services.persistence import PersistenceService
from nexus.services.requests import RequestService, RequestSettings
from nexus.services.tool_catalog import ToolCatalog
from nexus.tools.discovery import discover
from nexus.tools.registry import ToolRegistry

_log = structlog.get_logger(__name__)

_TOPICS = (
    Topics.CONTEXT_BUILD_REQUEST,
    Topics.LLM_RESULTS,
    Topics.TOOLS_RESULTS,
    Topics.TOOLS_REGISTER,
    Topics.TOOLS_UNREGISTER,
    Topics.CONFIG_CHANGED,
)
_PAUSE_S = 1.0
_PAUSE_AFTER_FAULT_S = 30.0


@dataclass(frozen=True, slots=True)
class Nexus:
    """A running service and its parts."""

    settings: Settings
    bus: Bus
    ledger: RequestLedger
    store: Store
    registry: ToolRegistry
    persistence: PersistenceService
    builder: ContextBuilder
    requests: RequestService
    catalog: ToolCatalog

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
        self.builder.settings = _builder_settings(self.settings.with_stored(document or {}))


@asynccontextmanager
async def open_nexus(settings: Settings) -> AsyncIterator[Nexus]:
    """A service that answers, records and registers until the context ends, and then finishes what it has begun.

    Raises:
        ConfigError: settings, tool modules or stored settings are wrong.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(ungrouped())
        bus, ledger = await stack.enter_async_context(open_bus(settings.bus))
        store = await stack.enter_async_context(open_store(settings.database))
        registry = ToolRegistry()
        discover(registry, settings.tools.modules)
        persistence = PersistenceService(store)
        builder = ContextBuilder(persistence, store, registry, ledger, _builder_settings(settings))
        requests = RequestService(builder, bus, ledger, _request_settings(settings.bus))
        catalog = ToolCatalog(registry, store, refresh_s=settings.tools.refresh_seconds)
        nexus = Nexus(settings, bus, ledger, store, registry, persistence, builder, requests, catalog)
        await stack.enter_async_context(persistence.running())
        await stack.enter_async_context(requests.running())
        await stack.enter_async_context(catalog.running())
        await stack.enter_async_context(_listening(nexus))
        yield nexus


@asynccontextmanager
async def open_bus(settings: BusSettings) -> AsyncIterator[tuple[Bus, RequestLedger]]:
    """The bus and the ledger of `settings.mode`."""
    if settings.mode == "memory":
        memory = MemoryBus()
        yield memory, MemoryLedger(memory, dead_letter_max=settings.dead_letter_max)
        return
    async with open_redis(settings.url.get_secret_value()) as client:
        bus = RedisPubSubBus(client, prefix=settings.channel_prefix, heartbeat_s=settings.heartbeat_s)
        ledger = RedisLedger(client, prefix=settings.channel_prefix, dead_letter_max=settings.dead_letter_max)
        yield bus, ledger


def open_store(settings: DatabaseSettings) -> AbstractAsyncContextManager[Store]:
    """The document store. Connects when it is first used.

    Raises:
        ConfigError: the URI cannot be used.
    """
    return open_mongo(
        settings.uri.get_secret_value(),
        settings.name,
        driver=settings.driver,
        timeout_ms=settings.timeout_ms,
        server_selection_timeout_ms=settings.server_selection_timeout_ms,
    )


@asynccontextmanager
async def open_client(url: str, *, channel_prefix: str = "", connect_s: float = 5.0) -> AsyncIterator[ContextClient]:
    """A requester on the Redis at `url`.

    Raises:
        BusUnavailableError: Redis could not be reached within `connect_s` seconds.
    """
    async with open_redis(url) as redis:
        bus = RedisPubSubBus(redis, prefix=channel_prefix, connect_s=connect_s)
        async with ContextClient(bus).listening() as client:
            yield client


@asynccontextmanager
async def _listening(nexus: Nexus) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        try:
            await nexus.load_stored()
        except StoreUnavailableError as error:
            _log.warning("database_unavailable_at_start", reason=str(error))
            tasks.start_soon(_load_later, nexus)
        async with nexus.bus.subscribe(*_TOPICS) as subscription:
            done, later = anyio.Event(), Later()
            tasks.start_soon(later.run)
            tasks.start_soon(_dispatch_all, nexus, subscription, later, done)
            try:
                yield
            finally:
                await _drain(nexus, subscription, done)
                tasks.cancel_scope.cancel()


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


async def _drain(nexus: Nexus, subscription: Subscription, done: anyio.Event) -> None:
    """Take in nothing more and finish what was taken in, within `system.drain_seconds`."""
    with anyio.move_on_after(nexus.settings.system.drain_seconds, shield=True):
        await subscription.stop()
        await done.wait()
        await nexus.requests.drained()
        await nexus.persistence.flush()
    if nexus.requests.pending or nexus.persistence.unwritten:
        _log.error("drain_incomplete", pending=nexus.requests.pending, unwritten=nexus.persistence.unwritten)


async def _dispatch_all(nexus: Nexus, subscription: Subscription, later: Later, done: anyio.Event) -> None:
    """Hand every delivery on without waiting for anything: what takes time is done by others, or `later`."""
    try:
        async for delivery in subscription:
            if delivery.topic == Topics.CONTEXT_BUILD_REQUEST:
                nexus.requests.offer(delivery.payload)
            elif fault := _dispatch(nexus, delivery, later):
                bury = partial(nexus.requests.bury, delivery.topic, delivery.payload, fault)
                if not later.do(bury):
                    _log.error("dead_letter_not_kept", topic=delivery.topic, reason="too many are waiting")
    finally:
        done.set()


def _dispatch(nexus: Nexus, delivery: Delivery, later: Later) -> str | None:
    """Everything but requests. Nobody waits for an answer, so what cannot be used becomes a dead letter: says why."""
    try:
        message = decode(delivery.payload, max_bytes=nexus.settings.bus.max_payload_bytes)
    except (EnvelopeError, UnreadablePayloadError) as error:
        return str(error)
    match delivery.topic:
        case Topics.LLM_RESULTS | Topics.TOOLS_RESULTS:
            accepted = nexus.persistence.offer(delivery.topic, message, len(delivery.payload))
            return None if accepted else "too much is waiting to be recorded"
        case Topics.TOOLS_REGISTER | Topics.TOOLS_UNREGISTER:
            return None if nexus.catalog.offer(delivery.topic, message) else "the tool was refused"
        case _:
            later.do(partial(_reload, nexus))
            return None


async def _reload(nexus: Nexus) -> None:
    try:
        await nexus.reload_settings()
        _log.info("settings_reloaded", environment=nexus.settings.environment)
    except (StoreUnavailableError, StoreRejectedError, ConfigError) as error:
        _log.error("settings_not_reloaded", reason=str(error))


def _builder_settings(settings: Settings) -> BuilderSettings:
    defaults = settings.user_defaults
    return BuilderSettings(
        default_layout=settings.layouts.default,
        history_size=defaults.config.history_context_size or settings.memory.history_context_size,
        truncate_chars=settings.memory.truncate_chars,
        default_profile=defaults.prompts.friends_profile.content,
        on_history_failure=settings.context.on_history_failure,
        keep_prefix_ms=settings.bus.answer_ttl_s * 1_000,
    )


def _request_settings(settings: BusSettings) -> RequestSettings:
    return RequestSettings(
        deadline_ms=settings.request_deadline_ms,
        clock_skew_ms=settings.clock_skew_ms,
        lease_ms=settings.lease_ms,
        answer_ttl_ms=settings.answer_ttl_s * 1_000,
        max_payload_bytes=settings.max_payload_bytes,
        max_in_flight=settings.max_in_flight,
        dead_letter_bodies=settings.dead_letter_bodies,
    )
