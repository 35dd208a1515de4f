"""`nexus session import --from` as a person uses it: the program, on a MongoDB, and the contexts made of it."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any, Final

import pytest
from anyio.to_thread import run_sync
from pydantic import SecretStr
from pymongo import MongoClient
from pymongo.database import Database

from nexus.bootstrap import open_nexus
from nexus.client import ContextClient, new_run
from nexus.config import BusSettings, DatabaseSettings, Settings
from tests.nexus.support.desk import Desk, is_printable
from tests.nexus.support.sdk_transcripts import GOAL, SAID, SDKS, THANKS
from tests.nexus.support.stored_session import NASTY
from tests.nexus.support.terminal import on_terminal

pytestmark = [pytest.mark.once, pytest.mark.heavy]

IMAGE: Final = f"{GOAL}\n[image: image/png, 1 KB]"

_Database = Database[dict[str, Any]]


@pytest.fixture
def db(mongo_janitor: MongoClient[dict[str, Any]], database_name: str) -> _Database:
    """Where the sessions are."""
    return mongo_janitor[database_name]


@pytest.fixture
def desk(mongo_uri: str, db: _Database) -> Desk:
    """The command."""
    return Desk.on("session", mongo_uri, db.name)


def a_file(tmp_path: Path, value: Any) -> str:
    """A file with this JSON, or these bytes."""
    path = tmp_path / "chat.json"
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode())
    return str(path)


def chat(count: int, words: int = 1) -> list[dict[str, str]]:
    """Questions and answers in turn, that many in all."""
    return [
        {"role": ("user", "assistant")[number % 2], "content": f"Message {number}." + " word" * words}
        for number in range(count)
    ]


async def contexts_of(desk: Desk, owner: str, session: str, *layouts: str) -> list[Any]:
    """What the next context says in each of these layouts, or in each format of the layout `agent`."""
    show = Desk("context", desk.environment)
    command = ("show", "--owner", owner, "--session", session, "--input", "Go on", "--json", "--layout")
    found = [json.loads(await show.said(*command, *layout.split())) for layout in layouts]
    return [{"system": content.get("system"), "messages": content["messages"]} for content in found]


def said_in(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Texts, calls and results of a list in any of the formats, in their order."""
    return [item for message in messages for item in _said_by(message)]


def _said_by(message: Mapping[str, Any]) -> Iterator[Any]:
    content: Any = message.get("content", message.get("parts"))
    for part in [{"text": content}] if isinstance(content, str) else content or ():
        match part:
            case {"text": text}:
                yield text
            case {"type": "tool_use", "name": name, "input": arguments}:
                yield name, arguments
            case {"type": "tool_result", "content": result}:
                yield result
            case {"function_call": {"name": name, "args": arguments}}:
                yield name, arguments
            case {"function_response": {"response": dict(response)}}:
                yield from response.values()
            case _:
                pass
    for call in message.get("tool_calls") or ():
        yield call["function"]["name"], json.loads(call["function"]["arguments"])


def history_in(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What was said in the session: from its first input to the new one."""
    said = said_in(messages)
    return said[said.index(IMAGE) : said.index("Go on")]


LAYOUTS: Final = ("dialogue", "agent --format openai", "agent --format anthropic", "agent --format gemini")


@pytest.mark.parametrize("sdk", SDKS)
async def test_imported_shown_exported_and_imported(sdk: str, desk: Desk, db: _Database, tmp_path: Path) -> None:
    """The same texts, calls and results in the same order, in each format; and again from the export of it."""
    source, make = SDKS[sdk]
    command = ("import", "--from", source, "--owner", "ada", "--session", sdk, a_file(tmp_path, make()))
    dry_run = await desk.said(*command, "--dry-run")
    assert db["messages"].count_documents({}) == 0
    told = await desk.said(*command)
    stored = db["messages"].count_documents({})
    where = f"session {sdk} of ada"
    assert told.endswith(f"; {stored} stored in {where}, 0 were there already.\n")
    assert dry_run == told.replace(f"{stored} stored", f"{stored} would be stored")
    assert (await desk.said(*command)).endswith(f"; 0 stored in {where}, {stored} were there already.\n")
    assert db["messages"].count_documents({}) == stored

    contexts = await contexts_of(desk, "ada", sdk, *LAYOUTS)
    shared = contexts[0]["messages"][2]["content"]
    places = [shared.index(text) for text in (IMAGE, "I look.", "tool_use:search", "The TGV at nine.", THANKS, "At s")]
    assert places == sorted(places)
    _, *said = SAID
    if sdk == "responses":
        # Each call is an item of its own there, and its result stands directly after it.
        said[2], said[3] = said[3], said[2]
    for context in contexts[1:]:
        assert history_in(context["messages"]) == [IMAGE, *said]
        assert json.dumps(f"[TASK_CONTEXT]\nUser's Goal: {IMAGE}")[1:-1] in json.dumps(context)

    folder = str(tmp_path / "export")
    await desk.said("export", "--owner", "ada", "--session", sdk, folder)
    await desk.said("import", "--from", "nexus", "--owner", "bob", "--session", "copy", folder)
    assert await contexts_of(desk, "bob", "copy", *LAYOUTS) == contexts


async def test_a_transcript_that_has_grown(desk: Desk, tmp_path: Path) -> None:
    """Only what is new is stored, behind what is there, also where it repeats what was said."""
    command = ("import", "--from", "anthropic", "--owner", "ada")
    await desk.said(*command, a_file(tmp_path, chat(6)))
    grown = a_file(tmp_path, [*chat(6), *chat(2), *chat(10)[6:]])
    assert (await desk.said(*command, grown)).endswith("; 6 stored in session default of ada, 6 were there already.\n")
    [context] = await contexts_of(desk, "ada", "default", "agent")
    said = said_in(context["messages"])
    wanted = [message["content"] for message in [*chat(6), *chat(2), *chat(10)[6:]]]
    assert [text for text in said if text in wanted] == wanted


async def test_what_was_imported_is_used(desk: Desk, db: _Database, mongo_uri: str, tmp_path: Path) -> None:
    """Search finds it, a compaction takes it in, and every message is counted where it is."""
    instructions = {"role": "system", "content": "Be brief."}
    await desk.said("import", "--from", "openai", "--owner", "ada", a_file(tmp_path, [instructions, *chat(120, 60)]))
    database = DatabaseSettings(uri=SecretStr(mongo_uri), name=db.name, timeout_ms=10_000)
    async with (
        open_nexus(Settings(bus=BusSettings(mode="memory"), database=database)) as nexus,
        ContextClient(nexus.bus).listening() as client,
    ):
        run = new_run("ada", "Go on", layout="agent", context_window=8_000)
        answer = await client.build(run, timeout=20)
        found = await client.call_tool(run, "search_memory", {"query": "Message 17."}, call_id="c")
    assert "Message 17." in found.content["result"]
    assert "User's Goal: Message 0." in str(answer["messages"])
    assert db["compactions"].count_documents({"owner_key": "ada"}) == 1
    told = await Desk.on("memory", mongo_uri, db.name).said("check", "--owner", "ada", "--json")
    counts = json.loads(told)
    assert counts["messages"] == db["messages"].count_documents({})
    assert (counts["lost"], counts["twice"]) == (0, 0)
    assert counts["not_shown"] >= 1
    assert counts["summarised"] > 0


async def test_a_large_result(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """Is shown in short by its handle, also where the session is exported and imported; its row has all of it."""
    text = "\n".join(f"{number} 界 [SHARED_MEMORY]" for number in range(900))
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": text},
        {"role": "assistant", "content": "Done."},
    ]
    await desk.said("import", "--from", "openai", a_file(tmp_path, messages), "--owner", "ada", "--session", "s")
    folder = str(tmp_path / "s")
    await desk.said("export", "--owner", "ada", "--session", "s", folder)
    await desk.said("import", folder, "--owner", "bob", "--session", "t")
    rows = [*db["messages"].find({"role": "TOOL"})]
    assert [row["content"] for row in rows] == [text, text]
    assert len({row["metadata"]["handle"] for row in rows}) == 1
    contexts = [await contexts_of(desk, *each, "agent") for each in (("ada", "s"), ("bob", "t"))]
    assert contexts[0] == contexts[1]
    (shown,) = [message["content"] for message in contexts[0][0]["messages"] if message["role"] == "tool"]
    assert f'read_tool_result(handle="{rows[0]["metadata"]["handle"]}"' in shown
    assert "400 界" not in shown


async def test_files_that_cannot_be_read(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """One line says what is wrong and where; nothing is stored."""

    async def fault(content: bytes) -> str:
        path = a_file(tmp_path, content)
        said = await desk.refused("import", "--from", "openai", "--owner", "ada", path)
        return said.removeprefix(f"{path}: ")

    assert await fault(b"") == "it is empty; a list of messages is needed, as JSON or JSON Lines"
    assert await fault(b"[]\xff") == "not UTF-8 at byte 2"
    assert await fault(b"[" * 100_000) == "nested too deep"
    assert await fault(b"Hello") == "line 1: not JSON: Expecting value at column 1"
    with (tmp_path / "chat.json").open("wb") as zeros:
        zeros.truncate((1 << 26) + 1)
    command = ("import", "--owner", "ada", "--from", "openai")
    assert (await desk.refused(*command, str(tmp_path / "chat.json"))).endswith(": more than 67108864 bytes")
    assert (await desk.refused(*command, str(tmp_path))) == f"{tmp_path}: cannot be read: Is a directory"
    missing = await desk.refused(*command, str(tmp_path / NASTY))
    assert missing.endswith(": cannot be read: No such file or directory")
    assert missing.isprintable()
    no_owner = await desk.refused("import", "--from", "gemini", str(tmp_path))
    assert no_owner == "--from gemini: --owner is needed: a transcript does not say whose it is"
    assert "chat.json: is a file; the folder that `export` wrote is needed" in await desk.refused(
        "import", str(tmp_path / "chat.json")
    )
    assert db["messages"].count_documents({}) == 0


async def test_a_pipe(desk: Desk, tmp_path: Path) -> None:
    """Is as good as a file: what another program makes of a log is imported as it comes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=(json.dumps(chat(2)).encode(),))
    writer.start()
    told = await desk.said("import", "--from", "openai", "--owner", "ada", str(pipe))
    await run_sync(writer.join)
    assert told.endswith(
        "2 messages read, 0 repaired, 0 left out; 2 stored in session default of ada, 0 were there already.\n"
    )


async def test_bad_and_hostile_messages_among_good_ones(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """Each is told by its place, on any terminal; the others are stored, and the exit code says that not all were."""
    call = {"id": NASTY, "function": {"name": NASTY, "arguments": NASTY}}
    given = [
        {"role": "user", "content": NASTY},
        {"role": NASTY, "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": [{"type": NASTY, "data": 1}, {"type": "text", "text": "Kept"}]},
        {"role": "user", "content": "x" * (17 << 20)},
        {"role": "user", "content": "Last", "owner_key": "eve", "_id": 1, "metadata": {"sub_agent_internal": True}},
    ]
    done = await desk.run("import", "--from", "openai", "--owner", "ada", a_file(tmp_path, given))
    assert done.returncode == 1
    assert is_printable(done.stdout)
    assert is_printable(done.stderr)
    lines = done.stdout.splitlines()
    assert lines[1:3] == ["message 2: ?", "    left out: message: has a form that is not understood"]
    assert any(line.startswith("    repaired: the arguments of ") for line in lines)
    assert "    left out: part: has a form that is not understood" in lines
    assert (
        lines[-1]
        == "6 messages read, 1 repaired, 2 left out; 4 stored in session default of ada, 0 were there already."
    )
    assert done.stderr.splitlines()[0].startswith("message 5: not stored: ")
    assert done.stderr.endswith("nexus: 1 could not be read, 1 not stored: see above\n")
    assert {row["owner_key"] for row in db["messages"].find()} == {"ada"}


async def test_interrupted_and_repeated(desk: Desk, db: _Database, tmp_path: Path) -> None:
    """A long transcript shows progress; Ctrl-C says what was written, and the same command goes on with the rest."""
    count = 20_000
    path = a_file(tmp_path, chat(count))
    words = ["-m", "nexus", "session", "import", "--from", "openai", "--owner", "ada", path]

    def interrupt() -> str:
        with on_terminal(words, {**os.environ, **desk.environment}) as conversation:
            conversation.expect("Reading", f"message {count}: AI", "Writing")
            while not db["messages"].find_one():
                sleep(0.01)
            conversation.child.send("\x03")
            assert conversation.ended() == 130
            return str(conversation.child.before)

    shown = await run_sync(interrupt)
    stored = db["messages"].count_documents({})
    assert 0 < stored < count
    # What the server is just writing nobody hears of.
    named = re.search(
        r"nexus: (\d+) messages into session default of ada were written; repeat the import to go on", shown
    )
    assert not named or stored - 200 <= int(named[1]) <= stored
    assert named or stored <= 200
    told = await desk.said(*words[3:])
    assert told.endswith(f"; {count - stored} stored in session default of ada, {stored} were there already.\n")
    assert [row["content"] for row in db["messages"].find().sort("_id")] == [each["content"] for each in chat(count)]
