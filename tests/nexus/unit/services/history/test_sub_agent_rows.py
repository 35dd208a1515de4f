"""What is recorded of a sub-agent's run is marked as its own, whoever is faster (contract §2, §5)."""

from typing import Any

import anyio
import pytest

from nexus.core.models import Message, Role, Topics
from nexus.core.ports import Row, RunOrigin
from nexus.services.history.rows import ROW_MAKERS
from nexus.services.persistence import PersistenceService
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.rows import START
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.waiting import PATIENCE_S

SUB = RunOrigin("s", "reviewer")
MARKS = {"sub_agent_internal": True, "agent_id": "reviewer"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def message(message_id: str, role: Role, content: Any = "x", **metadata: Any) -> Message:
    """A message of the run `r` of the owner `o`."""
    return Message(
        id=message_id, run_id="r", owner_key="o", role=role, content=content, timestamp=START, metadata=metadata
    )


HUMAN = message("h", Role.HUMAN)


def marks(row: Row) -> dict[str, Any]:
    """What the row says of whose business it is."""
    return {name: row["metadata"][name] for name in MARKS if name in row["metadata"]}


async def recorded(store: FakeStore, *offers: tuple[str, Message] | RunOrigin) -> dict[str, Row]:
    """The rows, by id, after a service has been offered these results, and the input where there is an origin."""
    async with PersistenceService(store, NO_TOMBSTONES).running() as service:
        for offer in offers:
            if isinstance(offer, RunOrigin):
                await service.insert_input(service.input_row(HUMAN, offer))
                service.origins.remember("o", "r", offer)
            else:
                assert service.offer(ROW_MAKERS[offer[0]](offer[1], 1), 1)
        with anyio.fail_after(PATIENCE_S):
            await service.flush()
    return {row["id"]: row for row in store.messages}


ANSWER = (Topics.LLM_RESULTS, message("a", Role.AI, {"content": "", "tool_calls": [CALL]}))
RESULT = (Topics.TOOLS_RESULTS, message("t", Role.TOOL, {"result": 1, "call_id": "c1"}))


@pytest.mark.parametrize("origin", [SUB, RunOrigin("s", "")], ids=["named", "nameless"])
async def test_everything_of_a_sub_agents_run_is_marked(origin: RunOrigin) -> None:
    """The input, the model's results and the tools', with the agent's id, which may be empty."""
    rows = await recorded(FakeStore(), origin, ANSWER, RESULT)
    assert sorted(rows) == ["a", "h", "t"]
    assert all(marks(row) == {**MARKS, "agent_id": origin.sub_agent} for row in rows.values())
    assert {row["session_id"] for row in rows.values()} == {"s"}
    assert rows["a"]["metadata"]["tool_calls"] == [CALL]
    assert rows["t"]["metadata"]["call_id"] == "c1"


async def test_nothing_is_marked_otherwise() -> None:
    """Of the main agent's run, and of a run that nobody knows."""
    for offers in ((RunOrigin("s"), ANSWER, RESULT), (ANSWER, RESULT)):
        rows = await recorded(FakeStore(), *offers)
        assert [marks(row) for row in rows.values()] == [{}] * len(offers)
        assert all("agent_id" not in row["metadata"] for row in rows.values())


@pytest.mark.parametrize("origin", [SUB, RunOrigin("s", "")], ids=["named", "nameless"])
async def test_a_result_at_another_replica(origin: RunOrigin) -> None:
    """Which learns from the store whose run it is, and asks it once."""
    store = FakeStore()
    await recorded(store, origin)
    rows = await recorded(store, ANSWER, RESULT)
    assert sorted(rows) == ["a", "h", "t"]
    assert all(marks(row) == {**MARKS, "agent_id": origin.sub_agent} for row in rows.values())
    assert store.calls.count("find_origin") <= 2


@pytest.mark.parametrize(
    ("given_marks", "in_main_run", "in_sub_run"),
    [
        ({"sub_agent_internal": True, "agent_id": "helper"}, "helper", "helper"),
        ({"sub_agent_internal": True}, "", "reviewer"),
        ({"sub_agent_internal": True, "agent_id": 5}, "", "reviewer"),
        ({"sub_agent_internal": 1, "agent_id": None}, "", "reviewer"),
        ({"sub_agent_internal": False, "agent_id": "helper"}, None, "reviewer"),
        ({"agent_id": "helper"}, None, "reviewer"),
    ],
)
async def test_a_message_that_its_sender_marks(
    given_marks: dict[str, Any], in_main_run: str | None, in_sub_run: str
) -> None:
    """It is internal as the sender says, in the one form that is stored; one that names nobody is the run's own."""
    answer = (Topics.LLM_RESULTS, message("a", Role.AI, **given_marks))
    result = (Topics.TOOLS_RESULTS, message("t", Role.TOOL, **given_marks))
    for origin, agent_id in ((RunOrigin("s"), in_main_run), (SUB, in_sub_run)):
        rows = await recorded(FakeStore(), origin, answer, result)
        kept = {} if agent_id is None else {"sub_agent_internal": True, "agent_id": agent_id}
        assert (marks(rows["a"]), marks(rows["t"])) == (kept, kept)
