"""The parts put together in one process, on a bus in memory (contract §1.4, §9)."""

import socket
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from nexus.bootstrap import open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.config.settings import SystemSettings
from nexus.core.models import Message, Role, Run, Topics
from nexus.core.wire import encode


@pytest.fixture
def silent_server() -> Iterator[int]:
    """The port of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        yield int(listener.getsockname()[1])


def _settings(uri: str, name: str = "nexus") -> Settings:
    return Settings(
        bus=BusSettings(mode="memory"),
        database=DatabaseSettings(uri=SecretStr(uri), name=name),
        system=SystemSettings(drain_seconds=0),
    )


def _run(text: str = "Good morning") -> Run:
    human = Message(run_id="run_1", owner_key="ada", role=Role.HUMAN, content=text)
    return Run(id="run_1", owner_key="ada", history=[human])


async def test_it_answers_in_one_process(mongo_uri: str, database_name: str) -> None:
    """Embedded in a program, without Redis: a request over the bus in memory gets its five messages."""
    async with open_nexus(_settings(mongo_uri, database_name)) as nexus, ContextClient(nexus.bus).listening() as client:
        content = await client.build(_run(), timeout=20)
    assert len(content["messages"]) == 5
    assert content["degraded"] == []


async def test_a_silent_store_holds_up_no_request(silent_server: int) -> None:
    """While the store is asked for settings again and again and says nothing, a request is answered in its time."""
    uri = f"mongodb://127.0.0.1:{silent_server}/?directConnection=true"
    async with open_nexus(_settings(uri)) as nexus, ContextClient(nexus.bus).listening() as client:
        changed = encode(Message(run_id="setup", owner_key="operator", role=Role.SYSTEM))
        for _ in range(20):
            await nexus.bus.publish(Topics.CONFIG_CHANGED, changed)
        content = await client.build(_run(), timeout=10)
    assert content["status"] == "success"
    assert content["degraded"] == ["history", "profile", "tools"]
