"""The promises of `nexus.core.ports.RequestLedger`, on every adapter."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest

from nexus.adapters.memory_bus import MemoryBus, MemoryLedger
from nexus.adapters.redis_client import open_redis
from nexus.adapters.redis_ledger import RedisLedger
from nexus.adapters.redis_pubsub import RedisPubSubBus
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Acquired, Answered, Bus, Busy, Claim, Conflict, RequestLedger
from tests.nexus.support.waiting import take_all, until

LONG_MS = 60_000
SHORT_MS = 100
TOPIC = "answers"


@dataclass(frozen=True)
class Desk:
    """A ledger, and the bus that it announces answers on."""

    ledger: RequestLedger
    bus: Bus


OpenDesk = Callable[[], AbstractAsyncContextManager[Desk]]


@asynccontextmanager
async def memory_desk() -> AsyncIterator[Desk]:
    """The ledger within one process."""
    bus = MemoryBus()
    yield Desk(MemoryLedger(bus), bus)


@pytest.fixture(params=["memory", "redis"])
def open_desk(request: pytest.FixtureRequest) -> OpenDesk:
    """How to open the ledger that is tested."""
    if request.param == "memory":
        return memory_desk
    url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("channel_prefix")

    @asynccontextmanager
    async def redis_desk() -> AsyncIterator[Desk]:
        async with open_redis(url) as client:
            yield Desk(RedisLedger(client, prefix=prefix), RedisPubSubBus(client, prefix=prefix))

    return redis_desk


async def acquire(ledger: RequestLedger, key: str = "k", lease_ms: int = LONG_MS) -> Acquired:
    """The claim on a request that is free, or about to be."""

    async def acquired() -> Acquired | None:
        claim = await ledger.begin(key, "f", lease_ms)
        return claim if isinstance(claim, Acquired) else None

    return await until(acquired)


async def announced(desk: Desk, *operations: Callable[[], Awaitable[object]]) -> list[bytes]:
    """What is published on `TOPIC` while the operations are done, one after another."""
    async with desk.bus.subscribe(TOPIC) as subscription:
        for operation in operations:
            await operation()
        await subscription.stop()
        return [delivery.payload for delivery in await take_all(subscription)]


async def test_one_of_a_hundred_acquires(open_desk: OpenDesk) -> None:
    """However many ask at once, one is to answer and the others know that somebody does."""
    claims: list[Claim] = []
    async with open_desk() as desk:

        async def begin() -> None:
            claims.append(await desk.ledger.begin("k", "f", LONG_MS))

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(begin)
    assert Counter(type(claim) for claim in claims) == {Acquired: 1, Busy: 99}


async def test_keys_are_separate(open_desk: OpenDesk) -> None:
    """Another key is another request, whatever it is called."""
    async with open_desk() as desk:
        keys = ["", "a", "a:b", "k\r\n", "ключ", "k" * 600]
        claims = [await desk.ledger.begin(key, "f", LONG_MS) for key in keys]
    assert [claim.key for claim in claims if isinstance(claim, Acquired)] == keys
    assert len({claim.token for claim in claims if isinstance(claim, Acquired)}) == len(keys)


async def test_a_claim_tells_the_time(open_desk: OpenDesk) -> None:
    """The ledger's clock, on this machine, is this machine's."""
    async with open_desk() as desk:
        before = time.time_ns() // 1_000_000
        claim = await acquire(desk.ledger)
        after = time.time_ns() // 1_000_000
    assert before - 1 <= claim.now_ms <= after + 1


async def test_a_lease_runs_out(open_desk: OpenDesk) -> None:
    """When the one who took a request does not come back, another gets it, and the first no longer holds it."""
    async with open_desk() as desk:
        first = await acquire(desk.ledger, lease_ms=SHORT_MS)
        second = await acquire(desk.ledger)
        assert second.token != first.token
        assert not await desk.ledger.renew(first, LONG_MS)
        assert await desk.ledger.renew(second, LONG_MS)


async def test_a_renewed_lease_holds(open_desk: OpenDesk) -> None:
    """A lease renewed for long outlives what it was begun with."""
    async with open_desk() as desk:
        claim = await acquire(desk.ledger, lease_ms=SHORT_MS)
        assert await desk.ledger.renew(claim, LONG_MS)
        # Begun later and as short: when this one is over, the first would be.
        await acquire(desk.ledger, "other", SHORT_MS)
        await acquire(desk.ledger, "other")
        assert await desk.ledger.begin("k", "f", LONG_MS) == Busy()


async def test_a_lease_that_ran_out_is_not_renewed(open_desk: OpenDesk) -> None:
    """A request that nobody holds is not the caller's any more."""
    async with open_desk() as desk:
        claim = await acquire(desk.ledger, lease_ms=SHORT_MS)

        async def lost() -> bool:
            return not await desk.ledger.renew(claim, 1)

        await until(lost)
        assert isinstance(await desk.ledger.begin("k", "f", LONG_MS), Acquired)


async def test_release_gives_the_request_back(open_desk: OpenDesk) -> None:
    """A released request is free at once; releasing again, or late, takes it from nobody."""
    async with open_desk() as desk:
        first = await acquire(desk.ledger)
        await desk.ledger.release(first)
        second = await desk.ledger.begin("k", "f", LONG_MS)
        assert isinstance(second, Acquired)
        await desk.ledger.release(first)
        assert await desk.ledger.begin("k", "f", LONG_MS) == Busy()


async def test_finish_announces_the_answer_once(open_desk: OpenDesk) -> None:
    """An answer is published when it is kept; finishing again with the same claim says yes and does nothing."""
    async with open_desk() as desk:
        claim = await acquire(desk.ledger)
        results = []

        async def finish() -> None:
            results.append(await desk.ledger.finish(claim, TOPIC, b"\xff\x00answer", LONG_MS))

        assert await announced(desk, finish, finish, finish) == [b"\xff\x00answer"]
    assert results == [True, True, True]


async def test_an_answered_request_is_not_renewed_or_released(open_desk: OpenDesk) -> None:
    """The answer stays as it is, whatever its author does with the claim."""
    async with open_desk() as desk:
        claim = await acquire(desk.ledger)
        await desk.ledger.finish(claim, TOPIC, b"answer", LONG_MS)
        assert not await desk.ledger.renew(claim, 1)
        await desk.ledger.release(claim)
        assert not isinstance(await desk.ledger.begin("k", "f", LONG_MS), Acquired)


async def test_a_late_answer_is_discarded(open_desk: OpenDesk) -> None:
    """Who lost the request and finishes after the one who got it publishes nothing."""
    async with open_desk() as desk:
        late = await acquire(desk.ledger, lease_ms=SHORT_MS)
        claim = await acquire(desk.ledger)
        assert await desk.ledger.finish(claim, TOPIC, b"answer", LONG_MS)
        results = []

        async def finish() -> None:
            results.append(await desk.ledger.finish(late, TOPIC, b"late", LONG_MS))

        assert await announced(desk, finish) == []
    assert results == [False]


async def test_the_first_answer_wins(open_desk: OpenDesk) -> None:
    """When the one who lost the request is first nevertheless, the one who got it publishes nothing."""
    async with open_desk() as desk:
        slow = await acquire(desk.ledger, lease_ms=SHORT_MS)
        claim = await acquire(desk.ledger)
        assert await desk.ledger.finish(slow, TOPIC, b"first", LONG_MS)
        assert not await desk.ledger.finish(claim, TOPIC, b"second", LONG_MS)


async def test_a_lease_that_ran_out_can_be_finished(open_desk: OpenDesk) -> None:
    """An answer that comes after its lease is good as long as nobody else has taken the request."""
    async with open_desk() as desk:
        claim = await acquire(desk.ledger, lease_ms=SHORT_MS)

        async def lost() -> bool:
            return not await desk.ledger.renew(claim, 1)

        await until(lost)
        assert await desk.ledger.finish(claim, TOPIC, b"answer", LONG_MS)


async def test_a_kept_answer_is_told_again_at_most_once_a_second(open_desk: OpenDesk) -> None:
    """Of many who ask at once for an answer that was just given, none repeats it; after a second, one does."""
    async with open_desk() as desk:
        claim = await acquire(desk.ledger)
        await desk.ledger.finish(claim, TOPIC, b"answer", LONG_MS)
        claims: list[Claim] = []

        async def begin() -> None:
            claims.append(await desk.ledger.begin("k", "f", LONG_MS))

        async def told() -> Answered | None:
            claims.clear()
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(begin)
            return next((claim for claim in claims if isinstance(claim, Answered)), None)

        await begin()
        assert claims == [Busy()]
        assert await until(told) == Answered(TOPIC, b"answer")
        assert Counter(type(claim) for claim in claims) == {Answered: 1, Busy: 19}


async def test_an_answer_expires(open_desk: OpenDesk) -> None:
    """After the time for which its answer was kept, a request is a new one."""
    async with open_desk() as desk:
        claim = await acquire(desk.ledger)
        await desk.ledger.finish(claim, TOPIC, b"answer", SHORT_MS)
        again = await acquire(desk.ledger)
        assert again.token != claim.token


async def test_another_payload_is_a_conflict(open_desk: OpenDesk) -> None:
    """A key that belongs to another payload is refused while it is built and after it is answered."""
    async with open_desk() as desk:
        claim = await acquire(desk.ledger)
        assert await desk.ledger.begin("k", "another", LONG_MS) == Conflict()
        await desk.ledger.finish(claim, TOPIC, b"answer", LONG_MS)
        assert await desk.ledger.begin("k", "another", LONG_MS) == Conflict()


async def test_a_lost_request_that_became_another_is_not_answered(open_desk: OpenDesk) -> None:
    """Who lost a request whose key now belongs to another payload cannot answer it."""
    async with open_desk() as desk:
        late = await acquire(desk.ledger, lease_ms=SHORT_MS)

        async def taken() -> bool:
            return isinstance(await desk.ledger.begin("k", "another", LONG_MS), Acquired)

        await until(taken)
        assert not await desk.ledger.finish(late, TOPIC, b"late", LONG_MS)


async def test_the_first_value_is_kept(open_desk: OpenDesk) -> None:
    """Of any number of values offered at once one is kept, and everybody learns which."""
    answers: list[bytes] = []
    async with open_desk() as desk:
        assert await desk.ledger.kept("k") is None

        async def keep(value: bytes) -> None:
            answers.append(await desk.ledger.keep_first("k", value, LONG_MS))

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(keep, b"\xff%d" % number)
        assert {*answers} == {await desk.ledger.kept("k")}
        assert await desk.ledger.kept("other") is None


async def test_an_empty_value_is_a_value(open_desk: OpenDesk) -> None:
    """Nothing is not the same as an empty value."""
    async with open_desk() as desk:
        assert await desk.ledger.keep_first("k", b"", LONG_MS) == b""
        assert await desk.ledger.keep_first("k", b"later", LONG_MS) == b""
        assert await desk.ledger.kept("k") == b""


async def test_a_kept_value_expires(open_desk: OpenDesk) -> None:
    """After its time a value is gone, and the next one is kept."""
    async with open_desk() as desk:
        await desk.ledger.keep_first("k", b"1", SHORT_MS)

        async def gone() -> bool:
            return await desk.ledger.kept("k") is None

        await until(gone)
        assert await desk.ledger.keep_first("k", b"2", LONG_MS) == b"2"


async def test_values_and_requests_do_not_meet(open_desk: OpenDesk) -> None:
    """A value and a request may have the same key."""
    async with open_desk() as desk:
        await desk.ledger.keep_first("k", b"v", LONG_MS)
        assert isinstance(await desk.ledger.begin("k", "f", LONG_MS), Acquired)
        assert await desk.ledger.kept("k") == b"v"


async def test_a_redis_that_is_not_there(unused_port: int) -> None:
    """An operation that failed to the end says that the bus is unavailable."""
    async with open_redis(f"redis://127.0.0.1:{unused_port}/0") as client:
        with pytest.raises(BusUnavailableError):
            await RedisLedger(client, repeated_s=0.1).begin("k", "f", LONG_MS)
