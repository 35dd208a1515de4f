"""Compacting on every store: nothing lost, nothing twice, whoever compacts (contract §7)."""

import anyio
from bson import ObjectId

from nexus.core.models import utc_now
from nexus.core.ports import Row, Store
from nexus.core.working_memory import Compaction, CompactionRequest, Target
from nexus.services.memory.compactor import CompactionSettings, Compactor
from nexus.services.memory.documents import Audit, audit
from tests.nexus.contract.test_store import Place, insert_all, place
from tests.nexus.support.archives import read_archive
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.rows import row
from tests.nexus.support.tombstones import NO_TOMBSTONES

__all__ = ["place"]

SESSION = ("o", "s")


def exchange(number: int) -> list[Row]:
    """A run of a question, a call with its result, and an answer."""
    run, calls = f"r{number}", {"tool_calls": [{"id": f"c{number}", "name": "f", "arguments": '{"q": "车票"}'}]}
    return [
        row(4 * number, run_id=run),
        row(4 * number + 1, run_id=run, role="AI", content="", metadata=calls),
        row(4 * number + 2, run_id=run, role="TOOL", metadata={"call_id": f"c{number}", "tool_name": "f"}),
        row(4 * number + 3, run_id=run, role="AI"),
    ]


async def compact(store: Store, **wish: object) -> Compaction | None:
    """Compact the session, as a replica of its own."""
    compactor = Compactor(store.memory, store, NO_TOMBSTONES, FakeCounter(), CompactionSettings(summary_max_tokens=200))
    return await compactor.compact(CompactionRequest(*SESSION, **wish))  # type: ignore[arg-type]  # as the caller names them


async def test_replicas_at_once(place: Place) -> None:
    """While rows are recorded: each row stays in the tail or comes under one compaction."""
    async with place.open() as store:
        await insert_all(store, [item for number in range(12) for item in exchange(number)])

        async def record() -> None:
            await insert_all(store, [item for number in range(12, 16) for item in exchange(number)])

        async def compact_often(target: Target) -> None:
            for keep in (20, 8, 0):
                await compact(store, target=target, keep_recent=keep)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(record)
            tasks.start_soon(compact_often, "all")
            tasks.start_soon(compact_often, "tools")
        found = await audit(store.memory, store.turns, store, *SESSION)
        assert found.messages == 64
        assert found.is_right
        await compact(store)
        assert await audit(store.memory, store.turns, store, *SESSION) == Audit(messages=64, summarised=64)


async def test_rows_of_all_kinds(place: Place) -> None:
    """Late ones, ones of other writers, those of a sub-agent: what is the session's is accounted for."""
    async with place.open() as store:
        place.plant("messages", [row(number, _id=f"other-{number}") for number in range(3)])
        internal = {"metadata": {"sub_agent_internal": True, "agent_id": "a"}}
        await insert_all(store, [*exchange(10), row(90, run_id="sub", **internal)])
        made = await compact(store, keep_recent=2, strategy="archive")
        assert made
        assert made.count == 4
        details = [await store.memory.find_detail(*SESSION, name) for name in made.details]
        told = read_archive(detail["content"] for detail in details if detail)
        assert [item.text for item in told] == [*(f"text {number}" for number in range(3)), "text 40"]
        late = ObjectId.from_datetime(utc_now())
        place.plant("messages", [row(91, _id=ObjectId(f"{late}"[:8] + "0" * 16))])
        assert await audit(store.memory, store.turns, store, *SESSION) == Audit(messages=8, in_context=4, summarised=4)
        seen = await store.tail_messages(*SESSION, made.tail, limit=9, sub_agent="a")
        assert "m90" in {item["id"] for item in seen}
