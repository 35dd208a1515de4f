"""`nexus context show`: the context of the next request, of which nothing is recorded."""

import json
from typing import Any, Final

import pytest
from pydantic import SecretStr
from pymongo import MongoClient
from pymongo.database import Database

from nexus.bootstrap import open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.core.models import Message, Role, Run
from tests.nexus.support.desk import Desk, is_printable
from tests.nexus.support.stored_session import NASTY, a_row, store_session

OF_S1: Final = ("--owner", "ada", "--session", "s1")


@pytest.fixture
def desk(mongo_uri: str, database_name: str) -> Desk:
    """The command, on the test's own names."""
    return Desk.on("context", mongo_uri, database_name)


@pytest.fixture
def db(mongo_janitor: MongoClient[dict[str, Any]], database_name: str) -> Database[dict[str, Any]]:
    """The database of the command."""
    return mongo_janitor[database_name]


def everything(db: Database[dict[str, Any]]) -> dict[str, Any]:
    """All documents and indexes."""
    return {name: ([*db[name].find()], db[name].index_information()) for name in sorted(db.list_collection_names())}


@pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
async def test_what_a_request_gets(
    desk: Desk, db: Database[dict[str, Any]], mongo_uri: str, database_name: str, layout: str
) -> None:
    """The same messages and tools as a service answers afterwards, by the stored settings; nothing has changed."""
    store_session(db)
    db["configurations"].insert_one({"environment": "development", "memory": {"turns_shown": 1}})
    tool = {"type": "function", "function": {"name": "look", "description": "d"}}
    db["tools"].insert_one({"name": "look", "definition": tool})
    before = everything(db)
    words = (*OF_S1, "--layout", layout, "--input", "What now? 早", "--json")
    shown = json.loads(await desk.said("show", *words))
    assert repr(everything(db)) == repr(before)
    settings = Settings(
        bus=BusSettings(mode="memory"),
        database=DatabaseSettings(uri=SecretStr(mongo_uri), name=database_name, timeout_ms=10_000),
    )
    human = Message(run_id="r", owner_key="ada", role=Role.HUMAN, content="What now? 早")
    run = Run(id="r", owner_key="ada", history=[human], metadata={"session_id": "s1", "layout": layout})
    async with open_nexus(settings) as nexus, ContextClient(nexus.bus).listening() as client:
        content = await client.build(run)
    assert shown["degraded"] == content["degraded"] == []
    assert shown["tools"] == content["tools"]
    # The last of the dialogue has the time, the last of an agent's the size of its context.
    assert shown["messages"][:-1] == content["messages"][:-1]
    assert len(shown["messages"]) == len(content["messages"])


async def test_what_people_see(desk: Desk, db: Database[dict[str, Any]]) -> None:
    """Frames and a table, in a provider's format too, with nothing that a terminal obeys."""
    db["messages"].insert_one(a_row(0, content=f"Frost {NASTY}"))
    for words in ((), ("--layout", "agent", "--format", "anthropic")):
        said = await desk.said("show", *OF_S1, *words)
        assert "(what the person says next)" in said
        assert "Frost" in said
        assert is_printable(said)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--layout", "poem"), "UNKNOWN_LAYOUT: run.metadata.layout: "),
        (("--input", " "), "EMPTY_INPUT: "),
        (("--format", "morse"), "INVALID_REQUEST: run.metadata.format: "),
    ],
)
async def test_what_is_refused(desk: Desk, db: Database[dict[str, Any]], words: tuple[str, ...], fault: str) -> None:
    """In the words of the answer; no database is made."""
    assert (await desk.refused("show", *OF_S1, *words)).startswith(fault)
    assert db.list_collection_names() == []
