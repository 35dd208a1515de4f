"""What `nexus.core.ports.Outbox` promises, of every adapter."""

import pytest

from nexus.adapters.in_memory import MemoryBus, MemoryLedger, MemoryOutbox
from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.ledger import RedisLedger, RedisOutbox
from nexus.core.errors import OutboxFullError
from nexus.core.ports import Acquired, Announced, Answered, Outbox, OutboxRow, RequestLedger
from tests.nexus.contract.ledgers import Desk, OpenDesk

TOPIC = "context.build.response"
LONG_MS = 60_000
STRANGE = ["", "ada:1", 'a"d\\a', "ädä\u2028", "{ada}", "x" * 5_000]


def row(row_id: str = "r", owner_key: str = "ada", content: bytes = b"content") -> OutboxRow:
    """A row."""
    return OutboxRow(owner_key, row_id, content)


async def claimed(desk: Desk, key: str) -> Acquired:
    """A claim that is acquired."""
    claim = await desk.ledger.claim(key, "f", LONG_MS)
    assert isinstance(claim, Acquired)
    return claim


async def put(desk: Desk, *rows: OutboxRow) -> None:
    """Conclude a request for each row."""
    for number, each in enumerate(rows):
        claim = await claimed(desk, f"{number} {each.id} {each.owner_key}")
        assert await desk.ledger.conclude(claim, TOPIC, b"answer", LONG_MS, None, each) is not None


async def test_a_row_is_found_until_it_is_removed(open_desk: OpenDesk) -> None:
    """By owner and among the oldest; removing it again does no harm."""
    async with open_desk() as desk:
        await put(desk, row(), row("other", "bea"))
        for _ in range(2):
            assert await desk.outbox.of_owner("ada") == [row()]
            assert await desk.outbox.oldest(9) == [row(), row("other", "bea")]
            assert await desk.outbox.count() == 2
        for _ in range(2):
            await desk.outbox.remove([row(), row("unknown", "nobody")])
            assert await desk.outbox.of_owner("ada") == []
            assert await desk.outbox.oldest(9) == [row("other", "bea")]
            assert await desk.outbox.count() == 1


async def test_the_oldest_rows_come_first(open_desk: OpenDesk) -> None:
    """As many as are asked for, from the front or from further behind."""
    async with open_desk() as desk:
        rows = [row(f"r{number}", f"owner {number % 3}") for number in range(9)]
        await put(desk, *rows)
        found = await desk.outbox.oldest(4)
        assert len(found) == 4
        assert [*found, *await desk.outbox.oldest(2, 4), *await desk.outbox.oldest(9, 6)] == await desk.outbox.oldest(9)
        assert await desk.outbox.oldest(9, 9) == []
        await desk.outbox.remove(found)
        assert sorted(each.id for each in [*found, *await desk.outbox.oldest(99)]) == [each.id for each in rows]


async def test_any_owner_and_any_id_will_do(open_desk: OpenDesk) -> None:
    """They never meet."""
    async with open_desk() as desk:
        rows = [row(row_id, owner_key, f"{owner_key} {row_id}".encode()) for owner_key in STRANGE for row_id in STRANGE]
        await put(desk, *rows)
        for owner_key in STRANGE:
            found = {each.id: each for each in await desk.outbox.of_owner(owner_key)}
            assert found == {each.id: each for each in rows if each.owner_key == owner_key}
        await desk.outbox.remove(rows)
        assert await desk.outbox.oldest(9) == []


async def test_a_full_outbox_takes_no_more(redis_url: str, channel_prefix: str) -> None:
    """Full by rows or by bytes; what is removed, once or again, makes room once."""
    memory = MemoryOutbox(most_rows=2, most_bytes=20)
    async with open_redis(redis_url) as client:
        redis = RedisOutbox(client, prefix=channel_prefix, most_rows=2, most_bytes=20)
        for each in (row("r0"), row("r1"), row("r2")):
            assert memory.put(each) == await redis.put(each) == (each.id != "r2")
        for _ in range(2):
            await memory.remove([row("r0")])
            await redis.remove([row("r0")])
        for each in (row("large", content=b"x" * 14), row("r3")):
            assert memory.put(each) == await redis.put(each) == (each.id == "r3")
        await redis.remove([row("r1"), row("r3")])
        assert await redis.put(row("large", content=b"x" * 20))


async def test_a_row_that_was_evicted_is_forgotten(redis_url: str, channel_prefix: str) -> None:
    """A row without content is no row."""
    async with open_redis(redis_url) as client:
        outbox = RedisOutbox(client, prefix=channel_prefix)
        await outbox.put(row("gone", "bea"))
        await outbox.put(row())
        await client.delete(outbox.rows_key("bea"))
        assert await outbox.oldest(9) == [row()]
        assert await client.zcard(outbox.order_key) == 1


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_an_answer_is_published_also_where_the_outbox_is_full(
    kind: str, redis_url: str, channel_prefix: str
) -> None:
    """Its row is not kept, which the caller is told."""
    async with open_redis(redis_url) as client:
        ledger: RequestLedger
        outbox: Outbox
        if kind == "memory":
            memory = MemoryLedger(MemoryBus())
            memory.outbox = MemoryOutbox(most_rows=1)
            ledger, outbox = memory, memory.outbox
        else:
            on_redis = RedisLedger(client, prefix=channel_prefix)
            on_redis.outbox = RedisOutbox(client, prefix=channel_prefix, most_rows=1)
            ledger, outbox = on_redis, on_redis.outbox
        full = []
        for number in range(2):
            claim = await ledger.claim(str(number), "f", LONG_MS)
            assert isinstance(claim, Acquired)
            try:
                assert await ledger.conclude(claim, TOPIC, b"answer", LONG_MS, None, row(str(number))) is not None
            except OutboxFullError as error:
                full.append((number, error.receivers))
            again = await ledger.claim(str(number), "f", LONG_MS)
            assert isinstance(again, Announced | Answered)
        assert full == [(1, 0)]
        assert await outbox.oldest(9) == [row("0")]
        await outbox.remove([row("0")])
