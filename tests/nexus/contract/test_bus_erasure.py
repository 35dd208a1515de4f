"""The promises of `nexus.core.ports.BusErasure`, on every adapter."""

from collections import Counter
from typing import Any

import pytest

from nexus.adapters.in_memory import MemoryLedger
from nexus.adapters.redis.erasure import RedisErasure
from nexus.adapters.redis.scripts import GROUP
from nexus.core.erasure import owner_mark
from nexus.core.errors import BusUnavailableError
from nexus.core.models import Message, Role
from nexus.core.ports import Acquired, BusErasure
from nexus.core.wire import encode
from tests.nexus.contract.ledgers import Desk, OpenDesk

LONG_MS = 60_000
NAMES = ["ada", "ada:1", 'a"d\\a', "ädä\u2028文", "{ada}", "$ne", "*", "x" * 200]


def erasing(desk: Desk) -> BusErasure:
    """What erases at the desk."""
    if isinstance(desk.ledger, MemoryLedger):
        return desk.ledger
    return RedisErasure(desk.server, prefix=desk.prefix, streams=True)


def payload(owner: str, text: str = "canary") -> bytes:
    """A message of that owner."""
    return encode(Message(run_id="r", owner_key=owner, role=Role.SYSTEM, content={"text": text}))


async def answer(desk: Desk, key: str, content: bytes) -> None:
    """Keep an answer."""
    claim = await desk.ledger.claim(key, "f", LONG_MS)
    assert isinstance(claim, Acquired)
    await desk.ledger.conclude(claim, "topic", content, LONG_MS)


async def sweep(desk: Desk, owner: str, *, remove: bool = False) -> dict[str, int]:
    """What there is of an owner, or was."""
    found = Counter[str]()
    async for batch in erasing(desk).sweep(owner, remove=remove):
        found.update(batch)
    return dict(+found)


async def find(desk: Desk, *texts: str) -> dict[str, int]:
    """Where one of these texts is."""
    found = Counter[str]()
    async for name, count in erasing(desk).find_text([text.encode() for text in texts]):
        found[name] += count
    return dict(+found)


@pytest.mark.parametrize("owner", NAMES)
async def test_what_is_kept_of_an_owner(open_desk: OpenDesk, owner: str) -> None:
    """Answers and beginnings go, whether the key says whose they are or the answer; those of others stay."""
    async with open_desk() as desk:
        for name in (owner, "bob"):
            for key in (f"m:{owner_mark(name)}", f"m-{owner_mark(name)}", f"search:m:{owner_mark(name)}"):
                await answer(desk, key, payload(name))
            await answer(desk, f"tool:msg_{owner_mark(name)}", payload(name))
            await desk.ledger.keep_first(f"{'0' * 64}:{owner_mark(name)}", b"[canary]", LONG_MS)
        expected = {"answers": 4, "beginnings": 1}
        assert await sweep(desk, owner) == expected
        assert (await find(desk, "canary")).items() >= {"nexus:request": 8, "nexus:kept": 2}.items()
        assert await sweep(desk, owner, remove=True) == expected
        assert await sweep(desk, owner) == await sweep(desk, owner, remove=True) == {}
        assert await sweep(desk, "bob") == expected
        assert (await find(desk, "canary")).items() >= {"nexus:request": 4, "nexus:kept": 1}.items()
        assert await desk.ledger.kept(f"{'0' * 64}:{owner_mark('bob')}") == b"[canary]"
        assert await desk.ledger.kept(f"{'0' * 64}:{owner_mark(owner)}") is None


async def test_a_request_in_hand(open_desk: OpenDesk) -> None:
    """It is counted until it is answered, and stays claimed."""
    async with open_desk() as desk:
        key = f"m:{owner_mark('ada')}"
        claim: Any = await desk.ledger.claim(key, "f", LONG_MS)
        assert await sweep(desk, "ada", remove=True) == {"in_hand": 1}
        assert await sweep(desk, "bob", remove=True) == {}
        assert await desk.ledger.renew(claim, LONG_MS)
        await desk.ledger.conclude(claim, "topic", payload("ada"), LONG_MS)
        assert await sweep(desk, "ada", remove=True) == {"answers": 1}
        await desk.ledger.claim(f"n:{owner_mark('ada')}", "f", 0)
        assert await sweep(desk, "ada") == {}


class TestRedis:
    """What only Redis has."""

    @pytest.fixture
    def open_desk(self, request: pytest.FixtureRequest, open_desk: OpenDesk) -> OpenDesk:
        """A ledger on Redis."""
        if "memory" in request.node.name:
            pytest.skip("keeps nothing of the kind")
        return open_desk

    async def test_values_that_do_not_say_whose_they_are(self, open_desk: OpenDesk) -> None:
        """They are counted, and stay, whatever their type."""
        async with open_desk() as desk:
            await answer(desk, "0" * 64, b"no message")
            await desk.ledger.keep_first("0" * 64, b"[1]", LONG_MS)
            await desk.server.set(f"{desk.prefix}nexus:request:odd", "x")
            for _ in range(2):
                assert await sweep(desk, "ada", remove=True) == {"unknown": 3}

    async def test_entries_of_streams(self, open_desk: OpenDesk) -> None:
        """An entry goes once every group is done with it, also of one requester's answers; others' stay."""
        async with open_desk() as desk:
            redis: Any = desk.server
            topic = f"{desk.prefix}llm.results"
            entries = [await redis.xadd(topic, {"message": payload(name)}) for name in ("ada", "bob", "ada", "ada")]
            reply = f"{desk.prefix}context.build.response.[*]"
            await redis.xadd(reply, {"message": payload("ada")})
            await redis.xadd(reply, {"message": payload("bob")})
            assert await sweep(desk, "ada") == {"entries": 4}
            for group in (GROUP, "theirs"):
                await redis.xgroup_create(topic, group, id="0")
                await redis.xreadgroup(group, "c", {topic: ">"}, count=3)
            await redis.xack(topic, GROUP, *entries[:2])
            await redis.xack(topic, "theirs", *entries)
            # The first is done with; the third is pending, and the fourth has not been read.
            assert await sweep(desk, "ada", remove=True) == {"entries": 2, "pending": 2}
            assert [entry for entry, _ in await redis.xrange(topic)] == entries[1:]
            assert len(await redis.xrange(reply)) == 1
            await redis.xack(topic, GROUP, entries[2])
            await redis.xreadgroup(GROUP, "c", {topic: ">"})
            await redis.xreadgroup("theirs", "c", {topic: ">"}, noack=True)
            await redis.xack(topic, GROUP, entries[3])
            assert await sweep(desk, "ada", remove=True) == {"entries": 2}
            assert await sweep(desk, "ada", remove=True) == {}
            assert [entry for entry, _ in await redis.xrange(topic)] == entries[1:2]

    async def test_more_than_a_step(self, open_desk: OpenDesk) -> None:
        """Of streams and keys alike; a key of a topic that is no stream holds up nothing."""
        async with open_desk() as desk:
            redis = desk.server
            for number in range(70):
                owner = ("ada", "bob")[number % 2]
                await redis.xadd(f"{desk.prefix}tools.results", {"message": payload(owner, str(number))})
            for number in range(700):
                owner = ("ada", "bob")[number % 2]
                await redis.hset(f"{desk.prefix}nexus:request:{number}:{owner_mark(owner)}", "answer", payload(owner))
            await redis.set(f"{desk.prefix}runs.input", "x")
            assert await sweep(desk, "ada", remove=True) == {"entries": 35, "answers": 350}
            assert await sweep(desk, "bob") == {"entries": 35, "answers": 350}

    async def test_every_key_is_searched(self, open_desk: OpenDesk) -> None:
        """Of every type, its name too, and of this prefix alone; no name that has the text is told."""
        async with open_desk() as desk:
            redis, prefix = desk.server, desk.prefix
            await redis.set(f"{prefix}a", "xxcanaryxx")
            await redis.hset(f"{prefix}b", mapping={"canary": "1"})
            await redis.zadd(f"{prefix}nexus:{{outbox}}:order", {"canary": 1})
            await redis.lpush(f"{prefix}d", "canary")
            await redis.sadd(f"{prefix}e", "canary")
            await redis.xadd(f"{prefix}nexus:dead-letters", {"body": "canary"})
            await redis.xadd(f"{prefix}g", {"canary": "1"})
            await redis.set(f"{prefix}canary", "1")
            await redis.set(f"{prefix}nothing", "cannary")
            await redis.set(f"{prefix[:-1]}other", "canary", ex=60)
            names = ["a", "b", "nexus:{outbox}:order", "d", "e", "nexus:dead-letters", "g", "a key's name"]
            assert await find(desk, "nothing at all", "canary") == dict.fromkeys(names, 1)

    async def test_redis_is_away(self, open_desk: OpenDesk) -> None:
        """It says so."""
        async with open_desk() as desk:
            away = RedisErasure(desk.server, prefix=desk.prefix, streams=True, repeated_s=0.1)
            await desk.server.connection_pool.disconnect()
            desk.server.connection_pool.connection_kwargs["port"] = 1
            with pytest.raises(BusUnavailableError):
                await anext(away.sweep("ada", remove=True))
