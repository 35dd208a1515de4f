"""The promises of `nexus.core.ports.Bus`, on every adapter."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from nexus.adapters.in_memory import MemoryBus
from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.pubsub import RedisPubSubBus
from nexus.adapters.redis.streams import RedisStreamsBus
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Bus, Delivery
from tests.nexus.support.waiting import PATIENCE_S, take, take_all, until

OpenBus = Callable[[], AbstractAsyncContextManager[Bus]]

PAYLOADS = {
    "empty": b"",
    "text": "context ✓".encode(),
    "not UTF-8": b"\xff\xfe\x00\x80",
    "every byte": bytes(range(256)),
    "Redis's own protocol": b"*1\r\n$4\r\nPING\r\n",
    "1 MiB": b"\x00\xff" * (1 << 19),
}


@asynccontextmanager
async def memory_bus() -> AsyncIterator[Bus]:
    """The bus within one process."""
    yield MemoryBus()


def opening(kind: str, request: pytest.FixtureRequest) -> OpenBus:
    """How to open a bus of that kind."""
    if kind == "memory":
        return memory_bus
    url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("channel_prefix")

    @asynccontextmanager
    async def redis_bus() -> AsyncIterator[Bus]:
        async with open_redis(url) as client:
            yield (RedisStreamsBus if kind == "streams" else RedisPubSubBus)(client, prefix=prefix)

    return redis_bus


@pytest.fixture(params=["memory", "redis", "streams"])
def open_bus(request: pytest.FixtureRequest) -> OpenBus:
    """How to open the bus that is tested."""
    return opening(request.param, request)


@pytest.fixture(params=["memory", "redis"])
def open_counting_bus(request: pytest.FixtureRequest) -> OpenBus:
    """The same for a bus that keeps nothing, and so knows who hears."""
    return opening(request.param, request)


def said(deliveries: list[Delivery]) -> list[tuple[str, bytes]]:
    """What was delivered, without what only a bus that keeps it knows."""
    return [(delivery.topic, delivery.payload) for delivery in deliveries]


def numbered(count: int) -> list[bytes]:
    """Payloads that can be told apart."""
    return [b"%d" % number for number in range(count)]


async def publish_all(bus: Bus, topic: str, payloads: list[bytes]) -> None:
    """Publish one after another."""
    for payload in payloads:
        await bus.publish(topic, payload)


async def test_order_is_kept(open_bus: OpenBus) -> None:
    """What one publisher sends to one topic arrives in that order."""
    async with open_bus() as bus, bus.subscribe("a") as subscription:
        await publish_all(bus, "a", numbered(500))
        assert [delivery.payload for delivery in await take(subscription, 500)] == numbered(500)
        assert subscription.reconnects == 0


async def test_everybody_hears(open_bus: OpenBus) -> None:
    """Each of several subscribers gets every payload."""
    async with (
        open_bus() as bus,
        bus.subscribe("a") as one,
        bus.subscribe("a", "b") as two,
        bus.subscribe("a") as three,
    ):
        assert await bus.publish("a", b"x") > 0
        for subscription in (one, two, three):
            assert said(await take(subscription, 1)) == [("a", b"x")]


async def test_the_publisher_learns_how_many_hear(open_counting_bus: OpenBus) -> None:
    """A bus that keeps nothing says how many heard."""
    async with (
        open_counting_bus() as bus,
        bus.subscribe("a"),
        bus.subscribe("a", "b"),
        bus.subscribe("a"),
    ):
        assert await bus.publish("a", b"x") == 3
        assert await bus.publish("b", b"x") == 1


async def test_topics_are_separate(open_bus: OpenBus) -> None:
    """A subscriber gets its topics only, with their names; a longer name with the same beginning is another topic."""
    async with open_bus() as bus, bus.subscribe("a", "b") as subscription:
        for topic in ("c", "a", "a.b", "A", "a*", "b"):
            await bus.publish(topic, topic.encode())
        assert said(await take(subscription, 2)) == [("a", b"a"), ("b", b"b")]


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
async def test_payloads_are_bytes(open_bus: OpenBus, payload: bytes) -> None:
    """Whatever the bytes are, they arrive as they are."""
    async with open_bus() as bus, bus.subscribe("a") as subscription:
        await bus.publish("a", payload)
        assert said(await take(subscription, 1)) == [("a", payload)]


async def test_the_subscription_is_in_force_when_its_context_is_entered(open_bus: OpenBus) -> None:
    """What is published right after entering is heard, every time."""
    async with open_bus() as bus:
        for number in range(20):
            async with bus.subscribe("a", f"b{number}") as subscription:
                assert await bus.publish(f"b{number}", b"x") == 1
                assert said(await take(subscription, 1)) == [(f"b{number}", b"x")]


async def test_leaving_the_context_ends_the_subscription(open_counting_bus: OpenBus) -> None:
    """After the context nobody listens any more, also when nothing of what had arrived was read."""
    async with open_counting_bus() as bus:
        async with bus.subscribe("a"):
            await publish_all(bus, "a", numbered(5))

        async def nobody_listens() -> bool:
            return await bus.publish("a", b"x") == 0

        await until(nobody_listens)


async def test_iterating_ends_with_the_context(open_bus: OpenBus) -> None:
    """A task that iterates while the context is left comes to its end, without an error."""
    async with open_bus() as bus, anyio.create_task_group() as tasks:
        async with bus.subscribe("a") as subscription:
            tasks.start_soon(take_all, subscription)
            await bus.publish("a", b"x")
        assert await take_all(subscription) == []


async def test_stop_delivers_what_had_arrived(open_bus: OpenBus) -> None:
    """After `stop` iterating goes on through everything that came before it, and ends there."""
    async with open_bus() as bus, bus.subscribe("a") as subscription:
        await publish_all(bus, "a", numbered(100))
        await subscription.stop()
        await subscription.stop()
        assert [delivery.payload for delivery in await take_all(subscription)] == numbered(100)
        # Before that, it would depend on which of two connections the server looks at first.
        await bus.publish("a", b"too late")
        assert await take_all(subscription) == []


async def test_stop_ends_an_iteration_that_waits(open_bus: OpenBus) -> None:
    """A reader that waits for the next delivery learns that there is none."""
    async with open_bus() as bus, bus.subscribe("a") as subscription, anyio.create_task_group() as tasks:
        tasks.start_soon(take_all, subscription)
        await anyio.wait_all_tasks_blocked()
        await subscription.stop()


async def test_a_cancelled_reader_loses_nothing(open_bus: OpenBus) -> None:
    """The deliveries after a cancelled iteration are there for the next one."""
    async with open_bus() as bus, bus.subscribe("a") as subscription:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_all, subscription)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await publish_all(bus, "a", numbered(3))
        assert [delivery.payload for delivery in await take(subscription, 3)] == numbered(3)


async def test_an_exception_in_the_context_comes_out_as_itself(open_bus: OpenBus) -> None:
    """What the user's own code raises passes the subscription unchanged."""
    async with open_bus() as bus:
        with pytest.raises(LookupError, match="mine"):
            async with bus.subscribe("a"):
                raise LookupError("mine")


async def test_the_context_can_be_cancelled(open_bus: OpenBus) -> None:
    """A time limit around a subscription ends it as any other block."""
    async with open_bus() as bus:
        with anyio.CancelScope() as scope:
            async with bus.subscribe("a") as subscription:
                scope.cancel()
                await take_all(subscription)
        assert scope.cancelled_caught


async def test_a_slow_reader_holds_nobody_up(open_bus: OpenBus) -> None:
    """One who does not read keeps neither the publisher nor another reader from anything."""
    async with open_bus() as bus, bus.subscribe("a"), bus.subscribe("a") as reading, anyio.create_task_group() as tasks:
        tasks.start_soon(publish_all, bus, "a", numbered(3_000))
        assert [delivery.payload for delivery in await take(reading, 3_000)] == numbered(3_000)


async def test_nothing_is_published_twice(open_bus: OpenBus) -> None:
    """A hundred and fifty publishers at once are each heard once, more than there are connections.

    One that is told that the bus cannot be reached, as on a busy machine, is heard at most once.
    """
    failed = set[bytes]()

    async def publish(payload: bytes) -> None:
        try:
            await bus.publish("a", payload)
        except BusUnavailableError:
            failed.add(payload)

    async with open_bus() as bus, bus.subscribe("a", "end") as subscription:
        async with anyio.create_task_group() as tasks:
            for payload in numbered(150):
                tasks.start_soon(publish, payload)
        await subscription.stop()
        heard = Counter(delivery.payload for delivery in await take_all(subscription))
    assert {*heard} - failed == {*numbered(150)} - failed != set()
    assert {*heard.values()} == {1}


async def test_prefixes_separate_installations(redis_url: str, channel_prefix: str) -> None:
    """Installations with prefixes of their own share a Redis without hearing each other."""
    topic = f"{channel_prefix}topic"
    async with open_redis(redis_url) as client:
        one = RedisPubSubBus(client, prefix="one:")
        two = RedisPubSubBus(client, prefix="two:")
        bare = RedisPubSubBus(client)
        async with (
            one.subscribe(topic) as of_one,
            two.subscribe(topic) as of_two,
            bare.subscribe(f"two:{topic}") as of_bare,
        ):
            assert await one.publish(topic, b"1") == 1
            assert await two.publish(topic, b"2") == 2
            assert await take(of_one, 1) == [Delivery(topic, b"1")]
            assert await take(of_two, 1) == [Delivery(topic, b"2")]
            assert await take(of_bare, 1) == [Delivery(f"two:{topic}", b"2")]


async def test_a_redis_that_is_not_there(unused_port: int) -> None:
    """Publishing and subscribing say that the bus is unavailable, and not where it was looked for."""
    async with open_redis(f"redis://user:canary@127.0.0.1:{unused_port}/0") as client:
        bus = RedisPubSubBus(client, connect_s=0.2)
        with pytest.raises(BusUnavailableError) as publishing:
            await bus.publish("a", b"x")
        with pytest.raises(BusUnavailableError) as subscribing:
            async with bus.subscribe("a"):
                pytest.fail("nobody confirmed the subscription")
    for raised in (publishing, subscribing):
        assert "canary" not in str(raised.value)
        assert str(unused_port) not in str(raised.value)


async def test_without_a_limit_a_subscriber_waits_for_redis(unused_port: int) -> None:
    """A subscription whose Redis does not answer waits until it is cancelled."""
    async with open_redis(f"redis://127.0.0.1:{unused_port}/0") as client:
        bus = RedisPubSubBus(client)
        with anyio.fail_after(PATIENCE_S), anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def subscribe() -> None:
                    async with bus.subscribe("a"):
                        pytest.fail("nobody confirmed the subscription")

                tasks.start_soon(subscribe)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
