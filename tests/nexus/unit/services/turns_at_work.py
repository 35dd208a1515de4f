"""A turn memory on a store in memory, and a model that does as it is told."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from nexus.core.metrics import Metrics
from nexus.core.models import utc_now
from nexus.core.ports import LanguageModel, Row
from nexus.core.ports.store import Refused
from nexus.core.turns import TurnStart
from nexus.services.history.tombstones import Tombstones
from nexus.services.person.extractor import FactExtractor
from nexus.services.person.facts import Facts
from nexus.services.turns.service import TurnMemory
from nexus.services.turns.worker import TurnSettings, TurnWorker
from tests.nexus.support.fake_model import FakeModel
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.tombstones import NO_TOMBSTONES

PATIENCE_S = 20
GOOD = {
    "brief": "Beans were looked at.",
    "detailed": "The person asked how the beans are. Bed 3 was looked at, and 156 beans were found wet.",
    "structured": {
        "overview": "Beans were looked at.",
        "actions": ["look at bed 3"],
        "results": ["156 beans are wet"],
        "decisions": [],
        "next_steps": [],
    },
    "insights": ["Bed 3 is wet."],
}


def scripted(*answers: str | Callable[[], str]) -> FakeModel:
    """A model that gives these answers, and then a good one each time."""
    return FakeModel(lambda _system, _user: json.dumps(GOOD), *answers)


@dataclass(frozen=True)
class Memory:
    """A turn memory and what it stands on."""

    store: FakeStore
    turns: TurnMemory

    async def begin(self, run_id: str, text: str = "How are the beans?", **given: Any) -> None:
        """Ask for a run, and wait until its turn is kept."""
        kept = self.turns.begin_turn(a_start(run_id, text, **given))
        assert kept is not None
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                # Nobody waits for others to come.
                tasks.start_soon(self.turns.drained)
                await kept.wait()
                tasks.cancel_scope.cancel()

    async def record(self, row: Row) -> None:
        """Record a row as the persistence service does."""
        await self.store.insert_message(row)
        await self.turns.note_row(row)

    async def documents(self, session_id: str = "s", owner_key: str = "o") -> list[Row]:
        """The documents of a session, the lowest number first."""
        return (await self.store.turns.turns(owner_key, session_id, limit=1_000, whole=True))[::-1]

    async def until(self, wanted: Callable[[Row], bool], number: int = 1, *, session: str = "s") -> Row:
        """The document of that turn as soon as it is as wanted."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                document = await self.store.turns.find_turn("o", session, number)
                if document and wanted(document):
                    return document
                await anyio.sleep(0.01)
        raise AssertionError(number)


@asynccontextmanager
async def remembering(
    store: FakeStore | None = None,
    model: LanguageModel | None = None,
    metrics: Metrics | None = None,
    *,
    refused: Refused | None = None,
    extracting: bool = False,
    **settings: float,
) -> AsyncIterator[Memory]:
    """A turn memory at work; with `extracting` the model also reads the facts in what a person says."""
    store = store or FakeStore()
    given = TurnSettings(**{"settled_s": 0.1, **settings})  # type: ignore[arg-type]  # numbers
    extractor = (
        FactExtractor(Facts(store.facts, NO_TOMBSTONES), model, store, metrics=metrics)
        if model and extracting
        else None
    )
    work = TurnWorker(
        store.turns,
        store,
        model,
        settings=given,
        metrics=metrics,
        summarised=store.recall.add_key,
        extract=extractor.extract if extractor else None,
    )
    told: dict[str, Any] = {"refused": refused} if refused else {}
    tombstones = Tombstones(store)
    async with TurnMemory(store.turns, store, tombstones, work, metrics, **told).running() as turns:
        yield Memory(store, turns)


def a_start(
    run_id: str, text: str = "How are the beans?", *, session: str = "s", owner: str = "o", **given: Any
) -> TurnStart:
    """A run that is asked for."""
    return TurnStart(owner, session, run_id, utc_now(), text, f"msg_of_{run_id}", **given)


def human(run_id: str, text: str = "How are the beans?", **changes: Any) -> Row:
    """The row of a run's input."""
    return _row(run_id, "HUMAN", text, f"msg_of_{run_id}", {"source": "new_run"}, **changes)


def calls(run_id: str, *call_ids: str, text: str = "", **changes: Any) -> Row:
    """The row of a model's answer with calls."""
    function = {"name": "look", "arguments": '{"at": "bed 3"}'}
    made = [{"id": call_id, "type": "function", "function": function} for call_id in call_ids]
    metadata = {"source": "llm_result", "tool_calls": made, "has_tool_calls": True}
    return _row(run_id, "AI", text, f"calls_{run_id}_{'_'.join(call_ids)}", metadata, **changes)


def result(run_id: str, call_id: str, text: str = "156 beans are wet", **changes: Any) -> Row:
    """The row of a tool's result."""
    metadata = {"source": "tool_result", "tool_name": "look", "status": "success", "execution_success": True}
    return _row(run_id, "TOOL", text, f"result_{run_id}_{call_id}", {**metadata, "call_id": call_id}, **changes)


def answer(run_id: str, text: str = "They are wet.", **changes: Any) -> Row:
    """The row of a model's final answer."""
    metadata = {"source": "llm_result", "tool_calls": None, "has_tool_calls": False}
    return _row(run_id, "AI", text, f"answer_{run_id}", metadata, **changes)


def _row(run_id: str, role: str, content: Any, row_id: str, metadata: Any, **changes: Any) -> Row:
    row = {
        "id": row_id,
        "run_id": run_id,
        "owner_key": "o",
        "session_id": "s",
        "role": role,
        "content": content,
        "timestamp": utc_now(),
        "metadata": metadata,
    }
    return {**row, **changes}
