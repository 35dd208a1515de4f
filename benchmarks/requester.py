"""A plain client of redis-py, as a process of its own: asks for contexts and times the answers.

Reads a job a line from stdin (`url`, `prefix`, `owners`, `layout`, `requests`, `at_once`), writes a result a line to
stdout (`ms` of each answer, `seconds` in all, `bytes` of an answer, `failed`).
"""

import asyncio
import json
import sys
import time
import uuid
from typing import Any, Final

from redis.asyncio import Redis

from benchmarks.data import build_request

_LONGEST_S: Final = 60.0


async def ask(job: dict[str, Any]) -> dict[str, Any]:
    """Ask `requests` times, `at_once` at a time, the owners in turn."""
    reply_to, prefix = f"bench_{uuid.uuid4().hex[:8]}", job["prefix"]
    waiting: dict[str, asyncio.Future[bytes]] = {}
    ms: list[float] = []
    failed: list[str] = []
    sizes = [0]

    async with Redis.from_url(job["url"]) as redis, redis.pubsub() as pubsub:
        await pubsub.subscribe(f"{prefix}context.build.response.{reply_to}")

        async def listen() -> None:
            async for message in pubsub.listen():
                if message["type"] == "message":
                    answered = json.loads(message["data"])
                    if answered["content"]["status"] != "success":
                        failed.append(json.dumps(answered["content"]["error"]))
                    future = waiting.pop(answered["metadata"]["request_id"], None)
                    if future and not future.done():
                        future.set_result(message["data"])

        async def work(numbers: list[int]) -> None:
            for number in numbers:
                request_id, payload = build_request(job["owners"][number % len(job["owners"])], job["layout"], reply_to)
                waiting[request_id] = answer = asyncio.get_running_loop().create_future()
                started = time.perf_counter()
                await redis.publish(f"{prefix}context.build.request", payload)
                try:
                    sizes.append(len(await asyncio.wait_for(answer, _LONGEST_S)))
                    ms.append((time.perf_counter() - started) * 1e3)
                except TimeoutError:
                    failed.append("no answer")

        listener = asyncio.create_task(listen())
        started = time.perf_counter()
        numbers = range(job["first"], job["first"] + job["requests"])
        await asyncio.gather(*(work([*numbers[place :: job["at_once"]]]) for place in range(job["at_once"])))
        seconds = time.perf_counter() - started
        listener.cancel()
    return {"ms": ms, "seconds": seconds, "bytes": max(sizes), "failed": failed}


def main() -> None:
    """Do the jobs until stdin ends."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(ask(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
