"""Scripts and commands that share a connection, on a real server."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis_connections import RedisProtocol
from nexus.adapters.redis_multiplexed import Script
from nexus.adapters.redis_pipeline import Pipelined, PipelineLimits, pipelined
from nexus.adapters.redis_scripts import Repeated
from nexus.core.errors import BusRefusedError, BusUnavailableError
from tests.nexus.support.proxy import Proxy, proxied
from tests.nexus.support.redis_topologies import secured_server, tls_is_possible
from tests.nexus.support.waiting import PATIENCE_S, until

ECHO = Script("return {KEYS[1], ARGV[1]}")
COUNT = Script("return redis.call('INCR', KEYS[1])")
FAIL = Script("return redis.error_reply(ARGV[1])")
ONE = PipelineLimits(most_connections=1)
LARGE = b"x" * (1 << 20)


@asynccontextmanager
async def pipeline(url: str, limits: PipelineLimits = ONE) -> AsyncIterator[Pipelined]:
    """A pipeline on a client of its own."""
    async with open_redis(url) as client, pipelined(client, limits) as redis:
        yield redis


@asynccontextmanager
async def behind_proxy(url: str, limits: PipelineLimits = ONE) -> AsyncIterator[tuple[Proxy, Pipelined]]:
    """A pipeline that reaches its server through a proxy."""
    target = urlsplit(url)
    async with (
        proxied(target.hostname or "", target.port or 0) as proxy,
        pipeline(f"redis://127.0.0.1:{proxy.port}{target.path}", limits) as redis,
    ):
        yield proxy, redis


class Calls:
    """Calls that are made at the same time, and what became of each."""

    def __init__(self, redis: Pipelined) -> None:
        self.redis = redis
        self.results: dict[int, Any] = {}

    async def echo(self, number: int, sent: bytes = b"") -> None:
        """Have the server say the number, and something else."""
        try:
            key, argument = await self.redis.run(ECHO, [str(number)], [sent])
            self.results[number] = key == b"%d" % number and argument == sent
        except RedisError as error:
            self.results[number] = error

    def failed(self, expected: type[Exception]) -> bool:
        """Whether all of them did, each with an error of its own."""
        errors = [*self.results.values()]
        return all(type(error) is expected for error in errors) and len({id(error) for error in errors}) == len(errors)


@asynccontextmanager
async def held(redis: Pipelined, url: str, prefix: str) -> AsyncIterator[tuple[Redis, int]]:
    """Have the server answer nothing on the pipeline's connection, whose id this is, until the end or its end."""
    number = int(await redis.execute("CLIENT", "ID"))
    async with open_redis(url) as other, anyio.create_task_group() as tasks:

        async def hold() -> None:
            with suppress(RedisConnectionError):
                await redis.execute("BLPOP", f"{prefix}hold", 0)

        async def holding() -> bool:
            return "cmd=blpop" in str(await other.execute_command("CLIENT", "LIST", "ID", number))  # type: ignore[no-untyped-call]  # redis-py's is untyped

        tasks.start_soon(hold)
        await until(holding)
        yield other, number
        await other.rpush(f"{prefix}hold", "go on")
        await other.expire(f"{prefix}hold", 60)


async def test_each_caller_gets_its_reply(redis_url: str) -> None:
    """Whatever the sizes and moments of the calls are; on one connection."""
    dice = random.Random(7)  # noqa: S311  # no secret
    ids: set[int] = set()
    async with pipeline(redis_url) as redis, anyio.create_task_group() as tasks:
        calls = Calls(redis)

        async def caller(first: int) -> None:
            for number in range(first, first + 10):
                await calls.echo(number, b"x" * dice.choice([0, 1, 5_999, 6_001, 200_000]))
                ids.add(await redis.execute("CLIENT", "ID"))
                await anyio.sleep(dice.choice([0, 0, 0.001]))

        for first in range(0, 300, 10):
            tasks.start_soon(caller, first)
    assert calls.results == dict.fromkeys(range(300), True)
    assert len(ids) == 1


async def test_large_calls_and_little_room(redis_url: str) -> None:
    """Callers wait for room and none is forgotten; what is large opens further connections, up to the limit."""
    ids: set[int] = set()
    limits = PipelineLimits(command_s=PATIENCE_S, most_connections=2, most_bytes=1)
    async with pipeline(redis_url, limits) as redis, anyio.create_task_group() as tasks:
        calls = Calls(redis)

        async def call(number: int) -> None:
            await calls.echo(number, LARGE if number % 20 == 0 else b"")
            ids.add(await redis.execute("CLIENT", "ID"))

        for number in range(100):
            tasks.start_soon(call, number)
    assert calls.results == dict.fromkeys(range(100), True)
    assert len(ids) == 2


async def test_no_room(redis_url: str) -> None:
    """A call that gets no room in time fails, as those that are under way do when no connection comes about."""
    async with behind_proxy(redis_url, PipelineLimits(0.05, 1, 1)) as (proxy, redis):
        proxy.vanish()
        async with anyio.create_task_group() as tasks:
            calls = Calls(redis)
            tasks.start_soon(calls.echo, 1)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(RedisTimeoutError, match="too much"):
                await redis.execute("PING")
            proxy.refuse()
    assert calls.failed(RedisConnectionError)


async def test_a_script_that_was_forgotten(redis_url: str, channel_prefix: str) -> None:
    """It is loaded and run again, once for each call."""
    counted: list[int] = []
    async with pipeline(redis_url) as redis:

        async def count() -> None:
            counted.append(await redis.run(COUNT, [f"{channel_prefix}n"]))

        for _ in range(2):
            await count()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(redis.execute, "SCRIPT", "FLUSH")
                for _ in range(10):
                    tasks.start_soon(count)
        await redis.execute("DEL", f"{channel_prefix}n")
        with pytest.raises(NoScriptError):
            await redis.run(FAIL, [], ["NOSCRIPT to the end"])
    assert sorted(counted) == [*range(1, 23)]


async def test_a_script_is_repeated(redis_url: str, channel_prefix: str) -> None:
    """For as long as it is to be, and not where Redis refuses it; errors are the bus's."""
    key = f"{channel_prefix}n"
    async with behind_proxy(redis_url) as (proxy, redis), anyio.create_task_group() as tasks:
        patient, hasty = Repeated(redis, PATIENCE_S), Repeated(redis, 0.0)
        assert await patient.run(COUNT, [key]) == 1
        proxy.refuse()
        await until(lambda: lost(redis))
        with pytest.raises(BusUnavailableError):
            await hasty.run(COUNT, [key])
        tasks.start_soon(accept_soon, proxy)
        assert await patient.run(COUNT, [key]) == 2
        with pytest.raises(BusRefusedError):
            await patient.run(FAIL, [], ["WRONGTYPE no"])
        await redis.execute("DEL", key)


async def test_what_cannot_be_sent(redis_url: str) -> None:
    """An argument of another type is the caller's fault, and nobody else's."""
    async with pipeline(redis_url) as redis:
        with pytest.raises(TypeError):
            await redis.run(COUNT, [object()])  # type: ignore[list-item]  # that is the point
        assert await redis.execute("PING") == b"PONG"


async def lost(redis: Pipelined) -> bool:
    """Whether calls fail."""
    with suppress(RedisError):
        await redis.execute("PING")
        return False
    return True


async def accept_soon(proxy: Proxy) -> None:
    """Have connections come about again, after some that do not."""
    await anyio.sleep(0.1)
    proxy.behave()


async def test_a_connection_that_is_killed(redis_url: str, channel_prefix: str) -> None:
    """Every call on it fails, those that had not been written too; the next one opens another connection."""
    async with pipeline(redis_url) as redis, anyio.create_task_group() as tasks:
        calls = Calls(redis)
        async with held(redis, redis_url, channel_prefix) as (other, number):
            for each in range(10):
                tasks.start_soon(calls.echo, each)
            await redis_has_read(other, number)
            await other.client_kill_filter(_id=str(number))
            await until(lambda: done(calls, 10))
            assert calls.failed(RedisConnectionError)
            assert await redis.execute("CLIENT", "ID") != number


async def redis_has_read(other: Redis, number: int) -> None:
    """Wait until more has come on this connection than the command that holds it."""

    async def has() -> bool:
        state = str(await other.execute_command("CLIENT", "LIST", "ID", number))  # type: ignore[no-untyped-call]  # redis-py's is untyped
        return "qbuf=0 " not in state

    await until(has)


async def done(calls: Calls, count: int) -> bool:
    """Whether so many have ended."""
    return len(calls.results) == count


async def test_a_stalled_connection(redis_url: str) -> None:
    """It is given up when no reply has come for the time limit, and never for want of calls; another one works."""
    async with behind_proxy(redis_url, PipelineLimits(command_s=0.5, most_connections=1)) as (proxy, redis):
        calls = Calls(redis)
        await calls.echo(0)
        await anyio.sleep(0.6)
        await calls.echo(0)
        assert (calls.results, proxy.accepted) == ({0: True}, 1)
        proxy.stall()
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(calls.echo, number, LARGE if number % 2 else b"")
        assert calls.failed(RedisTimeoutError)
        await calls.echo(9)
        assert (calls.results[9], proxy.accepted) == (True, 2)
        # A socket that still has something to send ends with its connection.
        proxy.refuse()


async def test_callers_that_give_up(redis_url: str, channel_prefix: str) -> None:
    """Their replies go to nobody else, whether their commands were written or not."""
    async with pipeline(redis_url) as redis, anyio.create_task_group() as tasks:
        calls = Calls(redis)
        async with (
            held(redis, redis_url, channel_prefix) as (other, number),
            anyio.create_task_group() as leaving,
        ):
            for each in range(10):
                (leaving if each % 2 else tasks).start_soon(calls.echo, each)
            await redis_has_read(other, number)
            for each in range(10, 20):
                (leaving if each % 2 else tasks).start_soon(calls.echo, each)
            leaving.cancel_scope.cancel()
    assert calls.results == dict.fromkeys(range(0, 20, 2), True)


async def test_errors_reach_their_callers_alone(redis_url: str) -> None:
    """As redis-py would raise them, and the connection stays."""
    answers = ["READONLY no", "OOM no", "MOVED 1 127.0.0.1:1", "LOADING no", "NOAUTH no", "WRONGTYPE no", "ERR no"]
    async with pipeline(redis_url) as redis, open_redis(redis_url) as client:
        number = await redis.execute("CLIENT", "ID")

        async def refuse(answer: str) -> None:
            with pytest.raises(RedisError) as ours:
                await redis.run(FAIL, [], [answer])
            with pytest.raises(RedisError) as theirs:
                await client.eval(FAIL.text, 0, answer)
            assert (type(ours.value), ours.value.args) == (type(theirs.value), theirs.value.args)

        calls = Calls(redis)
        async with anyio.create_task_group() as tasks:
            for each, answer in enumerate(answers):
                tasks.start_soon(refuse, answer)
                tasks.start_soon(calls.echo, each)
        assert calls.results == dict.fromkeys(range(len(answers)), True)
        assert await redis.execute("CLIENT", "ID") == number
        with pytest.raises(TypeError):
            await redis.execute("GET", object())  # type: ignore[arg-type]  # that is the point
        assert await redis.execute("GET", "") is None


async def test_the_end(redis_url: str, channel_prefix: str) -> None:
    """What is under way then fails, and what is called later."""
    async with anyio.create_task_group() as tasks:
        async with open_redis(redis_url) as client, pipelined(client) as redis:
            calls = Calls(redis)
            await calls.echo(0)
            tasks.start_soon(redis_held, redis, f"{channel_prefix}never")
            for number in range(5):
                tasks.start_soon(calls.echo, number)
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(RedisConnectionError, match="closed"):
            await redis.execute("PING")
    assert calls.failed(RedisConnectionError)


async def redis_held(redis: Pipelined, key: str) -> None:
    """Have the server answer nothing on the pipeline's connection."""
    with suppress(RedisConnectionError):
        await redis.execute("BLPOP", key, 0)


@pytest.mark.skipif(not tls_is_possible(), reason="no redis-server; the packaged Valkey was built without TLS")
async def test_tls(channel_prefix: str) -> None:
    """All of it is the same: large and small, a connection that ends, and the end."""
    async with secured_server() as secured, pipeline(secured.url(secured.ca)) as redis:
        async with anyio.create_task_group() as tasks:
            calls = Calls(redis)
            for number in range(40):
                tasks.start_soon(calls.echo, number, LARGE if number % 8 == 0 else b"x" * number)
        assert calls.results == dict.fromkeys(range(40), True)
        async with (
            held(redis, secured.url(secured.ca), channel_prefix) as (other, connection),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(calls.echo, 0)
            await redis_has_read(other, connection)
            await other.client_kill_filter(_id=str(connection))
        assert isinstance(calls.results[0], RedisConnectionError)
        await calls.echo(1, LARGE)
        assert calls.results[1] is True


class Watched(BlockingConnectionPool):
    """Connections to a server that is the master, or no longer."""

    master = True

    def leads_to_master(self, _connection: object) -> bool:
        """What a pool by way of Sentinel says."""
        return self.master


async def test_a_former_master_is_told_nothing(redis_url: str, channel_prefix: str) -> None:
    """A connection that is open to it is given up before anything is written."""
    pool = Watched.from_url(redis_url)
    async with Redis.from_pool(pool) as client, pipelined(client) as redis:
        await redis.run(COUNT, [f"{channel_prefix}n"])
        pool.master = False
        with pytest.raises(RedisConnectionError, match="another server"):
            await redis.run(COUNT, [f"{channel_prefix}n"])
        pool.master = True
        assert await redis.run(COUNT, [f"{channel_prefix}n"]) == 2
        await redis.execute("DEL", f"{channel_prefix}n")


async def test_a_connection_that_cannot_be_taken_over(redis_url: str) -> None:
    """One that is lost, or that has brought what nobody asked for, is given up before anything is written."""
    async with open_redis(redis_url) as client:
        for spoil, reason in ((unasked, "nobody waits"), (closed, "was lost"), (ended, "was lost")):
            pool: Any = client.connection_pool
            connection = await pool.get_connection()
            await spoil(connection)
            await pool.release(connection)
            with pytest.raises(RedisConnectionError, match=reason):
                RedisProbe().take(connection)
            await connection.disconnect()


class RedisProbe(RedisProtocol):
    """Takes over, and does nothing."""

    def replied(self, reply: object) -> None:
        """Pass over."""

    def writable_again(self) -> None:
        """Write nothing."""


async def unasked(connection: Any) -> None:
    """Have a reply come that nobody reads."""
    await connection.send_command("PING")
    await until(lambda: readable(connection))


async def readable(connection: Any) -> bool:
    """Whether something has come."""
    stream = connection._reader  # before redis-py 8 asking it is reading
    return bool(stream._buffer) or stream.at_eof()


async def ended(connection: Any) -> None:
    """Have the server close."""
    await connection.send_command("QUIT")
    await connection.read_response()
    await until(lambda: readable(connection))


async def closed(connection: Any) -> None:
    """Close."""
    await connection.disconnect()


async def test_not_for_clusters() -> None:
    """Its keys are on several servers."""
    async with open_redis("redis+cluster://127.0.0.1:1,127.0.0.1:2") as client:
        with pytest.raises(TypeError):
            await pipelined(client).__aenter__()
