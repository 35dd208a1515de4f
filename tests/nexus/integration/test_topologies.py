"""The Redis adapters by way of Sentinel and on a cluster, while masters die and slots move."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from pydantic import SecretStr
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.cluster import ClusterRedis
from nexus.adapters.redis.dead_letters import RedisDeadLetters
from nexus.adapters.redis.ledger import RedisLedger
from nexus.adapters.redis.pubsub import RedisPubSubBus, RedisSubscription
from nexus.adapters.redis.scripts import Script
from nexus.bootstrap import open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.connections import open_client
from nexus.core.errors import BusUnavailableError
from nexus.core.models import Message, Role, Run
from nexus.core.ports import Acquired, Answered, Busy, Claim, DeadLetter, Delivery, OutboxRow
from tests.nexus.support.desk import Desk
from tests.nexus.support.redis_server import HOST, RedisServer, redis_server
from tests.nexus.support.redis_topologies import Cluster, cluster_servers, sentinel_servers
from tests.nexus.support.waiting import PATIENCE_S, take, until

# The servers of a topology are always our own, the same in both runs.
pytestmark = pytest.mark.once

LONG_MS = 60_000
Mode = Literal["pubsub", "streams"]


@dataclass(frozen=True)
class Parts:
    """The parts of a service that use Redis."""

    client: Redis
    bus: RedisPubSubBus
    ledger: RedisLedger


@asynccontextmanager
async def parts(url: str, prefix: str = "", *, heartbeat_s: float = 0.3) -> AsyncIterator[Parts]:
    """Open the parts on that Redis."""
    async with open_redis(url) as client:
        bus = RedisPubSubBus(client, prefix=prefix, heartbeat_s=heartbeat_s)
        yield Parts(client, bus, RedisLedger(client, prefix=prefix, repeated_s=PATIENCE_S))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of three masters, for the tests that leave it whole."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(cluster_servers()) as servers:
        yield servers


@pytest.fixture(scope="module")
def sentinel_url() -> Iterator[str]:
    """A master watched by Sentinel, for the tests that leave it alone."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(sentinel_servers(10_000)) as servers:
        yield servers.url


@pytest.fixture(params=["cluster", "sentinel"])
def url(request: pytest.FixtureRequest) -> str:
    """How to reach each kind."""
    if request.param == "cluster":
        found: Cluster = request.getfixturevalue("cluster")
        return found.url
    return str(request.getfixturevalue("sentinel_url"))


async def again(subscription: RedisSubscription) -> bool:
    """Whether it has connected again."""
    return subscription.reconnects > 0


async def sent(bus: RedisPubSubBus, topic: str, payload: bytes) -> bool:
    """Publish; False when that failed."""
    try:
        await bus.publish(topic, payload)
    except BusUnavailableError:
        return False
    return True


async def claimed(ledger: RedisLedger, keys: list[str]) -> list[Claim]:
    """Ask for these requests at once."""
    claims: dict[str, Claim] = {}

    async def begin(key: str) -> None:
        claims[key] = await ledger.claim(key, "f", LONG_MS)

    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(begin, key)
    return [claims[key] for key in keys]


def names(count: int) -> list[str]:
    """Keys, which on a cluster are all over the slots."""
    return [f"k{number}" for number in range(count)]


async def test_order_is_kept_and_everybody_hears(url: str, channel_prefix: str) -> None:
    """Every subscriber hears the payloads of one publisher and topic in order, whichever node it listens to."""
    payloads = [b"%d" % number for number in range(200)]
    async with (
        parts(url, channel_prefix, heartbeat_s=5) as one,
        parts(url, channel_prefix, heartbeat_s=5) as two,
        AsyncExitStack() as stack,
    ):
        heard = [await stack.enter_async_context(part.bus.subscribe("a", "b")) for part in (one, one, two)]
        for payload in payloads:
            await one.bus.publish("a", payload)
        for subscription in heard:
            assert [delivery.payload for delivery in await take(subscription, 200)] == payloads
            assert subscription.reconnects == 0


async def test_a_request_has_one_owner_and_one_answer(url: str, channel_prefix: str) -> None:
    """Of many claims of a request one is granted; its answer is heard once, and given to later claims."""
    async with (
        parts(url, channel_prefix, heartbeat_s=5) as one,
        parts(url, channel_prefix) as two,
        one.bus.subscribe("t") as heard,
    ):
        claims = [claim for part in (one, two) for claim in await claimed(part.ledger, names(50))]
        kinds = Counter(type(claim) for claim in claims)
        assert kinds == {Acquired: 50, Busy: 50}
        mine = [claim for claim in claims if isinstance(claim, Acquired)]
        for claim in mine:
            assert not claim.outbox_waiting
            row = OutboxRow("ada", claim.key, b"row")
            assert await one.ledger.conclude(claim, "t", claim.key.encode(), LONG_MS, None, row) is not None
        answers = [delivery.payload.decode() for delivery in await take(heard, 50)]
        assert sorted(answers) == sorted(names(50))
        rows = await two.ledger.outbox.of_owner("ada")
        assert sorted(row.id for row in rows) == sorted(names(50))
        (waiting,) = [claim for claim in await claimed(two.ledger, ["after"]) if isinstance(claim, Acquired)]
        assert waiting.outbox_waiting
        await two.ledger.outbox.remove(rows)
        assert await one.ledger.outbox.oldest(9) == []
        await two.client.hset(f"{channel_prefix}nexus:request:k7", "said_ms", "0")
        assert await two.ledger.claim("k7", "f", LONG_MS) == Answered("t", b"k7")
        assert await one.ledger.keep_first("k", b"1", LONG_MS) == b"1"
        assert await two.ledger.keep_first("k", b"2", LONG_MS) == b"1"
        assert await two.ledger.kept("k") == b"1"


@asynccontextmanager
async def service(url: str, mode: Mode, mongo_uri: str, database: str) -> AsyncIterator[ContextClient]:
    """A whole service on that Redis, and its requester."""
    prefix = f"{{{database}}}:"
    settings = Settings(
        bus=BusSettings(mode=mode, url=SecretStr(url), channel_prefix=prefix, heartbeat_s=0.3),
        database=DatabaseSettings(uri=SecretStr(mongo_uri), name=database),
    )
    async with open_nexus(settings), open_client(url, mode=mode, channel_prefix=prefix) as client:
        yield client


def run_of(owner: str) -> Run:
    """A question of that owner."""
    return Run(id=owner, owner_key=owner, history=[Message(run_id="r", owner_key=owner, role=Role.HUMAN, content="Hi")])


async def test_a_whole_service(url: str, mongo_uri: str, database_name: str) -> None:
    """Requests are answered, and the requester hears the answers."""
    async with service(url, "pubsub", mongo_uri, database_name) as client:
        for owner in ("ada", "bob"):
            assert (await client.build(run_of(owner), timeout=PATIENCE_S))["degraded"] == []
        assert client.unheard == 0


async def test_letters_that_may_be_unheard_stay(cluster: Cluster, channel_prefix: str) -> None:
    """On pub/sub on a cluster `replay` sends letters and keeps them, since the number of listeners is unknown."""
    desk = Desk("dead-letters", {"NEXUS_BUS__URL": cluster.url, "NEXUS_BUS__CHANNEL_PREFIX": channel_prefix})
    async with parts(cluster.url, channel_prefix) as redis, redis.bus.subscribe("llm.results") as heard:
        letters = RedisDeadLetters(redis.client, prefix=channel_prefix)
        await letters.keep(DeadLetter("llm.results", "not JSON", "0" * 64, 1, body=b"x"))
        (letter,) = await letters.newest(1)
        told = await desk.said("replay", letter.letter_id)
        assert await take(heard, 1) == [Delivery("llm.results", b"x")]
        assert await letters.count() == 1
    said = "sent again, and kept: on a cluster pub/sub cannot tell whether anybody heard it"
    assert told == f"{letter.letter_id}: {said}\n"


async def answered(client: ContextClient, kill: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """How many of thirty requests were answered, when `kill` is done after the first ten answers."""
    owners: list[str] = []

    async def ask(owner: str) -> None:
        await client.build(run_of(owner), timeout=PATIENCE_S)
        owners.append(owner)

    async def ten() -> bool:
        return len(owners) >= 10

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(ask, f"owner{number}")
            if number == 19:
                await until(ten)
                tasks.start_soon(kill)
    return len(owners)


async def refusal(url: str) -> str:
    """The error of a failed publish."""
    async with parts(url) as part:
        with pytest.raises(BusUnavailableError) as raised:
            await part.bus.publish("a", b"x")
    return str(raised.value)


async def test_a_wrong_password(url: str) -> None:
    """It is an error like any other of the bus, which names neither host nor password."""
    said = await refusal(url.replace("://", "://nobody:wrong-password@"))
    assert said
    assert "wrong" not in said
    assert HOST not in said


async def test_an_unknown_service(sentinel_url: str) -> None:
    """It is an error of the bus: the service may be there later."""
    assert await refusal(f"{sentinel_url}x") == "MasterNotFoundError"


async def test_a_slot_that_moves(cluster: Cluster, channel_prefix: str) -> None:
    """While the slot of many requests moves to another master, and afterwards, each has one owner."""
    tag = f"{channel_prefix}{{moving}}:"
    key = f"{tag}nexus:request:k0"
    async with parts(cluster.url, tag) as one, parts(cluster.url, tag) as two:
        before = await claimed(one.ledger, names(20))
        source = await cluster.owner_of(key)
        target = next(master for master in cluster.masters if master is not source)
        await cluster.begin_moving(key, target)
        # Old keys are where they were, new ones at the other master.
        during = await claimed(two.ledger, names(60))
        assert Counter(map(type, during)) == {Busy: 20, Acquired: 40}
        await cluster.move_slot(key, target)
        assert Counter(map(type, await claimed(one.ledger, names(80)))) == {Busy: 60, Acquired: 20}
        assert await cluster.owner_of(key) is target
        for claim in (*before, *during):
            if isinstance(claim, Acquired):
                assert await two.ledger.renew(claim, LONG_MS)


async def test_nodes_that_are_gone_are_forgotten(cluster: Cluster) -> None:
    """Nothing is kept of nodes that the map no longer names; connections in use there are closed on release."""
    async with open_redis(cluster.url) as client, redis_server() as server:
        assert isinstance(client, ClusterRedis)
        await client.get("k")
        known = {*client._nodes}
        gone = (HOST, server.port)
        node = client._node(gone)
        client._failed(gone)
        pool: Any = node.connection_pool
        await node.ping()
        in_use = await pool.get_connection()
        await until(partial(learned, client))
        assert known <= client._nodes.keys() <= {*client._members, *client._seeds}
        assert gone not in client._failed_at
        assert in_use.is_connected
        await pool.release(in_use)
        assert not in_use.is_connected


async def learned(client: ClusterRedis) -> bool:
    """Have the client read its map again; whether it has."""
    await client.get("k")
    return not client._stale


async def test_nothing_is_sent_twice(cluster: Cluster, channel_prefix: str) -> None:
    """A command whose answer does not come fails, and has been executed once."""
    key = f"{channel_prefix}counter"
    async with open_redis(cluster.url) as client:
        script = Script(client, "return redis.call('INCR', KEYS[1])")
        assert await script(keys=[key]) == 1
        owner = await cluster.owner_of(key)
        owner.stop()
        with pytest.raises(RedisTimeoutError):
            await script(keys=[key])
        owner.go_on()
        assert await script(keys=[key]) == 3


async def test_a_sentinel_failover(mongo_uri: str, database_name: str) -> None:
    """The master dies: every request of a service is answered, subscriptions go on, replicated claims are kept."""
    async with (
        sentinel_servers() as servers,
        parts(servers.url) as part,
        part.bus.subscribe("a") as subscription,
        service(servers.url, "streams", mongo_uri, database_name) as client,
    ):
        assert isinstance(await part.ledger.claim("before", "f", LONG_MS), Acquired)
        await part.client.execute_command("WAIT", 1, 0)  # type: ignore[no-untyped-call]  # redis-py's is untyped
        assert await answered(client, servers.master.kill) == 30
        assert all(isinstance(claim, Acquired) for claim in await claimed(part.ledger, names(20)))
        await servers.promoted(servers.replica)
        await until(partial(again, subscription))
        assert isinstance(await part.ledger.claim("before", "f", LONG_MS), Busy)
        assert await part.bus.publish("a", b"x") == 1
        assert await take(subscription, 1) == [Delivery("a", b"x")]


async def test_a_master_that_stands_still() -> None:
    """Connections to a master that hangs, and lives on as a replica, move to the new master."""
    async with sentinel_servers() as servers, parts(servers.url) as part, part.bus.subscribe("a") as subscription:
        await part.bus.publish("a", b"1")
        # A server may answer the sender before it writes to subscribers.
        assert await take(subscription, 1) == [Delivery("a", b"1")]
        servers.master.stop()
        await servers.promoted(servers.replica)
        await until(partial(again, subscription))
        await until(partial(sent, part.bus, "a", b"2"))
        servers.master.go_on()
        assert await part.bus.publish("a", b"3") == 1
        assert [delivery.payload for delivery in await take(subscription, 2)] == [b"2", b"3"]
        assert isinstance(await part.ledger.claim("k", "f", LONG_MS), Acquired)


async def listens(server: RedisServer) -> bool:
    """Whether a subscription is on this node."""
    return bool(await server.ask("PUBSUB", "CHANNELS"))


async def test_a_master_of_a_cluster_dies(mongo_uri: str, database_name: str) -> None:
    """Its replica takes its place: a service answers every request, claims are granted, and channels are heard."""
    async with (
        cluster_servers(replicas=True) as servers,
        parts(servers.url) as part,
        part.bus.subscribe("a") as subscription,
        service(servers.url, "streams", mongo_uri, database_name) as client,
    ):
        assert all(isinstance(claim, Acquired) for claim in await claimed(part.ledger, names(20)))
        # The one that has all streams of the service.
        master = await servers.owner_of(f"{{{database_name}}}:")
        assert await answered(client, master.kill) == 30
        assert all(isinstance(claim, Acquired) for claim in await claimed(part.ledger, [f"d{n}" for n in range(20)]))
        await until(partial(sent, part.bus, "a", b"x"))
        assert await take(subscription, 1) == [Delivery("a", b"x")]
        assert len(await claimed(part.ledger, names(40))) == 40


async def test_the_node_of_a_subscription_dies(channel_prefix: str) -> None:
    """A subscription moves to another node; payloads published on any node are heard there."""
    async with (
        cluster_servers() as servers,
        parts(servers.url, channel_prefix) as part,
        part.bus.subscribe("a") as subscription,
    ):
        node = [server for server in servers.masters if await listens(server)][0]  # noqa: RUF015  # next() cannot wait
        await node.kill()
        await until(partial(again, subscription))
        await until(partial(sent, part.bus, "a", b"x"))
        assert await take(subscription, 1) == [Delivery("a", b"x")]
