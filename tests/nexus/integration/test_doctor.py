"""`nexus doctor` on a Redis, and on a model, that is there and of no use."""

import io
import re
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import SecretStr
from pymongo import MongoClient
from rich.console import Console

from nexus.adapters.mongo import open_mongo
from nexus.adapters.redis.client import open_redis
from nexus.bootstrap import open_nexus
from nexus.cli.doctor import examine
from nexus.cli.servers import bus_advice
from nexus.config import BusSettings, DatabaseSettings, LlmSettings, RecallSettings, Settings
from tests.nexus.support.embedding_behaviours import embedding
from tests.nexus.support.model_behaviours import Behaviour, body, good, knowing, saying, silent, status, wrapped
from tests.nexus.support.model_server import model_server
from tests.nexus.support.redis_server import HOST, free_port, redis_server

OTHER_KINDS = {
    "redis+cluster://{}": "write redis:// in bus.url: this server is no node of a cluster",
    "redis+sentinel://{}/service/0": "this server is no sentinel",
}
RIGHTS = ("ACL", "SETUSER", "default")
# What is done to a Redis and undone, the part that is wrong then, and what to do.
BROKEN = [
    (("REPLICAOF", HOST, "1"), ("REPLICAOF", "NO", "ONE"), "ledger: ReadOnlyError", "is a read-only replica"),
    (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "ledger: OutOfMemoryError", "maxmemory"),
    ((*RIGHTS, "-evalsha", "-eval"), (*RIGHTS, "+@all"), "ledger: NoPermissionError", "'Users and rights'"),
    ((*RIGHTS, "-publish"), (*RIGHTS, "+@all"), "bus: NoPermissionError", "'Users and rights'"),
]


async def examined(settings: Settings, *, quick: bool = False) -> tuple[bool, str]:
    """Whether all was well, and the lines."""
    lines = io.StringIO()
    well = await examine(settings, Console(file=lines, width=500), quick=quick)
    return well, lines.getvalue()


async def said(url: str, mongo_uri: str, database_name: str, mode: str = "pubsub") -> tuple[bool, str]:
    """The same of this bus and the database."""
    bus = BusSettings.model_validate({"mode": mode, "url": url, "channel_prefix": "{t}:"})
    database = DatabaseSettings(uri=SecretStr(mongo_uri), name=database_name, timeout_ms=10_000)
    return await examined(Settings(bus=bus, database=database), quick=True)


async def test_a_redis(mongo_uri: str, database_name: str) -> None:
    """A bus that hears itself, with a ledger that takes a claim, is well; each fault has its own advice."""
    async with redis_server() as server, open_redis(server.url) as admin:
        for mode in ("pubsub", "streams", "memory"):
            well, lines = await said(server.url, mongo_uri, database_name, mode)
            assert well, lines
            assert "ok     bus: hears itself" in lines
            assert "ok     ledger: takes a claim and gives it back" in lines
        assert await admin.keys("*nexus:request:*") == []
        for url, advice in OTHER_KINDS.items():
            well, lines = await said(url.format(f"{HOST}:{server.port}"), mongo_uri, database_name)
            assert (well, "wrong  bus: " in lines, advice in lines) == (False, True, True), lines
        for breaking, mending, part, advice in BROKEN:
            await admin.execute_command(*breaking)  # type: ignore[no-untyped-call]  # redis-py's is untyped
            well, lines = await said(server.url, mongo_uri, database_name)
            assert (well, f"wrong  {part}. To do: " in lines, advice in lines) == (False, True, True), lines
            await admin.execute_command(*mending)  # type: ignore[no-untyped-call]  # redis-py's is untyped


def test_other_errors() -> None:
    """A service that no sentinel knows, and what has no advice of its own."""
    assert "the name of their service" in bus_advice(Exception("MasterNotFoundError"))
    assert bus_advice(TimeoutError()).startswith("see that Redis runs")


async def said_of_service(url: str, mongo_uri: str, name: str, **bus: Any) -> tuple[bool, str]:
    """The same of all parts, with these settings of the bus."""
    database = DatabaseSettings(uri=SecretStr(mongo_uri), name=name, timeout_ms=10_000)
    return await examined(
        Settings(bus=BusSettings.model_validate({"url": url, "answer_ttl_s": 60, **bus}), database=database)
    )


@pytest.mark.parametrize("mode", ["pubsub", "streams"])
async def test_whether_a_service_answers(redis_url: str, mongo_uri: str, database_name: str, mode: str) -> None:
    """It is asked what it refuses, and nothing of that is recorded. Without one, or with other keys, that is said."""
    bus = {"mode": mode, "channel_prefix": f"{{{database_name}}}:"}
    keys = {"signing": {"keys": {"operator": "k" * 32}, "required": True}}
    settings = Settings(
        bus=BusSettings.model_validate({"url": redis_url, **bus, **keys}),
        database=DatabaseSettings(uri=SecretStr(mongo_uri), name=database_name, timeout_ms=10_000),
    )
    async with open_nexus(settings):
        well, lines = await said_of_service(redis_url, mongo_uri, database_name, **bus, **keys)
        assert (well, "ok     service: answers, " in lines) == (True, True), lines
        assert "ok     indexes: in place" in lines
        well, lines = await said_of_service(redis_url, mongo_uri, database_name, **bus)
        assert (well, "wrong  service: UNAUTHENTICATED: " in lines) == (False, True), lines
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        # What the start of a service leaves there.
        for name in {*client[database_name].list_collection_names()} - {"schema"}:
            assert client[database_name][name].find_one() is None, name
    well, lines = await said_of_service(
        redis_url, mongo_uri, database_name, mode=mode, channel_prefix=f"{database_name}:"
    )
    assert well is False
    said = next(line for line in lines.splitlines() if "service:" in line)
    assert said.startswith("wrong  service: no")
    assert "context.build.request" in said
    assert "To do: start a service (nexus serve) on this bus" in said


async def test_a_mistyped_database(mongo_uri: str, database_name: str) -> None:
    """It is not made: that it is not there is said, and which are."""
    mistyped = f"{database_name}x"
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        client[database_name]["messages"].insert_one({"owner_key": "ada"})
        well, lines = await said_of_model(mongo_uri, mistyped, {})
        assert mistyped not in client.list_database_names()
    assert well is False
    found = next(line for line in lines.splitlines() if "collections" in line)
    assert f"wrong  collections: database {mistyped} does not exist; there are: " in found
    assert "correct database.name (NEXUS_DATABASE__NAME)" in found
    assert "indexes" not in lines


async def test_indexes_that_are_missing(mongo_uri: str, database_name: str) -> None:
    """They are named and not made, whatever their names are where they are there."""
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        database = client[database_name]
        async with open_mongo(mongo_uri, database_name) as store:
            await store.prepare()
        database["tools"].drop_index("one_per_name")
        database["turns"].drop_index("one_per_run")
        database["turns"].create_index(["owner_key", "run_id", "session_id"], name="another", unique=True)
        database["identities"].drop()
        well, lines = await said_of_model(mongo_uri, database_name, {})
        assert "identities" not in database.list_collection_names()
        assert "one_per_name" not in database["tools"].index_information()
    assert well is False
    assert f"ok     collections: database {database_name} has 15 collections: compactions, configurations, " in lines
    missing = "identities.one_per_key, tools.one_per_name"
    assert f"wrong  indexes: missing: {missing}. To do: start a service, which makes them" in lines


async def said_of_model(
    mongo_uri: str, name: str, llm: Mapping[str, object], *, quick: bool = False, timeout_ms: int = 1_500
) -> tuple[bool, str]:
    """The same with these settings of the model, and no Redis."""
    settings = Settings(
        bus=BusSettings(mode="memory"),
        database=DatabaseSettings(uri=SecretStr(mongo_uri), name=name, server_selection_timeout_ms=timeout_ms),
        llm=LlmSettings.model_validate(llm),
    )
    return await examined(settings, quick=quick)


@pytest.mark.parametrize("behaviour", [good(), knowing("text"), wrapped("<think>Hm.</think>```json\n", "```")])
async def test_a_model_that_answers(mongo_uri: str, prepared_database: str, behaviour: Behaviour) -> None:
    """It is called by its name, and asked one short question."""
    async with model_server(behaviour) as server:
        well, lines = await said_of_model(
            mongo_uri, prepared_database, {"base_url": server.base_url, "model": "a[b/c]"}
        )
    assert well
    assert "ok     model: a[b/c] answers, " in lines
    assert {len(call.user) < 100 for call in server.asked} == {True}


@pytest.mark.parametrize(
    ("stored", "finding"),
    [
        ({"memory": {"turns_shown": 7}}, "are valid\n"),
        (
            {"llm": {"model": "m"}, "memory": {}, "other": 1},
            "are valid; llm in there: passed over, only memory, layouts",
        ),
        ({"memory": {"tokenizer": "qwen3"}}, "are valid; memory.tokenizer in there: passed over, only memory, layouts"),
    ],
)
async def test_stored_settings(mongo_uri: str, prepared_database: str, stored: dict[str, Any], finding: str) -> None:
    """A section that is not taken from there is named. No model is well, too."""
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        client[prepared_database]["configurations"].insert_one({"environment": "development", **stored})
    well, lines = await said_of_model(mongo_uri, prepared_database, {})
    assert well
    assert f"the stored ones of environment 'development' {finding}" in lines
    assert "ok     model: not configured: summaries are made by rules" in lines


@pytest.mark.parametrize(
    ("behaviour", "reason", "advice"),
    [
        (status(401, {"code": "invalid_api_key"}), "401 invalid_api_key", "correct llm.api_key (NEXUS_LLM__API_KEY)."),
        (status(403), "403 Forbidden", "correct llm.api_key"),
        (status(404, {"code": "model_not_found"}), "404 model_not_found", "correct llm.model, and llm.base_url"),
        (status(429), "429 Too Many Requests", "look at the limits and the credit"),
        (status(302, location="/"), "302 Found", "correct llm.base_url: the endpoint is elsewhere"),
        (status(503), "503 Service Unavailable", "look at the log of the endpoint"),
        (body(b"<html>", "text/html"), "the answer is no chat completion", "correct llm.base_url, which usually ends"),
        (
            status(400, {"code": "context_length_exceeded"}),
            "the prompt does not fit (400)",
            "choose another llm.model,",
        ),
        (silent(), "no answer within 0.2 s", "raise llm.timeout_s"),
        (saying("Yes!"), "answers, but not with the JSON that it was asked for", "choose another llm.model"),
    ],
)
async def test_a_model_of_no_use(
    mongo_uri: str, database_name: str, behaviour: Behaviour, reason: str, advice: str
) -> None:
    """Each fault has its own advice, and the model is asked once."""
    timeout_s = 0.2 if "within" in reason else 60
    async with model_server(behaviour) as server:
        llm = {"base_url": server.base_url, "model": "m", "timeout_s": timeout_s, "api_key": "canary"}
        well, lines = await said_of_model(mongo_uri, database_name, llm)
    assert not well
    assert f"wrong  model: {reason}. To do: {advice}" in lines
    assert "canary" not in lines
    # Within 0.2 s a busy machine may not even have sent it.
    assert len(server.asked) == 1 or "within" in reason


async def test_a_model_that_is_away(database_name: str) -> None:
    """It is asked also where the database is away, and not at all in a hurry."""
    place = f"{HOST}:{free_port()}"
    nowhere, model = f"mongodb://{place}/", {"base_url": f"http://{place}", "model": "m"}
    well, lines = await said_of_model(nowhere, database_name, model, timeout_ms=100)
    assert not well
    assert "wrong  database: " in lines
    assert "indexes" not in lines
    assert "wrong  model: no connection (Connection refused). To do: see that the endpoint runs" in lines
    _, lines = await said_of_model(nowhere, database_name, model, quick=True, timeout_ms=100)
    assert "model" not in lines


async def test_a_key_of_a_model_that_cannot_be_used(mongo_uri: str, database_name: str) -> None:
    """One line like the others, which does not repeat the key, and advises about the setting, not the endpoint."""
    llm = {"base_url": "http://h", "model": "m", "api_key": "canary\u20ac"}
    well, lines = await said_of_model(mongo_uri, database_name, llm)
    assert not well
    assert "wrong  model: llm.api_key: has characters that no header" in lines
    assert "To do: correct this setting." in lines
    assert "canary" not in lines


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (embedding(), r"ok     embedder: e5-[0-9a-f]{12} gives vectors of 256 bits, [0-9]+ ms"),
        (status(404), r"wrong  embedder: 404 Not Found\. To do: correct recall\.model, and recall\.base_url, which"),
        (status(401), r"wrong  embedder: 401 Unauthorized\. To do: correct recall\.api_key \(NEXUS_RECALL__API_KEY"),
        (body(b"{}"), r"wrong  embedder: the answer is no list of vectors\. To do: correct recall\.base_url"),
    ],
)
async def test_an_embedder(mongo_uri: str, prepared_database: str, behaviour: Behaviour, said: str) -> None:
    """An endpoint is asked for a vector; the advice is about its settings."""
    database = DatabaseSettings(uri=SecretStr(mongo_uri), name=prepared_database, timeout_ms=10_000)
    settings = Settings(bus=BusSettings(mode="memory"), database=database)
    async with model_server(behaviour) as server:
        recall = RecallSettings(embedder="endpoint", base_url=SecretStr(server.base_url), model="e5")
        _, lines = await examined(settings.model_copy(update={"recall": recall}))
    assert re.search(said, lines)
    _, lines = await examined(settings)
    assert "ok     embedder: not configured: messages are found by words alone" in lines
