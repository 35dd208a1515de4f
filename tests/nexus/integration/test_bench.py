"""`nexus bench` as a user calls it, on a small scale. Figures mean nothing here; that it leaves nothing behind does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from pymongo import MongoClient

NOBODY = "127.0.0.1:1"


def bench(*words: str) -> "subprocess.CompletedProcess[str]":
    """The command's end."""
    command = [sys.executable, "-m", "nexus", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env={**os.environ})


@pytest.mark.heavy
@pytest.mark.once
def test_a_build_beside_the_floor(redis_url: str, mongo_uri: str, tmp_path: Path) -> None:
    """Every responder answers every request, on databases and topics that are dropped."""
    output = tmp_path / "bench.json"
    where = ("--redis-url", redis_url, "--mongo-uri", mongo_uri, "--output", str(output))
    ended = bench("build", "streams", "--rounds", "1", "--scale", "0.01", "--json", *where)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told == json.loads(output.read_text())
    assert {cell["responder"] for cell in told["cells"]} == {"wire", "floor", "cold", "warm", "pubsub", "streams"}
    for cell in told["cells"]:
        for played in cell["rounds"]:
            assert (played["errors"], played["degraded"], played["unrecorded"]) == (0, 0, 0), cell
            assert played["answers"] > 0
    assert all(measure["value"] > 0 for measure in told["measures"])
    with MongoClient[dict[str, object]](mongo_uri) as mongo, redis.Redis.from_url(redis_url) as bus:
        assert [name for name in mongo.list_database_names() if name.startswith(told["run"])] == []
        assert [*bus.scan_iter(f"{told['run']}*")] == []


@pytest.mark.once
def test_servers_that_are_not_there(redis_url: str) -> None:
    """One line says which, and where its address is taken from; never the address, which may hold a password."""
    for words, named in [
        (("--redis-url", f"redis://:secret@{NOBODY}", "--mongo-uri", f"mongodb://{NOBODY}"), "NEXUS_TEST_REDIS_URL"),
        (("--redis-url", redis_url, "--mongo-uri", f"mongodb://u:secret@{NOBODY}"), "NEXUS_TEST_MONGO_URI"),
        (("everything",), "there is no group 'everything'"),
    ]:
        ended = bench(*words)
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
        assert named in ended.stderr
        assert "secret" not in ended.stderr
