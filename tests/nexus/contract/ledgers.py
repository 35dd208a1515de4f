"""The ledgers that the contract of `nexus.core.ports.RequestLedger` is tried on, with a time that tests can shift."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from redis.asyncio import Redis

from nexus.adapters.in_memory import MemoryBus, MemoryLedger
from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.ledger import RedisLedger
from nexus.adapters.redis.pubsub import RedisPubSubBus
from nexus.adapters.redis.streams import RedisStreamsBus
from nexus.core.ports import Bus, Delivery, Outbox, RequestLedger

# The requests whose time can be shifted.
KEYS: Final = ("k", "a", "b")
REPLY_KEEP_MS: Final = 600_000


@dataclass(frozen=True)
class Desk:
    """A ledger, and the bus that it announces answers on.

    Attributes:
        advance: let so many milliseconds pass for the requests of `KEYS`, as if by themselves.
        forget: lose these requests and the outbox, as a FLUSHALL would.
        outbox: where the ledger puts recorded rows.
        acknowledged: the deliveries that the ledger has acknowledged.
        redis: the server, where there is one.
        prefix: before every key there.
    """

    ledger: RequestLedger
    bus: Bus
    advance: Callable[[float], Coroutine[Any, Any, None]]
    forget: Callable[[], Coroutine[Any, Any, None]]
    outbox: Outbox
    acknowledged: list[Delivery] = field(default_factory=list)
    redis: Redis | None = None
    prefix: str = ""

    @property
    def server(self) -> Redis:
        """The server."""
        assert self.redis is not None
        return self.redis


OpenDesk = Callable[[], AbstractAsyncContextManager[Desk]]

# Redis's clock cannot be set, and leases of small real lengths would need waiting. Seen from a request, time passes
# just the same when its moments are moved into the past: `lease_until` and `said_ms`, and the expiry of its key.
# No adapter has such a command; it is the tests' alone. KEYS: request. ARGV: ms.
_SHIFT = """
local left = redis.call('PTTL', KEYS[1])
if left == -2 then return 0 end
for _, name in ipairs({'lease_until', 'said_ms'}) do
  if redis.call('HEXISTS', KEYS[1], name) == 1 then
    redis.call('HINCRBYFLOAT', KEYS[1], name, -tonumber(ARGV[1]))
  end
end
if left >= 0 then redis.call('PEXPIRE', KEYS[1], left - ARGV[1]) end
return 1
"""


@asynccontextmanager
async def memory_desk() -> AsyncIterator[Desk]:
    """The ledger within one process."""
    now = [1_000.0]
    bus = MemoryBus()
    ledger = MemoryLedger(bus, clock=lambda: now[0])

    async def advance(ms: float) -> None:
        now[0] += ms / 1_000

    async def forget() -> None:
        ledger._requests.clear()
        await ledger.outbox.remove(await ledger.outbox.oldest(1_000))

    yield Desk(ledger, bus, advance, forget, ledger.outbox)


@asynccontextmanager
async def pubsub_desk(url: str, prefix: str, make: Callable[..., RedisLedger] = RedisLedger) -> AsyncIterator[Desk]:
    """The ledger on Redis with answers on pub/sub."""
    async with open_redis(url) as client:
        yield _on_redis(client, prefix, make(client, prefix=prefix), RedisPubSubBus(client, prefix=prefix), [])


@asynccontextmanager
async def streams_desk(url: str, prefix: str) -> AsyncIterator[Desk]:
    """The ledger on Redis with answers on streams."""
    acknowledged: list[Delivery] = []
    async with open_redis(url) as client:
        ledger = RedisLedger(client, prefix=prefix, acknowledged=acknowledged.append, reply_keep_ms=REPLY_KEEP_MS)
        bus = RedisStreamsBus(client, prefix=prefix)
        yield _on_redis(client, prefix, ledger, bus, acknowledged)


def _on_redis(client: Redis, prefix: str, ledger: RedisLedger, bus: Bus, acknowledged: list[Delivery]) -> Desk:
    shift = client.register_script(_SHIFT)

    async def advance(ms: float) -> None:
        for key in KEYS:
            await shift(keys=[f"{prefix}nexus:request:{key}"], args=[int(ms)])

    async def forget() -> None:
        for key in KEYS:
            await client.delete(f"{prefix}nexus:request:{key}")
        await ledger.outbox.remove(await ledger.outbox.oldest(1_000))

    return Desk(ledger, bus, advance, forget, ledger.outbox, acknowledged, client, prefix)
