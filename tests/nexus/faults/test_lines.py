"""Lines to Redis that stall without a word, and that are slow (contract §1.5)."""

import uuid
from contextlib import closing

import anyio
import pytest
from redis.asyncio import Redis

from nexus.client import ContextClient
from nexus.connections import open_client
from nexus.core.models import Message, Role, Run
from tests.nexus.faults.fleet import Replica
from tests.nexus.faults.judge import History, first_success_after
from tests.nexus.faults.scene import (
    PREFIX,
    REDIS_PASSWORD,
    Scene,
    Stage,
    in_both_modes,
    lasting,
    scaled,
    staged,
    through,
)
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST

_HALF_OPEN_S = 60.0
_NOTICED_S = 15.0
_KILOBYTE = 1_024


async def _connections(redis: Redis, ports: set[int]) -> int:
    """How many connections Redis still believes in, of those from these ports."""
    return sum(int(str(client["addr"]).rpartition(":")[2]) in ports for client in await redis.client_list())


async def _noticed(scene: Scene, replica: Replica) -> tuple[float, float]:
    """Stall all that there is; returns when that was, and how long it took to be noticed."""
    stalled_at = scene.history.happened("stalled")
    scene.redis_proxy.stall()
    await replica.logged("bus_disconnected")
    noticed_s = scene.history.happened("noticed") - stalled_at
    await replica.logged("bus_reconnected")
    return stalled_at, noticed_s


async def _connections_stall(stage: Stage, mode: str) -> None:
    """The only replica's connections stall without an error, also for Redis: noticed within 15 s, for 60 s no harm."""
    async with staged(stage, "half_open", mode, deadline_ms=30_000) as scene:
        (replica,) = await scene.fleet.start(variables=through(scene.redis_proxy))
        await scene.load.offer(10, 20, scene.asks())
        stays = scene.redis_proxy.upstream_ports()
        async with scene.load.offered(10, scene.asks()):
            stalled_at, noticed_s = await _noticed(scene, replica)
            gone_s = scene.history.happened("reconnected") - stalled_at
            await anyio.sleep(max(0.0, lasting(_HALF_OPEN_S, least=0) - gone_s))
            await scene.whole()
            kept = await _connections(scene.load.wire.redis, stays)
            half_open_s = scene.history.happened("over") - stalled_at
        await scene.ended()
        answered_s = first_success_after(scene.history.events(), stalled_at)
        verdict = scene.verdict(
            noticed_s=round(noticed_s, 1),
            answered_again_s=round(answered_s, 1),
            half_open_s=round(half_open_s),
            connections=kept,
        )
    assert noticed_s <= _NOTICED_S
    assert kept
    assert set(verdict.outcomes) == {"success"}


async def _build(client: ContextClient, seen: History, number: int) -> None:
    """Have a context built, and write down what the caller of the client receives."""
    ids = {"run_id": f"run_{uuid.uuid4().hex}", "owner_key": f"o{number}"}
    said = Message(**ids, role=Role.HUMAN, content=f"number {number}")
    run = Run(id=said.run_id, owner_key=said.owner_key, history=[said])
    seen.happened("asked", run=run.id)
    content = await client.build(run, timeout=30)
    shown = [message for message in content["messages"] if f"number {number}" in str(message["content"])]
    seen.happened("answered", run=run.id, shown=len(shown))


async def _the_requesters_connections_stall(stage: Stage, mode: str) -> None:
    """The client's connections stall: it notices by itself within 15 s, and each of its requests is answered."""
    async with staged(stage, "requester_half_open", mode) as scene, proxied(HOST, scene.redis.port) as proxy:
        await scene.fleet.start()
        url = f"redis://:{REDIS_PASSWORD}@{HOST}:{proxy.port}/0"
        with closing(History(scene.folder / "client.jsonl")) as seen:
            async with open_client(
                url, mode="pubsub" if mode == "pubsub" else "streams", channel_prefix=PREFIX
            ) as client:
                await _build(client, seen, 0)
                stalled_at = seen.happened("stalled")
                proxy.stall()
                async with anyio.create_task_group() as tasks:
                    for number in range(1, 6):
                        tasks.start_soon(_build, client, seen, number)
            answers = [event for event in seen.events() if event["what"] == "answered"]
        await scene.ended()
        worst_s = max(event["at"] for event in answers) - stalled_at
        scene.print_figures(builds=6, succeeded=len(answers), worst_s=round(worst_s, 1))
    assert len(answers) == len({event["run"] for event in answers}) == 6
    assert all(event["shown"] for event in answers)
    assert worst_s <= _NOTICED_S


async def _a_slow_line(stage: Stage, mode: str) -> None:
    """Half a second of latency either way: every request is answered in time, or told that its time is over."""
    async with staged(stage, "slow_line", mode) as scene:
        await scene.fleet.start(2, through(scene.redis_proxy))
        await scene.load.offer(scaled(20), 20, scene.asks())
        scene.redis_proxy.latency_s = 0.25
        await scene.load.offer(scaled(60), 10, scene.asks(deadline_ms=10_000))
        scene.redis_proxy.latency_s = 0.5
        await scene.load.offer(scaled(30), 5, scene.asks(deadline_ms=10_000))
        scene.redis_proxy.behave()
        await scene.ended()
        # A lease beyond the deadline, as ever, and the way there and back.
        scene.verdict(late_after_ms=scene.lease_ms + 1_000)


async def _a_line_of_a_kilobyte_a_second(stage: Stage, mode: str) -> None:
    """A connection carries 1 KB/s, at a smaller scale more: each request is answered in time, or told it is late."""
    async with staged(stage, "narrow_line", mode, deadline_ms=60_000) as scene:
        await scene.fleet.start(variables=through(scene.redis_proxy))
        await scene.load.offer(5, 20, scene.asks())
        # Requests sent again every second would fill the line with copies alone.
        scene.load.resend_s = 20.0
        scene.redis_proxy.bytes_per_s = round(_KILOBYTE / lasting(1, least=0))
        await scene.load.offer(2, 0.1, scene.asks())
        scene.redis_proxy.behave()
        await scene.ended()
        verdict = scene.verdict()
    assert set(verdict.outcomes) <= {"success", "DEADLINE_EXCEEDED"}


test_connections_open_at_one_end_only = pytest.mark.timeout(150)(
    in_both_modes(_connections_stall, _the_requesters_connections_stall)
)
test_slow_lines = pytest.mark.timeout(180)(in_both_modes(_a_slow_line, _a_line_of_a_kilobyte_a_second))
