"""The promises of `nexus.core.ports.DeadLetters`, on every adapter."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from nexus.adapters.in_memory import MemoryDeadLetters
from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.dead_letters import RedisDeadLetters
from nexus.adapters.redis.ledger import RedisLedger
from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Acquired, Answered, DeadLetter, DeadLetters

MOST = 5
LONG_MS = 60_000


@dataclass(frozen=True)
class Office:
    """Where dead letters are kept, and a way to see whether a request is known."""

    letters: RedisDeadLetters | MemoryDeadLetters
    answer: Callable[[str], Awaitable[None]]
    answered: Callable[[str], Awaitable[bool]]


OpenOffice = Callable[[], AbstractAsyncContextManager[Office]]


@asynccontextmanager
async def memory_office() -> AsyncIterator[Office]:
    """Dead letters within one process."""
    known: set[str] = set()

    async def answer(key: str) -> None:
        known.add(key)

    async def answered(key: str) -> bool:
        return key in known

    yield Office(MemoryDeadLetters(most=MOST, forget=known.discard), answer, answered)


@asynccontextmanager
async def redis_office(url: str, prefix: str) -> AsyncIterator[Office]:
    """Dead letters on Redis."""
    async with open_redis(url) as client:
        ledger = RedisLedger(client, prefix=prefix)

        async def answer(key: str) -> None:
            claim = await ledger.claim(key, "f", LONG_MS)
            assert isinstance(claim, Acquired)
            await ledger.conclude(claim, "answers", b"answer", LONG_MS)
            await client.hset(f"{prefix}nexus:request:{key}", "said_ms", "0")
            await client.set(f"{prefix}nexus:enqueued:{key}", "1")

        async def answered(key: str) -> bool:
            enqueued = await client.exists(f"{prefix}nexus:enqueued:{key}")
            claim = await ledger.claim(key, "f", LONG_MS)
            assert isinstance(claim, Answered) == bool(enqueued)
            return bool(enqueued)

        yield Office(RedisDeadLetters(client, prefix=prefix, most=MOST), answer, answered)


@pytest.fixture(params=["memory", "redis"])
def open_office(request: pytest.FixtureRequest) -> OpenOffice:
    """How to open the dead letters that are tested; five are kept."""
    if request.param == "memory":
        return memory_office
    url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("channel_prefix")
    return lambda: redis_office(url, prefix)


def letter(body: bytes, reason: str = "not JSON", *, keep: bool = True, **more: Any) -> DeadLetter:
    """A dead letter with this body."""
    sha256 = hashlib.sha256(body).hexdigest()
    return DeadLetter("context.build.request", reason, sha256, len(body), body=body if keep else None, **more)


async def everything(letters: DeadLetters) -> list[DeadLetter]:
    """What is kept, oldest first, as it was before it became a letter."""
    return [replace(found, letter_id="", at_ms=0) for found in reversed(await letters.newest(100))]


async def test_a_letter_comes_back_as_it_was(open_office: OpenOffice) -> None:
    """Every field is kept, with an id and the time; what is not known stays unknown."""
    whole = letter(b"\xff\x00", "five times without an answer", deliveries=5, message_id="msg_1")
    bare = letter(b"", "", keep=False)
    async with open_office() as office:
        await office.letters.keep(whole)
        await office.letters.keep(bare)
        assert await everything(office.letters) == [whole, bare]
        assert await office.letters.count() == 2
        newest, oldest = await office.letters.newest(2)
        assert newest.at_ms >= oldest.at_ms > 1_700_000_000_000
        assert newest.letter_id != oldest.letter_id


async def test_the_same_letter_is_kept_once(open_office: OpenOffice) -> None:
    """The same bytes for the same reason, from all replicas at once, are one letter; for another reason another."""
    async with open_office() as office:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(office.letters.keep, letter(b"\xff"))
        await office.letters.keep(letter(b"\xff", "too deep", keep=False))
        assert await everything(office.letters) == [letter(b"\xff"), letter(b"\xff", "too deep", keep=False)]


async def test_letters_are_capped(open_office: OpenOffice) -> None:
    """The newest letters are kept, as many as the settings say."""
    async with open_office() as office:
        letters = [letter(b"%d" % number) for number in range(200)]
        for item in letters:
            await office.letters.keep(item)
        assert await everything(office.letters) == letters[-MOST:]
        assert await office.letters.count() == MOST


async def test_old_letters_are_dropped(open_office: OpenOffice) -> None:
    """Those that were kept before a moment, all of them and no other."""
    async with open_office() as office:
        for number in range(3):
            await office.letters.keep(letter(b"%d" % number))
            await anyio.sleep(0.002)  # for a time of its own
        newest = (await office.letters.newest(1))[0]
        middle = datetime.fromtimestamp(newest.at_ms / 1_000, UTC)
        assert await office.letters.drop_before(middle) == 2
        assert await everything(office.letters) == [letter(b"2")]
        assert await office.letters.drop_before(middle) == 0


async def test_many_old_letters_are_dropped(redis_url: str, channel_prefix: str) -> None:
    """However many nodes of the stream they fill."""
    async with open_redis(redis_url) as client:
        stream = f"{channel_prefix}nexus:dead-letters"
        pipeline = client.pipeline()
        for number in range(1, 1_051):
            pipeline.xadd(stream, {"reason": "x"}, id=f"{number}-0")
        await pipeline.execute()
        letters = RedisDeadLetters(client, prefix=channel_prefix, most=10_000)
        assert await letters.drop_before(datetime.fromtimestamp(1.05, UTC)) == 1_049
        assert [found.letter_id for found in await letters.newest(5)] == ["1050-0"]


async def test_pages(open_office: OpenOffice) -> None:
    """Letters are read newest first, page after page, also when the letter that ended a page has gone."""
    async with open_office() as office:
        for number in range(5):
            await office.letters.keep(letter(b"%d" % number))
        first = await office.letters.newest(2)
        assert [found.body for found in first] == [b"4", b"3"]
        assert await office.letters.drop(first[-1].letter_id)
        second = await office.letters.newest(2, before=first[-1].letter_id)
        assert [found.body for found in second] == [b"2", b"1"]
        third = await office.letters.newest(2, before=second[-1].letter_id)
        assert [found.body for found in third] == [b"0"]
        assert await office.letters.newest(2, before=third[-1].letter_id) == []
        assert await office.letters.newest(0) == []


async def test_a_letter_is_found_and_dropped_by_its_id(open_office: OpenOffice) -> None:
    """One letter is found, dropped once, and not found afterwards; the others stay."""
    async with open_office() as office:
        for number in range(3):
            await office.letters.keep(letter(b"%d" % number))
        middle = (await office.letters.newest(3))[1]
        assert await office.letters.find(middle.letter_id) == middle
        assert await office.letters.drop(middle.letter_id)
        assert not await office.letters.drop(middle.letter_id)
        assert await office.letters.find(middle.letter_id) is None
        assert [found.body for found in await office.letters.newest(3)] == [b"2", b"0"]


@pytest.mark.parametrize(
    "nonsense",
    ["x", "-", "+", "1", "1-", "-1", "1-2-3", "1-x", "$", "(1-1", "²-²", "0-0", "00-000", "9" * 20 + "-1", "1-1 "],
)
async def test_ids_that_nothing_has(open_office: OpenOffice, nonsense: str) -> None:
    """An id that no letter can have is not found, and nothing stands before it."""
    async with open_office() as office:
        await office.letters.keep(letter(b"x"))
        assert await office.letters.find(nonsense) is None
        assert not await office.letters.drop(nonsense)
        assert await office.letters.newest(3, before=nonsense) == []
        assert await office.letters.count() == 1


@pytest.mark.parametrize("dropped", [True, False])
async def test_what_is_sent_again_may_fail_again(open_office: OpenOffice, dropped: bool) -> None:
    """After a letter was dropped, or is expected again, the same bytes become a letter within the minute."""
    async with open_office() as office:
        await office.letters.keep(letter(b"x"))
        (found,) = await office.letters.newest(1)
        await (office.letters.drop(found.letter_id) if dropped else office.letters.expect_again(found))
        await office.letters.keep(letter(b"x"))
        assert await everything(office.letters) == [letter(b"x")] * (1 if dropped else 2)


async def test_an_answer_is_forgotten(open_office: OpenOffice) -> None:
    """The request can be asked and answered anew, and no other can."""
    async with open_office() as office:
        await office.answer("k")
        await office.answer("other")
        await office.letters.forget_answer("k")
        await office.letters.forget_answer("never heard of")
        assert not await office.answered("k")
        assert await office.answered("other")


async def test_text_that_is_no_text(open_office: OpenOffice) -> None:
    """A reason or an id that cannot be encoded does not keep a letter from being kept."""
    async with open_office() as office:
        await office.letters.keep(letter(b"x", "lone \ud800", message_id="\udfff"))
        assert await office.letters.count() == 1
        assert (await office.letters.newest(1))[0].body == b"x"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({b"hello": b"there"}, DeadLetter("", "", "", 0)),
        ({b"topic": b"\xff", b"reason": b"r\xc3"}, DeadLetter("\ufffd", "r\ufffd", "", 0)),
        ({b"size": b"many", b"deliveries": b"-3", b"body": b"abc"}, DeadLetter("", "", "", 3, body=b"abc")),
        ({b"size": b"9" * 5_000, b"deliveries": b"7"}, DeadLetter("", "", "", 0, 7)),
        ({b"topic": b"t", b"reason": b"r", b"sha256": b"h", b"size": b"4"}, DeadLetter("t", "r", "h", 4)),
    ],
)
async def test_foreign_entries(
    redis_url: str, channel_prefix: str, fields: dict[Any, Any], expected: DeadLetter
) -> None:
    """An entry that something else put into the stream is read as far as it goes, and can be dropped."""
    async with open_redis(redis_url) as client:
        letters = RedisDeadLetters(client, prefix=channel_prefix)
        await client.xadd(f"{channel_prefix}nexus:dead-letters", fields)
        assert await everything(letters) == [expected]
        (found,) = await letters.newest(1)
        assert await letters.drop(found.letter_id)


async def test_the_fields_of_an_entry(redis_url: str, channel_prefix: str) -> None:
    """Other programs read the stream: fields are named as the contract says, and left out when there is nothing."""
    async with Redis.from_url(redis_url) as redis, open_redis(redis_url) as client:
        letters = RedisDeadLetters(client, prefix=channel_prefix)
        await letters.keep(letter(b"x", message_id="m"))
        await letters.keep(letter(b"y", keep=False))
        entries: Any = await redis.xrange(f"{channel_prefix}nexus:dead-letters")
    common = {b"topic", b"reason", b"deliveries", b"sha256", b"size"}
    assert [set(fields) for _, fields in entries] == [common | {b"message_id", b"body"}, common]


async def test_a_letter_that_was_not_kept_is_not_taken_for_one_that_was(redis_url: str, channel_prefix: str) -> None:
    """While the key is no stream keeping a letter fails, each time; once it is one, the same letter is kept."""
    async with open_redis(redis_url) as client:
        letters = RedisDeadLetters(client, prefix=channel_prefix, repeated_s=0.1)
        await client.set(f"{channel_prefix}nexus:dead-letters", "no stream")
        for _ in range(2):
            with pytest.raises(BusUnavailableError):
                await letters.keep(letter(b"x"))
        await client.delete(f"{channel_prefix}nexus:dead-letters")
        await letters.keep(letter(b"x"))
        assert await everything(letters) == [letter(b"x")]


async def test_a_redis_that_is_not_there(unused_port: int) -> None:
    """An operation that failed to the end says that the bus is unavailable."""
    async with open_redis(f"redis://127.0.0.1:{unused_port}/0") as client:
        letters = RedisDeadLetters(client, repeated_s=0.1)
        for operation in (letters.count(), letters.newest(1), letters.drop("1-1"), letters.forget_answer("k")):
            with pytest.raises(BusUnavailableError):
                await operation
