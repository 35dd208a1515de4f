"""Retention on every store: what is old goes, never more than is under a summary, and nothing is lost (contract §7)."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import anyio
import pytest
from bson import ObjectId

from nexus.adapters.in_memory import MemoryBus, MemoryDeadLetters, MemoryLedger
from nexus.core.errors import StoreUnavailableError
from nexus.core.metrics import Event, NoMetrics
from nexus.core.models import Message, Role, new_row_id, utc_now
from nexus.core.ports import DeadLetter, Row, Store
from nexus.core.ports.retention import Removable
from nexus.core.recall import EPISODE
from nexus.core.turns import TurnStart
from nexus.core.working_memory import WHOLE, Compaction, CompactionRequest
from nexus.services.context.builder import ContextBuilder
from nexus.services.context.request import Deadline
from nexus.services.memory.compactor import CompactionSettings, Compactor
from nexus.services.memory.documents import Audit, audit, document_of
from nexus.services.memory.service import WorkingMemory
from nexus.services.persistence import PersistenceService
from nexus.services.person.facts import Facts
from nexus.services.recall.indexer import Indexer
from nexus.services.recall.service import Recall
from nexus.services.recall.texts import findable
from nexus.services.retention import Retention, RetentionSettings
from nexus.services.tools.registry import ToolRegistry
from nexus.services.turns.service import TurnMemory
from nexus.services.turns.worker import TurnWorker
from tests.nexus.contract.test_memory import overview
from tests.nexus.contract.test_store import OWNERS, Place, insert_all, place
from tests.nexus.support.builder_settings import BY_DEFAULT
from tests.nexus.support.constraints import constraints_on
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.old_session import BEGUN, DAY, KEY, OWNER, SESSION, object_id, planted, run_of, said, turn_of
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.waiting import until

__all__ = ["place"]

FOR_EVER: Final = timedelta(days=10_000)
CUT: Final = 10


def since(day: int) -> timedelta:
    """The age at which everything goes that was stored before that day."""
    return utc_now() - (BEGUN + (day - 0.5) * DAY)


async def retain(store: Store, **kept: timedelta) -> dict[Event, int]:
    """Make a pass, a little later: an `_id` says the second alone."""
    retention = Retention(store, MemoryDeadLetters(), RetentionSettings(**kept), NoMetrics())
    removed = await retention.run_pass(utc_now() + timedelta(seconds=2))
    return {event: count for event, count in removed.items() if count}


async def compact(store: Store, **wish: Any) -> Compaction | None:
    """Compact the session."""
    compactor = Compactor(store.memory, store, NO_TOMBSTONES, FakeCounter(), CompactionSettings(summary_max_tokens=200))
    return await compactor.compact(CompactionRequest(*KEY, **wish))


async def counted(store: Store) -> Audit:
    """The audit of the session."""
    return await audit(store.memory, store.turns, store, *KEY)


async def left(store: Store) -> list[str]:
    """The ids of the rows that are there, in the order of storing."""
    return [row["id"] for row in await store.tail_messages(*KEY, WHOLE, limit=100_000, oldest_first=True)]


def ids_of(days: Collection[int], *more: str) -> list[str]:
    """The ids of all messages of these days' runs."""
    return [*(f"m{day}.{place}" for day in days for place in range(4)), *more]


class Onlooker(TurnMemory):
    """Turn memory that begins no turn."""

    def begin_turn(self, _start: TurnStart) -> anyio.Event | None:
        """Let it be."""
        return anyio.Event()


class Reader(PersistenceService):
    """Persistence that records no input: one that a busy server takes late would be there in the next context."""

    async def insert_input(self, row: Row, *, outbox_waiting: bool = False) -> None:
        """Let it be."""


async def context(store: Store, layout: str) -> bytes:
    """What a request would get now, of which nothing is recorded."""
    persistence, counter = Reader(store, NO_TOMBSTONES), FakeCounter()
    builder = ContextBuilder(
        persistence,
        store,
        ToolRegistry(),
        MemoryLedger(MemoryBus()),
        BY_DEFAULT,
        turns=Onlooker(store.turns, store, NO_TOMBSTONES, TurnWorker(store.turns, store)),
        memory=WorkingMemory(
            store.memory,
            store,
            Compactor(store.memory, store, NO_TOMBSTONES, counter).compact,
            constraints=constraints_on(store),
            facts=Facts(store.facts, NO_TOMBSTONES),
        ),
        counter=counter,
    )
    human = {"id": "asked", "role": "HUMAN", "run_id": "asking", "owner_key": OWNER, "content": "And now?"}
    metadata = {"layout": layout, "session_id": SESSION, "client_timestamp_utc": "2026-01-01T00:00:00Z"}
    run = {"id": "asking", "owner_key": OWNER, "history": [human], "metadata": metadata}
    message = Message(id="m", run_id="asking", owner_key=OWNER, role=Role.HUMAN, content=run)
    async with persistence.running():
        built = await builder.build(message, Deadline(60_000, anyio.current_time() + 60))
    assert isinstance(built.result, dict), built.result
    assert built.result["degraded"] == []
    return json.dumps(built.result["messages"], ensure_ascii=False).encode()


class TestPort:
    """The promises of `nexus.core.ports.RetentionStore`."""

    async def test_one_claims_the_pass(self, place: Place) -> None:
        """Of many at once, and again when it is due; a claim that was lost changes nothing."""
        async with place.open() as store:
            now = BEGUN
            claims: list[Row | None] = []

            async def claim() -> None:
                claims.append(await store.retention.claim_pass(now, now + DAY))

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(claim)
            assert [found for found in claims if found] == [{"due_at": now + DAY}]
            assert await store.retention.claim_pass(now + DAY - timedelta(seconds=1), now + 2 * DAY) is None
            assert not await store.retention.update_pass({"due_at": now}, seen={"due_at": now})
            assert await store.retention.update_pass({"due_at": now}, seen={"due_at": now + DAY})
            assert await store.retention.claim_pass(now, now + DAY) == {"due_at": now + DAY}

    async def test_headers_in_pages(self, place: Place) -> None:
        """All documents of all owners, in the order of storing, each once, without what is long."""
        turns = [turn_of(day, owner_key=owner) for day, owner in enumerate(OWNERS, 1)]
        place.plant("turns", turns)
        async with place.open() as store:
            found: list[Row] = []
            while page := await store.retention.stored_before(
                "turns", utc_now(), after=found[-1]["_id"] if found else "", limit=5
            ):
                found += page
        assert [header["owner_key"] for header in found] == OWNERS
        assert found[0]["messages"] == turns[0]["messages"]
        assert "task_context" not in found[0]

    async def test_an_owner_s_documents_alone(self, place: Place) -> None:
        """Whatever the owner is called, rows are read and removed of that owner only."""
        rows = [said(day, 0, owner_key=owner) for day, owner in enumerate(OWNERS, 1)]
        place.plant("messages", planted(rows))
        every = [row["_id"] for row in rows]
        async with place.open() as store:
            for index, owner in enumerate(OWNERS):
                assert [row["_id"] for row in await store.retention.rows_of_ids(owner, every)] == [every[index]]
                of_runs = await store.retention.rows_of_runs(owner, SESSION, [row["run_id"] for row in rows])
                assert [row["_id"] for row in of_runs] == [every[index]]
                assert await store.retention.rows_of_runs(owner, "s", [rows[index]["run_id"]]) == []
                assert await store.retention.remove("messages", owner, [*every, "other", new_row_id()]) == 1
                assert await store.retention.rows_of_ids(owner, every) == []


class TestRowsUnderCompactions:
    """Of sessions that are compacted."""

    @pytest.mark.parametrize("strategy", ["summarize", "archive"])
    async def test_old_runs_go(self, place: Place, strategy: Any) -> None:
        """Those that are under a compaction as a whole; contexts stay the same, byte for byte."""
        place.plant("messages", planted(row for day in range(1, 31) for row in run_of(day)))
        place.plant("turns", [turn_of(day) for day in range(1, 31)])
        async with place.open() as store:
            await compact(store, strategy=strategy, keep_recent=60)
            await compact(store, strategy=strategy, keep_recent=40)
            before = [await context(store, layout) for layout in ("agent", "dialogue", "thinking")]
            assert await retain(store, messages=since(CUT)) == {Event.ROW_REMOVED: 36}
            assert await left(store) == ids_of(range(CUT, 31))
            assert await counted(store) == Audit(messages=120, in_context=40, summarised=44, removed=36)
            assert [await context(store, layout) for layout in ("agent", "dialogue", "thinking")] == before
            assert await retain(store, messages=since(CUT)) == {}
            # What is in the tail stays, however old it is.
            assert await retain(store, messages=since(100)) == {Event.ROW_REMOVED: 44}
            assert await left(store) == ids_of(range(21, 31))
            assert [await context(store, layout) for layout in ("agent", "dialogue")] == before[:2]
            await compact(store, keep_recent=0)
            assert await retain(store, messages=since(100)) == {Event.ROW_REMOVED: 40}
            assert await counted(store) == Audit(messages=120, removed=120)

    @pytest.mark.parametrize(
        ("more", "turns", "kept"),
        [
            ([], [turn_of(1), turn_of(2)], []),
            pytest.param([], [turn_of(1), turn_of(2, status="acting")], [2], id="the turn goes on"),
            pytest.param([], [turn_of(1), turn_of(2, work="close")], [2], id="something was recorded"),
            pytest.param([], [], [1], id="without turns the first input will be the goal"),
            pytest.param([said(2, 3, id="late", _id=object_id(20))], [turn_of(1)], [2], id="a part is young"),
            pytest.param(
                [said(2, 3, id="said later", timestamp=BEGUN + 20 * DAY)], [turn_of(1)], [2], id="said lately"
            ),
        ],
    )
    async def test_runs_that_stay(
        self, place: Place, more: Sequence[Row], turns: Sequence[Row], kept: Sequence[int]
    ) -> None:
        """Whole, where some of a run is not old, or it may go on."""
        stored = [*run_of(1), *run_of(2), *more]
        place.plant("messages", planted(row | {"_id": row["_id"][:-4] + f"{at:04x}"} for at, row in enumerate(stored)))
        if turns:
            place.plant("turns", turns)
        async with place.open() as store:
            await compact(store)
            await retain(store, messages=since(CUT))
            assert await left(store) == ids_of(kept, *(row["id"] for row in more))
            found = await counted(store)
        assert (found.messages, found.lost, found.twice) == (len(stored), 0, 0)

    async def test_what_is_not_compacted(self, place: Place) -> None:
        """A run in the tail in part, and what is internal to a sub-agent, stay; so does its owner's other session."""
        internal = {"sub_agent_internal": True, "agent_id": "a"}
        elsewhere = said(1, 0, id="elsewhere", _id=object_id(1, 999), session_id="other")
        place.plant("messages", planted([*run_of(1), *run_of(2), elsewhere]))
        place.plant("messages", planted([said(1, 0, id="internal", _id=object_id(1, 998), metadata=internal)]))
        place.plant("turns", [turn_of(1), turn_of(2)])
        async with place.open() as store:
            await compact(store, target="tools")
            assert await retain(store, messages=since(CUT)) == {}
            await compact(store, keep_recent=1)
            assert await retain(store, messages=since(CUT)) == {Event.ROW_REMOVED: 4}
            assert (await counted(store)).is_right
            rows = await store.all_messages(OWNER, limit=20)
        assert {row["id"] for row in rows} == {*ids_of([2]), "elsewhere", "internal"}

    async def test_rows_of_other_writers(self, place: Place) -> None:
        """Without a run each is one by itself; an `_id` that says no time is as old as the row says."""
        others = [said(day, 0, _id=f"other-{day}", id=f"o{day}", run_id=None) for day in (1, 2, 20)]
        place.plant("messages", [*others, said(3, 0, _id=7, id="o7", run_id="", timestamp="2024-03-03T00:00:00Z")])
        place.plant("turns", [turn_of(1)])
        async with place.open() as store:
            await compact(store)
            assert await retain(store, messages=since(CUT)) == {Event.ROW_REMOVED: 3}
            assert await left(store) == ["o20"]
            assert await counted(store) == Audit(messages=4, summarised=1, removed=3)


class TestRowsUnderTurns:
    """Of sessions of which nothing is compacted."""

    @pytest.mark.parametrize("source", ["fallback", "model"])
    async def test_old_runs_go(self, place: Place, source: str) -> None:
        """Those whose turn is summarised, by rules or by a model; contexts that show only later ones are the same."""
        place.plant("messages", planted(row for day in range(1, 31) for row in run_of(day)))
        place.plant(
            "turns", [turn_of(day, summaries={**turn_of(day)["summaries"], "source": source}) for day in range(1, 31)]
        )
        async with place.open() as store:
            before = [await context(store, layout) for layout in ("dialogue", "thinking")]
            assert await retain(store, messages=since(CUT)) == {Event.ROW_REMOVED: 36}
            assert await left(store) == ids_of(range(CUT, 31))
            assert [await context(store, layout) for layout in ("dialogue", "thinking")] == before
            assert f"Asked for trains on day {CUT - 1}:".encode() in await context(store, "agent")
            assert await counted(store) == Audit(messages=120, in_context=84, removed=36)
            await compact(store, keep_recent=4)
            assert await counted(store) == Audit(messages=120, in_context=4, summarised=80, removed=36)
            assert (await store.turns.turns(*KEY, limit=1))[0]["summaries"]["source"] == source

    @pytest.mark.parametrize(
        "changes",
        [
            {"status": "acting"},
            {"work": "close"},
            {"messages": ["m2.0", "m2.1", "m2.2"]},
            {"messages": None},
            {"summaries": {"brief": " ", "detailed": None}},
            {"summaries": "?"},
            {"timestamp": BEGUN + 20 * DAY},
            {"run_id": "another"},
        ],
        ids=str,
    )
    async def test_runs_that_stay(self, place: Place, changes: Row) -> None:
        """Those of which the turn is not over, has no summary, or one that is not of all rows."""
        place.plant("messages", planted([*run_of(1), *run_of(2)]))
        place.plant("turns", [turn_of(1), turn_of(2, **changes)])
        async with place.open() as store:
            assert await retain(store, messages=since(CUT)) == {Event.ROW_REMOVED: 4}
            assert await left(store) == ids_of([2])

    async def test_what_comes_after_all(self, place: Place) -> None:
        """A row that is recorded of a run that went does not take the place of its summary."""
        place.plant("messages", planted(run_of(1)))
        place.plant("turns", [turn_of(1)])
        async with place.open() as store:
            await retain(store, messages=since(CUT))
            kept = await store.turns.find_turn(*KEY, 1)
            await insert_all(store, [said(1, 3, id="late", _id=object_id(30))])
            turns = TurnMemory(store.turns, store, NO_TOMBSTONES, TurnWorker(store.turns, store))

            async def closed_again() -> Row | None:
                found = await store.turns.find_turn(*KEY, 1)
                return found if found and found["work"] is None else None

            async with turns.running():
                await turns.note_row(said(1, 3, id="late"))
                await turns.drained()
                found = await until(closed_again)
        assert kept
        assert (found["summaries"], found["messages"]) == (kept["summaries"], kept["messages"])


class TestOtherThings:
    """Turns, revisions, details, dead letters."""

    async def test_turns(self, place: Place) -> None:
        """They go after their rows, but for the newest, from which number and goal of the next come."""
        place.plant("messages", planted([*run_of(1), *run_of(3)]))
        place.plant("turns", [turn_of(1), turn_of(2), turn_of(3, work="close"), turn_of(4), turn_of(5)])
        async with place.open() as store:
            assert await retain(store, turns=since(3)) == {Event.TURN_REMOVED: 2}
            place.plant("turns", [turn_of(1), turn_of(2)])
            assert await retain(store, turns=since(100), messages=FOR_EVER) == {}
            removed = await retain(store, turns=since(100), messages=since(3))
            assert removed == {Event.ROW_REMOVED: 4, Event.TURN_REMOVED: 2}
            assert [turn["turn_number"] for turn in await store.turns.turns(*KEY, limit=9)] == [5, 4, 3]
            goal = await TurnMemory(store.turns, store, NO_TOMBSTONES, TurnWorker(store.turns, store)).goal(*KEY, "new")
        assert (goal.text, goal.earlier) == ("To Porto. 去波尔图。", 5)

    async def test_revisions(self, place: Place) -> None:
        """The current one stays, however old it is."""
        of_session = {"owner_key": OWNER, "session_id": SESSION}
        documents = [
            overview(number, _id=ObjectId(object_id(number)), updated_at=BEGUN + number * DAY, **of_session)
            for number in range(1, 6)
        ]
        place.plant("working_memory", documents)
        async with place.open() as store:
            assert await retain(store, memory_revisions=since(3)) == {Event.REVISION_REMOVED: 2}
            assert await retain(store, memory_revisions=since(100)) == {Event.REVISION_REMOVED: 2}
            assert [each["revision"] for each in await store.memory.overviews(*KEY, limit=9)] == [5]

    async def test_details(self, place: Place) -> None:
        """Earlier versions of notes go; an archive goes, and its compaction says so; one of no compaction goes too."""
        of_session = {"owner_key": OWNER, "session_id": SESSION, "bytes": 1, "content": "文", "call_id": ""}
        notes = [("flights", 1, 1), ("flights", 2, 2), ("flights", 3, 3), ("航班", 1, 1)]
        documents: list[Row] = [
            {"name": name, "version": version, "kind": "note", "compaction": None, "at": day}
            for name, version, day in notes
        ]
        documents.append({"name": "compaction-0009", "version": 1, "kind": "archive", "compaction": 9, "at": 1})
        place.plant("messages", planted(run_of(1)))
        place.plant("turns", [turn_of(1)])
        place.plant(
            "memory_details",
            [
                {
                    **each,
                    **of_session,
                    "_id": ObjectId(object_id(each["at"], number)),
                    "updated_at": BEGUN + each["at"] * DAY,
                }
                for number, each in enumerate(documents)
            ],
        )
        async with place.open() as store:
            made = await compact(store, strategy="archive")
            assert made
            assert await retain(store, details=since(3)) == {Event.DETAIL_REMOVED: 3}
            found = await store.memory.list_details(*KEY)
            assert [each["name"] for each in found] == [*made.details, "flights", "航班"]
            assert await retain(store, details=timedelta(milliseconds=1)) == {Event.DETAIL_REMOVED: 1}
            (compaction,) = await store.memory.compactions(*KEY, limit=1)
            assert compaction["details"] == compaction["details_removed"] == [*made.details]
            assert await counted(store) == Audit(messages=4, summarised=4)

    async def test_dead_letters(self, place: Place) -> None:
        """They go by their age."""
        letters = MemoryDeadLetters()
        await letters.keep(DeadLetter("t", "reason", "0" * 64, 1))
        async with place.open() as store:
            retention = Retention(store, letters, RetentionSettings(dead_letters=DAY), NoMetrics())
            assert not +await retention.run_pass(utc_now())
            assert await retention.run_pass(utc_now() + 2 * DAY) == {Event.LETTER_REMOVED: 1}
        assert await letters.count() == 0

    async def test_one_session_does_not_stop_the_others(self, place: Place) -> None:
        """Whatever other programs have written."""
        hostile = [
            {
                "_id": ObjectId(object_id(0)),
                "owner_key": OWNER,
                "session_id": SESSION,
                "number": [1],
                "first_at": BEGUN,
            },
            {"_id": ObjectId(object_id(0, 1)), "owner_key": {"$ne": 1}, "session_id": 7},
            {
                "_id": ObjectId(object_id(0, 2)),
                "owner_key": "p",
                "session_id": "s",
                "number": 1,
                "rows": 7,
                "first_at": BEGUN,
            },
        ]
        place.plant("compactions", hostile[1:])
        place.plant("turns", [{**hostile[1], "turn_number": 1}, turn_of(1)])
        place.plant("messages", planted(run_of(1)))
        async with place.open() as store:
            assert await retain(store, messages=since(CUT)) == {Event.ROW_REMOVED: 4}


def faltering(store: Store, batches: int) -> Any:
    """The store as retention uses it, which goes away in the middle of a removal after so many whole ones."""
    left = batches

    async def remove(kind: Removable, owner_key: str, ids: Sequence[str]) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            await store.retention.remove(kind, owner_key, ids[::2])
            raise StoreUnavailableError("away")
        return await store.retention.remove(kind, owner_key, ids)

    whole = store.retention
    retention = SimpleNamespace(
        stored_before=whole.stored_before, rows_of_runs=whole.rows_of_runs, rows_of_ids=whole.rows_of_ids, remove=remove
    )
    return SimpleNamespace(
        retention=retention,
        memory=store.memory,
        turns=store.turns,
        recall=store.recall,
        first_input=store.first_input,
    )


async def index(store: Store) -> None:
    """Have all messages of the owner indexed."""
    await store.recall.mark(OWNER, limit=10_000)

    async def is_indexed() -> bool:
        return (await store.recall.status(OWNER)).waiting == 0

    async with Indexer(store.recall).running():
        await until(is_indexed)


async def found(store: Store) -> list[str]:
    """The ids of the messages that long-term memory finds for words that are in all."""
    hits = (await Recall(store.recall).search(OWNER, "Which trains to Porto? 就是", limit=200)).hits
    return sorted(hit.row["id"] for hit in hits)


async def left_in_index(store: Store) -> set[int]:
    """The places of which the index has anything."""
    known = [each for day in range(1, 31) for row in run_of(day) if (each := findable(row))]
    terms, flags = ({name for each in known for name in getattr(each, part)} for part in ("terms", "flags"))
    postings = await store.recall.postings(OWNER, terms, flags)
    places = {(episode, at) for by in postings.terms.values() for episode in by for at in map(int, by[episode])}
    places |= {
        (episode, at)
        for by in postings.flags.values()
        for episode, bits in by.items()
        for at in range(EPISODE)
        if bits >> at & 1
    }
    return {int(episode) * EPISODE + at for episode, at in places}


class TestLongTermMemory:
    """What is compacted or archived is found, what was removed is not."""

    @pytest.mark.parametrize("strategy", ["summarize", "archive"])
    async def test_what_goes_is_not_found(self, place: Place, strategy: Any) -> None:
        """The index has nothing left of it; what stays is found as before."""
        place.plant("messages", planted(row for day in range(1, 31) for row in run_of(day)))
        place.plant("turns", [turn_of(day) for day in range(1, 31)])
        async with place.open() as store:
            await index(store)
            assert await found(store) == sorted(ids_of(range(1, 31)))
            await compact(store, keep_recent=8, strategy=strategy)
            assert await found(store) == sorted(ids_of(range(1, 31)))
            assert await retain(store, messages=since(CUT)) == {Event.ROW_REMOVED: 36}
            assert await found(store) == sorted(ids_of(range(CUT, 31)))
            stays = [row["_id"] for day in range(CUT, 31) for row in run_of(day)]
            assert await left_in_index(store) == await store.recall.places_of(OWNER, stays)

    async def test_a_pass_that_is_broken_off(self, place: Place) -> None:
        """The index has nothing more of rows that are still there, and they go with the next pass."""
        place.plant("messages", planted(row for day in range(1, 31) for row in run_of(day)))
        place.plant("turns", [turn_of(day) for day in range(1, 31)])
        async with place.open() as store:
            await index(store)
            with pytest.raises(StoreUnavailableError):
                await retain(faltering(store, 0), messages=since(CUT))
            stays = {row["_id"] for day in range(CUT, 31) for row in run_of(day)}
            assert len(await left(store)) > len(stays)
            assert await left_in_index(store) == await store.recall.places_of(OWNER, stays)
            await retain(store, messages=since(CUT))
            assert await left(store) == ids_of(range(CUT, 31))
            assert await found(store) == sorted(ids_of(range(CUT, 31)))


class TestAtOnce:
    """Passes that are broken off or made twice, and what goes on meanwhile."""

    @pytest.mark.parametrize(("batches", "compacted"), [(0, True), (1, True), (0, False)])
    async def test_a_pass_that_is_broken_off(self, place: Place, batches: int, compacted: bool) -> None:
        """No row is lost meanwhile, and the next pass does the rest."""
        place.plant("messages", planted(row for day in range(1, 31) for row in run_of(day)))
        place.plant("turns", [turn_of(day) for day in range(1, 31)])
        async with place.open() as store:
            if compacted:
                await compact(store, keep_recent=100)
                await compact(store, keep_recent=40)
            with pytest.raises(StoreUnavailableError):
                await retain(faltering(store, batches), messages=since(CUT))
            found = await counted(store)
            assert found.is_right
            assert found.messages == 120
            assert found.removed == 120 - len(await left(store))
            assert 0 < found.removed < 36
            await retain(store, messages=since(CUT))
            assert await left(store) == ids_of(range(CUT, 31))
            assert (await counted(store)).removed == 36

    @pytest.mark.parametrize("compacted", [True, False])
    async def test_two_at_once(self, place: Place, compacted: bool) -> None:
        """As where one outlived its claim: together they remove each row once; contexts can be built all the time."""
        place.plant("messages", planted(row for day in range(1, 61) for row in run_of(day)))
        place.plant("turns", [turn_of(day) for day in range(1, 61)])
        removed = Counter[Event]()
        async with place.open() as store:
            if compacted:
                await compact(store, keep_recent=100)
            ended = anyio.Event()

            async def make() -> None:
                removed.update(await retain(store, messages=since(CUT)))
                ended.set()

            async def build(layout: str) -> None:
                while not ended.is_set():
                    await context(store, layout)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(make)
                tasks.start_soon(make)
                tasks.start_soon(build, "agent")
            assert removed == {Event.ROW_REMOVED: 36}
            assert await left(store) == ids_of(range(CUT, 61))
            assert (await counted(store)).is_right

    async def test_a_compaction_meanwhile(self, place: Place) -> None:
        """The first of a session, which names rows that the turns had let go: they are not lost."""
        place.plant("messages", planted(row for day in range(1, 31) for row in run_of(day)))
        place.plant("turns", [turn_of(day) for day in range(1, 31)])
        async with place.open() as store:
            before = await store.tail_messages(*KEY, WHOLE, limit=200)
            await retain(store, messages=since(CUT))
            made = Compaction(
                number=1,
                created_at=utc_now(),
                summary="- All.",
                rows=tuple(row["_id"] for row in before),
                count=120,
                total=120,
                since=object_id(100)[:8],
                first_at=BEGUN,
            )
            assert await store.memory.insert_compaction(document_of(made, KEY))
            assert await counted(store) == Audit(messages=120, summarised=84, removed=36)
            assert await retain(store, turns=since(20)) == {Event.TURN_REMOVED: 19}
            assert await retain(store, messages=since(100)) == {Event.ROW_REMOVED: 84}
            assert await counted(store) == Audit(messages=120, removed=120)

    @pytest.mark.heavy
    @pytest.mark.once
    async def test_thousands_of_rows(self, place: Place) -> None:
        """In one session, compacted in many steps."""
        for first in range(1, 1_001, 250):
            place.plant("messages", planted(row for day in range(first, first + 250) for row in run_of(day)))
            place.plant("turns", [turn_of(day) for day in range(first, first + 250)])
        async with place.open() as store:
            await compact(store, keep_recent=400)
            before = await context(store, "agent")
            assert await retain(store, messages=since(3_000)) == {Event.ROW_REMOVED: 3_600}
            assert await counted(store) == Audit(messages=4_000, in_context=400, removed=3_600)
            assert await context(store, "agent") == before


@pytest.mark.parametrize("seed", range(12))
async def test_any_session(place: Place, seed: int) -> None:
    """Every message is shown, under one summary, or counted as removed; contexts of what stays are the same bytes."""
    chance = Random(seed)  # noqa: S311  # a test, not a secret
    async with place.open() as store:
        total, day, number, compacts = 0, 0, 0, seed % 3
        for _ in range(chance.randint(2, 5)):
            for _ in range(chance.randint(1, 12)):
                day += 1
                number += 1
                rows = run_of(day)[: chance.choice([4, 4, 4, 2, 3])]
                if chance.random() < 0.1:
                    rows = [row | {"run_id": None} for row in rows]
                place.plant("messages", planted(rows))
                total += len(rows)
                if chance.random() < 0.9:
                    status, work = chance.choice([("completed", None)] * 8 + [("acting", None), ("failed", "close")])
                    ids = [row["id"] for row in rows]
                    place.plant("turns", [turn_of(day, number, status=status, work=work, messages=ids)])
            if compacts and chance.random() < 0.8:
                target, strategy = (
                    chance.choice(["all", "tools", "conversation"]),
                    chance.choice(["summarize", "archive"]),
                )
                await compact(store, target=target, strategy=strategy, keep_recent=chance.randint(0, 12))
        for _ in range(3):
            before, tail = await context(store, "agent"), await _tail(store)
            shown, cut = await context(store, "dialogue"), since(chance.randint(0, day + 2))
            was_there = await left(store)
            await retain(store, messages=cut)
            there, found = await left(store), await counted(store)
            assert (found.lost, found.twice, found.messages) == (0, 0, total)
            assert found.removed == total - len(there)
            if compacts and await store.memory.latest_compaction(*KEY):
                assert await _tail(store) == tail
                assert await context(store, "agent") == before
            if was_there[-_SHOWN:] == there[-_SHOWN:]:
                assert await context(store, "dialogue") == shown


# Messages of so many rows are as many as a dialogue shows, or more.
_SHOWN: Final = 4 * 20


async def _tail(store: Store) -> list[str]:
    latest = await store.memory.latest_compaction(*KEY)
    tail = Compaction.model_validate(latest).tail if latest else WHOLE
    return [row["_id"] for row in await store.tail_messages(*KEY, tail, limit=1_000)]
