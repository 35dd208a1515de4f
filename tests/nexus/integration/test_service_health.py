"""What a whole service says of itself on its health port (contract §10)."""

import http.client
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from pymongo.uri_parser import parse_uri

from nexus.adapters.redis.client import open_redis
from nexus.bootstrap import Nexus, open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, Settings, SystemSettings
from nexus.core.models import Message, Role, Run, Topics
from nexus.core.wire import encode
from tests.nexus.support.mongo_server import mongo_server
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST, redis_server
from tests.nexus.support.waiting import PATIENCE_S, until

SECRET = "hunter2-canary"
CHECKS = ("bus", "ledger", "database", "running")


def settings(uri: str, name: str, drain_seconds: float = 0) -> Settings:
    """On a bus in memory."""
    return Settings(
        bus=BusSettings(mode="memory"),
        database=DatabaseSettings(uri=SecretStr(uri), name=name),
        system=SystemSettings(drain_seconds=drain_seconds),
    )


async def build(nexus: Nexus, **metadata: str) -> dict[str, Any]:
    """A context of an owner whose every word is a canary."""
    human = Message(run_id=f"run-{SECRET}", owner_key=SECRET, role=Role.HUMAN, content=SECRET)
    run = Run(id=human.run_id, owner_key=SECRET, history=[human], metadata=metadata)
    async with ContextClient(nexus.bus).listening() as client:
        return await client.build(run, timeout=PATIENCE_S)


async def got(nexus: Nexus, path: str) -> tuple[int, str]:
    """Status and body, by a client that knows nothing of the loop."""

    def ask() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", nexus.http_port, timeout=PATIENCE_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        status, body = answer.status, answer.read().decode()
        connection.close()
        assert SECRET not in body
        return status, body

    return await anyio.to_thread.run_sync(ask)


async def figures(nexus: Nexus) -> dict[str, float]:
    """What the service has counted, by name and label; zeros left out."""
    families = text_string_to_metric_families((await got(nexus, "/metrics"))[1])
    found = {" ".join((s.name, *s.labels.values())): s.value for family in families for s in family.samples}
    return {name: value for name, value in found.items() if value}


def readiness(nexus: Nexus, check: str, *, well: bool) -> Callable[[], Awaitable[str | None]]:
    """What the check says, as soon as it is, or is no longer, well."""

    async def probe() -> str | None:
        status, body = await got(nexus, "/readyz")
        checks: dict[str, str] = json.loads(body)["checks"]
        assert (status == 200) == all(outcome == "ok" for outcome in checks.values())
        return checks[check] if (checks[check] == "ok") == well else None

    return probe


async def test_a_service_that_is_well(mongo_uri: str, database_name: str) -> None:
    """Alive, ready, and its first request is answered and in the figures, which hold no owner and no text."""
    async with open_nexus(settings(mongo_uri, database_name)) as nexus:
        assert (await got(nexus, "/livez"))[0] == 200
        status, body = await got(nexus, "/readyz")
        assert (status, json.loads(body)["checks"]) == (200, dict.fromkeys(CHECKS, "ok"))
        content = await build(nexus)
        assert (len(content["messages"]), content["degraded"]) == (5, [])
        # No answer waits for its turn, its row or its record.
        await nexus.turns.drained()
        await nexus.persistence.flush()
        assert nexus.records
        await nexus.records.pending.none()
        counted = await figures(nexus)
    assert [counted[f"nexus_ready {check}"] for check in CHECKS] == [1] * len(CHECKS)
    assert counted["nexus_requests_total success"] == 1
    stages = ("queue", "gather", "assemble", "build", "finish", "total")
    assert [counted[f"nexus_stage_seconds_count {stage}"] for stage in stages] == [1] * len(stages)
    assert counted["nexus_rows_total recorded"] == 1
    # Nothing waits, nothing is missing, nothing went wrong.
    alarms = (
        "nexus_degraded",
        "nexus_left_out",
        "nexus_dead_letters",
        "nexus_leases",
        "nexus_late",
        "nexus_queue",
        "nexus_requests_dropped",
    )
    assert not [name for name in counted if name.startswith(alarms)]


async def test_a_store_that_says_nothing(mongo_uri: str, database_name: str) -> None:
    """Alive and not ready, also while it drains; what is missing from answers and what waits to be written is shown."""
    host, port = parse_uri(mongo_uri)["nodelist"][0]
    leave = anyio.Event()

    async def serve(uri: str, *, task_status: TaskStatus[Nexus]) -> None:
        async with open_nexus(settings(uri, database_name, drain_seconds=600)) as nexus:
            task_status.started(nexus)
            await leave.wait()

    with anyio.fail_after(3 * PATIENCE_S):
        async with proxied(host, port) as proxy, anyio.create_task_group() as tasks:
            proxy.silent = True
            nexus = await tasks.start(serve, f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true")
            try:
                assert await until(readiness(nexus, "database", well=False))
                assert (await got(nexus, "/livez"))[0] == 200
                # No request waits for settings that are asked for again and again.
                changed = encode(Message(run_id="setup", owner_key="operator", role=Role.SYSTEM))
                for _ in range(20):
                    await nexus.bus.publish(Topics.CONFIG_CHANGED, changed)
                parts = ["constraints", "facts", "history", "profile", "tools"]
                assert (await build(nexus))["degraded"] == parts
                counted = await figures(nexus)
                assert [counted[f"nexus_degraded_total {part}"] for part in parts] == [1] * len(parts)
                assert counted["nexus_queue_depth turns"] == 1
                assert "nexus_ready bus" in counted
                assert "nexus_ready database" not in counted

                async def kept() -> float:
                    return (await figures(nexus)).get("nexus_outbox_rows", 0)

                assert await until(kept) == 1
                leave.set()
                assert await until(readiness(nexus, "running", well=False)) == "the service is stopping"
            finally:
                leave.set()
                proxy.behave()
                proxy.reset()


async def test_a_redis_that_takes_no_writes(mongo_uri: str, database_name: str) -> None:
    """It can be heard and yet nothing could be answered: not ready, with the kind of error, until writes are taken."""
    async with redis_server() as server, open_redis(server.url) as admin:
        well = settings(mongo_uri, database_name)
        on_redis = well.model_copy(update={"bus": BusSettings(url=SecretStr(server.url))})
        async with open_nexus(on_redis) as nexus:
            assert await until(readiness(nexus, "ledger", well=True)) == "ok"
            await admin.execute_command("REPLICAOF", HOST, "1")  # type: ignore[no-untyped-call]  # redis-py's is untyped
            assert await until(readiness(nexus, "ledger", well=False)) == "ReadOnlyError"
            assert json.loads((await got(nexus, "/readyz"))[1])["checks"]["bus"] == "ok"
            await admin.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]  # redis-py's is untyped
            assert await until(readiness(nexus, "ledger", well=True)) == "ok"


async def test_a_redis_that_is_gone(mongo_uri: str, database_name: str) -> None:
    """A connection that is known to be gone is not called well for as long as it might have been silent."""
    async with redis_server() as server:
        well = settings(mongo_uri, database_name)
        bus = BusSettings(url=SecretStr(server.url), heartbeat_s=60)
        async with open_nexus(well.model_copy(update={"bus": bus})) as nexus:
            assert await until(readiness(nexus, "bus", well=True)) == "ok"
            await server.kill()
            assert await until(readiness(nexus, "bus", well=False)) == "not connected"
            await server.start()
            assert await until(readiness(nexus, "bus", well=True)) == "ok"


@pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
async def test_where_the_time_goes_without_mongodb(layout: str) -> None:
    """With MongoDB killed, a build's time is that of gathering, in its manifest and in the figures."""
    async with mongo_server() as mongo, open_nexus(settings(mongo.uri, "n")) as nexus:
        await mongo.kill()
        content = await build(nexus, layout=layout)
        found = await figures(nexus)
    assert "history" in content["degraded"] or layout == "thinking"
    spent_ms = content["context"]["timings_ms"]
    assert spent_ms["gather"] > spent_ms["build"] / 2
    sums = {stage: found[f"nexus_stage_seconds_sum {stage}"] for stage in ("queue", "gather", "build")}
    assert sums["gather"] > sums["build"] / 2
    assert sums["gather"] > sums["queue"]
