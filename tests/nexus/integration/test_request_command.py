"""`nexus request` as programs use it, asked of a service that the test plays."""

import json
import os
import sys
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus

from nexus.adapters.redis_client import open_redis
from nexus.adapters.redis_pubsub import RedisPubSubBus
from nexus.core.errors import ErrorCode, RequestError
from nexus.core.topics import Topics
from nexus.core.wire import decode, encode
from nexus.services.context.answers import error_answer


async def refuse(bus: RedisPubSubBus, error: RequestError, *, task_status: TaskStatus[None]) -> None:
    """Answer every request with this error."""
    async with bus.subscribe(Topics.CONTEXT_BUILD_REQUEST) as requests:
        task_status.started()
        async for delivery in requests:
            asked = decode(delivery.payload)
            answer = error_answer(asked.id, asked.run_id, asked.owner_key, error)
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
    words = ["request", "--owner", "ada", "--input", "Good morning", "--json", "--timeout", "30"]
    variables = {"NEXUS_BUS__URL": redis_url, "NEXUS_BUS__CHANNEL_PREFIX": channel_prefix}
    async with open_redis(redis_url) as client, anyio.create_task_group() as tasks:
        await tasks.start(partial(refuse, RedisPubSubBus(client, prefix=channel_prefix), error))
        done = await anyio.run_process(
            [sys.executable, "-m", "nexus", *words], check=False, env={**os.environ, **variables}
        )
        tasks.cancel_scope.cancel()
    assert (done.returncode, json.loads(done.stdout)) == (1, {"status": "error", "error": expected})
    assert done.stderr.decode() == f"nexus: {error}\n"
