"""Helpers for tests of the bus on streams: buses with short leases, and the state that Redis keeps."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis.asyncio import Redis

from nexus.adapters.redis.scripts import GROUP
from nexus.adapters.redis.streams import RedisStreamsBus
from nexus.core.ports import Delivery, Work
from tests.nexus.support.waiting import until

SHORT_MS: Final = 200
LONG_MS: Final = 60_000
WORK: Final = (Work("a", 256),)


def streams_bus(client: Redis, prefix: str, *, lease_ms: int = LONG_MS, keep_ms: int = 600_000) -> RedisStreamsBus:
    """A bus of its own, as each replica has one."""
    return RedisStreamsBus(client, prefix=prefix, lease_ms=lease_ms, keep_ms=keep_ms)


def numbered(count: int) -> list[bytes]:
    """Payloads that can be told apart."""
    return [b"%d" % number for number in range(count)]


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    """The payloads of these deliveries."""
    return [delivery.payload for delivery in deliveries]


async def enqueue(client: Redis, key: str, messages: list[bytes]) -> list[str]:
    """Append messages as another program would; returns the entries."""
    added: list[Any] = [await client.xadd(key, {b"message": message}) for message in messages]
    return [entry.decode() for entry in added]


async def oldest(client: Redis, key: str) -> str:
    """The first entry of a stream."""
    found: Any = await client.xrange(key, count=1)
    return str(found[0][0].decode())


async def read_and_die(client: Redis, key: str, count: int, *, consumer: str = "dead") -> None:
    """Be a consumer that is given some entries and never heard of again."""
    await client.xreadgroup(GROUP, consumer, {key: ">"}, count=count)


async def pending(client: Redis, key: str) -> list[dict[str, Any]]:
    """Entries that are handed out and not acknowledged."""
    found: list[dict[str, Any]] = await client.xpending_range(key, GROUP, "-", "+", 10_000)
    return found


async def waiting(client: Redis, key: str) -> int | None:
    """How many the group has not been given."""
    (group,) = [group for group in await client.xinfo_groups(key) if group["name"] == GROUP.encode()]
    lag: int | None = group["lag"]
    return lag


async def pending_are(client: Redis, key: str, count: int) -> None:
    """Wait until so many are pending."""

    async def so_many() -> bool:
        return len(await pending(client, key)) == count

    await until(so_many)


async def now_ms(client: Redis) -> int:
    """The time at Redis."""
    seconds, micros = await client.time()
    return int(seconds) * 1_000 + int(micros) // 1_000


def has_passed(client: Redis, since_ms: int, ms: int) -> Callable[[], Awaitable[bool]]:
    """Whether it is so much later by the clock of Redis, by which leases run."""

    async def passed() -> bool:
        return await now_ms(client) > since_ms + ms

    return passed
