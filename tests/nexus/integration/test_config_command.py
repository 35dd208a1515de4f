"""`nexus config` as operators use it: the program, on a Redis and a MongoDB, with services that read settings again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import SecretStr
from pymongo import MongoClient
from pymongo.collection import Collection

from nexus.bootstrap import Nexus, open_nexus
from nexus.cli.config import as_object
from nexus.config.loading import load_settings
from nexus.config.sources import Origin
from tests.nexus.support.desk import Desk, is_printable
from tests.nexus.support.stored_session import NASTY
from tests.nexus.support.waiting import until

pytestmark = [pytest.mark.once, pytest.mark.heavy]

SECRET: Final = "hunter2-canary-0123"
NOBODY: Final = "is a service running on this bus, with this bus.mode and bus.channel_prefix? (nexus doctor)"


@pytest.fixture
def desk(redis_url: str, mongo_uri: str, database_name: str, channel_prefix: str) -> Desk:
    """The command and its service, on the test's own names."""
    bus = {"NEXUS_BUS__URL": redis_url, "NEXUS_BUS__CHANNEL_PREFIX": channel_prefix, "NEXUS_ENV": "staging"}
    return Desk.on("config", mongo_uri, database_name, **bus)


@pytest.fixture
def configurations(mongo_uri: str, database_name: str) -> Iterator[Collection[dict[str, Any]]]:
    """Where the settings are stored."""
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        yield client[database_name]["configurations"]


async def shown(desk: Desk, *words: str) -> dict[str, Any]:
    """What is shown as JSON, by the settings' keys."""
    return {item.pop("key"): item for item in json.loads(await desk.said("show", "--json", *words))}


async def becomes(nexus: Nexus, truncate_chars: int) -> None:
    """Wait until the service has read that setting."""

    async def taken_over() -> bool:
        return nexus.builder.settings.truncate_chars == truncate_chars

    await until(taken_over)


async def test_each_value_and_its_source(
    desk: Desk, configurations: Collection[dict[str, Any]], tmp_path: Path, database_name: str
) -> None:
    """Defaults, file, stored document and variables; a value of the file that does not count is said."""
    path = tmp_path / "nexus.yml"
    path.write_text("memory: {truncate_chars: 300, turns_shown: 50}\nsystem: {log_level: ERROR}")
    profile = {"friends_profile": {"content": f"你好 {NASTY}\n2"}}
    stored = {"memory": {"truncate_chars": 400}, "user_defaults": {"prompts": profile}, "bus": {"lease_ms": 999}}
    configurations.insert_one({"environment": "staging", **stored})
    found = await shown(desk, "--config", str(path))
    assert found["memory.truncate_chars"] == {"value": 400, "source": "stored", "place": "staging", "outranked": 300}
    assert found["memory.turns_shown"] == {"value": 50, "source": "file", "place": str(path)}
    assert found["system.log_level"] == {"value": "error", "source": "file", "place": str(path)}
    assert found["bus.lease_ms"] == {"value": 2_000, "source": "default", "place": None}
    assert found["database.name"]["place"] == "NEXUS_DATABASE__NAME"
    assert found["environment"] == {"value": "staging", "source": "environment", "place": "NEXUS_ENV"}
    text = await desk.said("show", "--config", str(path))
    assert is_printable(text)
    table = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert table["memory.turns_shown"] == [str(path), "50"]
    assert table["bus.lease_ms"] == ["default", "2000"]
    assert table["database.name"] == ["NEXUS_DATABASE__NAME", database_name]
    assert table["memory.truncate_chars:"][-1] == "300"
    said = "memory.truncate_chars: the stored document outranks the settings file, which has 300"
    assert text.splitlines()[-1] == said


async def test_secrets_are_masked(desk: Desk) -> None:
    """Of addresses hosts are shown; keys, passwords and options are not, in neither form."""
    secret = {
        "NEXUS_BUS__URL": f"redis://ada:{SECRET}@127.0.0.1:6379/0?password={SECRET}",
        "NEXUS_BUS__SIGNING__KEYS": f"{{k1: {SECRET}}}",
        "NEXUS_MCP__TOKENS": f"[{{token: {SECRET}-long-enough, owners: [ada of mcp]}}]",
        "NEXUS_LLM__API_KEY": SECRET,
        "NEXUS_LLM__BASE_URL": f"http://u:{SECRET}@llm:1/v1",
        "NEXUS_LLM__MODEL": "m",
        "NEXUS_RECALL__EMBEDDER": "endpoint",
        "NEXUS_RECALL__API_KEY": SECRET,
        "NEXUS_RECALL__BASE_URL": f"http://u:{SECRET}@embedder:1/v1",
        "NEXUS_RECALL__MODEL": "m",
    }
    for words in (("show",), ("show", "--json")):
        done = await desk.run(*words, **secret)
        assert (done.returncode, done.stderr) == (0, "")
        assert SECRET not in done.stdout
        for part in (
            "redis://***@127.0.0.1:6379/0?password=***",
            "k1",
            "ada of mcp",
            "http://***@llm:1/v1",
            "http://***@embedder:1/v1",
        ):
            assert part in done.stdout


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis+sentinel://:SECRET/SECRET@a:1,b:2/service", "redis+sentinel://***@a:1,b:2/service"),
        ("redis://u:SECRET@SECRET@h", "redis://***@h"),
        ("mongodb://h:1/?directConnection=true&tls=false", "mongodb://h:1/?directConnection=true&tls=false"),
        ("mongodb+srv://u:SECRET#1@h/db?x=SECRET&tls=true", "mongodb+srv://***@h/db?x=***&tls=true"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("unix:///run/redis.sock?password=trueSECRET", "unix:///run/redis.sock?password=***"),
        ("unix:///run/redis.sock?password=SECRET@SECRET", "***"),
        ("unix:///run/redis.sock?SECRET", "***"),
        ("redis://u:1?SECRET@h", "***"),
        ("redis://:SECRET", "***"),
        ("redis:// :SECRET@h", "***"),
        ("SECRET", "***"),
        ("", ""),
        ("redis://" + "a" * 50_000 + ":SECRET", "***"),
    ],
    ids=lambda text: text[:40],
)
def test_an_address(address: str, masked: str) -> None:
    """Whatever it looks like, no password is shown, nor what may be one."""
    origin = Origin("bus.url", SecretStr(address.replace("SECRET", SECRET)), "file", "nexus.yml")
    assert as_object(origin)["value"] == masked


@pytest.mark.parametrize("stored", [{"memory": {"truncate_chars": "many"}}, None], ids=["wrong", "no database"])
async def test_without_the_stored_settings(
    desk: Desk, configurations: Collection[dict[str, Any]], stored: dict[str, Any] | None
) -> None:
    """All others are shown, and exit code 1 says that they are not all."""
    away = {} if stored else {"NEXUS_DATABASE__URI": "mongodb://127.0.0.1:1", "NEXUS_DATABASE__TIMEOUT_MS": "100"}
    if stored:
        configurations.insert_one({"environment": "staging", **stored})
    done = await desk.run("show", "--json", **away)
    assert done.returncode == 1
    assert done.stderr.startswith("nexus: shown without the stored settings: ")
    assert ("memory.truncate_chars" in done.stderr) == bool(stored)
    assert {item["key"]: item["value"] for item in json.loads(done.stdout)}["memory.truncate_chars"] == 500


@pytest.mark.parametrize(
    ("mode", "keys"),
    [
        ("pubsub", {}),
        ("streams", {}),
        ("pubsub", {"NEXUS_BUS__SIGNING__KEYS": f"{{k1: {SECRET}}}", "NEXUS_BUS__SIGNING__REQUIRED": "true"}),
    ],
    ids=["pubsub", "streams", "signed"],
)
async def test_reloading(
    desk: Desk, configurations: Collection[dict[str, Any]], mode: str, keys: dict[str, str]
) -> None:
    """Every service reads what is stored now; on pub/sub the command says how many did, and when none did."""
    on_bus = Desk("config", {**desk.environment, "NEXUS_BUS__MODE": mode, **keys})
    if mode == "pubsub":
        assert await on_bus.refused("reload") == f"nobody listens to config.changed: {NOBODY}"
    settings = load_settings(None, on_bus.environment)
    async with open_nexus(settings) as one, open_nexus(settings) as other:
        configurations.insert_one({"environment": "staging", "memory": {"truncate_chars": 400}})
        said = {
            "pubsub": "Sent: 2 services heard it.\n",
            "streams": "Sent: every service that runs reads it there; streams do not tell how many those are.\n",
        }
        assert await on_bus.said("reload") == said[mode]
        await becomes(one, 400)
        await becomes(other, 400)


async def test_a_bus_in_one_process(desk: Desk) -> None:
    """There is nobody to tell."""
    assert (
        await desk.refused("reload", NEXUS_BUS__MODE="memory")
        == "bus.mode is memory: there is no other process to tell"
    )
