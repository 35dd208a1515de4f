"""Records of builds (contract §13): what they cost a build, and how large they are beside what was sent."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from redis.asyncio import Redis

from benchmarks.bench import Bench, Measure, console, p50
from benchmarks.conversations import MadeUp
from benchmarks.data import Owners
from benchmarks.processes import Place, serving
from nexus.client import ContextClient, new_run
from nexus.connections import open_client

_LAYOUTS: Final = ("dialogue", "agent", "thinking")
_OWNERS: Final = Owners("talkative", rows=300, number=10)
_SHOWN: Final = 200
_WARM_UP: Final = 40
_SESSION_OF: Final = "ada"
_LONGEST_S: Final = 60.0
_COLLECTIONS: Final = ("context_records", "context_pieces")


def records(bench: Bench) -> list[Measure]:
    """Builds with records against builds without, and a session's records against the bytes of its answers."""
    return [*_times(bench), *(measure for layout in _LAYOUTS for measure in _size(bench, layout))]


def _times(bench: Bench) -> Iterator[Measure]:
    shown = {"NEXUS_MEMORY__HISTORY_CONTEXT_SIZE": str(_SHOWN)}
    full, off = (bench.place(f"record_{record}", [_OWNERS]) for record in ("full", "off"))
    with (
        serving(full, extra={**shown, "NEXUS_CONTEXT__RECORD": "full"}),
        serving(off, extra={**shown, "NEXUS_CONTEXT__RECORD": "off"}),
    ):
        for layout in _LAYOUTS:
            recording, plain = (partial(_ask, bench, place, layout) for place in (full, off))
            size = recording(_WARM_UP, 0)["bytes"]
            plain(_WARM_UP, 0)
            rounds = bench.alternate(recording, plain, 2 * bench.extent.one_at_a_time)
            pairs = [(p50(one), p50(other)) for one, other in rounds]
            name = f"{layout}, answers of {size // 1_000} KB, p50"
            yield Measure(f"{name} with records", None, [one for one, _ in pairs], "ms")
            yield Measure(f"{name} without", None, [other for _, other in pairs], "ms")
            yield Measure(f"{name}, with ÷ without", 1.05, [one / other for one, other in pairs])


def _ask(bench: Bench, place: Place, layout: str, requests: int, first: int) -> Any:
    return bench.ask(place, _OWNERS, layout, requests, first=first)


def _size(bench: Bench, layout: str) -> list[Measure]:
    turns = bench.extent.turns
    place = bench.place(f"session_{layout}", [])
    with serving(place):
        sent = asyncio.run(_play(place, turns, layout))
    # The service has ended, and written all records before.
    database = bench.mongo[place.name]
    recorded = database["context_records"].count_documents({})
    if recorded != len(sent):
        raise SystemExit(f"{len(sent)} answers left {recorded} records")
    # What is on the disk is known after a checkpoint.
    bench.mongo.admin.command("fsync")
    documents, disk, indexes = 0, 0, 0
    for name in _COLLECTIONS:
        (size,) = database[name].aggregate([{"$group": {"_id": None, "bytes": {"$sum": {"$bsonSize": "$$ROOT"}}}}])
        stats = database.command("collStats", name)
        documents += size["bytes"]
        disk += stats["storageSize"]
        indexes += stats["totalIndexSize"]
        console.print(
            f"{layout}, {name}: {stats['count']:,} documents of {size['bytes']:,} bytes; on the disk "
            f"{stats['storageSize']:,}, and {stats['totalIndexSize']:,} of indexes"
        )
    in_all = sum(sent.values())
    console.print(
        f"{layout}: {len(sent)} answers of {in_all:,} bytes; documents of {documents:,}, on the disk {disk:,}"
    )
    about = f"{layout}, {turns} turns: records ÷ bytes sent"
    return [
        Measure(f"{about}, on the disk", 0.15, [disk / in_all]),
        Measure(f"{about}, with indexes", None, [(disk + indexes) / in_all]),
        Measure(f"{about}, as documents", None, [documents / in_all]),
    ]


async def _play(place: Place, turns: int, layout: str) -> dict[str, int]:
    """A session of so many turns. Returns the bytes of each answer, as a subscriber to them receives it.

    A turn is a question and an answer; in the layout `agent` with a call of a tool, and a second context, between.
    """
    words, sent = MadeUp(), dict[str, int]()
    async with Redis.from_url(place.redis_url) as redis, redis.pubsub() as pubsub:
        await pubsub.psubscribe(f"{place.prefix}context.build.response*")
        async with open_client(place.redis_url, channel_prefix=place.prefix) as client:
            builds = 0
            for number in range(turns):
                builds += await _turn(client, words, number, layout)
                while len(sent) < builds:
                    heard = await pubsub.get_message(ignore_subscribe_messages=True, timeout=_LONGEST_S)
                    if heard:
                        sent[json.loads(heard["data"])["metadata"]["request_id"]] = len(heard["data"])
    return sent


async def _turn(client: ContextClient, words: MadeUp, number: int, layout: str) -> int:
    """One turn; how many contexts it took."""
    builds = 1
    run = new_run(_SESSION_OF, _text(words, 2), layout=layout, session_id="s")
    await client.build(run, timeout=_LONGEST_S)
    if layout == "agent":
        call_id = f"call_{number}"
        call = {"id": call_id, "name": "survey", "arguments": {"query": words.question()}}
        run.history.append(await client.record_answer(run, {"content": "", "tool_calls": [call]}))
        run.history.append(await client.record_tool_result(run, call_id, _text(words, 12), name="survey"))
        await client.build(run, timeout=_LONGEST_S)
        builds += 1
    await client.record_answer(run, _text(words, 6))
    return builds


def _text(words: MadeUp, sentences: int) -> str:
    return "\n".join(words.message() for _ in range(sentences))
