"""Every answer to a long session is replayed to the byte, whatever has become of its rows (contract §13)."""

import os
from typing import Any, Final

import pytest
from pydantic import SecretStr
from pymongo import MongoClient

from nexus.bootstrap import open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.connections import open_store
from nexus.core.models import Message, Role, Run, Topics
from nexus.core.wire import encode
from nexus.services.records.reader import RecordReader
from tests.nexus.support.waiting import take

pytestmark = [pytest.mark.heavy, pytest.mark.once, pytest.mark.timeout(600)]

TURNS: Final = int(os.environ.get("NEXUS_TEST_TURNS") or 300)
LAYOUTS: Final = ("dialogue", "agent", "thinking")
FORMS: Final = ("openai", "anthropic", "gemini")


def said(number: int, layout: str) -> Run:
    """What is said in this turn, and asked for."""
    run_id = f"run_{number}_{layout}"
    text = f"Question {number}: wie geht's? 早 {'x' * (number * 7 % 900)}"
    human = Message(id=f"h_{run_id}", run_id=run_id, owner_key="ada", role=Role.HUMAN, content=text)
    metadata = {"session_id": layout, "layout": layout, "format": FORMS[number % 3]}
    return Run(id=run_id, owner_key="ada", history=[human], metadata=metadata)


async def test_a_long_session_in_each_layout(
    mongo_uri: str, database_name: str, mongo_janitor: MongoClient[dict[str, Any]]
) -> None:
    """All of them equal what was on the bus, after all rows, turns and summaries have changed or gone."""
    database = DatabaseSettings(uri=SecretStr(mongo_uri), name=database_name)
    settings = Settings(bus=BusSettings(mode="memory"), database=database)
    sent: dict[str, bytes] = {}
    async with (
        open_nexus(settings) as nexus,
        ContextClient(nexus.bus).listening() as client,
        nexus.bus.subscribe(Topics.CONTEXT_BUILD_RESPONSE) as answers,
    ):
        for number in range(TURNS):
            for layout in LAYOUTS:
                run = said(number, layout)
                content = run.model_dump(mode="json")
                asked = Message(run_id=run.id, owner_key="ada", role=Role.HUMAN, content=content)
                await nexus.bus.publish(Topics.CONTEXT_BUILD_REQUEST, encode(asked))
                (answer,) = await take(answers, 1)
                sent[asked.id] = answer.payload
                await client.record_answer(run, f"Answer {number} of {layout}: {'y' * (number * 11 % 700)}")
    assert len(sent) == TURNS * len(LAYOUTS)
    assert all(b'"status":"success"' in answer for answer in sent.values())
    stored = mongo_janitor[database_name]
    stored["messages"].update_many({"role": "HUMAN"}, {"$set": {"content": "changed"}})
    stored["messages"].delete_many({"role": "AI"})
    for gone in ("turns", "compactions", "working_memory"):
        stored[gone].delete_many({})
    equal = 0
    async with open_store(database) as store:
        reader = RecordReader(store)
        for request_id, answer_bytes in sent.items():
            record = await reader.find("ada", request_id)
            assert record, request_id
            replayed = await reader.replay(record)
            equal += (replayed.answer, replayed.fault) == (answer_bytes, "")
    assert equal == TURNS * len(LAYOUTS)
