"""Connections as settings describe them: to the bus in each of its modes, the store, the model, and for a requester.

Each raises `ConfigError` for an address or a key that cannot be used.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from nexus.adapters.in_memory import MemoryBus, MemoryDeadLetters, MemoryLedger
from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.dead_letters import RedisDeadLetters
from nexus.adapters.redis.erasure import RedisErasure
from nexus.adapters.redis.ledger import RedisLedger
from nexus.adapters.redis.pubsub import RedisPubSubBus
from nexus.adapters.redis.streams import RedisStreamsBus
from nexus.adapters.redis.urls import parse_redis_url
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, LlmSettings, RecallSettings, Settings
from nexus.core.errors import BusUnavailableError, ConfigError
from nexus.core.models import new_message_id
from nexus.core.ports import Acquired, Bus, BusErasure, DeadLetters, Embedder, LanguageModel, Outbox, RequestLedger
from nexus.core.ports.store import TransferableStore
from nexus.core.signing import Signing

# A claim that no request asks for: its key, its lease, and how long it is tried.
_PROBE: Final = "nexus.doctor."
_PROBE_LEASE_MS: Final = 1_000
_PROBE_S: Final = 0.5
# How long sending the last spans may take; where the drain is short, so much of it.
FLUSH_S, _FLUSHING = 1.0, 0.1
# Where an embedded service keeps its addresses.
_SERVERS: Final = Path(".nexus", "servers.json")


@dataclass(frozen=True, slots=True)
class Transport:
    """A bus, the ledger of its requests, the outbox and the dead letters; `probe` is a ledger that gives up soon.

    `kept` is what bus and ledger keep of owners, for erasure.
    """

    bus: Bus
    ledger: RequestLedger
    dead_letters: DeadLetters
    probe: RequestLedger
    outbox: Outbox
    kept: BusErasure


async def try_claim(ledger: RequestLedger) -> str:
    """Claim and release a request that no replica asks for, as every answer begins; BusUnavailableError if it fails.

    Returns its key, under which the ledger knows for two minutes that it was asked.
    """
    key = f"{_PROBE}{new_message_id()}"
    claim = await ledger.claim(key, "", _PROBE_LEASE_MS)
    if not isinstance(claim, Acquired):
        raise BusUnavailableError("a claim that nothing else asks for cannot be had")
    await ledger.release(claim)
    return key


@asynccontextmanager
async def open_bus(settings: BusSettings) -> AsyncIterator[Transport]:
    """The transport of `settings.mode`."""
    if settings.mode == "memory":
        memory = MemoryBus()
        memory_ledger = MemoryLedger(memory)
        letters = MemoryDeadLetters(most=settings.dead_letter_max, forget=memory_ledger.forget)
        yield Transport(memory, memory_ledger, letters, memory_ledger, memory_ledger.outbox, memory_ledger)
        return
    async with open_redis(settings.url.get_secret_value()) as client:
        prefix, keep_ms = settings.channel_prefix, settings.stream_keep_s * 1_000
        bus: Bus
        acknowledged = None
        if settings.mode == "pubsub":
            bus = RedisPubSubBus(client, prefix=prefix, heartbeat_s=settings.heartbeat_s)
        else:
            once_ms = settings.answer_ttl_s * 1_000
            bus = RedisStreamsBus(client, prefix=prefix, lease_ms=settings.lease_ms, keep_ms=keep_ms, once_ms=once_ms)
            acknowledged = bus.acknowledged
        dead_letters = RedisDeadLetters(client, prefix=prefix, most=settings.dead_letter_max)
        ledger = RedisLedger(client, prefix=prefix, acknowledged=acknowledged, reply_keep_ms=keep_ms)
        probe = RedisLedger(client, prefix=prefix, repeated_s=_PROBE_S)
        kept = RedisErasure(client, prefix=prefix, streams=settings.mode == "streams")
        yield Transport(bus, ledger, dead_letters, probe, ledger.outbox, kept)


def counts_subscribers(settings: BusSettings) -> bool:
    """Whether PUBLISH, or XADD, on this Redis tells whether a message was received."""
    return settings.mode == "streams" or parse_redis_url(settings.url.get_secret_value()).kind != "cluster"


def open_store(settings: DatabaseSettings, *, recall: bool = True) -> AbstractAsyncContextManager[TransferableStore]:
    """The document store. Connects when it is first used. With `recall`, what is recorded is to be indexed."""
    from nexus.adapters.mongo import open_mongo  # noqa: PLC0415  # a client is installed without its drivers

    return open_mongo(
        settings.uri.get_secret_value(),
        settings.name,
        driver=settings.driver,
        timeout_ms=settings.timeout_ms,
        server_selection_timeout_ms=settings.server_selection_timeout_ms,
        recall=recall,
    )


@asynccontextmanager
async def open_model(settings: LlmSettings) -> AsyncIterator[LanguageModel | None]:
    """The model that writes summaries, reached when it is first asked; None where none is configured."""
    if not settings.enabled:
        yield None
        return
    from nexus.adapters.llm import ModelLimits, open_llm  # noqa: PLC0415  # takes 0.4 s, and is needed only with a model

    limits = ModelLimits(
        timeout_s=settings.timeout_s,
        retries=settings.retries,
        max_concurrency=settings.max_concurrency,
        breaker_failures=settings.breaker_failures,
        breaker_rest_s=settings.breaker_rest_s,
    )
    base_url, api_key = settings.base_url.get_secret_value(), settings.api_key.get_secret_value()
    async with open_llm(base_url, api_key, settings.model, limits) as model:
        yield model


@asynccontextmanager
async def open_embedder(settings: RecallSettings) -> AsyncIterator[Embedder | None]:
    """What gives messages a meaning, loaded, or reached when it is first asked; None where none is configured."""
    if not settings.enabled or settings.embedder == "off":
        yield None
    elif settings.embedder == "packaged":
        from nexus.adapters.embedders.packaged import open_packaged  # noqa: PLC0415  # as below

        yield await open_packaged()
    else:
        from nexus.adapters.embedders.endpoint import EmbeddingModel, open_endpoint  # noqa: PLC0415  # takes 0.4 s

        model = EmbeddingModel(settings.model, settings.question_prefix, settings.text_prefix)
        base_url, api_key = settings.base_url.get_secret_value(), settings.api_key.get_secret_value()
        async with open_endpoint(base_url, api_key, model, timeout_s=settings.timeout_s) as embedder:
            yield embedder


@asynccontextmanager
async def open_tracing(settings: Settings, replica_id: str, version: str) -> AsyncIterator[None]:
    """Spans of this process are sent to the collector of the settings, where there is one; ConfigError without SDK."""
    endpoint = settings.tracing.otlp_endpoint.get_secret_value()
    if not endpoint:
        yield
        return
    from nexus.adapters.otlp import exporting  # noqa: PLC0415  # an extra

    about = {"service.name": "nexus", "service.version": version, "service.instance.id": replica_id}
    flush_s = min(FLUSH_S, settings.system.drain_seconds * _FLUSHING)
    async with exporting(endpoint, settings.tracing.sample_ratio, about, flush_s=flush_s):
        yield


@asynccontextmanager
async def open_client(
    url: str | None = None,
    *,
    mode: Literal["pubsub", "streams"] | None = None,
    channel_prefix: str | None = None,
    signing: Signing | None = None,
    connect_s: float = 5.0,
    max_payload_bytes: int = 1 << 20,
) -> AsyncIterator[ContextClient]:
    """A client of the service on the Redis at `url`. Mode, prefix, keys and size are those of the service.

    What is not given is taken from the environment: `NEXUS_BUS__URL`, else the address in `.nexus/servers.json`, which
    `nexus serve --embedded` has left in this folder; `NEXUS_BUS__MODE` (pubsub); `NEXUS_BUS__CHANNEL_PREFIX` (none).

    Raises:
        ConfigError: there is no address, or one that cannot be used, or another mode.
        BusUnavailableError: Redis is not reached within `connect_s` seconds.
    """
    url = url or os.environ.get("NEXUS_BUS__URL") or _embedded_url()
    mode_name = mode or os.environ.get("NEXUS_BUS__MODE") or "pubsub"
    prefix = os.environ.get("NEXUS_BUS__CHANNEL_PREFIX", "") if channel_prefix is None else channel_prefix
    kinds: dict[str, type[RedisPubSubBus | RedisStreamsBus]] = {"pubsub": RedisPubSubBus, "streams": RedisStreamsBus}
    if mode_name not in kinds:
        raise ConfigError(f"bus.mode (NEXUS_BUS__MODE): {mode_name!r} is not for a client; allowed: pubsub, streams")
    async with open_redis(url) as redis:
        bus: Bus = kinds[mode_name](redis, prefix=prefix, connect_s=connect_s)
        where = f"{parse_redis_url(url).place} (bus.mode {mode_name}, bus.channel_prefix {prefix!r})"
        client = ContextClient(bus, signing=signing, max_payload_bytes=max_payload_bytes, where=where)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(client.listening())
            except BusUnavailableError as error:
                raise BusUnavailableError(f"{where}: {error}") from error
            yield client


def _embedded_url() -> str:
    """The address of the bus of an embedded service in this folder."""
    try:
        return str(json.loads(_SERVERS.read_bytes())["bus"])
    except FileNotFoundError:
        reason = f"and there is no {_SERVERS} here, which `nexus serve --embedded` leaves in the folder where it runs"
    except (OSError, ValueError, LookupError, TypeError):
        reason = f"and {_SERVERS} holds no address of a bus"
    raise ConfigError(f"no Redis is named: NEXUS_BUS__URL is not set, {reason}")


@asynccontextmanager
async def open_dead_letters(settings: BusSettings) -> AsyncIterator[RedisDeadLetters]:
    """The dead letters of a bus on Redis, for a command that would rather fail than wait."""
    async with open_redis(settings.url.get_secret_value()) as client:
        prefix = settings.channel_prefix
        yield RedisDeadLetters(client, prefix=prefix, most=settings.dead_letter_max, repeated_s=1.0)
