"""The promises of `nexus.core.ports.Store`, on every adapter and on the fake that other tests use."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any

import anyio
import bson
import pytest
from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from nexus.adapters.mongo import Driver, open_mongo
from nexus.core.errors import StoreRejectedError
from nexus.core.models import BESIDE_CONTENT, Why, new_row_id
from nexus.core.ports import Row, RunOrigin, SessionSummary, Store
from nexus.core.ports.store import (
    ARGUMENTS_LEFT_OUT,
    CALLS_LEFT_OUT,
    LEFT_OUT,
    LONGEST_CONTENT,
    MOST_CALLS,
    MOST_COUNTED,
    VALUE_LEFT_OUT,
)
from nexus.core.working_memory import WHOLE, Tail
from nexus.services.history.forms import native, success_of
from nexus.services.history.transcript import transcript_of_rows
from nexus.services.memory.search import texts_of
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.rows import START, ids, moment, row

# Owners that are not just a word: operators, patterns, look-alikes, and what a database might stumble over.
OWNERS = ["", '{"$ne": ""}', "$ne", "^.*$", "o.", "O", "o ", "о", "o\x00", "null", "[]", "o" * 5_000]

MALFORMED: dict[str, Row] = {
    "no role": {"role": None},
    "another role": {"role": "ASSISTANT"},
    "a number as role": {"role": 7},
    "no metadata": {"metadata": None},
    "metadata as text": {"metadata": "tool_calls"},
    "metadata as list": {"metadata": [{"tool_calls": []}]},
    "a time as text": {"timestamp": "2024-01-01T00:00:00Z"},
    "a time that is none": {"timestamp": "yesterday"},
    "no time": {"timestamp": None},
    "a number as time": {"timestamp": 1704067200},
    "a list as time": {"timestamp": [datetime(2024, 1, 1, tzinfo=UTC), "x"]},
    "the year 10000": {"timestamp": DatetimeMS(253402300800000)},
    "before the year 1": {"timestamp": DatetimeMS(-(2**62))},
    "content as object": {"content": {"$type": "string", "a.b": "x" * 100}},
    "content as list": {"content": [{"type": "text", "text": "x" * 100}]},
    "content as number": {"content": 12345678901234567},
    "no content": {"content": None},
    "content as bytes": {"content": b"\xff" * 100},
    "an id that is no text": {"id": 5},
    "a run that is no text": {"run_id": {"$gt": ""}},
}


INTERNAL = {"sub_agent_internal": True, "agent_id": "reviewer"}
ROLES = ("HUMAN", "AI", "TOOL", "SYSTEM", "COMMAND", "tool", "HUMAN")

# Contents, and what an excerpt of 4 characters leaves of each: contents of up to 8 are left whole.
EXCERPTS = [
    ("", ""),
    ("abcdefgh", "abcdefgh"),
    ("abcdXefgh", "abcdefgh"),
    ("abcd" + "X" * 60_000 + "efgh", "abcdefgh"),
    ("яяяяXчччч", "яяяячччч"),
    ("abc😀😀😀efg", "abc😀😀efg"),
    ("e\u0301" * 4 + "Xe\u0301", "e\u0301e\u0301" + "e\u0301Xe\u0301"[-4:]),
    ("👩‍👩‍👧‍👦" * 3, ("👩‍👩‍👧‍👦" * 3)[:4] + ("👩‍👩‍👧‍👦" * 3)[-4:]),
    ("a\x00b\r\nc\u2028defgh", "a\x00b\refgh"),
    ("$$ROOT$$ROOT", "$$ROROOT"),
    *(("x" * 5_000 + text * 20 + "x", "xxxx" + (text * 20 + "x")[-4:]) for text in ("x", "я", "界", "😀", "a😀я")),
]


@dataclass(frozen=True)
class Place:
    """A store that is tested, and how to put documents there that it would not write itself."""

    open: Callable[[], AbstractAsyncContextManager[Store]]
    plant: Callable[[str, Sequence[Row]], None]


@pytest.fixture(params=["fake", *DRIVERS])
def place(request: pytest.FixtureRequest) -> Place:
    """Where the test runs."""
    return _place(request, "prepared_database")


@pytest.fixture(params=["fake", *DRIVERS])
def bare_place(request: pytest.FixtureRequest) -> Place:
    """Where nobody has prepared anything."""
    return _place(request, "database_name")


def _place(request: pytest.FixtureRequest, database: str) -> Place:
    """The fake, or a store on the database which that fixture names."""
    if request.param == "fake":
        fake = FakeStore()

        @asynccontextmanager
        async def open_fake() -> AsyncIterator[Store]:
            yield fake

        return Place(open_fake, fake.plant)
    uri, name = request.getfixturevalue("mongo_uri"), request.getfixturevalue(database)
    janitor: MongoClient[dict[str, Any]] = request.getfixturevalue("mongo_janitor")

    def plant(collection: str, documents: Sequence[Row]) -> None:
        try:
            janitor[name][collection].insert_many([dict(document) for document in documents])
        except OperationFailure as error:
            pytest.skip(
                f"this server does not keep such a document ({error.code}): secantusdb decodes what it is given"
            )

    return Place(lambda: _opened(uri, name, request.param), plant)


@asynccontextmanager
async def _opened(uri: str, name: str, driver: Driver) -> AsyncIterator[Store]:
    async with open_mongo(uri, name, driver=driver, timeout_ms=10_000) as store:
        yield store


async def insert_all(store: Store, rows: Sequence[Row]) -> None:
    """Record rows one after another."""
    for each in rows:
        assert await store.insert_message(each)


async def test_owners(place: Place) -> None:
    """Each once, in the order of their keys and in pages; keys that are no texts are none."""
    keys: list[Any] = ["b", "a", "b", "é", "文", "😀", "a|b", "A", "$a", "a", None, 7, "", {"x": "y"}]
    place.plant("messages", [{"owner_key": key, "id": f"m{at}"} for at, key in enumerate(keys)])
    expected = ["$a", "A", "a", "a|b", "b", "é", "文", "😀"]
    async with place.open() as store:
        assert await store.owners(limit=100) == expected
        assert await store.owners(limit=3) == expected[:3]
        assert await store.owners(after="a", limit=2) == expected[3:5]
        assert await store.owners(after="😀", limit=2) == []
        assert await store.owners(prefix="a", limit=9) == ["a", "a|b"]
        assert await store.owners(prefix="a", after="a", limit=9) == ["a|b"]
        assert await store.owners(prefix="😀", limit=9) == ["😀"]
        assert await store.owners(prefix="a", after="é", limit=9) == await store.owners(prefix="^", limit=9) == []


async def test_sessions(place: Place) -> None:
    """Those of an owner, the latest first, with rows of other writers: times that are texts, and no session at all."""
    at = [START + timedelta(days=day) for day in range(6)]
    rows: list[Row] = [
        {"session_id": "s1", "timestamp": at[0]},
        {"session_id": "s1", "timestamp": at[2]},
        {"session_id": "早餐", "timestamp": at[3]},
        {"timestamp": at[1]},
        {"session_id": "bob's", "timestamp": at[4], "owner_key": "bob"},
    ]
    place.plant(
        "messages", [{"owner_key": "ada", "run_id": "r", "role": "HUMAN", "content": "", **row} for row in rows]
    )
    async with place.open() as store:
        found = await store.sessions("ada", limit=9)
        assert found == [
            SessionSummary("早餐", 1, at[3], at[3]),
            SessionSummary("s1", 2, at[0], at[2]),
            SessionSummary("default", 1, at[1], at[1]),
        ]
        assert await store.sessions("ada", limit=1) == found[:1]
        assert await store.sessions("nobody", limit=9) == []
        assert await store.sessions("ada", limit=1, before=found[0]) == found[1:2]
        assert await store.sessions("ada", limit=9, before=found[1]) == found[2:]
        assert await store.sessions("ada", limit=9, before=found[2]) == []


async def test_messages_of_a_session_are_counted_so_far(place: Place) -> None:
    """A session of more rows than are counted says so; sessions of one time come by their names, each once."""
    rows = [row(number, session_id="long", timestamp=START) for number in range(MOST_COUNTED + 5)]
    others: list[Any] = ["b", "a", 7, {"$gt": ""}, True]
    rows += [row(2_000 + number, session_id=name, timestamp=START) for number, name in enumerate(others)]
    place.plant("messages", rows)
    async with place.open() as store:
        found = await store.sessions("o", limit=9)
        assert [(each.session_id, each.messages) for each in found] == [
            (None, 3),
            ("a", 1),
            ("b", 1),
            ("long", MOST_COUNTED + 1),
        ]
        pages = [await store.sessions("o", limit=9, before=each) for each in found]
        assert pages == [found[1:], found[2:], found[3:], []]


async def test_rows_by_the_place_where_they_were_stored(place: Place) -> None:
    """Each page goes on where the one before ended, whatever `_id`s and times other writers gave; internal ones too."""
    keys: list[Any] = [
        7,
        "a",
        "b",
        "$owner_key",
        {"of": "another"},
        *(ObjectId(f"{number:024x}") for number in range(3)),
    ]
    rows = [row(number, _id=key, session_id="s", timestamp="once") for number, key in enumerate(keys)]
    rows[6]["metadata"] = {"sub_agent_internal": True, "agent_id": "x"}
    rows[7]["timestamp"] = START
    place.plant("messages", [*rows, row(20, session_id="t"), row(21, session_id="s", owner_key="bob")])
    async with place.open() as store:
        whole = ids(await store.stored_messages("o", "s", limit=20))
        assert whole[:3] == ["m7", "m6", "m5"]
        assert sorted(whole) == [f"m{number}" for number in range(8)]
        pages, before = list[str](), ""
        while page := await store.stored_messages("o", "s", limit=3, before=before, excerpt_chars=2):
            pages += ids(page)
            before = page[-1]["_id"]
        assert pages == whole
        assert await store.stored_messages("bob", "t", limit=3) == []


async def test_a_message_whole(place: Place) -> None:
    """All of a row is there, however much, for its owner alone."""
    written = row(1, content="é" * 200_000, metadata={"raw": "x" * 200_000}, of_another=["field"])
    async with place.open() as store:
        await store.insert_message(written)
        (found,) = await store.stored_messages("o", written["session_id"], limit=5)
        whole = await store.whole_message("o", found["_id"])
        assert whole is not None
        assert {name: whole[name] for name in written} == written
        assert len(found["content"]) < len(written["content"])
        assert await store.whole_message("p", found["_id"]) is None
        assert await store.whole_message("o", "nothing") is None


async def test_rows_that_name_no_session(place: Place) -> None:
    """They are of the session `default`, whatever is read; rows whose session is no text are of none."""
    named: list[Row] = [{"session_id": None}, {"session_id": ""}, {"session_id": "default"}, {"session_id": "s"}]
    named += [{"session_id": 7}]
    rows = [row(number, **each) for number, each in enumerate(named)]
    rows[0].pop("session_id")
    place.plant("messages", rows)
    async with place.open() as store:
        summaries = {each.session_id: each.messages for each in await store.sessions("o", limit=9)}
        assert (summaries["default"], summaries["s"]) == (3, 1)
        reads = [
            await store.session_messages("o", "default", limit=9),
            await store.tail_messages("o", "default", WHOLE, limit=9),
            await store.search_messages("o", "default", "text", limit=9, texts_of=texts_of),
        ]
        for found in reads:
            assert ids(found) == ["m2", "m1", "m0"]
        assert ids(await store.session_messages("o", "default", limit=1, skip=1)) == ["m1"]
        found = await store.tail_messages("o", "default", WHOLE, limit=2, oldest_first=True)
        assert ids(found) == ["m0", "m1"]
        first = await store.first_input("o", "default")
        assert first is not None
        assert first["id"] == "m0"
        of_runs = await store.retention.rows_of_runs("o", "default", [f"r{number}" for number in range(5)])
        assert {each["id"] for each in of_runs} == {"m0", "m1", "m2"}
        assert ids(await store.session_messages("o", "s", limit=9)) == ["m3"]
        for empty in ("None", "null"):
            assert await store.session_messages("o", empty, limit=9) == []


async def test_sessions_with_texts_as_times(place: Place) -> None:
    """They are read, and what is no time is none."""
    rows = [("s1", "2026-01-02T03:04:05Z"), ("s2", "yesterday")]
    place.plant(
        "messages",
        [
            {"owner_key": "ada", "session_id": session, "run_id": "r", "role": "AI", "content": "", "timestamp": time}
            for session, time in rows
        ],
    )
    async with place.open() as store:
        moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        assert await store.sessions("ada", limit=9) == [
            SessionSummary("s1", 1, moment, moment),
            SessionSummary("s2", 1, None, None),
        ]


async def test_a_row_comes_back_as_it_was(place: Place) -> None:
    """A row is found as it was, with an `_id` that is a text, times to the millisecond; the caller's is unchanged."""
    written = row(1, content="a\x00б😀", metadata={"tool_calls": [{"id": "c", "$x.y": 2**63 - 1}], "n": None})
    written["metadata"]["schema"] = {"$ref": "#/a", "$id": {"$ref": "b", "$id": None, "$db": "", "": 1}}
    given = dict(written)
    async with place.open() as store:
        await store.insert_message(written)
        (found,) = await store.all_messages("o", limit=5)
    assert written == given
    assert isinstance(found.pop("_id"), str)
    assert found == written


async def test_a_row_is_recorded_once(place: Place) -> None:
    """A second row with an owner's id is refused quietly and changes nothing."""
    async with place.open() as store:
        assert await store.insert_message(row(1))
        assert not await store.insert_message(row(1, content="other", run_id="other"))
        (found,) = await store.all_messages("o", limit=5)
    assert found["content"] == "text 1"


@pytest.mark.parametrize("unacceptable", [2**70, "x" * (17 << 20)], ids=["no document", "too large"])
async def test_rows_that_are_recorded_together(place: Place, unacceptable: Any) -> None:
    """Each fares by itself, whatever becomes of the others, and they are stored in their order."""
    given = new_row_id()
    async with place.open() as store:
        await store.insert_message(row(1))
        assert await store.insert_messages([row(1), row(2)]) == [False, True]
        fates = await store.insert_messages(
            [row(3, _id=given), row(2), row(4, content=unacceptable), row(5, timestamp=moment(0)), row(5)]
        )
        assert [*map(type, fates)] == [bool, bool, StoreRejectedError, bool, bool]
        assert [fates[number] for number in (0, 1, 3, 4)] == [True, False, True, False]
        found = await store.all_messages("o", limit=9)
        in_stored_order = sorted((each for each in found if each["_id"] != given), key=lambda each: str(each["_id"]))
        assert (len(found), ids(in_stored_order)) == (4, ["m1", "m2", "m5"])
        assert await store.insert_messages([row(6)]) == [True]


async def test_fifty_writers_record_a_row_once(bare_place: Place) -> None:
    """Of many writers at once one is told that it wrote, also when nobody has prepared the store."""
    written: list[bool] = []
    async with bare_place.open() as store:

        async def insert() -> None:
            written.append(await store.insert_message(row(1)))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(insert)
        assert sorted(written) == [*[False] * 49, True]
        assert len(await store.all_messages("o", limit=100)) == 1


async def test_ids_grow_in_stored_order(place: Place) -> None:
    """A later row has a greater `_id`, whatever its time."""
    async with place.open() as store:
        await insert_all(store, [row(number, timestamp=moment(-number)) for number in range(20)])
        found = await store.all_messages("o", limit=20)
    assert [each["_id"] for each in found] == sorted(each["_id"] for each in found)


async def test_newest_first(place: Place) -> None:
    """Rows come by time, in whatever order they were recorded; at equal times the later recorded is the newer."""
    async with place.open() as store:
        await insert_all(store, [row(number) for number in (3, 1, 4, 0, 2)])
        await insert_all(store, [row(number, timestamp=moment(2)) for number in (10, 11)])
        assert ids(await store.newest_messages("o", limit=10)) == ["m4", "m3", "m11", "m10", "m2", "m1", "m0"]
        assert ids(await store.all_messages("o", limit=3)) == ["m4", "m3", "m11"]


@pytest.mark.parametrize(
    "role", ["TOOL", "tool", "Tool", "SYSTEM", "system", "System", "COMMAND", "command", "Command"]
)
async def test_what_is_not_said_is_not_read(place: Place, role: str) -> None:
    """Rows of tools, system and commands are passed over without counting, and only `all_messages` has them."""
    place.plant("messages", [row(0), *[row(number, role=role) for number in range(1, 6)], row(6, run_id="r0")])
    async with place.open() as store:
        assert ids(await store.newest_messages("o", limit=2)) == ["m6", "m0"]
        assert ids(await store.newest_messages("o", limit=2, skip=1)) == ["m0"]
        assert ids(await store.messages_of_runs("o", ["r0", "r3"], limit=5)) == ["m6", "m0"]
        assert len(await store.all_messages("o", limit=10)) == 7


@pytest.mark.parametrize("owner", OWNERS)
async def test_owners_and_sessions_are_texts(place: Place, owner: str) -> None:
    """Whatever an owner, a run or a session is called, exactly those rows are found, by every operation."""
    strange = (None, {"$ne": ""}, ["o"], 1)
    place.plant("messages", [row(9, owner_key=value, id="m1", run_id="r1") for value in strange])
    named = [row(9, id=f"x{number}", session_id=value, run_id=value) for number, value in enumerate(strange)]
    place.plant("messages", named)
    async with place.open() as store:
        await store.insert_message(row(1))
        assert await store.newest_messages(owner, limit=5) == []
        assert await store.all_messages(owner, limit=5) == []
        assert await store.messages_of_runs(owner, ["r1"], limit=5) == []
        assert await store.find_message(owner, "m1") is None
        assert await store.find_origin(owner, "r1") is None
        for other, name in (("o", owner), (owner, "s"), (owner, "r1")):
            assert await store.session_messages(other, name, limit=5) == []
            assert await store.run_messages(other, name, limit=5) == []
            assert await store.first_input(other, name) is None
        await store.insert_message(row(1, owner_key=owner))
        assert [each["owner_key"] for each in await store.newest_messages(owner, limit=5)] == [owner]
        assert [each["owner_key"] for each in await store.all_messages(owner, limit=5)] == [owner]
        assert await store.find_origin(owner, "r1") == RunOrigin("s")
        await store.insert_message(row(2, session_id=owner))
        await store.insert_message(row(3, owner_key=owner, run_id=owner, session_id=owner))
        assert ids(await store.session_messages("o", owner, limit=5)) == ["m2"]
        assert ids(await store.session_messages(owner, owner, limit=5, sub_agent="x")) == ["m3"]
        assert ids(await store.run_messages(owner, owner, limit=5)) == ["m3"]
        assert (await store.first_input(owner, owner) or {})["id"] == "m3"


async def test_long_contents_lose_their_middle(place: Place) -> None:
    """Of a content longer than twice the excerpt its two ends are left, counted in code points."""
    rows = [row(number, content=content) for number, (content, _) in enumerate(EXCERPTS)]
    async with place.open() as store:
        await insert_all(store, rows)
        newest = await store.newest_messages("o", limit=50, excerpt_chars=4)
        of_runs = await store.messages_of_runs("o", [each["run_id"] for each in rows], limit=50, excerpt_chars=4)
        whole = await store.newest_messages("o", limit=50)
    assert [each["content"] for each in reversed(newest)] == [excerpt for _, excerpt in EXCERPTS]
    assert [each["content"] for each in of_runs] == [each["content"] for each in newest]
    assert [each["content"] for each in reversed(whole)] == [content for content, _ in EXCERPTS]


_HALF = LONGEST_CONTENT // 2
_LISTS: Any = [[]] * 20_000
_LONG_CALLS: list[Any] = [
    {"id": "a", "name": "flat", "arguments": {"x": _LISTS}},
    {"id": "b", "function": {"name": "nested", "arguments": "x" * 5_000}},
    {"call_id": "c", "id": "fc", "name": "of Responses", "arguments": "x" * 5_000},
    {"id": "d", "type": "custom", "custom": {"name": "text", "input": "x" * 5_000}},
    {"id": "e", "function": {"name": "small", "arguments": '{"x":1}'}},
    5,
]
_MANY_CALLS: list[Any] = [{"id": f"c{number}", "name": "x" * 500, "arguments": {}} for number in range(150)]


def _bson_size(value: Any) -> int:
    return len(bson.encode({"value": value}))


# Changes to a row, and what is read of it.
BOUNDED: dict[str, tuple[Row, Row]] = {
    "a text at the limit": ({"content": "я" * 2 * _HALF}, {"content": "я" * 2 * _HALF}),
    "a long text": (
        {"content": "a" * _HALF + "X" * 1_000 + "я" * _HALF},
        {"content": "a" * _HALF + LEFT_OUT.format(1_000) + "я" * _HALF},
    ),
    "many lists": ({"content": _LISTS}, {"content": VALUE_LEFT_OUT.format(_bson_size(_LISTS))}),
    "bytes": ({"content": b"x" * 70_000}, {"content": VALUE_LEFT_OUT.format(_bson_size(b"x" * 70_000))}),
    "few lists": ({"content": [[], {"a": 1}]}, {"content": [[], {"a": 1}]}),
    "few lists beside a long call": (
        {"content": [[]], "metadata": {"tool_calls": _LONG_CALLS[:1]}},
        {
            "content": [[]],
            "metadata": {
                "tool_calls": [
                    {"id": "a", "name": "flat", "arguments": ARGUMENTS_LEFT_OUT.format(_bson_size(_LONG_CALLS[0]))}
                ]
            },
        },
    ),
    "long calls": (
        {"metadata": {"tool_calls": _LONG_CALLS, "source": "llm_result"}},
        {
            "metadata": {
                "tool_calls": [
                    *(
                        {"id": call_id, "name": name, "arguments": ARGUMENTS_LEFT_OUT.format(_bson_size(call))}
                        for call_id, name, call in zip(
                            "abcd", ("flat", "nested", "of Responses", "text"), _LONG_CALLS, strict=False
                        )
                    ),
                    *_LONG_CALLS[4:],
                ],
                "source": "llm_result",
            }
        },
    ),
    "many calls": (
        {"metadata": {"tool_calls": _MANY_CALLS}},
        {"metadata": {"tool_calls": _MANY_CALLS[:MOST_CALLS], CALLS_LEFT_OUT: len(_MANY_CALLS) - MOST_CALLS}},
    ),
    "few calls beside what was sent": (
        {"metadata": {"tool_calls": _LONG_CALLS[4:], "raw": "x" * 70_000, "call_id": "c", "revision": 3}},
        {"metadata": {"tool_calls": _LONG_CALLS[4:], "call_id": "c", "revision": 3}},
    ),
    "a word for calls": (
        {"metadata": {"tool_calls": "x", "other": _LISTS, "call_id": "c"}},
        {"metadata": {"tool_calls": "x", "call_id": "c"}},
    ),
    "many words for calls": (
        {"metadata": {"tool_calls": "x" * 70_000, "other": _LISTS, "call_id": "c"}},
        {"metadata": {"call_id": "c"}},
    ),
}


@pytest.mark.parametrize(("changes", "read"), BOUNDED.values(), ids=BOUNDED.keys())
async def test_rows_come_in_bounded_size(place: Place, changes: Row, read: Row) -> None:
    """What would be long to read is marked, in every read; and a neighbour comes whole."""
    rows = [row(number, role="AI", **changes) for number in range(2)]
    place.plant("messages", [*rows, row(2, content="x" * 500)])
    async with place.open() as store:
        session = await store.session_messages("o", "s", limit=9)
        found = [
            await store.newest_messages("o", limit=9),
            await store.all_messages("o", limit=9),
            await store.tail_messages("o", "s", WHOLE, limit=9),
            await store.messages_of_ids("o", [each["_id"] for each in session]),
        ]
        (of_run,) = await store.run_messages("o", "r1", limit=9)
        excerpts = await store.newest_messages("o", limit=9, excerpt_chars=200)
    expected = [row(2, content="x" * 500), *({**each, **read} for each in rows[::-1])]
    assert [{name: value for name, value in each.items() if name != "_id"} for each in session] == expected
    for each in found:
        assert sorted(each, key=itemgetter("_id"), reverse=True) == session
    assert of_run == session[1]
    assert [len(each["content"]) for each in excerpts if isinstance(each["content"], str)] <= [400] * 3
    assert [each["metadata"] for each in excerpts] == [each["metadata"] for each in session]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_large_rows_of_other_writers(
    mongo_uri: str, mongo_janitor: MongoClient[dict[str, Any]], prepared_database: str, driver: Driver
) -> None:
    """Whatever of them is large, they come in bounded size; what that leaves out is said."""
    long, calls = (
        "x" * 300_000,
        [{"id": f"c{number}", "name": "f", "args": {"q": "x" * 200}} for number in range(2_000)],
    )
    beside: dict[str, Any] = dict.fromkeys(("name", "status", "tool_name", "call_id", "type", "text", "refusal"), long)
    beside |= {"tool_calls": calls, "function_call": {"name": "f", "arguments": long}, "audio": {"data": long}}
    metadata = dict.fromkeys(("tool_name", "call_id", "status", "name", "usage", "other", "tool_use_id"), long)
    rows = [
        row(0, role="assistant", content="short", **beside, metadata=metadata),
        row(1, role="assistant", content=None, tool_calls=calls),
        row(2, role="tool", content=long, **beside, metadata=metadata),
        row(3, role="user", content=None, parts=[{"text": long}], **beside),
        row(4, role="assistant", content="small", tool_calls=calls[:2]),
    ]
    mongo_janitor[prepared_database]["messages"].insert_many(rows)
    async with open_mongo(mongo_uri, prepared_database, driver=driver, timeout_ms=10_000) as store:
        found = await store.session_messages("o", "s", limit=9)
        assert ids(found) == ["m4", "m3", "m2", "m1", "m0"]
        assert all(len(bson.encode({**each, "_id": None})) < 400_000 for each in found)
        assert ids(await store.newest_messages("o", limit=9, excerpt_chars=100)) == ["m4", "m3", "m1", "m0"]
    said = {item.source: item for item in transcript_of_rows(found)[0]}
    assert [call.id for call in said["m4"].calls] == ["c0", "c1"]
    assert all(("call", name, Why.UNREADABLE) in said[name].left_out for name in ("m0", "m1", "m3"))


async def test_the_end_of_a_call_beside_its_result(
    mongo_uri: str, mongo_janitor: MongoClient[dict[str, Any]], prepared_database: str
) -> None:
    """As other writers have it."""
    ends: list[Row] = [{"execution_success": False}, {"is_error": True}, {"status": "error"}]
    rows = [row(number, role="tool", content="no", call_id="c", metadata={}, **end) for number, end in enumerate(ends)]
    mongo_janitor[prepared_database]["messages"].insert_many(rows)
    async with open_mongo(mongo_uri, prepared_database, timeout_ms=10_000) as store:
        found = await store.session_messages("o", "s", limit=9)
    assert [success_of(part["metadata"]) for each in found for part in native(each)] == [False] * 3


@pytest.mark.parametrize("driver", DRIVERS)
async def test_what_rows_of_other_writers_hold_beside_their_content(
    mongo_uri: str, mongo_janitor: MongoClient[dict[str, Any]], prepared_database: str, driver: Driver
) -> None:
    """It is read under every name that is understood in a message."""
    beside = dict.fromkeys(BESIDE_CONTENT, "said")
    mongo_janitor[prepared_database]["messages"].insert_one(row(1, **beside))
    async with open_mongo(mongo_uri, prepared_database, driver=driver, timeout_ms=10_000) as store:
        (found,) = await store.session_messages("o", "s", limit=3)
    assert {name: found.get(name) for name in BESIDE_CONTENT} == beside


async def test_a_search_finds_what_reads_leave_out(place: Place) -> None:
    """A phrase in the middle of a long text is found, and comes with all of its text."""
    content = "a" * 100_000 + " the phrase " + "b" * 100_000
    place.plant("messages", [row(1, content=content)])
    async with place.open() as store:
        (found,) = await store.search_messages("o", "s", "The Phrase", limit=3, texts_of=texts_of)
    assert found["content"] == content


async def test_an_excerpt_has_the_calls_of_its_metadata(place: Place) -> None:
    """Of metadata the tool calls are left, as they are, whatever lies around; and the row is otherwise as it was."""
    calls = [{"id": "c", "function": {"name": "f", "arguments": {"$ref": "x", "$id": [{"$ref": 1, "$id": 2}]}}}]
    rows = [
        row(1, metadata={"tool_calls": calls, "source": "llm_result", "has_tool_calls": True}),
        row(2, metadata={"source": "new_run"}),
        row(3, metadata={"tool_calls": None}, content={"$ref": {"$ref": "a", "$id": 1}, "$id": 2}),
    ]
    async with place.open() as store:
        await insert_all(store, [row(0), *rows])
        found = await store.newest_messages("o", limit=3, excerpt_chars=100)
        of_runs = await store.messages_of_runs("o", ["r0", "r1", "r2", "r3"], limit=3, excerpt_chars=100)
    assert [each["metadata"].get("tool_calls") for each in found] == [None, None, calls]
    assert [each["_id"] for each in of_runs] == [each["_id"] for each in found]
    for each in found:
        del each["_id"], each["metadata"]
    assert found == [{key: value for key, value in each.items() if key != "metadata"} for each in rows[::-1]]


@pytest.mark.parametrize("excerpt_chars", [None, 10], ids=["whole", "excerpt"])
@pytest.mark.parametrize("changes", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_row_spoils_no_other(place: Place, changes: Row, excerpt_chars: int | None) -> None:
    """A row that somebody else wrote comes through as it is, between the others."""
    place.plant("messages", [row(1), row(2, **changes), row(3)])
    async with place.open() as store:
        found = await store.newest_messages("o", limit=5, excerpt_chars=excerpt_chars)
        assert {*ids(found)} == {"m1", changes.get("id", "m2"), "m3"}
        (strange,) = [each for each in found if each["id"] not in {"m1", "m3"}]
        assert len(await store.all_messages("o", limit=5)) == 3
        assert strange in await store.session_messages("o", "s", limit=5)
        assert (await store.first_input("o", "s") or {})["id"] in {"m1", strange["id"]}
    assert strange == {"_id": strange["_id"], **row(2, **changes)}


async def test_rows_without_their_fields(bare_place: Place) -> None:
    """A row that has an owner and nothing else is read, and any number of them may be stored."""
    bare_place.plant("messages", [{"owner_key": "o"}, {"owner_key": "o"}, row(1)])
    async with bare_place.open() as store:
        await store.prepare()
        found = await store.newest_messages("o", limit=5, excerpt_chars=5)
    assert [{*each} for each in found[1:]] == [{"_id", "owner_key"}] * 2
    assert found[0]["id"] == "m1"


async def test_times_are_compared_as_moments(place: Place) -> None:
    """Times stored as texts stand among the dates where they belong, through every page."""
    texts = {2: "2024-01-01T00:02:00Z", 5: "2024-01-01T08:05:00+08:00", 7: "2024-01-01T00:07:00.000001+00:00"}
    place.plant("messages", [row(number, timestamp=texts.get(number, moment(number))) for number in range(9)])
    newest = [f"m{number}" for number in range(8, -1, -1)]
    async with place.open() as store:
        assert ids(await store.newest_messages("o", limit=4, excerpt_chars=5)) == newest[:4]
        assert ids(await store.newest_messages("o", limit=4, skip=4)) == newest[4:8]
        assert ids(await store.newest_messages("o", limit=4, skip=8)) == newest[8:]
        assert ids(await store.all_messages("o", limit=3)) == newest[:3]
        pages = [ids(await store.session_messages("o", "s", limit=4, skip=skip)) for skip in (0, 4, 8)]
        assert [each for page in pages for each in page] == newest
        assert ids(await store.messages_of_runs("o", ["r7", "r8", "r1"], limit=2)) == ["m8", "m7"]


@pytest.mark.parametrize("texts", [[], ["2024-01-01T00:02:30Z", "2024-01-01T08:01:00+08:00"]], ids=["dates", "texts"])
async def test_a_run_in_pages(place: Place, texts: list[Any]) -> None:
    """Each row once, whatever its time is, many of one time too; it is the same where a page's last row has gone."""
    times = [None, 7, *texts, *[moment(2)] * 5, *map(moment, range(6)), {"$gt": ""}]
    rows = [row(number, run_id="r", timestamp=time) for number, time in enumerate(times)]
    del rows[0]["timestamp"]
    place.plant("messages", [*rows[1::2], *rows[::2]])
    async with place.open() as store:
        whole = await store.run_messages("o", "r", limit=50)
        seen = list[Row]()
        while page := await store.run_messages("o", "r", limit=2, before=seen[-1] if seen else None):
            seen += page
        gone = {"_id": "f" * 24, "timestamp": moment(4)}
        assert ids(await store.run_messages("o", "r", limit=50, before=gone)) == ids(whole)[1:]
    assert ids(seen) == ids(whole)
    assert {*ids(seen)} == {each["id"] for each in rows}


async def test_rows_of_runs(place: Place) -> None:
    """The rows of the runs that are asked for, newest first, up to the limit; none for runs that are not there."""
    async with place.open() as store:
        await insert_all(store, [row(number, run_id=f"r{number % 3}") for number in range(9)])
        await store.insert_message(row(1, owner_key="p", run_id="r1"))
        assert ids(await store.messages_of_runs("o", ["r0", "r1"], limit=5)) == ["m7", "m6", "m4", "m3", "m1"]
        assert ids(await store.messages_of_runs("o", ["r2"], limit=50)) == ["m8", "m5", "m2"]
        assert await store.messages_of_runs("o", [], limit=5) == []
        assert await store.messages_of_runs("o", ["r9", "r\x00", ""], limit=5) == []


async def test_results_of_runs(place: Place) -> None:
    """The rows of tools in those runs, whoever they are internal to, newest first; long texts without their middle."""
    roles = ("TOOL", "AI", "tool", "HUMAN", "SYSTEM", "Tool", "TOOL")
    rows = [row(number, run_id=f"r{number % 2}", role=role) for number, role in enumerate(roles)]
    rows[6] |= {"content": "界" * 5 + "-" * 90_000 + "é" * 5, "metadata": {"sub_agent_internal": True, "call_id": "c"}}
    place.plant("messages", [*rows, row(8, owner_key="p", run_id="r0", role="TOOL")])
    async with place.open() as store:
        found = await store.results_of_runs("o", ["r0", "r1", "r9"], limit=9, excerpt_chars=3)
        assert ids(found) == ["m6", "m5", "m2", "m0"]
        assert (found[0]["content"], found[0]["metadata"]["call_id"]) == ("界界界ééé", "c")
        assert ids(await store.results_of_runs("o", ["r1"], limit=9, excerpt_chars=3)) == ["m5"]
        assert ids(await store.results_of_runs("o", ["r0"], limit=2, excerpt_chars=3)) == ["m6", "m2"]
        assert await store.results_of_runs("o", [], limit=5, excerpt_chars=3) == []
        assert await store.results_of_runs("p", ["r1", "\x00"], limit=5, excerpt_chars=3) == []


async def test_the_first_input(place: Place) -> None:
    """The oldest row of a human of a session, and of a run; none that is internal to a sub-agent."""
    long = "x" * 60_000
    async with place.open() as store:
        assert await store.first_input("o", "s") is None
        await insert_all(store, [row(9), row(2, content=long), row(5), row(0, role="AI"), row(1, metadata=INTERNAL)])
        await insert_all(store, [row(0, id="other", owner_key="p"), row(8, id="m8", run_id="r2")])
        found = [await store.first_input("o", "s"), await store.run_input("o", "r2")]
        assert await store.run_input("o", "r1") is None
        assert (await store.first_input("p", "s") or {})["id"] == "other"
    assert all(each and isinstance(each.pop("_id"), str) for each in found)
    assert found == [row(2, content=long)] * 2


async def test_a_message_is_found_by_its_id(place: Place) -> None:
    """A row is found by its id without its content, and its `_id` is the one that reading gives."""
    async with place.open() as store:
        await insert_all(store, [row(1), row(2)])
        found = await store.find_message("o", "m1")
        (_, read) = await store.newest_messages("o", limit=5)
        assert found == {name: value for name, value in read.items() if name not in {"content", "metadata"}}
        for other in ("m", "", "M1", "m1 ", '{"$gt": ""}'):
            assert await store.find_message("o", other) is None


async def test_a_row_is_changed_by_whoever_has_seen_it(place: Place) -> None:
    """Fields in metadata too, where those that were seen are unchanged; the row keeps its `_id` and all else."""
    async with place.open() as store:
        await store.insert_messages([row(1, content="Hel", metadata={"source": "llm_result"}), row(2, owner_key="p")])
        (before,) = await store.all_messages("o", limit=2)
        changes = {"content": "Hello 🌧", "metadata.revision": 2, "metadata.tool_calls": [{"id": "c", "a.b": 1}]}
        seen = {"content": "Hel", "metadata.revision": None, "metadata.tool_calls": None}
        others: list[dict[str, Any]] = [{"content": "hel"}, {"metadata.revision": 0}, {"metadata.tool_calls": []}]
        others.append({"content": {"$gt": ""}})
        for wrong in others:
            assert not await store.update_message("o", before["_id"], changes, seen=seen | wrong)
        for owner, row_id in (("p", before["_id"]), ("o", new_row_id()), ("o", "m1"), ("", before["_id"])):
            assert not await store.update_message(owner, row_id, changes, seen=seen)
        assert await store.all_messages("o", limit=2) == [before]
        assert await store.update_message("o", before["_id"], changes, seen=seen)
        assert not await store.update_message("o", before["_id"], changes, seen=seen)
        metadata = {"source": "llm_result", "revision": 2, "tool_calls": [{"id": "c", "a.b": 1}]}
        assert await store.all_messages("o", limit=2) == [{**before, "content": "Hello 🌧", "metadata": metadata}]
        (other,) = await store.all_messages("p", limit=2)
        assert other["content"] == "text 2"


async def test_of_two_changes_at_once_one_counts(place: Place) -> None:
    """That of the first; the others are told that the row has changed."""
    async with place.open() as store:
        await store.insert_message(row(1, content=""))
        (before,) = await store.all_messages("o", limit=1)
        changed = dict[str, bool]()

        async def change(text: str) -> None:
            changed[text] = await store.update_message("o", before["_id"], {"content": text}, seen={"content": ""})

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(change, f"text {number}")
        (after,) = await store.all_messages("o", limit=1)
        assert [text for text, was in changed.items() if was] == [after["content"]]


async def test_a_change_that_cannot_be_kept(place: Place) -> None:
    """It is rejected, and the row stays as it is."""
    async with place.open() as store:
        await store.insert_message(row(1))
        (before,) = await store.all_messages("o", limit=1)
        with pytest.raises(StoreRejectedError):
            await store.update_message("o", before["_id"], {"content": "\ud800"}, seen={"content": "text 1"})
        assert await store.all_messages("o", limit=1) == [before]


async def test_what_a_change_rests_on_is_read_of_large_rows(place: Place) -> None:
    """The revision of a row comes, however large its metadata are; a long content is compared whole."""
    long = "a" * LONGEST_CONTENT + "middle" + "b" * LONGEST_CONTENT
    async with place.open() as store:
        await store.insert_message(row(1, role="AI", content=long, metadata={"revision": 7, "raw": "x" * 70_000}))
        (before,) = await store.all_messages("o", limit=1)
        assert before["metadata"] == {"revision": 7}
        other = long.replace("middle", "muddle")
        for seen in ({"content": other}, {"content": before["content"]}, {"metadata.revision": 6}):
            assert not await store.update_message("o", before["_id"], {"content": "x"}, seen=seen)
        assert await store.update_message("o", before["_id"], {"content": "x"}, seen={"content": long})
        assert await store.update_message("o", before["_id"], {"content": "y"}, seen={"metadata.revision": 7})


async def test_which_messages_are_recorded(place: Place) -> None:
    """Of the ids that are asked for, those of the owner's own rows; the rest is not there, whatever it looks like."""
    async with place.open() as store:
        await insert_all(store, [row(1), row(2), row(3, owner_key="p", id="theirs")])
        asked = ["m1", "m2", "m3", "theirs", "M1", "", '{"$gt": ""}']
        assert await store.recorded_ids("o", asked) == {"m1", "m2"}
        assert await store.recorded_ids("o", []) == set()


async def test_the_session_of_a_run(place: Place) -> None:
    """A run's session is the one its human row has; None where there is no such row or no such text."""
    place.plant("messages", [row(3, session_id=None), row(4, session_id=7), row(5, role="AI", session_id="x")])
    async with place.open() as store:
        await insert_all(store, [row(1, session_id="one"), row(2, run_id="r1", role="AI", session_id="other")])
        assert [await store.find_origin("o", f"r{number}") for number in (1, 3, 4, 5, 6)] == [
            RunOrigin("one"),
            *[None] * 4,
        ]


@pytest.mark.parametrize("of_run", [True, False])
async def test_the_rows_of_a_run_or_a_session(place: Place, *, of_run: bool) -> None:
    """Newest first, of every role, in pages that follow on each other; none of another one or owner."""
    field = "run_id" if of_run else "session_id"
    rows = [
        row(number, role=role, content=f"{number}{'x' * 60_000}", **{field: "s"}) for number, role in enumerate(ROLES)
    ]
    if of_run:
        rows[3]["session_id"], rows[4]["metadata"] = "t", INTERNAL
    others = [row(20 + number, **{field: name}) for number, name in enumerate(("S", "", "s "))]
    place.plant("messages", [*rows[::2], *others, row(23, owner_key="p", **{field: "s"}), *rows[1::2]])
    async with place.open() as store:
        read = store.run_messages if of_run else store.session_messages
        whole = await read("o", "s", limit=50)
        if of_run:
            pages = [
                ids(await store.run_messages("o", "s", limit=3, before=row)) for row in (None, *whole[2::3], whole[-1])
            ]
        else:
            pages = [ids(await store.session_messages("o", "s", limit=3, skip=skip)) for skip in (0, 3, 6, 9)]
        assert ids(await read("p", "s", limit=5)) == ["m23"]
        assert await read("p", "S", limit=5) == []
    assert [{name: value for name, value in each.items() if name != "_id"} for each in whole] == rows[::-1]
    assert all(isinstance(each["_id"], str) for each in whole)
    assert pages == [["m6", "m5", "m4"], ["m3", "m2", "m1"], ["m0"], []]


async def test_internal_rows_of_a_session(place: Place) -> None:
    """Are passed over without counting, unless they are asked for; so are they in the memory."""
    marked = [row(number, metadata=INTERNAL) for number in range(1, 6)]
    others = [row(6, metadata={"sub_agent_internal": False}), row(7, metadata={"sub_agent_internal": None})]
    place.plant("messages", [row(0), *marked, *others, row(8, metadata=None)])
    seen = ["m8", "m7", "m6", "m0"]
    async with place.open() as store:
        assert ids(await store.session_messages("o", "s", limit=4)) == seen
        assert ids(await store.session_messages("o", "s", limit=9, skip=1)) == seen[1:]
        with_internal = await store.session_messages("o", "s", limit=50, sub_agent="reviewer")
        assert ids(with_internal) == [f"m{number}" for number in range(8, -1, -1)]
        for other in ("writer", ""):
            assert ids(await store.session_messages("o", "s", limit=4, sub_agent=other)) == seen
        assert ids(await store.newest_messages("o", limit=9, excerpt_chars=100)) == seen
        assert ids(await store.messages_of_runs("o", [f"r{number}" for number in range(9)], limit=4)) == seen
    assert with_internal[5]["metadata"] == INTERNAL


LARGE = {"source": "tool_result", "tool_name": "look", "status": "success", "call_id": "c", "raw": "x" * 70_000}


async def test_large_results(place: Place) -> None:
    """Sessions and tails have them in short, without what was sent; by `_id`, in a run and by handle they are whole."""
    about = {"condensed": "short ␀", "handle": "result_1"}
    result = row(1, role="TOOL", content="🌧" * 100_000 + "end", metadata=LARGE | about)
    inner = row(2, role="TOOL", content="inner", metadata=INTERNAL | {"condensed": "in short", "handle": "result_2"})
    before = row(3, role="TOOL", content="x" * 9_000, metadata={"call_id": "c3"})
    odd = row(4, role="TOOL", content="odd", metadata={"condensed": ["no", "text"], "handle": {"$gt": ""}})
    foreign = row(5, owner_key="p", role="TOOL", content="foreign", metadata=about | {"condensed": "p's"})
    place.plant("messages", [result, inner, before, odd, foreign])
    async with place.open() as store:
        tail = partial(store.tail_messages, "o", "s", limit=9, oldest_first=True)
        for rows in (
            (await store.session_messages("o", "s", limit=9))[::-1],
            await tail(WHOLE),
            await tail(Tail("00000001")),
            await tail(Tail("00000001", frozenset(f"{n:024x}" for n in range(30)))),
        ):
            assert [each["content"] for each in rows] == ["short ␀", "x" * 9_000, "odd"]
            shown = rows[0]["metadata"]
            assert shown.items() >= {"handle": "result_1", "call_id": "c", "status": "success"}.items()
            assert not {"raw", "condensed"} & {*shown}
            assert rows[1]["metadata"] == before["metadata"]
        own = await tail(Tail("00000001"), sub_agent="reviewer")
        assert own[1]["content"] == "in short"
        assert own[1]["metadata"] == INTERNAL | {"handle": "result_2"}

        (by_id,) = await store.messages_of_ids("o", [rows[0]["_id"]])
        (of_run,) = await store.run_messages("o", "r1", limit=5)
        assert by_id["content"] == of_run["content"] == "🌧" * 32_768 + LEFT_OUT.format(34_467) + "🌧" * 32_765 + "end"

        whole = await store.find_result("o", "result_1")
        assert whole
        assert whole["content"] == result["content"]
        assert whole["_id"] == rows[0]["_id"]
        assert (await store.find_result("p", "result_1") or {})["content"] == "foreign"
        assert await store.find_result("q", "result_1") is None
        assert [await store.find_result("o", "result_2", sub_agent=each) for each in (None, "writer")] == [None, None]
        assert (await store.find_result("o", "result_2", sub_agent="reviewer") or {})["content"] == "inner"

        asked = ["result_1", "result_2", "result_3", "$ne"]
        assert await store.condensed_results("o", asked) == {"result_1": "short ␀", "result_2": "in short"}
        assert await store.condensed_results("p", asked) == {"result_1": "p's"}
        assert await store.condensed_results("o", []) == {}


@pytest.mark.parametrize(
    ("metadata", "sub_agent"),
    [
        ({}, None),
        (None, None),
        ("text", None),
        ({"agent_id": "reviewer"}, None),
        ({"sub_agent_internal": False, "agent_id": "reviewer"}, None),
        (INTERNAL, "reviewer"),
        ({"sub_agent_internal": True}, ""),
        ({"sub_agent_internal": True, "agent_id": ""}, ""),
        ({"sub_agent_internal": True, "agent_id": {"$ne": ""}}, ""),
    ],
    ids=str,
)
async def test_the_agent_of_a_run(place: Place, metadata: Any, sub_agent: str | None) -> None:
    """A run's agent is the one its human row is marked for, whatever its other rows say."""
    human, answer = row(1, metadata=metadata), row(2, run_id="r1", role="AI", metadata={**INTERNAL, "agent_id": "x"})
    place.plant("messages", [answer, human, row(3, owner_key="p", run_id="r1", metadata=INTERNAL)])
    async with place.open() as store:
        assert await store.find_origin("o", "r1") == RunOrigin("s", sub_agent)
        for other in ("", "r", "r1 ", "$r1", '{"$gt": ""}', "R1"):
            assert await store.find_origin("o", other) is None


async def test_identities_and_configurations(place: Place) -> None:
    """Each is found by its own key, without the database's `_id`; None where there is none."""
    identity = {"public_key": "k", "config_overrides": {"history_context_size": 5}, "prompt_overrides": {}}
    place.plant("identities", [identity, {"public_key": "l"}])
    place.plant("configurations", [{"environment": "production", "memory": {"a.b": 1}}])
    async with place.open() as store:
        assert await store.find_identity("k") == identity
        assert await store.find_identity('{"$ne": ""}') is None
        assert await store.find_configuration("production") == {"environment": "production", "memory": {"a.b": 1}}
        assert await store.find_configuration("") is None


SAID = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number) for number in range(20)]


async def test_tools(place: Place) -> None:
    """A definition replaces one of its name and comes back as it was; the list is by name; None takes it away."""
    schema = {"$schema": "x", "properties": {"a.b": {"$ref": "#/$defs/c"}}, "": None}
    place.plant("tools", [{"name": "old", "definition": {"name": "old"}}])
    async with place.open() as store:
        for name in ("b", "a", "c", "a.$b"):
            assert await store.put_tool(name, {"name": name, "version": 1}, SAID[1])
        assert await store.put_tool("b", {"name": "b", "parameters": schema}, SAID[1])
        assert await store.put_tool("c", None, SAID[2])
        assert await store.put_tool("old", None, SAID[0])
        assert await store.put_tool("unknown", None, SAID[0])
        listed = await store.list_tools()
    assert listed == [{"name": "a", "version": 1}, {"name": "a.$b", "version": 1}, {"name": "b", "parameters": schema}]


async def test_an_older_definition_changes_nothing(place: Place) -> None:
    """Neither one that says that there is a tool, nor one that says that there is none; a later one does."""
    async with place.open() as store:
        kept = [
            (2, {"version": 2}),
            (1, {"version": 1}),
            (1, None),
            (4, None),
            (3, {"version": 3}),
            (5, {"version": 5}),
        ]
        told = [await store.put_tool("t", definition, SAID[moment]) for moment, definition in kept]
        assert told == [True, False, False, True, False, True]
        assert await store.list_tools() == [{"version": 5}]


async def test_many_put_one_tool(bare_place: Place) -> None:
    """However many put one name at once, in whatever order, there is one definition, the one that was said last."""
    async with bare_place.open() as store:
        await store.prepare()
        async with anyio.create_task_group() as tasks:
            for number in sorted(range(20), key=lambda number: number * 7 % 20):
                tasks.start_soon(store.put_tool, "t", {"number": number}, SAID[number])
        assert await store.list_tools() == [{"number": 19}]


async def test_preparing_may_be_repeated(bare_place: Place) -> None:
    """A store is prepared any number of times, by many at once, also when there are rows already."""
    bare_place.plant(
        "messages", [row(1), {"owner_key": "o"}, {"owner_key": "o", "id": None}, {"owner_key": "o", "id": ""}]
    )
    async with bare_place.open() as store:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(store.prepare)
        await store.prepare()
        await store.ping()
        assert len(await store.all_messages("o", limit=10)) == 4


@pytest.mark.parametrize(
    "content",
    ["x" * (17 << 20), "\ud800", {1, 2}, 2**63, {"key": {"a\x00b": 1}}, {5: "x"}],
    ids=["17 MB", "lone surrogate", "set", "large integer", "NUL in a key", "a key that is no text"],
)
async def test_a_row_that_cannot_be_kept(place: Place, content: Any) -> None:
    """A row that the store will never accept is rejected as such, without telling its content, and is not there."""
    async with place.open() as store:
        with pytest.raises(StoreRejectedError) as raised:
            await store.insert_message(row(1, content=content))
        assert await store.all_messages("o", limit=5) == []
    assert len(str(raised.value)) < 100
