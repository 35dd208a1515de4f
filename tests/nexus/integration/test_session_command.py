"""`nexus session` as operators use it: the program, on a MongoDB."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from anyio.to_thread import run_sync
from pydantic import SecretStr
from pymongo import MongoClient
from pymongo.database import Database

from nexus.bootstrap import open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.core.models import Message, Role, Run
from tests.nexus.support.desk import Desk
from tests.nexus.support.kept_turns import a_turn
from tests.nexus.support.stored_session import (
    NASTY,
    NOW,
    a_row,
    an_overview,
    documents_of,
    store_session,
)

pytestmark = [pytest.mark.once, pytest.mark.heavy]

OF_S1: Final = ("--owner", "ada", "--session", "s1")
AMOUNT: Final = "64 messages, 2 turns, 2 revisions, 5 details, 2 compactions, 1 state"

_Database = Database[dict[str, Any]]


@pytest.fixture
def db(mongo_janitor: MongoClient[dict[str, Any]], database_name: str) -> _Database:
    """Where the sessions are."""
    return mongo_janitor[database_name]


@pytest.fixture
def elsewhere(mongo_janitor: MongoClient[dict[str, Any]], database_name: str) -> Iterator[_Database]:
    """An empty database."""
    name = f"{database_name}b"
    yield mongo_janitor[name]
    mongo_janitor.drop_database(name)


@pytest.fixture
def desk(mongo_uri: str, db: _Database) -> Desk:
    """The command, where the sessions are."""
    return Desk.on("session", mongo_uri, db.name)


@pytest.fixture
def other(mongo_uri: str, elsewhere: _Database) -> Desk:
    """The command, on the empty database."""
    return Desk.on("session", mongo_uri, elsewhere.name)


async def contexts_of(mongo_uri: str, db: _Database, owner: str, session: str) -> list[Any]:
    """The messages of the next context in two layouts."""
    database = DatabaseSettings(uri=SecretStr(mongo_uri), name=db.name, timeout_ms=10_000)
    found = list[Any]()
    async with (
        open_nexus(Settings(bus=BusSettings(mode="memory"), database=database)) as nexus,
        ContextClient(nexus.bus).listening() as client,
    ):
        for layout in ("agent", "dialogue"):
            said = Message(
                id=f"input_{layout}", run_id=layout, owner_key=owner, role=Role.HUMAN, content="Go on", timestamp=NOW
            )
            metadata = {"session_id": session, "layout": layout, "client_timestamp_utc": NOW.isoformat()}
            run = Run(id=layout, owner_key=owner, history=[said], metadata=metadata)
            answer = await client.build(run, timeout=20)
            assert answer["degraded"] == []
            found.append((answer["messages"], answer["context"]["blocks"]))
    return found


async def test_the_next_contexts_are_the_same(  # noqa: PLR0917  # fixtures
    desk: Desk, other: Desk, db: _Database, elsewhere: _Database, mongo_uri: str, tmp_path: Path
) -> None:
    """Of the same owner elsewhere, and of another owner and session beside the original, stored once: byte for byte."""
    store_session(db)
    folder = tmp_path / "s1"
    assert await desk.said("export", *OF_S1, str(folder)) == f"{AMOUNT} of session s1 of ada in {folder}.\n"
    dry_run = await other.said("import", str(folder), "--dry-run")
    assert dry_run == f"{AMOUNT} would be imported into session s1 of ada.\n"
    assert documents_of(elsewhere)["messages"] == []
    assert await other.said("import", str(folder)) == f"{AMOUNT} imported into session s1 of ada.\n"
    assert repr(documents_of(elsewhere)) == repr(documents_of(db))
    copy = ("import", "--owner", "$bob", "--session", "copy", str(folder))
    assert await desk.said(*copy) == f"{AMOUNT} imported into session copy of $bob.\n"
    again = "0 messages imported into session copy of $bob; 76 of 76 documents were there.\n"
    assert await desk.said(*copy) == again
    wanted = await contexts_of(mongo_uri, db, "ada", "s1")
    assert await contexts_of(mongo_uri, elsewhere, "ada", "s1") == wanted
    assert await contexts_of(mongo_uri, db, "$bob", "copy") == wanted


async def test_a_copy_of_what_retention_has_removed(desk: Desk, db: _Database, mongo_uri: str, tmp_path: Path) -> None:
    """What is noted as removed goes along, under the `_id`s that the copy has."""
    store_session(db)
    noted = [str(a_row(number)["_id"]) for number in (1, 2, 3)]
    db["messages"].delete_many({"id": {"$in": ["m1", "m2"]}})
    db["compactions"].update_one({"number": 1}, {"$set": {"removed": noted}})
    db["turns"].update_one({"turn_number": 1}, {"$set": {"removed": noted}})
    await desk.said("export", *OF_S1, str(tmp_path / "s1"))
    await desk.said("import", "--owner", "bob", str(tmp_path / "s1"))
    memory = Desk.on("memory", mongo_uri, db.name)
    told = [await memory.said("check", "--owner", owner, "--session", "s1") for owner in ("ada", "bob")]
    assert told[0].splitlines()[1:] == told[1].splitlines()[1:]


async def test_the_folder(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """Markdown for people, JSON Lines for the rest, readable by its owner alone and on any terminal."""
    store_session(db)
    folder = tmp_path / "s1"
    await desk.said("export", *OF_S1, str(folder))
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == {
        "session.json",
        "messages.jsonl",
        "turns.jsonl",
        "compactions.jsonl",
        "state.json",
        "working-memory",
        "working-memory/overview.md",
        "working-memory/revisions.jsonl",
        "working-memory/details.jsonl",
        "working-memory/detail",
        "working-memory/detail/flights.md",
        "working-memory/detail/航班.md",
        "working-memory/detail/compaction-0001.md",
        "working-memory/detail/~3754d6cb3a38e118.md",
    }
    assert (folder / "working-memory" / "overview.md").read_bytes() == "# Goal\n\nTrains. 文".encode()
    assert (folder / "working-memory" / "detail" / "flights.md").read_bytes() == b"BA 2\r\n"
    assert {path.stat().st_mode & 0o77 for path in [folder, *folder.rglob("*")]} == {0}
    assert all(
        char.isprintable() or char == "\n" for path in folder.rglob("*.json*") for char in path.read_text("utf-8")
    )


async def test_what_is_written_by_hand(
    desk: Desk, other: Desk, db: _Database, elsewhere: _Database, tmp_path: Path
) -> None:
    """Markdown files count as they are: a changed overview, a changed and a new detail; hidden files do not."""
    store_session(db)
    folder = tmp_path / "s1"
    await desk.said("export", *OF_S1, str(folder))
    notes = folder / "working-memory"
    (notes / "overview.md").write_text("# Goal\n\nPlanes.\n", encoding="utf-8")
    (notes / "detail" / "flights.md").write_text("BA 33", encoding="utf-8")
    (notes / "detail" / "neu.md").write_text("new", encoding="utf-8")
    (notes / "detail" / ".DS_Store").write_bytes(b"\x00\xff")
    assert "6 details" in await other.said("import", str(folder))
    assert (await other.said("import", str(folder))).endswith("; 77 of 77 documents were there.\n")
    newest = elsewhere["working_memory"].find_one({"revision": 2})
    assert newest
    assert newest["content"] == "# Goal\n\nPlanes.\n"
    versions = [(row["name"], row["version"], row["content"]) for row in elsewhere["memory_details"].find()]
    assert {("flights", 1, "BA 1"), ("flights", 2, "BA 33"), ("neu", 1, "new")} < {*versions}
    said = await desk.refused("import", str(folder))
    assert "detail flights, version 2 is there, not as in working-memory/details.jsonl: line 4" in said
    assert "revision 2 is there, not as in working-memory/revisions.jsonl: line 2" in said


async def test_links_out_of_a_folder(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """They are not followed; nothing but files is read, and no line without end."""
    db["messages"].insert_one(a_row(0))
    folder, secret = tmp_path / "s1", tmp_path / "secret"
    await desk.said("export", *OF_S1, str(folder))
    secret.write_text("secret", encoding="utf-8")
    detail = folder / "working-memory" / "detail"
    detail.mkdir(parents=True)
    (detail / "a.md").symlink_to(secret)
    assert "detail/a.md: cannot be read: " in await desk.refused("import", str(folder))
    (detail / "a.md").unlink()
    os.mkfifo(detail / "a.md")
    assert (await desk.refused("import", str(folder))).endswith("detail/a.md: is no regular file")
    (detail / "a.md").unlink()
    (detail / f"{NASTY}.md").write_text("x", encoding="utf-8")
    said = await desk.refused("import", str(folder))
    assert said.isprintable()
    assert "allowed is a plain name" in said
    (detail / f"{NASTY}.md").unlink()
    with (folder / "turns.jsonl").open("wb") as zeros:
        zeros.truncate(1 << 30)
    assert (await desk.refused("import", str(folder))).endswith("turns.jsonl: line 1: more than 67108864 bytes")


async def test_a_folder_that_is_there(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """An export takes the place of another after a yes, and of nothing else; nothing stays beside it."""
    db["messages"].insert_one(a_row(0))
    folder = tmp_path / "s1"
    await desk.said("export", *OF_S1, str(folder))
    (folder / "turns.jsonl").write_text("old", encoding="utf-8")
    done = await desk.run("export", *OF_S1, str(folder))
    assert done.returncode == 1
    assert done.stderr.endswith("nexus: nothing was done; --yes does it without asking\n")
    assert (folder / "turns.jsonl").exists()
    await desk.said("export", *OF_S1, str(folder), "--yes")
    assert not (folder / "turns.jsonl").exists()
    assert [*await run_sync(tmp_path.iterdir)] == [folder]
    (folder / "thesis.txt").write_text("mine", encoding="utf-8")
    said = await desk.refused("export", *OF_S1, str(folder), "--yes")
    assert said == f"{folder}: there is something else in it, thesis.txt; an export has a folder to itself"


async def test_what_others_have_stored(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """A turn that cannot be read is left out, and said to be; exit code 1. Anything else ends the export."""
    db["turns"].insert_many([a_turn(1), {**a_turn(2), "summaries": NASTY}])
    done = await desk.run("export", *OF_S1, str(tmp_path / "s1"))
    assert (done.returncode, done.stdout) == (1, f"0 messages, 1 turn of session s1 of ada in {tmp_path / 's1'}.\n")
    assert done.stderr == "nexus: 1 turn cannot be read and left out; the first is 2\n"
    db["working_memory"].insert_one({**an_overview(1, "x"), "updated_at": None})
    said = await desk.refused("export", *OF_S1, str(tmp_path / "s2"))
    assert said.startswith("session s1 of ada: overview 1 cannot be read: updated_at: ")
    nothing = await desk.refused("export", "--owner", "eve", str(tmp_path / "s2"))
    assert nothing == "there is no session default of eve; no other of eve has messages"
    assert [*await run_sync(tmp_path.iterdir)] == [tmp_path / "s1"]
