"""The background work on the index: every message once, whatever fails meanwhile (contract §14)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nexus.core.errors import ModelUnavailableError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event
from nexus.core.models import Row, new_row_id
from nexus.core.recall import WORDS, Entry, IndexStatus, Place, Postings
from nexus.services.recall.indexer import Indexer, IndexerSettings
from nexus.services.recall.service import Recall
from tests.nexus.support.fake_recall import FakeRecall
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.rows import row
from tests.nexus.support.waiting import until


class _Embedder:
    """Embeds a text as its first two bytes; `away` answers are that it cannot be asked."""

    def __init__(self, generation: str = "g1", away: int = 0) -> None:
        self.generation = generation
        self.away = away
        self.asked: list[str] = []

    async def codes_of_texts(self, texts: Sequence[str]) -> list[bytes]:
        """Refuses a text that begins with `never`."""
        await checkpoint()
        if self.away:
            self.away -= 1
            raise ModelUnavailableError("no answer in time")
        if refused := [text for text in texts if text.startswith("never")]:
            raise ValueError(f"a text of {len(refused[0])} characters is not taken")
        self.asked += texts
        return [text.encode()[:2] for text in texts]

    async def code_of_question(self, question: str) -> bytes:
        """As that of a text."""
        return question.encode()[:2]


class _Hanging(_Embedder):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = anyio.Event()

    async def codes_of_texts(self, texts: Sequence[str]) -> list[bytes]:
        """Say that it was asked."""
        self.begun.set()
        await anyio.sleep_forever()
        return await super().codes_of_texts(texts)


class _Claims(FakeRecall):
    """Keeps how many messages were asked for at a time."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.limits: list[int] = []

    async def claim(self, work: str, now: datetime, until: datetime, *, limit: int) -> list[Row]:
        """Keep the limit."""
        self.limits.append(limit)
        return await super().claim(work, now, until, limit=limit)


class _Poisoned(FakeRecall):
    """An index that fails with whatever has the term `poison`."""

    error: Exception = StoreRejectedError("the document is too large")

    async def write(self, entries: Sequence[Entry]) -> None:
        """Raise the error, if one of them is poison."""
        if any("poison" in entry.terms for entry in entries):
            raise self.error
        await super().write(entries)


class _Late(FakeRecall):
    """An index that gives places, and does not read them at once, as a majority of servers may not have them yet."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.read: set[int] = set()
        self.late = 0

    async def give_places(self, rows: Sequence[Row]) -> dict[str, Place]:
        """Nothing, each time that the rows are others than before."""
        places = await super().give_places(rows)
        if asked := {*places.values()} - self.read:
            self.read |= asked
            self.late += 1
            return {}
        return places


class _Index:
    """A store with messages, and what became of them."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.metrics = RecordingMetrics()

    async def record(self, *texts: str, first: int = 0, **changes: str) -> None:
        """Record messages of the owner."""
        for number, text in enumerate(texts, first):
            await self.store.insert_message(row(number, content=text, _id=new_row_id(), **changes))

    @asynccontextmanager
    async def indexing(
        self, embedder: _Embedder | None = None, settings: IndexerSettings | None = None
    ) -> AsyncIterator[Indexer]:
        """An indexer at work."""
        indexer = Indexer(self.store.recall, embedder, settings=settings, metrics=self.metrics)
        async with indexer.running():
            yield indexer

    async def done(self) -> IndexStatus:
        """The states, when nothing waits any more."""

        async def nothing_waits() -> IndexStatus | None:
            status = await self.store.recall.status()
            return None if status.waiting or status.meaning_waiting else status

        return await until(nothing_waits)

    async def found(self, question: str, embedder: _Embedder | None = None) -> list[str]:
        """The ids of what is found."""
        found = await Recall(self.store.recall, embedder).search("o", question, limit=10)
        return [hit.row["id"] for hit in found.hits]


async def test_every_message_is_indexed_once() -> None:
    """In batches, by two indexers at the same time; each has a place of its own."""
    index = _Index()
    await index.record(*(f"text tea{number}" for number in range(600)))
    async with index.indexing(), index.indexing():
        status = await index.done()
    assert (status.indexed, status.failed, status.unmarked) == (600, 0, 0)
    assert (await index.found("tea599"))[0] == "m599"
    assert len({state["place"] for state in index.store.recall.states.values()}) == 600
    assert index.metrics.counted[Event.RECALL_INDEXED] == 600


async def test_what_is_recorded_later() -> None:
    """It is indexed a moment after the signal."""
    index = _Index()
    async with index.indexing() as indexer:
        await index.record("tea")
        indexer.wake()
        await index.done()
        await index.record("coffee", first=1)
        indexer.wake()
        await index.done()
        assert await index.found("coffee") == ["m1", "m0"]


async def test_a_key() -> None:
    """A message that is indexed already is found by its words, too; before that is done it waits."""
    index = _Index()
    await index.record("tea", "coffee")
    async with index.indexing() as indexer:
        await index.done()
        await index.store.recall.add_key("o", "m1", "They talked about biscuits")
        assert (await index.store.recall.status()).waiting == 1
        await index.store.recall.add_key("eve", "m0", "biscuits")
        indexer.wake()
        await index.done()
    assert await index.found("biscuit") == ["m1", "m0"]
    assert await index.found("coffee") == ["m1", "m0"]


async def test_what_is_never_found() -> None:
    """It has no place, and nothing is due on it."""
    index = _Index()
    await index.record("tea")
    await index.record("[RECALL count=1]\n[2024-01-01, s] Human: tea\n[/RECALL]", "", first=1)
    await index.record("tea", first=3, role="SYSTEM")
    async with index.indexing(_Embedder()):
        await index.done()
    assert await index.found("tea") == ["m0"]
    assert [state.get("place") for state in index.store.recall.states.values()] == [0, None, None, None]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(StoreRejectedError("the document is too large"), "the document is too large"), (KeyError("tea"), "KeyError")],
)
async def test_a_message_that_cannot_be_indexed(error: Exception, reason: str) -> None:
    """It fails with the reason, and all others of its batch are indexed."""
    index = _Index()
    index.store.recall = poisoned = _Poisoned(index.store, index.store._ask)
    poisoned.error = error
    await index.record("tea", "poison", "tea", "coffee")
    async with index.indexing():
        status = await index.done()
    assert (status.failed, status.faults) == (1, {"m1": reason})
    assert await index.found("tea") == ["m2", "m0", "m3"]
    assert index.metrics.counted[Event.RECALL_FAILED] == 1
    assert index.metrics.counted[Event.BACKGROUND_FAULT] == (reason == "KeyError")


@pytest.mark.parametrize("operation", ["claim", "give_places", "write", "finish"])
async def test_a_store_that_goes_away(operation: str) -> None:
    """What was claimed is indexed when the claim has run out and the store is back."""
    index = _Index()
    index.store.failing = operation
    await index.record("tea", "coffee")

    async def delayed() -> int:
        return index.metrics.counted[Event.RECALL_DELAYED]

    async with index.indexing(settings=IndexerSettings(lease_s=0.05, poll_s=0.01)):
        await until(delayed)
        index.store.failing = ""
        status = await index.done()
    assert (status.indexed, status.failed) == (2, 0)
    assert sorted(await index.found("tea coffee")) == ["m0", "m1"]


async def test_places_that_are_not_read_at_once() -> None:
    """No message counts as indexed, by words or by meaning, before it is: those stay due."""
    index = _Index()
    index.store.recall = late = _Late(index.store, index.store._ask)
    await index.record("tea", "coffee")
    settings = IndexerSettings(lease_s=0.05, poll_s=0.01)
    async with index.indexing(settings=settings):
        await index.done()
    assert sorted(await index.found("tea coffee")) == ["m0", "m1"]
    late.read.clear()
    embedder = _Embedder()
    async with index.indexing(embedder, settings):

        async def embedded() -> bool:
            return [state.get("generation") for state in late.states.values()] == ["g1", "g1"]

        await until(embedded)
    # Of a claim that ran out some rows may have come by themselves.
    assert late.late >= 2
    postings = await late.postings("o", [], [], generation="g1")
    assert sum(map(len, postings.codes.values())) == 2


async def test_a_message_on_which_the_store_fails() -> None:
    """As if it were away: batches become smaller until all others are indexed; the one is tried on and on."""
    index = _Index()
    index.store.recall = poisoned = _Poisoned(index.store, index.store._ask)
    poisoned.error = StoreUnavailableError("TypeError")
    await index.record("poison", *["tea"] * 9)

    async def one_is_left() -> bool:
        return (await index.store.recall.status()).waiting == 1

    async with index.indexing(settings=IndexerSettings(lease_s=0.05, poll_s=0.01)):
        await until(one_is_left)
    assert [state.get("work") for state in poisoned.states.values()] == [WORDS, *[None] * 9]


async def test_requests_come_first() -> None:
    """While there are any, batches are small; when there have been none for a second, they are large."""
    idle_s = 0.0
    index = _Index()
    index.store.recall = claims = _Claims(index.store, index.store._ask)
    await index.record(*["tea"] * 250)
    async with Indexer(claims, metrics=index.metrics, idle_s=lambda: idle_s).running():
        await index.done()
        busy = claims.limits[:3]
        idle_s = 5.0
        await index.record(*["tea"] * 250, first=250)
        await index.done()
    assert busy == [100, 100, 100]
    assert claims.limits[-1] == 1_000


async def test_an_end_amid_a_batch() -> None:
    """The claim is given back: another indexer goes on at once, though it would hold for an hour."""
    index, hanging, other = _Index(), _Hanging(), _Embedder()
    await index.record("tea")
    settings = IndexerSettings(lease_s=3_600)
    async with index.indexing(hanging, settings):
        await hanging.begun.wait()
    async with index.indexing(other, settings):
        await index.done()
    assert other.asked == ["tea"]


async def test_an_embedder() -> None:
    """Messages without a word in common with the question are found by their meaning; words find before that."""
    index, embedder = _Index(), _Embedder()
    await index.record("tea", "coffee", "🎉")
    async with index.indexing(embedder):
        status = await index.done()
    assert (status.indexed, status.failed) == (3, 0)
    assert embedder.asked == ["tea", "coffee", "🎉"]
    assert (await index.found("teapot", embedder))[0] == "m0"


async def test_a_text_that_an_embedder_never_takes() -> None:
    """It is found by words, and its state says why not by meaning; the others have their vectors."""
    index, embedder = _Index(), _Embedder()
    await index.record("tea", "never mind", "coffee")
    async with index.indexing(embedder):
        status = await index.done()
    assert status.faults == {"m1": "a text of 10 characters is not taken"}
    assert embedder.asked == ["tea", "coffee"]
    assert (await index.found("mind"))[0] == "m1"


async def test_another_embedder() -> None:
    """Words find throughout, and each message gets its vector of the new one."""
    index = _Index()
    await index.record("tea", "coffee")
    async with index.indexing(_Embedder("g1")):
        await index.done()
    other = _Embedder("g2", away=1)
    async with index.indexing(other):
        assert (await index.found("coffee", other))[0] == "m1"

        async def embedded() -> bool:
            return [state.get("generation") for state in index.store.recall.states.values()] == ["g2", "g2"]

        await until(embedded)
    assert other.asked == ["tea", "coffee"]


async def test_nothing_to_do() -> None:
    """It asks once a second, not all the time."""
    index = _Index()
    async with index.indexing(_Embedder()):
        await anyio.sleep(0.3)
    assert index.store.calls.count("claim") <= 4


class _Erasing(FakeRecall):
    """An index whose rows are removed while they are written."""

    async def write(self, entries: Sequence[Entry]) -> None:
        """Keep them, of rows that are gone then."""
        await super().write(entries)
        self._store.messages.clear()


async def test_rows_that_are_removed_while_they_are_indexed() -> None:
    """Leave nothing in the index."""
    index = _Index()
    index.store.recall = _Erasing(index.store, index.store._ask)
    await index.record("the beans are wet")
    async with index.indexing():
        await index.done()

        async def forgotten() -> bool:
            return "forget" in index.store.calls

        await until(forgotten)
    assert await index.store.recall.postings("o", ["bean", "wet"], []) == Postings(1, {}, {})
