"""TLS, and the rights that docs/operations.md gives to each role: enough for its work, and no more."""

import re
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from anyio.from_thread import start_blocking_portal
from pydantic import SecretStr
from redis.exceptions import NoPermissionError

from nexus.adapters.redis import scripts
from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.dead_letters import RedisDeadLetters
from nexus.adapters.redis.ledger import RedisLedger
from nexus.adapters.redis.pubsub import RedisPubSubBus
from nexus.adapters.redis.streams import RedisStreamsBus
from nexus.bootstrap import Nexus, open_nexus
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.connections import open_bus, open_client
from nexus.core.erasure import Erasure, owner_mark
from nexus.core.errors import BusUnavailableError
from nexus.core.models import Message, Role, Run, utc_now
from nexus.core.ports import DeadLetter, OutboxRow
from nexus.core.wire import encode
from nexus.services.erasure import Eraser
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.redis_server import HOST, RedisServer, redis_server
from tests.nexus.support.redis_topologies import secured_server, tls_is_possible
from tests.nexus.support.waiting import PATIENCE_S

Mode = Literal["pubsub", "streams"]

PREFIX = "docs:"
OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
RULES = re.findall(r"^ACL SETUSER .*$", OPERATIONS.read_text("utf-8"), re.MULTILINE)
MODES: list[Mode] = ["pubsub", "streams"]
PUBLISHED = (
    "context.build.request",
    "runs.input",
    "llm.results",
    "tools.results",
    "tools.progress",
    "session.state",
    "session.constraints",
    "memory.facts",
    "memory.search",
)
USERS = {"pubsub": "", "streams": "-streams"}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server with the users of the documentation."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(redis_server()) as found:
        for rule in RULES:
            portal.call(found.ask, *shlex.split(rule))
        yield found


@pytest.mark.parametrize("mode", MODES)
def test_every_command_of_a_script_is_allowed(mode: Mode) -> None:
    """Also of those that hardly ever come to it; what begins with `_` is a part of the scripts that use it."""
    used = {
        name.lower()
        for constant, text in vars(scripts).items()
        if isinstance(text, str) and not constant.startswith("_" if mode == "streams" else ("_", "GROUP_", "STREAM_"))
        for name in re.findall(r"redis\.p?call\('(\w+)'", text)
    } - ({"xack"} if mode == "pubsub" else {"publish"})
    (rule,) = (rule for rule in RULES if rule.startswith(f"ACL SETUSER nexus{USERS[mode]} "))
    assert used - {name.partition("|")[0] for name in re.findall(r" \+([\w|]+)", rule)} == set()


def url_of(server: RedisServer, user: str) -> str:
    """How that user reaches the server."""
    return f"redis://{user}:PASSWORD@{HOST}:{server.port}/0"


@asynccontextmanager
async def service(url: str, mode: Mode, mongo_uri: str, database: str) -> AsyncIterator[Nexus]:
    """A whole service on that Redis."""
    settings = Settings(
        bus=BusSettings(mode=mode, url=SecretStr(url), channel_prefix=PREFIX, lease_ms=300, heartbeat_s=0.5),
        database=DatabaseSettings(uri=SecretStr(mongo_uri), name=database),
    )
    async with open_nexus(settings) as nexus:
        yield nexus


def run_of(owner: str) -> Run:
    """A question of that owner."""
    return Run(id="r", owner_key=owner, history=[Message(run_id="r", owner_key=owner, role=Role.HUMAN, content="Hi")])


async def refused_in(server: RedisServer) -> list[str]:
    """The commands that the server has refused since the last look."""
    log = await server.ask("ACL", "LOG")
    await server.ask("ACL", "LOG", "RESET")
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) if isinstance(entry, list) else entry for entry in log]
    said = [f"{_text(entry, 'username')} {_text(entry, 'reason')} {_text(entry, 'object')}" for entry in entries]
    return [line for line in said if not line.endswith("client|setinfo")]


def _text(entry: dict[Any, Any], name: str) -> str:
    value = entry.get(name, entry.get(name.encode()))
    return value.decode() if isinstance(value, bytes) else str(value)


async def test_the_rules_are_those_of_every_role(server: RedisServer) -> None:
    """The page has a rule for each role, and the server knows the users."""
    names = {word.decode().split()[1] for word in await server.ask("ACL", "LIST")}
    assert names >= {"nexus", "nexus-streams", "orchestrator", "orchestrator-streams", "orchestrator-plain"}
    assert names >= {"operator", "monitoring"}


@pytest.mark.parametrize("mode", MODES)
async def test_a_request_is_answered(server: RedisServer, mongo_uri: str, database_name: str, mode: Mode) -> None:
    """Service and orchestrator, each with its own rights, do all of their work; nothing of it is refused."""
    url = url_of(server, f"nexus{USERS[mode]}")
    requester = url_of(server, f"orchestrator{USERS[mode]}")
    async with (
        service(url, mode, mongo_uri, database_name) as nexus,
        open_client(requester, mode=mode, channel_prefix=PREFIX) as client,
        open_bus(nexus.settings.bus) as transport,
    ):
        ledger = transport.ledger
        for number in range(3):
            assert (await client.build(run_of(f"ada{number}"), timeout=PATIENCE_S))["degraded"] == []
        assert (await client.search_memory("ada", "x", timeout=PATIENCE_S))["hits"] == []
        assert await client.send_state("ada", {"op": "clear"}) == 1
        await transport.dead_letters.keep(DeadLetter("llm.results", "not JSON", "0" * 64, 1, message_id="m", body=b"x"))
        assert await transport.dead_letters.drop_before(utc_now() - timedelta(days=1)) == 0
        claim: Any = await ledger.claim(f"k-{mode}", "f", 1_000)
        assert await ledger.renew(claim, 1_000)
        await ledger.release(claim)
        claim = await ledger.claim(f"k-{mode}", "f", 1_000)
        row = OutboxRow("ada", "id", b"row")
        await ledger.conclude(claim, "nexus.doctor.1", b"answer", 1_000, None, row)
        assert isinstance(ledger, RedisLedger)
        outbox = ledger.outbox
        assert await outbox.of_owner("ada") == [row]
        await outbox.remove(await outbox.oldest(9))
        if isinstance(nexus.bus, RedisStreamsBus):
            for reader in nexus.bus._readers:
                await nexus.bus._trimmer.trim(reader.topic)
    assert await refused_in(server) == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_service_may_erase(server: RedisServer, mode: Mode) -> None:
    """An owner's answers, dead letters and inputs in the outbox, and where a text is; nothing of it is refused."""
    settings = BusSettings(mode=mode, url=SecretStr(url_of(server, f"nexus{USERS[mode]}")), channel_prefix=PREFIX)
    payload = encode(Message(run_id="r", owner_key="zoe", role=Role.AI, content="canary"))
    async with open_bus(settings) as transport:
        claim: Any = await transport.ledger.claim(f"k:{owner_mark('zoe')}", "f", 1_000)
        row = OutboxRow("zoe", "id", b"canary")
        await transport.ledger.conclude(claim, "context.build.response.zoe", payload, 60_000, None, row)
        await transport.ledger.keep_first(f"{mode}:{owner_mark('zoe')}", b"[]", 60_000)
        await transport.dead_letters.keep(DeadLetter("llm.results", mode, "1" * 64, 1, body=payload))
        eraser = Eraser(
            FakeStore().erasure,
            settle_s=0,
            kept=transport.kept,
            outbox=transport.outbox,
            letters=transport.dead_letters,
        )
        found = await eraser.erase(Erasure("zoe"))
        entries = {"entries": 1} if mode == "streams" else {}
        assert {kind: count for kind, count in found.removed.items() if count} == {
            "answers": 1,
            "beginnings": 1,
            "outbox": 1,
            "letters": 1,
            **entries,
        }
        if mode == "streams":
            assert await eraser.find_text("canary") == {}
    assert await refused_in(server) == []


@pytest.mark.parametrize("mode", MODES)
async def test_an_orchestrator_with_tools(server: RedisServer, mode: Mode) -> None:
    """With the topic beside `session.*`, as docs/orchestrators.md says, it may register them."""
    (rule,) = [rule for rule in RULES if rule.startswith(f"ACL SETUSER orchestrator{USERS[mode]} ")]
    rule = re.sub(r"(\S*?)docs:session\.\*", r"\g<0> \1docs:tools.register", rule)
    rule = rule.replace(f"orchestrator{USERS[mode]} ", "with-tools ", 1)
    await server.ask(*shlex.split(rule))
    async with (
        open_redis(url_of(server, "nexus")) as redis,
        RedisPubSubBus(redis, prefix=PREFIX).subscribe("tools.register"),
        open_client(url_of(server, "with-tools"), mode=mode, channel_prefix=PREFIX) as client,
    ):
        await client.register_tools([{"type": "function", "function": {"name": "weather"}}], timeout=PATIENCE_S)
    assert await refused_in(server) == []
    await server.ask("ACL", "DELUSER", "with-tools")
    await server.ask("DEL", "docs:tools.register")


async def denied(server: RedisServer, user: str, *commands: str) -> None:
    """See that the user may execute none of these."""
    async with open_redis(url_of(server, user)) as client:
        for command in commands:
            with pytest.raises(NoPermissionError):
                await client.execute_command(*command.split())  # type: ignore[no-untyped-call]  # redis-py's is
    await server.ask("ACL", "LOG", "RESET")


async def test_what_an_orchestrator_may_not(server: RedisServer) -> None:
    """It neither answers, nor reads the ledger, nor hears requests of others, nor brings tools."""
    await denied(
        server,
        "orchestrator",
        "PUBLISH docs:context.build.response x",
        "PUBLISH docs:context.build.response.a x",
        "PUBLISH docs:memory.search.result.a x",
        "SUBSCRIBE docs:memory.search",
        "PUBLISH docs:tools.register x",
        "PUBLISH docs:config.changed x",
        "SUBSCRIBE docs:context.build.request",
        "HGETALL docs:nexus:request:k",
        "GET docs:nexus:kept:k",
        "EVAL return 0",
        "CONFIG GET *",
    )


@pytest.mark.parametrize("user", ["orchestrator-streams", "orchestrator-plain"])
async def test_what_an_orchestrator_on_streams_may_not(server: RedisServer, user: str) -> None:
    """The same, and it cannot empty or overwrite a stream."""
    await denied(
        server,
        user,
        "XADD docs:context.build.response * message x",
        "XADD docs:memory.search.result.a * message x",
        "XREAD STREAMS docs:memory.search 0",
        "XADD docs:tools.register * message x",
        "XADD docs:nexus:dead-letters * message x",
        "XREAD STREAMS docs:context.build.request 0",
        "XRANGE docs:context.build.request - +",
        "SET docs:context.build.request x",
        "DEL docs:context.build.request",
        "XTRIM docs:context.build.request MAXLEN 0",
        "HMGET docs:nexus:request:k answer",
        "GET docs:nexus:enqueued:k",
        "XREADGROUP GROUP nexus a STREAMS docs:context.build.request >",
        "PUBLISH docs:context.build.response x",
    )


async def test_plain_commands_do_on_streams(server: RedisServer, channel_prefix: str) -> None:
    """An orchestrator without the reference client asks by XADD and reads its own answers."""
    reply = f"docs:context.build.response.{channel_prefix}"
    async with open_redis(url_of(server, "orchestrator-plain")) as client:
        for topic in PUBLISHED:
            await client.xadd(f"docs:{topic}", {"message": b"x"})
        assert not await client.xread({reply: "0-0"}, block=10)
        assert await client.xrevrange(reply, count=1) == []
    await server.ask("DEL", *(f"docs:{topic}" for topic in PUBLISHED))


@pytest.mark.parametrize("user", ["nexus", "nexus-streams"])
async def test_what_nexus_may_not(server: RedisServer, user: str) -> None:
    """It touches nothing of other installations and does not administer Redis."""
    commands = [
        "GET other:nexus:kept:k",
        "PUBLISH other:llm.results x",
        "FLUSHALL",
        "KEYS *",
        "CONFIG GET *",
        "ACL LIST",
    ]
    await denied(server, user, *commands)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("user", ["operator", "nexus"])
async def test_an_operator(server: RedisServer, mode: Mode, user: str) -> None:
    """Dead letters are listed, sent again and dropped, by the command and by a service's console."""
    async with open_redis(url_of(server, f"nexus{USERS[mode]}")) as client:
        await RedisDeadLetters(client, prefix=PREFIX).keep(
            DeadLetter("llm.results", mode + user, "1" * 64, 1, body=b"x")
        )
    url = url_of(server, "operator" if user == "operator" else f"nexus{USERS[mode]}")
    async with open_bus(BusSettings(mode=mode, url=SecretStr(url), channel_prefix=PREFIX)) as transport:
        letters: Any = transport.dead_letters
        newest = (await letters.newest(1))[0]
        assert await letters.count() > 0
        assert (await letters.find(newest.letter_id)) == newest
        await letters.forget_answer("k")
        await transport.bus.publish("llm.results", b"x", once="k")
        await transport.bus.publish("context.build.response.x", b"x")
        assert await letters.drop(newest.letter_id)
    assert await refused_in(server) == []


async def test_an_operator_reads_nothing_else(server: RedisServer) -> None:
    """No answers, and no names of keys."""
    await denied(
        server, "operator", "HGETALL docs:nexus:request:k", "GET docs:nexus:kept:k", "DEL docs:nexus:kept:k", "KEYS *"
    )


async def test_monitoring(server: RedisServer) -> None:
    """It learns lengths and states, and no content."""
    async with open_redis(url_of(server, "nexus-streams")) as client:
        await client.xgroup_create("docs:llm.results", "watched", id="0", mkstream=True)
    async with open_redis(url_of(server, "monitoring")) as client:
        assert await client.info("memory")
        await client.xlen("docs:nexus:dead-letters")
        assert await client.xinfo_groups("docs:llm.results")
        await client.xinfo_consumers("docs:llm.results", "watched")
        assert await client.pubsub_numsub("docs:llm.results")
    await denied(
        server,
        "monitoring",
        "XINFO STREAM docs:llm.results",
        "XRANGE docs:llm.results - +",
        "GET docs:nexus:kept:k",
        "PUBLISH docs:llm.results x",
        "XADD docs:llm.results * message x",
    )


@pytest.mark.skipif(not tls_is_possible(), reason="no redis-server; the packaged Valkey was built without TLS")
async def test_tls() -> None:
    """A certificate of the authority that is trusted will do, one of another will not."""
    async with secured_server() as secured:
        async with open_redis(secured.url(secured.ca)) as client, RedisPubSubBus(client).subscribe("a") as heard:
            assert await RedisPubSubBus(client).publish("a", b"x") == 1
            assert heard.reconnects == 0
        async with open_redis(secured.url(secured.other_ca)) as client:
            with pytest.raises(BusUnavailableError):
                await RedisPubSubBus(client).publish("a", b"x")
