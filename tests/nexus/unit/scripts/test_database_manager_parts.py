"""The parts of the database manager that need no server."""

import copy
import csv
import io
import json
import os
import re
import stat
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from bson import json_util
from hypothesis import given
from hypothesis import strategies as st
from pymongo import MongoClient

from nexus.config import Settings
from scripts.dbmanager.analyze import MessageTally, TurnTally
from scripts.dbmanager.commands import main
from scripts.dbmanager.documents import Criteria, cells, checked_target, header, opened
from scripts.dbmanager.operations import Session, cleanup
from scripts.dbmanager.server import Refusal, WrongUsage, address_of, checked_database_name
from scripts.dbmanager.stored_settings import Plan, checked_template, load_template, make_plan
from scripts.dbmanager.terminal import Terminal, human_size, plain

COMMANDS = ("databases", "collections", "stats", "cleanup", "export", "analyze", "init-config")
SECRET = "hunter2"
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
TEMPLATE: dict[str, Any] = {
    "memory": {"history_context_size": 20, "truncate_chars": 500},
    "layouts": {"default": "dialogue"},
}
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


class TestText:
    """What reaches a terminal."""

    @pytest.mark.parametrize(
        ("size", "shown"),
        [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")],
    )
    def test_sizes_are_short(self, size: int | None, shown: str) -> None:
        """A size is shown in the unit that keeps it short."""
        assert human_size(size) == shown

    def test_stored_text_cannot_drive_the_terminal(self) -> None:
        """Escape sequences, line ends and direction marks are replaced; Chinese text stays."""
        assert plain("\x1b[2J你好　\r\n\u202e") == "�[2J你好　���"


class TestServer:
    """Addresses and names."""

    @pytest.mark.parametrize(
        ("uri", "address"),
        [
            ("mongodb://127.0.0.1:27017", "127.0.0.1:27017"),
            ("mongodb://user:p%40ss@db1:1,db2:2/nexus?replicaSet=rs0", "db1:1,db2:2"),
            ("mongodb+srv://user:secret@cluster.example.com", "cluster.example.com"),
            ("mongodb://db/?authMechanismProperties=TOKEN:a@b", "db"),
        ],
    )
    def test_an_address_has_no_credentials(self, uri: str, address: str) -> None:
        """Only host and port of a URI are shown."""
        assert address_of(uri) == address

    @pytest.mark.parametrize("name", ["", "a b", "a.b", "a/b", "a$b", "x" * 64, "é" * 32, "\udcff"], ids=ascii)
    def test_impossible_database_names_are_refused(self, name: str) -> None:
        """A name that MongoDB does not allow is wrong usage."""
        with pytest.raises(WrongUsage):
            checked_database_name(name)


class TestCommandLine:
    """What is wrong before any server is asked."""

    @pytest.mark.parametrize(
        "words",
        [
            ("frobnicate",),
            ("--frobnicate",),
            ("--json",),
            ("cleanup",),
            ("cleanup", "messages", "--older-than", "-1"),
            ("cleanup", "messages", "--older-than", "40000"),
            ("export", "messages", "--format", "xml"),
            ("stats", "--database", "a b"),
            ("stats", "--config", "/no/such/file"),
            ("databases", "--uri", f"mongodb://user:{SECRET}/x@127.0.0.1"),
            ("databases", "--uri", f"mongodb://user:@{SECRET}:x@127.0.0.1"),
            ("databases", "--uri", f"redis://:{SECRET}@127.0.0.1"),
            ("databases", "--uri", f"mongodb://user:{SECRET}@127.0.0.1/?tls=true&tlsCAFile=/no/such.pem"),
        ],
        ids=" ".join,
    )
    def test_wrong_usage_is_one_line(self, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
        """Exit code 2, one line on stderr without credentials, nothing on stdout."""
        assert main(words) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert re.fullmatch(r"database_manager: [^\n]+\n", printed.err)
        assert SECRET not in printed.err

    @pytest.mark.parametrize(
        ("name", "criteria", "everything", "reason"),
        [
            ("messages", Criteria(), False, "say which documents"),
            ("messages", Criteria(role="ai"), True, "leave the criteria out"),
            ("identities", Criteria(), True, "--force"),
            ("configurations", Criteria(owner="x"), False, "--force"),
            ("turns", Criteria(role="tool"), False, "turns have no role"),
            ("system.views", Criteria(), True, "belongs to the MongoDB server"),
            ("anything", Criteria(), True, "admin belongs to the MongoDB server"),
        ],
    )
    def test_no_cleanup_that_cannot_be_meant(
        self, name: str, criteria: Criteria, everything: bool, reason: str
    ) -> None:
        """No unconditional wipe without --all, no protected collection without --force, none of the server's own."""
        with MongoClient[dict[str, Any]](connect=False) as client:
            session = Session(client, "server", "admin", Settings(), Terminal(as_json=True), yes=True)
            with pytest.raises(WrongUsage, match=reason):
                cleanup(session, name, criteria, everything=everything)

    @pytest.mark.parametrize("name", ["run", "owner", "session", "role"])
    def test_criteria_are_text(self, name: str) -> None:
        """What is no UTF-8 on the command line is refused."""
        given: dict[str, Any] = {name: "ada\udcff"}
        with pytest.raises(WrongUsage, match=f"^{name}: UTF-8 text is needed"):
            Criteria(**given)

    @pytest.mark.parametrize("command", ["", *COMMANDS])
    def test_help_has_examples(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Every help text shows how the command is used, and names the global options."""
        assert main([*command.split(), "--help"]) == 0
        printed = capsys.readouterr().out
        assert ("Examples:" in printed, "--dry-run" in printed) == (True, True)


class TestCsv:
    """Documents as rows."""

    @given(st.dictionaries(st.sampled_from(["a", "=b", "c"]), anything))
    def test_no_cell_is_a_formula(self, document: dict[str, Any]) -> None:
        """Whatever is stored, a cell that starts like a formula is a number, or starts with an apostrophe."""
        columns = ["a", "=b", "c"]
        assert header(columns, raw=False) == ["a", "'=b", "c"]
        for name, cell in zip(columns, cells(document, columns, raw=False), strict=True):
            if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
                assert isinstance(document[name], int | float)

    @given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=2))
    def test_raw_text_survives(self, texts: list[str]) -> None:
        """With raw, a CSV reader gets the very text back."""
        out = io.StringIO(newline="")
        csv.writer(out).writerow(cells(dict(zip("ab", texts, strict=True)), "ab", raw=True))
        assert [*csv.reader(io.StringIO(out.getvalue(), newline=""))] == [texts]

    def test_values_have_one_form_each(self) -> None:
        """Dates are ISO 8601 in UTC, nested values JSON, missing ones empty."""
        east = datetime(2026, 1, 1, 8, tzinfo=timezone(timedelta(hours=8)))
        row = cells({"t": east, "m": {"k": "你", "t": east}, "b": True, "n": -5}, "tmbnx", raw=False)
        assert row[0] == "2026-01-01T00:00:00.000Z"
        assert json_util.loads(row[1], json_options=json_util.JSONOptions(tz_aware=True)) == {"k": "你", "t": east}
        assert "你" in row[1]
        assert row[2:] == ["true", "-5", ""]


class TestTarget:
    """The file of an export."""

    def test_a_complete_file_appears_at_once(self, tmp_path: Path) -> None:
        """Until the end the old content stands; then the new one does, for its owner alone."""
        path = tmp_path / "out"
        path.write_bytes(b"old")
        with opened(path) as out:
            out.write(b"new")
            out.flush()
            assert path.read_bytes() == b"old"
        assert path.read_bytes() == b"new"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [*tmp_path.iterdir()] == [path]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_an_interrupted_export_leaves_nothing(self, tmp_path: Path, error: type[BaseException]) -> None:
        """Neither a half file nor a temporary one remains."""
        with pytest.raises(error), opened(tmp_path / "out"):
            raise error
        assert [*tmp_path.iterdir()] == []

    def test_which_file_is_written(self, tmp_path: Path) -> None:
        """No device and no folder; the file that a link means, and the link stays."""
        (tmp_path / "link").symlink_to(tmp_path / "real")
        assert checked_target(str(tmp_path / "link")) == tmp_path / "real"
        for name in (os.devnull, str(tmp_path)):
            with pytest.raises(WrongUsage):
                checked_target(name)


FIELDS = ["run_id", "owner_key", "session_id", "role", "timestamp", "content_bytes", "metadata", "turn_number"]
FIELDS += ["status", "source", "work", "brief", "detailed", "comprehensive", "token_usage", "tool_calls"]
INNER = ["tool_calls", "tool_name", "status", "execution_success", "thinking", "total", "name", "success", "answered"]
nested = st.dictionaries(st.sampled_from(INNER), anything, max_size=3)
rows = st.lists(st.dictionaries(st.sampled_from(FIELDS), anything | nested | st.lists(nested, max_size=3)), max_size=5)


@given(rows)
def test_no_document_stops_a_count(documents: list[dict[str, Any]]) -> None:
    """Whatever a message or a turn holds, it is counted once, under a role or a status, or as one without."""
    messages, turns = MessageTally(), TurnTally()
    for document in documents:
        messages.add(document)
        turns.add(document)
    of_messages, of_turns = messages.report("db", "messages"), turns.report("db", "turns")
    assert of_messages.messages == len(documents) == sum(role.count for role in of_messages.roles)
    faults = {fault.name: fault.count for fault in of_turns.malformed}
    known = sum(status.count for status in of_turns.statuses)
    assert of_turns.turns == len(documents) == known + faults.get("unknown status", 0)


class TestPlan:
    """What the stored settings should become."""

    def test_an_operators_change_is_kept(self) -> None:
        """A differing value stays, a missing one is added, an equal one is listed, each with its value."""
        plan = make_plan(TEMPLATE, {"environment": "e", "memory": {"history_context_size": 50}})
        assert [(entry.key, entry.value, entry.state) for entry in plan.entries] == [
            ("memory.history_context_size", 50, "kept"),
            ("memory.truncate_chars", 500, "added"),
            ("layouts.default", "dialogue", "added"),
        ]
        assert plan.changes == {"memory.truncate_chars": 500, "layouts.default": "dialogue"}
        assert plan.unchanged == {key: {"$exists": False} for key in plan.changes}
        assert plan.sections["memory"] == {"history_context_size": 50, "truncate_chars": 500}

    @pytest.mark.parametrize("name", ["memory.truncate_chars", "memory"])
    def test_reset_takes_the_template(self, name: str) -> None:
        """A key, or a section with all its keys, is set back unless it is changed meanwhile."""
        plan = make_plan(TEMPLATE, {**copy.deepcopy(TEMPLATE), "memory": {"truncate_chars": 50}}, [name])
        assert plan.changes["memory.truncate_chars"] == 500
        assert plan.unchanged["memory.truncate_chars"] == {"$eq": 50}

    @pytest.mark.parametrize("name", ["memory.trunc", "system", "environment", "created_at", "", "."])
    def test_what_cannot_be_reset(self, name: str) -> None:
        """A key that is neither stored nor a setting that can be."""
        with pytest.raises(WrongUsage, match=r"allowed: memory, layouts, user_defaults, and keys in them"):
            make_plan(TEMPLATE, {"environment": "e", "created_at": NOW}, [name])

    @pytest.mark.parametrize(
        ("reset", "removed"),
        [
            (["memory.truncate_chars"], ["memory.truncate_chars"]),
            (["memory.mystery"], ["memory.mystery"]),
            (["memory"], ["memory"]),
            (["memory.mystery", "memory.truncate_chars"], ["memory"]),
            (["layouts.agent"], ["layouts.agent"]),
            (["layouts.thinking.recall"], ["layouts.thinking"]),
            (["layouts"], ["layouts"]),
            (["layouts", "memory"], ["memory", "layouts"]),
            (["user_defaults"], ["user_defaults"]),
            (["memory.turns_shown"], []),
        ],
    )
    def test_reset_without_a_template_removes(self, reset: list[str], removed: list[str]) -> None:
        """Also an unknown key, and with it what is left empty around it, unless it was changed meanwhile."""
        stored: dict[str, Any] = {
            "memory": {"truncate_chars": 50, "mystery": 1},
            "layouts": {"default": "agent", "agent": {"placement": "tail"}, "thinking": {"recall": True}},
            "user_defaults": 5,
        }
        plan = make_plan({}, stored, reset)
        assert (plan.changes, [*plan.removed]) == ({}, removed)
        assert plan.unchanged.keys() == {*removed}
        left = _carried_out(stored, plan)
        assert not any(entry.key.startswith(name) for name in reset for entry in make_plan({}, left).entries)

    def test_a_section_is_reset_to_a_part_of_it(self) -> None:
        """Of a section the template's keys are taken, and those that it does not name are removed."""
        stored = {"memory": {"truncate_chars": 50, "turns_shown": 7}, "layouts": {"default": "agent"}}
        plan = make_plan({"memory": {"truncate_chars": 60}}, stored, ["memory"])
        assert (plan.changes, plan.removed) == ({"memory.truncate_chars": 60}, ("memory.turns_shown",))
        assert _carried_out(stored, plan) == {"memory": {"truncate_chars": 60}, "layouts": {"default": "agent"}}
        assert [(entry.key, entry.value, entry.state) for entry in plan.entries] == [
            ("memory.truncate_chars", 60, "reset"),
            ("memory.turns_shown", 7, "removed"),
            ("layouts.default", "agent", "kept"),
        ]

    @pytest.mark.parametrize("stored", [None, 5])
    def test_a_section_that_is_no_section_is_written_whole(self, stored: int | None) -> None:
        """Null counts as missing; anything else is only replaced by a reset."""
        plan = make_plan(TEMPLATE, {"memory": stored}, ["memory"])
        assert plan.changes["memory"] == TEMPLATE["memory"]
        assert plan.unchanged["memory"] == {"$eq": stored}

    def test_unknown_keys_are_kept_and_not_judged(self) -> None:
        """A key that the settings do not know is listed without its value, and not given to the settings."""
        stored = {"environment": "e", "llm": {"api_key": "hunter2"}, "memory": {"old": 1}, "created_at": NOW}
        plan = make_plan(TEMPLATE, stored)
        assert [(entry.key, entry.value) for entry in plan.entries if entry.state == "unknown"] == [
            ("memory.old", None),
            ("llm", None),
        ]
        assert "old" not in plan.sections["memory"]
        assert "memory.old" not in plan.changes

    @given(st.dictionaries(st.sampled_from(["memory", "layouts", "user_defaults", "x"]), anything))
    def test_a_second_plan_has_nothing_to_do(self, stored: dict[str, Any]) -> None:
        """Carried out, a plan leaves no addition for the next one, whatever was stored."""
        assert make_plan(TEMPLATE, _carried_out(stored, make_plan(TEMPLATE, stored))).changes == {}

    def test_nothing_is_stored_that_nobody_gave(self) -> None:
        """Without a template the document is empty, whatever the settings' defaults are."""
        plan = make_plan({}, {})
        assert (plan.entries, plan.sections, plan.changes, plan.removed) == ((), {}, {}, ())

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("bus: {}", "none of the sections"),
            ("[1]", "none of the sections"),
            ("memory: [", "is not YAML"),
            ("memory: {history_context_size: 0}", "memory.history_context_size"),
            ("memory: {frobnicate: 1}", "memory.frobnicate: unknown"),
            ("user_defaults: {prompts: {friends_profile: {content: '${HOME}'}}}", "not filled"),
            ("memory: {a.b: 1}", "cannot be stored"),
        ],
    )
    def test_an_invalid_template_is_refused(self, tmp_path: Path, text: str, fault: str) -> None:
        """The refusal names the file and what is wrong, in one line."""
        (tmp_path / "t.yml").write_text(text, encoding="utf-8")
        with pytest.raises(Refusal, match=fault) as refusal:
            load_template(tmp_path / "t.yml", "development")
        assert "\n" not in str(refusal.value)

    def test_only_stored_sections_are_taken(self) -> None:
        """Of a whole settings file, the sections of contract §9 are stored and nothing else."""
        assert checked_template({"bus": {"url": "x"}, "layouts": None, **json.loads(json.dumps(TEMPLATE))}) == TEMPLATE
        built_with = {"tokenizer": "qwen3", "working_memory": False}
        assert checked_template({**TEMPLATE, "memory": {**TEMPLATE["memory"], **built_with}}) == TEMPLATE


def _carried_out(stored: dict[str, Any], plan: Plan) -> dict[str, Any]:
    result = copy.deepcopy(stored)
    for path, value in plan.changes.items():
        *sections, name = path.split(".")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
        target[name] = value
    for path in plan.removed:
        *sections, name = path.split(".")
        target = result
        for section in sections:
            target = target[section]
        del target[name]
    return result
