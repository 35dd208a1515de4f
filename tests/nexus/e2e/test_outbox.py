"""What was answered is remembered, although MongoDB does not have it and the replica that answered is dead."""

import signal

import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import a_request, port_of, requesting, requesting_by_streams, serving
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST

SAID = "the beans are in the cellar"


@pytest.mark.parametrize("mode", ["pubsub", "streams"])
async def test_an_input_whose_replica_is_killed(
    environment: dict[str, str], channel_prefix: str, mongo_uri: str, database_name: str, mode: str
) -> None:
    """The next run is shown it by another replica, which writes it, once."""
    environment |= {"NEXUS_BUS__MODE": mode}
    ask_by = requesting_by_streams if mode == "streams" else requesting
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
        async with serving(environment) as second:
            shown = await requester.ask(a_request())
            assert shown["degraded"] == []
            assert SAID in shown["messages"][2]["content"]
            await second.logged("outbox_drained")
    with MongoClient[dict[str, object]](mongo_uri) as client:
        assert client[database_name]["messages"].count_documents({"content": SAID}) == 1
