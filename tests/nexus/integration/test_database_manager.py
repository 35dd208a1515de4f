"""The database manager as its operators use it: on a terminal and in scripts, on a MongoDB."""

import copy
import csv
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, ObjectId, json_util
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure
from rich.cells import cell_len

from scripts.dbmanager.commands import main
from scripts.dbmanager.stored_settings import Plan, apply, load_template, make_plan
from tests.nexus.support.desk import run_here
from tests.nexus.support.terminal import on_terminal

PROGRAM = Path(__file__).parents[3] / "scripts" / "database_manager.py"
EXAMPLE = PROGRAM.parents[1] / "config.example.yml"
# The keys of a stored document that holds no settings.
EMPTY = {"_id", "environment", "created_at", "updated_at"}
SECRET = "hunter2"
PROMPT = "Choice [1-9]:"
TODAY = datetime.now(UTC).replace(microsecond=0)

Document = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """How a run of the program ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON value that was printed."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def fault(self) -> tuple[int, str]:
        """The exit code and the one line on stderr of a failure."""
        assert re.fullmatch(r"database_manager: [^\n]+\n", self.err), self.err
        return self.code, self.err


@dataclass(frozen=True)
class Manager:
    """Runs the program against one server and database."""

    uri: str
    database: str
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str, stdin: str = "", terminal: bool = False, **environment: str) -> Result:
        """Run a subcommand (or the menu, without words), which reads `stdin`, from a `terminal` or not."""
        variables = {"TERM": "xterm", "NEXUS_DATABASE__URI": self.uri, **self.environment, **environment}
        all_words = ["--database", self.database, *words]
        done = run_here(lambda: main(all_words), stdin=stdin.encode(), terminal=terminal, environment=variables)
        return Result(done.returncode, done.stdout, done.stderr)

    def each(self, *commands: str) -> list[Result]:
        """Run several subcommands, one after the other."""
        return [self.run(*shlex.split(command)) for command in commands]

    def menu(self, *answers: str) -> Result:
        """Give these answers to the menu at a terminal, and then leave it."""
        result = self.run(stdin="".join(f"{answer}\n" for answer in answers), terminal=True)
        assert (result.code, result.out.endswith("Goodbye.\n")) == (0, True), result.err
        return result


@pytest.fixture
def database(mongo_uri: str, database_name: str) -> Iterator[Database[Document]]:
    """The test's own database, still empty."""
    with MongoClient[Document](mongo_uri, tz_aware=True) as client:
        yield client[database_name]


@pytest.fixture
def manager(mongo_uri: str, database_name: str, tmp_path: Path) -> Manager:
    """The program, pointed at the test's own database, without settings of the developer's."""
    return Manager(mongo_uri, database_name, {"HOME": str(tmp_path)})


def message(number: int, role: Any = "HUMAN", *, days: float = 0, **more: Any) -> Document:
    """A row of `messages`, that many days old."""
    row = {
        "id": f"msg_{number}",
        "run_id": f"run_{number // 3}",
        "owner_key": "alice",
        "session_id": "default",
        "role": role,
        "content": f"TOP SECRET {number} 你好",
        "timestamp": TODAY - timedelta(days=days),
        "metadata": {},
    }
    return row | more


def summaries(source: str, text: str) -> Document:
    """The summaries of a turn; every text of theirs is a secret."""
    secret = f"TOP SECRET {text}"
    structured = {"overview": secret, "actions": [secret, secret], "results": [], "decisions": [5], "next_steps": []}
    return {"brief": secret, "detailed": secret, "structured": structured, "source": source}


def turn(number: int, **more: Any) -> Document:
    """A document of `turns`, three days old."""
    calls = [
        {"name": "web", "arguments": {"q": "TOP SECRET"}, "success": True, "result": "TOP SECRET"},
        {"name": "web", "arguments": {"q": "TOP SECRET"}, "success": False, "result": {"TOP SECRET": 1}},
        {"name": "calc", "arguments": None, "success": None, "result": None},
    ]
    document = {
        "id": f"turn_{number}_0",
        "turn_number": number,
        "owner_key": "alice",
        "session_id": "default",
        "run_id": f"run_{number}",
        "timestamp": TODAY - timedelta(days=3),
        "status": "completed",
        "task_context": "TOP SECRET",
        "tool_calls": calls,
        "summaries": summaries("model", "你好"),
        "token_usage": {"thinking": 5, "action": 20, "total": 25},
        "work": None,
    }
    return document | more


class TestMenu:
    """A person at a terminal."""

    @pytest.mark.parametrize("key", ["\x04", "\x03"], ids=["Ctrl-D", "Ctrl-C"])
    def test_the_program(self, manager: Manager, key: str) -> None:
        """It names server (without credentials), database and nine items; nonsense is asked again; keys leave."""
        titles = (
            *("List databases", "List collections", "Show database statistics", "Select database"),
            *("Cleanup collection", "Export collection", "Analyze collection", "Initialize configurations", "Exit"),
        )
        environment = {**os.environ, "TERM": "xterm", "NEXUS_DATABASE__URI": manager.uri, **manager.environment}
        with on_terminal([str(PROGRAM), "--database", manager.database], environment) as menu:
            menu.expect("server    127.0.0.1:", f"database  {manager.database}")
            menu.expect(*(f"{number} {title}" for number, title in enumerate(titles, 1)))
            menu.answer(PROMPT, "ten")
            menu.expect("one of: 1, 2, 3, 4, 5, 6, 7, 8, 9", PROMPT)
            menu.child.send(key)
            menu.expect("Goodbye.")
            assert menu.ended() == 0

    def test_lists_and_statistics(self, manager: Manager, database: Database[Document]) -> None:
        """Items 1, 2, 3 and 7 show what is there, and an item that cannot be done does not end the menu."""
        failed = manager.menu("7", "0", "", "9")
        assert "Not done: database" in failed.err
        assert failed.err.count("Please answer with one of: 1, 2, 3, 4, 5, 6, 7, 8, 9") == 2
        database["messages"].insert_many([message(1), message(2, "AI")])
        shown = manager.menu("1", "2", "3", "7", "collection", "1")
        for text in ("Databases", "selected", "Collections of", "Indexes", "_id_", "Roles", "No malformed messages"):
            assert text in shown.out
        assert "one of: 1, messages" in shown.err

    def test_a_fresh_database_is_selected_and_initialized(
        self, manager: Manager, database: Database[Document], mongo_uri: str
    ) -> None:
        """Item 4 takes a database that does not exist yet, and item 8 makes it, for production if so asked."""
        elsewhere = Manager(mongo_uri, "admin", manager.environment)
        refused = elsewhere.menu("4", "no/name", "4", manager.database, "8", "2", "n")
        assert "is no database name" in refused.err
        assert "does not exist yet: it will be created by the first write" in refused.out
        assert "not confirmed: nothing was done" in refused.err
        assert database.list_collection_names() == []
        assert "config.changed" in elsewhere.menu("4", manager.database, "8", "2", "y").out
        stored = database["configurations"].find_one({}) or {}
        assert (stored["environment"], {*stored}) == ("production", EMPTY)

    def test_cleanup_by_criteria(self, manager: Manager, database: Database[Document]) -> None:
        """Item 5 shows what matches, without contents, and deletes it only after a yes."""
        database["messages"].insert_many([message(n, "TOOL", days=40) for n in range(3)] + [message(9)])
        criteria = ("5", "messages", "soon", "30", "tool", "", "", "")
        for agreed, left in (("n", 4), ("y", 1)):
            result = manager.menu(*criteria, agreed)
            assert "whole number from 0" in result.err
            assert "Matching: 3 documents" in result.out
            assert "TOP SECRET" not in result.out + result.err
            assert database["messages"].count_documents({}) == left

    def test_wiping_a_collection_takes_its_name(self, manager: Manager, database: Database[Document]) -> None:
        """Without a criterion item 5 asks for the collection's name, and a yes is not enough."""
        database["turns"].insert_many([{"_id": n} for n in range(2)])
        for typed, left in (("y", 2), ("turns", 0)):
            assert "every document" in manager.menu("5", "1", *[""] * 5, typed).out
            assert database["turns"].count_documents({}) == left

    def test_a_piped_menu_confirms_nothing(self, manager: Manager, database: Database[Document]) -> None:
        """Answers may come from a pipe; where a confirmation is needed, the menu then ends with exit code 2."""
        result = manager.run(stdin="1\n8\n1\ny\n")
        assert (result.code, "say --yes" in result.err) == (2, True)
        assert database.list_collection_names() == []


class TestLists:
    """The subcommands databases, collections and stats."""

    def test_databases(self, manager: Manager, database: Database[Document]) -> None:
        """Names, sizes and counts are listed; the server's own databases and the selected one are marked."""
        database["messages"].insert_many([message(n) for n in range(3)])
        listed = {each["name"]: each for each in manager.run("databases", "--json").json}
        mine = listed[manager.database]
        assert (mine["collections"], mine["documents"], mine["system"], mine["selected"]) == (1, 3, False, True)
        assert mine["size_on_disk"] > 0
        assert listed["local"]["system"]

    def test_collections_are_shown_in_80_columns(self, manager: Manager, database: Database[Document]) -> None:
        """Chinese names and a view fit, and no colours go where no terminal is."""
        database["消息" * 10].insert_one({})
        database.create_collection("seen", viewOn="messages", pipeline=[])
        shown = manager.run("collections", FORCE_COLOR="")
        assert shown.code == 0
        assert "消息" * 10 in shown.out
        assert "view" in shown.out
        assert "\x1b" not in shown.out
        assert max(cell_len(line) for line in shown.out.splitlines()) <= 80

    @pytest.mark.parametrize("columns", ["42", "80"])
    def test_nothing_is_broken_on_a_narrow_terminal(
        self, manager: Manager, database: Database[Document], columns: str
    ) -> None:
        """Names and numbers are whole, and no line is longer than the terminal is wide."""
        database["messages"].insert_many([message(n) for n in range(10)])
        database["messages"].create_index("owner_key", name="newest_of_all_the_owners")
        report = manager.run("stats", "--json").json
        index = next(found for found in report["collections"][0]["indexes"] if found["name"] != "_id_")
        shown = manager.run("stats", COLUMNS=columns).out
        words = shown.split()
        assert {"messages", "10", "newest_of_all_the_owners", index["since"][:10] if index["since"] else "-"} <= {
            *words
        }
        assert "…" not in shown
        assert max(cell_len(line) for line in shown.splitlines() if not line.startswith("Note")) <= int(columns)

    def test_stats(self, manager: Manager, database: Database[Document]) -> None:
        """Sizes are plain numbers in JSON; every index is there, with its use or a note why not."""
        database["messages"].insert_many([message(n) for n in range(10)])
        database["messages"].create_index("owner_key")
        report = manager.run("stats", "--json").json
        (collection,) = report["collections"]
        assert (collection["name"], collection["documents"]) == ("messages", 10)
        assert collection["data_size"] // 10 == collection["average_size"] > 100
        indexes = {index["name"]: index for index in collection["indexes"]}
        assert indexes.keys() == {"_id_", "owner_key_1"}
        assert all(index["uses"] is not None for index in indexes.values()) or "not count" in report["notes"][0]


class TestCleanup:
    """The subcommand cleanup."""

    @pytest.fixture
    def rows(self, database: Database[Document]) -> Database[Document]:
        """Rows of all sorts, among them three that have no date."""
        undated = (TODAY - timedelta(days=400)).isoformat()
        database["messages"].insert_many(
            [
                message(0, "HUMAN", days=100),
                message(1, "human", days=100, owner_key="bob"),
                message(2, "AI", days=100, session_id="s2"),
                message(3, "HUMAN", days=1),
                message(4, "HUMAN", timestamp=undated),
                message(5, "HUMAN", timestamp=[TODAY - timedelta(days=400)]),
                {name: value for name, value in message(6, "HUMAN").items() if name != "timestamp"},
            ]
        )
        return database

    def test_criteria(self, manager: Manager, rows: Database[Document]) -> None:
        """What meets all criteria goes and nothing else; rows without a date are never old."""
        cases: dict[str, tuple[set[int], int]] = {
            "--older-than 30": ({0, 1, 2}, 3),
            "--older-than 30 --role Human": ({0, 1}, 3),
            "--role AI": ({2}, 0),
            "--owner bob --run run_0": ({1}, 0),
            "--session s2 --owner bob": (set(), 0),
            "--all": (set(range(7)), 0),
        }
        for name in cases:
            rows[f"copy {name}"].insert_many(rows["messages"].find())
        results = manager.each(*(f"cleanup 'copy {name}' {name} --yes --json" for name in cases))
        for (name, (deleted, skipped)), result in zip(cases.items(), results, strict=True):
            left = {row["id"] for row in rows[f"copy {name}"].find()}
            assert left == {f"msg_{number}" for number in range(7) if number not in deleted}, name
            report = result.json
            assert (report["matched"], report["deleted"], report["skipped"]) == (len(deleted), len(deleted), skipped)
            assert "TOP SECRET" not in result.out

    def test_values_are_never_operators(self, manager: Manager, rows: Database[Document]) -> None:
        """A value that looks like a query or a pattern matches nothing."""
        criteria = [f'{option} \'{{"$ne": ""}}\'' for option in ("--owner", "--run", "--session", "--role")]
        for result in manager.each(*(f"cleanup messages --yes --json {each}" for each in [*criteria, "--role .*"])):
            assert result.json["matched"] == 0
        assert rows["messages"].count_documents({}) == 7

    def test_nothing_goes_without_agreement(self, manager: Manager, rows: Database[Document]) -> None:
        """A dry run shows what would go, without contents; without --yes it asks on a terminal, else it is refused."""
        words = ("cleanup", "messages", "--older-than", "30")
        dry = manager.run("--dry-run", *words)
        assert dry.code == 0
        for text in ("Matching: 3 documents", "Skipped: 3 documents", "msg_0", "Dry run: nothing was deleted"):
            assert text in dry.out
        assert "TOP SECRET" not in dry.out
        refused = manager.run(*words, stdin="y\n")
        assert (refused.fault[0], "say --yes" in refused.err) == (2, True)
        asked = manager.run(*words, terminal=True)
        assert (asked.code, "Delete 3 documents" in asked.err, "nothing was done" in asked.err) == (1, True, True)
        assert rows["messages"].count_documents({}) == 7

    def test_force_reaches_protected_collections(self, manager: Manager, database: Database[Document]) -> None:
        """With --force a protected collection is a collection like any other."""
        database["identities"].insert_one({"public_key": "k"})
        assert manager.run("cleanup", "identities", "--all", "--force", "--yes", "--json").json["deleted"] == 1

    def test_many_go_in_batches(self, manager: Manager, database: Database[Document]) -> None:
        """More documents than a batch holds go all, and the others stay."""
        database["messages"].insert_many([message(n, "TOOL" if n else "AI") for n in range(521)])
        assert "Deleted 520 documents" in manager.run("cleanup", "messages", "--role", "tool", "--yes").out
        assert database["messages"].distinct("role") == ["AI"]


class TestExport:
    """The subcommand export."""

    def test_documents_come_back(self, manager: Manager, database: Database[Document], tmp_path: Path) -> None:
        """JSON lines in the order of the ids give the very documents back: Unicode, nested, dates, BSON types."""
        rows = [
            {"_id": n, **message(n), "content": "你好 \u2028\n\"'\\ 😀", "metadata": {"a": [{"t": TODAY}, None, 1.5]}}
            for n in range(296)
        ]
        rows += [
            {"_id": 2_000 + n, "v": value} for n, value in enumerate((ObjectId(), b"\0\xff", Decimal128("1.10"), True))
        ]
        database["messages"].insert_many(reversed(rows))
        target = tmp_path / "out.jsonl"
        report = manager.run("export", "messages", "--output", str(target), "--json").json
        assert (report["documents"], report["bytes"], report["file"]) == (300, target.stat().st_size, str(target))
        lines = target.read_bytes().split(b"\n")
        assert lines.pop() == b""
        assert "你好".encode() in lines[0]
        options = json_util.JSONOptions(tz_aware=True)
        assert [json_util.loads(line.decode(), json_options=options) for line in lines] == rows
        assert [*tmp_path.iterdir()] == [target]

    def test_criteria_and_stdout(self, manager: Manager, database: Database[Document]) -> None:
        """The criteria of cleanup choose what is exported; on stdout there is nothing but the documents."""
        database["messages"].insert_many([message(1, days=50), message(2, "AI"), message(3, "ai", days=50)])
        result = manager.run("export", "messages", "--role", "AI", "--older-than", "30")
        assert [json.loads(line)["id"] for line in result.out.splitlines()] == ["msg_3"]
        assert "1 document" in result.err

    def test_messages_as_csv(self, manager: Manager, database: Database[Document], tmp_path: Path) -> None:
        """Messages have fixed columns; nested values are JSON; only --raw leaves a formula one."""
        database["messages"].insert_one(message(1, content="=1+1", metadata={"k": "你\n"}))
        database["messages"].insert_one({"content": {"a": 1}, "timestamp": "-1"})
        command = f"export messages --format csv --output '{tmp_path}/out' --yes"
        found = []
        for words in (command, f"{command} --raw"):
            assert manager.each(words)[0].code == 0
            with (tmp_path / "out").open(encoding="utf-8", newline="") as file:
                found.append([*csv.DictReader(file)])
        (first, second), raw = found[0], found[1][0]
        assert [*first] == ["id", "run_id", "owner_key", "session_id", "role", "timestamp", "content", "metadata"]
        assert (first["content"], raw["content"]) == ("'=1+1", "=1+1")
        assert (json.loads(first["metadata"]), datetime.fromisoformat(first["timestamp"])) == ({"k": "你\n"}, TODAY)
        assert (second["id"], second["timestamp"], json.loads(second["content"])) == ("", "'-1", {"a": 1})

    def test_other_collections_as_csv(self, manager: Manager, database: Database[Document]) -> None:
        """The columns are all fields at the top of the documents that are meant."""
        database["tools"].insert_many([{"_id": 1, "b": -1}, {"_id": 2, "a": "x"}, {"_id": 3, "c": 1, "owner_key": "o"}])
        whole, chosen = manager.each("export tools --format csv", "export tools --format csv --owner o")
        assert whole.out.splitlines() == ["_id,a,b,c,owner_key", "1,,-1,,", "2,x,,,", "3,,,1,o"]
        assert chosen.out.splitlines() == ["_id,c,owner_key", "3,1,o"]

    def test_a_file_is_not_overwritten_unasked(
        self, manager: Manager, database: Database[Document], tmp_path: Path
    ) -> None:
        """An existing file stays, except with --yes; a dry run writes nothing; a missing place is named in one line."""
        database["messages"].insert_one(message(1))
        target = tmp_path / "mine"
        target.write_text("mine", encoding="utf-8")
        command = f"export messages --output '{target}'"
        refused, dry, folder, collection = manager.each(
            command,
            f"{command} --yes --dry-run --json",
            f"export messages --output '{tmp_path}/no/out'",
            "export message",
        )
        for (code, line), expected, said in (
            (refused.fault, 2, "exists"),
            (folder.fault, 2, "no folder"),
            (collection.fault, 1, "there are: messages"),
        ):
            assert (code, said in line) == (expected, True)
        assert (dry.json["documents"], target.read_text(encoding="utf-8")) == (1, "mine")
        assert manager.run("export", "messages", "--output", str(target), "--yes").code == 0
        assert "msg_1" in target.read_text(encoding="utf-8")


class TestAnalyze:
    """The subcommand analyze."""

    def test_messages(self, manager: Manager, database: Database[Document]) -> None:
        """Roles, runs, owners, sessions, tools in both forms, days and the span are counted."""
        nested = {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "web", "arguments": "{}"}}]}
        flat = {"tool_calls": [{"name": "web", "arguments": {"a": 1}, "id": "d"}, {"name": "calc", "arguments": "{}"}]}
        database["messages"].insert_many(
            [
                message(0, days=3),
                message(1, "ai", metadata=nested, content="é"),
                message(2, "AI", metadata=flat, content=""),
                message(3, "TOOL", metadata={"tool_name": "web", "execution_success": True}, content=""),
                message(4, "TOOL", metadata={"tool_name": "web", "status": "error"}, content=""),
                message(6, owner_key="小明", session_id="s2", content=""),
            ]
        )
        as_json, shown = manager.each("analyze --json", "analyze")
        report = as_json.json
        assert report["roles"] == [{"name": name, "count": 2} for name in ("AI", "HUMAN", "TOOL")]
        assert report["runs"] == {"count": 3, "min": 1, "median": 2, "max": 3}
        assert (report["owners"], report["sessions"], report["malformed"]) == (2, 2, [])
        assert report["top_owners"] == [{"name": "alice", "count": 5}, {"name": "小明", "count": 1}]
        assert [tuple(tool.values()) for tool in report["tools"]] == [("calc", 1, 0, 0, 0), ("web", 2, 2, 1, 1)]
        assert [day["count"] for day in report["days"]] == [1, 5]
        assert report["content_bytes"] == len("TOP SECRET 0 你好é".encode())
        assert datetime.fromisoformat(report["last"]) - datetime.fromisoformat(report["first"]) == timedelta(days=3)
        assert "小明" in shown.out
        assert "50%" in shown.out
        assert "TOP SECRET" not in shown.out

    @pytest.mark.parametrize(
        ("collection", "documents", "faults"),
        [
            (
                "messages",
                [
                    message(1),
                    {"_id": 1},
                    message(2, run_id=None, content=None),
                    message(3, run_id="", role="assistant", timestamp="2025-01-01T00:00:00Z"),
                    message(4, role={"a": 1}, content={"text": "x"}, metadata=[1]),
                    message(5, owner_key=7, timestamp=[TODAY], metadata={"tool_calls": "?"}),
                    message(6, role="\x1b[31mred", metadata={"tool_calls": [None, 1, {"function": "f"}]}),
                ],
                {
                    "no run_id": 3,
                    "timestamp is no date": 3,
                    "unknown role": 4,
                    "content is no text": 3,
                    "missing owner_key": 2,
                },
            ),
            (
                "turns",
                [
                    turn(1),
                    {"_id": 1},
                    turn(2, summaries="TOP SECRET", tool_calls="TOP SECRET", token_usage=[1]),
                    turn(
                        3, summaries={"brief": 1, "structured": {"actions": ["x"]}}, status=5, timestamp="\x1b[31mred"
                    ),
                    turn(-4, tool_calls=[None, 5, {"name": {"TOP SECRET": 1}, "success": "yes", "result": None}]),
                    turn(5, summaries={**summaries("model", "x"), "structured": {"overview": "o", "actions": "x"}}),
                ],
                {
                    **{f"no {name}": 1 for name in ("owner_key", "session_id", "run_id")},
                    "turn_number is no number from 1 up": 2,
                    "timestamp is no date": 2,
                    "unknown status": 2,
                    "unknown source of the summary": 3,
                    **{f"no {level} summary": 3 for level in ("brief", "detailed", "comprehensive")},
                },
            ),
        ],
        ids=["messages", "turns"],
    )
    def test_malformed_documents_are_counted(  # a table's columns
        self,
        manager: Manager,
        database: Database[Document],
        collection: str,
        documents: list[Document],
        faults: dict[str, int],
    ) -> None:
        """None of them stops it: each fault is counted once a document, and no content is shown."""
        database[collection].insert_many(copy.deepcopy(documents))
        as_json, shown = manager.each(f"analyze {collection} --json", f"analyze {collection}")
        report = as_json.json
        assert report[collection] == len(documents)
        assert {each["name"]: each["count"] for each in report["malformed"]} == faults
        assert f"Malformed {collection}" in shown.out
        assert "\x1b" not in shown.out
        assert "TOP SECRET" not in shown.out + as_json.out

    def test_a_date_beyond_every_calendar(self, manager: Manager, database: Database[Document]) -> None:
        """A date that no datetime can hold is malformed, and is exported as it is."""
        try:
            database["messages"].insert_one(message(1, timestamp=DatetimeMS(10**16)))
        except OperationFailure:
            pytest.skip("this server does not store such dates")
        analyzed, exported = manager.each("analyze --json", "export messages")
        assert analyzed.json["malformed"] == [{"name": "timestamp is no date", "count": 1}]
        assert json.loads(exported.out)["timestamp"] == {"$date": {"$numberLong": str(10**16)}}

    def test_turns(self, manager: Manager, database: Database[Document]) -> None:
        """Owners, sessions, states, sources, what waits, tools, tokens and sizes are counted; no content is shown."""
        acting = {"status": "acting", "work": "close", "summaries": summaries("fallback", "😀"), "tool_calls": []}
        alone = {"owner_key": "小明", "session_id": "s2", "run_id": "x", "timestamp": TODAY}
        database["turns"].insert_many([turn(1), turn(2), turn(3, **acting), turn(1, work="summarise", **alone)])
        as_json, shown = manager.each("analyze turns --json", "analyze turns")
        report = as_json.json
        assert (report["turns"], report["owners"], report["malformed"]) == (4, 2, [])
        assert report["sessions"] == {"count": 2, "min": 1, "median": 2.0, "max": 3}
        assert report["statuses"] == [{"name": "completed", "count": 3}, {"name": "acting", "count": 1}]
        assert report["sources"] == [{"name": "model", "count": 3}, {"name": "fallback", "count": 1}]
        assert report["waiting"] == [{"name": "close", "count": 1}, {"name": "summarise", "count": 1}]
        assert [tuple(tool.values()) for tool in report["tools"]] == [("calc", 3, 0, 0, 0), ("web", 6, 6, 3, 3)]
        assert report["tokens"] == {"thinking": 20, "action": 80, "total": 100}
        size = 3 * len("TOP SECRET 你好".encode()) + len("TOP SECRET 😀".encode())
        levels = {"brief": size, "detailed": size, "comprehensive": 3 * size}
        assert report["summaries"] == [{"level": level, "bytes": of_level} for level, of_level in levels.items()]
        for text in ("小明", "50%", "Work that waits", "summarise", "turns per session", "No malformed turns."):
            assert text in shown.out
        assert "TOP SECRET" not in shown.out + as_json.out

    def test_other_collections(self, manager: Manager, database: Database[Document]) -> None:
        """Of any other collection the fields and their types are counted."""
        database["tools"].insert_many([{"_id": 1, "name": "a"}, {"_id": 2, "name": None}])
        report = manager.run("analyze", "tools", "--json").json
        assert report["documents"] == 2
        assert [tuple(field.values()) for field in report["fields"]] == [
            ("_id", 2, {"int": 2}),
            ("name", 2, {"string": 1, "null": 1}),
        ]


class TestInitConfig:
    """The subcommand init-config."""

    def test_a_fresh_database(self, manager: Manager, database: Database[Document]) -> None:
        """The document is made with nothing in it and a unique index, so that a service's own settings hold."""
        first = manager.run("init-config", "--json", NEXUS_ENV="staging").json
        assert (first["environment"], first["written"], first["keys"]) == ("staging", True, [])
        (stored,) = database["configurations"].find()
        assert {*stored} == EMPTY
        assert isinstance(stored["created_at"], datetime)
        assert database["configurations"].index_information()["one_per_environment"]["unique"]
        second = manager.run("init-config", "--environment", "staging")
        assert (second.code, "Nothing had to be written" in second.out, "staging: none." in second.out) == (
            0,
            True,
            True,
        )
        assert [*database["configurations"].find()] == [stored]

    def test_what_an_operator_gives(self, manager: Manager, database: Database[Document], tmp_path: Path) -> None:
        """That is stored, and no default beside it."""
        template = tmp_path / "template.yml"
        template.write_text("memory: {truncate_chars: 300}\nsystem: {log_level: debug}", encoding="utf-8")
        assert "1 added." in manager.run("init-config", "--from", str(template)).out
        (stored,) = database["configurations"].find()
        assert (stored["memory"], stored.keys() - EMPTY) == ({"truncate_chars": 300}, {"memory"})

    def test_a_dry_run_makes_nothing(self, manager: Manager, database: Database[Document]) -> None:
        """A dry run shows the plan and makes neither document nor collection."""
        planned = manager.run("init-config", "--dry-run", "--from", str(EXAMPLE)).out
        assert re.search(r"^\d+ added\.$", planned, re.MULTILINE)
        assert database.list_collection_names() == []

    def test_an_operators_change_is_kept(self, manager: Manager, database: Database[Document]) -> None:
        """A changed value stays, an unknown one stays and is named without its value; --reset sets one back."""
        changed = {"memory": {"truncate_chars": 77, "mystery": 1}, "layouts": None, "llm": {"api_key": SECRET}}
        database["configurations"].insert_one({"environment": "development", **changed})
        complete = f"init-config --from '{EXAMPLE}'"
        reset = f"{complete} --reset memory.truncate_chars"
        result, refused, done = manager.each(complete, reset, f"{reset} --yes --json")
        assert (refused.code, "say --yes" in refused.err) == (2, True)
        assert result.code == 0, result.err
        assert re.search(r"memory\.truncate_chars +77 +kept", result.out)
        assert "2 kept, unknown to the settings" in result.out
        assert SECRET not in result.out
        assert {each["key"]: each["state"] for each in done.json["keys"]}["memory.truncate_chars"] == "reset"
        stored = database["configurations"].find_one({}) or {}
        assert stored["memory"].items() >= {"truncate_chars": 500, "mystery": 1, "history_context_size": 20}.items()
        assert (stored["layouts"]["default"], stored["llm"]) == ("dialogue", {"api_key": SECRET})

    def test_all_that_is_stored_is_taken_out(self, manager: Manager, database: Database[Document]) -> None:
        """Of a document with every default, as earlier releases made it, nothing is left but what is no setting."""
        database["configurations"].insert_one({"environment": "development", "llm": {"api_key": SECRET}})
        reset = "init-config --reset memory --reset layouts --reset user_defaults"
        for result in manager.each(f"init-config --from '{EXAMPLE}'", f"{reset} --yes", f"{reset} --yes"):
            assert result.code == 0, result.err
        (stored,) = database["configurations"].find()
        assert (stored["llm"], stored.keys() - EMPTY) == ({"api_key": SECRET}, {"llm"})

    def test_what_the_service_would_refuse_is_not_written(
        self, manager: Manager, database: Database[Document], tmp_path: Path
    ) -> None:
        """Neither an invalid template nor an invalid stored value is built upon, and the key is named."""
        template = tmp_path / "template.yml"
        template.write_text("memory: {truncate_chars: 1}", encoding="utf-8")
        database["configurations"].insert_one({"environment": "development", "memory": {"truncate_chars": "many"}})
        for result in manager.each(f"init-config --environment new --from '{template}'", "init-config"):
            assert (result.fault[0], "memory.truncate_chars" in result.err) == (1, True)
        assert "--reset" in result.err
        assert "layouts" not in (database["configurations"].find_one({}) or {})
        assert manager.run("init-config", "--reset", "memory", "--yes").code == 0
        assert "memory" not in (database["configurations"].find_one({}) or {})

    def test_two_documents_of_one_environment_are_told_of(self, manager: Manager, database: Database[Document]) -> None:
        """Where the unique index cannot be made, that is the error."""
        database["configurations"].insert_many([{"environment": "development"} for _ in range(2)])
        result = manager.run("init-config")
        assert result.code == 1
        assert "unique index" in result.err

    def test_many_at_once_make_one_document(self, database: Database[Document]) -> None:
        """However many start together on an empty database, all succeed, and one of them writes."""
        template = load_template(EXAMPLE, "development")

        def write(_: int) -> tuple[Plan, bool]:
            return apply(database["configurations"], "development", lambda stored: make_plan(template, stored))

        with ThreadPoolExecutor(max_workers=3) as pool:
            assert sum(written for _, written in pool.map(write, range(3))) == 1
        assert database["configurations"].count_documents({}) == 1


class TestUsage:
    """A fault is one line, and the exit code says whether usage or the server is at fault."""

    def test_a_server_that_is_not_there(self, manager: Manager) -> None:
        """A server that does not answer is one line, without the password."""
        result = manager.run("databases", "--uri", f"mongodb://user:{SECRET}@127.0.0.1:1/?replicaSet=rs0")
        assert (result.fault[0], result.out, "127.0.0.1:1" in result.err, SECRET in result.err) == (1, "", True, False)

    def test_the_settings_file_says_where(self, manager: Manager, database: Database[Document], tmp_path: Path) -> None:
        """Server and database come from the settings; global options may stand before and behind the command."""
        database["messages"].insert_one(message(1))
        config = tmp_path / "config.yml"
        config.write_text(f"database: {{uri: '{manager.uri}', name: nexus}}", encoding="utf-8")
        lost = Manager("mongodb://127.0.0.1:1", "nothing", manager.environment)
        result = lost.run("--uri", manager.uri, "collections", "--database", manager.database, "--json")
        assert [each["name"] for each in result.json] == ["messages"]
        command = ["databases", "--config", str(config), "--json"]
        done = run_here(lambda: main(command), environment=manager.environment)
        assert manager.database in {each["name"] for each in json.loads(done.stdout)}

    def test_a_full_disk(self, manager: Manager) -> None:
        """What stdout does not take is a fault in one line, as any other."""
        command = [sys.executable, str(PROGRAM), "--uri", manager.uri, "--database", manager.database, "databases"]
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env={**os.environ}, check=False)
        said = b"database_manager: standard output: cannot be written: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, said)

    def test_a_reader_that_has_seen_enough(self, manager: Manager, database: Database[Document]) -> None:
        """A closed pipe ends an export without a word."""
        database["messages"].insert_many([message(n) for n in range(600)])
        command = [sys.executable, str(PROGRAM), "--database", manager.database, "export", "messages"]
        environment = {**os.environ, "NEXUS_DATABASE__URI": manager.uri}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith(b'{"_id"')
            process.stdout.close()
            assert (process.stderr.read(), process.wait(timeout=60)) == (b"", 1)
