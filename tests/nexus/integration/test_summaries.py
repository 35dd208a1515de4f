"""Summaries by a model at a real HTTP server: good ones, nonsense, none, and good ones again."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from nexus.adapters.llm import open_llm
from nexus.services.history.run_facts import TurnFacts
from nexus.services.turns.model_summary import Summariser
from tests.nexus.support.model_asked import KEY, LIMITS
from tests.nexus.support.model_behaviours import (
    FAILURE_WORDS,
    Behaviour,
    holding,
    knowing,
    wrapped,
)
from tests.nexus.support.model_server import ModelServer, model_server
from tests.nexus.support.sample_turns import CHINESE, ENGLISH, FIGURES
from tests.nexus.unit.services.turns.runs import Run

TURNS = pytest.mark.parametrize("facts", [CHINESE, ENGLISH], ids=["zh", "en"])

pytestmark = pytest.mark.once


@asynccontextmanager
async def asked(behaviour: Behaviour | None = None) -> AsyncIterator[tuple[Summariser, ModelServer]]:
    """Who summarises, and the server of the model."""
    limits = replace(LIMITS, timeout_s=1.0, retries=0)
    async with model_server(behaviour) as server, open_llm(server.base_url, KEY, "m", limits) as model:
        yield Summariser(model), server


async def assert_good(summariser: Summariser, facts: TurnFacts) -> None:
    """The figures of the turn are in its summary, in the right fields, in the language of the user."""
    summaries = (await summariser.summarise(facts)).summaries
    assert summaries.source == "model"
    assert all(figure in summaries.detailed for figure in FIGURES)
    structured = summaries.structured
    assert all(figure in " ".join(structured.results) for figure in FIGURES)
    assert "search_pubmed" in structured.actions[0]
    assert "SGLT2 inhibitors cardiovascular outcomes" in structured.actions[0]
    assert len(structured.decisions) == len(structured.next_steps) == 1
    assert ("目标" in structured.overview) is (facts is CHINESE)
    assert len(summaries.brief) <= len(summaries.detailed) / 3
    assert FAILURE_WORDS not in summaries.model_dump_json()


@TURNS
async def test_a_good_summary(facts: TurnFacts) -> None:
    """Of one call."""
    async with asked() as (summariser, server):
        await assert_good(summariser, facts)
        assert len(server.asked) == 1


@TURNS
@pytest.mark.parametrize(
    "behaviour",
    [
        knowing("json_object", "text"),
        knowing("text"),
        wrapped("<think>Let me see: {…}</think>\n```json\n", "\n```"),
        wrapped("Here it is: ", "\nAnything else?"),
    ],
    ids=["any JSON", "text", "thoughts", "words"],
)
async def test_models_of_all_kinds(facts: TurnFacts, behaviour: Behaviour) -> None:
    """That know no schema, no JSON, or say more than they are asked."""
    async with asked(behaviour) as (summariser, _):
        await assert_good(summariser, facts)


async def test_a_turn_that_is_too_large() -> None:
    """It is summarised in parts that the endpoint takes, with every message in one of them."""
    run = Run("Please read all of the pages and say what is in them.")
    for number in range(60):
        run.call("fetch", {"page": number}, f"Page {number} has {5_000 + number} words. " + "It is long. " * 60)
    facts = run.answer("There were 60 pages, and the last one has 5059 words.").facts
    async with asked(holding(12_000)) as (summariser, server):
        summarised = await summariser.summarise(facts)
        assert summarised.calls == len(server.asked)
        taken = [call.document for call in server.asked if len(call.system + call.user) <= 12_000]
    told = json.dumps([document for document in taken if "part" in document])
    assert all(f"{5_000 + number} words" in told for number in range(60))
    assert [document for document in taken if "parts" in document]
    assert "60" in summarised.summaries.detailed
