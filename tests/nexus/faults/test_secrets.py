"""Secrets and texts of people are in no log, no metric, no error and no dead letter."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nexus.e2e.harness import a_request
from tests.nexus.faults.load import CANARY, a_mark
from tests.nexus.faults.scene import Scene, Stage, staged


def _what_shows(folder: Path) -> Iterator[tuple[Path, str]]:
    """Everything that services have shown, with where it stands; of the histories the error answers alone."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "history.jsonl":
            yield path, path.read_text(encoding="utf-8", errors="replace")
        elif path.is_file():
            lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
            yield path, "\n".join(json.dumps(line["error"]) for line in lines if line["type"] == "fail")


async def _say_everything(scene: Scene) -> None:
    """Everything that can be said on the bus, right and wrong, each with marks wherever text may stand."""
    say, mark = scene.load.wire.say, a_mark("secret")
    call = {"id": "c1", "type": "function", "function": {"name": "web", "arguments": json.dumps({"query": mark})}}
    definition = {"name": "weather", "description": mark, "parameters": {"type": "object", "properties": {}}}
    contents: list[tuple[str, Any]] = [
        ("llm.results", {"content": mark, "tool_calls": [call]}),
        ("llm.results", {"content": mark, "tool_calls": mark}),
        ("tools.results", {"result": {mark: mark}, "tool_name": mark, "call_id": "c1"}),
        ("tools.register", {"type": "function", "function": definition}),
        ("tools.register", {"type": "function", "function": {**definition, "parameters": mark}}),
        ("tools.unregister", {"name": f"{mark} is no name of a tool"}),
        ("session.state", {"op": "set", "state": {"role": mark, "todos": [{"id": mark, "text": mark}]}}),
        ("session.state", {"op": "set", "state": {"todos": [{"id": 1, "text": mark, "status": mark}]}}),
        ("session.state", {"op": "set", "state": {"sub_agent_roles": {mark: " "}}}),
        ("session.state", {"op": "patch", "state": {mark: mark}}),
        ("session.state", {"op": mark, mark: mark}),
        ("memory.facts", {"op": "add", "facts": [{"topic": mark, "value": mark, "evidence": [mark]}]}),
        ("memory.facts", {"op": "add", "facts": [{"topic": mark, "value": mark, mark: mark, "level": mark}]}),
        ("memory.facts", {"op": "add", "facts": [{"topic": mark, "value": mark, "level": mark}]}),
        ("memory.facts", {"op": mark, mark: mark}),
        ("session.constraints", {"op": "add", "constraints": [mark, {"text": mark, "scope": "owner"}]}),
        ("session.constraints", {"op": "add", "constraints": [{"text": mark, "kind": mark}]}),
        ("session.constraints", {"op": "add", "constraints": [{"text": mark, mark: mark}]}),
        ("session.constraints", {"op": "add", "constraints": [mark * 200]}),
        ("session.constraints", {"op": "retire", "ids": [mark]}),
        ("session.constraints", {"op": mark, mark: mark}),
        ("config.changed", {mark: mark}),
        ("context.build.request", mark),
        ("context.build.request", {"history": mark}),
    ]
    for topic, content in contents:
        await say(topic, json.dumps({**a_request(), "role": "AI", "content": content}).encode())
        await say(topic, json.dumps({**a_request(), "content": content, "timestamp": mark}).encode())
        await say(topic, json.dumps({mark: content}).encode())
        await say(topic, mark.encode())
        await say(topic, b'{"id": "' + mark.encode() + b"\xff")


async def _ask_everything(scene: Scene) -> None:
    """Requests that end in errors of all kinds, each with marks."""
    profile = {"public_key": "o1", "prompt_overrides": {"friends_profile": a_mark("o1")}, "created_at": a_mark("o1")}
    wrong: list[dict[str, Any]] = [
        {"run_metadata": {"layout": "zigzag"}},
        {"run_metadata": {"user_profile": profile, "client_timestamp_utc": a_mark("o1")}},
        {"run_metadata": {"user_profile": a_mark("o1"), "session_id": [a_mark("o1")]}},
        {"later": [{"role": a_mark("o1"), "content": a_mark("o1")}]},
        {"role": a_mark("o1")},
        {"owner_key": ""},
        {"timestamp": a_mark("o1")},
        {"say": "x" * 40_000},
        {"say": "\x00"},
    ]
    for changes in wrong:
        await scene.load.ask(scene.asks(**changes)(1))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["pubsub"])
async def test_no_secret_and_no_text_shows(stage: Stage, mode: str) -> None:
    """After everything that went right and wrong in this run: not one mark in the output of the services."""
    async with staged(stage, "secrets", mode, deadline_ms=2_000, settings={"system__log_level": "debug"}) as scene:
        (replica,) = await scene.fleet.start()
        await scene.load.offer(20, 20, scene.asks())
        await _say_everything(scene)
        await _ask_everything(scene)
        scene.mongo_proxy.refuse()
        await scene.load.offer(20, 20, scene.asks())
        await _say_everything(scene)
        scene.mongo_proxy.behave()
        await scene.load.offer(20, 20, scene.asks())
        await scene.redis.kill()
        await replica.logged("bus_disconnected")
        await scene.redis.start()
        await replica.logged("bus_reconnected")
        await scene.ended()
        shown = list(_what_shows(stage.folder))
        found = [str(path.relative_to(stage.folder)) for path, text in shown if CANARY in text]
        scene.print_figures(files=len(shown), kilobytes=sum(len(text) for _, text in shown) // 1_024, found=len(found))
    assert found == []
