"""Where a run belongs, whoever is asked and whoever was first (contract §2)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nexus.adapters.in_memory import MemoryBus, MemoryLedger
from nexus.core.errors import StoreUnavailableError
from nexus.core.models import Message, Role
from nexus.core.ports import RunOrigin
from nexus.services.context.builder import ContextBuilder
from nexus.services.history.recorder import RunOrigins
from nexus.services.history.rows import llm_row
from nexus.services.persistence import PersistenceService
from nexus.services.tools.registry import ToolRegistry
from tests.nexus.support.builder_settings import BY_DEFAULT
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.unit.services.parts import AwayLedger, request, within

KEEP_MS = 60_000
MAIN, SCOUT = RunOrigin("garden"), RunOrigin("garden", "scout")
AGENT = {"kind": "sub", "id": "scout", "role": "You look things up."}


@asynccontextmanager
async def replica(store: FakeStore, ledger: MemoryLedger) -> AsyncIterator[tuple[PersistenceService, ContextBuilder]]:
    """The parts of one of several services."""
    async with PersistenceService(store, NO_TOMBSTONES, ledger=ledger).running() as persistence:
        yield persistence, ContextBuilder(persistence, store, ToolRegistry(), ledger, BY_DEFAULT)


def answer(text: str, run_id: str = "run_1") -> Message:
    """A model's result, which does not say whose it is."""
    return Message(run_id=run_id, owner_key="ada", role=Role.AI, content={"content": text})


def internal(store: FakeStore) -> dict[str, bool]:
    """By its text, whether each row is marked as internal to a sub-agent."""
    return {row["content"]: row["metadata"].get("sub_agent_internal", False) for row in store.messages}


async def test_the_first_who_asks_counts() -> None:
    """In one process and in several, for each owner and run by itself."""
    store, ledger = FakeStore(), MemoryLedger(MemoryBus())
    one, other = RunOrigins(store, ledger), RunOrigins(store, ledger)
    assert await one.begin("ada", "run_1", MAIN, KEEP_MS) == MAIN
    assert await other.begin("ada", "run_1", SCOUT, KEEP_MS) == MAIN
    assert await other.begin("bob", "run_1", SCOUT, KEEP_MS) == SCOUT
    assert await RunOrigins(store, ledger).find("ada", "run_1") == MAIN
    assert await RunOrigins(store, ledger).find("ada", "run_2") == RunOrigin("default")


async def test_the_ledger_overrules_what_a_replica_remembers() -> None:
    """Also where the replica knows a later request of the run alone."""
    store, ledger = FakeStore(), MemoryLedger(MemoryBus())
    await RunOrigins(store, ledger).begin("ada", "run_1", MAIN, KEEP_MS)
    origins = RunOrigins(store, ledger)
    origins.remember("ada", "run_1", SCOUT)
    assert await origins.begin("ada", "run_1", SCOUT, KEEP_MS) == MAIN
    assert await origins.find("ada", "run_1") == MAIN


async def test_a_ledger_that_is_away() -> None:
    """What is known here and in the store is enough to begin; where nobody else knows, nothing is made up."""
    origins = RunOrigins(FakeStore(), AwayLedger(MemoryBus()))
    assert await origins.begin("ada", "run_1", SCOUT, KEEP_MS) == SCOUT
    assert await origins.find("ada", "run_1") == SCOUT
    with pytest.raises(StoreUnavailableError, match="where the run belongs"):
        await origins.find("ada", "run_2")


async def test_many_runs() -> None:
    """The 5,000 that were used last are known without asking the ledger."""
    origins = RunOrigins(FakeStore(), AwayLedger(MemoryBus()))
    for number in range(6_000):
        origins.remember("ada", f"run_{number}", SCOUT)
        assert origins.remember("ada", "run_0", MAIN) == SCOUT
    assert await origins.known("ada", "run_1001") == SCOUT
    with pytest.raises(StoreUnavailableError):
        await origins.known("ada", "run_1000")


async def test_a_result_before_the_input_is_written_at_another_replica() -> None:
    """The input waits in the replica that built; the result comes to one that does not know the run."""
    ledger, away, store = MemoryLedger(MemoryBus()), FakeStore(), FakeStore()
    away.down = True
    asked = request(run_metadata={"layout": "agent", "agent": AGENT, "session_id": "garden"})
    async with replica(away, ledger) as (_, builder), replica(store, ledger) as (persistence, _):
        await builder.build(asked, within(0.2))
        assert persistence.offer(llm_row(answer("found"), 1), 1)
        await persistence.flush()
    (row,) = store.messages
    assert row["session_id"] == "garden"
    assert row["metadata"]["agent_id"] == "scout"
    assert row["metadata"]["sub_agent_internal"] is True


@pytest.mark.parametrize("first_is_main", [True, False])
async def test_two_agents_in_one_run(first_is_main: bool) -> None:
    """What is not marked belongs to whoever began the run, and the other one is told."""
    store, ledger = FakeStore(), MemoryLedger(MemoryBus())
    main: dict[str, Any] = {"layout": "agent", "session_id": "garden"}
    both = [("by main", main), ("by scout", main | {"agent": AGENT})]
    notes = []
    async with replica(store, ledger) as (persistence, builder):
        for number, (text, metadata) in enumerate(both if first_is_main else both[::-1]):
            asked = request(text, request_id=f"msg_{number}", run_metadata=metadata)
            asked.content["history"][0]["id"] = f"human_{number}"
            content = (await builder.build(asked, within(5))).result
            assert isinstance(content, dict)
            notes.append([note for note in content["context"]["notes"] if "another agent" in note])
        persistence.offer(llm_row(answer("an answer"), 1), 1)
        await persistence.flush()
    assert [len(found) for found in notes] == [0, 1]
    assert internal(store) == {"by main": False, "by scout": True, "an answer": not first_is_main}
