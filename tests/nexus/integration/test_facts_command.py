"""`nexus facts`: what is known of a person, shown, added to and taken back (contract §15)."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pymongo import MongoClient

from tests.nexus.support.desk import Desk, is_printable
from tests.nexus.support.rows import row

Janitor = MongoClient[dict[str, Any]]


@pytest.fixture
def desk(mongo_uri: str, database_name: str) -> Desk:
    """The command, on the test's own names."""
    return Desk.on("facts", mongo_uri, database_name)


async def test_there_and_back(desk: Desk) -> None:
    """What is added is listed; a newer value supersedes; what is taken back stays in the history."""
    assert await desk.said("list", "--owner", "ada") == "Nothing holds of ada.\n"
    lisbon = ("--sub-topic", "city", "--since", "2024-05-01", "--evidence", "m1")
    await desk.said("add", "--owner", "ada", "home", "Lisbon", *lisbon)
    await desk.said("add", "--owner", "ada", "home", "Porto", "--sub-topic", "CITY", "--since", "2025-05-01")
    assert (await desk.said("list", "--owner", "ada")).splitlines() == [
        "TOPIC        LEVEL     SUPPORT  SINCE (UTC)          VALUE",
        "home / CITY  explicit  0        2025-05-01 00:00:00  Porto",
    ]
    before, now = json.loads(await desk.said("list", "--owner", "ada", "--history", "--json"))["facts"]
    assert (before["value"], before["evidence"], before["valid_to"]) == ("Lisbon", ["m1"], "2025-05-01T00:00:00Z")
    assert (now["value"], now["supersedes"], now["source"]) == ("Porto", before["id"], "operator")
    taken = await desk.said("retire", "--owner", "ada", "home", "--sub-topic", "city", "--yes")
    assert [line.split()[-1] for line in taken.splitlines()[1:]] == ["Lisbon", "Porto"]
    assert await desk.said("list", "--owner", "ada") == "Nothing holds of ada.\n"
    assert json.loads(await desk.said("list", "--owner", "ada", "--json")) == {"owner_key": "ada", "facts": []}
    assert await desk.said("list", "--owner", "bob", "--history") == "Nothing is known of bob.\n"


async def test_it_asks_first(desk: Desk) -> None:
    """Without an answer nothing is done."""
    await desk.said("add", "--owner", "ada", "tea", "green")
    assert "nothing was done" in (await desk.run("retire", "--owner", "ada", "tea")).stderr
    assert await desk.at_keyboard("Take back tea of ada?", "y", "retire", "--owner", "ada", "tea") == 0
    assert await desk.said("list", "--owner", "ada") == "Nothing holds of ada.\n"


async def test_what_is_wrong(desk: Desk) -> None:
    """One line says what, and where."""
    of = ("--owner", "ada")
    assert (
        await desk.refused("add", *of, " ", "x") == "TOPIC: is missing or blank; a text of 1 to 64 characters is needed"
    )
    assert await desk.refused("add", *of, "tea", "x" * 501) == "VALUE: 501 characters, at most 500 are allowed"
    assert await desk.refused("add", *of, "tea", "x", "--since", "soon") == "--since: a time in ISO 8601 is needed"
    assert (await desk.refused("add", *of, "tea", "x", "--since", "9999-01-01")).startswith("--since: is later than")
    assert "--evidence: a list of up to 20 message ids" in await desk.refused(
        "add", *of, "tea", "x", *["--evidence", "m"] * 21
    )
    told = await desk.refused("retire", *of, "tea", "--value", "black", "--yes")
    assert told == "nothing of tea: black is known of ada; nexus facts list shows what is"
    assert await desk.said("list", *of, "--history") == "Nothing is known of ada.\n"


async def test_facts_whose_evidence_is_gone(desk: Desk, mongo_janitor: Janitor, database_name: str) -> None:
    """`nexus memory check` names them, and finds nothing wrong: retention may have removed it."""
    mongo_janitor[database_name]["messages"].insert_one(row(1, id="m1", owner_key="ada", session_id="s1"))
    await desk.said("add", "--owner", "ada", "tea", "green", "--evidence", "m1")
    memory = replace(desk, command="memory")
    assert "without a recorded message" not in await memory.said("check", "--owner", "ada", "--session", "s1")
    await desk.said("add", "--owner", "ada", "home", "Porto", "--sub-topic", "city", "--evidence", "gone")
    told = (await memory.said("check", "--owner", "ada", "--session", "s1")).splitlines()
    assert told[-3] == "1 fact of ada without a recorded message as evidence:"
    assert told[-1].split() == ["home", "/", "city", "gone", "Porto"]
    found = json.loads(await memory.said("check", "--owner", "ada", "--session", "s1", "--json"))
    assert [each["evidence"] for each in found["facts_without_evidence"]] == [["gone"]]


async def test_what_others_stored(desk: Desk, mongo_janitor: Janitor, database_name: str) -> None:
    """A terminal obeys nothing of it, and what cannot be read is passed over."""
    await desk.said("add", "--owner", "ada", "tea\x1b[2J", "green\u202e\x07")
    mongo_janitor[database_name]["facts"].insert_one({"owner_key": "ada", "id": "x", "topic": 7})
    shown = await desk.said("list", "--owner", "ada", "--history")
    assert "tea" in shown
    assert is_printable(shown)
