"""`nexus doctor`: checks all that Nexus needs, and says what to do about each fault. It makes and records nothing."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final

import anyio
import typer
from rich.console import Console
from rich.markup import escape

from nexus.cli.options import Config, command_settings
from nexus.cli.servers import SEE_MONGODB, ask_service, bus_advice
from nexus.cli.terminal import counted, printable
from nexus.config import NOT_STORED, STORED_SECTIONS, LlmSettings, RecallSettings, Settings
from nexus.config.loading import exposed_secrets, with_stored
from nexus.connections import Transport, open_bus, open_embedder, open_model, open_store, try_claim
from nexus.core.errors import (
    BusUnavailableError,
    ConfigError,
    ModelUnavailableError,
    NexusError,
    StoreRejectedError,
    reason_of,
)
from nexus.core.models import new_message_id
from nexus.core.ports import Bus, Store
from nexus.services.tools.registry import ToolRegistry, discover

app = typer.Typer(add_completion=False)
_TIMEOUT_S: Final = 5.0
_MOST_NAMES: Final = 10
# A question that only a model that follows a schema can answer.
_QUESTION: Final = 'Answer with the JSON object {"ok": true} and nothing else.'
_OK_SCHEMA: Final = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
_ONLY: Final = f"only {', '.join(STORED_SECTIONS)} are taken from there, of memory not {', '.join(NOT_STORED)}"
# The fields of a stored document of settings that count.
_TAKEN: Final = frozenset({*STORED_SECTIONS, "environment"})
_NO_JSON: Final = "answers, but not with the JSON that it was asked for"
# By the beginning of the reason.
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
_SEE_SERVICE: Final = (
    "start a service (nexus serve) on this bus, with this bus.mode and bus.channel_prefix; "
    "if one runs, its log says why it does not answer"
)
_SEE_NAME: Final = "correct database.name (NEXUS_DATABASE__NAME), or start a service (nexus serve), which makes it"
_SEE_INDEXES: Final = "start a service, which makes them, and see in its log what is in their way"
_SEE_MODEL: Final = "see that the endpoint runs, and llm.base_url and llm.model (NEXUS_LLM__BASE_URL, NEXUS_LLM__MODEL)"

Check = Callable[[], Awaitable[str]]
Advice = str | Callable[[Exception], str]


@app.command()
def command(
    config: Config = None,
    quick: Annotated[bool, typer.Option(help="Only ask whether both servers answer.")] = False,
) -> None:
    """Check Redis, MongoDB, indexes, settings, tools, whether a service answers, the model, and the embedder.

    Exit 1 when something is wrong, with what to do. Nothing is made or recorded.
    """
    settings = command_settings(config)
    if warning := exposed_secrets(config):
        typer.echo(f"warning: {warning}")
    raise typer.Exit(0 if anyio.run(examine, settings, Console(), quick) else 1)


async def examine(settings: Settings, console: Console, quick: bool = False) -> bool:
    """Run the checks and print a line for each; `quick` stops after bus and database. Returns whether all passed."""
    check = partial(_run_check, console)
    async with open_bus(settings.bus) as transport, open_store(settings.database) as store:
        bus_answers = await check("bus", lambda: _check_bus(transport.bus), bus_advice)
        bus_answers = bus_answers and await check("ledger", lambda: _check_ledger(transport), bus_advice)
        store_answers = await check("database", lambda: _check_store(store), _store_advice)
        results = [bus_answers, store_answers]
        if quick:
            return all(results)
        if store_answers:
            correct = "correct the document with scripts/database_manager.py"
            results.append(exists := await check("collections", lambda: _check_collections(store), _SEE_NAME))
            if exists:
                results.append(await check("indexes", lambda: _check_indexes(store), _SEE_INDEXES))
            results += [
                await check("settings", lambda: _check_settings(store, settings), correct),
                await check("tools", lambda: _check_tools(store, settings), "correct tools.modules"),
            ]
        if bus_answers:
            results.append(await check("service", lambda: _check_service(transport.bus, settings), _SEE_SERVICE))
        # A call of the model has a time limit of its own.
        timeout_s = settings.llm.timeout_s + _TIMEOUT_S
        results.append(await check("model", lambda: _check_model(settings.llm), _model_advice, timeout_s=timeout_s))
        # An endpoint is asked twice: for its centre, and for a text.
        timeout_s = 2 * settings.recall.timeout_s + _TIMEOUT_S
        ask = partial(_check_embedder, settings.recall)
        results.append(await check("embedder", ask, _embedder_advice, timeout_s=timeout_s))
    return all(results)


async def _run_check(
    console: Console, name: str, check: Check, advice: Advice, *, timeout_s: float = _TIMEOUT_S
) -> bool:
    try:
        with anyio.fail_after(timeout_s):
            finding = await check()
    except (NexusError, TimeoutError) as error:
        reason = reason_of(error, timeout_s)
        to_do = advice if isinstance(advice, str) else advice(error)
        line = f"[red]wrong[/red]  {name}: {escape(reason)}. To do: {escape(to_do)}."
        console.print(line, highlight=False, soft_wrap=True)
        return False
    console.print(f"[green]ok[/green]     {name}: {escape(finding)}", highlight=False, soft_wrap=True)
    return True


async def _check_bus(bus: Bus) -> str:
    topic = f"nexus.doctor.{new_message_id()}"
    # A subscription waits for a server that refuses it; publishing fails with the reason.
    await bus.publish(topic, b"")
    async with bus.subscribe(topic) as subscription:
        started = anyio.current_time()
        await bus.publish(topic, b"?")
        async for _ in subscription:
            return f"hears itself, {(anyio.current_time() - started) * 1_000:.1f} ms"
    raise BusUnavailableError("the subscription ended")


async def _check_ledger(transport: Transport) -> str:
    started = anyio.current_time()
    # Else it would be known for two minutes.
    await transport.dead_letters.forget_answer(await try_claim(transport.probe))
    return f"takes a claim and gives it back, {(anyio.current_time() - started) * 1_000:.1f} ms"


async def _check_store(store: Store) -> str:
    started = anyio.current_time()
    await store.ping()
    return f"answers, {(anyio.current_time() - started) * 1_000:.1f} ms"


def _store_advice(error: Exception) -> str:
    return "start the release that wrote it" if isinstance(error, StoreRejectedError) else SEE_MONGODB


async def _check_collections(store: Store) -> str:
    found = await store.inspect()
    if not found.collections:
        beside = f"there are: {_named(found.others)}" if found.others else "there is no other that this user may see"
        raise NexusError(f"database {printable(found.database)} does not exist; {beside}")
    return f"database {printable(found.database)} has {counted(len(found.collections), 'collection')}: " + _named(
        found.collections
    )


async def _check_indexes(store: Store) -> str:
    missing = (await store.inspect()).missing
    if missing:
        raise NexusError(f"missing: {_named(missing)}")
    return "in place"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(printable, names[:_MOST_NAMES])) + more


async def _check_service(bus: Bus, settings: Settings) -> str:
    if settings.bus.mode == "memory":
        return "bus.mode is memory: there is no other process to ask"
    started = anyio.current_time()
    await ask_service(bus, settings.bus)
    return f"answers, {(anyio.current_time() - started) * 1_000:.1f} ms"


async def _check_settings(store: Store, settings: Settings) -> str:
    document = await store.find_configuration(settings.environment)
    if document is None:
        return f"none stored for environment {settings.environment!r}; the file and its defaults hold"
    with_stored(settings, document)
    found = f"the stored ones of environment {settings.environment!r} are valid"
    passed_over = [name for name in document if name in Settings.model_fields and name not in _TAKEN]
    memory = document.get("memory")
    passed_over += [f"memory.{name}" for name in NOT_STORED if isinstance(memory, Mapping) and name in memory]
    return f"{found}; {', '.join(passed_over)} in there: passed over, {_ONLY}" if passed_over else found


async def _check_tools(store: Store, settings: Settings) -> str:
    registry = ToolRegistry()
    discover(registry, settings.tools.modules)
    faults = registry.set_remote(await store.list_tools())
    if faults:
        raise ConfigError(f"{len(faults)} stored definitions cannot be used: {faults[0]}")
    return f"{len(registry.list_tool_names())} known"


async def _check_model(settings: LlmSettings) -> str:
    # Without retries: a passing fault is gone when the command is repeated.
    async with open_model(settings.model_copy(update={"retries": 0})) as model:
        if model is None:
            return "not configured: summaries are made by rules"
        started = anyio.current_time()
        answer = await model.complete(_QUESTION, "Is all well? Answer with JSON.", schema=_OK_SCHEMA, schema_name="ok")
        # Some models put a fence around it, or thoughts before it, which a summary may have too.
        if '"ok"' not in answer.text:
            raise ModelUnavailableError(_NO_JSON)
        return f"{model.name} answers, {(anyio.current_time() - started) * 1_000:.0f} ms"


async def _check_embedder(settings: RecallSettings) -> str:
    async with open_embedder(settings) as embedder:
        if embedder is None:
            return "not configured: messages are found by words alone"
        started = anyio.current_time()
        (code,) = await embedder.codes_of_texts(["Is all well?"])
        ms = (anyio.current_time() - started) * 1_000
        return f"{embedder.generation} gives vectors of {8 * len(code)} bits, {ms:.0f} ms"


def _embedder_advice(error: Exception) -> str:
    return _model_advice(error).replace("llm.", "recall.").replace("NEXUS_LLM__", "NEXUS_RECALL__")


def _model_advice(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return "correct this setting"
    return next((advice for known, advice in _MODEL_ADVICE.items() if str(error).startswith(known)), _SEE_MODEL)
