"""What release 0.1.0 left in MongoDB is shown, gone on with, exported and erased by this one (docs/upgrading.md)."""

import json
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from pymongo import MongoClient

from tests.nexus.compat.releases import answered, ask_all, restore
from tests.nexus.compat.scene import AGENT, OTHER, OWNER, memory_in, recorded
from tests.nexus.e2e.harness import Document, Environment, requesting, serving
from tests.nexus.support.desk import Desk

# Lines that only one of the two releases shows, by request. Times of other programs' rows are read in more forms, and
# rows of roles in their forms are persons' (CHANGELOG, "in the forms of"); all else is the same to the byte.
DIFFERENCES: Final = {
    "ask_asked_2": (
        {"[SHARED_MEMORY count=10]", "[Unknown time] Human: a number"},
        {
            "[SHARED_MEMORY count=12]",
            "[2026-02-27 17:00] Human: text time",
            "  Nexus: lower case",
            "[2026-03-01 16:50] Human: a number",
        },
    ),
    "ask_asked_6": (
        {"User's Goal: a number", "messages: 12"},
        {"User's Goal: text time", "messages: 14", "text time", "lower case", "user", "assistant"},
    ),
}
IN_SESSION: Final = ("--owner", OWNER, "--session", AGENT)
pytestmark = pytest.mark.once


async def test_it_is_read_and_gone_on_with(
    environment: Environment, mongo_janitor: MongoClient[Document], tmp_path: Path
) -> None:
    """Contexts show what that release showed; the session is compacted, indexed, exported, imported and erased."""
    database = mongo_janitor[environment["NEXUS_DATABASE__NAME"]]
    restore(database)
    async with serving(environment), requesting(environment) as requester:
        answers = await ask_all(environment)
        for request, before in answered().items():
            assert (answers[request]["status"], answers[request]["degraded"]) == ("success", [])
            shown = memory_in(answers[request])
            gone, new = DIFFERENCES.get(request, (set(), set()))
            lines = [Counter(line for text in texts for line in text.split("\n")) for texts in (before, shown)]
            assert ({*(lines[0] - lines[1])}, {*(lines[1] - lines[0])}) == (gone, new)
            assert shown == before or request in DIFFERENCES
        # As a run of the old release would have gone on.
        call = {"target": "all", "strategy": "archive", "keep_recent": 0}
        message = {"name": "compact_history", "args": call, "call_id": "again"}
        run = {"run_id": "asked_3", "owner_key": OWNER, "role": "AI", "metadata": {}}
        await requester.publish("tools.requests", {**run, "id": "msg_again", "content": message})
        await recorded(database, {"metadata.call_id": "again", "metadata.status": "success"})
        check = json.loads(await Desk("memory", environment).said("check", *IN_SESSION, "--json"))
        await Desk("recall", environment).said("index", "--owner", OWNER)
        found = await Desk("recall", environment).said("search", "--owner", OWNER, "dining car Porto")
    assert check["lost"] == 0
    assert "Porto" in found
    memory = await Desk("memory", environment).said("show", *IN_SESSION)
    assert "Porto by train. 去波尔图 🚆" in memory
    turns = json.loads(await Desk("turns", environment).said("list", *IN_SESSION, "--json"))
    assert len(turns["turns"] if isinstance(turns, dict) else turns) >= 5
    folder = tmp_path / "exported"
    await Desk("session", environment).said("export", *IN_SESSION, str(folder))
    await Desk("session", environment).said("import", str(folder), "--owner", "copy")
    assert database["messages"].count_documents({"owner_key": "copy"}) == database["messages"].count_documents(
        {"owner_key": OWNER, "session_id": AGENT}
    )
    await Desk("erase", environment).said("--owner", OWNER, "--yes")
    for name in database.list_collection_names():
        assert database[name].count_documents({"owner_key": OWNER}) == 0, name
    assert database["messages"].count_documents({"owner_key": OTHER}) > 0
