"""`nexus erase` beside running services: of what they wrote nothing is left, and nothing else has changed (§13)."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import bson
import pytest
from anyio.to_thread import run_sync
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from redis.asyncio import Redis

from nexus.client import ContextClient, new_run
from nexus.core.erasure import hashed, owner_mark
from tests.nexus.e2e.harness import PATIENCE_S, Document, Environment, requesting, serving
from tests.nexus.e2e.test_client import client_of
from tests.nexus.support.desk import Desk
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.waiting import until

pytestmark = [pytest.mark.heavy, pytest.mark.once]

# Of whom everything is written, and whose things stay as they are.
OWNER, OTHER = "ada-$文|x", "bob.$ne-zq"
KINDS: Final = ("input", "answer", "result", "overview", "detail", "fact", "rule", "state", "letter")
RAW: Final = bson.codec_options.CodecOptions[RawBSONDocument](document_class=RawBSONDocument)


def canary(owner: str, session: str, kind: str) -> str:
    """A word that stands nowhere else."""
    return f"zq{hashed(owner)[:5]}{session}{kind}"


@pytest.fixture
def environment(environment: Environment) -> Environment:
    """With the bodies of dead letters."""
    return environment | {"NEXUS_BUS__DEAD_LETTER_BODIES": "true", "NEXUS_DATABASE__TIMEOUT_MS": "3000"}


async def talk(client: ContextClient, environment: Environment, owner: str, session: str) -> None:
    """Have something of every kind written of an owner in a session."""

    def word(kind: str) -> str:
        return canary(owner, session, kind)

    run = new_run(owner, word("input"), session_id=session, layout="agent")
    await client.build(run, timeout=PATIENCE_S)
    call = {"id": f"c{session}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    run.history.append(await client.record_answer(run, {"content": word("answer"), "tool_calls": [call]}))
    run.history.append(await client.record_tool_result(run, f"c{session}", word("result"), name="look"))
    await client.build(run, timeout=PATIENCE_S)
    for tool, arguments in {
        "update_working_memory": {"content": f"# Notes\n{word('overview')}"},
        "write_memory_detail": {"name": "note", "content": word("detail")},
        "pin_constraint": {"text": f"Be {word('rule')} as told.", "scope": "owner"},
        "remember": {"topic": session, "value": word("fact")},
    }.items():
        told = await client.call_tool(run, tool, arguments, timeout=PATIENCE_S)
        assert told.content["status"] == "success", told
    rule = {"text": f"Be {word('rule')}."}
    await client.send_constraints(owner, {"op": "add", "constraints": [rule]}, session_id=session)
    await client.send_state(owner, {"op": "set", "state": {"role": word("state")}}, session_id=session)
    await client.record_answer(run, f"Done: {word('answer')}", timeout=PATIENCE_S)
    wrong = {"op": word("letter")}
    async with requesting(environment) as requester:
        message: Document = {"run_id": "r", "owner_key": owner, "role": "SYSTEM"}
        message |= {"content": wrong, "timestamp": datetime.now(UTC).isoformat(), "metadata": {"session_id": session}}
        await requester.publish("session.state", json.dumps(message).encode())
    later = new_run(owner, f"And {word('input')}?", session_id=session, layout="agent")
    await client.build(later, timeout=PATIENCE_S)
    compaction = {"target": "all", "strategy": "archive", "keep_recent": 0}
    told = await client.call_tool(later, "compact_history", compaction, timeout=PATIENCE_S)
    assert told.content["status"] == "success", told
    last = new_run(owner, f"Say {word('input')}", session_id=session)
    await client.build(last, timeout=PATIENCE_S)
    for each in (later, last):
        await client.record_answer(each, "Yes.", timeout=PATIENCE_S)


class Erasing:
    """The command beside the service, and what the servers hold."""

    def __init__(self, environment: Environment, redis: Redis, janitor: MongoClient[Document]) -> None:
        self.desk = Desk("erase", environment)
        self.database = janitor[environment["NEXUS_DATABASE__NAME"]]
        self._redis: Any = redis
        self._prefix = environment["NEXUS_BUS__CHANNEL_PREFIX"]

    async def where(self, text: str) -> dict[str, int]:
        """Where the text is, as the command says."""
        done = await self.desk.run("--verify", text, "--json")
        found: dict[str, int] = json.loads(done.stdout)["text_found"]
        assert done.returncode == bool(found), done
        return found

    async def erase(self, *words: str) -> Document:
        """What an erasure says, which is complete."""
        done = await self.desk.run("--owner", OWNER, *words, "--yes", "--json")
        assert (done.returncode, done.stderr) == (0, ""), done
        told: Document = json.loads(done.stdout)
        assert {kind: count for kind, count in told["left"].items() if count} == {}, told
        return told

    async def settled(self) -> None:
        """Wait until services have written and indexed all that was said."""
        found = set[str]()

        async def is_still() -> bool:
            due = self.database.messages.count_documents({"recall.work": {"$exists": True}})
            due += self.database.turns.count_documents({"work": "close"})
            seen, now = {*found}, {*map(str, await self.all_of(OWNER)), *map(str, await self.all_of(OTHER))}
            found.clear()
            found.update(now)
            if due or seen != now:
                await anyio.sleep(1)
                return False
            return True

        await until(is_still)

    async def all_of(self, owner: str) -> list[Any]:
        """Every document and key in which the owner is named, byte for byte."""
        names = [owner.encode(), owner_mark(owner).encode(), owner.replace("|", "%7C").encode()]

        def documents() -> list[Any]:
            return [
                (name, raw)
                for name in sorted(self.database.list_collection_names())
                if name not in {"replicas", "retention", "tombstones"}
                for raw in map(_raw, self.database.get_collection(name, RAW).find().sort("_id"))
                if _names(raw, names)
            ]

        found = await run_sync(documents)
        async for key in self._redis.scan_iter(f"{self._prefix}*"):
            kind = await self._redis.type(key)
            if kind == b"stream":
                entries = await self._redis.xrange(key)
                found += [(key, *each) for each in entries if _names(b"".join(each[1].values()), names)]
            elif kind == b"hash":
                held = await self._redis.hgetall(key)
                if _names(b"".join([key, *held.values()]), names):
                    found.append((key, sorted(held.items())))
            elif kind == b"string" and _names(key, names):
                found.append((key, await self._redis.get(key)))
        return sorted(map(repr, found))


def changed(now: list[str], before: list[str]) -> list[str]:
    """What is another than before."""
    return sorted({*now} ^ {*before})


def _raw(document: Any) -> bytes:
    return bytes(document.raw)


def _names(raw: bytes, names: Iterable[bytes]) -> bool:
    return any(name in raw for name in names)


@asynccontextmanager
async def at_work(
    environment: Environment, janitor: MongoClient[Document]
) -> AsyncIterator[tuple[Erasing, ContextClient]]:
    """A service, a client and the command."""
    async with (
        serving(environment),
        client_of(environment) as client,
        Redis.from_url(environment["NEXUS_BUS__URL"]) as redis,
    ):
        yield Erasing(environment, redis, janitor), client


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.usefixtures("mode")
async def test_a_whole_owner(environment: Environment, mongo_janitor: MongoClient[Document], driver: str) -> None:
    """Every canary is found in many places before, and nowhere afterwards; of another owner not a byte has changed.

    The owner begins anew.
    """
    environment |= {"NEXUS_DATABASE__DRIVER": driver}
    async with at_work(environment, mongo_janitor) as (erasing, client):
        for owner in (OWNER, OTHER):
            profile = {"friends_profile": canary(owner, "s", "profile")}
            erasing.database.identities.insert_one({"public_key": owner, "prompt_overrides": profile})
            for session in ("s", "t"):
                await talk(client, environment, owner, session)
        await erasing.settled()
        words = {kind: canary(OWNER, "s", kind) for kind in (*KINDS, "profile")}
        before = {kind: await erasing.where(word) for kind, word in words.items()}
        assert before["input"].keys() >= {
            *("messages", "turns", "context_pieces", "memory_details", "recall_postings", "nexus:request"),
            "compactions",
        }
        assert before["answer"].keys() >= {"messages", "memory_details", "context_pieces", "recall_postings"}
        assert before["result"].keys() >= {"messages", "memory_details", "recall_postings"}
        assert {"working_memory"} <= before["overview"].keys()
        assert {"memory_details"} <= before["detail"].keys()
        assert {"facts"} <= before["fact"].keys()
        assert {"constraints"} <= before["rule"].keys()
        assert {"session_states"} <= before["state"].keys()
        assert {"nexus:dead-letters"} <= before["letter"].keys()
        assert {"identities"} <= before["profile"].keys()
        others = await erasing.all_of(OTHER)
        previewed = json.loads(await erasing.desk.said("--owner", OWNER, "--dry-run", "--json"))["found"]
        told = await erasing.erase()
        assert {kind for kind, count in previewed.items() if count} <= {
            kind for kind, n in told["removed"].items() if n
        }
        assert told["found"] == previewed
        assert {kind: await erasing.where(word) for kind, word in words.items()} == {each: {} for each in words}
        assert await erasing.all_of(OWNER) == []
        assert changed(await erasing.all_of(OTHER), others) == []
        (stone,) = erasing.database.tombstones.find({}, {"_id": 0})
        assert (stone["owner"], stone["session"]) == (hashed(OWNER), "")
        # Another client: this one would name what it had said, and the context wait for that.
        async with client_of(environment) as other:
            content = await other.build(new_run(OWNER, "Good morning"), timeout=PATIENCE_S)
        assert content["degraded"] == []
        assert "zq" not in str(content["messages"])
        assert (await erasing.where("Good morning")).keys() >= {"messages"}


@pytest.mark.usefixtures("mode")
async def test_a_session(environment: Environment, mongo_janitor: MongoClient[Document]) -> None:
    """Of the session nothing is left; of the other one what is no context stays, and is shown."""
    async with at_work(environment, mongo_janitor) as (erasing, client):
        for session in ("s", "t"):
            await talk(client, environment, OWNER, session)
        await talk(client, environment, OTHER, "s")
        await erasing.settled()
        others = await erasing.all_of(OTHER)
        await erasing.erase("--session", "s")
        assert {kind: await erasing.where(canary(OWNER, "s", kind)) for kind in KINDS} == {each: {} for each in KINDS}
        left = {kind: await erasing.where(canary(OWNER, "t", kind)) for kind in KINDS}
        assert left["input"].keys() >= {"messages", "turns", "compactions", "recall_postings"}
        assert not left["input"].keys() & {"context_pieces", "context_records", "nexus:request", "nexus:kept"}
        assert [{*left[kind]} & {"working_memory"} for kind in ("overview",)] == [{"working_memory"}]
        assert {*left["detail"]} >= {"memory_details"}
        assert ({*left["fact"]} >= {"facts"}, {*left["state"]} >= {"session_states"}) == (True, True)
        assert {*left["rule"]} >= {"constraints"}
        assert {*left["letter"]} >= {"nexus:dead-letters"}
        assert changed(await erasing.all_of(OTHER), others) == []
        again = new_run(OWNER, "And now?", session_id="t", layout="agent")
        content = str((await client.build(again, timeout=PATIENCE_S))["messages"])
        assert canary(OWNER, "t", "overview") in content
        assert f"zq{hashed(OWNER)[:5]}s" not in content


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("mode", ["streams"], indirect=True)
async def test_before_a_time(environment: Environment, mongo_janitor: MongoClient[Document]) -> None:
    """What was said since stays, of a session that began since with all that is made of it."""
    async with at_work(environment, mongo_janitor) as (erasing, client):
        await talk(client, environment, OWNER, "s")
        await erasing.settled()
        cut = datetime.now(UTC).isoformat()
        await talk(client, environment, OWNER, "t")
        said = canary(OWNER, "new", "input")
        run = new_run(OWNER, said, session_id="s", layout="agent")
        await client.build(run, timeout=PATIENCE_S)
        await client.record_answer(run, "Yes.", timeout=PATIENCE_S)
        await erasing.settled()
        await erasing.erase("--before", cut)
        assert {kind: await erasing.where(canary(OWNER, "s", kind)) for kind in KINDS} == {each: {} for each in KINDS}
        left = {kind: await erasing.where(canary(OWNER, "t", kind)) for kind in KINDS}
        assert left["input"].keys() >= {"messages", "turns", "compactions", "recall_postings"}
        assert {*left["overview"]} >= {"working_memory"}
        assert {*left["rule"]} >= {"constraints"}
        assert (await erasing.where(said)).keys() >= {"messages", "recall_postings"}
        hits = (await client.search_memory(OWNER, said, timeout=PATIENCE_S))["hits"]
        assert said in hits[0]["text"]


async def test_mongodb_is_away(environment: Environment, redis_url: str) -> None:
    """It says what to do, and Redis is as it was; once MongoDB is back the same command does all of it."""
    environment |= {"NEXUS_DATABASE__TIMEOUT_MS": "500", "NEXUS_DATABASE__SERVER_SELECTION_TIMEOUT_MS": "500"}
    away = Desk("erase", {**environment, "NEXUS_DATABASE__URI": "mongodb://127.0.0.1:1"})
    prefix = environment["NEXUS_BUS__CHANNEL_PREFIX"]
    async with Redis.from_url(redis_url) as redis:
        key = f"{prefix}nexus:kept:0:{owner_mark('ada')}"
        await redis.set(key, "[]", px=60_000)
        assert "MongoDB does not do what was asked" in await away.refused("--owner", "ada", "--yes")
        assert await redis.exists(key)
        told = await Desk("erase", environment).said("--owner", "ada", "--yes")
        assert "kept beginnings of runs" in told
        assert not await redis.exists(key)
