"""`nexus turns` as operators use it: the program, on a MongoDB."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio.to_thread import run_sync
from pymongo import MongoClient
from pymongo.collection import Collection

from nexus.adapters.mongo import open_mongo
from nexus.cli.files import lines_of, written
from nexus.core.errors import NexusError
from nexus.core.ports import Row
from tests.nexus.support.desk import Desk
from tests.nexus.support.kept_turns import a_turn
from tests.nexus.support.waiting import until

pytestmark = [pytest.mark.once, pytest.mark.heavy]

NASTY: Final = "\x1b[31mred\x07\x85\u202etxt\x9b2J"
OF_S1: Final = ("--owner", "ada", "--session", "s1")
MANY: Final = 1_000


class TurnsDesk(Desk):
    """The command, on a database of the test's own."""

    async def keep(self, *documents: Row) -> None:
        """Keep turns, as a service does."""
        uri, name = self.environment["NEXUS_DATABASE__URI"], self.environment["NEXUS_DATABASE__NAME"]
        async with open_mongo(uri, name, timeout_ms=10_000) as store:
            assert await store.turns.insert_turns(documents) == len(documents)


@pytest.fixture
def desk(mongo_uri: str, database_name: str) -> TurnsDesk:
    """The command, on the test's own names."""
    return TurnsDesk(
        "turns",
        {
            "NEXUS_DATABASE__URI": mongo_uri,
            "NEXUS_DATABASE__NAME": database_name,
            "NEXUS_DATABASE__TIMEOUT_MS": "5000",
            "TERM": "xterm",
        },
    )


@pytest.fixture
def turns(mongo_uri: str, database_name: str) -> Iterator[Collection[dict[str, Any]]]:
    """Where the turns are kept."""
    with MongoClient[dict[str, Any]](mongo_uri, tz_aware=True) as client:
        yield client[database_name]["turns"]


SHOWN = """turn        2  turn_2_1767225600002
time        2026-01-01 00:02:00 UTC
run         r2
status      completed
summary by  model
messages    2
tokens      100 (thinking 7, action 93)

Goal

  Review statins.
  Only new trials.

Brief

  Asked for statins, 2. 156.

Detailed

  Asked.
  Found 156.

Structured

  Overview: Statins were looked up. 😀
  Actions:
  - pubmed_search(query=statins)
  Results:
  - 156 articles
  - HR 0.86 (95% CI 0.80-0.93)
  Next steps:
  - Extract

Insights

  - 15 reviews remain

Rounds of thought

  Round 1 (7 tokens):
    Look
    first.

Tools

  - pubmed_search: succeeded
    arguments:
      {"query": "statins"}
    result:
      156 articles
  - pubmed_search: failed
    arguments:
      {"query": "文章"}
    result:
      {"$ref": "a", "$id": 1}
  - filter: outcome unknown
"""


async def test_a_list(desk: TurnsDesk) -> None:
    """The latest first, with what was used and who summarised; as many as are asked for, or only those with a text."""
    other = {**a_turn(3)["summaries"], "brief": "Said\nhello.", "source": "fallback"}
    await desk.keep(a_turn(1), a_turn(2), a_turn(3, summaries=other, tool_calls=[], insights=[], status="acting"))
    assert (await desk.said("list", *OF_S1)).splitlines() == [
        "TURN  TIME (UTC)           STATUS     SUMMARY BY  TOOLS                      BRIEF",
        "3     2026-01-01 00:03:00  acting     fallback    -                          Said hello.",
        "2     2026-01-01 00:02:00  completed  model       pubmed_search (2), filter  Asked for statins, 2. 156.",
        "1     2026-01-01 00:01:00  completed  model       pubmed_search (2), filter  Asked for statins, 1. 156.",
        "3 shown of session s1 of ada; 3 in all.",
    ]
    one = (await desk.said("list", *OF_S1, "--limit", "1")).splitlines()
    assert one[1:] == [one[1], "1 shown of session s1 of ada; 3 in all; --limit shows more."]
    found = json.loads(await desk.said("list", *OF_S1, "--search", "REMAIN", "--limit", "1", "--json"))
    assert (found["total"], found["more"]) == (3, True)
    assert found["turns"] == [
        {
            "turn_number": 2,
            "id": "turn_2_1767225600002",
            "run_id": "r2",
            "timestamp": "2026-01-01T00:02:00Z",
            "status": "completed",
            "source": "model",
            "tools": {"pubmed_search": 2, "filter": 1},
            "brief": "Asked for statins, 2. 156.",
        }
    ]
    nowhere = await desk.said("list", *OF_S1, "--search", ".*")
    assert nowhere == "There are no turns of session s1 of ada with '.*'; 3 in all.\n"
    assert await desk.said("list", "--owner", "ada") == "There are no turns of session default of ada.\n"


async def test_one_turn(desk: TurnsDesk) -> None:
    """Everything of it in readable form, or its summary at one level; as JSON it is what an export has."""
    await desk.keep(a_turn(1), a_turn(2))
    assert await desk.said("show", *OF_S1, "2") == SHOWN
    brief = await desk.said("show", *OF_S1, "2", "--level", "brief")
    before, _, after = SHOWN.partition("Detailed\n")
    assert brief == before + "Insights\n" + after.partition("Insights\n")[2]
    as_json = await desk.said("show", *OF_S1, "2", "--json")
    *_, last = (await desk.run("export", *OF_S1)).stdout.splitlines()
    assert json.loads(as_json) == json.loads(last)
    summaries = json.loads(await desk.said("show", *OF_S1, "2", "--level", "comprehensive", "--json"))["summaries"]
    assert summaries == {name: a_turn(2)["summaries"][name] for name in ("structured", "source")}
    for number in ("3", "9" * 30):
        assert await desk.refused("show", *OF_S1, number) == f"Turn {number} not found"


async def test_a_text_that_looks_like_a_part_of_what_is_shown(desk: TurnsDesk) -> None:
    """It stands behind two spaces, where no heading and no fact stands."""
    forged = "Yes.\n\nTools\n\n- rm: succeeded\nstatus      failed"
    await desk.keep(a_turn(1, task_context=forged))
    shown = (await desk.said("show", *OF_S1, "1")).splitlines()
    assert [line for line in shown if line.startswith("status")] == ["status      completed"]
    assert [line for line in shown if line == "Tools"] == ["Tools"]
    assert {"  Tools", "  - rm: succeeded", "  status      failed"} <= {*shown}


async def test_there_and_back(desk: TurnsDesk, tmp_path: Path, turns: Collection[dict[str, Any]]) -> None:
    """What is exported makes the same turns of another owner, on which nothing is left to do."""
    await desk.keep(*(a_turn(number, status="pending" if number == 70 else "completed") for number in range(1, 71)))
    file = tmp_path / "turns.jsonl"
    said = await desk.said("export", *OF_S1, str(file))
    assert said == f"70 turns of session s1 of ada in {file}.\n"
    assert file.stat().st_mode & 0o777 == 0o600
    header, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert (header.pop("exported_at")[:2], header) == (
        "20",
        {"format": "nexus-turns", "version": 1, "owner_key": "ada", "session_id": "s1", "turns": 70},
    )
    assert lines[1]["turn_number"] == 2
    assert not {"work", "due_at", "heard_at", "rows", "attempts", "overtaken"} & set(lines[1])
    imported = await desk.said("import", "--owner", "$bob", str(file))
    assert imported == "70 turns imported into session s1 of $bob.\n"
    again = await desk.run("import", "--owner", "$bob", "-", stdin=file.read_bytes())
    assert again.stdout == "0 turns imported into session s1 of $bob; 70 were there.\n"
    copies = [*turns.find({"owner_key": {"$eq": "$bob"}}, {"_id": 0}).sort("turn_number", 1)]
    assert {(copy["work"], copy["due_at"], copy["status"]) for copy in copies} == {(None, None, "completed")}
    streamed = await desk.run("export", "--owner", "$bob", "--session", "s1")
    assert streamed.stderr == "70 turns of session s1 of $bob on standard output.\n"
    renamed = [{**line, "owner_key": "$bob", "status": "completed"} for line in lines]
    assert [json.loads(line) for line in streamed.stdout.splitlines()[1:]] == renamed


async def test_turns_that_are_in_the_way(desk: TurnsDesk, tmp_path: Path, turns: Collection[dict[str, Any]]) -> None:
    """They stay unless they are to be replaced and somebody says yes."""
    file = tmp_path / "turns.jsonl"
    await desk.keep(
        a_turn(1), a_turn(2), a_turn(1, session_id="s2", run_id="x"), a_turn(2, session_id="s2", run_id="y")
    )
    await desk.said("export", *OF_S1, str(file))
    words = ("import", str(file), "--session", "s2")
    assert await desk.refused(*words) == (
        "session s2 of ada: 2 turns are there, and not as in the export from turn 1 on; "
        "--session OTHER keeps these beside them, --replace puts these in their place"
    )
    question = "Replace 2 turns of session s2 of ada by 2 turns? [y/N]"
    assert await desk.at_keyboard(question, "n", *words, "--replace") == 1
    assert {turn["run_id"] for turn in turns.find({"session_id": "s2"})} == {"x", "y"}
    assert await desk.at_keyboard(question, "y", *words, "--replace") == 0
    assert {turn["run_id"] for turn in turns.find({"session_id": "s2"})} == {"r1", "r2"}
    turns.update_one({"session_id": "s2", "turn_number": 2}, {"$set": {"task_context": "another"}})
    assert await desk.said(*words, "--replace", "--yes") == "2 turns imported into session s2 of ada.\n"


async def test_a_replacement_that_no_store_can_keep(
    desk: TurnsDesk, tmp_path: Path, turns: Collection[dict[str, Any]]
) -> None:
    """It is refused with its line, and the session has its turns still; what is just small enough is kept."""
    file = tmp_path / "turns.jsonl"
    await desk.keep(a_turn(1), a_turn(2))
    await desk.said("export", *OF_S1, str(file))
    header, one, two = file.read_text(encoding="utf-8").splitlines()
    for size, fits in ((17 << 20, False), (16_770_000, True)):
        large = {**json.loads(two), "tool_calls": [{"name": "t", "result": "x" * size}]}
        file.write_text("\n".join([header, one, json.dumps(large)]), encoding="utf-8")
        words = ("import", str(file), "--replace", "--yes")
        if fits:
            assert await desk.said(*words) == "2 turns imported into session s1 of ada.\n"
        else:
            assert await desk.refused(*words) == f"{file}: line 3: as a document it has more than 16776192 bytes"
            assert turns.count_documents({}) == 2


async def test_a_session_that_lost_its_first_turns(
    desk: TurnsDesk, tmp_path: Path, turns: Collection[dict[str, Any]]
) -> None:
    """What is left of it can be exported and imported, with its numbers."""
    file = tmp_path / "turns.jsonl"
    await desk.keep(a_turn(7), a_turn(9))
    await desk.said("export", *OF_S1, str(file))
    assert await desk.said("import", str(file), "--session", "s2") == "2 turns imported into session s2 of ada.\n"
    assert [turn["turn_number"] for turn in turns.find({"session_id": "s2"})] == [7, 9]


async def test_a_file_that_is_there(desk: TurnsDesk, tmp_path: Path) -> None:
    """It is only overwritten after a yes, through a link too, and nothing stays beside it."""
    file, link = tmp_path / "turns.jsonl", tmp_path / "link"
    file.write_text("mine", encoding="utf-8")
    link.symlink_to(file)
    await desk.keep(a_turn(1))
    for answer in (b"", b"n\n", b"\xff\n"):
        done = await desk.run("export", *OF_S1, str(link), stdin=answer)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"{link} exists. Overwrite it? [y/N] ")
        assert done.stderr.endswith("nexus: nothing was done; --yes does it without asking\n")
    assert file.read_text(encoding="utf-8") == "mine"
    await desk.said("export", *OF_S1, str(link), "--yes")
    assert link.is_symlink()
    assert len(file.read_text(encoding="utf-8").splitlines()) == 2
    assert {*await run_sync(tmp_path.iterdir)} == {file, link}


def test_an_export_that_ends_early(tmp_path: Path) -> None:
    """It leaves what was there, and nothing beside it."""
    file = tmp_path / "turns.jsonl"
    file.write_text("mine", encoding="utf-8")

    def write(end: Callable[[], None]) -> None:
        with written(str(file)) as put:
            put("half")
            end()

    def interrupted() -> None:
        raise KeyboardInterrupt

    def no_room() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(KeyboardInterrupt):
        write(interrupted)
    with pytest.raises(NexusError, match="cannot be written: No space left on device"):
        write(no_room)
    assert file.read_text(encoding="utf-8") == "mine"
    assert [*tmp_path.iterdir()] == [file]


def test_a_line_without_end(tmp_path: Path) -> None:
    """A file that is no export is not read into memory."""
    file = tmp_path / "zeros"
    with file.open("wb") as zeros:
        zeros.truncate(1 << 30)
    with pytest.raises(NexusError, match="line 1: more than 67108864 bytes"):
        _ = [*lines_of(str(file))]


async def test_streams_that_take_no_more(desk: TurnsDesk) -> None:
    """A full one is said to be, by every command; one that is closed early is nobody's fault."""
    await desk.keep(*(a_turn(number) for number in range(1, 200)))
    nexus = [sys.executable, "-m", "nexus"]
    environment = {**os.environ, **desk.environment, "NEXUS_BUS__MODE": "memory"}
    commands = [["turns", *words, *OF_S1] for words in (["list"], ["list", "--json"], ["show", "1", "--json"])]
    for words in [*commands, ["turns", "export", *OF_S1], ["doctor", "--quick"], ["version"], ["--help"]]:
        full = f"{shlex.join([*nexus, *words])} > /dev/full"
        done = await anyio.run_process(["bash", "-c", full], check=False, env=environment)
        assert done.returncode == 1
        assert done.stderr == b"nexus: standard output: cannot be written: No space left on device\n"
    piped = f"{shlex.join([*nexus, 'turns', 'export', *OF_S1])} | head -c 1"
    closed = await anyio.run_process(["bash", "-c", piped], check=False, env=environment)
    assert (closed.stdout, b"Traceback" in closed.stderr) == (b"{", False)


async def test_an_import_that_was_killed(desk: TurnsDesk, tmp_path: Path, turns: Collection[dict[str, Any]]) -> None:
    """Done again, it goes on where it was; no turn is there twice and none is missing."""
    await desk.keep(*(a_turn(number) for number in range(1, MANY + 1)))
    file = tmp_path / "turns.jsonl"
    await desk.said("export", *OF_S1, str(file))
    command = [sys.executable, "-m", "nexus", "turns", "import", str(file), "--session", "s2"]
    of_s2 = {"session_id": {"$eq": "s2"}}

    async def begun() -> bool:
        return await run_sync(turns.count_documents, of_s2) > 0

    async with await anyio.open_process(
        command, env={**os.environ, **desk.environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        await until(begun)
        process.kill()
    said = re.fullmatch(
        r"(\d+) turns imported into session s2 of ada; (\d+) were there\.\n",
        await desk.said("import", str(file), "--session", "s2"),
    )
    assert said
    assert sum(map(int, said.groups())) == MANY
    assert [row["turn_number"] for row in turns.find(of_s2).sort("turn_number", 1)] == [*range(1, MANY + 1)]


async def test_what_others_have_stored(desk: TurnsDesk, turns: Collection[dict[str, Any]]) -> None:
    """What cannot be read is named and left out, and nothing but printable characters reaches a terminal."""
    owner = f"$a {NASTY}"
    texts = dict.fromkeys(("id", "run_id", "task_context", "workspace_context"), NASTY)
    structured = {"overview": NASTY, "actions": [NASTY]}
    summaries = {"brief": NASTY, "detailed": f"{NASTY}\nlast", "structured": structured, "source": "model"}
    nasty = a_turn(
        1,
        **{**texts, "owner_key": owner, "summaries": summaries, "insights": [NASTY]},
        tool_calls=[{"name": NASTY, "arguments": NASTY, "result": {NASTY: float("nan")}}],
        thinking_phase={"rounds": [{"round_number": 1, "content": NASTY}]},
    )
    await desk.keep(nasty)
    turns.insert_one({**a_turn(2, owner_key=owner), "summaries": NASTY})
    turns.insert_one({**a_turn(3, owner_key=owner), "tool_calls": [{"name": "t", "result": b"\xff"}]})
    unreadable = "nexus: 2 turns cannot be read and are left out; the first is turn "
    for words, code in ((("list",), 0), (("list", "--json"), 0), (("export",), 1)):
        done = await desk.run(*words, "--owner", owner, "--session", "s1")
        assert done.returncode == code
        assert done.stderr.startswith(unreadable)
        assert all(char.isprintable() or char == "\n" for char in done.stdout + done.stderr)
        assert "[31mred" in done.stdout
    for form in ((), ("--json",)):
        shown = await desk.said("show", "1", "--owner", owner, "--session", "s1", *form)
        assert all(char.isprintable() or char == "\n" for char in shown)
    faults = {"2": "summaries: Input should be a valid dictionary", "3": "it holds something"}
    for number, fault in faults.items():
        said = await desk.refused("show", number, "--owner", owner, "--session", "s1")
        assert said.startswith(f"turn {number} cannot be read: {fault}")
        assert "Summaries" not in said


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("list", "--owner", ""), "--owner: String should have at least 1 character"),
        (("list", "--owner", "\udcff"), "--owner and --session: UTF-8 text is needed"),
        (("list", *OF_S1, "--search", "x" * 251), "--search: more than 250 characters"),
        (("list", *OF_S1, "--search", "\udcff"), "--search: UTF-8 text is needed"),
        (("show", *OF_S1, "7"), "Turn 7 not found"),
        (
            ("show", *OF_S1, "7", "--level", "long\x1b"),
            "--level: 'long\\\\x1b' is unknown; allowed: brief, detailed, com",
        ),
        (("export", *OF_S1), "session s1 of ada has no turns"),
        (("import", "no\x1bwhere"), "no\\x1bwhere: cannot be read: No such file or directory"),
        (("import", "."), ".: cannot be read: Is a directory"),
        (("import", "-"), "standard input: line 1: not UTF-8 at byte 1"),
        (("import", "-", "--owner", ""), "--owner: String should have at least 1 character"),
        (("import", "-", "--session", "x" * 257), "--session: a text of 1 to 256 characters is needed"),
        (("import", "-", "--yes"), "--yes says nothing without --replace: nothing else asks"),
    ],
    ids=lambda value: ascii(value)[:50],
)
async def test_what_is_wrong_with_words(desk: TurnsDesk, words: Sequence[str], fault: str) -> None:
    """One line and exit code 1."""
    assert (await desk.refused(*words, stdin=b"{\xff}")).startswith(fault)


async def test_where_no_file_can_be(desk: TurnsDesk, tmp_path: Path) -> None:
    """It is said before anything is written."""
    await desk.keep(a_turn(1))
    for path, fault in (
        (tmp_path, "is no regular file; - is standard output"),
        (tmp_path / "no" / "where", "there is no folder for it"),
        (tmp_path / ("x" * 300), "cannot be written: File name too long"),
    ):
        assert await desk.refused("export", *OF_S1, str(path)) == f"{path}: {fault}"


async def test_a_server_that_is_away(desk: TurnsDesk) -> None:
    """Which one and what to do is said in one line; exit code 1."""
    away = TurnsDesk("turns", {**desk.environment, "NEXUS_DATABASE__URI": "mongodb://127.0.0.1:1"})
    for words in (("list", *OF_S1), ("show", *OF_S1, "1"), ("export", *OF_S1)):
        fault = await away.refused(*words)
        assert fault.startswith(
            "MongoDB does not do what was asked (ServerSelectionTimeoutError): see that MongoDB runs"
        )
