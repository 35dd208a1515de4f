"""What contexts cost in processor time, bytes and memory, and what a model of that predicts (docs/scale.md).

`python -m benchmarks scale` measures one replica in the mode `streams`, predicts the rates of 1, 2 and 4, and asks them
in the same run. All of it is on one machine: the model shares its processors out among all processes.
"""

import asyncio
import json
import os
import random
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.bench import Bench, Measure
from benchmarks.data import Owners, build_request
from benchmarks.processes import Place, Running, serving

_LAYOUTS: Final = ("dialogue", "agent", "thinking")
_OWNERS: Final = Owners("usual", rows=100, number=200)
_REPLICAS: Final = (1, 2, 4)
_AT_ONCE: Final = 32
_WARM_UP: Final = 100
_STREAMS: Final = {"NEXUS_BUS__MODE": "streams"}
# Words are made of them, so that texts are no shorter on the disk than those of people.
_SYLLABLES: Final = [
    first + last for first in "bdfghklmnprstvw" for last in ("a", "e", "i", "o", "u", "an", "er", "is")
]
_WORDS_SAID: Final = 50


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run, a build and a result: processor milliseconds by process, and bytes.

    They went over the bus, or are kept in Redis for the default times.
    """

    nexus_ms: float
    redis_ms: float
    mongo_ms: float
    asking_ms: float
    in_bytes: float
    out_bytes: float
    kept_bytes: float

    @property
    def all_ms(self) -> float:
        """Of all processes together."""
        return self.nexus_ms + self.redis_ms + self.mongo_ms + self.asking_ms


def scale(bench: Bench) -> list[Measure]:
    """Costs of one replica by layout, and the rates of several, as predicted and as measured."""
    runs = bench.extent.at_once // 2
    costs: dict[str, list[Cost]] = {layout: [] for layout in _LAYOUTS}
    measured: dict[int, list[float]] = {count: [] for count in _REPLICAS}
    processors = len(os.sched_getaffinity(0))
    measures = []
    for number in range(bench.extent.rounds):
        for layout in _LAYOUTS:
            _, cost = _rate(bench, f"{layout}_{number}", 1, layout, runs)
            costs[layout].append(cost)
        for count in _REPLICAS:
            rate, _ = _rate(bench, f"rate_{count}_{number}", count, "dialogue", runs)
            measured[count].append(rate)
    for layout, found in costs.items():
        for each in fields(Cost):
            kind, _, unit = each.name.partition("_")
            values = [getattr(cost, each.name) for cost in found]
            measures.append(Measure(f"{layout}, a run: {kind} {unit}", None, values))
    for count in _REPLICAS:
        predicted = [predict(cost, count, processors) for cost in costs["dialogue"]]
        measures.append(Measure(f"{count} replicas: runs a second, predicted", None, predicted))
        measures.append(Measure(f"{count} replicas: runs a second, measured", None, measured[count]))
        ratios = [found / expected for found, expected in zip(measured[count], predicted, strict=True)]
        measures.append(Measure(f"{count} replicas: measured ÷ predicted", None, ratios))
    return [*measures, *_sizes(bench)]


def predict(cost: Cost, replicas: int, processors: int) -> float:
    """Runs a second: a replica computes on one processor, and all processes share those that there are."""
    return min(replicas * 1_000 / cost.nexus_ms, processors * 1_000 / cost.all_ms)


def _rate(bench: Bench, name: str, replicas: int, layout: str, runs: int) -> tuple[float, Cost]:
    """Runs a second of so many replicas, and what a run cost."""
    place = bench.place(f"scale_{name}", [_OWNERS])
    with _serving(place, replicas) as running, Redis.from_url(bench.redis_url) as redis:
        asyncio.run(_play(place, layout, _WARM_UP, 0))
        pids = {
            "nexus": [each.pid for each in running],
            "redis": [redis.info("server")["process_id"]],
            "mongo": [bench.mongo.admin.command("serverStatus")["pid"]],
            "asking": [os.getpid()],
        }
        held = redis.info("memory")["used_memory"]
        before, began = {kind: sum(map(_cpu_s, those)) for kind, those in pids.items()}, time.perf_counter()
        sent, received = asyncio.run(_play(place, layout, runs, _WARM_UP))
        seconds = time.perf_counter() - began
        used = {kind: sum(map(_cpu_s, those)) - before[kind] for kind, those in pids.items()}
        kept = redis.info("memory")["used_memory"] - held
    ms = {f"{kind}_ms": 1_000 * value / runs for kind, value in used.items()}
    return runs / seconds, Cost(**ms, in_bytes=sent / runs, out_bytes=received / runs, kept_bytes=kept / runs)


@contextmanager
def _serving(place: Place, replicas: int) -> Iterator[list[Running]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(place, extra=_STREAMS)) for _ in range(replicas)]


async def _play(place: Place, layout: str, runs: int, first: int) -> tuple[int, int]:
    """Play runs, 32 at once: a context, then an answer of the model. Returns the bytes that went either way."""
    reply_to = f"scale_{uuid.uuid4().hex[:8]}"
    waiting: dict[str, asyncio.Future[None]] = {}
    sent = received = 0
    async with AsyncRedis.from_url(place.redis_url) as redis:

        async def listen() -> None:
            nonlocal received
            stream, after = f"{place.prefix}context.build.response.{reply_to}", "0"
            while True:
                found: Any = await redis.xread({stream: after}, count=100, block=1_000)
                for _, entries in found or ():
                    for entry, message in entries:
                        after = entry
                        received += len(message[b"message"])
                        answer = json.loads(message[b"message"])
                        if answer["content"]["status"] != "success":
                            raise SystemExit(f"a request failed: {answer['content']['error']}")
                        waiting.pop(answer["metadata"]["request_id"]).set_result(None)

        async def work(numbers: range) -> None:
            nonlocal sent
            for number in numbers:
                owner = _OWNERS.key(number)
                request_id, payload = build_request(owner, layout, reply_to, text=_said())
                waiting[request_id] = answered = asyncio.get_running_loop().create_future()
                await redis.xadd(f"{place.prefix}context.build.request", {"message": payload})
                await answered
                said = _result(owner, json.loads(payload)["run_id"])
                await redis.xadd(f"{place.prefix}llm.results", {"message": said})
                sent += len(payload) + len(said)

        listening = asyncio.create_task(listen())
        numbers = range(first, first + runs)
        await asyncio.gather(*(work(numbers[place::_AT_ONCE]) for place in range(_AT_ONCE)))
        await _until_done(redis, f"{place.prefix}llm.results")
        listening.cancel()
    return sent, received


def _result(owner: str, run_id: str) -> bytes:
    ids = {"id": f"msg_{uuid.uuid4().hex}", "run_id": run_id, "owner_key": owner}
    content = {"content": _said(), "tool_calls": None}
    return json.dumps({**ids, "role": "AI", "content": content, "metadata": {}}).encode()


def _said() -> str:
    words = ("".join(random.choices(_SYLLABLES, k=random.randint(1, 3))) for _ in range(_WORDS_SAID))  # noqa: S311
    return " ".join(words)


async def _until_done(redis: "AsyncRedis", stream: str) -> None:
    while True:
        groups: Any = await redis.xinfo_groups(stream)
        if not any(group["pending"] or group["lag"] for group in groups):
            return
        await asyncio.sleep(0.02)


def _sizes(bench: Bench) -> list[Measure]:
    """What a message takes in MongoDB, with its indexes, its turn and its record."""
    (name,) = [each for each in bench.mongo.list_database_names() if each.endswith("scale_rate_1_0")]
    database = bench.mongo[name]
    bench.mongo.admin.command("fsync")
    rows = database["messages"].estimated_document_count()
    runs = database["turns"].estimated_document_count()
    found = []
    for collection, of in (("messages", rows), ("turns", runs), ("context_records", runs), ("context_pieces", runs)):
        stats: Mapping[str, Any] = database.command("collStats", collection)
        what = "a row" if collection == "messages" else "a run"
        found += [
            Measure(f"{collection}: bytes {what}, on the disk", None, [stats["storageSize"] / of], "B"),
            Measure(f"{collection}: bytes of indexes {what}", None, [stats["totalIndexSize"] / of], "B"),
        ]
    return found


def _cpu_s(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
