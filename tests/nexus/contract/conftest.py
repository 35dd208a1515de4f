"""What the contract suites share."""

import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
