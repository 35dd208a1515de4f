"""Summaries of compactions by a model at a real HTTP server, kept in a real MongoDB (contract §7)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from nexus.adapters.llm import open_llm
from nexus.adapters.mongo import open_mongo
from nexus.core.ports import LanguageModel
from nexus.core.working_memory import Compaction, CompactionRequest
from nexus.services.memory.compactor import CompactionSettings, Compactor
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.model_asked import KEY, LIMITS
from tests.nexus.support.model_behaviours import Behaviour
from tests.nexus.support.model_server import ModelServer, model_server
from tests.nexus.support.waiting import PATIENCE_S
from tests.nexus.unit.services.memory.refining_at_work import (
    Session,
    a_run,
    figures_told,
    is_refined,
)

pytestmark = pytest.mark.once


@pytest.fixture
async def session(mongo_uri: str, prepared_database: str) -> AsyncIterator[Session]:
    """A session in a database of its own."""
    async with open_mongo(mongo_uri, prepared_database, timeout_ms=20_000) as store:
        yield Session(store)


@asynccontextmanager
async def asked(
    behaviour: Behaviour | None = None, timeout_s: float = PATIENCE_S
) -> AsyncIterator[tuple[LanguageModel, ModelServer]]:
    """A model, and the server that it is at."""
    limits = replace(LIMITS, timeout_s=timeout_s, retries=0)
    async with model_server(behaviour) as server, open_llm(server.base_url, KEY, "m", limits) as model:
        yield model, server


def told(server: ModelServer) -> list[set[str]]:
    """The figures that the model was told of, call by call."""
    return [figures_told(call.document) for call in server.asked]


async def test_what_the_service_compacts(session: Session) -> None:
    """Its summary by rules is there at once and refined later, and the next compaction carries what the model wrote."""
    settings = CompactionSettings(idle_s=0.0, refine=True)
    compactor = Compactor(session.memory, session.store, FakeCounter(), settings)
    wish = CompactionRequest("o", "s", keep_recent=0)
    async with asked() as (model, server), session.refining(model) as worker:
        for number in (1, 2):
            for row in a_run(f"r{number}", 1_000 + number):
                await session.store.insert_message(row)
            made = await compactor.compact(wish)
            assert made
            assert (made.number, made.source, made.count) == (number, "fallback", 4)
            assert "1001 beans are wet" in made.summary
            worker.wake()
            refined = Compaction.model_validate(await session.until(is_refined, number))
            assert f"{1_000 + number} beans are wet" in refined.summary
            changed = {"summary": refined.summary, "tokens_after": FakeCounter().count(refined.summary)}
            assert refined == made.model_copy(update={**changed, "source": "model", "rows": ()})
    assert told(server) == [{"1001"}, {"1002"}]
    assert "1001 beans are wet" in refined.summary
