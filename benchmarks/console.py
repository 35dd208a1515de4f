"""How long the console's pages take where there is much: a million rows of ten thousand owners.

    python -m benchmarks.console            # makes the database at first, which takes some minutes, and keeps it
    python -m benchmarks.console --drop     # removes it afterwards

Needs NEXUS_TEST_REDIS_URL and NEXUS_TEST_MONGO_URI. Pages are found by links from the first one, those of the owners
that have much among them. Each is asked several times; what counts is the time until the whole page is there.
"""

import argparse
import asyncio
import hashlib
import html
import os
import re
import socket
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
from bson import ObjectId
from pymongo import MongoClient
from redis import Redis
from rich.table import Table

from benchmarks.bench import console
from benchmarks.processes import Place, serving
from benchmarks.recall_speed import database
from nexus.client import new_run
from nexus.config import BusSettings
from nexus.connections import open_bus, open_client, open_store
from nexus.core.ports import DeadLetter

# The name of the database, which stays.
_NAME: Final = "nexus_console_bench"
_AT_MOST_MS: Final = 300.0
_OWNERS, _ROWS = 10_000, 1_000_000
# One owner has so many rows and turns in one session, another so many sessions.
_LONG, _LONG_ROWS, _TURNS = "long", 100_000, 20_000
_MANY, _SESSIONS = "many-sessions", 5_000
_STATEMENTS, _REVISIONS, _DETAILS, _COMPACTIONS, _RECORDS, _LETTERS = 4_000, 100, 1_000, 200, 3_000, 5_000
_ROWS_A_RUN: Final = 5
_SECOND: Final = timedelta(seconds=1)
_FIRST: Final = datetime(2025, 1, 1, tzinfo=UTC)
_TEXT: Final = "The boat is in the harbour, and high tide is at noon on Sunday; we sail if the wind turns west. " * 4
_BATCH: Final = 10_000
_HREF: Final = re.compile(r'\bhref="([^"]*)"')
_ROOT: Final = "/console/"
_LONGEST_S: Final = 120.0
# Pages that only a form leads to.
_ASKED: Final = {"recall": {"question": "boat harbour tide"}}

Document = dict[str, Any]


def make(place: Place, mongo: MongoClient[Document]) -> None:
    """Fill the database, and last of all its indexes."""
    db = mongo[place.name]
    kept = {"owner_key": _LONG, "session_id": "default"}
    rest = _ROWS - _LONG_ROWS - _SESSIONS * _ROWS_A_RUN
    numbers = count()
    _insert(db["messages"], _rows(_LONG, "default", _LONG_ROWS, numbers))
    _insert(
        db["messages"],
        (row for each in range(_SESSIONS) for row in _rows(_MANY, f"session {each:05}", _ROWS_A_RUN, numbers)),
    )
    others = _OWNERS - 2
    for_each = rest // others
    for number in range(others):
        size = for_each + (number < rest % others)
        _insert(db["messages"], _rows(f"owner-{number:05}", "default", size, numbers))
    _insert(db["turns"], ({**kept, **_turn(number)} for number in range(_TURNS)))
    _insert(db["facts"], (_statement(number) for number in range(_STATEMENTS)))
    _insert(db["working_memory"], ({**kept, **_overview(number)} for number in range(_REVISIONS)))
    _insert(db["memory_details"], ({**kept, **_detail(number)} for number in range(_DETAILS)))
    _insert(db["compactions"], ({**kept, **_compaction(number)} for number in range(_COMPACTIONS)))
    asyncio.run(_prepare(place))


def _insert(collection: Any, documents: Iterable[Document]) -> None:
    waiting = iter(documents)
    while batch := [*islice(waiting, _BATCH)]:
        collection.insert_many(batch, ordered=False)


def _row_id(number: int) -> ObjectId:
    return ObjectId(f"{int(_at(number).timestamp()):08x}{number:016x}")


def _at(number: int) -> datetime:
    return _FIRST + number * _SECOND * 30


def _rows(owner: str, session: str, size: int, numbers: Iterator[int]) -> Iterator[Document]:
    """Runs of an input, a call, its result, a thought and an answer."""
    for place in range(size):
        run, step = divmod(place, _ROWS_A_RUN)
        number = next(numbers)
        call = {"id": f"call_{run}", "name": "tides", "arguments": {"day": "Sunday"}}
        metadata: Document = {"source": "new_run"}
        if step == 1:
            metadata = {"tool_calls": [call], "has_tool_calls": True}
        elif step == 2:  # noqa: PLR2004  # the result
            metadata = {"tool_name": "tides", "call_id": f"call_{run}", "status": "success"}
        yield {
            "_id": _row_id(number),
            "id": f"m{number}",
            "run_id": f"{session}-run-{run}",
            "owner_key": owner,
            "session_id": session,
            "role": ("HUMAN", "AI", "TOOL", "AI", "AI")[step],
            "content": f"{number}: {_TEXT}",
            "timestamp": _at(number),
            "metadata": metadata,
        }


def _turn(number: int) -> Document:
    structured = {"overview": _TEXT[:100], "actions": ["tides(day=Sunday)"], "results": ["noon"]}
    return {
        "id": f"turn_{number + 1}_{number}",
        "turn_number": number + 1,
        "run_id": f"default-run-{number}",
        "timestamp": _at(number * _ROWS_A_RUN),
        "status": "completed",
        "task_context": "Sail on Sunday.",
        "workspace_context": "",
        "messages": [f"m{number * _ROWS_A_RUN + step}" for step in range(_ROWS_A_RUN)],
        "removed": [],
        "thinking_phase": None,
        "tool_calls": [{"name": "tides", "arguments": {"day": "Sunday"}, "success": True, "result": _TEXT}],
        "summaries": {"brief": _TEXT[:100], "detailed": _TEXT, "structured": structured, "source": "fallback"},
        "insights": ["High tide is at noon."],
        "token_usage": {"thinking": 0, "action": 0, "total": 0},
        "given_up": "",
        "work": None,
        "due_at": None,
    }


def _statement(number: int) -> Document:
    return {
        "id": f"s{number:05}",
        "owner_key": _LONG,
        "topic": f"topic {number // 20}",
        "sub_topic": f"sub {number // 4}",
        "value": f"{number}: {_TEXT[:80]}",
        "level": "explicit",
        "evidence": [f"m{number * _ROWS_A_RUN}"],
        "session_id": "default",
        "source": "message",
        "said_at": _at(number),
        "retires": False,
    }


def _overview(number: int) -> Document:
    content = f"# Sailing {number}\n\n- {_TEXT}\n" + _TEXT * 8
    return {"revision": number + 1, "content": content, "updated_at": _at(number), "author": "model"}


def _detail(number: int) -> Document:
    content = _TEXT * 20
    about = {"name": f"note {number:04}", "version": 1, "kind": "note", "bytes": len(content)}
    return {**about, "content": content, "updated_at": _at(number), "compaction": None, "call_id": ""}


def _compaction(number: int) -> Document:
    each = (_LONG_ROWS - _ROWS_A_RUN) // _COMPACTIONS
    return {
        "number": number + 1,
        "created_at": _at(number * each),
        "target": "all",
        "strategy": "summarize",
        "trigger": "automatic",
        "summary": f"- {_TEXT}\n" * 5,
        "source": "fallback",
        "rows": [str(_row_id(place)) for place in range(number * each, (number + 1) * each)],
        "removed": [],
        "count": each,
        "total": each * (number + 1),
        "since": str(_row_id((number + 1) * each))[:8],
        "without": [],
        "details": [],
        "work": None,
        "due_at": None,
    }


async def _prepare(place: Place) -> None:
    async with open_store(database(place)) as store:
        await store.prepare()


async def tell(place: Place, mongo: MongoClient[Document]) -> None:
    """Have the service build a context and an error, and make many records of each; rules; dead letters."""
    async with open_client(place.redis_url, channel_prefix=place.prefix) as client:
        rules = [{"text": f"Rule {number}: {_TEXT[:60]}", "scope": "owner"} for number in range(50)]
        await client.send_constraints(_LONG, {"op": "add", "constraints": rules})
        await client.build(new_run(_LONG, "When is high tide on Sunday?", layout="agent"), timeout=_LONGEST_S)
    records = mongo[place.name]["context_records"]
    ends = time.monotonic() + _LONGEST_S
    while not (record := records.find_one({"owner_key": _LONG})):
        if time.monotonic() > ends:
            raise SystemExit("the record of a context was not kept in time")
        await asyncio.sleep(0.1)
    del record["_id"]
    later = datetime.now(UTC) + timedelta(days=365)
    mongo[place.name]["context_pieces"].update_many({}, {"$set": {"expires_at": later}})

    def records_of(number: int) -> Document:
        at = record["answered_at"] - number * _SECOND
        made = {**record, "request_id": f"req{number:06}", "answered_at": at, "expires_at": later}
        failed = {"outcome": "UNKNOWN_LAYOUT", "reason": "run.metadata.layout: 'chat' is unknown", "is_failure": True}
        return made | failed if number % 3 == 0 else made

    _insert(records, map(records_of, range(_RECORDS)))
    bus = BusSettings(url=place.redis_url, channel_prefix=place.prefix, dead_letter_bodies=True)
    async with open_bus(bus) as transport:
        for number in range(_LETTERS):
            body = f"{number}: {_TEXT}".encode()
            sha256 = hashlib.sha256(body).hexdigest()
            letter = DeadLetter("llm.results", "not JSON", sha256, len(body), message_id=f"m{number}", body=body)
            await transport.dead_letters.keep(letter)


def measure(address: str, rounds: int, most: int) -> dict[str, list[tuple[float, str]]]:
    """Milliseconds and address of each answer, by the name of the page."""
    waiting = deque([f"{address}{_ROOT}"])
    waiting += [f"{address}{_ROOT}owner?{urlencode({'owner': owner})}" for owner in (_LONG, _MANY)]
    waiting += [f"{address}{_ROOT}{page}?{urlencode({'owner': _LONG, **asked})}" for page, asked in _ASKED.items()]
    seen, refused = {*waiting}, set[str]()
    times = defaultdict[str, list[tuple[float, str]]](list)
    with httpx2.Client(timeout=_LONGEST_S) as client:
        while waiting:
            url = waiting.popleft()
            name = urlsplit(url).path.removeprefix(_ROOT)
            if len(times.get(name, ())) >= most * rounds or name in refused or name == "console.css":
                continue
            answer = client.get(url)
            if answer.status_code != httpx2.codes.OK:
                console.print(f"[bold red]{answer.status_code}[/] {url}")
                refused.add(name)
                continue
            for _ in range(rounds):
                started = time.perf_counter()
                client.get(url)
                times[name].append(((time.perf_counter() - started) * 1e3, url))
            for href in _HREF.findall(answer.text):
                link = f"{address}{html.unescape(href)}"
                owner = parse_qs(urlsplit(link).query).get("owner", [""])[0]
                if link not in seen and owner in {"", _LONG, _MANY, "owner-00000"}:
                    seen.add(link)
                    waiting.append(link)
    return times


def report(times: dict[str, list[tuple[float, str]]]) -> None:
    """Print the table, slow pages with an address."""
    table = Table(title=f"milliseconds until a page is there; at most {_AT_MOST_MS:g}", title_justify="left")
    for column in ("page", "addresses", "p50", "p95", "max"):
        table.add_column(column, justify="left" if column == "page" else "right")
    table.add_column("slowest", overflow="fold")
    for name, found in sorted(times.items()):
        all_ms = sorted(ms for ms, _ in found)
        p95 = all_ms[min(len(all_ms) - 1, round(len(all_ms) * 0.95))]
        slow = max(found)[1].partition(_ROOT)[2] if p95 > _AT_MOST_MS else ""
        addresses = str(len({url for _, url in found}))
        style = "bold red" if slow else None
        row = (f"{value:.0f}" for value in (statistics.median(all_ms), p95, all_ms[-1]))
        table.add_row(name or "(first)", addresses, *row, slow, style=style)
    console.print(table)


def main() -> None:
    """Make what is not there, measure, and print the table."""
    words = argparse.ArgumentParser(
        prog="python -m benchmarks.console", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--addresses", type=int, default=10, help="of one page, at most")
    words.add_argument("--drop", action="store_true", help="remove the database afterwards")
    given = words.parse_args()
    redis_url, mongo_uri = (os.environ.get(name, "") for name in ("NEXUS_TEST_REDIS_URL", "NEXUS_TEST_MONGO_URI"))
    if not (redis_url and mongo_uri):
        raise SystemExit("Benchmarks need a real Redis and MongoDB: set NEXUS_TEST_REDIS_URL and NEXUS_TEST_MONGO_URI.")
    place = Place(redis_url, mongo_uri, _NAME)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with MongoClient[Document](mongo_uri) as mongo:
        db = mongo[place.name]
        if db["made"].find_one() is None:
            mongo.drop_database(place.name)
            with console.status("making a million rows"):
                make(place, mongo)
        with serving(place, extra={"NEXUS_SYSTEM__HTTP_PORT": str(port)}):
            if db["made"].find_one() is None:
                with console.status("making records and dead letters"):
                    asyncio.run(tell(place, mongo))
                db["made"].insert_one({"rows": _ROWS})
            report(measure(f"http://127.0.0.1:{port}", given.rounds, given.addresses))
        if given.drop:
            mongo.drop_database(place.name)
            with Redis.from_url(redis_url) as redis:
                for key in redis.scan_iter(f"{place.prefix}*", count=1_000):
                    redis.unlink(key)


if __name__ == "__main__":
    main()
