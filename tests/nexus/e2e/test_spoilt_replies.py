"""Replies of MongoDB and Redis with a flipped bit, or cut: a service outlives them and shows nothing foreign."""

import json
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import pytest

import nexus
from tests.nexus.e2e.harness import (
    REQUEST,
    Document,
    Environment,
    Requester,
    Service,
    a_message,
    a_request,
    behind,
    requesting,
    serving,
)
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.mongo_server import mongo_server
from tests.nexus.support.proxy import Proxy, proxied
from tests.nexus.support.redis_server import HOST

PACKAGE: Final = str(Path(nexus.__file__).parent)
SPOILT: Final = 150
OWNERS: Final = ("ada", "bob")
LAYOUTS: Final = ("agent", "dialogue", "thinking")
# Nothing hangs on a reply for long.
IMPATIENT: Final = {
    "NEXUS_DATABASE__TIMEOUT_MS": "1500",
    "NEXUS_BUS__HEARTBEAT_S": "0.5",
    "NEXUS_BUS__LEASE_MS": "500",
    "NEXUS_BUS__REQUEST_DEADLINE_MS": "5000",
}


class Spoiler:
    """Flips a bit of a tenth of the pieces that come from a server, or cuts them; `count` is of how many until now."""

    def __init__(self) -> None:
        self.count = 0
        self._random = random.Random(1)  # noqa: S311  # the same faults in every run

    def __call__(self, piece: bytes) -> bytes:
        """The piece, or what has become of it."""
        if self._random.random() > 0.1:
            return piece
        self.count += 1
        if self._random.random() < 0.1:
            return piece[: self._random.randrange(len(piece))]
        spoilt = bytearray(piece)
        # Mostly near the beginning, where types and lengths stand.
        spoilt[min(int(self._random.expovariate(1 / 64)), len(piece) - 1)] ^= 1 << self._random.randrange(8)
        return bytes(spoilt)


def mark(owner: str) -> str:
    """A text that only this owner may be shown."""
    return f"The mark of {owner}."


async def talk(requester: Requester, owner: str, layout: str) -> None:
    """A run: its context, for which it does not wait long, and messages of every other kind."""
    run_id = f"run_{uuid.uuid4().hex}"
    request = a_request(mark(owner), owner=owner, run_id=run_id, run_metadata={"layout": layout})
    call = {"name": "update_working_memory", "args": {"content": mark(owner)}, "call_id": run_id}
    state = {"op": "patch", "state": {"role": mark(owner)}}
    others: Mapping[str, Document] = {
        "tools.requests": a_message(call, run_id, "SYSTEM", owner_key=owner),
        "llm.results": a_message({"content": mark(owner)}, run_id, owner_key=owner),
        "session.state": a_message(state, run_id, "SYSTEM", owner_key=owner),
        "session.constraints": a_message(
            {"op": "add", "constraints": [{"text": mark(owner), "scope": "owner"}]}, run_id, "SYSTEM", owner_key=owner
        ),
    }
    await requester.publish(REQUEST, request)
    for topic, message in others.items():
        await requester.publish(topic, message)
    with anyio.move_on_after(0.5):
        await requester.answered(request["id"])


async def spoil(proxy: Proxy, service: Service, requester: Requester) -> None:
    """Have a service at work while replies are spoilt."""
    spoiler = Spoiler()
    proxy.spoil = spoiler
    number = 0
    while spoiler.count < SPOILT:
        assert service.process.returncode is None, "\n".join(service.errors)
        async with anyio.create_task_group() as tasks:
            for owner in OWNERS:
                tasks.start_soon(talk, requester, owner, LAYOUTS[number % len(LAYOUTS)])
        number += 1
    proxy.spoil = None
    proxy.reset()


async def judge(requester: Requester) -> None:
    """A good request of each owner is answered, and no answer until then has a mark of another's."""
    for owner, other in (OWNERS, OWNERS[::-1]):

        def ask(owner: str = owner) -> Document:
            return a_request("And now?", owner=owner)

        last = await requester.ask_until(ask, lambda content: content.get("degraded") == [])
        assert mark(owner) in str(last["messages"])
        answers = [answer for found in requester.answers.values() for _, answer in found]
        assert not [answer for answer in answers if answer["owner_key"] == owner and mark(other) in str(answer)]


@asynccontextmanager
async def behind_proxy(environment: Environment, server: str) -> AsyncIterator[tuple[Proxy, Environment]]:
    """A proxy in front of one of the two servers, and the variables of a service behind it."""
    if server == "redis":
        async with proxied(HOST, urlsplit(environment["NEXUS_BUS__URL"]).port or 6379) as proxy:
            yield proxy, {"NEXUS_BUS__URL": f"redis://{HOST}:{proxy.port}/0"}
    else:
        # One of its own: a set's members would take over the time of a cluster from a client that was told a wrong one.
        async with mongo_server() as own, proxied(HOST, own.port) as proxy:
            yield proxy, behind(proxy)


@pytest.mark.heavy
@pytest.mark.once
@pytest.mark.parametrize(
    ("mode", "server", "driver"),
    [
        *(("streams", "mongodb", driver) for driver in DRIVERS),
        *((mode, "redis", "motor") for mode in ("pubsub", "streams")),
    ],
    indirect=["mode"],
)
@pytest.mark.usefixtures("mode")
async def test_spoilt_replies(environment: Environment, server: str, driver: str) -> None:
    """They end nothing, and a good request is answered afterwards; those of MongoDB are no fault of Nexus.

    Such a reply may also give a wrong limit, for which the driver refuses a row: that is told, and no fault.
    """
    environment["NEXUS_DATABASE__DRIVER"] = driver
    async with (
        behind_proxy(environment, server) as (proxy, there),
        serving(environment | IMPATIENT | there) as service,
        requesting(environment) as requester,
    ):
        with anyio.fail_after(90):
            await spoil(proxy, service, requester)
        await judge(requester)
        assert await service.stop() == 0
    # pymongo prints what a background task of its own could not read.
    assert [line for line in service.errors if PACKAGE in line] == []
    faults = {"background_fault", "build_failed", "request_failed"}
    assert "\n".join(json.dumps(line) for line in service.log if line["event"] in faults) == ""
