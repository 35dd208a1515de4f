"""A plain client of redis-py, as a process of its own: asks for contexts, or searches, and times the answers.

Reads a job a line from stdin: `url`, `prefix`, `owners`, `requests`, `at_once`, `first`; of contexts `layout`, and
whether to `recall`; `texts` of inputs, or to be searched for. Writes a result a line to stdout: `ms` of each answer,
`seconds` in all, `bytes` of an answer, `recalled` (answers with `[RECALL]`), `hits` (of each search the ids), `failed`.
"""

import asyncio
import json
import sys
import time
import uuid
from typing import Any, Final

from redis.asyncio import Redis

from benchmarks.data import build_request, search_request

_LONGEST_S: Final = 60.0


async def ask(job: dict[str, Any]) -> dict[str, Any]:
    """Ask `requests` times, `at_once` at a time, the owners in turn."""
    reply_to, prefix = f"bench_{uuid.uuid4().hex[:8]}", job["prefix"]
    waiting: dict[str, asyncio.Future[bytes]] = {}
    ms: list[float] = []
    failed: list[str] = []
    sizes = [0]
    recalled = 0
    hits: list[list[str]] = []
    build, search = ("context.build.request", "context.build.response"), ("memory.search", "memory.search.result")
    asked, answers = build if "layout" in job else search

    async with Redis.from_url(job["url"]) as redis, redis.pubsub() as pubsub:
        await pubsub.subscribe(f"{prefix}{answers}.{reply_to}")

        async def listen() -> None:
            nonlocal recalled
            async for message in pubsub.listen():
                if message["type"] == "message":
                    answered = json.loads(message["data"])
                    if answered["content"]["status"] != "success":
                        failed.append(json.dumps(answered["content"]["error"]))
                    recalled += b"[RECALL count=" in message["data"]
                    hits.append([hit["id"] for hit in answered["content"].get("hits", ())])
                    future = waiting.pop(answered["metadata"]["request_id"], None)
                    if future and not future.done():
                        future.set_result(message["data"])

        async def work(numbers: list[int]) -> None:
            for number in numbers:
                request_id, payload = _request(job, number, reply_to)
                waiting[request_id] = answer = asyncio.get_running_loop().create_future()
                started = time.perf_counter()
                await redis.publish(f"{prefix}{asked}", payload)
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
    result = {"ms": ms, "seconds": seconds, "bytes": max(sizes), "failed": failed}
    return {**result, "recalled": recalled, "hits": hits}


def _request(job: dict[str, Any], number: int, reply_to: str) -> tuple[str, bytes]:
    owner = job["owners"][number % len(job["owners"])]
    text = job["texts"][number % len(job["texts"])] if "texts" in job else None
    if "layout" in job:
        return build_request(owner, job["layout"], reply_to, text=text, recall=job.get("recall"))
    return search_request(owner, str(text), reply_to)


def main() -> None:
    """Do the jobs until stdin ends."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(ask(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
