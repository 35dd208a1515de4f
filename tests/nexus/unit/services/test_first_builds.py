"""First builds of one run at once, inputs that no journal takes, and a journal that is full (CONTRACT §4.6)."""

from typing import Any

import anyio
from pydantic_core import to_json

from nexus.core.ports import JournalRow, Look
from nexus.core.row_ids import new_row_id
from tests.nexus.unit.services.parts import past, request
from tests.nexus.unit.services.serving import Serving, asking, serving, shared


def journaled(trial: Serving) -> int:
    """How many rows the journal has of ada."""
    return len(trial.ledger.journal.look(Look("ada"), None).rows or ())


async def test_two_at_once_begin_alike() -> None:
    """The one that is answered later begins as the first did, and so does a third; the input is one row."""
    async with serving() as trial:
        trial.builder.gate = anyio.Event()
        for number in range(2):
            trial.service.offer(shared(request(request_id=f"msg_{number}"), entry=f"{number}-0"))
        await trial.ledger.times_asked("begin", 2)
        trial.builder.gate.set()
        first, second = (answer.content["messages"] for answer in await trial.answers(2))
        assert first[:5] == second[:5]
        trial.parts.store.plant("messages", past(1))
        trial.service.offer(shared(request(request_id="msg_3"), entry="3-0"))
        (third,) = await trial.answers()
        assert third.content["messages"][:5] == first[:5]
        await trial.parts.persistence.flush()
    assert len([row for row in trial.parts.store.messages if row["role"] == "HUMAN" and row["run_id"] == "run_1"]) == 1


async def test_an_input_that_is_too_long_for_the_journal() -> None:
    """It is in the store, and its owner's version has moved, before its answer is published."""
    async with serving() as trial:
        before = trial.ledger.journal.look(Look("ada"), None).version
        trial.service.offer(asking(request("x" * 20_000)))
        await trial.answers()
        after = trial.ledger.journal.look(Look("ada"), None)
        assert [row["role"] for row in trial.parts.store.messages] == ["HUMAN"]
    assert (after.version != before, after.rows) == (True, ())


async def test_a_journal_that_is_full() -> None:
    """An owner of whom very much is on its way has answers wait for the store, so that claims stay small."""
    async with serving() as trial:
        for number in range(64):
            row = (
                b'{"id":"h%d","run_id":"r%d","owner_key":"ada","role":"HUMAN","_id":"%024d","content":"",'
                b'"session_id":"default","metadata":{},"timestamp":"2025-01-01T00:00:00+00:00"}'
            ) % (number, number, number)
            trial.ledger.journal.put(JournalRow("ada", f"h{number}", row))
        content = await trial.ask(request())
        assert content["messages"][2]["content"].startswith("[SHARED_MEMORY")
        assert journaled(trial) == 64
        assert [row["id"] for row in trial.parts.store.messages] == ["human_of_run_1"]


async def test_a_journal_that_is_full_of_an_owner_who_is_known() -> None:
    """Also where a claim does not tell the rows, because they are among what is kept."""
    async with serving() as trial:
        trial.parts.store.plant("messages", past(1))
        for number in range(3):
            await trial.ask(request(request_id=f"msg_{number}", run_id=f"run_{number}"))
            await trial.parts.persistence.flush()
        trial.parts.store.down = True
        for number in range(3, 80):
            trial.service.offer(asking(request(request_id=f"msg_{number}", run_id=f"run_{number}")))
            await trial.answers()
        assert 1 <= journaled(trial) <= 64
        trial.parts.store.down = False


async def test_a_continuation_that_nobody_began() -> None:
    """It has what the journal holds of other runs, although it looks for its history in the store alone."""
    row: dict[str, Any] = {
        "id": "h1",
        "run_id": "r1",
        "owner_key": "ada",
        "role": "HUMAN",
        "_id": new_row_id(),
        "content": "tea",
    }
    row |= {"session_id": "default", "metadata": {}, "timestamp": "2025-01-01T00:00:00+00:00"}
    async with serving() as trial:
        trial.ledger.journal.put(JournalRow("ada", "h1", to_json(row)))
        answered = {"run_id": "run_1", "owner_key": "ada", "role": "AI", "content": "and then?"}
        content = await trial.ask(request(later=[answered]))
        assert "Human: tea" in content["messages"][2]["content"]
