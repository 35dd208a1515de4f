"""`nexus doctor`: is everything there that Nexus needs, and if not, what to do."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Final

import anyio
import typer
from rich.console import Console
from rich.markup import escape

from nexus.cli.terminal import SEE_MONGODB, Config, bus_advice
from nexus.config import STORED_SECTIONS, LlmSettings, Settings, load_settings
from nexus.connections import open_bus, open_model, open_store, try_claim
from nexus.core.errors import BusUnavailableError, ConfigError, ModelUnavailableError, NexusError
from nexus.core.models import new_message_id
from nexus.core.ports import Bus, RequestLedger, Store
from nexus.log import configure_logging
from nexus.services.tools.registry import ToolRegistry, discover

app = typer.Typer(add_completion=False)
_PATIENCE_S = 5.0
# What the model is asked: something that it can do only if it follows a schema.
_QUESTION: Final = 'Answer with the JSON object {"ok": true} and nothing else.'
_OK_SCHEMA: Final = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
_ONLY: Final = f"only {', '.join(STORED_SECTIONS)} are taken from there"
# Of what a document of settings holds: the sections that count, and whose it is.
_TAKEN: Final = frozenset({*STORED_SECTIONS, "environment"})
_NO_JSON: Final = "answers, but not with the JSON that it was asked for"
# By how the reason begins.
_MODEL_ADVICE: Final = {
    "401": "correct llm.api_key (NEXUS_LLM__API_KEY)",
    "403": "correct llm.api_key (NEXUS_LLM__API_KEY), or give its account the right to use llm.model",
    "404": "correct llm.model, and llm.base_url, which usually ends in /v1",
    "405": "correct llm.base_url, which usually ends in /v1",
    "429": "look at the limits and the credit of your account at the endpoint",
    "3": "correct llm.base_url: the endpoint is elsewhere, and redirections are not followed",
    "5": "look at the log of the endpoint",
    "no answer": "raise llm.timeout_s, or look at the endpoint: it may be loading the model",
    "the certificate": "name the authority that signed it in the variable SSL_CERT_FILE, or correct llm.base_url",
    "the answer is no": "correct llm.base_url, which usually ends in /v1",
    "the prompt does not fit": "choose another llm.model, or a larger context for it: a short question is too long",
    _NO_JSON: "choose another llm.model, one that follows a JSON schema",
}
_SEE_MODEL: Final = "see that the endpoint runs, and llm.base_url and llm.model (NEXUS_LLM__BASE_URL, NEXUS_LLM__MODEL)"

Check = Callable[[], Awaitable[str]]
Advice = str | Callable[[Exception], str]


@app.command()
def command(
    config: Config = None,
    quick: Annotated[bool, typer.Option(help="Only ask whether both servers answer.")] = False,
) -> None:
    """Check Redis, MongoDB, indexes, settings, tools and the model. Exit 1 when something is wrong, with what to do."""
    configure_logging("error", "console")
    settings = load_settings(config)
    raise typer.Exit(0 if anyio.run(examine, settings, Console(), quick) else 1)


async def examine(settings: Settings, console: Console, quick: bool = False) -> bool:
    """Make the checks and print a line for each. Returns whether all is well."""
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(open_bus(settings.bus))
        store = await stack.enter_async_context(open_store(settings.database))
        bus_answers = await _make(console, "bus", lambda: _hear(transport.bus), bus_advice) and await _make(
            console, "ledger", lambda: _claim(transport.probe), bus_advice
        )
        store_answers = await _make(console, "database", lambda: _ping(store), SEE_MONGODB)
        if quick:
            return bus_answers and store_answers
        checks: list[tuple[str, Check, Advice]] = [
            ("indexes", lambda: _prepare(store), "see the reason; the user needs the right to make indexes"),
            ("settings", lambda: _stored(store, settings), "correct the document with scripts/database_manager.py"),
            ("tools", lambda: _tools(store, settings), "correct tools.modules"),
        ]
        results = [await _make(console, *check) for check in checks if store_answers]
        # A call has a time limit of its own.
        patience_s = settings.llm.timeout_s + _PATIENCE_S
        results.append(await _make(console, "model", lambda: _ask(settings.llm), _model_advice, patience_s=patience_s))
    return bus_answers and store_answers and all(results)


async def _make(console: Console, name: str, check: Check, advice: Advice, *, patience_s: float = _PATIENCE_S) -> bool:
    try:
        with anyio.fail_after(patience_s):
            finding = await check()
    except (NexusError, TimeoutError) as error:
        reason = str(error) or f"no answer within {patience_s:g} s"
        to_do = advice if isinstance(advice, str) else advice(error)
        console.print(f"[red]wrong[/red]  {name}: {reason}. To do: {to_do}.", highlight=False, soft_wrap=True)
        return False
    console.print(f"[green]ok[/green]     {name}: {escape(finding)}", highlight=False, soft_wrap=True)
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
    found = f"the stored ones of environment {settings.environment!r} are valid"
    passed_over = [name for name in document if name in Settings.model_fields and name not in _TAKEN]
    return f"{found}; {', '.join(passed_over)} in there: passed over, {_ONLY}" if passed_over else found


async def _tools(store: Store, settings: Settings) -> str:
    registry = ToolRegistry()
    discover(registry, settings.tools.modules)
    faults = registry.set_remote(await store.list_tools())
    if faults:
        raise ConfigError(f"{len(faults)} stored definitions cannot be used: {faults[0]}")
    return f"{len(registry.list_tool_names())} known"


async def _ask(settings: LlmSettings) -> str:
    # What passes by itself need not be waited for: the doctor can be asked again.
    async with open_model(settings.model_copy(update={"retries": 0})) as model:
        if model is None:
            return "not configured: summaries are made by rules"
        started = anyio.current_time()
        text = await model.complete(_QUESTION, "Is all well? Answer with JSON.", schema=_OK_SCHEMA, schema_name="ok")
        # Some put a fence around it, or their thoughts before it, which a summary may have too.
        if '"ok"' not in text:
            raise ModelUnavailableError(_NO_JSON)
        return f"{model.name} answers, {(anyio.current_time() - started) * 1_000:.0f} ms"


def _model_advice(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return "correct this setting"
    return next((advice for known, advice in _MODEL_ADVICE.items() if str(error).startswith(known)), _SEE_MODEL)
