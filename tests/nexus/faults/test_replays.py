"""Signed messages that somebody has overheard and sends again, while they are fresh (issue 3; CONTRACT §1.7)."""

import json
from typing import Any

import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import REQUEST, a_request
from tests.nexus.faults.scene import SIGNED, SIGNING_SECRET, Scene, Stage, in_both_modes, staged
from tests.nexus.faults.signatures import sealed
from tests.nexus.support.waiting import until

_REPLAYS = 5
_TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": {"type": "object"}}}


def _signed(topic: str, content: Any, role: str = "SYSTEM") -> tuple[str, bytes]:
    """Id and bytes of a message."""
    message = {**a_request(owner="o1"), "role": role, "content": content}
    return message["id"], json.dumps(sealed(message, topic=topic, key="k1", secret=SIGNING_SECRET)).encode()


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
    asked = scene.asks(seal=lambda value: sealed(value, topic=REQUEST, key="k1", secret=SIGNING_SECRET))(1)
    await scene.load.ask(asked)
    before = _known(scene, asked.id)
    others = ("llm.results", "tools.results", "tools.register", "tools.unregister", "session.state", "config.changed")
    for topic in others:
        await _replay(scene, topic, asked.payload)
    for number in range(_REPLAYS):
        await _replay_one(scene, asked.id, asked.payload, before + number)
    return asked.id


async def _replay_one(scene: Scene, request_id: str, payload: bytes, known: int) -> None:
    """Send it, and wait until somebody has looked at it."""
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
        codes = await scene.ended()
        built = scene.fleet.count("answered", request_id=request_id)
        recorded, tools = _rows(scene, result_id), _tools(scene)
        elsewhere = _rows(scene, request_id)
        verdict = scene.verdict(built=built, results_recorded=recorded, tools_back=tools, taken_elsewhere=elsewhere)
    assert verdict.clean
    assert set(verdict.outcomes) == {"success"}
    assert built == recorded == 1
    assert tools == elsewhere == 0
    assert set(codes) == {0}
