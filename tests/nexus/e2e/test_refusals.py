"""What MongoDB refuses to keep is told: a dead letter, and a row that says so in place of a message (§1.6, §2)."""

from typing import Any, Final

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure, WriteError

from tests.nexus.e2e.harness import Document, Environment, Requester, a_message, a_request, requesting, serving
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.waiting import until

SAID: Final = "refuse me"
# By collection what its validator refuses.
REFUSED: Final[dict[str, Document]] = {
    "messages": {"content": SAID},
    "tools": {"name": "refused_tool"},
    **{name: {"owner_key": "rita"} for name in ("session_states", "constraints", "turns", "working_memory")},
}


def _refuse(database: Any) -> None:
    """Put the validators in place, where the server has any."""
    for name, refused in REFUSED.items():
        try:
            database.command("collMod", name, validator={"$nor": [refused]})
            database[name].insert_one({**refused, "by": "the test"})
        except WriteError:
            continue
        except OperationFailure:
            pass
        pytest.skip("this server has no validators")


def _work() -> dict[str, Document]:
    """What is refused, by topic."""
    result = {"result": SAID, "status": "success", "tool_name": "weather", "call_id": "c1"}
    tool = {"name": "refused_tool", "parameters": {"type": "object", "properties": {}}}
    call = {"name": "update_working_memory", "args": {"content": "# Rita"}, "call_id": "c2"}
    state = {"op": "set", "state": {"role": "Gardener"}}
    return {
        "llm.results": a_message({"content": SAID, "tool_calls": None}),
        "tools.results": a_message(result, role="TOOL"),
        "tools.register": a_message({"type": "function", "function": tool}, role="SYSTEM"),
        "session.state": a_message(state, role="COMMAND", owner_key="rita"),
        "session.constraints": a_message({"op": "add", "constraints": ["Dig"]}, role="COMMAND", owner_key="rita"),
        "tools.requests": a_message(call, owner_key="rita", metadata={"session_id": "default"}),
    }


async def _letters(requester: Requester, count: int) -> dict[str, set[str]]:
    """Their reasons, by the id of the message; waits for so many."""

    async def there() -> list[Any] | None:
        entries: Any = await requester.redis.xrange(f"{requester.prefix}nexus:dead-letters")
        return entries if len(entries) >= count else None

    found: dict[str, set[str]] = {}
    for _, fields in await until(there):
        found.setdefault(fields[b"message_id"].decode(), set()).add(fields[b"reason"].decode())
    return found


def _is_told(content: Document) -> bool:
    """Whether a context shows that two messages could not be kept."""
    return sum("could not be kept" in str(message["content"]) for message in content.get("messages", [])) >= 2


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("driver", DRIVERS)
async def test_what_mongodb_refuses(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str, driver: str
) -> None:
    """Everything that is stored: dead letters. The model hears of messages and of its own call."""
    database = mongo_janitor[database_name]
    _refuse(database)
    work, input_request = _work(), a_request(SAID)
    async with serving(environment | {"NEXUS_DATABASE__DRIVER": driver}), requesting(environment) as requester:
        for topic, message in work.items():
            await requester.publish(topic, message)
        answers = [await requester.ask(request) for request in (input_request, a_request(owner="rita"))]
        letters = await _letters(requester, 7)
        # The rows that say so are written a little later than the letters.
        await requester.ask_until(lambda: a_request("And now?", run_metadata={"layout": "agent"}), _is_told)

        async def told() -> Document | None:
            return database["messages"].find_one({"metadata.call_id": "c2"})

        result = await until(told)
    assert [answer["status"] for answer in answers] == ["success", "success"]
    messages = [work[topic]["id"] for topic in ("llm.results", "tools.results")]
    messages.append(input_request["content"]["history"][0]["id"])
    kept = [work[topic]["id"] for topic in ("tools.register", "session.state", "session.constraints")]
    assert {*messages, *kept} <= {*letters}
    (turn,) = letters.keys() - {*messages, *kept}
    assert all("121" in reason for reasons in letters.values() for reason in reasons), letters
    assert all(SAID not in reason for reasons in letters.values() for reason in reasons)
    assert any("turn" in reason for reason in letters[turn])
    rows = [database["messages"].find_one({"id": message_id}) for message_id in messages]
    assert all("could not be kept" in row["content"] for row in rows if row), rows
    assert "121" in result["content"]
    assert result["metadata"]["status"] == "error"
