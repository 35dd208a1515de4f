"""Settings to running service: parts are started in their order, and stopped so that work in flight is finished."""

import math
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import structlog

from nexus import __version__
from nexus.config import Settings
from nexus.connections import (
    FLUSH_S,
    Transport,
    counts_subscribers,
    open_bus,
    open_embedder,
    open_model,
    open_store,
    open_tracing,
    try_claim,
)
from nexus.core.concurrency import supervised, ungrouped
from nexus.core.errors import ConfigError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Metrics, Reading
from nexus.core.ports import DocumentStore, RequestLedger, Subscription
from nexus.http.console.pages import create_console
from nexus.http.console.shell import ConsoleServices
from nexus.http.server import CachedCheck, Check, create_app, serving
from nexus.services.records.reader import RecordReader
from nexus.services.replicas import Replicas
from nexus.services.requests.dispatcher import NEWS, Dispatcher, work
from nexus.services.requests.letters import LetterSender
from nexus.wiring import Nexus, ServiceState, create_nexus

__all__ = ["Nexus", "console_services", "open_nexus"]

_log = structlog.get_logger(__name__)

_PAUSE_S: Final = 1.0
_PAUSE_AFTER_FAULT_S: Final = 30.0
# Closing connections to servers that are gone takes so long; where the drain is short, that part of it is left.
_CLOSING_S: Final = 1.5
_DRAINING: Final = 0.7
# A bus counts as lost after so many heartbeats without one.
_SILENT_BEATS: Final = 3
_LEDGER_TRIED_EVERY_S: Final = 3.0
# How often the loop is looked at, and how late it is when the log says so: a quarter of the default lease.
_LOOKED_AT_EVERY_S: Final = 0.02
_STALLED_S: Final = 0.5


@asynccontextmanager
async def open_nexus(settings: Settings, settings_file: Path | None = None) -> AsyncIterator[Nexus]:
    """A service that answers, records and registers until the context ends, and then finishes its work in flight.

    `settings_file`: the one they were read from, which the console names.

    ConfigError where settings, tool modules or stored settings are wrong.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(ungrouped())
        transport = await stack.enter_async_context(open_bus(settings.bus))
        store = await stack.enter_async_context(open_store(settings.database, recall=settings.recall.enabled))
        model = await stack.enter_async_context(open_model(settings.llm))
        embedder = await stack.enter_async_context(open_embedder(settings.recall))
        nexus = create_nexus(settings, transport, store, model, embedder)
        replicas = Replicas(
            store.replicas, nexus.metrics, nexus.metrics, host=socket.gethostname(), version=__version__
        )
        shown = console_services(nexus, transport, settings_file, replicas)
        app = create_app(
            checks(nexus.state, store, transport.probe, settings.bus.heartbeat_s),
            nexus.metrics.exposition,
            console=create_console(shown) if settings.console.enabled else (),
        )
        await stack.enter_async_context(open_tracing(settings, replicas.own.replica_id, __version__))
        http_port = await stack.enter_async_context(serving(app, settings.system.http_host, settings.system.http_port))
        nexus = replace(nexus, http_port=http_port)
        await stack.enter_async_context(_watching_loop(nexus.metrics))
        if settings.console.enabled:
            await stack.enter_async_context(replicas.running())
        await stack.enter_async_context(nexus.turns.running())
        await stack.enter_async_context(nexus.persistence.running())
        if services := nexus.working_memory:
            await stack.enter_async_context(services.memory.running())
            if services.refiner:
                await stack.enter_async_context(services.refiner.running())
            await stack.enter_async_context(services.tool_calls.running())
        if nexus.indexer:
            await stack.enter_async_context(nexus.indexer.running())
        await stack.enter_async_context(nexus.retention.running())
        if nexus.records:
            await stack.enter_async_context(nexus.records.running())
        await stack.enter_async_context(nexus.requests.running())
        await stack.enter_async_context(nexus.catalog.running())
        for queue in nexus.queues.values():
            await stack.enter_async_context(queue.running())
        await stack.enter_async_context(_listening(nexus))
        yield nexus


def console_services(
    nexus: Nexus, transport: Transport, settings_file: Path | None, replicas: Replicas
) -> ConsoleServices:
    """What the console shows of a service."""
    letters, counts = transport.dead_letters, counts_subscribers(nexus.settings.bus)
    return ConsoleServices(
        nexus.settings,
        settings_file,
        nexus.store,
        nexus.builder,
        letters,
        LetterSender(letters, transport.bus, nexus.requests.settings, counts=counts),
        replicas,
        nexus.facts,
        nexus.constraints,
        RecordReader(nexus.store) if nexus.records else None,
        nexus.working_memory.memory if nexus.working_memory else None,
        nexus.recall,
        nexus.eraser,
    )


@asynccontextmanager
async def _watching_loop(metrics: Metrics) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch_loop, metrics)
        yield
        tasks.cancel_scope.cancel()


async def watch_loop(metrics: Metrics) -> None:
    """Measure how late the event loop calls this task, until cancelled: as late as all others, leases' renewal too."""
    while True:
        due = anyio.current_time() + _LOOKED_AT_EVERY_S
        await anyio.sleep_until(due)
        stalled_s = anyio.current_time() - due
        metrics.stalled(stalled_s)
        if stalled_s >= _STALLED_S:
            _log.warning("loop_stalled", seconds=round(stalled_s, 3))


@asynccontextmanager
async def _listening(nexus: Nexus) -> AsyncIterator[None]:
    dispatcher = Dispatcher(
        nexus.bus,
        nexus.requests,
        nexus.persistence,
        nexus.catalog,
        nexus.queues,
        nexus.suspects,
        nexus.dead_letter_writer,
        partial(_reload, nexus),
        nexus.requests.settings,
        nexus.working_memory.tool_calls if nexus.working_memory else None,
        nexus.metrics,
    )
    async with anyio.create_task_group() as tasks:
        try:
            await nexus.load_stored()
        except StoreUnavailableError as error:
            _log.warning("database_unavailable_at_start", reason=str(error))
            tasks.start_soon(supervised, nexus.metrics, "settings", partial(_load_later, nexus))
        shared = work(nexus.settings.bus.max_in_flight, tool_calls=nexus.working_memory is not None)
        async with nexus.bus.consume(shared, NEWS) as subscription, dispatcher.running():
            nexus.state.subscription = subscription
            _measure(nexus, subscription)
            ended = anyio.Event()
            tasks.start_soon(dispatcher.dispatch_all, subscription, ended)
            try:
                yield
            finally:
                nexus.state.draining = True
                await _drain(nexus, dispatcher, subscription, ended)
                tasks.cancel_scope.cancel()


def _measure(nexus: Nexus, subscription: Subscription) -> None:
    nexus.metrics.read_from(Reading.BUS_RECONNECTS, lambda: subscription.reconnects)
    for topic in subscription.backlogs:
        nexus.metrics.backlog_from(topic, partial(subscription.backlogs.__getitem__, topic))


async def _load_later(nexus: Nexus) -> None:
    """Load stored settings and tools as soon as the store answers. Their faults are logged; the service goes on."""
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
    """Take in nothing more and finish the work in flight, in time to be gone within `system.drain_seconds`."""
    seconds = nexus.settings.system.drain_seconds
    calls = nexus.working_memory.tool_calls.pending if nexus.working_memory else None
    closing_s = _CLOSING_S + (FLUSH_S if nexus.settings.tracing.otlp_endpoint.get_secret_value() else 0)
    with anyio.move_on_after(max(seconds - closing_s, seconds * _DRAINING), shield=True):
        await subscription.stop()
        await done.wait()
        await nexus.requests.pending.none()
        if calls:
            await calls.none()
        await nexus.persistence.flush()
        await nexus.catalog.pending.none()
        for queue in nexus.queues.values():
            await queue.pending.none()
        await nexus.turns.drained()
        await dispatcher.pending.none()
        if nexus.records:
            await nexus.records.drain()
    left = {
        "pending": nexus.requests.pending.count,
        "calls": calls.count if calls else 0,
        "unwritten": nexus.persistence.unwritten,
        "tools": nexus.catalog.pending.count,
        "states": nexus.states.pending.count,
        "facts": nexus.facts.pending.count,
        "constraints": nexus.constraints.pending.count,
        "turns": nexus.turns.pending,
        "letters": dispatcher.pending.count,
        "records": nexus.records.pending.count if nexus.records else 0,
    }
    if any(left.values()):
        _log.error("drain_incomplete", **left)


async def _reload(nexus: Nexus) -> None:
    try:
        await nexus.reload_settings()
        _log.info("settings_reloaded", environment=nexus.settings.environment)
    except (StoreUnavailableError, StoreRejectedError, ConfigError) as error:
        _log.error("settings_not_reloaded", reason=str(error))


def checks(state: ServiceState, store: DocumentStore, probe: RequestLedger, heartbeat_s: float) -> dict[str, Check]:
    """The checks by which the service is ready (contract §10); `probe` is a ledger that gives up soon."""
    longest_s = heartbeat_s * _SILENT_BEATS

    async def bus() -> str | None:
        subscription = state.subscription
        if subscription is None:
            return "not connected yet"
        if subscription.silent_s == math.inf:
            return "not connected"
        return None if subscription.silent_s <= longest_s else f"silent for more than {longest_s:g} s"

    async def ledger() -> str | None:
        # A bus that can be read may yet take no writes, and then nothing is answered.
        await try_claim(probe)
        return None

    async def database() -> str | None:
        await store.ping()
        return None

    async def running() -> str | None:
        return "the service is stopping" if state.draining else None

    return {
        "bus": bus,
        "ledger": CachedCheck(ledger, keep_s=_LEDGER_TRIED_EVERY_S),
        "database": CachedCheck(database),
        "running": running,
    }
