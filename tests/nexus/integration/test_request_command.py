"""`nexus request` as programs use it, asked of a service that the test plays."""

import json
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus

from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.pubsub import RedisPubSubBus
from nexus.adapters.redis.urls import parse_redis_url
from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import Role, Topics
from nexus.core.wire import decode, encode
from nexus.services.requests.envelope import error_content
from tests.nexus.support.desk import Desk, Result
from tests.nexus.support.redis_server import HOST, redis_server


async def asked_for(bus: dict[str, str], timeout_s: float) -> Result:
    """What `nexus request --json` does with these settings of the bus."""
    words = ["--owner", "ada", "--input", "Good morning", "--json", "--timeout", str(timeout_s)]
    return await Desk("request", {f"NEXUS_BUS__{name}": value for name, value in bus.items()}).run(*words)


async def refuse(bus: RedisPubSubBus, error: RequestError, *, task_status: TaskStatus[None]) -> None:
    """Answer every request with this error."""
    async with bus.subscribe(Topics.CONTEXT_BUILD_REQUEST) as requests:
        task_status.started()
        async for delivery in requests:
            asked = decode(delivery.payload)
            answer = asked.model_copy(
                update={"content": error_content(error), "metadata": {"request_id": asked.id}, "role": Role.SYSTEM}
            )
            await bus.publish(f"{Topics.CONTEXT_BUILD_RESPONSE}.{asked.metadata['reply_to']}", encode(answer))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            RequestError(ErrorCode.OVERLOADED, "too many", 250),
            {"code": "OVERLOADED", "message": "too many", "retryable": True, "retry_after_ms": 250},
        ),
        (
            RequestError(ErrorCode.EMPTY_INPUT, "is empty"),
            {"code": "EMPTY_INPUT", "message": "is empty", "retryable": False},
        ),
    ],
)
async def test_an_error_in_json(
    redis_url: str, channel_prefix: str, error: RequestError, expected: dict[str, Any]
) -> None:
    """An error answer is given whole, with the time after which trying again may help where that is known; exit 1."""
    async with open_redis(redis_url) as client, anyio.create_task_group() as tasks:
        await tasks.start(partial(refuse, RedisPubSubBus(client, prefix=channel_prefix), error))
        done = await asked_for({"URL": redis_url, "CHANNEL_PREFIX": channel_prefix}, timeout_s=30)
        tasks.cancel_scope.cancel()
    content = {"status": "error", "error": expected, "messages": [], "tools": []}
    assert (done.returncode, json.loads(done.stdout)) == (1, content)
    assert done.stderr == f"nexus: {error}\n"


async def test_answers_that_cannot_be_believed(redis_url: str, channel_prefix: str) -> None:
    """With a key that the service does not know the time-out says so; exit 2."""
    error = RequestError(ErrorCode.EMPTY_INPUT, "is empty")
    bus = {"URL": redis_url, "CHANNEL_PREFIX": channel_prefix}
    bus |= {"SIGNING__KEYS": "{k1: not known to the service}", "SIGNING__REQUIRED": "true"}
    async with open_redis(redis_url) as client, anyio.create_task_group() as tasks:
        await tasks.start(partial(refuse, RedisPubSubBus(client, prefix=channel_prefix), error))
        done = await asked_for(bus, timeout_s=2)
        tasks.cancel_scope.cancel()
    reason = "answers came, but none that can be believed: compare bus.signing.keys with the service's"
    assert done.returncode == 2
    assert done.stderr.startswith("nexus: no answer within 2 s to context.build.request at ")
    assert done.stderr.endswith(f": {reason}\n")


@pytest.mark.parametrize("mode", ["pubsub", "streams"])
async def test_nobody_answers(redis_url: str, channel_prefix: str, mode: str) -> None:
    """The time-out says what was tried, and what may differ; exit 2."""
    done = await asked_for({"URL": redis_url, "CHANNEL_PREFIX": channel_prefix, "MODE": mode}, timeout_s=0.5)
    where = f"{parse_redis_url(redis_url).place} (bus.mode {mode}, bus.channel_prefix {channel_prefix!r})"
    reason = "is a service running on this bus, with this bus.mode and bus.channel_prefix? (nexus doctor)"
    said = f"nexus: nobody listens to context.build.request at {where}, tried for 0.5 s: {reason}\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.once
async def test_a_wrong_password() -> None:
    """The kind of error and what to do are named, and the password is not; exit 1."""
    async with redis_server(password="right") as server:
        for mode in ("pubsub", "streams"):
            done = await asked_for({"URL": server.url.replace("right", "canary"), "MODE": mode}, timeout_s=1)
            advice = "AuthenticationError: correct user and password in bus.url (NEXUS_BUS__URL)"
            where = f"{HOST}:{server.port}/0 (bus.mode {mode}, bus.channel_prefix '')"
            assert done.fault == f"{where}: no answer from Redis within 1 s: {advice}"
