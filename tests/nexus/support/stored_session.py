"""A session as a service stores it in MongoDB, with everything that an export has to carry."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bson import Binary, Int64, ObjectId
from pydantic import BaseModel
from pymongo.database import Database

from nexus.adapters.mongo.schema import id_text
from nexus.core.ports import Row
from nexus.core.working_memory import Compaction, Detail, Overview
from tests.nexus.support.kept_turns import a_turn

NASTY: Final = "\x1b[31mred\x07\x85\u202etxt\x9b2J"
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
COLLECTIONS: Final = ("messages", "working_memory", "memory_details", "compactions", "session_states", "turns")
_STAMP: Final = f"{1:018d}0{'a' * 16}"


def a_row(number: int, **changes: Any) -> Row:
    """A message of session s1 of ada, with changes."""
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


def rows_of_other_writers() -> list[Row]:
    """Rows with `_id`s of other types, and with values for which JSON has no word."""
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


def stored(part: BaseModel, **more: Any) -> Row:
    """A document of session s1 of ada."""
    return {"owner_key": "ada", "session_id": "s1", **part.model_dump(), **more}


def an_overview(revision: int, content: str) -> Row:
    """A revision of the overview."""
    written_at = NOW + timedelta(minutes=revision)
    return stored(Overview(revision=revision, content=content, updated_at=written_at, turn_number=revision))


def a_detail(name: str, version: int, content: str, **changes: Any) -> Row:
    """A version of a detail, with changes."""
    size = len(content.encode())
    return stored(Detail(name=name, version=version, bytes=size, updated_at=NOW, content=content, **changes))


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
    return stored(compaction, work=None, due_at=None)


def store_session(db: Database[dict[str, Any]]) -> None:
    """Store session s1 of ada: 64 messages, 2 turns, 2 revisions, 5 versions of details, 2 compactions, a state."""
    rows = [a_row(number) for number in range(60)]
    foreign = rows_of_other_writers()
    db["messages"].insert_many([*rows, *foreign])
    db["working_memory"].insert_many([an_overview(1, "# Goal\n\nTrains."), an_overview(2, "# Goal\n\nTrains. 文")])
    archive = a_detail("compaction-0001", 1, f"said {NASTY}", kind="archive", compaction=1)
    notes = [a_detail("flights", 1, "BA 1"), a_detail("flights", 2, "BA 2\r\n"), a_detail("航班", 1, "国航")]
    db["memory_details"].insert_many([*notes, archive, a_detail("../../etc/passwd", 1, "root")])
    late = rows[35]
    db["compactions"].insert_many(
        [
            a_compaction(1, [*rows[:30], *foreign[:2]], NOW + timedelta(seconds=10), 32),
            a_compaction(2, [late], NOW + timedelta(seconds=10), 33, without=[late]),
        ]
    )
    db["turns"].insert_many([a_turn(1), a_turn(2)])
    item = {"id": "", "said": [_STAMP], "removed": "", "fields": {"text": [f"A tester. {NASTY}", _STAMP]}}
    state = {"owner_key": "ada", "session_id": "s1", "document": {"role": {"items": [item]}}, "revision": 1}
    db["session_states"].insert_one(state)


def documents_of(db: Database[dict[str, Any]], owner: str = "ada", session: str = "s1") -> dict[str, list[Row]]:
    """Every document of a session, without fields that a store sets itself and the work due on a turn or a message."""
    own = {"updated_at", "begun_at", "heard_at", "work", "due_at", "rows", "attempts", "overtaken", "delays"}
    found = {}
    for name in COLLECTIONS:
        rows = [*db[name].find({"owner_key": {"$eq": owner}, "session_id": session})]
        for row in rows:
            for field in {"nexus_schema", *(own if name in {"session_states", "turns"} else {"recall"})}:
                row.pop(field, None)
            if name != "messages":
                del row["_id"]
        found[name] = sorted(rows, key=repr)
    return found
