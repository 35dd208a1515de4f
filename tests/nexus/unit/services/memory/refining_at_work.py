"""Compactions on a store in memory, and a model that writes their summaries."""

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from nexus.core.models import utc_now
from nexus.core.ports import LanguageModel, MessageStore, Row
from nexus.core.ports.memory import MemoryStore
from nexus.core.working_memory import REFINE, Compaction
from nexus.services.memory.refiner import RefiningSettings, SummaryRefiner
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.fake_model import FakeModel
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.summary_writer import write
from tests.nexus.support.waiting import until
from tests.nexus.unit.services.turns_at_work import answer, calls, human, result


def writing(*script: str | Callable[[], str]) -> FakeModel:
    """A model that gives these answers, and then writes a good summary each time."""
    return FakeModel(lambda _system, user: json.dumps(write(json.loads(user)), ensure_ascii=False), *script)


def said(summary: Any) -> str:
    """An answer with that summary."""
    return json.dumps({"summary": summary}, ensure_ascii=False)


def a_run(run_id: str, figure: int = 156) -> list[Row]:
    """The rows of a run with a call; each text has the figure in it."""
    return [
        human(run_id, f"How are the {figure} beans of bed 3?"),
        calls(run_id, "1", text=f"I look at all {figure}."),
        result(run_id, "1", f"{figure} beans are wet"),
        answer(run_id, f"They are wet, all {figure}."),
    ]


def a_compaction(number: int, row_ids: Sequence[str], **changes: Any) -> Row:
    """A compaction whose summary is by rules, and is to be refined."""
    now, count = utc_now(), len(row_ids)
    summary = f"By rules, number {number}."
    made = Compaction(number=number, created_at=now, summary=summary, count=count, total=count, since="00000000")
    row = {
        "owner_key": "o",
        "session_id": "s",
        **made.model_dump(),
        "rows": list(row_ids),
        "work": REFINE,
        "due_at": now,
    }
    return {**row, **changes}


def documents(model: FakeModel) -> list[dict[str, Any]]:
    """What the model was given, in order."""
    return [json.loads(user) for user in model.users]


def figures_told(document: dict[str, Any]) -> set[str]:
    """The figures of the runs among the messages of a document."""
    texts = " ".join(entry.get("text", "") for entry in document["messages"])
    return {*re.findall(r"\d{4}", texts)}


@dataclass
class Session:
    """A session whose compactions are refined by workers, on a store of messages and compactions."""

    store: Any
    session: str = "s"
    metrics: RecordingMetrics = field(default_factory=RecordingMetrics)
    workers: list[SummaryRefiner] = field(default_factory=list)

    @property
    def memory(self) -> MemoryStore:
        """Where the compactions are."""
        memory: MemoryStore = self.store.memory
        return memory

    async def compact(
        self, number: int, *, figure: int | None = None, texts: Sequence[str] = (), **changes: Any
    ) -> None:
        """Record a run with that figure in its texts, or with these answers, and compact it."""
        run_id = f"{self.session}_{number}"
        rows = a_run(run_id, 1_000 + number if figure is None else figure)
        rows = [answer(run_id, text, id=f"{run_id}_{place}") for place, text in enumerate(texts)] or rows
        for row in rows:
            await self.store.insert_message({**row, "session_id": self.session})
        found = await self.store.run_messages("o", run_id, limit=len(rows))
        ids = {row["id"]: row["_id"] for row in found}
        compaction = a_compaction(number, [ids[row["id"]] for row in rows], session_id=self.session)
        assert await self.memory.insert_compaction({**compaction, **changes})

    async def document(self, number: int = 1) -> Row:
        """The compaction, without its rows."""
        found = await self.memory.compactions("o", self.session, limit=1, before=number + 1)
        assert found[0]["number"] == number
        return found[0]

    async def until(self, wanted: Callable[[Row], bool], number: int = 1) -> Row:
        """The compaction as soon as it is as wanted."""

        async def found() -> Row | None:
            document = await self.document(number)
            return document if wanted(document) else None

        return await until(found)

    async def hasten(self, number: int = 1, **changes: Any) -> None:
        """Have it due now, and the workers look; somebody who has it in hand loses it."""
        changed = {"due_at": utc_now(), **changes}
        assert await self.memory.update_compaction("o", self.session, number, changed, seen={})
        for worker in self.workers:
            worker.wake()

    @asynccontextmanager
    async def refining(self, model: LanguageModel, **settings: Any) -> AsyncIterator[SummaryRefiner]:
        """Have a worker at it."""
        messages: MessageStore = self.store
        given = RefiningSettings(**settings)
        worker = SummaryRefiner(self.memory, messages, model, FakeCounter(), settings=given, metrics=self.metrics)
        self.workers.append(worker)
        async with worker.running():
            yield worker


def is_refined(document: Row) -> bool:
    """Whether the model's summary is kept."""
    return bool(document["source"] == "model")


def is_over(document: Row) -> bool:
    """Whether nothing more is to be done."""
    return document["work"] is None and document["due_at"] is None


def attempted(times: int) -> Callable[[Row], bool]:
    """Whether the model has talked nonsense so often."""
    return lambda document: document.get("attempts") == times


def pause_of(document: Row) -> timedelta:
    """In how long it is due."""
    due_at: datetime = document["due_at"]
    return due_at - utc_now()
