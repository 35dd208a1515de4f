"""Deadlines of requests to `nexus serve`, in both modes, whatever a sender's clock shows (contract §1.4, §1.5)."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from tests.nexus.e2e.harness import PATIENCE_S, REQUEST, RESPONSE, a_request, requesting, serving

Environment = dict[str, str]


async def _append(redis: Redis, prefix: str, request: Mapping[str, Any]) -> None:
    await redis.xadd(prefix + REQUEST, {"message": json.dumps(request)})


async def _answers(redis: Redis, prefix: str, count: int) -> dict[str, dict[str, Any]]:
    """The contents of the first `count` answers, by request."""
    found: Any = []
    with anyio.fail_after(PATIENCE_S):
        while len(found) < count:
            await redis.ping()
            found = await redis.xrange(prefix + RESPONSE)
    answers = [json.loads(fields[b"message"]) for _, fields in found]
    return {answer["metadata"]["request_id"]: answer["content"] for answer in answers}


def _assert_exceeded(content: Mapping[str, Any], deadline_ms: int) -> None:
    assert content["status"] == "error"
    assert content["error"]["code"] == "DEADLINE_EXCEEDED"
    assert content["error"]["message"] == f"metadata.deadline_ms: the {deadline_ms} ms have passed"
    assert content["error"]["retryable"]


async def test_a_request_that_lay_on_its_stream_for_too_long(environment: Environment, channel_prefix: str) -> None:
    """From before the service was there: it is told; one with time left is answered, though it lay there as long."""
    patient, hasty = a_request(metadata={"deadline_ms": 60_000}), a_request(metadata={"deadline_ms": 100})
    async with Redis.from_url(environment["NEXUS_BUS__URL"]) as redis:
        for request in (patient, hasty):
            await _append(redis, channel_prefix, request)
        # To start takes a service longer than the 100 ms.
        async with serving(environment | {"NEXUS_BUS__MODE": "streams"}) as service:
            answers = await _answers(redis, channel_prefix, 2)
    assert answers[patient["id"]]["status"] == "success"
    _assert_exceeded(answers[hasty["id"]], 100)
    assert service.errors == []


@pytest.mark.parametrize("minutes", [-10, 10])
async def test_a_sender_with_a_wrong_clock(environment: Environment, channel_prefix: str, minutes: int) -> None:
    """Ten minutes slow or fast: it gets a normal answer, once, on both kinds of bus."""
    timestamp = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
    request = a_request(timestamp=timestamp, metadata={"deadline_ms": 10_000})
    async with serving(environment), requesting(environment["NEXUS_BUS__URL"], channel_prefix) as requester:
        assert (await requester.ask(request))["status"] == "success"
    assert len(requester.answers[request["id"]]) == 1
    prefix = f"s{channel_prefix}"
    changed = {"NEXUS_BUS__MODE": "streams", "NEXUS_BUS__CHANNEL_PREFIX": prefix}
    async with serving(environment | changed), Redis.from_url(environment["NEXUS_BUS__URL"]) as redis:
        await _append(redis, prefix, request)
        answers = await _answers(redis, prefix, 1)
    assert answers[request["id"]]["status"] == "success"
