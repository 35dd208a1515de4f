"""`[RECALL]` on real servers: what was recalled is never recalled again, whatever comes back (contract §14)."""

import json
import os
import re
from functools import partial
from typing import Any, Final

import anyio
import pytest
from pymongo import MongoClient
from pymongo.database import Database

from nexus.client import ContextClient, new_run
from nexus.core.models import Message, Role, Run
from tests.nexus.e2e.harness import PATIENCE_S, Document, Environment, serving
from tests.nexus.e2e.test_client import client_of
from tests.nexus.support.waiting import until

# NEXUS_TEST_TURNS=1000 takes a minute or two.
TURNS: Final = int(os.environ.get("NEXUS_TEST_TURNS") or 200)
# A word that stands in recalled blocks alone, in the head of every line.
SESSION: Final = "zqsession"
# Until so many turns are past, a context shows all of them as they are.
_SHOWN: Final = 12
LINE: Final = re.compile(rf"\[\d{{4}}-\d\d-\d\d, {SESSION}\] (Human|Nexus): .+")


def recalled(content: dict[str, Any]) -> list[str]:
    """The lines of the block behind what explains it; `[]` without one."""
    blocks = [message["content"] for message in content["messages"] if message["content"].startswith("[RECALL count=")]
    return [line for block in blocks for line in block.split("\n")[3:] if line]


def sent_back(run: Run, content: dict[str, Any]) -> list[Message]:
    """Every message of a context, as the orchestrator takes them for the run's own."""
    roles = {"system": Role.SYSTEM, "user": Role.HUMAN}
    return [
        Message(run_id=run.id, owner_key=run.owner_key, role=roles[message["role"]], content=message["content"])
        for message in content["messages"]
    ]


async def turn(client: ContextClient, number: int) -> list[str]:
    """The lines of the block in one turn's context, of which now and then all comes back."""
    run = new_run("ada", f"Which pond is the heron at in week {number % 50}?", session_id=SESSION)
    content = await client.build(run, timeout=PATIENCE_S)
    assert content["degraded"] == []
    lines = recalled(content)
    answer: Any = f"In week {number % 50} the heron is at pond {number}."
    way = number % 20
    if way == 5:
        answer = content["messages"]
    elif way == 10:
        answer = json.dumps(content["messages"], ensure_ascii=False)
    elif way == 15:
        answer = "\n\n".join(message["content"] for message in content["messages"][1:])
    elif way == 19:
        run.history.extend(sent_back(run, content))
        again = await client.build(run, timeout=PATIENCE_S)
        assert again["messages"][: len(content["messages"])] == content["messages"]
    await client.record_answer(run, answer, timeout=PATIENCE_S)
    return lines


async def _is_indexed(database: Database[Document]) -> bool:
    return await anyio.to_thread.run_sync(database.messages.count_documents, {"recall.work": {"$exists": True}}) == 0


@pytest.mark.heavy
@pytest.mark.once
@pytest.mark.timeout(900)
async def test_what_was_recalled_is_never_recalled_again(environment: Environment) -> None:
    """Many turns of a session of which every context has the block."""
    environment |= {"NEXUS_BUS__MODE": "streams", "NEXUS_LAYOUTS__DIALOGUE__RECALL": "true"}
    with MongoClient[Document](environment["NEXUS_DATABASE__URI"]) as mongo:
        database = mongo[environment["NEXUS_DATABASE__NAME"]]
        without = []
        async with serving(environment), client_of(environment) as client:
            for number in range(TURNS):
                lines = await turn(client, number)
                if not lines:
                    without.append(number)
                assert all(LINE.fullmatch(line) for line in lines), (number, lines)
                assert not [line for line in lines if "[RECALL count=" in line or SESSION in line[20:]], number
                if number % 5 == 0:
                    # On a busy machine the indexer would be behind the turns.
                    await until(partial(_is_indexed, database))
            await until(partial(_is_indexed, database))
        assert not [number for number in without if number >= _SHOWN]
        # The blocks were recorded where they came back, and nothing of them is in the index.
        assert database.messages.count_documents({"role": "HUMAN", "content": {"$regex": r"^\[RECALL count="}}) > 0
        terms = {posting["_id"].split("|")[1] for posting in database.recall_postings.find({}, {"_id": 1})}
        assert "heron" in terms
        assert SESSION not in terms
