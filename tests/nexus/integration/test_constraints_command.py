"""`nexus constraints` as operators use it: the program, on a MongoDB."""

import json
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from tests.nexus.support.desk import Desk, is_printable
from tests.nexus.support.stored_session import NASTY

pytestmark = [pytest.mark.once, pytest.mark.heavy]

OF_S1 = ("--owner", "ada", "--session", "s1")


class ConstraintsDesk(Desk):
    """The command, on names of the test's own."""

    async def listed(self, *words: str) -> list[dict[str, Any]]:
        """What `list --json` shows."""
        found: list[dict[str, Any]] = json.loads(await self.said("list", "--json", *words))
        return found

    async def texts(self, *words: str) -> list[str]:
        """The texts of what is listed."""
        return [each["text"] for each in await self.listed(*words)]


@pytest.fixture
def desk(mongo_uri: str, database_name: str) -> ConstraintsDesk:
    """The command, on a database of its own."""
    return ConstraintsDesk.on("constraints", mongo_uri, database_name)


@pytest.fixture
def kept(mongo_janitor: MongoClient[dict[str, Any]], database_name: str) -> Collection[dict[str, Any]]:
    """Where constraints are kept."""
    return mongo_janitor[database_name]["constraints"]


async def test_there_and_back(desk: ConstraintsDesk, kept: Collection[dict[str, Any]]) -> None:
    """Set, shown word for word in JSON, once however often it is set, and taken back."""
    text = f"  Réponds en français.\r\n{NASTY} "
    first = await desk.said("add", *OF_S1, text)
    (found,) = await desk.listed(*OF_S1)
    assert first == f"{found['id']} is in force; 1 constraint in all.\n"
    assert (found["text"], found["kind"], found["scope"], found["session_id"]) == (text, "must", "session", "s1")
    assert await desk.said("add", *OF_S1, text) == first
    added = json.loads(await desk.said("add", "--json", *OF_S1, "--scope", "owner", "--kind", "must_not", "Prices."))
    await desk.said("add", *OF_S1, "--scope", "run", "--run", "r1", "Be brief.")
    await desk.said("add", "--owner", "ada", "Of another session.")
    assert await desk.texts(*OF_S1) == ["Prices.", text]
    assert await desk.texts(*OF_S1, "--run", "r1") == ["Prices.", text, "Be brief."]
    assert await desk.texts("--owner", "ada") == ["Prices.", "Be brief.", "Of another session.", text]
    shown = await desk.said("list", *OF_S1)
    assert is_printable(shown)
    assert [line.split()[:2] for line in shown.splitlines()] == [
        ["ID", "KIND"],
        [added["id"], "must_not"],
        [found["id"], "must"],
    ]
    gone = await desk.said("retire", *OF_S1, "--yes", added["id"], found["id"], found["id"])
    assert is_printable(gone)
    assert gone.splitlines()[0] == f"{added['id']} is taken back: Prices."
    assert await desk.said("list", *OF_S1) == "No constraint of ada is in force.\n"
    assert [each["valid_to"] is None for each in await desk.listed(*OF_S1, "--all")] == [False, False]
    assert "UNTIL (UTC)" in await desk.said("list", *OF_S1, "--all")
    await desk.said("add", *OF_S1, text)
    assert await desk.texts(*OF_S1) == [text]
    assert kept.count_documents({}) == 4


async def test_what_is_refused(desk: ConstraintsDesk, kept: Collection[dict[str, Any]]) -> None:
    """One line says what is wrong and what is allowed, exit code 1, and nothing is kept."""
    unknown = "session-0123456789abcdef"
    for words, fault in (
        (("add", *OF_S1, " \n"), "TEXT: is blank; a text of 1 to 2000 characters is needed"),
        (("add", *OF_S1, "x" * 2_001), "TEXT: 2001 characters, at most 2000 are allowed"),
        (("add", *OF_S1, "\udcff"), "TEXT: UTF-8 text is needed"),
        (("add", *OF_S1, "a", "--kind", "no"), "--kind: 'no' is unknown; allowed: must, must_not, format, scope"),
        (("add", *OF_S1, "a", "--scope", "all"), "--scope: 'all' is unknown; allowed: owner, session, run"),
        (("add", *OF_S1, "a", "--scope", "run"), "--scope run: --run is needed"),
        (("add", *OF_S1, "a", "--run", "x" * 257), "--run: UTF-8 text of 1 to 256 characters is needed"),
        (("add", "--owner", "", "a"), "--owner: String should have at least 1 character"),
        (
            ("retire", *OF_S1, "--yes", "x\x1b"),
            "x\\x1b: no id of a constraint: its scope (owner, session, run), '-' and 16 of 0-9a-f",
        ),
        (("retire", *OF_S1, "--yes", unknown), f"{unknown}: is not in force; see nexus constraints list"),
        (("retire", *OF_S1, unknown), "nothing was done; --yes does it without asking"),
    ):
        result = await desk.run(*words)
        assert (result.returncode, result.stdout) == (1, ""), words
        assert result.stderr.splitlines()[-1].removeprefix("nexus: ").endswith(fault), words
    assert kept.count_documents({}) == 0


async def test_too_many(desk: ConstraintsDesk, kept: Collection[dict[str, Any]]) -> None:
    """More than their share of the smallest context is refused, also by the settings that are stored."""
    long = "word " * 399
    assert "is in force" in await desk.said("add", *OF_S1, long)
    refused = await desk.refused("add", *OF_S1, "b", NEXUS_LAYOUTS__THINKING__MAX_TOKENS="9000")
    assert refused.startswith("constraints of scope session: they would take 4")
    assert refused.endswith(" tokens, at most 300 are allowed; take some back first")
    database = kept.database
    database["configurations"].insert_one(
        {"environment": "development", "layouts": {"dialogue": {"max_tokens": 9_000}}}
    )
    assert await desk.refused("add", *OF_S1, "b") == refused
    database["configurations"].delete_many({})
    assert "is in force" in await desk.said("add", *OF_S1, "b")


async def test_no_mongodb() -> None:
    """It says what to do."""
    away = ConstraintsDesk.on("constraints", "mongodb://127.0.0.1:1", "x")
    fault = await away.refused("list", "--owner", "ada", NEXUS_DATABASE__TIMEOUT_MS="200")
    assert fault.startswith("MongoDB does not do what was asked")
