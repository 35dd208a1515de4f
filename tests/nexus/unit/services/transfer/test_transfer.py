"""Export and import of a session, on a store in memory and a folder in memory."""

import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from nexus.adapters.mongo.client import Calls
from nexus.adapters.mongo.transfer import MongoTransfer
from nexus.core.errors import NexusError, StoreUnavailableError
from nexus.core.models import SECOND, is_object_id
from nexus.core.person import Statement
from nexus.core.ports import Row
from nexus.core.working_memory import Tail
from nexus.services.person.constraint_changes import Target
from nexus.services.person.facts import MOST_STATEMENTS, Facts
from nexus.services.person.statements import Origin, statement
from nexus.services.transfer import folder as files
from nexus.services.transfer.exporter import export_session
from nexus.services.transfer.importer import compare, new_row_ids, read_session, write_session
from tests.nexus.support.constraints import constraints_on
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.folders import Files
from tests.nexus.support.kept_turns import a_turn
from tests.nexus.support.stored_session import NOW, a_compaction, a_detail, a_row, an_overview
from tests.nexus.support.tombstones import NO_TOMBSTONES

KEY = ("ada", "s1")


class FakeTransfer(MongoTransfer):
    """Rows in a list."""

    def __init__(self) -> None:
        super().__init__(None, Calls(1), checkpoint, recall=True)
        self.kept: list[Row] = []
        self.fails_after: int | None = None

    async def count_rows(self, owner_key: str, session_id: str) -> int:
        """How many rows a session has."""
        await checkpoint()
        return len([row for row in self.kept if (row["owner_key"], row["session_id"]) == (owner_key, session_id)])

    async def rows(self, owner_key: str, session_id: str) -> AsyncGenerator[list[Row]]:
        """All rows of a session, in one page."""
        await checkpoint()
        found = [row for row in self.kept if (row["owner_key"], row["session_id"]) == (owner_key, session_id)]
        yield sorted(found, key=self.row_id)

    async def find_elsewhere(self, owner_key: str, session_id: str, rows: Sequence[Row]) -> Row | None:
        """A row of another session with the `id` of one of these, where the owner is the same."""
        await checkpoint()
        ids = {row["id"] for row in rows}
        found = (row for row in self.kept if row["owner_key"] == owner_key and row["session_id"] != session_id)
        return next((row for row in found if row["id"] in ids), None)

    async def insert_rows(self, rows: Sequence[Row]) -> int:
        """Store rows, as long as the store does not fail."""
        await checkpoint()
        if self.fails_after is not None and len(self.kept) >= self.fails_after:
            raise StoreUnavailableError("gone")
        taken = {self.row_id(row) for row in self.kept}
        fresh = [row for row in rows if self.row_id(row) not in taken]
        self.kept += fresh
        return len(fresh)


class Store(FakeStore):
    """A store in memory from which sessions can be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.transfer: Any = FakeTransfer()

    def fill(self, messages: int = 3) -> None:
        """Store session s1 of ada."""
        rows = [a_row(number) for number in range(messages)]
        self.transfer.kept += [self.transfer.to_json(row) for row in rows]
        self.plant("turns", [a_turn(number, status="acting" if number == 70 else "completed") for number in (1, 7, 70)])
        self.plant("working_memory", [an_overview(number, f"Revision {number}") for number in range(1, 61)])
        self.plant("memory_details", [a_detail("a", 1, "A1"), a_detail("A", 1, "a"), a_detail("a", 2, "A2\r\n")])
        self.plant("compactions", [a_compaction(1, rows[:1], NOW, 1)])


def of_ada(fields: bytes) -> bytes:
    """A message of the session with these fields."""
    return b'{"owner_key": "ada", "session_id": "s1", "_id": 1, %s}' % fields


async def exported(store: Store) -> Files:
    """An export of what the store has."""
    folder = Files()
    await export_session(store, *KEY, folder, exported_at=NOW)
    return folder


async def imported(
    store: Store, folder: Files, owner_key: str | None = None, session_id: str | None = None
) -> Counter[str]:
    """What an import writes."""
    written = Counter[str]()
    plan = read_session(folder, store, owner_key=owner_key, session_id=session_id)
    await write_session(plan, await compare(plan), lambda file, n: written.update({file: n}))
    return +written


async def test_there_and_back() -> None:
    """Of pages and gaps too: an export of what was imported is the same export, but for turns that had not ended."""
    store, copy = Store(), Store()
    store.fill()
    folder = await exported(store)
    assert folder.files[files.OVERVIEW] == b"Revision 60"
    written = await imported(copy, folder)
    assert written == {
        files.MESSAGES: 3,
        files.TURNS: 3,
        files.DETAILS: 3,
        files.REVISIONS: 60,
        files.COMPACTIONS: 1,
    }
    stored = [*copy.turns.rows, *copy.memory.rows["compactions"]]
    assert {document["work"] for document in stored} == {None}
    again = await exported(copy)
    folder.files[files.TURNS] = folder.files[files.TURNS].replace(b'"status":"acting"', b'"status":"unanswered"')
    assert again.files == folder.files
    assert not await imported(copy, again)
    assert not await imported(store, again)


async def test_an_import_that_breaks_off() -> None:
    """What was written is reported, and repeating it writes the rest."""
    store, copy = Store(), Store()
    store.fill(messages=450)
    folder = await exported(store)
    copy.transfer.fails_after = 200
    plan, written = read_session(folder, copy, owner_key="bob"), Counter[str]()
    found = await compare(plan)
    with pytest.raises(StoreUnavailableError):
        await write_session(plan, found, lambda file, n: written.update({file: n}))
    assert written == {files.MESSAGES: 200}
    copy.transfer.fails_after = None
    rest = await imported(copy, folder, owner_key="bob")
    assert rest[files.MESSAGES] == 250
    assert rest.total() + 200 == plan.total


async def constrained(store: Store, *rules: tuple[str, str], owner: str = "ada", session: str = "s1") -> None:
    """Set rules, each with its scope and its text, in their order."""
    constraints = constraints_on(store)
    for scope, text in rules:
        await constraints.pin(owner, session, "run_1", {"text": text, "scope": scope, "kind": "format"})
        await anyio.sleep(0.002)


async def rules_of(store: Store, owner: str = "ada", session: str = "s1") -> list[tuple[str, str]]:
    """The rules in force, as they are shown."""
    return [(each.scope, each.text) for each in await constraints_on(store).constraints(owner, session, "")]


async def test_constraints_go_along() -> None:
    """The session's and its owner's are in force after the import, also of another owner, and twice is as once."""
    store, copy = Store(), Store()
    store.fill()
    rules = [
        ("owner", " Zuerst:\r\nDeutsch.\u202e\u2028 "),
        ("owner", "a"),
        ("session", "z"),
        ("session", "[CONSTRAINTS] 日本"),
    ]
    await constrained(store, *rules, ("run", "of the run"), ("session", "taken back"))
    await constrained(store, ("session", "of another"), session="s2")
    (gone,) = [each for each in await constraints_on(store).constraints(*KEY, "") if each.text == "taken back"]
    await constraints_on(store).retire(Target(*KEY, ""), [gone.id])
    assert await rules_of(store) == rules
    folder = await exported(store)
    assert all(line.decode().isprintable() for line in folder.lines(files.CONSTRAINTS))
    await constrained(copy, ("owner", "bob's own"), ("owner", "a"), owner="bob")
    written = await imported(copy, folder, owner_key="bob")
    assert written[files.CONSTRAINTS] == 3
    assert {*await rules_of(copy, "bob")} == {*rules, ("owner", "bob's own")}
    kept = repr(copy.constraints.kept)
    assert not await imported(copy, folder, owner_key="bob")
    assert repr(copy.constraints.kept) == kept
    await imported(copy, folder)
    assert await rules_of(copy) == rules
    assert (await exported(copy)).files[files.CONSTRAINTS] == folder.files[files.CONSTRAINTS]
    assert not await imported(store, folder)


async def test_constraints_alone_and_an_older_export() -> None:
    """A session may have nothing else, and an export of an older release has none."""
    store, copy = Store(), Store()
    await constrained(store, ("session", "a"))
    folder = await exported(store)
    header = json.loads(folder.files[files.HEADER])
    assert header.pop("constraints") == 1
    assert await imported(copy, folder) == {files.CONSTRAINTS: 1}
    del folder.files[files.CONSTRAINTS]
    folder.write(files.HEADER, json.dumps(header))
    assert not await imported(Store(), folder)


async def test_constraints_in_the_way() -> None:
    """Others of the session, those taken back since, and more than may be in force are refused by their names."""
    store = Store()
    await constrained(store, ("session", "a"), ("owner", "b"))
    folder = await exported(store)
    own, of_session = await constraints_on(store).constraints(*KEY, "")
    await constraints_on(store).retire(Target(*KEY, ""), [own.id])
    await constrained(store, ("session", "c"))
    _, other = await constraints_on(store).constraints(*KEY, "")
    with pytest.raises(NexusError) as refused:
        await compare(read_session(folder, store))
    assert str(refused.value).split("; ") == [
        f"session s1 of ada: constraint {other.id} is there, and not in constraints.jsonl",
        f"constraint {own.id}, taken back since, is there, not as in constraints.jsonl: line 1",
        "nothing was written",
    ]
    assert of_session.holds
    full = Store()
    await constrained(full, *(("owner", f"rule {number}") for number in range(100)))
    with pytest.raises(NexusError, match=r"constraints.jsonl: 101 of scope owner would be in force, at most 100 are"):
        await compare(read_session(folder, full))


async def test_what_is_in_the_way() -> None:
    """Other documents of the session, and the same messages in another session of the owner, by their names."""
    store = Store()
    store.fill()
    folder = await exported(store)
    with pytest.raises(NexusError) as refused:
        await compare(read_session(folder, store, session_id="s2"))
    recorded = "messages.jsonl: line 1: message 'm0' is recorded in session 's1' of 'ada' already"
    assert str(refused.value) == f"session s2 of ada: {recorded}; nothing was written"
    store.transfer.kept[0]["content"] = "other"
    store.plant("turns", [a_turn(8), a_turn(9)])
    store.memory.rows["working_memory"][0]["updated_at"] = None
    with pytest.raises(NexusError) as refused:
        await compare(read_session(folder, store))
    assert str(refused.value).split("; ") == [
        "session s1 of ada: message 'm0' is there, not as in messages.jsonl: line 1",
        "turn 9 is there, and not in turns.jsonl (and 1 more)",
        "revision 1 is there, not as in working-memory/revisions.jsonl: line 1",
        "nothing was written",
    ]


async def test_a_program_that_writes_meanwhile() -> None:
    """To the session or to the folder: the import says which document, and stops."""
    store, copy = Store(), Store()
    store.fill()
    folder = await exported(store)
    plan = read_session(folder, copy)
    found = await compare(plan)
    copy.plant("turns", [a_turn(7, insights=["other"])])
    with pytest.raises(NexusError, match=r"turns.jsonl: line 2: turn 7 is there meanwhile"):
        await write_session(plan, found, lambda _, __: None)
    plan = read_session(folder, Store())
    folder.write(files.OVERVIEW, "changed")
    with pytest.raises(NexusError, match=r"revisions.jsonl: line 60: it was changed while it was read"):
        await write_session(plan, await compare(plan), lambda _, __: None)


@pytest.mark.parametrize(
    ("file", "line", "fault"),
    [
        (files.MESSAGES, b"{\xff", "line 2: not UTF-8 at byte 1"),
        (files.MESSAGES, b"{'", "line 2: not JSON: Expecting property name enclosed in double quotes at column 2"),
        (files.MESSAGES, b"[]", "line 2: a JSON object is needed"),
        (files.MESSAGES, b'{"owner_key": "eve"}', "line 2: owner_key: it is not that of session.json"),
        (files.MESSAGES, b'{"owner_key": "ada", "session_id": "s1"}', "line 2: _id: one is needed"),
        (
            files.MESSAGES,
            of_ada(b'"x": {"$where": 1}'),
            "line 2: an object whose key begins with $ is no Extended",
        ),
        (files.MESSAGES, of_ada(b'"x": 9223372036854775808'), "line 2: a whole number of more than 64 bits"),
        (files.MESSAGES, of_ada(b'"x": {"\\u0000": 1}'), "line 2: a key with a NUL"),
        (
            files.MESSAGES,
            of_ada(b'"x": "%s"' % (b"x" * (1 << 24))),
            "line 2: as a document it has more than 16776192",
        ),
        (files.MESSAGES, of_ada(b'"id": "m0"'), "line 2: id: it is that of messages.jsonl: line 1"),
        (files.MESSAGES, b'{"a":' * 300 + b"1" + b"}" * 300, "line 2: nested deeper than 200"),
        (files.MESSAGES, b"", "it has 1 documents, and session.json says 2: it is not whole"),
        (files.TURNS, b"{}", "line 2: id: Field required (and 6 more)"),
        (files.TURNS, json.dumps({"turn_number": "1"}).encode(), "line 2: id: Field required"),
        (files.REVISIONS, b'{"revision": true}', "line 2: its content is in working-memory/overview.md, which is miss"),
        (files.REVISIONS, b'{"revision": true, "content": ""}', "line 2: revision: Input should be a valid integer"),
        (files.DETAILS, b'{"name": "a", "file": "../x"}', "line 2: file: the name of a file in working-memory/detail"),
        (files.DETAILS, b'{"name": "a", "file": "x.md"}', "line 2: its content is in working-memory/detail/x.md, whi"),
        (
            files.DETAILS,
            b'{"name": "a", "version": 1, "bytes": 9, "updated_at": "2026-01-01T00:00:00Z", "content": "x"}',
            "line 2: bytes: the content has 1",
        ),
        (files.COMPACTIONS, b"{}", "line 2: number: Field required"),
        (files.STATE, b"[]", "a JSON object is needed"),
        (files.CONSTRAINTS, b"{}", "line 2: id: Field required (and 2 more)"),
        (
            files.CONSTRAINTS,
            b'{"id": "x", "text": "a", "scope": "run", "valid_from": "2026-01-01T00:00:00Z"}',
            "line 2: one in force is needed, of scope owner or session",
        ),
        (
            files.CONSTRAINTS,
            b'{"id": "x", "text": "a", "valid_from": "2026-01-01T00:00:00Z", "valid_to": "2026-01-02T00:00:00Z"}',
            "line 2: one in force is needed, of scope owner or session",
        ),
        (
            files.CONSTRAINTS,
            b'{"id": "x", "text": " ", "valid_from": "2026-01-01T00:00:00Z"}',
            "line 2: text: is blank; a text of 1 to 2000 characters is needed",
        ),
        (files.HEADER, b"{}", "not JSON: "),
        (f"{files.DETAIL_FOLDER}/a.txt", b"", "a detail is a file whose name ends with .md"),
        (f"{files.DETAIL_FOLDER}/b:.md", b"", "':' at place 2 is not allowed"),
        (f"{files.DETAIL_FOLDER}/compaction-7.md", b"", "no new detail can be called so"),
        (f"{files.DETAIL_FOLDER}/a.md", b"\xff", "not UTF-8 at byte 0"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_files_that_are_wrong(file: str, line: bytes, fault: str) -> None:
    """The file, the line, what is wrong and what is allowed are said."""
    store, folder = Store(), Files()
    header = {"format": "nexus-session", "version": 1, "owner_key": "ada", "session_id": "s1", "messages": 2}
    counts = dict.fromkeys(("turns", "compactions", "revisions", "details"), 0)
    folder.put(files.HEADER, json.dumps({**header, **counts, "exported_at": "2026-01-01T00:00:00Z"}))
    folder.put(files.MESSAGES, json.dumps(store.transfer.to_json(a_row(0))))
    before = b"\n" if file.endswith("jsonl") and file != files.MESSAGES else b""
    folder.files[file] = folder.files.get(file, b"") + before + line
    if file != files.MESSAGES:
        folder.put(files.MESSAGES, json.dumps(store.transfer.to_json(a_row(1))))
    with pytest.raises(ValueError, match=f"^{re.escape(file)}: {re.escape(fault)}"):
        read_session(folder, store)


_IDS = st.lists(
    st.text("0123456789abcdef", min_size=24, max_size=24).map(lambda digits: f"6900000{digits[0]}{digits[8:]}")
    | st.text(min_size=1, max_size=5),
    unique=True,
)


@given(_IDS, st.integers(0, 15), st.data())
def test_new_ids_of_rows(row_ids: list[str], second: int, data: st.DataObject) -> None:
    """Each has one of its own, of the same second and rank, so that a tail has the same rows."""
    without = frozenset(data.draw(st.sets(st.sampled_from(row_ids)))) if row_ids else frozenset[str]()
    ids = new_row_ids(row_ids, "bob", "s1")
    assert len({*ids.values()}) == len(row_ids)
    made = [row_id for row_id in row_ids if is_object_id(row_id)]
    assert all(ids[row_id][SECOND] == row_id[SECOND] for row_id in made)
    assert sorted(made) == sorted(made, key=lambda row_id: ids[row_id])
    assert all(not is_object_id(ids[row_id]) for row_id in {*row_ids} - {*made})
    since = f"6900000{second:x}"
    before, after = Tail(since, without), Tail(since, frozenset(ids[row_id] for row_id in without))
    assert [before.includes(row_id) for row_id in row_ids] == [after.includes(ids[row_id]) for row_id in row_ids]
    assert new_row_ids(row_ids, "bob", "s1") == ids
    others = {*new_row_ids(row_ids, "bob", "s2").values()} | {*new_row_ids(row_ids, "bo", "b s1").values()}
    assert not others & {*ids.values()}


_HOSTILE = ["..", "", "a/b", "a\\b", "a\x00", "A", "a", "Å", "A\u030a", "x" * 500, "é.", "~", ".hidden"]


@given(st.lists(st.text(max_size=70) | st.sampled_from(_HOSTILE), unique=True, max_size=20))
def test_files_of_details(names: list[str]) -> None:
    """Each has a file of its own, also where case does not count, in the folder; a plain name is its file's."""
    named = files.detail_files(names)
    assert {*named} == {*names}
    assert len({file.casefold() for file in named.values()}) == len(names)
    for file in named.values():
        assert not re.search(r"[/\\\x00]|^\.", file)
        assert len(file.encode()) <= 255
    assert files.detail_files(["flights", "航班 2"]) == {"flights": "flights.md", "航班 2": "航班 2.md"}


def a_statement(number: int, session: str = "s1", topic: str = "home") -> Statement:
    """What was said of ada in a session."""
    origin = Origin("ada", f"msg_{number}", NOW + timedelta(seconds=number), session)
    return statement(origin, topic, f"[FRIENDS_INFO] v{number}\u202e", evidence=[f"m{number}"])


async def values_of(store: Store, owner: str) -> list[tuple[str, str]]:
    """What holds of an owner."""
    return [(each.topic, each.value) for each in await Facts(store.facts, NO_TOMBSTONES).facts(owner) if each.holds]


async def test_facts_go_along() -> None:
    """All of the owner's, under the new one, beside what it has; twice is as once."""
    store, copy = Store(), Store()
    store.fill()
    await Facts(store.facts, NO_TOMBSTONES).add(
        "ada", [a_statement(1), a_statement(2, "s2"), a_statement(3, topic="tea")]
    )
    folder = await exported(store)
    assert all(line.decode().isprintable() for line in folder.lines(files.FACTS))
    own = statement(Origin("bob", "msg", NOW), "pet", "Rex")
    await Facts(copy.facts, NO_TOMBSTONES).add("bob", [own])
    written = await imported(copy, folder, owner_key="bob", session_id="copy")
    assert written[files.FACTS] == 3
    assert await values_of(copy, "bob") == sorted([*await values_of(store, "ada"), ("pet", "Rex")])
    sessions = {each.session_id for each in await Facts(copy.facts, NO_TOMBSTONES).statements("bob")}
    assert sessions == {"copy", "s2", ""}
    kept = repr(copy.facts.kept)
    assert not await imported(copy, folder, owner_key="bob", session_id="copy")
    assert repr(copy.facts.kept) == kept
    assert await values_of(copy, "ada") == []
    await imported(copy, folder)
    assert await Facts(copy.facts, NO_TOMBSTONES).facts("ada") == await Facts(store.facts, NO_TOMBSTONES).facts("ada")
    assert not await imported(store, folder)


async def test_facts_are_no_session_and_an_older_export_has_none() -> None:
    """A session of which nothing but what is the owner's is there is none."""
    store, copy = Store(), Store()
    await Facts(store.facts, NO_TOMBSTONES).add("ada", [a_statement(1)])
    await constrained(store, ("owner", "a"), ("run", "b"))
    with pytest.raises(NexusError, match="there is nothing of it"):
        await exported(store)
    store.fill()
    folder = await exported(store)
    header = json.loads(folder.files[files.HEADER])
    assert header.pop("facts") == 1
    del folder.files[files.FACTS]
    folder.write(files.HEADER, json.dumps(header))
    assert files.FACTS not in await imported(copy, folder)


async def test_facts_in_the_way() -> None:
    """An owner has no more than are allowed, and a malformed line is named; nothing is written."""
    store, copy = Store(), Store()
    store.fill()
    await Facts(store.facts, NO_TOMBSTONES).add("ada", [a_statement(1)])
    folder = await exported(store)
    operators = (Origin("ada", f"o{n}", NOW, source="operator") for n in range(MOST_STATEMENTS))
    others = [statement(origin, "other", origin.key) for origin in operators]
    await Facts(copy.facts, NO_TOMBSTONES).add("ada", others)
    with pytest.raises(NexusError, match=r"facts.jsonl: 5001 statements of the owner would be kept, at most 5000"):
        await imported(copy, folder)
    assert copy.transfer.kept == []
    told = folder.files[files.FACTS]
    folder.files[files.FACTS] = told.replace(b"v1", b"v2")
    with pytest.raises(NexusError, match=r"fact [0-9a-f]{32} is there, not as in facts.jsonl: line 1; nothing was wri"):
        await imported(store, folder)
    for name in ("topic", "value"):
        folder.files[files.FACTS] = json.dumps({**json.loads(told), name: " \u00a0"}).encode()
        with pytest.raises(ValueError, match=rf"facts.jsonl: line 1: {name}: is blank"):
            await imported(copy, folder)
    folder.files[files.FACTS] = told.replace(b'"home"', b"7")
    with pytest.raises(ValueError, match=r"facts.jsonl: line 1: topic"):
        await imported(copy, folder)
