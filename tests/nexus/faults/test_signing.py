"""Signatures are required: messages unsigned, or signed by others, elsewhere or long ago (issue 3; CONTRACT §1.7)."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from tests.nexus.e2e.harness import REQUEST, a_request
from tests.nexus.faults.load import Asked, Seal
from tests.nexus.faults.scene import SIGNED, SIGNING_SECRET, Scene, Stage, in_both_modes, scaled, staged
from tests.nexus.faults.signatures import sealed

_RIGHT: Seal = partial(sealed, topic=REQUEST, key="k1", secret=SIGNING_SECRET)


def _tampered(value: dict[str, Any]) -> dict[str, Any]:
    signed = _RIGHT(value)
    return {**signed, "metadata": {**signed["metadata"], "deadline_ms": 60_000}}


def _stale(value: dict[str, Any]) -> dict[str, Any]:
    at = datetime.now(UTC) - timedelta(seconds=400)
    return _RIGHT({**value, "timestamp": at.isoformat()})


_WRONG: dict[str, Seal | None] = {
    "unsigned": None,
    "wrong_key": partial(sealed, topic=REQUEST, key="k1", secret="not the secret of this bus"),
    "unknown_key": partial(sealed, topic=REQUEST, key="k9", secret=SIGNING_SECRET),
    "cross_topic": partial(sealed, topic="llm.results", key="k1", secret=SIGNING_SECRET),
    "tampered": _tampered,
    "stale": _stale,
}


async def _send_results(scene: Scene) -> None:
    """Results and tools that nobody signed, and that were signed as something else."""
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
        verdict = scene.verdict(accepted=accepted + recorded + registered)
    assert accepted == recorded == registered == 0
    assert {outcomes[name] for name in wrong} == {"UNAUTHENTICATED"}
    assert {outcomes[one.id] for one in asked["right"]} == {"success"}
    assert verdict.clean
