"""`nexus memory` as operators use it: the program, on a MongoDB."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio.to_thread import run_sync
from bson import Binary, Int64, ObjectId
from pydantic import BaseModel
from pymongo import MongoClient
from pymongo.database import Database

from nexus.adapters.mongo_calls import Calls
from nexus.adapters.mongo_ids import id_text
from nexus.adapters.mongo_transfer import MongoTransfer
from nexus.core.ports import Row
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.memory.folder import GivenFolder
from nexus.services.context.working import TEMPLATE
from nexus.services.memory.transfer_edits import Limits
from nexus.services.memory.transfer_lines import header_line, header_of, row_line
from nexus.services.memory.transfer_reading import read_folder
from tests.nexus.support.desk import Desk
from tests.nexus.support.kept_turns import a_turn
from tests.nexus.support.waiting import until

pytestmark = [pytest.mark.once, pytest.mark.heavy]

NASTY: Final = "\x1b[31mred\x07\x85\u202etxt\x9b2J"
OF_S1: Final = ("--owner", "ada", "--session", "s1")
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
KEPT: Final = ("messages", "working_memory", "memory_details", "compactions", "session_states")
MANY: Final = 5_000

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


def desk_at(mongo_uri: str, name: str) -> Desk:
    """The command, on a database."""
    settings = {"NEXUS_DATABASE__URI": mongo_uri, "NEXUS_DATABASE__NAME": name, "NEXUS_DATABASE__TIMEOUT_MS": "5000"}
    return Desk("memory", {**settings, "TERM": "xterm"})


@pytest.fixture
def desk(mongo_uri: str, db: _Database) -> Desk:
    """The command, where the sessions are."""
    return desk_at(mongo_uri, db.name)


@pytest.fixture
def other(mongo_uri: str, elsewhere: _Database) -> Desk:
    """The command, on the empty database."""
    return desk_at(mongo_uri, elsewhere.name)


def a_row(number: int, **changes: Any) -> Row:
    """A message of session s1 of ada, as a service records it, with changes."""
    made_at = int((NOW + timedelta(seconds=number // 3)).timestamp())
    return {
        "_id": ObjectId(f"{made_at:08x}{number:016x}"),
        "id": f"m{number}",
        "run_id": f"r{number // 4}",
        "owner_key": "ada",
        "session_id": "s1",
        "role": ("HUMAN", "AI")[number % 2],
        "content": f"Message {number}. 文 😀",
        "timestamp": NOW + timedelta(seconds=number),
        "metadata": {"source": "new_run"},
        **changes,
    }


def of_others() -> list[Row]:
    """Rows that other writers left, and what no JSON has a word for."""
    odd = {
        "small": Int64(5),
        "schema": {"$ref": "a", "$id": 1},
        "said": {"$date": "tomorrow"},
        "nan": float("nan"),
        "raw": Binary(b"\xff", 128),
        NASTY: NASTY,
    }
    return [
        a_row(901, _id="m901", metadata=odd),
        a_row(902, _id=7, timestamp="2026-01-01T00:15:02Z"),
        a_row(903, content={"$oid": "no"}, metadata=None),
        a_row(904, metadata={"sub_agent_internal": True}),
    ]


def kept(part: BaseModel, **more: Any) -> Row:
    """A document of session s1 of ada, as a service keeps it."""
    return {"owner_key": "ada", "session_id": "s1", **part.model_dump(), **more}


def an_overview(revision: int, content: str) -> Row:
    """A revision."""
    written_at = NOW + timedelta(minutes=revision)
    return kept(Overview(revision=revision, content=content, updated_at=written_at, turn_number=revision))


def a_detail(name: str, version: int, content: str, **changes: Any) -> Row:
    """A version of a detail, with changes."""
    size = len(content.encode())
    return kept(Detail(name=name, version=version, bytes=size, updated_at=NOW, content=content, **changes))


def a_compaction(number: int, rows: Sequence[Row], since: datetime, total: int, *, without: Sequence[Row] = ()) -> Row:
    """A compaction of these rows, on which nothing is due."""
    compaction = Compaction(
        number=number,
        created_at=NOW,
        strategy="archive",
        trigger="tool",
        summary=f"- Asked for {number}.",
        rows=tuple(id_text(row["_id"]) for row in rows),
        count=len(rows),
        total=total,
        since=f"{int(since.timestamp()):08x}",
        without=tuple(id_text(row["_id"]) for row in without),
        first_at=NOW,
        keep_recent=5,
        tokens_before=100,
        tokens_after=10,
    )
    return kept(compaction, work=None, due_at=None)


def keep_session(db: _Database) -> None:
    """A session with everything, in a database."""
    rows = [a_row(number) for number in range(600)]
    foreign = of_others()
    db["messages"].insert_many([*rows, *foreign, a_row(1, id="else", session_id="s9", _id=ObjectId())])
    db["working_memory"].insert_many([an_overview(1, "# Goal\n\nTrains."), an_overview(2, "# Goal\n\nTrains. 文")])
    archive = a_detail("compaction-0001", 1, f"said {NASTY}", kind="archive", compaction=1)
    notes = [a_detail("flights", 1, "BA 1"), a_detail("flights", 2, "BA 2"), a_detail("航班", 1, "国航")]
    db["memory_details"].insert_many([*notes, archive, a_detail("../../etc/passwd", 1, "root")])
    late = rows[305]
    db["compactions"].insert_many(
        [
            a_compaction(1, [*rows[:300], *foreign[:2]], NOW + timedelta(seconds=100), 302),
            a_compaction(2, [late], NOW + timedelta(seconds=100), 303, without=[late]),
        ]
    )
    db["turns"].insert_many([{**a_turn(number), "owner_key": "ada", "session_id": "s1"} for number in (1, 2)])
    state = {"owner_key": "ada", "session_id": "s1", "document": {"role": {"text": NASTY}}, "revision": 1}
    db["session_states"].insert_one(state)


def all_of(db: _Database, owner: str = "ada") -> dict[str, list[Row]]:
    """Every document of session s1, but for what the store numbers itself."""
    found = {}
    for name in (*KEPT, "turns"):
        rows = [*db[name].find({"owner_key": owner, "session_id": "s1"}, None if name == "messages" else {"_id": 0})]
        for row in rows if name in {"session_states", "turns"} else []:
            for field in ("updated_at", "heard_at", "work", "due_at", "rows", "attempts", "overtaken", "delays"):
                row.pop(field, None)
        found[name] = sorted(rows, key=repr)
    return found


async def test_what_is_kept(desk: Desk, db: _Database) -> None:
    """Overview, details and the summary of what is compacted; what looks like a title is indented."""
    db["messages"].insert_one(a_row(1_000))
    assert "models are shown the template" in await desk.said("show", *OF_S1)
    assert json.loads(await desk.said("show", *OF_S1, "--json"))["overview"] == {"revision": 0, "content": TEMPLATE}
    db["messages"].drop()
    keep_session(db)
    db["working_memory"].insert_one(an_overview(3, f"Yes.\n\nDetails\n\n{NASTY}"))
    shown = (await desk.said("show", *OF_S1)).splitlines()
    assert shown[:3] == [
        "overview    revision 3, 36 of 5120 bytes, 2026-01-01 00:03:00 UTC by the model in turn 3",
        "details     4",
        (
            "compacted   303 messages, 1 of them by compaction 2 at 2026-01-01 00:00:00 UTC "
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
    keep_session(db)
    assert (await desk.said("history", *OF_S1)).splitlines() == [
        "REVISION  TIME (UTC)           BY     BYTES  TURN",
        "2         2026-01-01 00:02:00  model  19     2",
        "1         2026-01-01 00:01:00  model  15     1",
        "",
        "COMPACTION  TIME (UTC)           TARGET  STRATEGY  ASKED BY  MESSAGES  IN ALL  TOKENS     SUMMARY BY",
        "2           2026-01-01 00:00:00  all     archive   tool      1         303     100 -> 10  fallback",
        "1           2026-01-01 00:00:00  all     archive   tool      302       302     100 -> 10  fallback",
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
    keep_session(db)
    session, head, counts = (await desk.said("check", *OF_S1)).splitlines()
    assert (session, head.split(), counts.split()) == (
        "session s1 of ada",
        ["MESSAGES", "IN", "CONTEXT", "SUMMARISED", "LOST", "TWICE"],
        ["603", "300", "303", "0", "0"],
    )
    db["compactions"].update_one({"number": 2}, {"$push": {"rows": str(a_row(3)["_id"])}, "$set": {"count": 2}})
    db["compactions"].update_one({"number": 1}, {"$pull": {"rows": str(a_row(5)["_id"])}})
    done = await desk.run("check", *OF_S1, "--json")
    counts_now = json.loads(done.stdout)
    assert (counts_now["owner_key"], counts_now["session_id"]) == ("ada", "s1")
    assert (done.returncode, counts_now["lost"], counts_now["twice"]) == (1, 1, 1)


async def test_there_and_back(desk: Desk, other: Desk, db: _Database, elsewhere: _Database, tmp_path: Path) -> None:
    """In an empty database all documents are as they were; done again, nothing is written."""
    keep_session(db)
    folder = tmp_path / "s1"
    said = await desk.said("export", *OF_S1, str(folder))
    amount = "604 messages, 2 turns, 2 revisions, 5 details, 2 compactions"
    assert said == f"{amount} of session s1 of ada in {folder}.\n"
    assert {path.name for path in folder.rglob("detail/*")} == {
        "flights.md",
        "航班.md",
        "compaction-0001.md",
        "-etc-passwd~3754d6cb3a38.md",
    }
    assert (folder / "working-memory" / "overview.md").read_text(encoding="utf-8") == "# Goal\n\nTrains. 文"
    assert {path.stat().st_mode & 0o77 for path in [folder, *folder.rglob("*")]} == {0}
    assert all(
        char.isprintable() or char == "\n" for path in folder.glob("*.json*") for char in path.read_text("utf-8")
    )
    assert await other.said("import", str(folder)) == f"{amount} imported into session s1 of ada.\n"
    assert repr(all_of(elsewhere)) == repr(all_of(db))
    again = await other.said("import", str(folder))
    assert again == f"{amount} imported into session s1 of ada; 616 of 616 documents were there.\n"
    assert repr(all_of(elsewhere)) == repr(all_of(db))


async def test_a_copy_of_another_owner(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """It lies beside what is there, with `_id`s of its own; its compactions name its own rows."""
    keep_session(db)
    folder = tmp_path / "s1"
    await desk.said("export", *OF_S1, str(folder))
    for said in ("", "; 616 of 616 documents were there"):
        assert (await desk.said("import", "--owner", "$bob", str(folder))).endswith(f"session s1 of $bob{said}.\n")
    account = (await desk.said("check", "--owner", "$bob", "--session", "s1")).splitlines()[2].split()
    assert account == ["603", "300", "303", "0", "0"]
    copies = all_of(db, "$bob")["messages"]
    assert not {repr(row["_id"]) for row in copies} & {repr(row["_id"]) for row in all_of(db)["messages"]}
    said = await desk.refused("import", "--session", "s2", str(folder))
    assert said == (
        "session s2 of ada: messages of the export are recorded in session 's1' of this owner; "
        "--owner OTHER imports a copy"
    )


async def test_what_was_edited(desk: Desk, other: Desk, db: _Database, elsewhere: _Database, tmp_path: Path) -> None:
    """It becomes a new revision or a new version, once, however often it is imported."""
    keep_session(db)
    folder = tmp_path / "s1"
    await desk.said("export", *OF_S1, str(folder))
    notes = folder / "working-memory"
    (notes / "overview.md").write_text("# Goal\n\nPlanes.\n", encoding="utf-8")
    (notes / "detail" / "flights.md").write_text("BA 3", encoding="utf-8")
    (notes / "detail" / "neu.md").write_text("new", encoding="utf-8")
    (notes / "detail" / ".DS_Store").write_bytes(b"\x00\xff")
    (notes / "detail" / "航班.md").unlink()
    for _ in range(2):
        assert "; what was edited is a new revision" in await other.said("import", str(folder))
    newest = elsewhere["working_memory"].find_one({"revision": 3})
    assert newest
    assert (newest["content"], newest["author"]) == ("# Goal\n\nPlanes.", "import")
    versions = {(row["name"], row["version"]) for row in elsewhere["memory_details"].find({"content": {"$ne": ""}})}
    assert versions >= {("flights", 2), ("flights", 3), ("neu", 1), ("航班", 1)}
    assert len(versions) == 7
    assert elsewhere["working_memory"].count_documents({}) == 3
    await other.said("export", *OF_S1, str(tmp_path / "again"))


async def test_something_in_the_way(
    desk: Desk, other: Desk, elsewhere: _Database, db: _Database, tmp_path: Path
) -> None:
    """It stays unless it is to be replaced and somebody says yes; then all is as in the export."""
    keep_session(db)
    folder = tmp_path / "s1"
    await desk.said("export", *OF_S1, str(folder))
    await other.said("import", str(folder))
    elsewhere["messages"].insert_one(a_row(5_000))
    elsewhere["working_memory"].insert_one(an_overview(3, "later"))
    said = await other.refused("import", str(folder))
    assert said == (
        "session s1 of ada has something that the export has not, or not so: 1 message (m5000), 1 revision (3); "
        "--owner OTHER imports a copy, --replace removes what is there first"
    )
    question = "Remove it and import that? [y/N]"
    assert await other.at_keyboard(question, "n", "import", str(folder), "--replace") == 1
    assert elsewhere["messages"].count_documents({}) == 605
    assert await other.at_keyboard(question, "y", "import", str(folder), "--replace") == 0
    assert repr(all_of(elsewhere)) == repr(all_of(db))


async def test_a_session_that_goes_on(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """What was in the making at the export has come further, and stays; what is new is counted and named."""
    keep_session(db)
    folder = tmp_path / "s1"
    db["turns"].update_one({"turn_number": 2}, {"$set": {"status": "pending", "summaries.source": "fallback"}})
    await desk.said("export", *OF_S1, str(folder))
    for changes in ({"status": "pending"}, {"status": "completed", "summaries.source": "model", "insights": ["new"]}):
        db["turns"].update_one({"turn_number": 2}, {"$set": changes})
        db["compactions"].update_one({"number": 2}, {"$set": {"summary": "Better.", "source": "model"}})
        before = all_of(db)
        assert (await desk.said("import", str(folder))).endswith("; 616 of 616 documents were there.\n")
        assert repr(all_of(db)) == repr(before)
    turns = [{**a_turn(number), "owner_key": "ada", "session_id": "s1"} for number in (3, 4)]
    db["turns"].insert_many(turns)
    db["turns"].update_one({"turn_number": 1}, {"$set": {"insights": ["changed"]}})
    db["messages"].delete_many({"session_id": "s1"})
    said = await desk.refused("import", str(folder))
    assert "or not so: 3 turns (the first: 1); --session OTHER imports it beside this, --replace" in said


async def test_an_import_that_was_killed(
    desk: Desk, other: Desk, db: _Database, elsewhere: _Database, tmp_path: Path
) -> None:
    """Done again, it goes on where it was; nothing is there twice and nothing is missing."""
    db["messages"].insert_many([a_row(number) for number in range(MANY)])
    db["compactions"].insert_one(
        a_compaction(1, [a_row(number) for number in range(30)], datetime.fromtimestamp(0, UTC), 30)
    )
    folder = tmp_path / "s1"
    await desk.said("export", *OF_S1, str(folder))

    async def begun() -> bool:
        return await run_sync(elsewhere["messages"].count_documents, {}) > 0

    async with await anyio.open_process(
        [sys.executable, "-m", "nexus", "memory", "import", str(folder)],
        env={**os.environ, **other.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        await until(begun)
        process.kill()
    assert re.search(r"; \d+ of 5001 documents were there\.$", await other.said("import", str(folder)))
    assert repr(all_of(elsewhere)) == repr(all_of(db))


@pytest.mark.parametrize(
    ("name", "line", "fault"),
    [
        ("messages.jsonl", b"{\xff", "messages.jsonl: line 2: not UTF-8 at byte 1"),
        ("messages.jsonl", b"[]", "messages.jsonl: line 2: a JSON object is needed"),
        ("messages.jsonl", b'{"owner_key": "eve"}', "messages.jsonl: line 2: its owner_key is not that of export.json"),
        ("messages.jsonl", b'{"owner_key": "ada", "session_id": "s1"}', "messages.jsonl: line 2: _id: one is needed"),
        (
            "messages.jsonl",
            b'{"owner_key": "ada", "session_id": "s1", "_id": 1, "x": {"$where": 1}}',
            "messages.jsonl: line 2: an object whose key begins with $ is no Extended JSON",
        ),
        (
            "messages.jsonl",
            b'{"owner_key": "ada", "session_id": "s1", "_id": 1, "id": "m0"}',
            "messages.jsonl: line 2: its id is that of line 1",
        ),
        ("messages.jsonl", b'{"a":' * 300 + b"1" + b"}" * 300, "messages.jsonl: line 2: nested deeper than 200"),
        ("overviews.jsonl", b'{"revision": true}', "overviews.jsonl: line 2: "),
        (
            "details.jsonl",
            b'{"name": "a", "version": 1, "bytes": 9, "updated_at": "2026-01-01T00:00:00Z"}',
            "details.js",
        ),
        ("compactions.jsonl", b"{}", "compactions.jsonl: line 2: "),
        ("turns.jsonl", b"{}", "turns.jsonl: line 2: no header of an export"),
        ("state.jsonl", b"{}\n{}", "state.jsonl: more than one line; a session has one state"),
        ("export.json", b"{}", "export.json: line 2: format: Field required"),
        ("messages.jsonl", b"", "messages.jsonl: it has 1 lines, and export.json says 2: it is not whole"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_files_that_are_wrong(tmp_path: Path, name: str, line: bytes, fault: str) -> None:
    """The file, the line and what is wrong are said."""
    store = MongoTransfer(None, Calls(1), anyio.lowlevel.checkpoint)
    counts = dict.fromkeys(("turns", "overviews", "details", "compactions"), 0) | {"messages": 2}
    header = header_of("ada", "s1", NOW, counts)
    (tmp_path / "export.json").write_text(header_line(header), encoding="utf-8")
    first = row_line({**a_row(0), "_id": "m0", "timestamp": "2026-01-01"})
    (tmp_path / "messages.jsonl").write_text(first, encoding="utf-8")
    there = (tmp_path / name).read_bytes() if name == "messages.jsonl" else b""
    (tmp_path / name).write_bytes(there + b"\n" + line)
    with pytest.raises(ValueError, match=f"^{re.escape(fault)}"):
        read_folder(GivenFolder(tmp_path), store, Limits(5_120, 65_536))


async def test_a_file_that_is_wrong(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """It is named with its folder, and nothing is written."""
    db["messages"].insert_one(a_row(0))
    folder = tmp_path / "s1"
    await desk.said("export", *OF_S1, str(folder))
    (folder / "overviews.jsonl").write_text('{"\x1b[31m', encoding="utf-8")
    said = await desk.refused("import", "--owner", "bob", str(folder))
    assert said.startswith(f"{folder}/overviews.jsonl: line 1: not JSON: ")
    assert said.isprintable()
    assert db["messages"].count_documents({}) == 1


async def test_links_out_of_a_folder(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """They are not followed; nothing but files is read."""
    db["messages"].insert_one(a_row(0))
    folder, secret = tmp_path / "s1", tmp_path / "secret"
    await desk.said("export", *OF_S1, str(folder))
    secret.write_text("secret", encoding="utf-8")
    detail = folder / "working-memory" / "detail"
    detail.mkdir()
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


async def test_a_folder_that_is_there(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """An export takes the place of another after a yes, and of nothing else; nothing stays beside it."""
    db["messages"].insert_one(a_row(0))
    folder = tmp_path / "s1"
    await desk.said("export", *OF_S1, str(folder))
    (folder / "overviews.jsonl").write_text("old", encoding="utf-8")
    done = await desk.run("export", *OF_S1, str(folder))
    assert (done.returncode, done.stderr.endswith("nexus: nothing was done; --yes does it without asking\n")) == (
        1,
        True,
    )
    await desk.said("export", *OF_S1, str(folder), "--yes")
    assert not (folder / "overviews.jsonl").exists()
    assert [*await run_sync(tmp_path.iterdir)] == [folder]
    (folder / "thesis.txt").write_text("mine", encoding="utf-8")
    said = await desk.refused("export", *OF_S1, str(folder), "--yes")
    assert said == f"{folder}: there is something else in it, thesis.txt; an export has a folder to itself"
    assert (await desk.refused("export", *OF_S1, "--yes", str(folder / "thesis.txt"))).startswith(
        f"{folder}/thesis.txt:"
    )


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("show", "--owner", ""), "--owner: String should have at least 1 character"),
        (("show", *OF_S1, "x\x1b"), r"there is no detail 'x\x1b'; the session has no details"),
        (("show", *OF_S1, "--revision", "9" * 30), "there is no revision 9"),
        (("diff", *OF_S1, "1"), "there is no revision 1; nothing is written down yet, and 0 is the template"),
        (("diff", *OF_S1), "nothing is written down: there is only the template, as revision 0"),
        (("export", *OF_S1, "no/where"), "no/where: there is no folder for it"),
        (("import", "no\x1bwhere"), "no\\x1bwhere: there is no such folder"),
        (("import", __file__), f"{__file__}: is a file; the folder that `export` wrote is needed"),
        (("import", "."), ".: no export.json is in it: it is no export of a session"),
        (("import", ".", "--yes"), "--yes says nothing without --replace: nothing else asks"),
    ],
    ids=lambda value: ascii(value)[:50],
)
async def test_what_is_wrong_with_words(desk: Desk, words: Sequence[str], fault: str) -> None:
    """One line and exit code 1."""
    assert (await desk.refused(*words)).startswith(fault)


async def test_a_session_without_anything(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """That is said, with its name; there is nothing to export, and no folder appears."""
    said = await desk.refused("export", *OF_S1, str(tmp_path / "s1"))
    assert said == "session s1 of ada: there is nothing of it"
    assert [*await run_sync(tmp_path.iterdir)] == []
    for command in ("show", "history", "check"):
        assert await desk.said(command, *OF_S1) == "There is nothing of session s1 of ada.\n"
    db["messages"].insert_one(a_row(0))
    assert await desk.said("history", *OF_S1) == "Nothing is written down or compacted of session s1 of ada.\n"


async def test_a_server_that_is_away(desk: Desk, tmp_path: Path) -> None:
    """Which one and what to do is said in one line; exit code 1."""
    away = Desk("memory", {**desk.environment, "NEXUS_DATABASE__URI": "mongodb://127.0.0.1:1"})
    for words in (("show", *OF_S1), ("check", *OF_S1), ("export", *OF_S1, str(tmp_path / "s1"))):
        assert "see that MongoDB runs" in await away.refused(*words)
    assert [*await run_sync(tmp_path.iterdir)] == []
