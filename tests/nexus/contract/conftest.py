"""What the contract suites share."""

import socket
from functools import partial

import pytest

from tests.nexus.contract.ledgers import OpenDesk, memory_desk, pubsub_desk, streams_desk


@pytest.fixture
def unused_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(params=["memory", "pubsub", "streams"])
def open_desk(request: pytest.FixtureRequest) -> OpenDesk:
    """How to open each ledger."""
    if request.param == "memory":
        return memory_desk
    url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("channel_prefix")
    return partial(pubsub_desk if request.param == "pubsub" else streams_desk, url, prefix)
