"""How fast long-term memory is, on made texts: searches, builds with `[RECALL]`, and indexing beside builds."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any, Final

from pydantic import SecretStr

from benchmarks.bench import Bench, Measure, p50, p90
from benchmarks.conversations import Document, MadeUp, Repeated
from benchmarks.data import Owners
from benchmarks.processes import Place, Running, serving
from nexus.config import DatabaseSettings
from nexus.connections import open_store
from nexus.core.recall import MEANING, WORDS

# Messages of an owner, and within how many milliseconds half of the searches are to be answered.
_SIZES: Final[Mapping[int, float | None]] = {1_000: 5, 10_000: None, 100_000: 40}
_BUILT_OF: Final = 10_000
# An embedder takes far longer.
_INDEXED, _EMBEDDED = 20_000, 4_000
# While requests come an indexer does less.
_BESIDE: Final = 4_000
_STORED_AT_ONCE: Final = 1_000
_WARM_UP: Final = 20
_SLICE: Final = 50
_QUESTIONS: Final = 500
_OTHERS: Final = Owners("others", rows=100, number=20)
_BUSY: Final = "busy"
_POLL_S: Final = 0.05
# In this time some messages are indexed, or none will be.
_LONGEST_S: Final = 60.0

Texts = MadeUp | Repeated


def searches(bench: Bench, texts: Texts, embedder: str) -> list[Measure]:
    """Searches from the bus, one at a time, of owners with few and many messages."""
    place = bench.place("search", [])
    sizes = {size: bar for size, bar in _SIZES.items() if size <= bench.extent.most_messages}
    for size in sizes:
        asyncio.run(record(place, texts.documents(str(size), size)))
    questions = [texts.question() for _ in range(_QUESTIONS)]
    measures = []
    with serving_recall(place, embedder):
        wait_until_done(bench, place)
        for size, bar in sizes.items():
            ask = _asking(bench, place, [str(size)], texts=questions)
            ask(_WARM_UP, 0)
            number = bench.extent.one_at_a_time
            results = [ask(number, round_number * number) for round_number in range(bench.extent.rounds)]
            name = f"search of {size:,} messages"
            measures.append(Measure(f"{name}, p50", bar, [p50([result]) for result in results], "ms"))
            measures.append(Measure(f"{name}, p90", None, [p90([result]) for result in results], "ms"))
    return measures


def builds(bench: Bench, texts: Texts, embedder: str) -> list[Measure]:
    """Contexts with `[RECALL]` against those without, of one owner, whose new input asks for something."""
    place = bench.place("builds", [])
    asyncio.run(record(place, texts.documents("owner", _BUILT_OF)))
    questions = [texts.question() for _ in range(_QUESTIONS)]
    measures = []
    with serving_recall(place, embedder):
        wait_until_done(bench, place)
        for layout in ("dialogue", "agent"):
            asking = partial(_asking, bench, place, ["owner"], layout=layout, texts=questions)
            recalling, plain = asking(recall=True), asking(recall=False)
            recalled = recalling(_WARM_UP, 0)["recalled"]
            if recalled < _WARM_UP / 2:
                raise SystemExit(f"only {recalled} of {_WARM_UP} contexts have [RECALL]")
            plain(_WARM_UP, 0)
            pairs = bench.alternate(recalling, plain, bench.extent.one_at_a_time)
            ratios = [p50(one) / p50(other) for one, other in pairs]
            measures.append(Measure(f"{layout} with [RECALL] ÷ without, {_BUILT_OF:,} messages, p50", 2.5, ratios))
    return measures


def indexing(bench: Bench, texts: Texts, embedder: str) -> list[Measure]:
    """How fast one replica indexes, and builds of other owners while it does against those while it does not."""
    place = bench.place("indexing", [_OTHERS])
    number = _INDEXED if embedder == "off" else _EMBEDDED
    asyncio.run(record(place, texts.documents(_BUSY, number)))
    others = _asking(bench, place, [_OTHERS.key(each) for each in range(_OTHERS.number)], layout="dialogue")
    rates, ratios = [], []
    with serving_recall(place, embedder):
        wait_until_done(bench, place)
        others(_WARM_UP, 0)
        for _ in range(bench.extent.rounds):
            asyncio.run(_mark_again(place, number))
            rates.append(wait_until_done(bench, place))
            asyncio.run(_mark_again(place, _BESIDE))
            beside = []
            # The others' inputs are indexed, too, as they come.
            while _waiting(bench, place, owner_key=_BUSY):
                beside.append(others(_SLICE, 0))
            # Of the last slice a part was alone.
            beside = beside[:-1]
            ratios.append(p50(beside) / p50([others(_SLICE, 0) for _ in beside]))
    return [
        Measure("messages indexed a second", None, rates, at_least=2_000 if embedder == "off" else None),
        Measure("build of another owner while messages are indexed ÷ while not, p50", 1.1, ratios),
    ]


MEASURES: Final[Mapping[str, Callable[[Bench, Texts, str], list[Measure]]]] = {
    "searches": searches,
    "builds": builds,
    "indexing": indexing,
}


def _asking(bench: Bench, place: Place, owners: list[str], **job: Any) -> Callable[[int, int], Any]:
    """What asks so many requests from the so manieth on; see `benchmarks.requester`."""
    return lambda requests, first: bench.requester.ask(place, owners, requests=requests, first=first, **job)


def serving_recall(place: Place, embedder: str) -> AbstractContextManager[Running]:
    """A replica with this embedder."""
    return serving(place, extra={"NEXUS_RECALL__EMBEDDER": embedder})


def database(place: Place) -> DatabaseSettings:
    """The settings of the store at the place."""
    return DatabaseSettings(uri=SecretStr(place.mongo_uri), name=place.name)


async def record(place: Place, documents: Iterable[Document]) -> None:
    """Store messages as the service does, so that they wait to be indexed."""
    rows = iter(documents)
    async with open_store(database(place)) as store:
        await store.prepare()
        while batch := [*islice(rows, _STORED_AT_ONCE)]:
            for outcome in await store.insert_messages(batch):
                if isinstance(outcome, Exception):
                    raise outcome


async def _mark_again(place: Place, number: int) -> None:
    """Have so many messages of the busy owner indexed again, as `nexus recall index --again` does."""
    async with open_store(database(place)) as store:
        for skip in range(0, number, _STORED_AT_ONCE):
            await store.recall.mark(_BUSY, limit=_STORED_AT_ONCE, again=True, skip=skip)


def _waiting(bench: Bench, place: Place, **only: str) -> int:
    messages = bench.mongo[place.name]["messages"]
    return messages.count_documents({"recall.work": {"$in": [WORDS, MEANING]}, **only})


def wait_until_done(bench: Bench, place: Place) -> float:
    """Wait until every message is indexed; how many messages a second that were."""
    started = changed = time.perf_counter()
    number = before = _waiting(bench, place)
    while waiting := _waiting(bench, place):
        if waiting != before:
            before, changed = waiting, time.perf_counter()
        elif time.perf_counter() - changed > _LONGEST_S:
            raise SystemExit(
                f"{waiting:,} of {number:,} messages are not indexed, and no more of them were for a minute"
            )
        time.sleep(_POLL_S)
    return number / (time.perf_counter() - started)
