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

INPUT = "the beans are in the cellar"


@pytest.mark.parametrize("mode", ["pubsub", "streams"])
async def test_an_input_whose_replica_is_killed(
    environment: dict[str, str], channel_prefix: str, mongo_uri: str, database_name: str, mode: str
) -> None:
    """Another replica shows it to the next run at once, and writes it."""
    environment |= {"NEXUS_BUS__MODE": mode}
    ask_by = requesting_by_streams if mode == "streams" else requesting
    async with (
        proxied(HOST, port_of(mongo_uri)) as proxy,
        ask_by(environment["NEXUS_BUS__URL"], channel_prefix) as requester,
    ):
        stalled = {"NEXUS_DATABASE__URI": f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"}
        async with serving(environment | stalled) as first:
            proxy.vanish()
            answer = await requester.ask(a_request(INPUT, metadata={"deadline_ms": 2_000}))
            await first.stop(signal.SIGKILL)
        assert answer["status"] == "success"
        assert "history" in answer["degraded"]
        async with serving(environment):
            shown = await requester.ask(a_request())
            assert shown["degraded"] == []
            assert INPUT in shown["messages"][2]["content"]
            with Database(mongo_uri) as client, anyio.fail_after(PATIENCE_S):
                messages = client[database_name]["messages"]
                while not messages.count_documents({"content": INPUT}):
                    await anyio.sleep(0.05)
                assert messages.count_documents({"content": INPUT}) == 1
