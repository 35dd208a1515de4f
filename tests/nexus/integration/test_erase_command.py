"""`nexus erase`: shows, asks, erases and looks for a text (contract §13)."""

import json
from typing import Any

import pytest
from pymongo import MongoClient

from nexus.core.erasure import hashed
from tests.nexus.support.desk import Desk, is_printable
from tests.nexus.support.rows import row

Janitor = MongoClient[dict[str, Any]]


@pytest.fixture
def desk(mongo_uri: str, database_name: str, redis_url: str, channel_prefix: str) -> Desk:
    """The command, on the test's own names."""
    bus = {"NEXUS_BUS__URL": redis_url, "NEXUS_BUS__CHANNEL_PREFIX": channel_prefix}
    return Desk.on("erase", mongo_uri, database_name, **bus)


async def test_it_shows_asks_and_erases(desk: Desk, mongo_janitor: Janitor, database_name: str) -> None:
    """A dry run and a no change nothing; a yes removes what was shown, and says what is left."""
    database = mongo_janitor[database_name]
    database["messages"].insert_many([row(number, owner_key="ada\x1b", content="canary") for number in range(3)])
    of = ("--owner", "ada\x1b")
    told = await desk.said(*of, "--dry-run")
    assert told.splitlines() == ["FOUND  WHAT", "3      messages"]
    assert "nothing was done" in (await desk.run(*of)).stderr
    assert (database["messages"].count_documents({}), database["tombstones"].count_documents({})) == (3, 0)
    assert json.loads((await desk.run("--verify", "canary", "--json")).stdout) == {"text_found": {"messages": 3}}
    done = await desk.run(*of, stdin="yes\n")
    assert (done.returncode, done.stderr.partition("?")[0]) == (0, "Erase all of that of ada\\x1b, for good")
    assert done.stdout.splitlines()[2:] == [
        "FOUND  REMOVED  LEFT  WHAT",
        "3      3        0     messages",
        "What was said until then is refused from now on, should it come again.",
    ]
    assert is_printable(done.stdout)
    assert await desk.said("--verify", "canary") == "0: the text is in no collection and no key.\n"
    (stone,) = database["tombstones"].find()
    assert stone["owner"] == hashed("ada\x1b")


async def test_a_session_and_a_time(desk: Desk, mongo_janitor: Janitor, database_name: str) -> None:
    """Both together; what stays is shown by --verify, which exits with 1."""
    rows = [row(number, content="canary", session_id=("s", "t")[number % 2]) for number in range(4)]
    mongo_janitor[database_name]["messages"].insert_many(rows)
    words = ("--owner", "o", "--session", "s", "--before", "2024-01-01T00:01:00Z")
    done = await desk.run(*words, "--yes", "--verify", "canary", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["text_found"], told["removed"]["messages"]) == (1, {"messages": 3}, 1)
    assert (told["session_id"], told["before"]) == ("s", "2024-01-01T00:01:00+00:00")
    found = await desk.run("--verify", "canary")
    assert (found.returncode, found.stdout) == (1, "3 places with the text:\n      3  messages\n")


async def test_nothing_of_an_owner(desk: Desk, mongo_janitor: Janitor, database_name: str) -> None:
    """It says so, and leaves the tombstone all the same: a message of theirs may be on its way."""
    told = (await desk.said("--owner", "nobody", "--yes")).splitlines()
    assert told[:2] == ["There is nothing of nobody.", "There was nothing to remove."]
    assert mongo_janitor[database_name]["tombstones"].count_documents({"owner": hashed("nobody")}) == 1


async def test_redis_is_away(desk: Desk) -> None:
    """It says what to do."""
    done = await desk.run("--owner", "ada", "--yes", NEXUS_BUS__URL="redis://127.0.0.1:1/0")
    assert done.returncode == 1
    assert "Redis does not do what was asked" in done.stderr


async def test_a_bus_in_memory(desk: Desk) -> None:
    """It is inside another process, which the command says."""
    done = await desk.run("--owner", "ada", "--dry-run", NEXUS_BUS__MODE="memory")
    assert done.returncode == 0
    assert "bus.mode is memory" in done.stderr
