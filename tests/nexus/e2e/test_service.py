"""Continuations, tools, stored settings and the commands, on a running service (contract §3, §4.6, §9, §10)."""

import hashlib
import json
import os
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from nexus.services.context import PromptManager
from tests.nexus.e2e.harness import a_request, requesting, serving

Environment = dict[str, str]
Database = MongoClient[dict[str, Any]]

GOLDEN = Path(__file__).parent / "golden" / "dialogue"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Forecast for a place.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where"}},
            "required": ["city"],
        },
    },
}


def _message(topic_content: Any, *, run_id: str, owner: str = "ada", role: str = "AI", **extra: Any) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "run_id": run_id,
        "owner_key": owner,
        "role": role,
        "content": topic_content,
        "metadata": {},
        **extra,
    }


def _calls(call_id: str) -> list[dict[str, Any]]:
    return [{"id": call_id, "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]


async def test_the_golden_request(
    environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """A request and stored rows, from files, give the response in a third file, to the byte."""
    rows = json.loads((GOLDEN / "rows.json").read_text(encoding="utf-8"))
    expected = (GOLDEN / "response.json").read_text(encoding="utf-8")
    request = json.loads((GOLDEN / "request.json").read_text(encoding="utf-8"))
    with Database(mongo_uri) as client:
        client[database_name]["messages"].insert_many(rows)
    counting = {**environment, "NEXUS_MEMORY__COUNT_TOKENS": "always"}
    async with serving(counting), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        await requester.publish("tools.register", _message(WEATHER, run_id="setup", role="SYSTEM"))
        await requester.ask_until(lambda: a_request(owner="somebody else"), lambda answer: bool(answer["tools"]))
        content = await requester.ask({**request, "timestamp": a_request()["timestamp"]})
    front = json.dumps(content["messages"][:2], ensure_ascii=False, separators=(",", ":")).encode()
    assert content["context"]["prefix"].pop("sha256") == hashlib.sha256(front).hexdigest()
    # The identity is in the code, and has tests of its own; the file would only repeat it.
    identity = content["messages"].pop(0)
    assert identity == {"role": "system", "content": PromptManager().get_core_identity()}
    first, *others = content["context"]["blocks"]
    assert first.pop("bytes") == len(identity["content"].encode())
    counted = content["context"].pop("tokens")
    assert counted["used"] > first.pop("tokens") + sum(block["tokens"] for block in others) + counted["tools"]
    assert set(content["context"].pop("timings_ms")) == {"queue", "gather", "assemble", "build"}
    assert json.dumps(content, ensure_ascii=False, indent=2) + "\n" == expected


async def test_every_build_of_a_run_begins_with_the_same_bytes(
    environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """A continuation has the run's own messages after five that are the same, whatever was recorded in between."""
    run_id = "run_that_goes_on"
    async with (
        serving(environment) as service,
        requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester,
    ):
        moment = {"client_timestamp_utc": "2025-12-10T08:00:00Z", "client_timezone_offset": "-480"}
        first = await requester.ask(a_request("Weather?", run_id=run_id, run_metadata=moment))
        other = a_request("meanwhile, elsewhere", run_id="run_other", timestamp="2020-01-01T00:00:00Z")
        other["timestamp"] = a_request()["timestamp"]
        other["content"]["history"][0]["timestamp"] = "2020-01-01T00:00:00Z"
        await requester.ask(other)
        await requester.publish("tools.register", _message(WEATHER, run_id="setup", role="SYSTEM"))
        await requester.ask_until(a_request, lambda answer: bool(answer["tools"]))
        later = [
            _message("", run_id=run_id, metadata={"tool_calls": _calls("call_1")}),
            _message({"result": "12 degrees", "call_id": "call_1"}, run_id=run_id, role="TOOL"),
        ]
        request = a_request("Weather?", run_id=run_id, later=later, run_metadata=moment)
        second = await requester.ask(request)
        # What still waits to be written with others is written then.
        assert await service.stop() == 0
    assert json.dumps(second["messages"][:5]) == json.dumps(first["messages"])
    assert second["messages"][5:] == [
        {"role": "assistant", "content": None, "tool_calls": _calls("call_1")},
        {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees"},
    ]
    with Database(mongo_uri) as client:
        assert client[database_name]["messages"].count_documents({"run_id": run_id}) == 1


async def test_tools_registered_over_the_bus_reach_every_replica_and_survive(
    environment: Environment, channel_prefix: str
) -> None:
    """A tool is known to two services at once, to one that starts later, and to none after it was unregistered."""
    url = environment["NEXUS_BUS__URL"]
    async with requesting(url, channel_prefix) as requester:
        async with serving(environment), serving(environment):
            await requester.publish("tools.register", _message(WEATHER, run_id="setup", role="SYSTEM"))
            content = await requester.ask_until(a_request, lambda answer: bool(answer["tools"]))
            assert content["tools"] == [WEATHER]
            assert (
                "### weather\nForecast for a place.\nParameters:\n- city (string, required): Where"
                in (content["messages"][1]["content"])
            )
        async with serving(environment):
            assert (await requester.ask(a_request()))["tools"] == [WEATHER]
            await requester.publish("tools.unregister", _message({"name": "weather"}, run_id="s", role="SYSTEM"))
            content = await requester.ask_until(a_request, lambda answer: not answer["tools"])
    assert content["messages"][1]["content"].endswith("(No tools available)")


async def test_results_are_recorded_and_shown(
    environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """Results from the bus become rows as the contract says, in their run's session, each once, and the next memory."""
    answer = {"content": "12 degrees.", "tool_calls": None}
    async with (
        serving(environment) as one,
        serving(environment) as other,
        requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester,
    ):
        await requester.ask(a_request("Weather?", run_id="run_1", run_metadata={"session_id": "s1"}))
        result = {"result": {"degrees": 12}, "status": "success", "tool_name": "weather", "call_id": "call_1"}
        # Two replicas write these at once: what was said first shows by its time.
        earlier = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
        declared = _message({"content": None, "tool_calls": _calls("call_1")}, run_id="run_1", timestamp=earlier)
        for topic, message in (
            ("llm.results", declared),
            ("tools.results", _message(result, run_id="run_1", role="TOOL")),
            ("llm.results", _message("streamed", run_id="run_1", role="SYSTEM")),
            ("llm.results", _message({"content": None, "tool_calls": []}, run_id="run_1")),
            ("llm.results", _message(answer, run_id="run_1")),
        ):
            assert await requester.publish(topic, message) == 2
            await requester.publish(topic, message)
        content = await requester.ask_until(
            lambda: a_request("And now?"), lambda answer: "12 degrees." in answer["messages"][2]["content"]
        )
        assert [await each.stop() for each in (one, other)] == [0, 0]
    assert "  Nexus: [tool_use:weather, city:Paris]\n12 degrees." in content["messages"][2]["content"]
    with Database(mongo_uri) as client:
        rows = list(client[database_name]["messages"].find({"run_id": "run_1"}).sort("_id"))
    by_role = {row["role"]: row for row in rows}
    assert sorted(row["role"] for row in rows) == ["AI", "AI", "HUMAN", "TOOL"]
    assert {row["session_id"] for row in rows} == {"s1"}
    assert by_role["TOOL"]["content"] == {"degrees": 12}
    assert by_role["TOOL"]["metadata"] == {
        "source": "tool_result",
        "tool_name": "weather",
        "status": "success",
        "execution_success": True,
        "call_id": "call_1",
    }
    first = next(row for row in rows if row["id"] == declared["id"])
    assert first["content"] == ""
    assert first["metadata"] == {"source": "llm_result", "tool_calls": _calls("call_1"), "has_tool_calls": True}


async def test_stored_settings_are_taken_over_when_they_change(
    environment: Environment, channel_prefix: str, mongo_uri: str, database_name: str
) -> None:
    """`config.changed` has the stored settings read again; wrong ones are refused and the old ones kept."""
    with Database(mongo_uri) as client:
        configurations = client[database_name]["configurations"]
        async with (
            serving(environment) as service,
            requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester,
        ):
            for number in range(4):
                await requester.ask(a_request(f"question {number}"))
            configurations.insert_one({"environment": "development", "memory": {"history_context_size": 2}})
            await requester.publish("config.changed", _message({}, run_id="setup", role="SYSTEM"))
            await service.logged("settings_reloaded")
            content = await requester.ask(a_request("question 4"))
            assert content["messages"][2]["content"].startswith("[SHARED_MEMORY count=2]")
            configurations.update_one({}, {"$set": {"memory.history_context_size": 9_000}})
            await requester.publish("config.changed", _message({}, run_id="setup", role="SYSTEM"))
            await service.logged("settings_not_reloaded")
            content = await requester.ask(a_request("question 5"))
    assert content["messages"][2]["content"].startswith("[SHARED_MEMORY count=2]")


def _nexus(*arguments: str, environment: Environment) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nexus", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=60
    )


async def test_the_request_command_acts_as_an_orchestrator(environment: Environment) -> None:
    """`nexus request` prints the answer and exits 0; an error answer is one line and 1."""
    async with serving(environment):
        good = _nexus("request", "--owner", "ada", "--input", "Good morning", "--json", environment=environment)
        bad = _nexus("request", "--owner", "ada", "--input", " ", environment=environment)
        unknown = _nexus("request", "--owner", "ada", "--input", "x", "--layout", "zig", environment=environment)
    assert good.returncode == 0
    assert len(json.loads(good.stdout)["messages"]) == 5
    assert (bad.returncode, bad.stderr) == (1, "nexus: EMPTY_INPUT: run.history[0].content: is empty\n")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
    assert "allowed: dialogue" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--owner", "", "--input", "x"), "nexus: --owner: String should have at least 1 character"),
        (("--owner", "a" * 300, "--input", "x"), "nexus: --owner: String should have at most 256 characters"),
        (("--owner", "a", "--input", "\udcff"), "UTF-8 text is needed"),
    ],
)
def test_the_request_command_refuses_what_cannot_be_asked(
    environment: Environment, arguments: tuple[str, ...], said: str
) -> None:
    """What makes no request is one line and exit code 1, not a traceback."""
    refused = _nexus("request", *arguments, environment=environment)
    assert refused.returncode == 1
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_the_request_command_keeps_its_output_clean(environment: Environment) -> None:
    """Without Redis, `nexus request --json` prints one line on stderr and nothing on stdout."""
    environment |= {"NEXUS_BUS__URL": "redis://127.0.0.1:1/0"}
    failed = _nexus("request", "--owner", "a", "--input", "x", "--json", "--timeout", "0.5", environment=environment)
    assert (failed.returncode, failed.stdout) == (1, "")
    advice = "see that Redis runs, and bus.url with its user and password (NEXUS_BUS__URL)"
    assert failed.stderr == f"nexus: no answer from Redis within 0.5 s: ConnectionError: {advice}\n"


def test_the_request_command_says_that_nobody_answered(environment: Environment) -> None:
    """Without a service `nexus request` exits 2 with one line."""
    silent = _nexus("request", "--owner", "a", "--input", "x", "--timeout", "2", environment=environment)
    assert silent.returncode == 2
    assert silent.stderr.startswith("nexus: no answer within 2 s")
    assert silent.stderr.count("\n") == 1


def test_the_doctor_finds_what_is_missing(environment: Environment) -> None:
    """`nexus doctor` exits 0 when all is well, and 1 with what to do when it is not."""
    well = _nexus("doctor", environment=environment)
    ill = _nexus("doctor", environment={**environment, "NEXUS_DATABASE__URI": "mongodb://user:canary@127.0.0.1:1"})
    assert well.returncode == 0, well.stdout
    assert ill.returncode == 1
    assert "wrong  database: " in ill.stdout
    assert "To do: see that MongoDB runs" in ill.stdout
    assert "indexes" not in ill.stdout
    assert "canary" not in ill.stdout + ill.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NEXUS_BUS__MODE": "carrier pigeon"}, "environment variable NEXUS_BUS__MODE: bus.mode: "),
        ({"NEXUS_BUS__URL": "http://user:canary@host"}, "bus.url: "),
        ({"NEXUS_DATABASE__URI": "mongo://user:canary@host"}, "database.uri: "),
        ({"NEXUS_TOOLS__MODULES": "[no_such_module]"}, "tools.modules: no_such_module: cannot be imported"),
        ({"NEXUS_CONFIG": "no-such-file.yml"}, "no-such-file.yml: cannot be read"),
    ],
)
def test_wrong_settings_stop_the_start_with_one_line(
    environment: Environment, variables: Environment, said: str
) -> None:
    """A start with wrong settings ends with one line that names them, no traceback and no password."""
    started = _nexus("serve", environment={**environment, **variables})
    lines = [line for line in started.stderr.splitlines() if not line.startswith("{")]
    assert started.returncode != 0
    assert len(lines) == 1
    assert said in lines[0]
    assert "canary" not in started.stderr


def test_the_demo_shows_the_five_blocks() -> None:
    """`nexus demo` plays the conversation on servers of its own and exits 0."""
    played = _nexus("demo", environment={"NEXUS_CONFIG": ""})
    assert played.returncode == 0, played.stderr
    for block in ("CORE_IDENTITY", "CAPABILITIES", "SHARED_MEMORY", "FRIENDS_INFO", "THIS_MOMENT"):
        assert f"[{block}]" in played.stdout
    assert "tool_use:web_search" in played.stdout
