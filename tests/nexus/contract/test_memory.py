"""The promises of `nexus.core.ports.memory.MemoryStore`, on every adapter and on the fake that other tests use."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import anyio
import pytest

from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.memory import MemoryStore
from nexus.core.working_memory import Compaction, Detail, Overview
from tests.nexus.contract.test_store import OWNERS, Place, bare_place, place

__all__ = ["bare_place", "place"]

WRITERS = 50
NOW = datetime(2026, 1, 1, 12, 0, 0, 123_456, UTC)
Insert = Callable[[MemoryStore, int], Awaitable[Any]]


def at(number: int) -> datetime:
    """A time that is the later the higher the number."""
    return NOW.replace(microsecond=0) + timedelta(seconds=number)


def overview(revision: int, **changes: Any) -> Row:
    """That revision of the overview of session `s` of the owner `o`, with changes."""
    written = Overview(revision=revision, content=f"# {revision}", updated_at=at(revision), run_id="r", turn_number=3)
    return {"owner_key": "o", "session_id": "s", **written.model_dump(), **changes}


def detail(name: str, version: int = 1, /, **changes: Any) -> Row:
    """That version of the detail, with changes."""
    written = Detail(name=name, version=version, bytes=4, updated_at=at(version), content=f"{name} {version}")
    return {"owner_key": "o", "session_id": "s", **written.model_dump(), **changes}


def compaction(number: int, **changes: Any) -> Row:
    """The compaction with that number, on which a summary is due, with changes."""
    made = Compaction(
        number=number,
        created_at=at(number),
        summary=f"summary {number}",
        rows=(f"{number:024x}",),
        count=1,
        total=number,
        since="00000001",
        without=(f"{number:024x}",),
        details=("archive-1",),
    )
    due = {"work": "refine", "due_at": at(number)}
    dumped = {name: [*value] if isinstance(value, tuple) else value for name, value in made.model_dump().items()}
    return {"owner_key": "o", "session_id": "s", **dumped, **due, **changes}


def headed(row: Row) -> Row:
    """The compaction without the lists of its rows."""
    return without("removed", without("rows", row))


def without(name: str, row: Row) -> Row:
    """The row without that field."""
    return {field: value for field, value in row.items() if field != name}


def places(details: list[Row]) -> list[tuple[str, int]]:
    """Names and versions."""
    return [(row["name"], row["version"]) for row in details]


async def test_what_is_kept_comes_back(place: Place) -> None:
    """Every document comes back as it was, without `_id`, times to the millisecond; the caller's stays as it was."""
    kept = NOW.replace(microsecond=123_000)
    written = overview(1, content="a\x00б😀", updated_at=NOW)
    async with place.open() as store:
        memory = store.memory
        assert await memory.latest_overview("o", "s") is None
        assert await memory.latest_compaction("o", "s") is None
        assert await memory.find_detail("o", "s", "a") is None
        assert await memory.list_details("o", "s") == []
        assert await memory.insert_overview(written)
        assert written == overview(1, content="a\x00б😀", updated_at=NOW)
        assert await memory.insert_details([detail("a", updated_at=NOW)]) == 1
        assert await memory.insert_compaction(compaction(1, created_at=NOW))
        assert await memory.latest_overview("o", "s") == {**written, "updated_at": kept}
        assert await memory.overviews("o", "s", limit=5) == [{**written, "updated_at": kept}]
        noted = detail("a", updated_at=kept)
        assert await memory.find_detail("o", "s", "a") == noted
        assert await memory.detail_versions("o", "s", limit=5) == [noted]
        assert await memory.search_details("o", "s", "a 1", limit=5) == [noted]
        assert await memory.list_details("o", "s") == [without("content", noted)]
        whole = compaction(1, created_at=kept)
        assert await memory.latest_compaction("o", "s") == headed(whole)
        assert await memory.compactions("o", "s", limit=5) == [headed(whole)]
        assert await memory.compactions("o", "s", limit=5, whole=True) == [whole]


INSERTS: dict[str, Insert] = {
    "overview": lambda memory, number: memory.insert_overview(overview(1, content=str(number))),
    "detail": lambda memory, number: memory.insert_details([detail("a", content=str(number))]),
    "compaction": lambda memory, number: memory.insert_compaction(compaction(1, summary=str(number))),
}


@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS.keys())
async def test_of_fifty_writers_one_writes(bare_place: Place, insert: Insert) -> None:
    """Of many that write the same revision, version or number one is told that it did, also on a bare database."""
    told: dict[int, Any] = {}
    async with bare_place.open() as store:

        async def write(number: int) -> None:
            told[number] = await insert(store.memory, number)

        async with anyio.create_task_group() as tasks:
            for number in range(WRITERS):
                tasks.start_soon(write, number)
        found = [
            *[row["content"] for row in await store.memory.overviews("o", "s", limit=5)],
            *[row["content"] for row in await store.memory.detail_versions("o", "s", limit=5)],
            *[row["summary"] for row in await store.memory.compactions("o", "s", limit=5)],
        ]
    (winner,) = [number for number, was_kept in told.items() if was_kept]
    assert found == [str(winner)]


async def test_pages_of_overviews_and_compactions(place: Place) -> None:
    """The highest number first, below a number, whatever the order of writing."""
    async with place.open() as store:
        memory = store.memory
        for number in (3, 1, 5, 12, 4, 2):
            assert await memory.insert_overview(overview(number))
            assert await memory.insert_compaction(compaction(number))
        assert [row["revision"] for row in await memory.overviews("o", "s", limit=3)] == [12, 5, 4]
        assert [row["revision"] for row in await memory.overviews("o", "s", limit=9, before=4)] == [3, 2, 1]
        assert await memory.overviews("o", "s", limit=9, before=1) == []
        assert [row["number"] for row in await memory.compactions("o", "s", limit=3)] == [12, 5, 4]
        page = await memory.compactions("o", "s", limit=2, before=5, whole=True)
        assert page == [compaction(4), compaction(3)]
        latest = [await memory.latest_overview("o", "s"), await memory.latest_compaction("o", "s")]
    assert latest == [overview(12), headed(compaction(12))]


async def test_details_are_kept_up_to_the_first_that_is_there(place: Place) -> None:
    """In their order; nothing after the one whose name and version are taken."""
    async with place.open() as store:
        memory = store.memory
        assert await memory.insert_details([]) == 0
        assert await memory.insert_details([detail("a"), detail("b"), detail("a", 2)]) == 3
        assert await memory.insert_details([detail("c"), detail("b", content="other"), detail("d")]) == 1
        assert await memory.insert_details([detail("a", 2), detail("e")]) == 0
        assert places(await memory.detail_versions("o", "s", limit=9)) == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
        found = await memory.find_detail("o", "s", "b")
    assert found == detail("b")


async def test_versions_of_details(place: Place) -> None:
    """The newest of each is listed and found; any other where it is named; all of them in pages, by name."""
    names = ["z", "a", "Ä", "文件", "A.b", "a b", "😀"]
    async with place.open() as store:
        memory = store.memory
        for version in range(1, 13):
            await memory.insert_details([detail(name, version) for name in names])
        listed = await memory.list_details("o", "s")
        for after, limit in (("", 2), ("a", 1), (listed[0]["name"], 9), ("zz", 9)):
            behind = [each for each in listed if each["name"] > after][:limit]
            assert await memory.list_details("o", "s", limit=limit, after=after) == behind
        assert places(listed) == [(name, 12) for name in sorted(names)]
        assert not any("content" in row for row in listed)
        assert await memory.find_detail("o", "s", "a") == detail("a", 12)
        assert await memory.find_detail("o", "s", "a", version=2) == detail("a", 2)
        assert await memory.find_detail("o", "s", "a", version=13) is None
        pages: list[Row] = []
        while page := await memory.detail_versions("o", "s", limit=5, after=places(pages)[-1] if pages else None):
            pages += page
        assert places(pages) == [(name, version) for name in sorted(names) for version in range(1, 13)]
        assert pages[0] == detail("A.b", 1)


async def test_newest(place: Place) -> None:
    """The latest overview and compaction; of the details of each kind those written last, by name, and how many."""
    async with place.open() as store:
        memory = store.memory
        assert await memory.newest("o", "s", notes=3, archives=2) == (None, [], 0, None)
        noted = [
            detail(f"n{number}", version, updated_at=at(version * 20 + number))
            for version in (1, 2)
            for number in (5, 3, 9, 7, 1)
        ]
        archived = [
            detail(f"a{number}", kind="archive", compaction=number, updated_at=at(number // 4)) for number in range(12)
        ]
        await memory.insert_details([*noted, *archived, detail("n99", session_id="t"), detail("n99", owner_key="p")])
        newest = await memory.newest("o", "s", notes=3, archives=2)
        assert (newest.overview, newest.detail_count, newest.compaction) == (None, 17, None)
        assert places(newest.details) == [("a8", 1), ("a9", 1), ("n5", 2), ("n7", 2), ("n9", 2)]
        assert newest.details == [
            row for row in await memory.list_details("o", "s") if row["name"] in {"a8", "a9", "n5", "n7", "n9"}
        ]
        assert (await memory.newest("o", "s", notes=0, archives=0)).details == []
        for number in (1, 2):
            assert await memory.insert_overview(overview(number))
            assert await memory.insert_compaction(compaction(number))
        everything = await memory.newest("o", "s", notes=99, archives=99)
        assert (everything.details, everything.detail_count) == (await memory.list_details("o", "s"), 17)
        assert everything.overview == await memory.latest_overview("o", "s")
        assert everything.compaction == await memory.latest_compaction("o", "s")


async def test_owners_and_sessions_are_texts(place: Place) -> None:
    """Whatever an owner or a session is called, each has its own memory and no other's."""
    names = [(owner, session) for owner in OWNERS for session in ("s", owner)]
    async with place.open() as store:
        memory = store.memory
        for owner, session in names:
            mine = {"owner_key": owner, "session_id": session}
            assert await memory.latest_overview(owner, session) is None
            assert await memory.insert_overview(overview(1, **mine))
            assert await memory.insert_details([detail("a", **mine)]) == 1
            assert await memory.insert_compaction(compaction(1, **mine))
        for owner, session in names:
            found = [
                *await memory.overviews(owner, session, limit=9),
                *await memory.list_details(owner, session),
                *await memory.detail_versions(owner, session, limit=9),
                *await memory.search_details(owner, session, "a", limit=9),
                *await memory.compactions(owner, session, limit=9),
                await memory.latest_overview(owner, session) or {},
                await memory.find_detail(owner, session, "a") or {},
                await memory.latest_compaction(owner, session) or {},
            ]
            assert {(row["owner_key"], row["session_id"]) for row in found} == {(owner, session)}
            assert len(found) == 8


SEARCHED = [
    ("HR 0.86 (95% CI 0.80-0.93)", ["hr 0.86 (95% ci", "0.80-0.93)", "%", "6 (95% CI 0"]),
    ("Нашлось: 156 СТАТЕЙ по теме", ["статей", "НАШЛОСЬ", "ось: 156 ст"]),
    ("共156篇文章 😀 在这里", ["156篇", "😀", "篇文", "章 😀 在"]),
    ("web_search [a|b]* $x", ["[A|B]* $", "b]*", "B_SEARCH"]),
    ("one\ntwo\x00three", ["one\ntwo", "TWO\x00THREE", "\x00"]),
    ("a\\b \\Q.*\\E", ["A\\B", "\\q.*\\e"]),
    ("(?i)#comment", ["(?I)#", "#COMMENT"]),
    ("the quick-brown fox's den, over there", ["ick-brown fox's d", "THE QUICK-BROWN FOX", "den, ov"]),
    ("naïve café", ["AÏVE", "café"]),
    ("Kelvin, \u017feconds and \u212a", ["kelvin, "]),
    ("x" * 300 + " needle " + "y" * 60_000, ["X NEEDLE Y"]),
]
NOWHERE = ["HR.*", "^one", "HR 0,86", "cafe", "(?!)", "q" * 250, "\x00" * 250, "😀" * 250]


async def test_what_is_searched_for_is_a_text(place: Place) -> None:
    """Wherever a detail has it, in the middle of words too, whatever the case; nothing in it is a pattern."""
    async with place.open() as store:
        memory = store.memory
        rows = [detail(f"d{number}", content=content) for number, (content, _) in enumerate(SEARCHED)]
        await memory.insert_details(rows)
        for number, (_, queries) in enumerate(SEARCHED):
            for query in queries:
                assert await memory.search_details("o", "s", query, limit=20) == [rows[number]], query
        for query in NOWHERE:
            assert await memory.search_details("o", "s", query, limit=20) == [], query[:10]
        assert len(await memory.search_details("o", "s", "", limit=20)) == len(rows)
        for bad in ("x" * 251, "\ud800"):
            with pytest.raises(StoreRejectedError):
                await memory.search_details("o", "s", bad, limit=20)


async def test_whatever_is_cut_out_of_a_detail_is_found(place: Place) -> None:
    """Wherever the cut goes, through words and signs of all kinds, and in whatever case: as a plain comparison does."""
    dice = Random(7)  # noqa: S311
    words = ["fox", "THE", "Ünïcode", "a", "156", "文章", "x_y", "é", "ſend", "naïve", "42nd", "don't", "...", "😀"]
    gaps = [" ", " ", " ", "\n", ", ", "-", "\u00a0", "\t", "\u200b", "\u3000", "/"]
    contents = ["".join(dice.choice(words) + dice.choice(gaps) for _ in range(60)) for _ in range(20)]
    cuts = [(dice.choice(contents), dice.randrange(150), dice.randrange(1, 40)) for _ in range(80)]
    async with place.open() as store:
        memory = store.memory
        await memory.insert_details([detail(f"d{number}", content=content) for number, content in enumerate(contents)])
        for content, begin, length in cuts:
            cut = content[begin : begin + length]
            query = cut.swapcase() if cut.isascii() else cut
            found = {int(row["name"][1:]) for row in await memory.search_details("o", "s", query, limit=50)}
            assert found >= {number for number, each in enumerate(contents) if cut in each}, query
            assert all(cut.casefold() in contents[number].casefold() for number in found), query


async def test_what_is_found_of_a_detail(place: Place) -> None:
    """The newest version that has it, the last written first, and no more than were asked for."""
    contents = [
        ("a", 1, "one phrase here", 10),
        ("a", 2, "a phrase too", 5),
        ("a", 3, "nothing", 50),
        ("b", 1, "PHRASE", 30),
        ("c", 1, "no word of it", 60),
        ("d", 1, "phrase", 20),
        ("e", 1, "phrase", 20),
    ]
    async with place.open() as store:
        memory = store.memory
        rows = [detail(name, version, content=text, updated_at=at(when)) for name, version, text, when in contents]
        await memory.insert_details(rows)
        await memory.insert_details([detail("x", content="phrase", session_id="t")])
        found = await memory.search_details("o", "s", "phrase", limit=9)
        assert places(found) == [("b", 1), ("e", 1), ("d", 1), ("a", 2)]
        assert places(await memory.search_details("o", "s", "Phrase", limit=2)) == [("b", 1), ("e", 1)]


async def test_a_compaction_is_changed_while_it_is_due(place: Place) -> None:
    """Fields are set while those that were seen are as they were, and not after that."""
    due, later = at(1), at(2)
    changes = {"summary": "better", "source": "model", "work": None, "due_at": None}
    async with place.open() as store:
        memory = store.memory
        await memory.insert_compaction(compaction(1))
        assert not await memory.update_compaction("o", "s", 1, changes, seen={"due_at": later})
        assert not await memory.update_compaction("o", "s", 1, changes, seen={"due_at": due, "summary": "x"})
        assert not await memory.update_compaction("o", "s", 2, changes, seen={"due_at": due})
        assert not await memory.update_compaction("p", "s", 1, changes, seen={"due_at": due})
        assert not await memory.update_compaction("o", "t", 1, changes, seen={"due_at": due})
        assert await memory.update_compaction("o", "s", 1, changes, seen={"due_at": due, "summary": "summary 1"})
        assert not await memory.update_compaction("o", "s", 1, {"summary": "x"}, seen={"due_at": due})
        assert await memory.update_compaction("o", "s", 1, {"tokens_after": 7}, seen={"due_at": None})
        assert await memory.compactions("o", "s", limit=5, whole=True) == [compaction(1, **changes, tokens_after=7)]


async def test_what_is_claimed(place: Place) -> None:
    """Of that work alone, by that moment, what was first due first, whoever's, whole; afterwards it is due later."""
    until = NOW + timedelta(minutes=1)
    kept_until = until.replace(microsecond=123_000)
    async with place.open() as store:
        memory = store.memory
        for row in (
            compaction(1, due_at=NOW - timedelta(hours=1)),
            compaction(2, due_at=NOW - timedelta(hours=2), owner_key="p"),
            compaction(3, due_at=NOW + timedelta(milliseconds=1)),
            compaction(4, due_at=NOW, work="other"),
            compaction(5, due_at=NOW, work=None),
            compaction(6, due_at=None),
        ):
            assert await memory.insert_compaction(row)
        claimed = [await memory.claim_compaction("refine", NOW, until) for _ in range(3)]
        assert claimed == [
            compaction(2, owner_key="p", due_at=kept_until),
            compaction(1, due_at=kept_until),
            None,
        ]
        assert (await memory.claim_compaction("refine", until, until) or {})["number"] == 3


@pytest.mark.parametrize("bad", ["\ud800", 2**64, "x" * (17 << 20)], ids=["half a pair", "too big", "too long"])
async def test_what_cannot_be_kept(place: Place, bad: Any) -> None:
    """It is refused, and what was there stays."""
    async with place.open() as store:
        memory = store.memory
        await memory.insert_compaction(compaction(1))
        with pytest.raises(StoreRejectedError):
            await memory.insert_overview(overview(1, content=bad))
        with pytest.raises(StoreRejectedError):
            await memory.insert_details([detail("a", content=bad)])
        with pytest.raises(StoreRejectedError):
            await memory.insert_compaction(compaction(2, summary=bad))
        with pytest.raises(StoreRejectedError):
            await memory.update_compaction("o", "s", 1, {"summary": bad}, seen={"due_at": at(1)})
        assert await memory.latest_overview("o", "s") is None
        assert await memory.list_details("o", "s") == []
        assert await memory.compactions("o", "s", limit=5, whole=True) == [compaction(1)]
