"""What `nexus.core.ports.MessageStore` promises of tails, of rows by their `_id`s and of searching them."""

import json
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Int64, ObjectId
from hypothesis import given
from hypothesis import strategies as st

from nexus.adapters.mongo.schema import id_of, id_text
from nexus.core.errors import StoreRejectedError
from nexus.core.models import is_object_id
from nexus.core.ports import Row, Store
from nexus.core.working_memory import WHOLE, Tail
from nexus.services.memory.search import texts_of
from tests.nexus.contract.test_memory import NOWHERE, SEARCHED
from tests.nexus.contract.test_store import INTERNAL, MALFORMED, OWNERS, Place, place
from tests.nexus.support.rows import ids, moment, row

__all__ = ["place"]

FIRST_SECOND = 0x65000000
# `_id`s of other programs: of other types, and texts that read as an ObjectId, or as how another type is written.
FOREIGN: list[Any] = [
    5,
    "x",
    "",
    "65000005" + "a" * 16,
    "65000005" + "A" * 16,
    '{"_id": 5}',
    "{",
    2.5,
    Int64(2**40),
    {"a": 1, "b": "x"},
    Binary(b"\x00\xff"),
    "文",
]

# Texts that no `_id` has.
STRANGE = [
    "$ne",
    "a" * 23,
    "g" * 24,
    "x\x00",
    "[]",
    '{"$ne": ""}',
    '{"_id": {"$ne": 1}}',
    '{"_id": {"$regularExpression": {"pattern": "", "options": ""}}}',
    '{"_id": {"$oid": "x"}}',
    '{"_id": []}',
    '{"id": 1}',
    "{",
]


def row_id(second: int, number: int = 0) -> ObjectId:
    """The `_id` of a row stored in that second."""
    return ObjectId(f"{FIRST_SECOND + second:08x}{number:016x}")


def since(second: int, *without: ObjectId) -> Tail:
    """What is left from that second on, without these."""
    return Tail(f"{FIRST_SECOND + second:08x}", frozenset(map(str, without)))


def stored_at(second: int, **changes: Any) -> Row:
    """Row `second`, stored then."""
    return row(second, **{"_id": row_id(second), **changes})


async def every(store: Store, tail: Tail, page: int, **wanted: Any) -> list[Any]:
    """The ids of the rows of the tail, page by page."""
    found: list[Any] = []
    while rows := await store.tail_messages("o", "s", tail, limit=page, skip=len(found), **wanted):
        assert len(rows) <= page
        found += ids(rows)
    return found


async def test_a_tail_is_in_stored_order(place: Place) -> None:
    """The last stored first or the first, whatever their times; whole, of every role, in pages that follow."""
    roles = ("HUMAN", "AI", "TOOL", "SYSTEM", "COMMAND", "tool", "HUMAN")
    rows = [stored_at(number, role=role, timestamp=moment(-number)) for number, role in enumerate(roles)]
    place.plant("messages", [*rows[::2], *rows[1::2]])
    async with place.open() as store:
        for page in (1, 2, 3, 7, 100):
            assert await every(store, WHOLE, page) == [f"m{number}" for number in range(6, -1, -1)]
            assert await every(store, since(2), page) == ["m6", "m5", "m4", "m3", "m2"]
            assert await every(store, since(2), page, oldest_first=True) == ["m2", "m3", "m4", "m5", "m6"]
            assert await every(store, since(2, row_id(3), row_id(6)), page) == ["m5", "m4", "m2"]
            assert await every(store, since(7), page) == []
        found = await store.tail_messages("o", "s", since(2), limit=50, oldest_first=True)
    assert found == [{**each, "_id": str(each["_id"])} for each in rows[2:]]


async def test_what_is_recorded_late_is_in_the_tail(place: Place) -> None:
    """A row of long ago that is stored now is there, and so is one that is stored after the tail was written down."""
    place.plant("messages", [stored_at(number) for number in range(5)])
    async with place.open() as store:
        tail = since(3, row_id(3), row_id(4))
        assert await every(store, tail, 5) == []
        assert await store.insert_message(row(100, timestamp=moment(-1_000)))
        assert await store.insert_message(row(101))
        assert await every(store, tail, 5) == ["m101", "m100"]
        (found,) = await store.tail_messages("o", "s", tail, limit=1)
        covered = tail.after([found["_id"]], tail.since)
        assert await every(store, covered, 5) == ["m100"]


@pytest.mark.parametrize("covered", [17, 999, 1_000, 1_001, pytest.param(5_000, marks=pytest.mark.once)])
async def test_many_rows_are_left_out(place: Place, covered: int) -> None:
    """However many rows since the second are under a compaction, exactly the others are read, from either end."""
    rows = [stored_at(1, id=f"c{number}", _id=row_id(1, number * 2)) for number in range(covered)]
    kept = [stored_at(1, id=f"k{number}", _id=row_id(1, number * covered // 4 * 2 + 1)) for number in range(8)]
    place.plant("messages", [stored_at(0), *rows, *kept])
    tail = since(1, *(each["_id"] for each in rows))
    names = [f"k{number}" for number in range(8)]
    async with place.open() as store:
        for page in (3, 100):
            assert await every(store, tail, page, oldest_first=True) == names
        assert await every(store, tail, 3) == names[::-1]
        assert ids(await store.tail_messages("o", "s", tail, limit=2, skip=7)) == ["k0"]
        assert await store.tail_messages("p", "s", tail, limit=5) == []


@pytest.mark.parametrize("without", [0, 50], ids=["few left out", "many left out"])
async def test_internal_rows_of_a_tail(place: Place, without: int) -> None:
    """They are seen by the sub-agent whose they are, wherever they are, in their places; by no other."""
    other = {**INTERNAL, "agent_id": "writer"}
    nobody = {"sub_agent_internal": True}
    marks = [INTERNAL, {}, other, INTERNAL, {}, nobody, {"sub_agent_internal": False, "agent_id": "writer"}, INTERNAL]
    rows = [stored_at(number, metadata=metadata) for number, metadata in enumerate(marks)]
    place.plant("messages", [*rows, stored_at(8, owner_key="p", metadata=INTERNAL), stored_at(9, session_id="t")])
    tail = since(2, *(row_id(100 + number) for number in range(without)))
    async with place.open() as store:
        for page in (1, 2, 50):
            assert await every(store, tail, page) == ["m6", "m4"]
            assert await every(store, tail, page, sub_agent="reviewer") == ["m7", "m6", "m5", "m4", "m3", "m0"]
            mine = await every(store, tail, page, sub_agent="reviewer", oldest_first=True)
            assert mine == ["m0", "m3", "m4", "m5", "m6", "m7"]
            assert await every(store, tail, page, sub_agent="writer") == ["m6", "m5", "m4", "m2"]
            assert await every(store, tail, page, sub_agent="") == ["m6", "m5", "m4"]
            assert await every(store, WHOLE, page) == ["m6", "m4", "m1"]
            assert await every(store, WHOLE, page, sub_agent="writer") == ["m6", "m5", "m4", "m2", "m1"]


async def test_rows_with_foreign_ids(place: Place) -> None:
    """They are in the tail that is all and no other, even one that reads as an ObjectId; each is found by its text."""
    foreign = [row(number, _id=each) for number, each in enumerate(FOREIGN)]
    mine = [stored_at(number) for number in range(20, 23)]
    place.plant("messages", [*foreign, *mine])
    async with place.open() as store:
        found = await store.tail_messages("o", "s", WHOLE, limit=50, oldest_first=True)
        assert {*ids(found[: len(FOREIGN)])} == {*ids(foreign)}
        assert ids(found[len(FOREIGN) :]) == ids(mine)
        texts = {each["id"]: each["_id"] for each in found}
        assert all(WHOLE.includes(text) for text in texts.values())
        for tail in (since(0), Tail(without=frozenset({str(row_id(99))}))):
            assert await every(store, tail, 50, oldest_first=True) == ids(mine)
            assert [each["id"] for each in found if tail.includes(each["_id"])] == ids(mine)
        for each in found:
            assert await store.messages_of_ids("o", [each["_id"]]) == [each]
        assert len(await store.messages_of_ids("o", [*texts.values()])) == len(found)


async def test_rows_by_their_ids(place: Place) -> None:
    """Those of the owner that are there, whole, once each, however many are asked for; nothing is an operator."""
    place.plant("messages", [stored_at(number, content="x" * 1_000) for number in range(1_200)])
    place.plant("messages", [row(5_000, owner_key="p", _id=row_id(5_000)), stored_at(6_000, session_id="t")])
    async with place.open() as store:
        assert await store.messages_of_ids("o", []) == []
        wanted = [str(row_id(number)) for number in (7, 3, 3, 5_000, 6_000, 9_999)]
        found = await store.messages_of_ids("o", wanted)
        assert sorted(ids(found)) == ["m3", "m6000", "m7"]
        assert [each["content"] for each in found if each["id"] == "m3"] == ["x" * 1_000]
        many = await store.messages_of_ids("o", [str(row_id(number)) for number in range(1_200)])
        assert sorted(each["id"] for each in many) == sorted(f"m{number}" for number in range(1_200))
        for strange in STRANGE:
            assert await store.messages_of_ids("o", [strange]) == []


@pytest.mark.parametrize("name", OWNERS)
async def test_a_tail_is_of_one_session(place: Place, name: str) -> None:
    """Whatever an owner or a session is called, exactly those rows are read, found and searched."""
    strange = [row(9, id=f"x{number}", session_id=value) for number, value in enumerate((None, {"$ne": ""}, ["x"], 1))]
    place.plant("messages", [row(1), *strange])
    later = Tail("00000001")
    async with place.open() as store:
        (mine,) = await store.tail_messages("o", "s", later, limit=5)
        for owner, session in (("o", name), (name, "s")):
            assert await store.tail_messages(owner, session, later, limit=5, sub_agent="x") == []
            assert await store.tail_messages(owner, session, WHOLE, limit=5) == []
            assert await store.search_messages(owner, session, "text", limit=5, texts_of=texts_of) == []
        assert await store.messages_of_ids(name, [mine["_id"]]) == []
        await store.insert_message(row(3, owner_key=name, session_id=name))
        for tail in (later, WHOLE):
            assert ids(await store.tail_messages(name, name, tail, limit=5)) == ["m3"]
        assert ids(await store.search_messages(name, name, "text", limit=5, texts_of=texts_of)) == ["m3"]


@pytest.mark.parametrize("changes", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_row_spoils_no_tail(place: Place, changes: Row) -> None:
    """It comes through as it is, between the others, and no search stumbles over it."""
    place.plant("messages", [stored_at(1), stored_at(2, **changes), stored_at(3)])
    async with place.open() as store:
        for tail in (WHOLE, since(0), since(0, *(row_id(100 + number) for number in range(50)))):
            (last, strange, first) = await store.tail_messages("o", "s", tail, limit=5)
            assert [first["id"], last["id"]] == ["m1", "m3"]
            assert strange == {**stored_at(2, **changes), "_id": str(row_id(2))}
        found = await store.search_messages("o", "s", "TEXT", limit=5, texts_of=texts_of)
    assert {*ids(found)} >= {"m1", "m3"}


async def test_what_is_searched_for_in_messages_is_a_text(place: Place) -> None:
    """Wherever a content has it, whatever the case and the role; nothing in it is a pattern."""
    roles = ("HUMAN", "AI", "TOOL", "SYSTEM")
    rows = [
        row(number, content=content, role=roles[number % 4], metadata={"source": "x"})
        for number, (content, _) in enumerate(SEARCHED)
    ]
    hidden = [row(100 + number, content=content, metadata=INTERNAL) for number, (content, _) in enumerate(SEARCHED)]
    place.plant("messages", [*rows, *hidden, row(300, content="needle", session_id="t")])
    async with place.open() as store:
        for number, (_, queries) in enumerate(SEARCHED):
            for query in queries:
                assert ids(await store.search_messages("o", "s", query, limit=50, texts_of=texts_of)) == [
                    f"m{number}"
                ], query
        for query in NOWHERE:
            assert await store.search_messages("o", "s", query, limit=50, texts_of=texts_of) == [], query[:10]
        newest = [f"m{number}" for number in range(len(SEARCHED) - 1, -1, -1)]
        assert ids(await store.search_messages("o", "s", "", limit=50, texts_of=texts_of)) == newest
        assert ids(await store.search_messages("o", "s", "", limit=2, texts_of=texts_of)) == newest[:2]
        for bad in ("x" * 251, "\ud800"):
            with pytest.raises(StoreRejectedError):
                await store.search_messages("o", "s", bad, limit=5, texts_of=texts_of)


async def test_structured_contents_are_searched(place: Place) -> None:
    """An object or a list as the text that a context shows of it, between the texts, also behind many others."""
    contents: list[Any] = [
        {"rows": [{"title": 'The "needle" 针'}]},
        "a needle",
        [{"type": "text", "text": "some"}, {"type": "text", "text": "NEEDLE"}],
        ["hay", "needle"],
        {"needle": 1},
        {"hay": [1, None, True]},
        7,
        None,
        b"needle",
    ]
    rows = [row(number, content=content) for number, content in enumerate(contents)]
    many = [row(1_000 + number, content={"hay": number}) for number in range(450)]
    place.plant("messages", [*rows, *many, row(2_000, content={"needle": 1}, metadata=INTERNAL)])
    async with place.open() as store:
        assert ids(await store.search_messages("o", "s", "Needle", limit=50, texts_of=texts_of)) == [
            "m4",
            "m3",
            "m2",
            "m1",
            "m0",
        ]
        assert ids(await store.search_messages("o", "s", "needle", limit=2, texts_of=texts_of)) == ["m4", "m3"]
        assert ids(await store.search_messages("o", "s", "needle", limit=1, texts_of=texts_of)) == ["m4"]
        assert ids(await store.search_messages("o", "s", "针", limit=5, texts_of=texts_of)) == ["m0"]
        assert ids(await store.search_messages("o", "s", '"HAY":[1,', limit=5, texts_of=texts_of)) == ["m5"]


async def test_what_is_no_find(place: Place) -> None:
    """Results and calls of tools that are left out, and rows of such a run, stand before nothing."""
    asked = [{"id": "c", "type": "function", "function": {"name": "search", "arguments": '{"q":"needle"}'}}]
    flat = [{"id": "c", "name": "search", "arguments": {"q": "needle"}}]
    hiding = [
        *(row(100 + number, content="needle", metadata={"tool_name": "search"}) for number in range(50)),
        *(row(200 + number, content="", metadata={"tool_calls": calls}) for number, calls in enumerate((asked, flat))),
        *(row(300 + number, content="needle", run_id="mine") for number in range(50)),
    ]
    place.plant("messages", [row(1, content="needle"), row(2, content=["needle"]), *hiding])
    async with place.open() as store:
        found = await store.search_messages(
            "o", "s", "needle", limit=3, texts_of=texts_of, without_tools=["read", "search"], without_run="mine"
        )
        assert ids(found) == ["m2", "m1"]
        of_mine = await store.search_messages("o", "s", "needle", limit=99, texts_of=texts_of, without_tools={"search"})
        assert len(of_mine) == 52
        assert len(await store.search_messages("o", "s", "needle", limit=999, texts_of=texts_of)) == 104


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("written", [json.dumps, json.loads])
async def test_calls_are_searched(place: Place, written: Any, *, nested: bool) -> None:
    """Names and arguments, flat or nested, as text or as an object, and what is escaped in them as it is meant."""
    text = '{"path":"/srv/zebra.txt","city":"\\u00c9vora \\"x\\"","lines":["one\\ntwo"],"n":4711}'
    arguments = text if written is json.dumps else json.loads(text)
    function = {"name": "Look_up", "arguments": arguments}
    call = {"id": "c", "function": function} if nested else {"id": "c", **function}
    strange: list[Any] = ["zebra", [7, "zebra", None], {"name": "zebra"}, [{"name": 7, "arguments": 7}], [{}], None]
    broken = [{"name": "broken", "arguments": '{"path": "/srv/gnu'}]
    place.plant(
        "messages",
        [
            row(1, content=None, metadata={"tool_calls": [{"name": "f", "arguments": "{}"}, call]}),
            row(2, metadata={"tool_calls": broken}),
            row(3, metadata={"tool_calls": [call], **INTERNAL}),
            *(row(10 + number, metadata={"tool_calls": calls}) for number, calls in enumerate(strange)),
        ],
    )
    async with place.open() as store:
        for query in ("zebra", "/SRV/z", "look_", "ÉVORA", 'a "x"', "one\ntwo", "4711", '{"path":"/srv/z'):
            assert ids(await store.search_messages("o", "s", query, limit=9, texts_of=texts_of)) == ["m1"], query
        assert ids(await store.search_messages("o", "s", "/srv/gnu", limit=9, texts_of=texts_of)) == ["m2"]
        assert await store.search_messages("o", "s", "z.bra", limit=9, texts_of=texts_of) == []


@pytest.mark.parametrize("inside", ["", "function", "custom", "functionCall"])
@pytest.mark.parametrize("name", ["name", "toolName", "tool_name"])
async def test_calls_of_other_frameworks_are_searched(place: Place, inside: str, name: str) -> None:
    """Whatever they call their name and their arguments, which may be a text; not those of a tool that is left out."""
    calls = [
        {name: "Look_up", arguments: given}
        for arguments in ("args", "arguments", "partial_json", "input", "parameters", "tool_kwargs")
        for given in ({"path": "/srv/zebra"}, '{"path": "/srv/zebra"}')
    ]
    stored = [[{"id": "c", **({inside: call} if inside else call)}] for call in calls]
    place.plant("messages", [row(number, metadata={"tool_calls": each}) for number, each in enumerate(stored)])
    async with place.open() as store:
        for query in ("look_up", "/SRV/z"):
            found = await store.search_messages("o", "s", query, limit=20, texts_of=texts_of)
            assert len(found) == len(calls), query
            without = {"Look_up"}
            assert not await store.search_messages("o", "s", query, limit=20, texts_of=texts_of, without_tools=without)


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(), st.binary(), st.uuids(), st.booleans(), st.none()))
def test_the_text_of_an_id_is_its_own(value: Any) -> None:
    """It says which `_id` it is, and only that of an ObjectId reads as one."""
    known = Binary.from_uuid(value) if isinstance(value, UUID) else value
    text = id_text(known)
    assert not is_object_id(text)
    assert id_of(text) == known


@given(st.text(), st.text())
def test_no_two_ids_have_one_text(one: str, other: str) -> None:
    """Not even where one is how the other is written, or how an ObjectId is."""
    assert (id_text(one) == id_text(other)) == (one == other)
    assert id_text(ObjectId("65" * 12)) == "65" * 12 != id_text("65" * 12)
