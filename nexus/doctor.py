"""`nexus doctor`: is everything there that Nexus needs, and if not, what to do."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
from rich.console import Console

from nexus.config import Settings
from nexus.connections import open_bus, open_store, try_claim
from nexus.core.errors import BusUnavailableError, ConfigError, NexusError
from nexus.core.models import new_message_id
from nexus.core.ports import Bus, RequestLedger, Store
from nexus.terminal import SEE_MONGODB, bus_advice
from nexus.tools.discovery import discover
from nexus.tools.registry import ToolRegistry

_PATIENCE_S = 5.0

Check = Callable[[], Awaitable[str]]
Advice = str | Callable[[Exception], str]


async def examine(settings: Settings, console: Console, quick: bool = False) -> bool:
    """Make the checks and print a line for each. Returns whether all is well."""
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(open_bus(settings.bus))
        store = await stack.enter_async_context(open_store(settings.database))
        bus_answers = await _make(console, "bus", lambda: _hear(transport.bus), bus_advice) and await _make(
            console, "ledger", lambda: _claim(transport.probe), bus_advice
        )
        store_answers = await _make(console, "database", lambda: _ping(store), SEE_MONGODB)
        if quick or not store_answers:
            return bus_answers and store_answers
        checks: list[tuple[str, Check, Advice]] = [
            ("indexes", lambda: _prepare(store), "see the reason; the user needs the right to make indexes"),
            ("settings", lambda: _stored(store, settings), "correct the document with scripts/database_manager.py"),
            ("tools", lambda: _tools(store, settings), "correct tools.modules"),
        ]
        results = [await _make(console, *check) for check in checks]
    return bus_answers and all(results)


async def _make(console: Console, name: str, check: Check, advice: Advice) -> bool:
    try:
        with anyio.fail_after(_PATIENCE_S):
            finding = await check()
    except (NexusError, TimeoutError) as error:
        reason = str(error) or f"no answer within {_PATIENCE_S:g} s"
        to_do = advice if isinstance(advice, str) else advice(error)
        console.print(f"[red]wrong[/red]  {name}: {reason}. To do: {to_do}.", highlight=False, soft_wrap=True)
        return False
    console.print(f"[green]ok[/green]     {name}: {finding}", highlight=False, soft_wrap=True)
    return True


async def _hear(bus: Bus) -> str:
    topic = f"nexus.doctor.{new_message_id()}"
    # A subscription waits for a server that does not let it in; publishing says what is wrong.
    await bus.publish(topic, b"")
    async with bus.subscribe(topic) as subscription:
        started = anyio.current_time()
        await bus.publish(topic, b"?")
        async for _ in subscription:
            return f"hears itself, {(anyio.current_time() - started) * 1_000:.1f} ms"
    raise BusUnavailableError("the subscription ended")


async def _claim(ledger: RequestLedger) -> str:
    started = anyio.current_time()
    await try_claim(ledger)
    return f"takes a claim and gives it back, {(anyio.current_time() - started) * 1_000:.1f} ms"


async def _ping(store: Store) -> str:
    started = anyio.current_time()
    await store.ping()
    return f"answers, {(anyio.current_time() - started) * 1_000:.1f} ms"


async def _prepare(store: Store) -> str:
    await store.prepare()
    return "in place"


async def _stored(store: Store, settings: Settings) -> str:
    document = await store.find_configuration(settings.environment)
    if document is None:
        return f"none stored for environment {settings.environment!r}; the file and its defaults hold"
    settings.with_stored(document)
    return f"the stored ones of environment {settings.environment!r} are valid"


async def _tools(store: Store, settings: Settings) -> str:
    registry = ToolRegistry()
    discover(registry, settings.tools.modules)
    faults = registry.set_remote(await store.list_tools())
    if faults:
        raise ConfigError(f"{len(faults)} stored definitions cannot be used: {faults[0]}")
    return f"{len(registry.list_tool_names())} known"
