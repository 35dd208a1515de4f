"""The least that a context service could do, as a process of its own: what Nexus is measured against.

For each request it reads the JSON, runs one indexed query for the owner's newest 40 rows, encodes a payload as long as
Nexus's answer and publishes it; requests are answered side by side. As `wire` it leaves out the query. Driver and
event loop are those of Nexus; Redis and MongoDB are asked as their libraries would have it, with a connection a PUBLISH
and a cursor. It knows nothing of leases, resends, recording, escaping or deadlines.

    NEXUS_BENCH_FLOOR='{"redis_url": ...}' python -m nexus.bench.floor
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydantic import BaseModel
from redis.asyncio import Redis

from nexus.bench.loop import run
from nexus.bench.mongo import client_of
from nexus.core.topics import Topics

VARIABLE: Final = "NEXUS_BENCH_FLOOR"
ROWS: Final = 40
_CONNECTIONS: Final = 1_024
_NEWEST_FIRST: Final = [("timestamp", -1), ("_id", -1)]
# Bytes of an answer besides its text.
_ENVELOPE: Final = 180
_FILLER: Final = "You are a friend, not a servant. Listen first; answer in the language of the question. "


class FloorSettings(BaseModel):
    """Where it listens and what it reads.

    Attributes:
        prefix: before the topics.
        driver: as `database.driver`.
        queries: without, it is the bare wire.
    """

    redis_url: str
    prefix: str
    mongo_uri: str
    database: str
    driver: str
    queries: bool = True


Find = Callable[[str], Awaitable[list[Any]]]


async def answer(data: bytes, find: Find | None, redis: Redis, prefix: str, filler: str) -> None:
    """Answer one request.

    Args:
        data: the request.
        find: gives an owner's newest rows; None on the bare wire.
        redis: publishes the answer.
        prefix: before the topic.
        filler: at least as long as any answer.
    """
    asked = json.loads(data)
    rows = await find(asked["owner_key"]) if find else []
    metadata = asked["metadata"]
    message = {"role": "system", "content": filler[: max(0, metadata["answer_bytes"] - _ENVELOPE)]}
    content = {"status": "success", "messages": [message], "rows": len(rows), "degraded": []}
    envelope = {"content": content, "metadata": {"request_id": asked["id"]}}
    topic = f"{prefix}{Topics.CONTEXT_BUILD_RESPONSE}.{metadata['reply_to']}"
    await redis.publish(topic, json.dumps(envelope, separators=(",", ":")).encode())


async def serve(settings: FloorSettings) -> None:
    """Answer until the process is ended."""
    messages = client_of(settings.driver, settings.mongo_uri)[settings.database]["messages"]

    async def find(owner: str) -> list[Any]:
        found: list[Any] = await messages.find({"owner_key": owner}).sort(_NEWEST_FIRST).limit(ROWS).to_list(ROWS)
        return found

    filler = _FILLER * (2**20 // len(_FILLER))
    # Of its 100 a client takes one for each answer that is being published.
    redis = Redis.from_url(settings.redis_url, max_connections=_CONNECTIONS)
    under_way: set[asyncio.Task[None]] = set()
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe(settings.prefix + Topics.CONTEXT_BUILD_REQUEST)
        while True:
            message = await pubsub.get_message(timeout=None)
            if message and message["type"] == "subscribe":
                print('{"event": "ready"}', file=sys.stderr, flush=True)  # noqa: T201  # whoever started it reads that
            elif message:
                found = find if settings.queries else None
                task = asyncio.create_task(answer(message["data"], found, redis, settings.prefix, filler))
                under_way.add(task)
                task.add_done_callback(under_way.discard)


if __name__ == "__main__":
    run(serve, FloorSettings.model_validate_json(os.environ[VARIABLE]))
