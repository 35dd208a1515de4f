"""The least that keeps the same promises with the same public drivers: what a build is measured against.

For each request: `SET NX` claims its id; the newest 40 rows are read while the input is inserted; an answer of the same
size as Nexus's is kept and published in one pipeline. No leases, merging, escaping, limits or deadlines.
"""

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final

from motor.motor_asyncio import AsyncIOMotorClient
from redis.asyncio import Redis

_ROWS: Final = 40
_KEPT_MS: Final = 3_600_000
_CONNECTIONS: Final = 256
# Bytes of an answer besides its text.
_ENVELOPE: Final = 200


async def answer(payload: bytes, messages: Any, redis: "Redis", prefix: str, text: str) -> None:
    """Claim, read and record, publish."""
    request = json.loads(payload)
    key = f"{prefix}floor:{request['id']}"
    if not await redis.set(key, b"claimed", nx=True, px=_KEPT_MS):
        return
    human = request["content"]["history"][0]
    row = {**human, "session_id": "default", "timestamp": datetime.now(UTC)}
    newest = messages.find({"owner_key": request["owner_key"]}).sort([("timestamp", -1), ("_id", -1)]).limit(_ROWS)
    rows, _ = await asyncio.gather(newest.to_list(_ROWS), messages.insert_one(row))
    content = {"status": "success", "messages": [{"role": "system", "content": text}], "rows": len(rows)}
    encoded = json.dumps({"content": content, "metadata": {"request_id": request["id"]}}).encode()
    async with redis.pipeline() as pipeline:
        pipeline.set(key, encoded, px=_KEPT_MS)
        pipeline.publish(f"{prefix}context.build.response.{request['metadata']['reply_to']}", encoded)
        await pipeline.execute()


async def main() -> None:
    """Answer until the process is ended. Settings come from the environment, as for `nexus serve`."""
    prefix, size = os.environ["NEXUS_BUS__CHANNEL_PREFIX"], int(os.environ["FLOOR_ANSWER_BYTES"])
    client: AsyncIOMotorClient[Any] = AsyncIOMotorClient(os.environ["NEXUS_DATABASE__URI"])
    messages = client[os.environ["NEXUS_DATABASE__NAME"]]["messages"]
    redis = Redis.from_url(os.environ["NEXUS_BUS__URL"], max_connections=_CONNECTIONS)
    text = "x" * max(0, size - _ENVELOPE)
    tasks: set[asyncio.Task[None]] = set()
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe(f"{prefix}context.build.request")
        async for message in pubsub.listen():
            if message["type"] == "subscribe":
                print('{"event": "ready"}', file=sys.stderr, flush=True)
                continue
            task = asyncio.create_task(answer(message["data"], messages, redis, prefix, text))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
