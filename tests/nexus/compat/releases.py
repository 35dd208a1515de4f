"""Earlier releases at work: their source out of the git history, run by this Python with today's packages.

`python -m tests.nexus.compat.releases` plays the scene on release 0.1.0 and real servers (NEXUS_TEST_REDIS_URL,
NEXUS_TEST_MONGO_URI), and writes what it left in MongoDB and what it answered then beside this file.
"""

import json
import os
import subprocess
import tarfile
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import anyio
from bson import json_util
from pymongo import MongoClient
from pymongo.database import Database

from tests.nexus.compat.scene import Scene, memory_in, questions
from tests.nexus.e2e.harness import Document, Environment, Requester, requesting, serving

# The last commit before the work on the next release began. It has no tag.
FIRST: Final = "4f931a551d8f50212499ee6749e5a3138295a699"
ROOT: Final = Path(__file__).resolve().parents[3]
KEPT: Final = Path(__file__).parent / "release_0_1_0"
_OPTIONS: Final = json_util.JSONOptions(json_mode=json_util.JSONMode.CANONICAL)


def is_there(commit: str) -> bool:
    """Whether the git history has the commit; a shallow clone, and a copy without git, do not."""
    asked = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    try:
        return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def unpacked(commit: str) -> Iterator[Environment]:
    """Variables by which `nexus serve` is the release of that commit."""
    packed = subprocess.run(["git", "archive", commit, "nexus"], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        # Else the working directory would come first, which has today's.
        yield {"PYTHONPATH": folder, "PYTHONSAFEPATH": "1"}


def stored(database: Database[Document]) -> Document:
    """All documents by collection, in the order of their `_id`s."""
    return {
        name: found
        for name in sorted(database.list_collection_names())
        if (found := [*database[name].find(sort=[("_id", 1)])])
    }


def restore(database: Database[Document]) -> None:
    """Fill a database with what release 0.1.0 left."""
    kept = json_util.loads((KEPT / "database.json").read_text(encoding="utf-8"), json_options=_OPTIONS)
    for name, documents in kept.items():
        database[name].insert_many(documents)


def answered() -> dict[str, list[str]]:
    """By request, what release 0.1.0 showed then of its owner."""
    kept: dict[str, list[str]] = json.loads((KEPT / "answers.json").read_text(encoding="utf-8"))
    return kept


@asynccontextmanager
async def asking(environment: Environment) -> AsyncIterator[Requester]:
    """A requester whose answers may be of an earlier release, which knew other fields than today's schema has."""
    async with requesting(environment) as requester:
        yield requester
        requester.collector.faults.clear()


async def ask_all(environment: Environment) -> dict[str, Any]:
    """By request, what the services of these variables answer to all questions, one after the other."""
    async with asking(environment) as requester:
        return {each["id"]: await requester.ask(each) for each in questions()}


async def record(environment: Environment, database: Database[Document]) -> None:
    """Play the scene and write what comes of it."""
    async with serving(environment), asking(environment) as requester:
        await Scene(requester, database).play()
    KEPT.mkdir(exist_ok=True)
    _write("database.json", json_util.dumps(stored(database), json_options=_OPTIONS, ensure_ascii=False, indent=1))
    async with serving(environment):
        answers = await ask_all(environment)
    shown = {name: memory_in(content) for name, content in answers.items()}
    _write("answers.json", json.dumps(shown, ensure_ascii=False, indent=1))


def _write(name: str, text: str) -> None:
    # Characters that no editor shows are escaped.
    shown = "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
    (KEPT / name).write_text(f"{shown}\n", encoding="utf-8")


def main() -> None:
    """Record release 0.1.0."""
    redis_url, mongo_uri = os.environ["NEXUS_TEST_REDIS_URL"], os.environ["NEXUS_TEST_MONGO_URI"]
    name = f"compat_{uuid.uuid4().hex[:12]}"
    with MongoClient[Document](mongo_uri) as client, unpacked(FIRST) as release:
        environment = {
            "NEXUS_BUS__URL": redis_url,
            "NEXUS_BUS__CHANNEL_PREFIX": f"{name}:",
            "NEXUS_DATABASE__URI": mongo_uri,
            "NEXUS_DATABASE__NAME": name,
            "NEXUS_SYSTEM__LOG_FORMAT": "json",
        }
        try:
            anyio.run(record, {**environment, **release}, client[name])
        finally:
            client.drop_database(name)


if __name__ == "__main__":
    main()
