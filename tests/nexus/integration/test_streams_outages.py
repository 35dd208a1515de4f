"""The bus on streams when the network breaks, Redis goes away, or another program changes its keys."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.ledger import RedisLedger
from nexus.adapters.redis.scripts import GROUP
from nexus.adapters.redis.stream_subscription import StreamSubscription
from nexus.adapters.redis.streams import RedisStreamsBus
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Acquired, Delivery, Work
from tests.nexus.support.proxy import Proxy, proxied
from tests.nexus.support.redis_server import HOST, redis_server
from tests.nexus.support.redis_topologies import cluster_servers
from tests.nexus.support.streams import (
    LONG_MS,
    SHORT_MS,
    WORK,
    enqueue,
    has_passed,
    now_ms,
    numbered,
    payloads,
    pending,
    pending_are,
    streams_bus,
)
from tests.nexus.support.waiting import take, take_all, until

Vanish = Callable[[Redis, str], Awaitable[None]]


@dataclass(frozen=True)
class Line:
    """A bus behind a proxy, and a client that reaches the same Redis without it."""

    proxy: Proxy
    bus: RedisStreamsBus
    direct: Redis
    key: str


@asynccontextmanager
async def line(redis_url: str, prefix: str, *, lease_ms: int = LONG_MS) -> AsyncIterator[Line]:
    """Open a line to Redis with a proxy in it."""
    target = urlsplit(redis_url)
    async with (
        proxied(target.hostname or "", target.port or 0) as proxy,
        open_redis(f"redis://{HOST}:{proxy.port}{target.path}") as client,
        open_redis(redis_url) as direct,
    ):
        yield Line(proxy, streams_bus(client, prefix, lease_ms=lease_ms), direct, f"{prefix}a")


async def again(subscription: StreamSubscription) -> bool:
    """Whether it has connected again."""
    return subscription.reconnects > 0


async def all_done(bus: RedisStreamsBus, deliveries: list[Delivery]) -> None:
    """Report all of it done."""
    for delivery in deliveries:
        bus.done(delivery)


async def test_work_in_a_reply_that_was_lost(redis_url: str, channel_prefix: str) -> None:
    """Entries in a reply that never came are fetched when the connection is back, each once."""
    async with line(redis_url, channel_prefix) as wire, wire.bus.consume(WORK) as subscription:
        await enqueue(wire.direct, wire.key, [b"known"])
        known = await take(subscription, 1)
        for _ in range(3):
            wire.proxy.mute()
            before = len(await pending(wire.direct, wire.key))

            async def handed_out(before: int = before) -> bool:
                await enqueue(wire.direct, wire.key, [b"x"])
                return len(await pending(wire.direct, wire.key)) > before

            await until(handed_out)
            wire.proxy.reset()
        there = await wire.direct.xlen(wire.key) - 1
        deliveries = await take(subscription, there)
        assert {delivery.deliveries for delivery in deliveries} == {1}
        await all_done(wire.bus, [*known, *deliveries])
        await pending_are(wire.direct, wire.key, 0)
        await subscription.stop()
        assert await take_all(subscription) == []
    assert len({delivery.entry for delivery in deliveries}) == there


async def test_what_was_done_while_redis_was_away(redis_url: str, channel_prefix: str) -> None:
    """Work done in an outage is acknowledged after it, and not handed out again."""
    async with line(redis_url, channel_prefix) as wire, wire.bus.consume(WORK) as subscription:
        await enqueue(wire.direct, wire.key, numbered(100))
        deliveries = await take(subscription, 100)
        wire.proxy.refuse()
        await all_done(wire.bus, deliveries[:60])
        with pytest.raises(BusUnavailableError):
            await wire.bus.publish("a", b"not enqueued")
        await enqueue(wire.direct, wire.key, [b"new"])
        wire.proxy.behave()
        assert payloads(await take(subscription, 1)) == [b"new"]
        await pending_are(wire.direct, wire.key, 41)
        assert subscription.reconnects == 1


async def test_acknowledgements_that_are_lost(redis_url: str, channel_prefix: str) -> None:
    """Work that could neither be acknowledged nor given back goes to another after the lease."""
    async with line(redis_url, channel_prefix, lease_ms=SHORT_MS) as wire:
        async with wire.bus.consume(WORK) as subscription:
            await enqueue(wire.direct, wire.key, numbered(5))
            deliveries = await take(subscription, 5)
            wire.proxy.refuse()
            await all_done(wire.bus, deliveries)
        other = streams_bus(wire.direct, channel_prefix, lease_ms=SHORT_MS)
        async with other.consume(WORK) as subscription:
            again = await take(subscription, 5)
    assert payloads(again) == numbered(5)
    assert {delivery.deliveries for delivery in again} == {2}


async def test_a_half_open_connection(redis_url: str, channel_prefix: str) -> None:
    """A connection that died without a word is noticed, and nothing is lost: neither work nor news."""
    async with line(redis_url, channel_prefix) as wire, wire.bus.consume(WORK, ["n"]) as subscription:
        wire.proxy.stall()
        await enqueue(wire.direct, wire.key, [b"work"])
        await enqueue(wire.direct, f"{channel_prefix}n", [b"news"])
        heard = await take(subscription, 2)
        await until(partial(again, subscription))
    assert sorted(payloads(heard)) == [b"news", b"work"]


async def test_silence_is_told(redis_url: str, channel_prefix: str) -> None:
    """While Redis does not reply the silence grows, also with full hands; a reply ends it."""
    async with line(redis_url, channel_prefix, lease_ms=SHORT_MS) as wire:
        work = [Work("a", 1), Work("b", 1, sheds=True)]
        async with wire.bus.consume(work) as subscription:
            for topic in "ab":
                await enqueue(wire.direct, f"{channel_prefix}{topic}", [b"x"])
            await take(subscription, 2)
            wire.proxy.refuse()

            await falls_silent(subscription)
            wire.proxy.behave()
            await is_heard(subscription)


async def falls_silent(subscription: StreamSubscription) -> None:
    """Wait until more than a moment's silence is told."""

    async def silent() -> bool:
        return subscription.silent_s > 1

    await until(silent)


async def is_heard(subscription: StreamSubscription) -> None:
    """Wait until nothing is overdue."""

    async def heard() -> bool:
        return subscription.silent_s == 0

    await until(heard)


async def test_full_hands_are_no_silence(redis_url: str, channel_prefix: str) -> None:
    """A full consumer waits for nothing and is not silent, however long its lease; nor is a stopped one."""
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)
        async with bus.consume([Work("a", 1), Work("b", 1, sheds=True)], ["n"]) as subscription:
            for topic in "ab":
                await enqueue(client, f"{channel_prefix}{topic}", [b"x"] * 100)
            await take(subscription, 2 + 64)
            await until(has_passed(client, await now_ms(client), 2_500))
            await is_heard(subscription)
            await subscription.stop()
            assert subscription.silent_s == 0


async def test_news_across_an_outage(redis_url: str, channel_prefix: str) -> None:
    """News published while a subscriber is away is heard when it is back, and nothing twice."""
    async with line(redis_url, channel_prefix) as wire, wire.bus.subscribe("a", "b") as subscription:
        await enqueue(wire.direct, wire.key, numbered(3))
        assert payloads(await take(subscription, 3)) == numbered(3)
        wire.proxy.refuse()
        await enqueue(wire.direct, wire.key, numbered(200))
        wire.proxy.behave()
        assert payloads(await take(subscription, 200)) == numbered(200)
        await subscription.stop()
        assert await take_all(subscription) == []


async def test_a_publish_whose_reply_is_lost(redis_url: str, channel_prefix: str) -> None:
    """Sent again under the same name it is one entry."""
    async with line(redis_url, channel_prefix) as wire:
        await wire.bus.publish("a", b"to have a connection, and the script loaded", once="first")
        wire.proxy.mute()

        async def publish() -> None:
            with pytest.raises(BusUnavailableError):
                await wire.bus.publish("a", b"x", once="name")

        async def enqueued() -> bool:
            return await wire.direct.xlen(wire.key) == 2

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            await until(enqueued)
            wire.proxy.reset()
        assert await wire.bus.publish("a", b"x", once="name") == 1
        assert await wire.direct.xlen(wire.key) == 2


async def test_a_finish_whose_reply_is_lost(redis_url: str, channel_prefix: str) -> None:
    """The answer is enqueued once, and the request is done with."""
    async with line(redis_url, channel_prefix) as wire, wire.bus.consume(WORK) as subscription:
        ledger = RedisLedger(wire.bus._client, prefix=channel_prefix, acknowledged=wire.bus.acknowledged)
        await enqueue(wire.direct, wire.key, numbered(2))
        first, second = await take(subscription, 2)
        for delivery in (first, second):
            claim = await ledger.claim(delivery.entry, "f", LONG_MS)
            assert isinstance(claim, Acquired)
            if delivery is first:
                # Redis knows the script from now on.
                assert await ledger.conclude(claim, "answers", b"1", LONG_MS, delivery) == 1
                continue
            wire.proxy.mute()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ledger.conclude, claim, "answers", b"2", LONG_MS, delivery)
                await pending_are(wire.direct, wire.key, 0)
                wire.proxy.reset()
        assert await wire.direct.xlen(f"{channel_prefix}answers") == 2
        assert len(wire.bus._readers[0].in_hand) == 0


async def destroyed(client: Redis, key: str) -> None:
    """Remove the group."""
    await client.xgroup_destroy(key, GROUP)


async def deleted(client: Redis, key: str) -> None:
    """Remove the stream."""
    await client.delete(key)


async def flushed(client: Redis, key: str) -> None:
    """Remove everything."""
    del key
    await client.flushall()


@pytest.mark.parametrize("vanish", [destroyed, deleted, flushed])
async def test_a_group_that_vanishes(vanish: Vanish) -> None:
    """It is made anew from the beginning: later entries are handed out, and those in hand are not again."""
    async with redis_server() as server, open_redis(server.url) as client:
        bus = streams_bus(client, "")
        async with bus.consume(WORK) as subscription:
            await enqueue(client, "a", numbered(3))
            in_hand = await take(subscription, 3)
            await vanish(client, "a")
            # Within the same millisecond a stream that is made anew would give its entries the ids of those in hand.
            await until(partial(later_than, client, in_hand[-1].entry))
            await enqueue(client, "a", [b"new", b"newer"])
            assert payloads(await take(subscription, 2)) == [b"new", b"newer"]
            await all_done(bus, in_hand)
            await pending_are(client, "a", 2)


async def test_a_redis_that_is_killed() -> None:
    """With an append-only file nothing that was enqueued is lost when Redis is killed, and nothing done comes again."""
    async with redis_server(append_only=True) as server, open_redis(server.url) as client:
        bus = streams_bus(client, "")
        async with bus.consume(WORK, ["n"]) as subscription:
            await enqueue(client, "a", numbered(100))
            taken = await take(subscription, 60)
            await all_done(bus, taken)
            await pending_are(client, "a", 40)
            for number in range(2):
                await server.kill()
                await server.start()
                await until(partial(enqueued, client, b"later %d" % number))
            taken += await take(subscription, 42)
            await all_done(bus, taken)
            async with open_redis(server.url) as unbroken:
                await pending_are(unbroken, "a", 0)
    assert payloads(taken) == [*numbered(100), b"later 0", b"later 1"]


async def later_than(client: Redis, entry: str) -> bool:
    """Whether the next entry is of a later millisecond by Redis's clock."""
    seconds, microseconds = await client.time()
    return seconds * 1_000 + microseconds // 1_000 > int(entry.split("-", maxsplit=1)[0])


async def enqueued(client: Redis, message: bytes) -> bool:
    """Enqueue; False when that failed, as it does on each connection that ended while idle."""
    try:
        await enqueue(client, "a", [message])
    except (RedisError, OSError):
        return False
    return True


async def attempts(client: Redis, command: str) -> int:
    """How often a command has been given."""
    statistics: Any = await client.info("commandstats")
    return int(statistics.get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.mark.once
async def test_a_topic_that_is_no_stream() -> None:
    """It is silence, said clearly and tried again, not too often; other topics go on, and it does afterwards."""
    async with redis_server() as server, open_redis(server.url) as client:
        bus = streams_bus(client, "")
        with capture_logs() as log:
            async with bus.consume([*WORK, Work("b", 1)], ["n"]) as subscription:
                for topic in "an":
                    before = await attempts(client, "xgroup|create")
                    await client.delete(topic)
                    await client.set(topic, "no stream")
                    await falls_silent(subscription)
                    assert await attempts(client, "xgroup|create") - before < 20
                    await enqueue(client, "b", [b"x"])
                    others = await take(subscription, 1)
                    assert payloads(others) == [b"x"]
                    await all_done(bus, others)
                    await client.delete(topic)
                    await is_heard(subscription)
                    await enqueue(client, topic, [b"y"])
                    assert payloads(await take(subscription, 1)) == [b"y"]
                assert subscription.reconnects == 0
    reasons = {line["reason"].split()[0] for line in log if line["event"] == "topic_unusable"}
    assert "WRONGTYPE" in reasons


async def test_a_cluster(channel_prefix: str) -> None:
    """With a hash tag in the prefix, everything from enqueueing to answering works on three masters."""
    tag = f"{channel_prefix}{{t}}:"
    async with cluster_servers() as servers, open_redis(servers.url) as client, open_redis(servers.url) as theirs:
        one, other = streams_bus(client, tag, lease_ms=SHORT_MS), streams_bus(theirs, tag, lease_ms=SHORT_MS)
        ledger = RedisLedger(client, prefix=tag, acknowledged=one.acknowledged)
        work = [*WORK, Work("b", 8)]
        async with other.subscribe("answers", "a") as answers, one.consume(work, ["n"]) as subscription:
            for number in range(20):
                await other.publish("a", b"%d" % number, once=f"q{number}")
                await other.publish("a", b"%d" % number, once=f"q{number}")
            requests = await take(subscription, 20)
            for delivery in requests:
                claim = await ledger.claim(delivery.entry, "f", LONG_MS)
                assert isinstance(claim, Acquired)
                assert await ledger.conclude(claim, "answers", delivery.payload, LONG_MS, delivery) == 1
            heard = await take(answers, 40)
            assert payloads([item for item in heard if item.topic == "answers"]) == numbered(20)
            await pending_are(client, f"{tag}a", 0)
            for reader in one._readers:
                await one._trimmer.trim(reader.topic)
                assert await one._trimmer.backlog(reader.topic) == 0
            await other.publish("b", b"x")
            await take(subscription, 1)
        async with other.consume(work) as subscription:
            assert payloads(await take(subscription, 1)) == [b"x"]
