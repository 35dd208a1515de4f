"""Messages about a session give one state in any order, in copies, and on several replicas (contract §5)."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from nexus.services.session_state.merge import state_in
from nexus.services.session_state.state import SessionState, Todo, TodoStatus
from tests.nexus.e2e.harness import Document, Environment, a_message, requesting, serving
from tests.nexus.support.waiting import until

STATE = "session.state"


def said(content: Any, second: int = 0) -> Document:
    """A message about a session, said so many seconds after an hour ago."""
    at = datetime.now(UTC) - timedelta(hours=1, seconds=-second)
    return a_message(content, role="COMMAND", timestamp=at.isoformat())


def todo(number: int) -> Document:
    """A todo as a patch gives it."""
    return {"id": f"t.{number}", "text": f"todo {number}", "status": "pending"}


@pytest.mark.usefixtures("mode")
async def test_shuffled_and_doubled(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """Two replicas, a session's messages in any order and twice: the latest message about each part counts."""
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

    async def ended() -> SessionState | None:
        row = mongo_janitor[database_name]["session_states"].find_one({"session_id": "default"})
        state, _ = state_in(row["document"] if row else None)
        return state if state.sub_agent_roles else None

    async with serving(environment), serving(environment), requesting(environment) as requester:
        # No other message is about roles. On pubsub the replica that has stored the last one has stored all before it.
        for message in [*doubled, said({"op": "patch", "state": {"sub_agent_roles": {"end": "all"}}}, 92)]:
            await requester.publish(STATE, message)
        await until(ended)
        await requester.finished(STATE)
        state = await until(ended)
    done = {True: TodoStatus.COMPLETED, False: TodoStatus.PENDING}
    assert state.todos == tuple(
        Todo(f"t.{number}", f"todo {number}", done[number % 2 == 1]) for number in range(1, 40) if number != 4
    )
    assert state.role == "new"
    assert [info.text for info in state.useful_info or ()] == ["kept"]
