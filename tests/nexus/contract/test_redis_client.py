"""What the adapters rely on of a client that `open_redis` opens, on a real server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
import pytest
from redis.asyncio import Redis

from nexus.adapters.redis.client import open_redis, repeated
from nexus.adapters.redis.scripts import Script
from nexus.core.errors import BusRefusedError, BusUnavailableError
from tests.nexus.support.proxy import Proxy, proxied
from tests.nexus.support.redis_server import redis_server
from tests.nexus.support.waiting import PATIENCE_S


@asynccontextmanager
async def behind_proxy(url: str) -> AsyncIterator[tuple[Proxy, Redis]]:
    """A client that reaches its server through a proxy."""
    target = urlsplit(url)
    async with (
        proxied(target.hostname or "", target.port or 0) as proxy,
        open_redis(f"redis://127.0.0.1:{proxy.port}{target.path}") as client,
    ):
        yield proxy, client


async def test_each_caller_gets_its_own_reply(redis_url: str) -> None:
    """More callers than connections, many of which give up: no reply reaches another caller."""
    wrong: list[int] = []
    async with open_redis(redis_url) as client:
        echo = Script(client, "return ARGV[1]")

        async def ask(number: int) -> None:
            with anyio.move_on_after(0.002 if number % 3 else PATIENCE_S):
                if await echo(args=[number]) != b"%d" % number:
                    wrong.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(600):
                tasks.start_soon(ask, number)
    assert wrong == []


async def test_a_script_that_redis_has_forgotten(redis_url: str, channel_prefix: str) -> None:
    """A restart forgets scripts: the next call brings its script again."""
    async with open_redis(redis_url) as client:
        script = Script(client, f"return '{channel_prefix}'")
        for _ in range(2):
            assert await script() == channel_prefix.encode()
            await client.script_flush()


async def test_scripts_are_flushed_all_the_time() -> None:
    """Also between two commands of one call: every call has its reply."""
    async with (
        redis_server() as server,
        open_redis(server.url) as client,
        open_redis(server.url) as operator,
        anyio.create_task_group() as flushing,
    ):

        async def flush() -> None:
            while True:
                await operator.script_flush()

        async def call(number: int) -> None:
            script = Script(client, f"return {number}")
            for _ in range(20):
                assert await script() == number

        flushing.start_soon(flush)
        async with anyio.create_task_group() as calls:
            for number in range(20):
                calls.start_soon(call, number)
        flushing.cancel_scope.cancel()


async def test_an_operation_is_repeated_while_redis_is_away(redis_url: str) -> None:
    """For as long as it is told to; what Redis refuses is not repeated."""
    async with behind_proxy(redis_url) as (proxy, client), anyio.create_task_group() as tasks:
        proxy.refuse()
        with pytest.raises(BusUnavailableError):
            await repeated(client.ping, for_s=0.0)

        async def come_back() -> None:
            await anyio.wait_all_tasks_blocked()
            proxy.behave()

        tasks.start_soon(come_back)
        assert await repeated(client.ping, for_s=PATIENCE_S)
        refused = Script(client, "return redis.error_reply('WRONGTYPE no')")
        with pytest.raises(BusRefusedError):
            await repeated(refused, for_s=PATIENCE_S)
