"""What was answered is remembered, although MongoDB does not have it and the replica that answered is dead."""

import signal
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import PATIENCE_S, a_request, port_of, requesting, requesting_by_streams, serving
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST

Database = MongoClient[dict[str, Any]]

SAID = "the beans are in the cellar"


@pytest.mark.parametrize("mode", ["pubsub", "streams"])
async def test_an_input_whose_replica_is_killed(
    environment: dict[str, str], channel_prefix: str, mongo_uri: str, database_name: str, mode: str
) -> None:
    """The next run is shown it by another replica at once; and that one writes it, when nobody else has."""
    environment |= {"NEXUS_BUS__MODE": mode}
    ask_by = requesting_by_streams if mode == "streams" else requesting
    unwritten = f"{channel_prefix}nexus:unwritten"
    async with (
        proxied(HOST, port_of(mongo_uri)) as proxy,
        ask_by(environment["NEXUS_BUS__URL"], channel_prefix) as requester,
    ):
        stalled = {"NEXUS_DATABASE__URI": f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"}
        async with serving(environment | stalled) as first:
            proxy.vanish()
            answer = await requester.ask(a_request(SAID, metadata={"deadline_ms": 1_000}))
            await first.stop(signal.SIGKILL)
        assert answer["status"] == "success"
        with Database(mongo_uri) as client:
            messages = client[database_name]["messages"]
            async with serving(environment) as second:
                shown = await requester.ask(a_request())
                assert shown["degraded"] == []
                assert SAID in shown["messages"][2]["content"]
                assert messages.find_one({"content": SAID}) is None
                # As if it had been there for a minute.
                async for name, _ in requester.redis.zscan_iter(unwritten):
                    await requester.redis.zincrby(unwritten, -60_000, name)
                await second.logged("input_adopted")
                with anyio.fail_after(PATIENCE_S):
                    while await requester.redis.zcard(unwritten):
                        await requester.redis.ping()
            assert messages.count_documents({"content": SAID}) == 1
