"""`nexus memory` as operators use it: the program, on a MongoDB."""

import json
from collections.abc import Sequence
from typing import Any, Final

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from nexus.services.memory.documents import TEMPLATE
from tests.nexus.support.desk import Desk
from tests.nexus.support.stored_session import NASTY, a_row, an_overview, store_session

pytestmark = [pytest.mark.once, pytest.mark.heavy]

OF_S1: Final = ("--owner", "ada", "--session", "s1")

_Database = Database[dict[str, Any]]


@pytest.fixture
def db(mongo_janitor: MongoClient[dict[str, Any]], database_name: str) -> _Database:
    """Where the sessions are."""
    return mongo_janitor[database_name]


@pytest.fixture
def desk(mongo_uri: str, db: _Database) -> Desk:
    """The command, where the sessions are."""
    return Desk.on("memory", mongo_uri, db.name)


async def test_what_is_kept(desk: Desk, db: _Database) -> None:
    """Overview, details and the summary of what is compacted; what looks like a title is indented."""
    db["messages"].insert_one(a_row(1_000))
    assert "models are shown the template" in await desk.said("show", *OF_S1)
    assert json.loads(await desk.said("show", *OF_S1, "--json"))["overview"] == {"revision": 0, "content": TEMPLATE}
    db["messages"].drop()
    store_session(db)
    db["working_memory"].insert_one(an_overview(3, f"Yes.\n\nDetails\n\n{NASTY}"))
    shown = (await desk.said("show", *OF_S1)).splitlines()
    assert shown[:3] == [
        "overview    revision 3, 36 of 5120 bytes, 2026-01-01 00:03:00 UTC by the model in turn 3",
        "details     4",
        (
            "compacted   33 messages, 1 of them by compaction 2 at 2026-01-01 00:00:00 UTC "
            "(all, archive, asked for by the model); summary by rules"
        ),
    ]
    assert [line for line in shown if line == "Details"] == ["Details"]
    assert all(char.isprintable() for line in shown for char in line)
    assert "  - Asked for 2." in shown
    found = json.loads(await desk.said("show", *OF_S1, "--json", "--revision", "2"))
    assert (found["overview"]["content"], found["compaction"]["count"]) == ("# Goal\n\nTrains. 文", 1)
    assert (await desk.said("show", *OF_S1, "flights")).endswith("\n\n  BA 2\n")
    assert (await desk.said("show", *OF_S1, "flights", "--revision", "1")).endswith("\n\n  BA 1\n")
    assert json.loads(await desk.said("show", *OF_S1, "航班", "--json"))["content"] == "国航"


async def test_what_became_of_it(desk: Desk, db: _Database) -> None:
    """Revisions and compactions, the newest first, as many as are asked for; what differs between two revisions."""
    store_session(db)
    assert (await desk.said("history", *OF_S1)).splitlines() == [
        "REVISION  TIME (UTC)           BY     BYTES  TURN",
        "2         2026-01-01 00:02:00  model  19     2",
        "1         2026-01-01 00:01:00  model  15     1",
        "",
        "COMPACTION  TIME (UTC)           TARGET  STRATEGY  ASKED BY  MESSAGES  IN ALL  TOKENS     SUMMARY BY",
        "2           2026-01-01 00:00:00  all     archive   tool      1         33      100 -> 10  fallback",
        "1           2026-01-01 00:00:00  all     archive   tool      32        32      100 -> 10  fallback",
    ]
    found = json.loads(await desk.said("history", *OF_S1, "--json", "--limit", "1"))
    assert [found["overviews"][0]["bytes"], found["compactions"][0]["number"]] == [19, 2]
    differing = ["--- revision 1", "+++ revision 2", "@@ -1,3 +1,3 @@", " # Goal", " ", "-Trains.", "+Trains. 文"]
    assert (await desk.said("diff", *OF_S1)).splitlines() == differing
    assert (await desk.said("diff", *OF_S1, "1")).splitlines() == differing
    assert (await desk.said("diff", *OF_S1, "0", "1")).startswith("--- revision 0\n+++ revision 1\n")
    assert await desk.said("diff", *OF_S1, "2", "2") == "Nothing differs between revisions 2 and 2.\n"
    assert await desk.refused("diff", *OF_S1, "7") == ("there is no revision 7; the newest is 2, and 0 is the template")


async def test_the_account(desk: Desk, db: _Database) -> None:
    """Each message is counted once; exit 1 when one is under two compactions, or lost."""
    store_session(db)
    session, head, counts = (await desk.said("check", *OF_S1)).splitlines()
    assert (session, head.split(), counts.split()) == (
        "session s1 of ada",
        ["MESSAGES", "IN", "CONTEXT", "NOT", "SHOWN", "SUMMARISED", "REMOVED", "BY", "RETENTION", "LOST", "TWICE"],
        ["63", "30", "0", "33", "0", "0", "0"],
    )
    db["compactions"].update_one({"number": 2}, {"$push": {"rows": str(a_row(3)["_id"])}, "$set": {"count": 2}})
    db["compactions"].update_one({"number": 1}, {"$pull": {"rows": str(a_row(5)["_id"])}})
    done = await desk.run("check", *OF_S1, "--json")
    counts_now = json.loads(done.stdout)
    assert (counts_now["owner_key"], counts_now["session_id"]) == ("ada", "s1")
    assert (done.returncode, counts_now["lost"], counts_now["twice"]) == (1, 1, 1)


async def test_what_retention_removed(desk: Desk, db: _Database) -> None:
    """It is not lost; what went without a note is."""
    store_session(db)
    gone = [str(a_row(number)["_id"]) for number in (1, 2)]
    db["messages"].delete_many({"id": {"$in": ["m1", "m2"]}})
    db["compactions"].update_one({"number": 1}, {"$set": {"removed": gone[:1]}})
    done = await desk.run("check", *OF_S1, "--json")
    counts = json.loads(done.stdout)
    assert (done.returncode, counts["messages"], counts["removed"], counts["lost"]) == (1, 63, 1, 1)
    db["turns"].update_one({"turn_number": 1}, {"$set": {"removed": gone}})
    said = await desk.said("check", *OF_S1, "--json")
    assert json.loads(said)["removed"] == 2


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("show", *OF_S1, "x\x1b"), r"there is no detail 'x\x1b'; the session has no details"),
        (("show", *OF_S1, "--revision", "9" * 30), "there is no revision 9"),
        (("diff", *OF_S1, "1"), "there is no revision 1; nothing is written down yet, and 0 is the template"),
        (("diff", *OF_S1), "nothing is written down: there is only the template, as revision 0"),
    ],
    ids=lambda value: ascii(value)[:50],
)
async def test_what_is_wrong_with_words(desk: Desk, db: _Database, words: Sequence[str], fault: str) -> None:
    """One line and exit code 1."""
    db["messages"].insert_one(a_row(0))
    assert (await desk.refused(*words)).startswith(fault)


async def test_a_session_without_anything(desk: Desk, db: _Database) -> None:
    """The output says so, with its name."""
    db["messages"].insert_one(a_row(0))
    assert await desk.said("history", *OF_S1) == "Nothing is written down or compacted of session s1 of ada.\n"
