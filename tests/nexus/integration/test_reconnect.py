"""The Redis adapters on a network that breaks, and on a Redis that is killed and started again."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.dead_letters import RedisDeadLetters
from nexus.adapters.redis.ledger import RedisLedger
from nexus.adapters.redis.pubsub import RedisPubSubBus, RedisSubscription
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Acquired, Claim, DeadLetter, Delivery
from tests.nexus.support.proxy import Proxy, proxied
from tests.nexus.support.redis_server import redis_server
from tests.nexus.support.waiting import PATIENCE_S, take, take_all, until

LONG_MS = 60_000


@dataclass(frozen=True)
class Line:
    """A bus, a ledger and dead letters behind a proxy, and a bus that reaches the same Redis without it."""

    proxy: Proxy
    bus: RedisPubSubBus
    ledger: RedisLedger
    letters: RedisDeadLetters
    direct: RedisPubSubBus


@asynccontextmanager
async def line(redis_url: str, prefix: str, *, heartbeat_s: float = 5.0) -> AsyncIterator[Line]:
    """Open a line to Redis with a proxy in it."""
    target = urlsplit(redis_url)
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(target.hostname or "", target.port or 0))
        client = await stack.enter_async_context(open_redis(f"redis://127.0.0.1:{proxy.port}{target.path}"))
        direct = await stack.enter_async_context(open_redis(redis_url))
        yield Line(
            proxy,
            RedisPubSubBus(client, prefix=prefix, heartbeat_s=heartbeat_s),
            RedisLedger(client, prefix=prefix),
            RedisDeadLetters(client, prefix=prefix),
            RedisPubSubBus(direct, prefix=prefix),
        )


async def reconnected(subscription: RedisSubscription) -> None:
    """Wait until the subscription has connected again."""

    async def has() -> bool:
        return subscription.reconnects > 0

    await until(has)


async def tried_again(proxy: Proxy) -> None:
    """Wait until three more connections were tried."""
    before = proxy.accepted

    async def has() -> bool:
        return proxy.accepted >= before + 3

    await until(has)


async def test_a_half_open_connection(redis_url: str, channel_prefix: str) -> None:
    """A connection that died without a word is noticed by its missing heartbeat and replaced."""
    async with (
        line(redis_url, channel_prefix, heartbeat_s=0.3) as wire,
        wire.bus.subscribe("a") as subscription,
    ):
        wire.proxy.stall()
        await reconnected(subscription)
        await wire.direct.publish("a", b"x")
        assert await take(subscription, 1) == [Delivery("a", b"x")]


async def test_a_quiet_bus_is_not_a_dead_one(redis_url: str, channel_prefix: str) -> None:
    """A subscription that hears nothing but its own heartbeat stays as it is, for many heartbeats."""
    async with (
        # Three of them are longer than a machine that does other things as well may keep the test from its turn.
        line(redis_url, channel_prefix, heartbeat_s=0.7) as wire,
        wire.bus.subscribe("a") as subscription,
        wire.direct.subscribe("b") as clock,
    ):
        beats = wire.proxy.received

        async def many_beats() -> bool:
            return wire.proxy.received > beats + 400

        await until(many_beats)
        await wire.direct.publish("a", b"x")
        assert await take(subscription, 1) == [Delivery("a", b"x")]
        assert (subscription.reconnects, clock.reconnects) == (0, 0)


async def test_a_redis_that_is_away(redis_url: str, channel_prefix: str) -> None:
    """While Redis cannot be reached a subscription keeps trying and `publish` says so; afterwards both work."""
    async with line(redis_url, channel_prefix) as wire, wire.bus.subscribe("a") as subscription:
        wire.proxy.refusing = True
        wire.proxy.reset()
        await tried_again(wire.proxy)
        with pytest.raises(BusUnavailableError):
            await wire.bus.publish("a", b"lost")
        assert (subscription.reconnects, subscription.silent_s) == (0, math.inf)
        wire.proxy.refusing = False
        await reconnected(subscription)
        assert subscription.silent_s < math.inf
        assert await wire.bus.publish("a", b"x") == 1
        assert await take(subscription, 1) == [Delivery("a", b"x")]


async def test_stop_while_redis_is_away(redis_url: str, channel_prefix: str) -> None:
    """Stopping between two connections delivers all payloads that had arrived, and ends."""
    async with line(redis_url, channel_prefix) as wire, wire.bus.subscribe("a") as subscription:
        await wire.bus.publish("a", b"x")
        wire.proxy.refusing = True
        wire.proxy.reset()
        await tried_again(wire.proxy)
        await subscription.stop()
        assert await take_all(subscription) == [Delivery("a", b"x")]


async def test_stop_on_a_half_open_connection(redis_url: str, channel_prefix: str) -> None:
    """Stopping ends also without a confirmation."""
    async with (
        line(redis_url, channel_prefix, heartbeat_s=0.1) as wire,
        wire.bus.subscribe("a") as subscription,
    ):
        wire.proxy.silent = True
        wire.proxy.stall()
        await subscription.stop()
        assert await take_all(subscription) == []


async def test_a_publish_without_a_reply_is_not_repeated(redis_url: str, channel_prefix: str) -> None:
    """When the reply is lost, the payload is delivered once, and the publisher gets an error."""
    async with line(redis_url, channel_prefix) as wire, wire.direct.subscribe("a") as subscription:
        await wire.bus.publish("b", b"to have a connection")
        wire.proxy.mute()

        async def publish() -> None:
            with pytest.raises(BusUnavailableError):
                await wire.bus.publish("a", b"x")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            assert await take(subscription, 1) == [Delivery("a", b"x")]
            wire.proxy.reset()
        await subscription.stop()
        assert await take_all(subscription) == []


async def without_reply(
    wire: Line, operation: Callable[[], Coroutine[Any, Any, object]], done: Awaitable[object]
) -> None:
    """Do the operation so that its first reply is lost: the connection is cut when the operation is `done`."""
    wire.proxy.mute()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(operation)
        await done
        wire.proxy.reset()


async def test_an_answer_whose_reply_is_lost_is_announced_once(redis_url: str, channel_prefix: str) -> None:
    """`finish` is repeated when its reply is lost, says that the answer counts, and has published it once."""
    results: list[int | None] = []
    async with line(redis_url, channel_prefix) as wire, wire.direct.subscribe("a") as subscription:
        claim = await wire.ledger.claim("k", "f", LONG_MS)
        assert isinstance(claim, Acquired)
        # Redis knows the script from now on: the reply that is lost is that of the operation itself.
        await wire.ledger.conclude(replace(claim, key="other"), "other", b"", LONG_MS)

        async def finish() -> None:
            results.append(await wire.ledger.conclude(claim, "a", b"answer", LONG_MS))

        await without_reply(wire, finish, take(subscription, 1))
        await subscription.stop()
        assert await take_all(subscription) == []
    assert results == [1]


async def test_a_claim_whose_reply_is_lost_is_the_callers(redis_url: str, channel_prefix: str) -> None:
    """`claim` is repeated when its reply is lost, and finds the request taken by itself."""
    claims: list[Claim] = []
    async with line(redis_url, channel_prefix) as wire, open_redis(redis_url) as client:
        await wire.ledger.claim("other", "f", LONG_MS)

        async def begin() -> None:
            claims.append(await wire.ledger.claim("k", "f", LONG_MS))

        async def taken() -> bool:
            return bool(await client.exists(f"{channel_prefix}nexus:request:k"))

        await without_reply(wire, begin, until(taken))
    assert [type(claim) for claim in claims] == [Acquired]


async def test_a_dead_letter_whose_reply_is_lost_is_one(redis_url: str, channel_prefix: str) -> None:
    """`keep` is repeated when its reply is lost, and keeps one letter."""
    async with line(redis_url, channel_prefix) as wire, open_redis(redis_url) as client:
        await wire.letters.keep(DeadLetter("a", "another", "0" * 64, 1))
        name = f"{channel_prefix}nexus:dead-letters"

        async def keep() -> None:
            await wire.letters.keep(DeadLetter("a", "not JSON", "0" * 64, 1))

        async def kept() -> bool:
            return await client.xlen(name) == 2

        await without_reply(wire, keep, until(kept))
        assert await client.xlen(name) == 2


async def test_a_letter_whose_removal_was_not_confirmed_was_dropped(redis_url: str, channel_prefix: str) -> None:
    """The reply to the removal is lost, and the second try finds no letter: it was the first that dropped it."""
    async with line(redis_url, channel_prefix) as wire, open_redis(redis_url) as client:

        class Unheard(RedisDeadLetters):
            async def expect_again(self, letter: DeadLetter) -> None:
                """The last step before the removal, after which no connection brings a reply."""
                await super().expect_again(letter)
                wire.proxy.mute()

        await wire.letters.keep(DeadLetter("a", "not JSON", "0" * 64, 1))
        (found,) = await wire.letters.newest(1)
        async with open_redis(f"redis://127.0.0.1:{wire.proxy.port}{urlsplit(redis_url).path}") as behind:
            assert await Unheard(behind, prefix=channel_prefix).drop(found.letter_id)
        assert await client.xlen(f"{channel_prefix}nexus:dead-letters") == 0
        assert not await wire.letters.drop(found.letter_id)


async def heard(bus: RedisPubSubBus, payload: bytes) -> bool:
    """Publish; False when that failed, as it does on each connection that ended while idle."""
    try:
        return await bus.publish("b", payload) == 1
    except BusUnavailableError:
        return False


async def test_a_redis_that_is_killed() -> None:
    """After Redis was killed and started again a subscription is in force, and nothing is heard twice."""
    async with redis_server() as server, open_redis(server.url) as client:
        bus = RedisPubSubBus(client)
        async with bus.subscribe("a", "b") as subscription:
            await bus.publish("a", b"1")
            assert await take(subscription, 1) == [Delivery("a", b"1")]
            for number in (1, 2):
                await server.kill()
                with pytest.raises(BusUnavailableError):
                    await bus.publish("a", b"lost")
                await server.start()

                async def again(times: int = number) -> bool:
                    return subscription.reconnects == times

                await until(again)
                await until(partial(heard, bus, b"%d" % number))
                assert await take(subscription, 1) == [Delivery("b", b"%d" % number)]
            await subscription.stop()
            assert await take_all(subscription) == []


async def test_a_redis_that_takes_no_publish() -> None:
    """A subscription comes into force by hearing itself: without the right to publish never, and it says why."""
    async with redis_server() as server, open_redis(server.url) as admin:
        await admin.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "allchannels", "+@all", "-publish")  # type: ignore[no-untyped-call]  # redis-py's is untyped
        address = server.url.replace("redis://", "redis://deaf:pw@")
        async with open_redis(address) as client:
            with pytest.raises(BusUnavailableError, match=r"within 0\.5 s: NoPermissionError"):
                async with RedisPubSubBus(client, connect_s=0.5).subscribe("a"):
                    pytest.fail("is in force")
            await admin.execute_command("ACL", "SETUSER", "deaf", "+publish")  # type: ignore[no-untyped-call]  # redis-py's is untyped
            async with RedisPubSubBus(client, connect_s=PATIENCE_S).subscribe("a") as subscription:
                assert subscription.silent_s < math.inf


async def test_a_reader_that_is_busy_for_long(redis_url: str, channel_prefix: str) -> None:
    """Redis buffers meanwhile; nothing is lost, and unread payloads are not taken for silence."""
    count = 5_000
    async with open_redis(redis_url) as client:
        bus = RedisPubSubBus(client, prefix=channel_prefix, heartbeat_s=0.5)
        async with bus.subscribe("a") as subscription:
            async with client.pipeline(transaction=False) as sent:
                for number in range(count):
                    sent.publish(f"{channel_prefix}a", b"%d" % number + b" " * 1_000)
                await sent.execute()
            await until(lambda: heard_nothing(subscription))
            heard = await take(subscription, count)
            assert [int(delivery.payload) for delivery in heard] == [*range(count)]
            await until(lambda: heard_lately(subscription))
            assert await bus.publish("a", b"x") == 1
            assert [delivery.payload for delivery in await take(subscription, 1)] == [b"x"]
            assert subscription.reconnects == 0


async def heard_nothing(subscription: RedisSubscription) -> bool:
    """Whether nothing has come for more heartbeats than a connection may be silent."""
    return subscription.silent_s > 2.0


async def heard_lately(subscription: RedisSubscription) -> bool:
    """Whether the heartbeat comes."""
    return subscription.silent_s < 1.0
