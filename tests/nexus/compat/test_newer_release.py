"""What a newer release has stored is refused with a word that says so, wherever it is read, and stays as it is."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import anyio
import pytest
from anyio.to_thread import run_sync
from pymongo import MongoClient
from pymongo.database import Database

from nexus.adapters.mongo import MongoStore, open_mongo
from nexus.adapters.mongo.versions import DATABASE, FIELD, SCHEMA_VERSION
from nexus.core.errors import StoreUnavailableError
from nexus.core.person import Statement
from nexus.core.ports.memory import TurnTouch
from nexus.core.records import BuildRecord
from nexus.core.working_memory import Tail
from tests.nexus.compat.releases import restore, stored
from tests.nexus.compat.scene import AGENT, OWNER, questions
from tests.nexus.e2e.harness import PATIENCE_S, Document, Environment, requesting, serving, starting
from tests.nexus.support.desk import Desk

NEWER: Final = SCHEMA_VERSION + 1
REFUSED: Final = (
    f"the schema version {NEWER}; this release knows versions up to {SCHEMA_VERSION}: see docs/upgrading.md"
)
KEY: Final = (OWNER, AGENT)
NOW: Final = datetime(2027, 1, 1, tzinfo=UTC)
SAID: Final = Statement(id="f1", owner_key=OWNER, topic="home", sub_topic="city", value="Porto", said_at=NOW)
RECORD: Final = BuildRecord(
    owner_key=OWNER,
    request_id="ask_1",
    run_id="run_1",
    session_id=AGENT,
    outcome="success",
    reason="",
    layout="agent",
    form="openai",
    answered_at=NOW,
    size=2,
    settings="s",
    version="v",
    mode="manifest",
)

Read = Callable[[MongoStore], Awaitable[Any]]


async def all_rows(store: MongoStore) -> None:
    """Read a session for an export."""
    async for _ in store.transfer.rows(*KEY):
        pass


async def marked(store: MongoStore) -> int:
    """Have all messages indexed anew; how many there were."""
    count, _ = await store.recall.mark(OWNER, limit=100, again=True)
    return count


# By collection what reads its documents, and what would change them.
READS: Final[dict[str, list[Read]]] = {
    "messages": [
        lambda store: store.newest_messages(OWNER, limit=50),
        lambda store: store.newest_messages(OWNER, limit=50, excerpt_chars=10),
        lambda store: store.all_messages(OWNER, limit=100),
        lambda store: store.session_messages(*KEY, limit=100),
        lambda store: store.tail_messages(*KEY, Tail(), limit=100),
        lambda store: store.messages_of_runs(OWNER, ["work_0"], limit=9),
        lambda store: store.results_of_runs(OWNER, ["work_0"], limit=9, excerpt_chars=9),
        lambda store: store.find_message(OWNER, "in_work_0"),
        lambda store: store.search_messages(*KEY, "trains", limit=9, texts_of=lambda _row, _without: []),
        lambda store: store.run_messages(OWNER, "work_0", limit=9),
        lambda store: store.stored_messages(*KEY, limit=100),
        lambda store: store.first_input(*KEY),
        lambda store: store.run_input(OWNER, "work_0"),
        lambda store: store.find_origin(OWNER, "work_0"),
        lambda store: store.retention.rows_of_runs(*KEY, ["work_0"]),
        all_rows,
    ],
    "turns": [
        lambda store: store.turns.latest_turn(*KEY),
        lambda store: store.turns.find_turn(*KEY, 1),
        lambda store: store.turns.turns(*KEY, limit=9),
        lambda store: store.turns.turns_of_runs(*KEY, ["work_0"]),
        lambda store: store.turns.search_turns(*KEY, "day", limit=9),
        lambda store: store.turns.touch_runs([TurnTouch(*KEY, "work_0", {"heard_at": NOW})]),
        lambda store: store.retention.stored_before("turns", NOW, limit=100),
    ],
    "working_memory": [
        lambda store: store.memory.latest_overview(*KEY),
        lambda store: store.memory.overviews(*KEY, limit=9),
        lambda store: store.memory.newest(*KEY, notes=9, archives=9),
    ],
    "memory_details": [
        lambda store: store.memory.list_details(*KEY),
        lambda store: store.memory.newest(*KEY, notes=9, archives=9),
        lambda store: store.memory.find_detail(*KEY, "seats"),
        lambda store: store.memory.detail_versions(*KEY, limit=9),
        lambda store: store.memory.search_details(*KEY, "Platform", limit=9),
    ],
    "compactions": [
        lambda store: store.memory.latest_compaction(*KEY),
        lambda store: store.memory.compactions(*KEY, limit=9, whole=True),
        lambda store: store.memory.newest(*KEY, notes=9, archives=9),
    ],
    "session_states": [lambda store: store.find_session_state(*KEY)],
    "tools": [
        lambda store: store.list_tools(),
        lambda store: store.put_tool("weather", None, NOW),
    ],
    "facts": [lambda store: store.facts.statements(OWNER, limit=9)],
    "constraints": [
        lambda store: store.constraints.find_constraints(OWNER, ["owner"]),
        lambda store: store.constraints.list_constraints(OWNER, limit=9),
    ],
    "context_records": [
        lambda store: store.records.find_record(OWNER, "ask_1"),
        lambda store: store.records.records(OWNER, limit=9),
    ],
    "identities": [lambda store: store.find_identity(OWNER)],
    "configurations": [lambda store: store.find_configuration("development")],
}
LEFT: Final[dict[str, list[Read]]] = {
    "messages": [
        lambda store: store.recall.add_key(OWNER, "in_work_0", "rails"),
        lambda store: store.recall.mark_outdated("another", limit=9),
        marked,
    ],
    "session_states": [lambda store: store.put_session_state(*KEY, {}, 1)],
    "constraints": [lambda store: store.constraints.put_constraints(OWNER, "owner", {}, 1)],
    "working_memory": [lambda store: store.memory.drop_overviews(*KEY, below=99)],
    "turns": [
        lambda store: store.turns.update_turn(*KEY, 1, {"status": "acting"}, seen={}),
        lambda store: store.turns.claim("close", NOW, NOW + timedelta(hours=1)),
        lambda store: store.turns.claim("summarise", NOW, NOW + timedelta(hours=1)),
    ],
    "compactions": [
        lambda store: store.memory.update_compaction(*KEY, 1, {"summary": ""}, seen={}),
        lambda store: store.memory.claim_compaction("refine", NOW, NOW + timedelta(hours=1)),
    ],
}


@pytest.fixture
def database(mongo_janitor: MongoClient[Document], database_name: str) -> Database[Document]:
    """What release 0.1.0 left."""
    database = mongo_janitor[database_name]
    restore(database)
    return database


@pytest.mark.once
async def test_documents(mongo_uri: str, database: Database[Document]) -> None:
    """Each way to read one is an error that names the collection; none of them is claimed or changed."""
    async with open_mongo(mongo_uri, database.name, timeout_ms=10_000) as store:
        await store.facts.add_statements(OWNER, [SAID])
        await store.constraints.put_constraints(OWNER, "owner", {"constraints": []}, 0)
        await store.records.put_records([RECORD], NOW)
        newer = stored(database)
        for name, reads in READS.items():
            assert newer[name][-1].get(FIELD, SCHEMA_VERSION) == SCHEMA_VERSION
            database[name].update_many({}, {"$set": {FIELD: NEWER}})
            newer = stored(database)
            for read in reads:
                with pytest.raises(StoreUnavailableError) as refused:
                    await read(store)
                assert str(refused.value) == f"collection {name}: a document has {REFUSED}"
            for change in LEFT.get(name, ()):
                assert not await change(store)
            assert stored(database) == newer
            database[name].update_many({}, {"$set": {FIELD: SCHEMA_VERSION}})
            await reads[0](store)


async def test_what_is_written(mongo_uri: str, database: Database[Document]) -> None:
    """What this release writes says its version, which no reader is shown; what it changes does, too."""
    async with open_mongo(mongo_uri, database.name, timeout_ms=10_000) as store:
        await store.insert_messages([{"id": "new", "owner_key": OWNER, "content": "x", "timestamp": NOW}])
        await store.facts.add_statements(OWNER, [SAID])
        assert await store.turns.update_turn(*KEY, 1, {"heard_at": NOW}, seen={})
        shown = [*await store.all_messages(OWNER, limit=100), *await store.turns.turns(*KEY, limit=9)]
        assert not any(FIELD in row for row in [*shown, *await store.facts.statements(OWNER, limit=9)])
    of_this_release = {FIELD: SCHEMA_VERSION}
    assert {name: database[name].count_documents(of_this_release) for name in ("messages", "facts", "turns")} == {
        "messages": 1,
        "facts": 1,
        "turns": 1,
    }
    assert stored(database)["schema"] == [{**DATABASE, **of_this_release}]


@pytest.mark.once
async def test_a_service_that_runs(environment: Environment, database: Database[Document]) -> None:
    """It says so where it is asked whether it is well, and answers without what it cannot read, which it names."""
    dialogue, agent = questions()[0], questions()[3]
    async with serving(environment) as service, requesting(environment) as requester:
        database["messages"].update_one({"id": "in_thought_1"}, {"$set": {FIELD: NEWER}})
        database["working_memory"].update_many({}, {"$set": {FIELD: NEWER}})
        database["schema"].update_one(DATABASE, {"$set": {FIELD: NEWER}})
        memory, answer = await requester.ask(agent), await requester.ask(dialogue)
        port = (await service.logged("http_listening"))["http_port"]
        ready = await run_sync(partial(_ready, port))
        degraded = [line["reason"] for line in service.log if line["event"] == "degraded"]
    assert (answer["status"], answer["degraded"]) == ("success", ["history"])
    assert (memory["status"], memory["degraded"]) == ("success", ["working_memory"])
    assert f"collection messages: a document has {REFUSED}" in degraded
    assert REFUSED in ready["checks"]["database"]


@pytest.mark.once
async def test_a_start(environment: Environment, database: Database[Document]) -> None:
    """A service does not start, commands write nothing, `nexus doctor` says why, and nothing is changed."""
    database["schema"].insert_one({**DATABASE, FIELD: NEWER})
    before = stored(database)
    said = f"database {database.name} has {REFUSED}"
    async with starting(environment) as service:
        with anyio.fail_after(PATIENCE_S):
            assert await service.process.wait() == 1
        assert said in "".join([*service.errors, *map(str, service.log)])
    fact = ("add", "home", "Porto")
    for command, words in (("erase", ("--yes",)), ("recall", ("index", "--again", "--no-wait")), ("facts", fact)):
        refused = await Desk(command, environment).run(*words, "--owner", OWNER)
        assert (refused.returncode, said in refused.stderr) == (1, True)
        assert "see that MongoDB runs" not in refused.stderr
    ill = await Desk("doctor", environment).run()
    assert ill.returncode == 1
    assert f"wrong  database: {said}. To do: start the release that wrote it." in ill.stdout
    assert stored(database) == before


def _ready(port: int) -> Any:
    try:
        urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_S)
    except HTTPError as error:
        return json.loads(error.read())
    raise AssertionError("it is ready")
