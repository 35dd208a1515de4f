"""Connections as settings describe them: to the bus in each of its modes, the store, the model, and for a requester.

Each raises `ConfigError` for an address or a key that cannot be used.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

from nexus.adapters.in_memory import MemoryBus, MemoryDeadLetters, MemoryLedger
from nexus.adapters.mongo import open_mongo
from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.dead_letters import RedisDeadLetters
from nexus.adapters.redis.ledger import RedisLedger
from nexus.adapters.redis.pubsub import RedisPubSubBus
from nexus.adapters.redis.streams import RedisStreamsBus
from nexus.adapters.redis.urls import parse_redis_url
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, LlmSettings
from nexus.core.errors import BusUnavailableError
from nexus.core.models import new_message_id
from nexus.core.ports import Acquired, Bus, DeadLetters, LanguageModel, Outbox, RequestLedger
from nexus.core.ports.store import TransferableStore
from nexus.core.signing import Signing

# A claim that no request asks for: its key, its lease, and how long it is tried.
_PROBE: Final = "nexus.doctor."
_PROBE_LEASE_MS: Final = 1_000
_PROBE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Transport:
    """A bus, the ledger of its requests, the outbox and the dead letters; `probe` is a ledger that gives up soon."""

    bus: Bus
    ledger: RequestLedger
    dead_letters: DeadLetters
    probe: RequestLedger
    outbox: Outbox


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
        yield Transport(memory, memory_ledger, letters, memory_ledger, memory_ledger.outbox)
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
        yield Transport(bus, ledger, dead_letters, probe, ledger.outbox)


def counts_subscribers(settings: BusSettings) -> bool:
    """Whether PUBLISH, or XADD, on this Redis tells whether a message was received."""
    return settings.mode == "streams" or parse_redis_url(settings.url.get_secret_value()).kind != "cluster"


def open_store(settings: DatabaseSettings) -> AbstractAsyncContextManager[TransferableStore]:
    """The document store. Connects when it is first used."""
    return open_mongo(
        settings.uri.get_secret_value(),
        settings.name,
        driver=settings.driver,
        timeout_ms=settings.timeout_ms,
        server_selection_timeout_ms=settings.server_selection_timeout_ms,
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
async def open_client(
    url: str,
    *,
    mode: Literal["pubsub", "streams"] = "pubsub",
    channel_prefix: str = "",
    signing: Signing | None = None,
    connect_s: float = 5.0,
) -> AsyncIterator[ContextClient]:
    """A requester on the Redis at `url`. Mode, prefix and keys are those of the service.

    BusUnavailableError where Redis is not reached within `connect_s` seconds.
    """
    async with open_redis(url) as redis:
        kind = RedisStreamsBus if mode == "streams" else RedisPubSubBus
        bus: Bus = kind(redis, prefix=channel_prefix, connect_s=connect_s)
        async with ContextClient(bus, signing=signing).listening() as client:
            yield client


@asynccontextmanager
async def open_dead_letters(settings: BusSettings) -> AsyncIterator[RedisDeadLetters]:
    """The dead letters of a bus on Redis, for a command that would rather fail than wait."""
    async with open_redis(settings.url.get_secret_value()) as client:
        prefix = settings.channel_prefix
        yield RedisDeadLetters(client, prefix=prefix, most=settings.dead_letter_max, repeated_s=1.0)
