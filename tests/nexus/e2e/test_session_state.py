"""What is said of a session on the bus: one state, whatever the order, the copies and the outages (contract §5)."""

import random
import signal
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from nexus.services.session_state.merge import state_in
from nexus.services.session_state.state import SessionState, Todo, TodoStatus
from tests.nexus.e2e.harness import (
    PATIENCE_S,
    Requester,
    StreamRequester,
    port_of,
    requesting,
    requesting_by_streams,
    serving,
)
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST

Environment = dict[str, str]
Database = MongoClient[dict[str, Any]]

STATE = "session.state"
REQUESTERS: dict[str, Callable[[str, str], AbstractAsyncContextManager[Requester]]] = {
    "pubsub": requesting,
    "streams": requesting_by_streams,
}


@dataclass(frozen=True)
class Kept:
    """Where the states are kept."""

    uri: str
    database: str

    def state(self, owner: str = "ada", session: str = "default") -> SessionState:
        """What is kept of a session now."""
        with Database(self.uri) as client:
            row = client[self.database]["session_states"].find_one({"owner_key": {"$eq": owner}, "session_id": session})
        return state_in(row["document"] if row else None)[0]

    async def becomes(self, wanted: Callable[[SessionState], bool], requester: Requester, owner: str = "ada") -> None:
        """Wait until a state is as wanted."""
        with anyio.fail_after(PATIENCE_S):
            while not wanted(self.state(owner)):
                await requester.redis.ping()


@pytest.fixture
def kept(mongo_uri: str, database_name: str) -> Kept:
    """The test's own database."""
    return Kept(mongo_uri, database_name)


@pytest.fixture(params=["pubsub", "streams"])
def mode(request: pytest.FixtureRequest, environment: Environment) -> str:
    """The mode of the bus, which the services of the test have."""
    environment |= {"NEXUS_BUS__MODE": request.param, "NEXUS_BUS__LEASE_MS": "500"}
    return str(request.param)


def said(content: Any, second: int = 0, *, owner: str = "ada", **metadata: Any) -> dict[str, Any]:
    """A message about a session, said so many seconds after an hour ago."""
    at = datetime.now(UTC) - timedelta(hours=1, seconds=-second)
    common = {"run_id": "run_1", "owner_key": owner, "role": "COMMAND", "metadata": metadata}
    return {"id": f"msg_{uuid.uuid4().hex}", **common, "content": content, "timestamp": at.isoformat()}


def todo(number: int, status: str = "pending") -> dict[str, Any]:
    """A todo as a patch gives it."""
    return {"id": f"t.{number}", "text": f"todo {number}", "status": status}


def ends(text: str) -> Mapping[str, Any]:
    """Something to wait for: nothing else is said of this role."""
    return {"op": "patch", "state": {"sub_agent_roles": {"end": text}}}


async def test_shuffled_and_doubled(mode: str, environment: Environment, channel_prefix: str, kept: Kept) -> None:
    """Two replicas, a session's messages in any order and twice: the state is what was said last of each thing."""
    messages = [
        said({"op": "set", "state": {"role": "old", "todos": [todo(90)], "useful_info": ["forgotten"]}}, 0),
        said({"op": "clear", "parts": ["useful_info"]}, 1),
        said({"op": "set", "state": {"todos": [todo(1), todo(2)]}}, 2),
        *(said({"op": "patch", "state": {"todos": [todo(number)]}}, number) for number in range(3, 40)),
        *(
            said({"op": "patch", "state": {"todos": [{"id": f"t.{number}", "status": "completed"}]}}, 40 + number)
            for number in range(1, 40, 2)
        ),
        said({"op": "patch", "remove": {"todos": ["t.4", "t.90"]}}, 90),
        said({"op": "patch", "state": {"role": "new", "useful_info": [{"id": 1, "content": "kept"}]}}, 91),
    ]
    doubled = [*messages, *messages]
    random.Random(4).shuffle(doubled)  # noqa: S311  # no secrets here
    async with (
        serving(environment),
        serving(environment),
        REQUESTERS[mode](environment["NEXUS_BUS__URL"], channel_prefix) as requester,
    ):
        for message in [*doubled, said(ends("all"), 92)]:
            await requester.publish(STATE, message)
        # On pubsub whoever has stored the last one has stored all before it.
        await kept.becomes(lambda state: bool(state.sub_agent_roles), requester)
        if isinstance(requester, StreamRequester):
            await requester.finished(STATE)
    state = kept.state()
    done = {True: TodoStatus.COMPLETED, False: TodoStatus.PENDING}
    assert state.todos == tuple(
        Todo(f"t.{number}", f"todo {number}", done[number % 2 == 1]) for number in range(1, 40) if number != 4
    )
    assert state.role == "new"
    assert [info.text for info in state.useful_info or ()] == ["kept"]


async def test_an_outage_of_mongodb(
    mode: str, environment: Environment, channel_prefix: str, mongo_uri: str, kept: Kept
) -> None:
    """What was accepted while MongoDB was gone is stored when it is back, also by a service that is told to stop."""
    async with proxied(HOST, port_of(mongo_uri)) as proxy:
        environment |= {
            "NEXUS_DATABASE__URI": f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true",
            "NEXUS_DATABASE__TIMEOUT_MS": "1500",
        }
        async with (
            serving(environment) as service,
            REQUESTERS[mode](environment["NEXUS_BUS__URL"], channel_prefix) as requester,
        ):
            proxy.refuse()
            for number in range(20):
                await requester.publish(STATE, said({"op": "patch", "state": {"todos": [todo(number)]}}, number))
            await service.logged("session_state_delayed")
            service.process.send_signal(signal.SIGTERM)
            await service.logged("draining")
            proxy.behave()
            with anyio.fail_after(PATIENCE_S):
                assert await service.process.wait() == 0
    assert [each.id for each in kept.state().todos or ()] == [f"t.{number}" for number in range(20)]
