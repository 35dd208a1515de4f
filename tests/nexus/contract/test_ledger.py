"""The promises of `nexus.core.ports.RequestLedger`, on every adapter."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.ledger import RedisLedger
from nexus.adapters.redis.scripts import GROUP
from nexus.core.errors import BusUnavailableError
from nexus.core.models import ANSWER_TOPICS, Topics
from nexus.core.ports import Acquired, Announced, Answered, Busy, Claim, Delivery, RequestLedger
from tests.nexus.contract.ledgers import (
    REPLY_KEEP_MS,
    Desk,
    OpenDesk,
    pubsub_desk,
    streams_desk,
)
from tests.nexus.support.waiting import PATIENCE_S, until

LEASE_MS = 60_000
LONG_MS = 3_600_000
KNOWN_MS = 600_000
# What a slow machine may need for a few steps.
SLACK_MS = 10_000
TOPIC = "answers"
REPLY_TOPIC = f"{Topics.CONTEXT_BUILD_RESPONSE}.me"


@pytest.fixture
def open_streams(redis_url: str, channel_prefix: str) -> OpenDesk:
    """How to open the ledger on streams."""
    return partial(streams_desk, redis_url, channel_prefix)


async def acquire(ledger: RequestLedger, key: str = "k", lease_ms: int = LEASE_MS) -> Acquired:
    """The claim on a request that is free."""
    claim = await ledger.claim(key, "f", lease_ms)
    assert isinstance(claim, Acquired)
    return claim


async def announced(desk: Desk, *operations: Callable[[], Awaitable[object]]) -> list[bytes]:
    """What is published on `TOPIC` while the operations are done, one after another."""
    heard: list[bytes] = []
    async with desk.bus.subscribe(TOPIC) as subscription:
        for operation in operations:
            await operation()
        await desk.bus.publish(TOPIC, b"the end")
        with anyio.fail_after(PATIENCE_S):
            async for delivery in subscription:
                if delivery.payload == b"the end":
                    break
                heard.append(delivery.payload)
    return heard


class TestLeases:
    """Who may answer a request."""

    async def test_one_of_a_hundred_acquires(self, open_desk: OpenDesk) -> None:
        """However many ask at once, one is to answer and the others know that somebody does."""
        claims: list[Claim] = []
        async with open_desk() as desk:

            async def claim() -> None:
                claims.append(await desk.ledger.claim("k", "f", LEASE_MS))

            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(claim)
        assert Counter(type(claim) for claim in claims) == {Acquired: 1, Busy: 99}

    async def test_keys_are_separate(self, open_desk: OpenDesk) -> None:
        """Another key is another request, whatever it is called."""
        async with open_desk() as desk:
            keys = ["", "a", "a:b", "k\r\n", "ключ", "k" * 600]
            claims = [await desk.ledger.claim(key, "f", LEASE_MS) for key in keys]
        assert [claim.key for claim in claims if isinstance(claim, Acquired)] == keys
        assert len({claim.token for claim in claims if isinstance(claim, Acquired)}) == len(keys)

    async def test_a_claim_tells_the_time(self, open_desk: OpenDesk) -> None:
        """The ledger's clock, on this machine, is this machine's."""
        async with open_desk() as desk:
            before = time.time_ns() // 1_000_000
            claim = await acquire(desk.ledger)
            after = time.time_ns() // 1_000_000
        # One counts from its start, and the other may be put right meanwhile.
        assert before - 1_000 <= claim.now_ms <= after + 1_000

    async def test_a_real_lease_runs_out_by_itself(self, open_desk: OpenDesk) -> None:
        """Without anybody shifting time, where the time is real."""
        async with open_desk() as desk:
            await acquire(desk.ledger, lease_ms=50)

            async def free() -> bool:
                if desk.redis is None:
                    await desk.advance(10)
                return isinstance(await desk.ledger.claim("k", "f", LEASE_MS), Acquired)

            await until(free)


class TestAttempts:
    """How often a request has been taken up without an answer coming of it."""

    async def test_since_when_it_is_asked(self, open_desk: OpenDesk) -> None:
        """Since the first arrival, through takeovers and after it was given back, by the ledger's clock."""
        async with open_desk() as desk:
            first = await desk.ledger.claim("k", "f", LEASE_MS, 30)
            assert isinstance(first, Acquired)
            assert first.asked_ms == first.now_ms - 30
            await desk.ledger.release(first)
            second = await desk.ledger.claim("k", "f", LEASE_MS)
            assert isinstance(second, Acquired)
            await desk.advance(LEASE_MS + SLACK_MS)
            third = await desk.ledger.claim("k", "f", LEASE_MS)
            assert isinstance(third, Acquired)
            assert first.asked_ms == second.asked_ms == third.asked_ms


class TestConclude:
    """A key has one effective answer."""

    async def test_how_many_heard(self, open_desk: OpenDesk) -> None:
        """Nobody is 0, which is no None; on streams it cannot be known."""
        async with open_desk() as desk:
            keeps = await desk.bus.publish(TOPIC, b"to nobody") == 1
            assert await desk.ledger.conclude(await acquire(desk.ledger, "a"), TOPIC, b"1", LONG_MS) == int(keeps)
            async with desk.bus.subscribe(TOPIC), desk.bus.subscribe(TOPIC):
                heard = await desk.ledger.conclude(await acquire(desk.ledger, "b"), TOPIC, b"2", LONG_MS)
            assert heard == (1 if keeps else 2)

    async def test_a_kept_answer_is_told_again_at_most_once_a_second(self, open_desk: OpenDesk) -> None:
        """Of many who ask at once for an answer that was just given, none repeats it; after a second, one does."""
        async with open_desk() as desk:
            claim = await acquire(desk.ledger)
            await desk.ledger.conclude(claim, TOPIC, b"answer", LONG_MS)
            claims: list[Claim] = []

            async def claim_again() -> None:
                claims.append(await desk.ledger.claim("k", "f", LEASE_MS))

            async def told() -> Answered | None:
                claims.clear()
                async with anyio.create_task_group() as tasks:
                    for _ in range(20):
                        tasks.start_soon(claim_again)
                return next((claim for claim in claims if isinstance(claim, Answered)), None)

            # So that a slow machine has time.
            await desk.advance(-SLACK_MS)
            await claim_again()
            assert claims == [Announced()]
            await desk.advance(SLACK_MS + 1_000)
            assert await told() == Answered(TOPIC, b"answer")
            assert Counter(type(claim) for claim in claims) == {Answered: 1, Announced: 19}

    @pytest.mark.parametrize(("waited_ms", "said"), [(0, True), (15_000, True), (40_000, False)])
    async def test_what_waited_here_is_not_told_again(self, open_desk: OpenDesk, waited_ms: int, said: bool) -> None:
        """A request that arrived before its answer was announced, or within a second after, needs no other."""
        async with open_desk() as desk:
            await desk.ledger.conclude(await acquire(desk.ledger), TOPIC, b"answer", LONG_MS)
            await desk.advance(30_000)
            claim = await desk.ledger.claim("k", "f", LEASE_MS, waited_ms)
        assert claim == (Answered(TOPIC, b"answer") if said else Announced())


class TestStreams:
    """Where the bus keeps messages, an answer, its announcement and the end of its request are one step."""

    async def test_the_entry_is_acknowledged(self, open_streams: OpenDesk) -> None:
        """By the finish that counts, and the bus is told of it."""
        async with open_streams() as desk:
            delivery = await _handed_out(desk)
            claim = await acquire(desk.ledger)
            for _ in range(2):
                assert await desk.ledger.conclude(claim, TOPIC, b"answer", LONG_MS, delivery) == 1
                assert await _pending(desk) == 0
            assert await _entries(desk) == [{b"message": b"answer"}]
            assert {*desk.acknowledged} == {delivery}

    async def test_a_late_answer_acknowledges_nothing(self, open_streams: OpenDesk) -> None:
        """Its entry is somebody's charge until that one lets go of it."""
        async with open_streams() as desk:
            late = await acquire(desk.ledger)
            await desk.advance(LEASE_MS)
            await desk.ledger.conclude(await acquire(desk.ledger), TOPIC, b"answer", LONG_MS)
            delivery = await _handed_out(desk)
            assert await desk.ledger.conclude(late, TOPIC, b"late", LONG_MS, delivery) is None
            assert (await _pending(desk), desk.acknowledged) == (1, [])
            assert await desk.server.xlen(desk.prefix + TOPIC) == 1

    async def test_a_group_that_vanished(self, open_streams: OpenDesk) -> None:
        """After a FLUSHALL in the middle of a build the answer is published all the same."""
        async with open_streams() as desk:
            delivery = await _handed_out(desk)
            claim = await acquire(desk.ledger)
            await desk.server.delete(desk.prefix + delivery.topic)
            await desk.forget()
            assert await desk.ledger.conclude(claim, TOPIC, b"answer", LONG_MS, delivery) == 1
            assert await desk.server.xlen(desk.prefix + TOPIC) == 1

    @pytest.mark.parametrize("common", ANSWER_TOPICS.values())
    async def test_streams_of_one_requester_expire(self, open_streams: OpenDesk, common: str) -> None:
        """A time after their last answer; the common one never does."""
        async with open_streams() as desk:
            for key, topic in (("a", f"{common}.me"), ("b", common)):
                await desk.ledger.conclude(await acquire(desk.ledger, key), topic, b"answer", LONG_MS)
            assert 0 < await desk.server.pttl(f"{desk.prefix}{common}.me") <= REPLY_KEEP_MS
            assert await desk.server.pttl(desk.prefix + common) == -1

    async def test_a_requester_whose_stream_is_none(self, open_streams: OpenDesk) -> None:
        """It hears nothing, by its own doing: the request is answered and done all the same."""
        async with open_streams() as desk:
            delivery = await _handed_out(desk)
            await desk.server.set(desk.prefix + REPLY_TOPIC, "no stream")
            claim = await acquire(desk.ledger)
            assert await desk.ledger.conclude(claim, REPLY_TOPIC, b"answer", LONG_MS, delivery) == 0
            assert (await _pending(desk), desk.acknowledged) == (0, [delivery])
            await desk.advance(2_000)
            assert await desk.ledger.claim("k", "f", LEASE_MS) == Answered(REPLY_TOPIC, b"answer")


async def _handed_out(desk: Desk) -> Delivery:
    """A request on its stream that this process has charge of."""
    key = desk.prefix + Topics.CONTEXT_BUILD_REQUEST
    await desk.server.xgroup_create(key, GROUP, id="0", mkstream=True)
    entry: Any = await desk.server.xadd(key, {"message": b"request"})
    await desk.server.xreadgroup(GROUP, "me", {key: ">"})
    assert await _pending(desk) == 1
    return Delivery(Topics.CONTEXT_BUILD_REQUEST, b"request", entry.decode(), shared=True)


async def _entries(desk: Desk) -> list[dict[bytes, bytes]]:
    found: Any = await desk.server.xrange(desk.prefix + TOPIC)
    return [fields for _, fields in found]


async def _pending(desk: Desk) -> int:
    return int((await desk.server.xpending(desk.prefix + Topics.CONTEXT_BUILD_REQUEST, GROUP))["pending"])


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


@pytest.mark.parametrize("place", [0, 4, 11], ids=["mark", "checksum", "value"])
async def test_a_kept_value_that_was_spoilt(redis_url: str, channel_prefix: str, place: int) -> None:
    """It is never taken for what was kept."""
    async with pubsub_desk(redis_url, channel_prefix, partial(RedisLedger, repeated_s=0.1)) as desk:
        await desk.ledger.keep_first("k", b'["s", null]', LONG_MS)
        assert await desk.ledger.kept("k") == b'["s", null]'
        name = f"{desk.prefix}nexus:kept:k"
        kept: Any = await desk.server.get(name)
        spoilt = bytearray(kept)
        spoilt[place] ^= 1
        await desk.server.set(name, bytes(spoilt))
        with pytest.raises(BusUnavailableError):
            await desk.ledger.kept("k")


async def test_a_kept_value_expires(open_desk: OpenDesk) -> None:
    """After its time a value is gone, and the next one is kept."""
    async with open_desk() as desk:
        await desk.ledger.keep_first("k", b"1", 1)

        async def gone() -> bool:
            if desk.redis is None:
                await desk.advance(10)
            return await desk.ledger.kept("k") is None

        await until(gone)
        assert await desk.ledger.keep_first("k", b"2", LONG_MS) == b"2"


async def test_a_redis_that_is_not_there(unused_port: int) -> None:
    """An operation that failed to the end says that the bus is unavailable."""
    async with open_redis(f"redis://127.0.0.1:{unused_port}/0") as client:
        with pytest.raises(BusUnavailableError):
            await RedisLedger(client, repeated_s=0.1).claim("k", "f", LONG_MS)
