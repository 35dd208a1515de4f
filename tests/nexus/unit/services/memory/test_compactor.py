"""Bringing compactions about, and counting where messages are (contract §7)."""

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from bson import ObjectId
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nexus.core.errors import CallRefusedError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, NoMetrics
from nexus.core.ports import Row
from nexus.core.working_memory import STRATEGIES, TARGETS, Compaction, CompactionRequest, Target
from nexus.services.memory.compactor import BackgroundCompactions, CompactionSettings, Compactor
from nexus.services.memory.documents import Audit, audit, read_snapshot
from nexus.services.memory.plan import MOST_ROWS
from tests.nexus.support.archives import read_archive
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.waiting import until
from tests.nexus.unit.services.memory.sessions import are_shown_as_before, rows
from tests.nexus.unit.services.memory.test_plan import exchange, reported, row

SESSION = ("o", "s")


class Home:
    """A store with one session, and its compactor."""

    def __init__(self, **settings: Any) -> None:
        self.store = FakeStore()
        self.now = int(time.time())
        self._number = 0
        self.settings = CompactionSettings(**{"summary_max_tokens": 200, "idle_s": 0, **settings})

    @property
    def compactor(self) -> Compactor:
        """A replica's."""
        return Compactor(self.store.memory, self.store, NO_TOMBSTONES, FakeCounter(), self.settings)

    def plant(self, rows: Sequence[Row], *, ago: int) -> None:
        """Record rows in this order, with ids of their own, a second apart from so many seconds ago on."""
        for place, item in enumerate(rows):
            second = min(self.now - ago + place, self.now)
            self._number += 1
            row_id = ObjectId(f"{second:08x}{self._number:016x}")
            changes = {"_id": row_id, "id": f"m{self._number}", "timestamp": datetime.fromtimestamp(second, UTC)}
            self.store.plant("messages", [{**item, "owner_key": "o", "session_id": "s", **changes}])

    async def compact(self, **request: Any) -> Compaction | None:
        """Compact the session."""
        return await self.compactor.compact(CompactionRequest(*SESSION, **request))

    async def tail(self) -> list[Row]:
        """What is under no compaction, in stored order."""
        snapshot = await read_snapshot(self.store.memory, *SESSION)
        return await self.store.tail_messages(*SESSION, snapshot.tail, limit=10_000, oldest_first=True)

    async def account(self) -> Audit:
        """Where the messages are."""
        return await audit(self.store.memory, self.store.turns, self.store, *SESSION)

    async def compactions(self) -> list[Compaction]:
        """All of them, the first one first."""
        documents = await self.store.memory.compactions(*SESSION, limit=1_000, whole=True)
        return [Compaction.model_validate(document) for document in reversed(documents)]


def home_with(runs: int, **changes: Any) -> Home:
    """A session of so many runs of four messages."""
    home = Home(**changes)
    home.plant([item for number in range(runs) for item in exchange(0, f"run-{number}")], ago=10_000)
    return home


class TestOne:
    """One compaction."""

    async def test_says_what_it_covers(self) -> None:
        """The rows, how many, the tokens before and after, and the summary; times to the millisecond."""
        home = home_with(10)
        made = await home.compact(keep_recent=8, run_id="asks", trigger="tool", call_id="m-1")
        assert made is not None
        stored = home.store.messages
        assert made.rows == tuple(item["_id"] for item in stored[:32])
        assert (made.number, made.count, made.total, made.source) == (1, 32, 32, "fallback")
        assert (made.first_at, made.last_at) == (stored[0]["timestamp"], stored[31]["timestamp"])
        assert (made.keep_recent, made.run_id, made.call_id, made.trigger) == (8, "asks", "m-1", "tool")
        assert made.tokens_before > made.tokens_after > 0
        assert made.created_at.microsecond % 1_000 == 0
        assert await home.compactions() == [made]
        assert await home.account() == Audit(messages=40, in_context=8, summarised=32)

    async def test_a_pending_call_stays(self) -> None:
        """Whoever asks; it is counted as in the context with what says so, until nothing is to come of it."""
        home = home_with(2)
        pending = [row(0, "AI", "waits", calls=["c"]), reported(0, "working", "c", "waits")]
        home.plant(pending, ago=9_000)
        home.plant(exchange(0, "last"), ago=8_000)
        for trigger in ("tool", "automatic", "operator"):
            made = await home.compact(keep_recent=0, trigger=trigger, strategy="archive", call_id=trigger)
            assert made is None or made.count == 12
            assert [item["id"] for item in await home.tail()] == ["m9", "m10"]
        assert await home.account() == Audit(messages=14, in_context=2, summarised=12)
        home.store.messages[9]["metadata"]["progress"]["state"] = "cancelled"
        made = await home.compact(keep_recent=0)
        assert made is not None
        assert made.count == 2
        assert await home.account() == Audit(messages=14, summarised=14)

    async def test_no_gain(self) -> None:
        """Is refused to a model that asks for a summary; nothing is changed. Anybody else gets it, and an archive."""
        home = Home()
        home.plant([row(0, content="?")], ago=1_000)
        with pytest.raises(CallRefusedError, match=r"^Nothing would be gained: .* takes \d+ tokens, .* grow by \d+\. "):
            await home.compact(trigger="tool")
        assert await home.compactions() == []
        assert await home.compact(trigger="tool", strategy="archive")
        home.plant([row(0, content="?")], ago=900)
        assert await home.compact(trigger="automatic")

    async def test_lists_no_more_than_can_be_read_each_time(self) -> None:
        """With the calls of one run after the other: the oldest exchanges go as well, and then it says so."""
        home, targets = Home(), list[Target]()
        for number in range(4):
            home.plant(exchange(0, f"run-{number}", calls=300), ago=80_000 - number * 1_000)
            made = await home.compact(target="tools", keep_recent=3)
            assert made
            assert len(made.without) <= 2_000
            targets.append(made.target)
        assert targets == ["tools", "tools", "tools", "all"]
        assert [item["run_id"] for item in await home.tail()] == ["run-2", *["run-3"] * 4]

    async def test_the_same_message_again(self) -> None:
        """Gets what it got before, also when others have compacted since."""
        home = home_with(10)
        first = await home.compact(keep_recent=30, call_id="m-1")
        await home.compact(keep_recent=20, call_id="m-2")
        again = await home.compact(keep_recent=0, call_id="m-1")
        assert first
        assert again == first.model_copy(update={"rows": ()})
        assert len(await home.compactions()) == 2

    async def test_one_that_cannot_be_read(self) -> None:
        """Nothing is put behind it."""
        home = home_with(2)
        home.store.memory.rows["compactions"].append({"owner_key": "o", "session_id": "s", "number": 1})
        with pytest.raises(StoreUnavailableError, match="cannot be read"):
            await home.compact()


class TestArchives:
    """Rows kept word for word."""

    async def test_holds_the_words(self) -> None:
        """Before the compaction is there, in as many parts as it takes."""
        home = home_with(30, detail_max_bytes=2_048)
        home.store.messages[5]["content"] = "the 9:02, 就是七。 🚂 \n```"
        made = await home.compact(strategy="archive", keep_recent=4)
        assert made
        assert made.details[:2] == ("compaction-0001", "compaction-0001-part-2")
        found = [await home.store.memory.find_detail(*SESSION, name) for name in made.details]
        assert all(item and item["bytes"] == len(item["content"].encode()) <= 2_048 for item in found)
        assert {(item["kind"], item["compaction"]) for item in found if item} == {("archive", 1)}
        told = read_archive(item["content"] for item in found if item)
        assert [item.text for item in told] == [item["content"] for item in home.store.messages[:116]]

    async def test_names_that_are_taken(self) -> None:
        """By an attempt with the same words: these are used. By others: another name."""
        for same in (True, False):
            home, twin = home_with(2), home_with(2)
            await twin.compact(strategy="archive")
            (left,) = twin.store.memory.rows["memory_details"]
            left["content"] += "" if same else "!"
            home.store.messages[:] = twin.store.messages
            home.store.memory.rows["memory_details"].append(left)
            made = await home.compact(strategy="archive")
            assert made
            assert made.details == (("compaction-0001",) if same else ("compaction-0001-again-2",))

    async def test_one_whose_compaction_did_not_come_about(self) -> None:
        """Is in no list, neither before there is a compaction of its number nor after."""
        home = home_with(4)
        home.store.memory.rows["memory_details"] += [await left_by("compaction-0001", 1), await left_by("x", 2)]
        assert (await read_snapshot(home.store.memory, *SESSION)).details == ()
        first = await home.compact(keep_recent=8)
        assert first
        assert first.disowned == ("compaction-0001",)
        assert (await read_snapshot(home.store.memory, *SESSION)).details == ()
        # Somebody was late for the first.
        home.store.memory.rows["memory_details"].append(await left_by("compaction-0001-again-2", 1))
        second = await home.compact(strategy="archive")
        assert second
        assert second.disowned == ("compaction-0001", "compaction-0001-again-2", "x")
        assert second.details == ("compaction-0002",)
        listed = (await read_snapshot(home.store.memory, *SESSION)).details
        assert [item.name for item in listed] == ["compaction-0002"]


async def left_by(name: str, number: int) -> Row:
    """An archive that an attempt for that number has left."""
    home = home_with(1)
    await home.compact(strategy="archive")
    (detail,) = home.store.memory.rows["memory_details"]
    return {**detail, "name": name, "compaction": number}


async def test_what_an_audit_finds() -> None:
    """Rows that are lost, and rows that are there twice."""
    home = home_with(3)
    await home.compact(keep_recent=4)
    (document,) = home.store.memory.rows["compactions"]
    document["rows"] = [*document["rows"][1:], document["rows"][1], home.store.messages[-1]["_id"]]
    found = await home.account()
    assert found == Audit(messages=12, in_context=3, summarised=6, lost=1, twice=2)
    assert not found.is_right


@pytest.mark.heavy
class TestLongTails:
    """More rows than are held at once."""

    async def test_step_by_step(self) -> None:
        """Each covers nothing that is to stay; no block is split between two of them."""
        home = home_with(MOST_ROWS // 5)
        home.plant([row(0, "AI", "long", calls=["a"])], ago=5_000)
        home.plant([item for number in range(500) for item in exchange(0, f"later-{number}")], ago=4_000)
        home.plant([row(0, "TOOL", "long", answers="a"), row(0, "AI", "long")], ago=1_000)
        made = await home.compact(keep_recent=10, call_id="m-1")
        first, second = await home.compactions()
        assert made == second
        assert (first.count, first.call_id, first.keep_recent, first.is_step) == (4_999, "m-1", 10, True)
        assert (second.count, second.call_id, second.keep_recent, second.is_step) == (993, "m-1", 10, False)
        assert await home.account() == Audit(messages=6_003, in_context=11, summarised=5_992)

    async def test_what_is_to_stay(self) -> None:
        """The newest messages, and all of another kind, stay as they do in a short one."""
        home = Home()
        talk = [item for number in range(2_400) for item in exchange(0, f"talk-{number}", calls=0)]
        home.plant([*talk, *(item for number in range(100) for item in exchange(0, f"run-{number}"))], ago=90_000)
        await home.compact(target="tools", keep_recent=5)
        left = {item["_id"] for item in await home.tail()}
        gone = [item for item in home.store.messages if item["_id"] not in left]
        assert {item["_id"] for item in home.store.messages[-5:]} <= left
        assert ({item["role"] for item in gone}, len(gone)) == ({"AI", "TOOL"}, 198)

    async def test_the_same_message_again(self) -> None:
        """It finds the work done where the last step left nothing, and goes on where the replica before it died."""
        home = Home()
        home.plant([item for number in range(1_300) for item in exchange(0, f"run-{number}")], ago=90_000)
        home.plant(exchange(0, "asks", calls=50)[:-1], ago=1_000)
        made = await home.compact(keep_recent=0, run_id="asks", call_id="m-1")
        assert made
        number = made.number
        home.plant(exchange(0, "later"), ago=10)
        again = await home.compact(keep_recent=0, run_id="asks", call_id="m-1")
        assert again
        assert (again.number, again.is_step) == (number, False)
        home.store.memory.rows["compactions"][-1]["is_step"] = True
        resumed = await home.compact(keep_recent=0, run_id="asks", call_id="m-1")
        assert resumed
        assert (resumed.number, resumed.count, resumed.is_step) == (number + 1, 4, False)
        assert (await home.account()).is_right


class Sessions(RuleBasedStateMachine):
    """Runs at once, rows that are recorded late and by other clocks, and compactions by several replicas at once."""

    @initialize(past=rows(), runs=st.integers(0, 3))
    def begin(self, past: list[Row], runs: int) -> None:
        """There are rows from before."""
        self.runner = asyncio.Runner()
        self.home = Home()
        self.home.plant(past, ago=20_000)
        self.home.plant([item for number in range(runs) for item in exchange(0, f"r{number}")], ago=9_000)
        self.messages = len(past) + 4 * runs

    def teardown(self) -> None:
        """Nothing stays behind."""
        if hasattr(self, "runner"):
            self.runner.close()

    @rule(more=rows(most=6), ago=st.integers(-20, 110))
    def record(self, more: list[Row], ago: int) -> None:
        """Rows are recorded, as long ago as a store's writers may be late."""
        self.home.plant(more, ago=ago)
        self.messages += len(more)

    @rule(
        requests=st.lists(
            st.fixed_dictionaries(
                {"target": st.sampled_from(TARGETS), "strategy": st.sampled_from(STRATEGIES)},
                optional={"keep_recent": st.integers(0, 8), "keep_tokens": st.integers(0, 50), "run_id": st.just("r1")},
            ),
            min_size=1,
            max_size=3,
        ),
        idle=st.sampled_from([0, 300]),
    )
    def compact(self, requests: list[dict[str, Any]], idle: int) -> None:
        """Replicas compact at once."""
        self.home.settings = dataclasses.replace(self.home.settings, idle_s=idle)
        before = self._tail()

        async def all_at_once() -> list[Compaction | None]:
            return await asyncio.gather(*(self.home.compact(**request) for request in requests))

        self.runner.run(all_at_once())
        assert are_shown_as_before(self._tail(), before)

    @invariant()
    def is_all_there(self) -> None:
        """Every message is in the tail or under exactly one compaction, and the summaries say how many they are."""
        if not hasattr(self, "runner"):
            return
        found = self.runner.run(self.home.account())
        assert found.is_right
        assert found.messages == self.messages
        compactions = self.runner.run(self.home.compactions())
        assert [item.number for item in compactions] == list(range(1, len(compactions) + 1))
        assert sum(item.count for item in compactions) == found.summarised
        assert not compactions or compactions[-1].total == found.summarised

    def _tail(self) -> list[Row]:
        return self.runner.run(self.home.tail())


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=40, stateful_step_count=8)


ADA, BEN = CompactionRequest("ada", "s"), CompactionRequest("ben", "s")


class Compacting:
    """A compactor that finishes or fails when `go` is set."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.begun: list[CompactionRequest] = []
        self.go = anyio.Event()
        self._problem = problem

    async def compact(self, request: CompactionRequest) -> None:
        """Find nothing to compact, or fail."""
        self.begun.append(request)
        await self.go.wait()
        if self._problem:
            raise self._problem


async def _begun(compacting: Compacting, count: int) -> None:
    async def are() -> bool:
        return len(compacting.begun) >= count

    await until(are)


async def test_one_of_a_session_at_a_time() -> None:
    """Whoever wants another gets the one that is under way; sessions do not wait for each other."""
    compacting = Compacting()
    async with BackgroundCompactions(compacting.compact, NoMetrics()).running() as soon:
        first, again, other = soon.start(ADA, long=False), soon.start(ADA, long=True), soon.start(BEN, long=False)
        await _begun(compacting, 2)
        assert first is again
        assert first is not other
        compacting.go.set()
        assert first
        await first.done.wait()
        assert (first.made, first.failed) == (None, False)
        assert soon.start(ADA, long=False) is not first


@pytest.mark.parametrize(
    "problem", [StoreUnavailableError("away"), StoreRejectedError("too large"), ZeroDivisionError()]
)
async def test_one_that_fails(problem: Exception) -> None:
    """It is marked as failed and stops no other; an unexpected error is counted."""
    compacting, metrics = Compacting(problem), RecordingMetrics()
    compacting.go.set()
    async with BackgroundCompactions(compacting.compact, metrics).running() as soon:
        for request in (ADA, BEN):
            job = soon.start(request, long=False)
            assert job
            await job.done.wait()
            assert job.failed
    assert metrics.counted == ({Event.BACKGROUND_FAULT: 2} if isinstance(problem, ZeroDivisionError) else {})


async def test_long_ones_wait_for_each_other() -> None:
    """Two are done at once, and one that somebody waits for is not held up by them."""
    compacting = Compacting()
    async with BackgroundCompactions(compacting.compact, NoMetrics()).running() as soon:
        for owner in range(5):
            soon.start(CompactionRequest(f"owner {owner}", "s"), long=True)
        soon.start(ADA, long=False)
        await _begun(compacting, 3)
        assert ADA in compacting.begun
        assert len(compacting.begun) == 3
        compacting.go.set()
        await _begun(compacting, 6)
