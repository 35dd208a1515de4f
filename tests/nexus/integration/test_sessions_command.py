"""`nexus sessions`, and what commands about one session say where there is none of that name."""

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo import MongoClient

from tests.nexus.support.desk import Desk
from tests.nexus.support.rows import row

OF_S1: Final = ("--owner", "ada", "--session", "s1")
Janitor = MongoClient[dict[str, Any]]


@pytest.fixture
def desk(mongo_uri: str, database_name: str) -> Desk:
    """The command, on the test's own names."""
    return Desk.on("sessions", mongo_uri, database_name)


async def test_a_list(desk: Desk, mongo_janitor: Janitor, database_name: str) -> None:
    """The session with the latest message first, with their number and times; what a terminal might obey escaped."""
    messages = mongo_janitor[database_name]["messages"]
    rows = [
        row(number, owner_key="ada", session_id=name) for number, name in enumerate(["s1", "s1", "早餐", "bad\x1b[2J"])
    ]
    messages.insert_many([*rows, {"owner_key": "ada", "role": "AI", "content": "", "timestamp": "yesterday"}])
    assert (await desk.said("list", "--owner", "ada")).splitlines() == [
        "MESSAGES  FIRST (UTC)          LAST (UTC)           SESSION",
        "1         2024-01-01 00:03:00  2024-01-01 00:03:00  bad\\x1b[2J",
        "1         2024-01-01 00:02:00  2024-01-01 00:02:00  早餐",
        "2         2024-01-01 00:00:00  2024-01-01 00:01:00  s1",
        "1         -                    -                    default",
        "4 sessions of ada.",
    ]
    found = json.loads(await desk.said("list", "--owner", "ada", "--limit", "3", "--json"))
    assert found["more"] is True
    assert found["sessions"][2] == {
        "session_id": "s1",
        "messages": 2,
        "more_messages": False,
        "first": "2024-01-01T00:00:00+00:00",
        "last": "2024-01-01T00:01:00+00:00",
    }
    assert (await desk.said("list", "--owner", "ada", "--limit", "1")).endswith(
        "of ada, the latest; --limit shows more.\n"
    )
    assert await desk.said("list", "--owner", "eve") == "There are no sessions of eve.\n"


COMMANDS: Final = [
    ("turns", "list"),
    ("turns", "list", "--json"),
    ("turns", "show", "1"),
    ("memory", "show"),
    ("memory", "show", "flights"),
    ("memory", "history"),
    ("memory", "diff"),
    ("memory", "check", "--json"),
    ("state", "show"),
    ("session", "export", "nowhere"),
]


@pytest.mark.parametrize(("command", "words"), [(command, words) for command, *words in COMMANDS], ids=str)
async def test_a_session_that_is_not_there(
    desk: Desk, mongo_janitor: Janitor, tmp_path: Path, command: str, words: list[str]
) -> None:
    """That is an error, which names at most ten that are there; nothing is made."""
    desk = Desk(command, desk.environment)
    database = mongo_janitor[desk.environment["NEXUS_DATABASE__NAME"]]
    words = [str(tmp_path / word) if word == "nowhere" else word for word in words]
    assert await desk.refused(*words, *OF_S1) == "there is no session s1 of ada; no other of ada has messages"
    database["messages"].insert_many([row(number, owner_key="ada", session_id=f"t{number}") for number in range(12)])
    names = ", ".join(f"t{number}" for number in range(11, 1, -1))
    assert await desk.refused(*words, *OF_S1) == (
        f"there is no session s1 of ada; there are: {names} and more (nexus sessions list)"
    )
    assert os.listdir(tmp_path) == []  # noqa: PTH208  # an async function may not iterate
    assert database.list_collection_names() == ["messages"]
