"""Answers of `nexus serve` on real servers to an orchestrator that speaks redis-py alone (contract §1, §3, §4.6)."""

import hashlib
import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from nexus.services.context import PromptManager
from tests.nexus.e2e.harness import (
    REQUEST,
    RESPONSE,
    Document,
    Environment,
    a_message,
    a_request,
    requesting,
    serving,
)

GOLDEN = Path(__file__).parent / "golden" / "dialogue"
CITY = {"city": {"type": "string", "description": "Where"}}
PARAMETERS = {"type": "object", "properties": CITY, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Forecast for a place.", "parameters": PARAMETERS}


async def test_the_golden_request(
    environment: Environment, channel_prefix: str, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """A request and stored rows, from files, give the response in a third file, to the byte."""
    rows, request = (json.loads((GOLDEN / name).read_text("utf-8")) for name in ("rows.json", "request.json"))
    expected = (GOLDEN / "response.json").read_text(encoding="utf-8")
    mongo_janitor[database_name]["messages"].insert_many(rows)
    environment |= {"NEXUS_MEMORY__COUNT_TOKENS": "always"}
    async with serving(environment), requesting(environment) as requester:
        await requester.publish("tools.register", a_message({"type": "function", "function": WEATHER}, role="SYSTEM"))
        await requester.ask_until(lambda: a_request(owner="somebody else"), lambda answer: bool(answer["tools"]))
        content = await requester.ask({**request, "timestamp": a_request()["timestamp"]})
    ((key, answer),) = requester.answers[request["id"]]
    assert key == channel_prefix + RESPONSE
    assert (answer["role"], answer["run_id"], answer["owner_key"]) == ("SYSTEM", request["run_id"], "ada")
    front = json.dumps(content["messages"][:2], ensure_ascii=False, separators=(",", ":")).encode()
    assert content["context"]["prefix"].pop("sha256") == hashlib.sha256(front).hexdigest()
    # The identity is in the code, and has tests of its own; the file would only repeat it.
    identity = content["messages"].pop(0)
    assert identity == {"role": "system", "content": PromptManager().get_core_identity()}
    first, *others = content["context"]["blocks"]
    assert first.pop("bytes") == len(identity["content"].encode())
    counted = content["context"].pop("tokens")
    assert counted["used"] > first.pop("tokens") + sum(block["tokens"] for block in others) + counted["tools"]
    told = content["context"].pop("budget")["blocks"]
    assert 0 < told["history"]["used"] == told["history"]["wanted"] < others[1]["tokens"]
    assert set(content["context"].pop("timings_ms")) == {"queue", "gather", "assemble", "build"}
    assert json.dumps(content, ensure_ascii=False, indent=2) + "\n" == expected


def _with_run(**changes: Any) -> Document:
    request = a_request()
    request["content"] |= changes
    return request


def _deep(levels: int) -> bytes:
    return json.dumps(_with_run(tools="deep")).replace('"deep"', "[" * levels + "]" * levels).encode()


BAD: list[tuple[Document | bytes, str, str]] = [
    ({name: value for name, value in a_request().items() if name != "role"}, "INVALID_REQUEST", "role: "),
    (_with_run(history=[]), "INVALID_REQUEST", "run.history: "),
    (a_request("  \n "), "EMPTY_INPUT", "run.history[0].content: "),
    (a_request(run_metadata={"layout": "zig"}), "UNKNOWN_LAYOUT", "layout: 'zig' is unknown; allowed: dialogue"),
    (_with_run(owner_key="eve"), "OWNER_MISMATCH", "run.owner_key: "),
    (a_request("x" * (2 << 20)), "PAYLOAD_TOO_LARGE", "at most 1048576"),
    (_deep(10_000), "INVALID_REQUEST", "nested deeper than 64"),
    (json.dumps(a_request()).encode()[:-10], "INVALID_REQUEST", "not JSON"),
    (a_request(metadata={"reply_to": "a b/../c"}), "INVALID_REQUEST", "metadata.reply_to: "),
    (a_request(metadata={"deadline_ms": 5}), "INVALID_REQUEST", "metadata.deadline_ms: "),
]
UNREADABLE = (b"not json: my secret", b"[1, 2]", b"{}", b"\xff\xfe", b"")


@pytest.mark.usefixtures("mode")
async def test_bad_requests(environment: Environment, channel_prefix: str) -> None:
    """Each is answered once, with its code and the place; one without a readable id becomes a dead letter."""
    payloads = [json.dumps(made).encode() if isinstance(made, dict) else made for made, _, _ in BAD]
    ids = [payload.split(b'"id": "', 1)[1].split(b'"', 1)[0].decode() for payload in payloads]
    async with serving(environment) as service, requesting(environment, "me-1.x_Y") as requester:
        for payload in (*UNREADABLE, *payloads):
            await requester.publish(REQUEST, payload)
        contents = await requester.answered(*ids)
        good = a_request(metadata={"reply_to": "me-1.x_Y"})
        assert (await requester.ask(good))["status"] == "success"
        # An answer may come before the dead letter of an earlier payload; not before the service has ended, though.
        assert await service.stop(signal.SIGINT) == 0
        letters: Any = await requester.redis.xrange(f"{channel_prefix}nexus:dead-letters")
    for content, (_, code, where) in zip(contents, BAD, strict=True):
        assert (content["status"], content["error"]["code"], content["messages"]) == ("error", code, [])
        assert where in content["error"]["message"]
    assert [len(requester.answers[name]) for name in ids] == [1] * len(ids)
    assert [key for key, _ in requester.answers[good["id"]]] == [f"{channel_prefix}{RESPONSE}.me-1.x_Y"]
    assert len(requester.answers) == len(ids) + 1
    assert len(letters) == len(UNREADABLE)
    assert all(set(fields) == {b"topic", b"reason", b"deliveries", b"sha256", b"size"} for _, fields in letters)
    assert "my secret" not in json.dumps(service.log)
    assert service.errors == []
    events = [line["event"] for line in service.log]
    assert "draining" in events
    assert events[-1] == "stopped"


@pytest.mark.usefixtures("mode")
async def test_senders_with_wrong_clocks(environment: Environment) -> None:
    """Ten minutes slow or fast: each gets a normal answer, once."""
    clocks = [(datetime.now(UTC) + timedelta(minutes=minutes)).isoformat() for minutes in (-10, 10)]
    requests = [a_request(timestamp=clock, metadata={"deadline_ms": 10_000}) for clock in clocks]
    async with serving(environment), requesting(environment) as requester:
        assert [(await requester.ask(request))["status"] for request in requests] == ["success", "success"]
    assert [len(requester.answers[request["id"]]) for request in requests] == [1, 1]


async def test_requests_from_before_the_start(streams: Environment) -> None:
    """Requests enqueued while no replica ran are answered by the first; past its deadline one gets an error."""
    patient, hasty = a_request(metadata={"deadline_ms": 60_000}), a_request(metadata={"deadline_ms": 100})
    async with requesting(streams) as requester:
        for request in (patient, hasty):
            await requester.publish(REQUEST, request)
        # To start takes a service longer than the 100 ms.
        async with serving(streams) as service:
            built, late = await requester.answered(patient["id"], hasty["id"])
            await requester.finished(REQUEST)
    assert built["status"] == "success"
    assert late["error"]["code"] == "DEADLINE_EXCEEDED"
    assert late["error"]["message"] == "metadata.deadline_ms: the 100 ms have passed"
    assert late["error"]["retryable"]
    assert service.errors == []


async def test_entries_that_cannot_be_read(streams: Environment, channel_prefix: str) -> None:
    """On every topic but `config.changed` they become dead letters, are done with, and harm nothing else."""
    topics = (REQUEST, "llm.results", "tools.results", "tools.register", "tools.unregister", "session.state")
    news = "config.changed"
    async with serving(streams) as service, requesting(streams) as requester:
        for topic in (*topics, news):
            key = f"{channel_prefix}{topic}"
            await requester.redis.xadd(key, {b"foreign": b"x"})
            await requester.redis.xadd(key, {b"message": b"\xff\xfe" + topic.encode()})
            await requester.redis.xadd(key, {b"message": b"[" * 100_000})
        assert (await requester.ask(a_request()))["status"] == "success"
        await requester.finished(*topics)
        assert await service.stop() == 0
        # The same bytes for the same reason are one letter, wherever they come from.
        assert await requester.redis.xlen(f"{channel_prefix}nexus:dead-letters") == len(topics) + 2
