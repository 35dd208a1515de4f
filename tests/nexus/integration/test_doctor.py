"""`nexus doctor` on a Redis that is there and of no use."""

import io
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis
from rich.console import Console

from nexus.adapters.redis_client import open_redis
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.doctor import examine
from nexus.terminal import bus_advice
from tests.nexus.support.redis_server import HOST, RedisServer, redis_server


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    """A Redis to be spoilt."""
    async with redis_server() as running:
        yield running


@pytest.fixture
async def admin(server: RedisServer) -> AsyncIterator[Redis]:
    """Who spoils it."""
    async with open_redis(server.url) as client:
        yield client


async def said(url: str, mongo_uri: str, database_name: str, mode: str = "pubsub") -> tuple[bool, str]:
    """Whether all was well, and the lines."""
    settings = Settings.model_validate(
        {
            "bus": BusSettings.model_validate({"mode": mode, "url": SecretStr(url), "channel_prefix": "{t}:"}),
            "database": DatabaseSettings(uri=SecretStr(mongo_uri), name=database_name),
        }
    )
    lines = io.StringIO()
    well = await examine(settings, Console(file=lines), quick=True)
    return well, lines.getvalue()


@pytest.mark.parametrize("mode", ["pubsub", "streams", "memory"])
async def test_all_is_well(server: RedisServer, mongo_uri: str, database_name: str, mode: str) -> None:
    """The bus is heard, and a claim taken and given back, of which stays for two minutes when it was asked."""
    well, lines = await said(server.url, mongo_uri, database_name, mode)
    assert well
    assert "ok     bus: hears itself" in lines
    assert "ok     ledger: takes a claim and gives it back" in lines
    async with open_redis(server.url) as client:
        for key in await client.keys("*nexus:request:*"):
            assert await client.hkeys(key) == [b"asked_ms"]
            assert 0 < await client.pttl(key) <= 120_000


@pytest.mark.parametrize(
    ("command", "part", "advice"),
    [
        (("REPLICAOF", HOST, "1"), "ledger: ReadOnlyError", "this server is a read-only replica"),
        (("CONFIG", "SET", "maxmemory", "1"), "ledger: OutOfMemoryError", "raise maxmemory"),
        (("ACL", "SETUSER", "default", "-evalsha", "-eval"), "ledger: NoPermissionError", "'Users and rights'"),
        (("ACL", "SETUSER", "default", "-publish"), "bus: NoPermissionError", "'Users and rights'"),
    ],
)
async def test_a_redis_that_does_not_do_what_is_needed(  # noqa: PLR0917  # fixtures
    server: RedisServer,
    admin: Redis,
    mongo_uri: str,
    database_name: str,
    command: tuple[str, ...],
    part: str,
    advice: str,
) -> None:
    """What is wrong has its kind and its own advice, in pubsub also where the bus itself is heard."""
    await admin.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py's is untyped
    well, lines = await said(server.url, mongo_uri, database_name)
    assert not well
    assert f"wrong  {part}. To do: " in lines
    assert advice in lines


@pytest.mark.parametrize(
    ("scheme", "path", "advice"),
    [
        ("redis+cluster", "", "write redis:// in bus.url: this server is no node of a cluster"),
        ("redis+sentinel", "/service/0", "this server is no sentinel"),
    ],
)
async def test_a_url_of_another_kind(  # noqa: PLR0917  # fixtures
    server: RedisServer, mongo_uri: str, database_name: str, scheme: str, path: str, advice: str
) -> None:
    """A plain Redis asked as a cluster or as a sentinel."""
    well, lines = await said(f"{scheme}://{HOST}:{server.port}{path}", mongo_uri, database_name)
    assert not well
    assert "wrong  bus: " in lines
    assert advice in lines


def test_other_errors() -> None:
    """A service that no sentinel knows, and what has no advice of its own."""
    assert "the name of their service" in bus_advice(Exception("MasterNotFoundError"))
    assert bus_advice(TimeoutError()).startswith("see that Redis runs")
