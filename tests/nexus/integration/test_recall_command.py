"""`nexus recall` as operators use it: the program, on a MongoDB, with a service and without."""

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from anyio.to_thread import run_sync
from pydantic import SecretStr
from pymongo import MongoClient

from nexus.adapters.mongo import open_mongo
from nexus.bootstrap import open_nexus
from nexus.config import BusSettings, DatabaseSettings, Settings, SystemSettings
from nexus.core.models import utc_now
from nexus.core.recall import WORDS
from tests.nexus.support.desk import Desk, is_printable
from tests.nexus.support.rows import row
from tests.nexus.support.terminal import on_terminal

pytestmark = [pytest.mark.once, pytest.mark.heavy]

OF_ADA: Final = ("--owner", "ada")
TEXTS: Final = ("We sail to Porto on Monday.", "他汀类药物的副作用是什么？", "The cat\x1b[2J sleeps.", "Nothing of it.")
STATES: Final = ("indexed", "waiting", "failed", "unmarked")


class RecallDesk(Desk):
    """The command, on a database and a bus of the test's own."""

    def plant(self, *texts: str, first: int = 0, **changes: Any) -> None:
        """Have another program write these messages of ada, in session s1."""
        rows = [row(number, owner_key="ada", session_id="s1", content=text) for number, text in enumerate(texts, first)]
        with MongoClient[dict[str, Any]](self.environment["NEXUS_DATABASE__URI"]) as client:
            client[self.environment["NEXUS_DATABASE__NAME"]]["messages"].insert_many([each | changes for each in rows])

    @asynccontextmanager
    async def service(self) -> AsyncIterator[None]:
        """A service on the same servers."""
        bus = {name: self.environment[f"NEXUS_BUS__{name.upper()}"] for name in ("url", "channel_prefix")}
        uri, name = self.environment["NEXUS_DATABASE__URI"], self.environment["NEXUS_DATABASE__NAME"]
        settings = Settings(
            bus=BusSettings.model_validate(bus),
            database=DatabaseSettings(uri=SecretStr(uri), name=name, timeout_ms=10_000),
            system=SystemSettings(drain_seconds=0),
        )
        async with open_nexus(settings):
            yield

    async def states(self, owner: str = "ada") -> list[int]:
        """How many of an owner's messages are in each of `STATES`."""
        found = json.loads(await self.said("status", "--owner", owner, "--json"))
        return [found[name] for name in STATES]

    async def found(self, question: str, *words: str, owner: str = "ada") -> list[str]:
        """The ids of the messages that a search finds."""
        said = await self.said("search", question, "--owner", owner, "--json", *words)
        return [hit["id"] for hit in json.loads(said)["hits"]]


@pytest.fixture(params=["named", "packaged"])
def desk(request: pytest.FixtureRequest, channel_prefix: str, database_name: str) -> RecallDesk:
    """The command, on the servers of this run, and on those that come as packages."""
    if request.param == "named":
        url, uri = request.getfixturevalue("redis_url"), request.getfixturevalue("mongo_uri")
    else:
        pair = request.getfixturevalue("embedded_pair")
        url, uri = pair.redis_url, pair.mongo_uri
    bus = {"NEXUS_BUS__URL": url, "NEXUS_BUS__CHANNEL_PREFIX": channel_prefix}
    return RecallDesk.on("recall", uri, database_name, **bus)


async def test_from_other_writers_to_hits(desk: RecallDesk) -> None:
    """What another program wrote is found once it is marked and a service has indexed it; again, nothing changes."""
    desk.plant(*TEXTS)
    assert (await desk.said("status", *OF_ADA)).splitlines() == [
        "finds by    words alone",
        "indexed     0",
        "waiting     0",
        "failed      0",
        "unmarked    4  of other writers or an older release: nexus recall index --owner ada",
        "to embed    0",
    ]
    assert (await desk.said("search", "sailing to Porto", *OF_ADA)).splitlines() == [
        "0 messages of ada found by words alone; 0 considered, formula 1.",
        "4 messages not indexed: nexus recall status --owner ada",
    ]
    async with desk.service():
        assert await desk.said("index", *OF_ADA) == "4 messages marked; 4 of ada are indexed.\n"
        assert await desk.said("index", *OF_ADA) == "0 messages marked; 4 of ada are indexed.\n"
        assert await desk.said("index", *OF_ADA, "--again") == "4 messages marked; 4 of ada are indexed.\n"
    lines = (await desk.said("search", "副作用", *OF_ADA)).splitlines()
    assert lines[:2] == [
        "TIME (UTC)           SESSION  WHO    TEXT",
        "2024-01-01 00:01:00  s1       human  他汀类药物的副作用是什么？",
    ]
    assert await desk.found("Who sails to Porto?", "--limit", "1") == ["m0"]
    assert await desk.found("Porto", "--session", "s1", "--limit", "1") == ["m0"]


async def test_an_explanation(desk: RecallDesk) -> None:
    """The parts of each score are there, and their sum is the score; what a terminal might obey is escaped."""
    desk.plant(*TEXTS[:3])
    desk.plant("The cat\x1b[2J sails in January.", first=3, role="assistant")
    async with desk.service():
        await desk.said("index", *OF_ADA)
    lines = await desk.said("search", "Which cat sails in January?", *OF_ADA, "--explain")
    assert is_printable(lines)
    first = lines.split("\n\n")[0].splitlines()
    assert first[:2] == [
        "1           2024-01-01 00:03:00 UTC, session s1, assistant",
        "text        The cat\\x1b[2J sails in January.",
    ]
    assert [line.split()[0] for line in first] == ["1", "text", "score", "words", "session", "date", "factor"]
    found = json.loads(await desk.said("search", "Which cat sails in January?", *OF_ADA, "--json"))
    assert (found["formula"], found["generation"], found["considered"] >= len(found["hits"])) == (1, "", True)
    for hit in found["hits"]:
        score = hit["score"]
        parts = sum(score["terms"].values()) + score["session"] + score["date"] + score["similarity"]
        assert score["total"] == pytest.approx(parts)
    assert found["hits"][0]["score"]["date"] == 4
    assert found["hits"][0]["around"] == ["m2", "m3"]


async def test_nothing_there(desk: RecallDesk) -> None:
    """An owner without messages, and a session that there is none of, are errors, which name the others; none fails."""
    desk.plant(*TEXTS)
    assert await desk.states("eve") == [0, 0, 0, 0]
    for words in (("index",), ("search", "Porto"), ("search", "Porto", "--explain", "--json")):
        assert await desk.refused(*words, "--owner", "eve") == "there are no messages of eve; there are of: ada"
    assert await desk.refused("search", "Porto", *OF_ADA, "--session", "s2") == (
        "there is no session s2 of ada; there are: s1"
    )
    assert (await desk.states(), json.loads(await desk.said("status", "--json"))["unmarked"]) == ([0, 0, 0, 4], 4)


async def test_all_owners(desk: RecallDesk) -> None:
    """Those of each are marked, once; a fault names some of them."""
    names = [f"owner {number:02} 文" for number in range(12)]
    for number, name in enumerate(names):
        desk.plant(*TEXTS, first=4 * number, owner_key=name)
    fault = await desk.refused("index", *OF_ADA)
    assert fault == f"there are no messages of ada; there are of: {', '.join(names[:10])} and more"
    for words in ((), ("--all-owners", *OF_ADA)):
        assert await desk.refused("index", *words) == "--owner or --all-owners: one of them is needed"
    for count in (48, 0):
        assert await desk.said("index", "--all-owners") == (
            f"{count} messages of all owners marked; a running service indexes what is marked (nexus recall status)\n"
        )
    assert await desk.states(names[-1]) == [0, 4, 0, 0]


async def test_no_service(desk: RecallDesk) -> None:
    """That is an error, which says how it is known; a service that comes later indexes what is marked."""
    desk.plant(*TEXTS)
    fault = await desk.refused("index", *OF_ADA)
    assert fault.startswith("no service answers on the bus (nobody listens to context.build.request at ")
    assert fault.endswith(
        "4 messages of ada marked; a running service indexes what is marked (nexus recall status --owner ada)"
    )
    assert await desk.states() == [0, 4, 0, 0]
    assert await desk.said("index", *OF_ADA, "--no-wait") == (
        "0 messages of ada marked; a running service indexes what is marked (nexus recall status --owner ada)\n"
    )
    async with desk.service():
        assert await desk.said("index", *OF_ADA) == "0 messages marked; 4 of ada are indexed.\n"


async def test_ctrl_c(desk: RecallDesk) -> None:
    """What is marked stays so, and the command says it."""
    desk.plant(*TEXTS)
    environment = {**os.environ, "TERM": "xterm", **desk.environment, "NEXUS_BUS__MODE": "memory"}

    def talk() -> int:
        with on_terminal(["-m", "nexus", "recall", "index", *OF_ADA], environment) as conversation:
            conversation.expect("Indexing")
            conversation.process.send_signal(signal.SIGINT)
            conversation.expect("nexus: 4 messages of ada marked; a running service indexes")
            return conversation.ended()

    assert await run_sync(talk) == 130
    assert await desk.states() == [0, 4, 0, 0]


async def test_failures(desk: RecallDesk) -> None:
    """Each with its reason, and what to do; `--again` tries them once more."""
    desk.plant(*TEXTS)
    uri, name = desk.environment["NEXUS_DATABASE__URI"], desk.environment["NEXUS_DATABASE__NAME"]
    async with open_mongo(uri, name, timeout_ms=10_000) as store:
        await store.recall.mark("ada", limit=10)
        rows = await store.recall.claim(WORDS, utc_now(), utc_now(), limit=10)
        await store.recall.fail(rows[1], "too odd\x1b[2J")
    said = await desk.said("status", *OF_ADA)
    assert "failed      1  mend the reason below, then: nexus recall index --owner ada --again\n" in said
    assert said.endswith("\nFailed\n\n  MESSAGE  REASON\n  m1       too odd\\x1b[2J\n")
    async with desk.service():
        done = await desk.run("index", *OF_ADA)
        assert (done.returncode, done.stdout) == (1, "0 messages marked; 3 of ada are indexed.\n")
        assert done.stderr == "nexus: 1 message failed: nexus recall status --owner ada\n"
        assert await desk.said("index", *OF_ADA, "--again") == "4 messages marked; 4 of ada are indexed.\n"


async def test_much(desk: RecallDesk) -> None:
    """Pages of messages, odd ones among them, are all indexed; of a long one the text around the word is shown."""
    desk.plant(*["The train left."] * 400, "Train 1234 left.", *["The train left."] * 99)
    desk.plant("word " * 1_000 + "zanzibar" + " tail" * 10_000, first=500, session_id="séance 😀")
    desk.plant("", "\ufeff", "👩‍👩‍👧‍👦", first=501)
    async with desk.service():
        said = await desk.said("index", *OF_ADA)
        assert said.startswith("504 messages marked; ")
    indexed, waiting, failed, unmarked = await desk.states()
    assert (waiting, failed, unmarked) == (0, 0, 0)
    assert indexed >= 501
    (line,) = [line for line in (await desk.said("search", "zanzibar", *OF_ADA)).splitlines() if "zanzibar" in line]
    assert "séance 😀" in line
    assert len(line) < 400
    assert await desk.found("train 1234", "--limit", "1") == ["m400"]


async def test_a_session_that_is_moved(desk: RecallDesk, tmp_path: Path) -> None:
    """What is imported is found under its new owner by itself; importing it twice finds it once."""
    desk.plant(*TEXTS)
    session, folder = Desk("session", desk.environment), str(tmp_path / "export")
    async with desk.service():
        await desk.said("index", *OF_ADA)
        await session.said("export", *OF_ADA, "--session", "s1", folder)
        for _ in range(2):
            await session.said("import", "--owner", "bob", "--session", "copy", folder)
        assert await desk.said("index", "--owner", "bob") == "0 messages marked; 4 of bob are indexed.\n"
    assert await desk.found("sailing to Porto", "--limit", "1", owner="bob") == ["m0"]
    assert len(await desk.found("sailing to Porto", owner="bob")) == len({*await desk.found("sailing to Porto")})
    assert await desk.states() == [4, 0, 0, 0]
