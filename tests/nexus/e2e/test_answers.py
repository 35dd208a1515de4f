"""What an orchestrator that speaks redis-py alone gets from `nexus serve` on real servers (contract §1)."""

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import REQUEST, RESPONSE, a_request, requesting, serving, stored_runs

Environment = dict[str, str]
Database = MongoClient[dict[str, Any]]

FIVE = ["[CAPABILITIES]", "[SHARED_MEMORY count=", "[FRIENDS_INFO]", "[THIS_MOMENT]"]


async def test_a_good_request_gets_the_five_messages(environment: Environment, channel_prefix: str) -> None:
    """A success holds the layout, five messages, tools, manifest and an empty list of what is missing."""
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        request = a_request("What's the capital of France?")
        content = await requester.ask(request)
    topic, answer = requester.answers[request["id"]][0]
    assert topic == RESPONSE
    assert (answer["role"], answer["run_id"], answer["owner_key"]) == ("SYSTEM", request["run_id"], "ada")
    assert content["status"] == "success"
    assert content["layout"] == "dialogue"
    assert [message["role"] for message in content["messages"]] == ["system", *["user"] * 4]
    assert content["messages"][0]["content"].startswith("# You are Nexus")
    for message, start in zip(content["messages"][1:], FIVE, strict=True):
        assert message["content"].startswith(start)
    assert content["messages"][4]["content"] == (
        "[THIS_MOMENT]\n<human_input>\nWhat's the capital of France?\n</human_input>"
    )
    assert content["tools"] == []
    assert content["degraded"] == []
    assert set(content["context"]) == {"layout", "blocks", "history", "prefix", "notes", "timings_ms"}


def _without(request: dict[str, Any], *path: str) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(request))
    target = copy
    for key in path[:-1]:
        target = target[key]
    del target[path[-1]]
    return copy


def _with_run(**changes: Any) -> dict[str, Any]:
    request = a_request()
    request["content"] |= changes
    return request


def _deep(levels: int) -> bytes:
    return json.dumps(_with_run(tools="deep")).replace('"deep"', "[" * levels + "]" * levels).encode()


@pytest.mark.parametrize(
    ("make", "code", "where"),
    [
        pytest.param(lambda: _without(a_request(), "role"), "INVALID_REQUEST", "role: ", id="no message"),
        pytest.param(lambda: _with_run(history=[]), "INVALID_REQUEST", "run.history: ", id="no history"),
        pytest.param(lambda: a_request("  \n "), "EMPTY_INPUT", "run.history[0].content: ", id="empty input"),
        pytest.param(
            lambda: a_request(run_metadata={"layout": "monologue"}),
            "UNKNOWN_LAYOUT",
            "run.metadata.layout: 'monologue' is unknown; allowed: dialogue",
            id="unknown layout",
        ),
        pytest.param(lambda: _with_run(owner_key="eve"), "OWNER_MISMATCH", "run.owner_key: ", id="owner mismatch"),
        pytest.param(lambda: a_request("x" * (2 << 20)), "PAYLOAD_TOO_LARGE", "at most 1048576", id="2 MiB"),
        pytest.param(lambda: _deep(10_000), "INVALID_REQUEST", "nested deeper than 64", id="depth 10,000"),
        pytest.param(lambda: json.dumps(a_request()).encode()[:-10], "INVALID_REQUEST", "not JSON", id="cut off"),
        pytest.param(
            lambda: a_request(metadata={"reply_to": "a b/../c"}), "INVALID_REQUEST", "metadata.reply_to: ", id="reply"
        ),
        pytest.param(
            lambda: a_request(metadata={"deadline_ms": 5}), "INVALID_REQUEST", "metadata.deadline_ms: ", id="range"
        ),
    ],
)
async def test_a_bad_request_gets_its_error(
    environment: Environment, channel_prefix: str, make: Callable[[], dict[str, Any] | bytes], code: str, where: str
) -> None:
    """Each kind of bad request is answered once, with its code and the place, and the next good one as ever."""
    async with serving(environment) as service, requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        request = make()
        payload = request if isinstance(request, bytes) else json.dumps(request).encode()
        await requester.publish(REQUEST, payload)
        assert (await requester.ask(a_request()))["status"] == "success"
        request_id = payload.split(b'"id": "', 1)[1].split(b'"', 1)[0].decode()
        await requester.answered(request_id)
    (answer,) = [answer for _, answer in requester.answers[request_id]]
    content = answer["content"]
    assert content["status"] == "error"
    assert content["error"]["code"] == code
    assert where in content["error"]["message"]
    assert (content["messages"], content["tools"]) == ([], [])
    assert service.errors == []


async def test_what_nobody_can_be_told_about_becomes_a_dead_letter(
    environment: Environment, channel_prefix: str
) -> None:
    """Bytes that are no JSON object are kept as a dead letter without their content, and nothing stops."""
    async with serving(environment) as service, requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        for payload in (b"not json: my secret", b"[1, 2]", b"{}", b"\xff\xfe", b""):
            await requester.publish(REQUEST, payload)
        assert (await requester.ask(a_request()))["status"] == "success"
        # An answer may be there before the letter of something that was heard earlier; not before the end, though.
        assert await service.stop() == 0
        letters: Any = await requester.redis.xrange(f"{channel_prefix}nexus:dead-letters")
    assert len(letters) == 5
    assert all(set(fields) == {b"topic", b"reason", b"deliveries", b"sha256", b"size"} for _, fields in letters)
    assert "my secret" not in json.dumps(service.log)
    assert len(requester.answers) == 1


async def test_an_answer_goes_where_it_is_wanted(environment: Environment, channel_prefix: str) -> None:
    """With `reply_to` the answer goes to that topic and not to the common one."""
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        request = a_request(metadata={"reply_to": "me-1.x_Y"})
        await requester.ask(request)
    assert [topic for topic, _ in requester.answers[request["id"]]] == [f"{RESPONSE}.me-1.x_Y"]


async def test_a_known_id_with_another_payload_is_refused(environment: Environment, channel_prefix: str) -> None:
    """The second payload under one id is answered ID_CONFLICT and never with the first one's context."""
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        first = a_request("my question", owner="ada")
        await requester.ask(first)
        other = a_request("another's", owner="eve", id=first["id"], metadata={"reply_to": "eve"})
        await requester.publish(REQUEST, other)
        await requester.ask(a_request())
        while len(requester.answers[first["id"]]) < 2:
            await requester.publish(REQUEST, other)
            await requester.ask(a_request())
    topic, conflict = requester.answers[first["id"]][1]
    assert topic == f"{RESPONSE}.eve"
    assert conflict["content"]["error"]["code"] == "ID_CONFLICT"
    assert "my question" not in json.dumps(conflict)


@pytest.mark.once
async def test_it_is_up_after_ten_thousand_corrupt_payloads(environment: Environment, channel_prefix: str) -> None:
    """Random damage to valid requests, 10,000 times: the service goes on answering."""
    chance = random.Random(20_251_210)  # noqa: S311  # damage that can be repeated
    whole = json.dumps(a_request("Guten Morgen, 世界")).encode()
    async with serving(environment) as service, requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        for _ in range(10_000):
            await requester.publish(REQUEST, _damaged(whole, chance))
        # At first there are too many of those that can be read.
        await requester.ask_until(a_request, lambda content: content["status"] == "success")
        assert service.process.returncode is None
        assert await service.stop() == 0
    assert service.errors == []


def _damaged(payload: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(payload)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(damaged) or 1)
        match chance.randrange(3):
            case 0:
                damaged[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del damaged[place : place + chance.randint(1, 60)]
            case _:
                damaged[place:place] = chance.randbytes(chance.randint(1, 8))
    return bytes(damaged)


async def test_thirty_runs_of_eleven_rows_give_twenty_messages(
    environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """30 runs of 11 rows, limit 20: count=20, ten whole runs, both forms of calls annotated, not the current run."""
    with Database(mongo_uri) as client:
        client[database_name]["messages"].insert_many(stored_runs("ada", 30))
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        content = await requester.ask(a_request("question 30, now", owner="ada"))
    memory = content["messages"][2]["content"]
    assert memory.startswith("[SHARED_MEMORY count=20]\n")
    for number in range(20, 30):
        assert (
            f"Human: question {number}\n"
            f"  Nexus: [tool_use:web_search, query:left {number}.0; tool_use:web_search, query:right {number}.0]\n"
            f"looking {number}.1\n"
            f"[tool_use:web_search, query:left {number}.1; tool_use:web_search, query:right {number}.1]\n"
            f"looking {number}.2\n"
            f"[tool_use:web_search, query:left {number}.2; tool_use:web_search, query:right {number}.2]\n"
            f"answer {number}"
        ) in memory
    assert "question 19" not in memory
    assert "question 30" not in memory
    assert content["context"]["history"]["shown"] == 20
    assert content["context"]["history"]["repaired"] == 0


async def test_malformed_rows_do_not_spoil_a_build(
    environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """One row of each malformed kind among good ones: the good ones are shown, the others counted."""
    good = {"owner_key": "ada", "session_id": "default", "metadata": {}, "timestamp": "2025-12-01T08:00:00Z"}
    kinds: list[dict[str, Any]] = [
        {"role": "HUMAN", "content": "good question", "run_id": "r1", "timestamp": "2025-12-01T11:00:00+01:00"},
        {
            "role": "AI",
            "content": "good answer",
            "run_id": "r1",
            "timestamp": datetime(2025, 12, 1, 10, 0, 1, tzinfo=UTC),
        },
        {"role": "HUMAN", "content": "naive time", "run_id": "r11", "timestamp": "2025-12-01T12:00:00.123"},
        {"role": "HUMAN", "content": None, "run_id": "r2"},
        {"role": "AI", "content": {"a": 1}, "run_id": "r3"},
        {"role": "AI", "content": ["x", 2], "run_id": "r4"},
        {"role": "AI", "content": 42, "run_id": "r5"},
        {"role": None, "content": "nobody", "run_id": "r6"},
        {"role": "AI", "content": "no metadata", "metadata": None, "run_id": "r7"},
        {"role": "HUMAN", "content": "no time", "timestamp": None, "run_id": "r8"},
        {"role": "HUMAN", "content": "garbage time", "timestamp": "yesterday", "run_id": "r9"},
        {"role": "AI", "content": "calls are null", "metadata": {"tool_calls": None}, "run_id": "r10"},
    ]
    with Database(mongo_uri) as client:
        rows = [{**good, "id": f"row_{index}", **kind} for index, kind in enumerate(kinds)]
        del rows[-3]["timestamp"]
        client[database_name]["messages"].insert_many(rows)
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        content = await requester.ask(a_request(owner="ada"))
    memory = content["messages"][2]["content"]
    assert content["status"] == "success"
    assert (
        "[2025-12-01 10:00] Human: good question\n  Nexus: good answer\n[2025-12-01 12:00] Human: naive time" in memory
    )
    assert "[Unknown time] Human: no time" in memory
    assert "calls are null" in memory
    assert "nobody" not in memory
    assert content["context"]["history"]["repaired"] == 8
    assert content["degraded"] == []
