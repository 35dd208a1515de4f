"""Long-term memory with embedders at real servers: one in place of another, one that is away, one that refuses."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import anyio
import pytest

from nexus.adapters.embedders.endpoint import EmbeddingModel, open_endpoint
from nexus.adapters.embedders.texts import SAMPLES
from nexus.adapters.mongo import open_mongo
from nexus.adapters.mongo.store import MongoStore
from nexus.core.ports import Embedder, RecallIndex
from nexus.core.recall import Found, IndexStatus, Postings
from nexus.services.recall.indexer import Indexer
from nexus.services.recall.service import Recall
from tests.nexus.support.embedding_behaviours import DIMENSIONS, embedding, vector_of
from tests.nexus.support.model_behaviours import status
from tests.nexus.support.model_exchange import Exchange
from tests.nexus.support.model_server import ModelServer, model_server
from tests.nexus.support.rows import row
from tests.nexus.support.waiting import PATIENCE_S, until

# What is tried here is the service, not the servers.
pytestmark = pytest.mark.once

SUBJECTS: Final = ("garden", "train", "invoice", "piano", "weather", "soup", "bicycle", "exam")
TEXTS: Final = [f"note {number} of the {SUBJECTS[number % len(SUBJECTS)]}" for number in range(199)]
SAID: Final = "my knee hurts since the marathon"
# Has no word of it, and the same meaning.
MEANT: Final = "leg"


def meaning(text: str) -> list[float]:
    """A vector by which a leg is a knee that hurts."""
    return vector_of(text.replace(MEANT, "knee hurts"))


def turned(text: str) -> list[float]:
    """That of another model, to which every code of the first is a stranger's, and as long."""
    return [10 - number if place % 2 else number for place, number in enumerate(meaning(text))]


class _Watched:
    """An index, and the codes that were read of it."""

    def __init__(self, index: RecallIndex) -> None:
        self._index = index
        self.codes: dict[int, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        """All else is the index's."""
        return getattr(self._index, name)

    async def postings(self, owner_key: str, terms: Collection[str], flags: Collection[str], **where: Any) -> Postings:
        """What the index has."""
        found = await self._index.postings(owner_key, terms, flags, **where)
        self.codes = {
            32 * int(episode) + int(at): bytes(code)
            for episode, places in found.codes.items()
            for at, code in places.items()
        }
        return found


class _Replica:
    """One of several on a database, with an embedder."""

    def __init__(self, store: MongoStore, embedder: Embedder) -> None:
        self.store = store
        self.embedder = embedder
        self.watched = _Watched(store.recall)

    async def search(self, question: str) -> Found:
        """What this replica finds."""
        return await Recall(self.watched, self.embedder, meaning_s=PATIENCE_S).search("o", question, limit=3)

    async def done(self) -> IndexStatus:
        """The states, when nothing waits any more."""

        async def nothing_waits() -> IndexStatus | None:
            states = await self.store.recall.status()
            return None if states.waiting or states.meaning_waiting else states

        return await until(nothing_waits)


@asynccontextmanager
async def replicas(
    uri: str, database: str, server: ModelServer, model: str, count: int = 1
) -> AsyncIterator[list[_Replica]]:
    """Replicas that index with this model."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            store = await stack.enter_async_context(open_mongo(uri, database))
            known = EmbeddingModel(model)
            opened = open_endpoint(server.base_url, "", known, timeout_s=PATIENCE_S, question_s=PATIENCE_S)
            replica = _Replica(store, await stack.enter_async_context(opened))
            await stack.enter_async_context(Indexer(store.recall, replica.embedder).running())
            found.append(replica)
        yield found


async def record(uri: str, database: str, texts: Sequence[str]) -> None:
    """Record messages of the owner."""
    async with open_mongo(uri, database) as store:
        await store.insert_messages([row(number, content=text) for number, text in enumerate(texts)])


def texts_asked(server: ModelServer) -> list[str]:
    """The texts of messages that the server was asked about."""
    asked = [text for call in server.asked for text in call.body["input"]]
    return sorted(text for text in asked if text not in {*SAMPLES, MEANT, "marathon"})


async def test_one_embedder_after_another(mongo_uri: str, prepared_database: str) -> None:
    """Words find throughout; codes of the two are never compared; two replicas embed each message anew, once."""
    database, gate = prepared_database, anyio.Event()
    await record(mongo_uri, database, [*TEXTS, SAID])
    async with (
        model_server(embedding(meaning)) as old,
        replicas(mongo_uri, database, old, "old", 2) as (one, other),
    ):
        assert (await one.done()).indexed == 200
        assert texts_asked(old) == sorted([*TEXTS, SAID])
        found = await other.search(MEANT)
        assert (found.hits[0].row["content"], found.hits[0].score.terms) == (SAID, {})
        old_codes = other.watched.codes
        assert len(old_codes) == 200
        old_generation = one.embedder.generation

    async def gated(exchange: Exchange) -> None:
        if SAID in exchange.asked.body["input"]:
            await gate.wait()
        await embedding(turned)(exchange)

    async with model_server(gated) as new, replicas(mongo_uri, database, new, "new", 2) as (one, other):

        async def half_done() -> bool:
            by_meaning = await one.search(MEANT)
            return by_meaning.considered > 0

        await until(half_done)
        states = await one.store.recall.status()
        assert (states.indexed, states.waiting, states.failed) == (200, 0, 0)
        assert states.meaning_waiting
        # What has no code of the new model yet is found by words, and nothing else of it counts.
        found = await one.search("marathon")
        assert (found.generation, found.hits[0].row["content"]) == (one.embedder.generation, SAID)
        assert found.hits[0].score.similarity == 0
        assert 0 < len(one.watched.codes) < 200
        assert one.embedder.generation != old_generation
        assert all(code != old_codes[place] for place, code in one.watched.codes.items())
        gate.set()
        states = await other.done()
        assert (states.indexed, states.failed) == (200, 0)
        for replica in (one, other):
            found = await replica.search(MEANT)
            assert (found.hits[0].row["content"], found.hits[0].score.terms) == (SAID, {})
            assert len(replica.watched.codes) == 200
            assert {len(code) for code in replica.watched.codes.values()} == {DIMENSIONS // 8}
        assert texts_asked(new) == sorted([*TEXTS, SAID])
        left = await one.store.recall.postings("o", [], [], generation=old_generation)
        assert left.codes == {}


async def test_an_embedder_that_is_away(mongo_uri: str, prepared_database: str) -> None:
    """Words are indexed at once, and meanings when it is back."""
    await record(mongo_uri, prepared_database, [*TEXTS[:20], SAID])
    async with (
        model_server(status(401)) as server,
        replicas(mongo_uri, prepared_database, server, "m") as (replica,),
    ):

        async def words_are() -> bool:
            states = await replica.store.recall.status()
            return (states.indexed, states.meaning_waiting, states.failed) == (21, 21, 0)

        await until(words_are)
        found = await replica.search("marathon")
        assert (found.generation, found.hits[0].row["content"]) == ("", SAID)
        assert (await replica.search(MEANT)).hits == []
        server.behaviour = embedding(meaning)
        states = await replica.done()
        assert (states.indexed, states.failed) == (21, 0)
        assert (await replica.search(MEANT)).hits[0].row["content"] == SAID


@pytest.mark.parametrize("code", [400, 500])
async def test_a_text_that_is_refused(mongo_uri: str, prepared_database: str, code: int) -> None:
    """It failed, for the reason that is told, and is found by words; all others have a meaning."""
    await record(mongo_uri, prepared_database, [*TEXTS[:20], SAID, "a note on the other leg"])
    behaviour = embedding(meaning, refused=lambda text: text == SAID, status=code)
    async with (
        model_server(behaviour) as server,
        replicas(mongo_uri, prepared_database, server, "m") as (replica,),
    ):
        states = await replica.done()
        assert (states.indexed, states.failed) == (22, 1)
        assert list(states.faults) == ["m20"]
        assert states.faults["m20"].startswith(f"the endpoint gives no vector of it: {code} ")
        assert (await replica.search("marathon")).hits[0].row["content"] == SAID
        assert len(replica.watched.codes) == 21
        assert (await replica.search("knee hurts")).generation == replica.embedder.generation
