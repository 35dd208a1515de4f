"""What the bus on streams promises beyond the promises of every bus: work is shared out, held, and never lost."""

from collections import Counter

import anyio
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.scripts import GROUP, STREAM_TRIM
from nexus.adapters.redis.stream_subscription import StreamSubscription
from nexus.adapters.redis.streams import RedisStreamsBus
from nexus.core.errors import BusUnavailableError
from nexus.core.models import Topics
from nexus.core.ports import Delivery, Work
from tests.nexus.support.streams import (
    LONG_MS,
    SHORT_MS,
    WORK,
    enqueue,
    has_passed,
    now_ms,
    numbered,
    oldest,
    payloads,
    pending,
    pending_are,
    read_and_die,
    streams_bus,
    waiting,
)
from tests.nexus.support.waiting import take, take_all, until

# A busy machine may pause for longer than a sign of life is due in a short lease.
CALM_MS = 600


async def with_group(client: Redis, key: str) -> None:
    """Have the group there before anybody consumes."""
    await client.xgroup_create(key, GROUP, id="0", mkstream=True)


async def in_hand_are(count: int, *buses: RedisStreamsBus) -> None:
    """Wait until these buses have so many in hand, of their first topic."""

    async def so_many() -> bool:
        return sum(len(bus._readers[0].in_hand) for bus in buses) == count

    await until(so_many)


async def test_each_piece_of_work_goes_to_one(redis_url: str, channel_prefix: str) -> None:
    """Two consumers share the work; whoever has it in hand has it alone, with its time and its entry."""
    async with open_redis(redis_url) as client:
        one, other = streams_bus(client, channel_prefix), streams_bus(client, channel_prefix)
        async with one.consume([Work("a", 30)]) as of_one, other.consume([Work("a", 30)]) as of_other:
            entries = await enqueue(client, f"{channel_prefix}a", numbered(60))
            taken = [*await take(of_one, 30), *await take(of_other, 30)]
    assert sorted(delivery.entry for delivery in taken) == sorted(entries)
    assert {(delivery.shared, delivery.deliveries, delivery.surplus) for delivery in taken} == {(True, 1, False)}
    assert [delivery.sent_ms for delivery in taken] == [int(delivery.entry.split("-")[0]) for delivery in taken]


async def test_what_is_done_is_forgotten(redis_url: str, channel_prefix: str) -> None:
    """What was reported done is pending no longer; what was not comes again, and that only."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)
        async with bus.consume(WORK) as subscription:
            await enqueue(client, key, numbered(100))
            deliveries = await take(subscription, 100)
            for delivery in deliveries[::2]:
                bus.done(delivery)
                bus.done(delivery)
            await pending_are(client, key, 50)
        async with bus.consume(WORK) as subscription:
            assert payloads(await take(subscription, 50)) == numbered(100)[1::2]


@pytest.mark.parametrize("delivery", [Delivery("a", b"x", "1-1", shared=True), Delivery("a", b"x")])
async def test_done_with_what_is_not_in_hand(redis_url: str, channel_prefix: str, delivery: Delivery) -> None:
    """To report something unknown changes nothing, within a context and without one."""
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)
        bus.done(delivery)
        async with bus.consume(WORK) as subscription:
            await bus.publish("a", b"1")
            (taken,) = await take(subscription, 1)
            bus.done(delivery)
            bus.done(taken)
            await pending_are(client, f"{channel_prefix}a", 0)
        bus.done(taken)


async def test_the_work_of_the_dead_goes_to_others(redis_url: str, channel_prefix: str) -> None:
    """After its lease, what a dead consumer had goes to another, which is told that it is the second time."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        await with_group(client, key)
        await enqueue(client, key, numbered(100))
        await read_and_die(client, key, 100)
        async with streams_bus(client, channel_prefix, lease_ms=SHORT_MS).consume(WORK) as subscription:
            taken = await take(subscription, 100)
    assert payloads(taken) == numbered(100)
    assert {delivery.deliveries for delivery in taken} == {2}


async def test_not_before_the_lease(redis_url: str, channel_prefix: str) -> None:
    """While the lease of another lasts its work stays with it, whatever else is done."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        await with_group(client, key)
        await enqueue(client, key, numbered(5))
        await read_and_die(client, key, 5)
        bus = streams_bus(client, channel_prefix)
        async with bus.consume(WORK) as subscription:
            await enqueue(client, key, [b"new"])
            assert payloads(await take(subscription, 1)) == [b"new"]
        owners = Counter(entry["consumer"] for entry in await pending(client, key))
        assert owners[b"dead"] == 5


async def test_what_is_in_hand_is_held(redis_url: str, channel_prefix: str) -> None:
    """Work that takes many leases stays with its consumer, however many others look; the dead's is found beyond it."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        one = streams_bus(client, channel_prefix, lease_ms=CALM_MS)
        other = streams_bus(client, channel_prefix, lease_ms=CALM_MS)
        # No room for more, so that what is left goes to the other.
        async with one.consume([Work("a", 200)]) as of_one:
            await enqueue(client, key, numbered(200))
            held = await take(of_one, 200)
            await enqueue(client, key, [b"left"])
            begun = await now_ms(client)
            async with other.consume([Work("a", 3)]) as of_other:
                assert payloads(await take(of_other, 1)) == [b"left"]
                await until(has_passed(client, begun, 5 * CALM_MS))
                found = {entry["message_id"].decode(): entry for entry in await pending(client, key)}
                assert {found[delivery.entry]["times_delivered"] for delivery in held} == {1}
                assert len({found[delivery.entry]["consumer"] for delivery in held}) == 1
                for delivery in held:
                    one.done(delivery)
                await pending_are(client, key, 1)


async def test_deliveries_are_counted(redis_url: str, channel_prefix: str) -> None:
    """Each time that work is taken over counts; what was given back does not."""
    key = f"{channel_prefix}a"
    counts = []
    async with open_redis(redis_url) as client:
        await with_group(client, key)
        await enqueue(client, key, [b"x"])
        await read_and_die(client, key, 1)
        for _ in range(3):
            async with streams_bus(client, channel_prefix, lease_ms=SHORT_MS).consume(WORK) as subscription:
                counts += [delivery.deliveries for delivery in await take(subscription, 1)]
        (entry,) = await pending(client, key)
        await client.xclaim(key, GROUP, "dead as well", 0, [entry["message_id"]])
        async with streams_bus(client, channel_prefix, lease_ms=SHORT_MS).consume(WORK) as subscription:
            counts += [delivery.deliveries for delivery in await take(subscription, 1)]
    assert counts == [2, 2, 2, 3]


async def test_what_is_left_undone_is_given_back(redis_url: str, channel_prefix: str) -> None:
    """At the end of the context another has at once what was read, delivered or neither; no lease has to run out."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        bus, other = streams_bus(client, channel_prefix), streams_bus(client, channel_prefix)
        async with bus.consume(WORK) as subscription:
            await enqueue(client, key, numbered(120))
            first = await take(subscription, 30)
            for delivery in first[:10]:
                bus.done(delivery)
            await subscription.stop()
            rest = await take_all(subscription)
            assert payloads([*first, *rest]) == numbered(len(first) + len(rest))
        async with other.consume(WORK) as subscription:
            taken = await take(subscription, 110)
    assert sorted(payloads(taken), key=int) == numbered(120)[10:]
    assert {delivery.deliveries for delivery in taken} == {1}


async def test_deliveries_that_meet_the_end(redis_url: str, channel_prefix: str) -> None:
    """Whenever a subscription stops, what it has in hand was delivered: leases of the rest are not renewed."""
    async with open_redis(redis_url) as client:
        await with_group(client, f"{channel_prefix}a")
        bus = streams_bus(client, channel_prefix)
        for passes in range(60):
            await enqueue(client, f"{channel_prefix}a", numbered(60))
            async with bus.consume([Work("a", 100)]) as subscription:
                for _ in range(passes % 30):
                    await anyio.lowlevel.checkpoint()
                await subscription.stop()
                delivered = {delivery.entry for delivery in await take_all(subscription)}
                assert {*bus._readers[0].in_hand.entries} <= delivered


async def test_a_delivery_without_room_as_the_subscription_stops(redis_url: str) -> None:
    """It was not delivered, and says so."""
    outcomes: list[bool] = []
    async with open_redis(redis_url) as client, anyio.create_task_group() as tasks:
        subscription = StreamSubscription(client, "", (), 0)

        async def fill() -> None:
            deliveries = [Delivery("a", b"", str(number)) for number in range(1_025)]
            outcomes.extend([await subscription.deliver(delivery) for delivery in deliveries])

        tasks.start_soon(fill)
        await anyio.wait_all_tasks_blocked()
        await subscription.stop()
        assert len(await take_all(subscription)) == 1_024
        subscription.close()
    assert outcomes == [*[True] * 1_024, False]


async def test_a_consumer_that_leaves_nothing_is_forgotten(redis_url: str, channel_prefix: str) -> None:
    """Whoever has done everything leaves no trace; who has left something stays known until that is done."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)
        async with bus.consume(WORK) as subscription:
            await enqueue(client, key, numbered(3))
            for delivery in await take(subscription, 3):
                bus.done(delivery)
        assert await client.xinfo_consumers(key, GROUP) == []
        async with bus.consume(WORK) as subscription:
            await enqueue(client, key, numbered(3))
            await take(subscription, 3)
        (consumer,) = await client.xinfo_consumers(key, GROUP)
        assert consumer["pending"] == 3


async def test_the_gone_are_forgotten(redis_url: str, channel_prefix: str) -> None:
    """Upkeep forgets consumers that have nothing and are gone, and never one that has something."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        await with_group(client, key)
        await enqueue(client, key, numbered(2))
        await read_and_die(client, key, 2, consumer="has something")
        for number in range(20):
            await client.xgroup_createconsumer(key, GROUP, f"gone {number}")
        trim = client.register_script(STREAM_TRIM)

        async def one_is_left() -> bool:
            await trim(keys=[key], args=[GROUP, 0, 0, "0-0"])
            return [known["name"] for known in await client.xinfo_consumers(key, GROUP)] == [b"has something"]

        await until(one_is_left)
        await trim(keys=[key], args=[GROUP, 0, 0, "0-0"])
        assert len(await pending(client, key)) == 2


async def test_trimming(redis_url: str, channel_prefix: str) -> None:
    """What every group has done with is cut after a while; never what one has pending or not read, whosever it is."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix, keep_ms=0)
        keeping = streams_bus(client, channel_prefix)
        async with bus.consume(WORK) as subscription, keeping.consume([Work("b", 1)]):
            await client.xgroup_create(key, "foreign", id="0")
            await enqueue(client, key, numbered(10))
            deliveries = await take(subscription, 10)
            for delivery in deliveries[:5]:
                bus.done(delivery)
            await pending_are(client, key, 5)
            upkeep = bus._trimmer
            await upkeep.trim("a")
            assert await client.xlen(key) == 10
            await client.xreadgroup("foreign", "dead", {key: ">"}, count=10)
            await client.xack(key, "foreign", *(delivery.entry for delivery in deliveries[:3]))
            await upkeep.trim("a")
            assert await oldest(client, key) == deliveries[3].entry
            await client.xgroup_destroy(key, "foreign")
            of_another = keeping._trimmer
            await of_another.trim("a")
            assert await client.xlen(key) == 7
            await upkeep.trim("a")
            assert await oldest(client, key) == deliveries[5].entry
            for delivery in deliveries:
                bus.done(delivery)
            await pending_are(client, key, 0)
            await upkeep.trim("a")
            assert await client.xlen(key) == 1
            await upkeep.trim("no such topic")


async def test_entries_from_the_future(redis_url: str, channel_prefix: str) -> None:
    """After an id that somebody chose all others lie in the future too: they are handed out, said once, and trimmed."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix, keep_ms=0)
        careful = streams_bus(client, channel_prefix)
        async with bus.consume(WORK) as subscription:
            await client.xadd(key, {b"message": b"chosen"}, id="18446744073709551615-1")
            await enqueue(client, key, numbered(5))
            deliveries = await take(subscription, 6)
            assert payloads(deliveries) == [b"chosen", *numbered(5)]
            assert deliveries[-1].sent_ms == 2**64 - 1
            for delivery in deliveries[:4]:
                bus.done(delivery)
            await pending_are(client, key, 2)
            with capture_logs() as log:
                for _ in range(3):
                    await bus._trimmer.trim("a")
                    # Known for a moment only, which others think too short.
                    await careful._trimmer.trim("a")
            assert [line["event"] for line in log] == ["entry_from_the_future"] * 2
            # Nothing that is pending.
            assert await oldest(client, key) == deliveries[4].entry
            for delivery in deliveries[4:]:
                bus.done(delivery)
            await pending_are(client, key, 0)
            await enqueue(client, key, [b"new"])
            await careful._trimmer.trim("a")
            assert await client.xlen(key) == 3
            # A stream that was made anew ends before what is remembered.
            await client.delete(key)
            await enqueue(client, key, [b"x"])
            await careful._trimmer.trim("a")
            assert await client.xlen(key) == 1


async def test_more_than_all_together_may_have_waiting(redis_url: str, channel_prefix: str) -> None:
    """Two full consumers are handed as surplus what waits beyond `most`, oldest first, each piece once."""
    key = f"{channel_prefix}a"
    work = [Work("a", 4, sheds=True)]
    async with open_redis(redis_url) as client:
        one, other = streams_bus(client, channel_prefix), streams_bus(client, channel_prefix)
        async with one.consume(work) as of_one, other.consume(work) as of_other:
            await enqueue(client, key, numbered(8))
            in_hand = [*await take(of_one, 4), *await take(of_other, 4)]
            # As many as may wait, and three more.
            await enqueue(client, key, [b"surplus"] * 3 + [b"waits"] * 4)
            await in_hand_are(11, one, other)
            assert await waiting(client, key) == 4
            shed = [
                delivery
                for bus, subscription in ((one, of_one), (other, of_other))
                for delivery in await take(subscription, len(bus._readers[0].in_hand) - 4)
            ]
            assert payloads(shed) == [b"surplus"] * 3
            assert all(delivery.surplus and delivery.deliveries == 1 for delivery in shed)
            for delivery in [*shed, *in_hand]:
                one.done(delivery)
                other.done(delivery)
            await in_hand_are(4, one, other)
            rest = [
                delivery
                for bus, subscription in ((one, of_one), (other, of_other))
                for delivery in await take(subscription, len(bus._readers[0].in_hand))
            ]
            assert payloads(rest) == [b"waits"] * 4
            assert not any(delivery.surplus for delivery in rest)


async def test_what_is_set_aside(redis_url: str, channel_prefix: str) -> None:
    """Others are handed out in its place, which it may have again; it stays in hand until it is done."""
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)
        async with bus.consume([Work("a", 4, aside=100)]) as subscription:
            await enqueue(client, f"{channel_prefix}a", numbered(100))
            taken = await take(subscription, 4)
            for delivery in taken:
                bus.set_aside(delivery, aside=True)
            more = await take(subscription, 4)
            assert payloads([*taken, *more]) == numbered(100)[:8]
            bus.set_aside(taken[0], aside=False)
            bus.done(more[0])
            bus.done(more[1])
            # One place is the first's again, and the other is free.
            (last,) = await take(subscription, 1)
            assert last.payload == numbered(100)[8]
            await in_hand_are(7, bus)
            for delivery in (*taken, last):
                bus.done(delivery)
                bus.set_aside(delivery, aside=True)
            assert payloads(await take(subscription, 2)) == numbered(100)[9:11]


async def test_no_more_surplus_than_can_be_refused(redis_url: str, channel_prefix: str) -> None:
    """Of a flood no more than 64 are in hand to be refused at once."""
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)
        async with bus.consume([Work("a", 2, sheds=True)]) as subscription:
            await enqueue(client, f"{channel_prefix}a", numbered(200))
            taken = await take(subscription, 2 + 64)
            assert Counter(delivery.surplus for delivery in taken) == {True: 64, False: 2}
            assert await waiting(client, f"{channel_prefix}a") == 134
            for delivery in taken[:32]:
                bus.done(delivery)
            await take(subscription, 30)
            assert len(bus._readers[0].in_hand) <= 66


async def test_where_redis_cannot_tell_how_many_wait(redis_url: str, channel_prefix: str) -> None:
    """With entries deleted by somebody, nothing is taken for surplus, and the rest is handed out in order."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        await with_group(client, key)
        entries = await enqueue(client, key, numbered(20))
        await client.xdel(key, entries[10])
        bus = streams_bus(client, channel_prefix)
        async with bus.consume([Work("a", 2, sheds=True)]) as subscription:
            taken = await take(subscription, 2)
            assert await waiting(client, key) in {None, 17}
            while len(taken) < 19:
                bus.done(taken[-1])
                taken += await take(subscription, 1)
    assert payloads(taken) == [message for message in numbered(20) if message != b"10"]
    assert not any(delivery.surplus for delivery in taken)


async def test_what_waits_in_a_stream(redis_url: str, channel_prefix: str) -> None:
    """Nothing, once all of it was handed out: also where Redis counts entries that went before a restart."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        counted = streams_bus(client, channel_prefix)._trimmer.backlog
        await client.xgroup_create(key, GROUP, id="0", mkstream=True)
        assert await counted("a") == 0
        last = [await client.xadd(key, {"message": b"x"}) for _ in range(3)][-1]
        assert await counted("a") == 3
        await client.xreadgroup(GROUP, "c", {key: ">"}, count=2)
        assert await counted("a") == 1
        await client.xgroup_setid(key, GROUP, last, entries_read=1)
        assert [group["lag"] for group in await client.xinfo_groups(key)] == [2]
        assert await counted("a") == 0


async def test_no_more_in_hand_than_may_be(redis_url: str, channel_prefix: str) -> None:
    """New and abandoned work together never exceed `most`, and all of it comes in the end."""
    key = f"{channel_prefix}a"
    most_in_hand = 0
    seen: set[bytes] = set()
    async with open_redis(redis_url) as client:
        await with_group(client, key)
        await enqueue(client, key, numbered(200))
        await read_and_die(client, key, 100)
        bus = streams_bus(client, channel_prefix, lease_ms=SHORT_MS)
        async with bus.consume([Work("a", 7)]) as subscription:
            while len(seen) < 200:
                (delivery,) = await take(subscription, 1)
                most_in_hand = max(most_in_hand, len(bus._readers[0].in_hand))
                assert delivery.payload not in seen
                seen.add(delivery.payload)
                if len(seen) > 6:
                    bus.done(delivery)
    assert most_in_hand == 7


async def test_large_entries_are_read_few_at_once(redis_url: str, channel_prefix: str) -> None:
    """However large the entries are, a read brings no more than there is room for, or one; the rest comes later."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)
        await enqueue(client, key, [bytes(16 << 20)] * 8)
        async with bus.consume(WORK) as subscription:
            taken = await take(subscription, 5)
            assert await waiting(client, key) == 3
            for delivery in taken:
                bus.done(delivery)
            await take(subscription, 3)
        await client.delete(key)


async def test_entries_of_all_kinds(redis_url: str, channel_prefix: str) -> None:
    """Whatever fields an entry has, it is handed out: what is not in `message` is an empty payload."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client, streams_bus(client, channel_prefix).consume(WORK) as subscription:
        await client.xadd(key, {b"foreign": b"x"}, id="5-1")
        await client.xadd(key, {b"foreign": b"x", b"message": b"m", b"\xff": b"\xff"})
        await client.xadd(key, {b"message": b""})
        await client.xadd(key, {b"message": b"\x00\xff" * (1 << 19)})
        taken = await take(subscription, 4)
    assert payloads(taken) == [b"", b"m", b"", b"\x00\xff" * (1 << 19)]
    assert (taken[0].entry, taken[0].sent_ms) == ("5-1", 5)


async def test_whether_anybody_reads(redis_url: str, channel_prefix: str) -> None:
    """Nobody does where there is no stream, no group, or what is in it waits; a consumer at work does."""
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)
        assert await bus.is_read("a") is False
        await bus.publish("a", b"1")
        assert await bus.is_read("a") is False
        await with_group(client, f"{channel_prefix}a")
        assert await bus.is_read("a") is False
        async with bus.consume([Work("a", 1)]) as subscription:
            await take(subscription, 1)
            assert await bus.is_read("a") is True
            # It has what it may have in hand, and is there.
            await bus.publish("a", b"2")
            assert await bus.is_read("a") is True
        await client.set(f"{channel_prefix}c", "")
        with pytest.raises(BusUnavailableError):
            await bus.is_read("c")


async def test_a_name_is_enqueued_once(redis_url: str, channel_prefix: str) -> None:
    """A hundred publishers with one name make one entry, and each is told that it is there; other names are others."""
    results = []
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)

        async def publish() -> None:
            results.append(await bus.publish("a", b"x", once="name"))

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(publish)
        await bus.publish("a", b"y", once="another")
        await bus.publish("a", b"z")
        await bus.publish("a", b"z")
        assert await client.xlen(f"{channel_prefix}a") == 4
        assert await client.pttl(f"{channel_prefix}nexus:enqueued:name") > 0
    assert results == [1] * 100


async def test_a_name_that_could_not_be_enqueued(redis_url: str, channel_prefix: str) -> None:
    """An error leaves no mark: to publish again under the same name is to publish."""
    key = f"{channel_prefix}a"
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)
        await client.set(key, "no stream")
        with pytest.raises(BusUnavailableError):
            await bus.publish("a", b"x", once="name")
        await client.delete(key)

        async def published() -> bool:
            await bus.publish("a", b"x", once="name")
            return await client.xlen(key) == 1

        await until(published)


async def test_a_requester_whose_stream_is_none(redis_url: str, channel_prefix: str) -> None:
    """To publish there reaches nobody, which is no error of the bus, and says so; afterwards it is a stream again."""
    own = f"{Topics.CONTEXT_BUILD_RESPONSE}.r"
    async with open_redis(redis_url) as client:
        bus = streams_bus(client, channel_prefix)
        await client.set(f"{channel_prefix}{own}", "no stream")
        with capture_logs() as log:
            assert await bus.publish(own, b"x") == 0
            assert await bus.publish(own, b"x", once="name") == 0
        assert [(line["event"], line["topic"]) for line in log] == [("reply_stream_unusable", own)] * 2
        await client.delete(f"{channel_prefix}{own}")

        async def published() -> bool:
            await bus.publish(own, b"x", once="name")
            return await client.xlen(f"{channel_prefix}{own}") == 1

        await until(published)


async def test_answers_to_one_requester_expire(redis_url: str, channel_prefix: str) -> None:
    """The stream of one requester's answers or of a check ends by itself; that of everybody's answers does not."""
    async with open_redis(redis_url) as client:
        bus = RedisStreamsBus(client, prefix=channel_prefix, keep_ms=LONG_MS)
        own = f"{Topics.CONTEXT_BUILD_RESPONSE}.r"
        check = "nexus.doctor.1"
        for topic in (own, check, Topics.CONTEXT_BUILD_RESPONSE):
            await bus.publish(topic, b"x")
        for topic in (own, check):
            assert 0 < await client.pttl(f"{channel_prefix}{topic}") <= LONG_MS
        assert await client.pttl(f"{channel_prefix}{Topics.CONTEXT_BUILD_RESPONSE}") == -1


async def test_news(redis_url: str, channel_prefix: str) -> None:
    """Everybody hears the news, from when they came on, besides sharing the work; to the millisecond in order."""
    async with open_redis(redis_url) as client:
        one, other = streams_bus(client, channel_prefix), streams_bus(client, channel_prefix)
        await enqueue(client, f"{channel_prefix}n", [b"old"])
        async with one.consume(WORK, ["n", "m"]) as of_one, other.consume(WORK, ["n", "m"]) as of_other:
            for number in range(30):
                await enqueue(client, f"{channel_prefix}{'nm'[number % 2]}", [b"%d" % number])
                await until(has_passed(client, await now_ms(client), 1))
            for subscription in (of_one, of_other):
                heard = await take(subscription, 30)
                assert payloads(heard) == numbered(30)
                assert not any(delivery.shared for delivery in heard)
