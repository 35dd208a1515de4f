"""`nexus context list`, `show REQUEST`, `replay`, `diff` and `why`: what a service answered (contract §13)."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from anyio.to_thread import run_sync
from pydantic import SecretStr
from pymongo import MongoClient
from pymongo.database import Database

from nexus.bootstrap import open_nexus
from nexus.config import BusSettings, ContextSettings, DatabaseSettings, Settings
from nexus.core.models import Message, Role, Topics
from nexus.core.wire import encode
from tests.nexus.support.desk import Desk, is_printable, run_program
from tests.nexus.support.stored_session import NASTY, a_row, store_session
from tests.nexus.support.terminal import on_terminal
from tests.nexus.support.waiting import take

TOLD: Final = "; [TURN_MEMORY] tells of its run"
OF_ADA: Final = ("--owner", "ada")
CALL: Final = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
LATER: Final[tuple[Mapping[str, Any], ...]] = (
    {"id": "ai_1", "role": "AI", "content": "Looking.", "metadata": {"tool_calls": [CALL]}},
    {"id": "tool_1", "role": "TOOL", "content": f"found {NASTY}", "metadata": {"call_id": "c1"}},
)


def asked(request_id: str, run_id: str, *later: Mapping[str, Any], owner: str = "ada", **given: Any) -> Message:
    """A request for a context of session s1, unless another is given; `said` is its input."""
    common = {"run_id": run_id, "owner_key": owner}
    said = given.pop("said", f"What now? 早 {NASTY}")
    human = {**common, "id": f"h_{run_id}", "role": "HUMAN", "content": said}
    history = [human, *({**common, **each} for each in later)]
    run = {"id": run_id, "owner_key": owner, "history": history, "metadata": {"session_id": "s1", **given}}
    return Message(id=request_id, run_id=run_id, owner_key=owner, role=Role.HUMAN, content=run)


ASKED: Final = (
    asked("q1", "r_1", layout="dialogue"),
    asked("q2", "r_2", layout="agent"),
    asked("q3", "r_2", *LATER, layout="agent"),
    asked("q4", "r_4", layout="agent", format="anthropic", agent={"kind": "sub", "id": "scöut", "role": "r"}),
    asked("q5", "r_5", layout="thinking", format="gemini", workspace_context="a desk"),
    asked("q6", "r_6", said=" "),
    asked(f"q7 {NASTY}", "r_7", layout="agent", session_id=f"s2 {NASTY}"),
    asked("q1", "r_1", owner="eve", said="A secret of eve's."),
    asked("q2", "r_2", owner="eve", said=" "),
)


@pytest.fixture
def desk(mongo_uri: str, database_name: str) -> Desk:
    """The command, on the test's own names."""
    return Desk.on("context", mongo_uri, database_name)


@pytest.fixture
def db(mongo_janitor: MongoClient[dict[str, Any]], database_name: str) -> Database[dict[str, Any]]:
    """The database of the command."""
    return mongo_janitor[database_name]


async def answers_of(desk: Desk, *asking: Message, **context: Any) -> list[bytes]:
    """The bytes that a service answers with, on this database, when it has written all records."""
    uri, name = (desk.environment[f"NEXUS_DATABASE__{each}"] for each in ("URI", "NAME"))
    settings = Settings(
        bus=BusSettings(mode="memory"),
        database=DatabaseSettings(uri=SecretStr(uri), name=name, timeout_ms=10_000),
        context=ContextSettings(**context),
    )
    found = []
    async with open_nexus(settings) as nexus, nexus.bus.subscribe(Topics.CONTEXT_BUILD_RESPONSE) as answers:
        for message in asking:
            await nexus.bus.publish(Topics.CONTEXT_BUILD_REQUEST, encode(message))
            (answer,) = await take(answers, 1)
            found.append(answer.payload)
    return found


async def replayed(desk: Desk, *words: str) -> tuple[int, bytes, str]:
    """The exit code, the bytes on the standard output, and the proof."""
    done = await run_sync(lambda: run_program("context", "replay", *words, environment=desk.environment))
    return done.returncode, done.stdout.encode(), done.stderr


async def test_what_was_sent(desk: Desk, db: Database[dict[str, Any]], tmp_path: Path) -> None:
    """Every answer is replayed to the byte, also when rows and settings have changed since; nothing is written."""
    store_session(db)
    sent = await answers_of(desk, *ASKED)
    db["messages"].update_many({}, {"$set": {"content": "changed"}})
    db["messages"].delete_many({"id": {"$in": ["m40", "m41"]}})
    db["configurations"].insert_one({"environment": "development", "memory": {"turns_shown": 1}})
    before = {name: [*db[name].find()] for name in db.list_collection_names()}
    for message, answer in zip(ASKED, sent, strict=True):
        code, found, proof = await replayed(desk, message.id, "--owner", message.owner_key)
        assert (code, found == answer) == (0, True), message.id
        assert f"{len(answer)} bytes, SHA-256 {hashlib.sha256(answer).hexdigest()}, equal to what was sent" in proof
        assert is_printable(proof)
        shown = json.loads(await desk.said("show", message.id, "--owner", message.owner_key, "--json"))
        assert shown["proven"] is True
        assert shown["answer"] == json.loads(answer)
    file = tmp_path / "answer"
    done = await desk.run("replay", "q2", *OF_ADA, "--output", str(file))
    assert (done.returncode, done.stdout, file.read_bytes()) == (0, "", sent[1])
    again = await desk.refused("replay", "q2", *OF_ADA, "--output", str(file))
    assert again.endswith("cannot be written: File exists")
    for words in (("list", *OF_ADA), ("diff", "q3", *OF_ADA), ("why", "m5", *OF_ADA), ("show", "q4", *OF_ADA)):
        await desk.said(*words)
    assert repr({name: [*db[name].find()] for name in db.list_collection_names()}) == repr(before)


async def test_what_a_terminal_might_obey(desk: Desk, db: Database[dict[str, Any]]) -> None:
    """A terminal is given the bytes only where it would show them as they are."""
    store_session(db)
    await answers_of(desk, asked("hostile", "r_1"), asked("plain", "r_2", owner="eve", layout="thinking", said="Hi."))

    def on_a_terminal(request: str, owner: str, *shown: str) -> int:
        words = ["-m", "nexus", "context", "replay", request, "--owner", owner]
        with on_terminal(words, {**os.environ, **desk.environment}) as conversation:
            conversation.expect(*shown)
            return conversation.ended()

    refusal = "the answer has characters that a terminal might obey"
    assert await run_sync(on_a_terminal, "hostile", "ada", refusal) == 1
    assert await run_sync(on_a_terminal, "plain", "eve", "Hi.", "SHA-256") == 0


async def test_list(desk: Desk, db: Database[dict[str, Any]]) -> None:
    """Newest first, of the owner alone, of a session or failed ones; nothing that a terminal obeys."""
    store_session(db)
    await answers_of(desk, *ASKED)
    listed = json.loads(await desk.said("list", *OF_ADA, "--json"))
    assert listed["more"] is False
    assert [each["request_id"] for each in listed["records"]] == [f"q7 {NASTY}", "q6", "q5", "q4", "q3", "q2", "q1"]
    assert listed["records"][2] | {"bytes": 0, "sha256": "", "answered_at": "", "settings": "", "version": ""} == {
        "request_id": "q5", "run_id": "r_5", "session_id": "s1", "agent": "main",
        "layout": "thinking", "format": "gemini",
        "outcome": "success", "reason": "", "mode": "full",
        "bytes": 0, "sha256": "", "answered_at": "", "settings": "", "version": "",
    }  # fmt: skip
    assert [each["agent"] for each in listed["records"]] == ["main", "", "main", "sub scöut", *["main"] * 3]
    said = await desk.said("list", *OF_ADA, "--limit", "2")
    assert is_printable(said)
    assert "EMPTY_INPUT" in said
    assert said.splitlines()[-1] == "2 answers of ada, the newest; --limit shows more."
    failed = await desk.said("list", *OF_ADA, "--failed")
    assert "q6: run.history[0].content: is empty" in failed
    assert failed.splitlines()[-1] == "1 failed request of ada."
    assert (await desk.said("list", *OF_ADA, "--failed", "--session", "s1")).startswith(
        "No failed request of session s1"
    )
    of_s2 = json.loads(await desk.said("list", *OF_ADA, "--session", f"s2 {NASTY}", "--json"))
    assert [each["run_id"] for each in of_s2["records"]] == ["r_7"]
    assert await desk.said("list", "--owner", "nobody") == (
        "No answer of nobody is recorded: answers are kept for 7 days (context.record_days), of requests that were "
        "sent to a service.\n"
    )


async def test_show(desk: Desk, db: Database[dict[str, Any]]) -> None:
    """A record in every format, its blocks over what was sent, with nothing that a terminal obeys."""
    store_session(db)
    await answers_of(desk, *ASKED)
    for request, words in {
        "q1": ("[SHARED_MEMORY]", "as they were sent", "success"),
        "q3": ("[CONVERSATION_SUMMARY]", "<- c1", "[RUN]"),
        "q4": ("system, part 1: system", "message 1, part 1: user", "[HISTORY]"),
        "q5": ("[WORKSPACE_CONTEXT]", "message 1, part 1: user"),
        "q6": ("EMPTY_INPUT: run.history[0].content: ",),
        f"q7 {NASTY}": ("[INPUT]",),
    }.items():
        said = await desk.said("show", request, *OF_ADA)
        assert is_printable(said), request
        for word in words:
            assert word in said, (request, word, said)


async def test_why(desk: Desk, db: Database[dict[str, Any]]) -> None:
    """Where a message is, or why not; by default in the newest context of its session."""
    store_session(db)
    db["messages"].insert_one(a_row(70, session_id="s3", id="other"))
    await answers_of(desk, *ASKED[:5])
    for message, request, text in (
        ("m50", "q3", "it is shown in [HISTORY]"),
        ("m5", "q3", f"it is under compaction 1 of 2026-01-01 00:00:00, for which [CONVERSATION_SUMMARY] stands{TOLD}"),
        ("tool_1", "q3", "it is shown in [RUN]"),
        ("other", "q3", "it is of session s3, and the layout agent shows one session, here s1"),
        ("m904", "q2", "it is internal to a sub-agent, and this context is not for a sub-agent"),
        ("m1", "q1", "it is older than the newest 20 messages of all sessions, which [SHARED_MEMORY] shows"),
        ("nothing", "q1", "no message of this owner has this id: it was never recorded, or has been removed since"),
    ):
        found = json.loads(await desk.said("why", message, *OF_ADA, "--request", request, "--json"))
        assert (found["record"]["request_id"], found["text"]) == (request, text)
        assert text in (await desk.said("why", message, *OF_ADA, "--request", request)).replace("\n", " ")
    newest = json.loads(await desk.said("why", "m50", *OF_ADA, "--json"))
    assert (newest["record"]["request_id"], newest["reason"]) == ("q5", "layout")
    elsewhere = json.loads(await desk.said("why", "other", *OF_ADA, "--json"))
    assert elsewhere["record"]["request_id"] == "q5"
    later = db["messages"].find_one({"owner_key": "ada", "id": "h_r_5"})
    assert later
    likely = await desk.said("why", str(later["_id"]), *OF_ADA, "--request", "q3")
    assert "most likely: it was recorded at " in likely or "after this context was built" in likely


async def test_diff(desk: Desk, db: Database[dict[str, Any]]) -> None:
    """With the build before it, or with another; what changed, and where the common beginning ends and why."""
    store_session(db)
    await answers_of(desk, *ASKED)
    said = await desk.said("diff", "q3", *OF_ADA)
    assert is_printable(said)
    assert "the build before the second of its run" in said.replace("\n", " ")
    assert "- message 39 ([RUN]) is in the second alone." in said
    assert "+messages: 41" in said
    found = json.loads(await desk.said("diff", "q3", *OF_ADA, "--json"))
    assert (found["first"]["request_id"], found["second"]["request_id"]) == ("q2", "q3")
    assert {each["tag"]: each["state"] for each in found["blocks"]}["RUN"] == "second"
    assert found["tools"]["same"] is True
    other = json.loads(await desk.said("diff", "q1", "q2", *OF_ADA, "--json"))
    assert (other["first"]["request_id"], other["second"]["request_id"]) == ("q1", "q2")
    assert other["prefix"]["reasons"][0] == "another layout: dialogue and agent"
    lone = await desk.refused("diff", "q1", *OF_ADA)
    assert lone.startswith("no context of the same session, layout and format is recorded before q1")
    failed = await desk.said("diff", "q1", "q6", *OF_ADA)
    assert "an error has no messages" in failed


async def test_what_cannot_be_had(desk: Desk, db: Database[dict[str, Any]]) -> None:
    """Nothing is written without a proof, and each refusal says why."""
    await answers_of(desk, ASKED[0])
    kept = "answers are kept for 7 days (context.record_days), of requests that were sent to a service"
    for command in ("show", "replay", "diff"):
        unknown = await desk.refused(command, "nothing\x1b", *OF_ADA)
        assert unknown == f"no answer to a request nothing\\x1b of ada is recorded: {kept}"
        assert "is recorded" in await desk.refused(command, "q1", "--owner", "eve")
    assert await desk.refused("why", "m1", "--owner", "eve") == f"no context of eve is recorded: {kept}"
    off = await desk.refused("show", "nothing", *OF_ADA, NEXUS_CONTEXT__RECORD="off")
    assert off.endswith("is recorded: these settings record nothing (context.record: off)")
    assert await desk.refused("show", "q1", *OF_ADA, "--layout", "agent", "--input", "x") == (
        "--layout, --input: only without REQUEST, for the next context"
    )
    (piece,) = [*db["context_pieces"].find().limit(1)]
    db["context_pieces"].update_one({"_id": piece["_id"]}, {"$set": {"data": b"spoilt"}})
    assert "spoilt" in await desk.refused("replay", "q1", *OF_ADA)
    db["context_pieces"].delete_one({"_id": piece["_id"]})
    for command, message in (("replay", ()), ("show", ()), ("diff", ("q1",)), ("why", ("--request", "q1"))):
        words = ("m1", *message) if command == "why" else ("q1", *message)
        assert "pieces are missing" in await desk.refused(command, *words, *OF_ADA)
    db["context_records"].update_one({"request_id": "q1"}, {"$set": {"pieces": []}})
    code, found, fault = await replayed(desk, "q1", *OF_ADA)
    assert (code, found) == (1, b"")
    assert "another SHA-256" in fault


async def test_manifests_alone(desk: Desk, db: Database[dict[str, Any]]) -> None:
    """Of them there is everything but the texts, and no replay."""
    store_session(db)
    await answers_of(desk, *ASKED, record="manifest")
    assert "only the manifest was kept" in await desk.refused("replay", "q2", *OF_ADA)
    said = await desk.said("show", "q4", *OF_ADA)
    assert "HISTORY" in said
    assert "only the manifest was kept" in said
    shown = json.loads(await desk.said("show", "q4", *OF_ADA, "--json"))
    assert (shown["proven"], shown["context"]["layout"]) == (False, "agent")
    assert "EMPTY_INPUT" in await desk.said("show", "q6", *OF_ADA)
    assert "it is shown in [HISTORY]" in await desk.said("why", "m50", *OF_ADA, "--request", "q2")
    assert "texts were not kept" in await desk.said("diff", "q3", *OF_ADA)


async def test_nothing_is_kept(desk: Desk, db: Database[dict[str, Any]]) -> None:
    """With `context.record: off`, and the list says so."""
    await answers_of(desk, ASKED[0], record="off")
    assert db["context_records"].count_documents({}) == 0
    done = await desk.run("list", *OF_ADA, NEXUS_CONTEXT__RECORD="off")
    assert done.stdout == "No answer of ada is recorded: these settings record nothing (context.record: off).\n"
