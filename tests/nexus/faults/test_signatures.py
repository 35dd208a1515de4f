"""Signatures are required: wrong ones, and right ones that are sent again (contract §1.7)."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import REQUEST, a_request
from tests.nexus.faults.load import Asked, Seal
from tests.nexus.faults.scene import SIGNED, SIGNING_SECRET, Scene, Stage, in_both_modes, scaled, staged
from tests.nexus.support.waiting import until

_REPLAYS = 5
_TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": {"type": "object"}}}


def _sealed(value: Mapping[str, Any], *, topic: str, key: str = "k1", secret: str = SIGNING_SECRET) -> dict[str, Any]:
    """The message signed for `topic` (contract §1.7). Its texts are ASCII and its numbers small whole ones."""
    body = {**value, "metadata": dict(value["metadata"])}
    parts = ["v1", topic, body["id"], body["timestamp"], body]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    code = hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()
    body["metadata"]["signature"] = f"v1,{key},{base64.b64encode(code).decode()}"
    return body


_RIGHT: Seal = partial(_sealed, topic=REQUEST)


def _tampered(value: dict[str, Any]) -> dict[str, Any]:
    signed = _RIGHT(value)
    return {**signed, "metadata": {**signed["metadata"], "deadline_ms": 60_000}}


def _stale(value: dict[str, Any]) -> dict[str, Any]:
    at = datetime.now(UTC) - timedelta(seconds=400)
    return _RIGHT({**value, "timestamp": at.isoformat()})


_WRONG: dict[str, Seal | None] = {
    "unsigned": None,
    "wrong_key": partial(_sealed, topic=REQUEST, secret="not the secret of this bus"),
    "unknown_key": partial(_sealed, topic=REQUEST, key="k9", secret=SIGNING_SECRET),
    "cross_topic": partial(_sealed, topic="llm.results"),
    "tampered": _tampered,
    "stale": _stale,
}


async def _send_results(scene: Scene) -> None:
    """Results and tools that are unsigned, or signed for another topic."""
    for seal in (None, _RIGHT):
        result = {**a_request(owner="o1"), "role": "AI", "content": {"content": "forged", "tool_calls": None}}
        tool = {**a_request(owner="o1"), "content": {"type": "function", "function": {"name": "forged"}}}
        for topic, message in (("llm.results", result), ("tools.register", tool)):
            await scene.load.wire.say(topic, json.dumps(seal(message) if seal else message).encode())


@pytest.mark.timeout(120)
@in_both_modes
async def test_only_what_is_signed_is_believed(stage: Stage, mode: str) -> None:
    """Unsigned, wrong key, stale and cross-topic messages: none is accepted, each request is told so; others go on."""
    async with staged(stage, "signing_required", mode, settings=SIGNED) as scene:
        await scene.fleet.start(2)
        asked: dict[str, list[Asked]] = {}
        async with anyio.create_task_group() as tasks:
            for name, seal in {"right": _RIGHT, **_WRONG}.items():
                make = scene.asks(owners=5, seal=seal)
                asked[name] = [make(number) for number in range(scaled(20))]
                for one in asked[name]:
                    tasks.start_soon(scene.load.ask, one)
            await _send_results(scene)
        await scene.ended()
        outcomes = {event["request_id"]: event["outcome"] for event in scene.history.events() if "outcome" in event}
        wrong = [one.id for name in _WRONG for one in asked[name]]
        accepted = sum(outcomes.get(name) == "success" for name in wrong)
        with MongoClient[dict[str, Any]](scene.stage.mongo_uri) as client:
            recorded = client[scene.database]["messages"].count_documents({"content": "forged"})
            registered = client[scene.database]["tools"].count_documents({})
        scene.verdict(accepted=accepted + recorded + registered)
    assert accepted == recorded == registered == 0
    assert {outcomes[name] for name in wrong} == {"UNAUTHENTICATED"}
    assert {outcomes[one.id] for one in asked["right"]} == {"success"}


def _signed(topic: str, content: Any, role: str = "SYSTEM") -> tuple[str, bytes]:
    """Id and bytes of a message."""
    message = {**a_request(owner="o1"), "role": role, "content": content}
    return message["id"], json.dumps(_sealed(message, topic=topic)).encode()


def _rows(scene: Scene, message_id: str) -> int:
    with MongoClient[dict[str, Any]](scene.stage.mongo_uri) as client:
        return client[scene.database]["messages"].count_documents({"id": {"$regex": f"^{message_id}"}})


def _tools(scene: Scene) -> int:
    with MongoClient[dict[str, Any]](scene.stage.mongo_uri) as client:
        return client[scene.database]["tools"].count_documents({"definition": {"$ne": None}})


async def _replay(scene: Scene, topic: str, payload: bytes) -> None:
    for _ in range(_REPLAYS):
        scene.history.happened("replayed", topic=topic)
        await scene.load.wire.say(topic, payload)


async def _request_again(scene: Scene) -> str:
    """A request is answered, and sent again to where it belongs and elsewhere. Returns its id."""
    asked = scene.asks(seal=_RIGHT)(1)
    await scene.load.ask(asked)
    before = _known(scene, asked.id)
    others = ("llm.results", "tools.results", "tools.register", "tools.unregister", "session.state", "config.changed")
    for topic in others:
        await _replay(scene, topic, asked.payload)
    for number in range(_REPLAYS):
        await _replay_one(scene, asked.id, asked.payload, before + number)
    return asked.id


async def _replay_one(scene: Scene, request_id: str, payload: bytes, known: int) -> None:
    """Send it, and wait until a replica has looked at it."""
    await scene.load.wire.say(REQUEST, payload)

    async def seen() -> bool:
        return _known(scene, request_id) > known

    await until(seen)


def _known(scene: Scene, request_id: str) -> int:
    """How often a request was found to be answered already."""
    events = ("answered_again", "announced_a_moment_ago")
    return sum(scene.fleet.count(event, request_id=request_id) for event in events)


async def _result_again(scene: Scene) -> str:
    result_id, payload = _signed("llm.results", {"content": "an answer", "tool_calls": None}, "AI")
    await scene.load.wire.say("llm.results", payload)

    async def recorded() -> bool:
        return _rows(scene, result_id) > 0

    await until(recorded)
    await _replay(scene, "llm.results", payload)
    return result_id


async def _tool_again(scene: Scene) -> None:
    """A tool is registered and unregistered, and then the registration is sent again."""
    _, register = _signed("tools.register", _TOOL)
    await scene.load.wire.say("tools.register", register)

    async def there(count: int) -> bool:
        return _tools(scene) == count

    await until(lambda: there(1))
    _, unregister = _signed("tools.unregister", {"name": "weather"})
    await scene.load.wire.say("tools.unregister", unregister)
    await until(lambda: there(0))
    await _replay(scene, "tools.register", register)


@pytest.mark.timeout(120)
@in_both_modes
async def test_what_was_overheard_changes_nothing(stage: Stage, mode: str) -> None:
    """Fresh signed bytes again: nothing is built or recorded twice, no tool comes back, no topic takes another's."""
    async with staged(stage, "replayed", mode, settings={**SIGNED, "system__log_level": "debug"}) as scene:
        await scene.fleet.start(2)
        request_id = await _request_again(scene)
        result_id = await _result_again(scene)
        await _tool_again(scene)
        await scene.ended()
        built = scene.fleet.count("answered", request_id=request_id)
        recorded, tools = _rows(scene, result_id), _tools(scene)
        elsewhere = _rows(scene, request_id)
        verdict = scene.verdict(built=built, results_recorded=recorded, tools_back=tools, taken_elsewhere=elsewhere)
    assert set(verdict.outcomes) == {"success"}
    assert built == recorded == 1
    assert tools == elsewhere == 0
