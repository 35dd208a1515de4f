"""How much of a session is read (contract §5)."""

from datetime import timedelta
from typing import Any

import bson
import pytest

from nexus.core.models import Message, Role
from nexus.core.ports import Past, Row, RunOrigin
from nexus.core.working_memory import Tail
from nexus.services.history.reader import UntilShown, read_session
from nexus.services.persistence import PersistenceService
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.rows import START, ids, row
from tests.nexus.support.tombstones import NO_TOMBSTONES

MIB = 1 << 20
SESSION = RunOrigin("s")
INTERNAL = {"sub_agent_internal": True, "agent_id": "reviewer"}
NOW = Message(id="not recorded", run_id="now", owner_key="o", role=Role.HUMAN)


def a_row(number: int, content: Any = "x", **metadata: Any) -> Row:
    """A row of the session `s`."""
    return {
        "id": str(number),
        "run_id": "r",
        "owner_key": "o",
        "session_id": "s",
        "role": "AI",
        "content": content,
        "timestamp": START + timedelta(seconds=number),
        "metadata": metadata,
    }


class Counting(FakeStore):
    """A store that knows how many rows it was asked for, page by page."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__()
        self.plant("messages", rows)
        self.pages: list[int] = []

    async def session_messages(
        self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
    ) -> list[Row]:
        """A page of the session."""
        self.pages.append(limit)
        return await super().session_messages(owner_key, session_id, limit=limit, skip=skip, sub_agent=sub_agent)


def store_of(*rows: Row) -> FakeStore:
    """A store with these rows."""
    store = FakeStore()
    store.plant("messages", rows)
    return store


async def read(rows: list[Row], messages: int, **given: Any) -> Past:
    """What is read of a session with these rows."""
    return await read_session(store_of(*rows), "o", SESSION, messages=messages, **given)


def names(*numbers: int) -> list[str]:
    """The ids of these rows."""
    return [f"m{number}" for number in numbers]


@pytest.mark.parametrize("stored", [1, 25, 26, 99, 100, 101, 124, 125, 126, 299, 300, 301, 700])
@pytest.mark.parametrize("messages", [1, 24, 25, 99, 100, 101, 300, 1_000])
async def test_the_newest_rows(stored: int, messages: int) -> None:
    """As many as are wanted, the newest first; it is cut only where there are more, also at the end of a page."""
    past = await read([a_row(number) for number in range(stored)], messages)
    assert [row["id"] for row in past.rows] == [str(stored - 1 - place) for place in range(min(stored, messages))]
    assert past.stopped_early == (stored > messages)


@pytest.mark.parametrize("size", [MIB // 16, 60_000])
async def test_more_text_than_a_model_takes(size: int) -> None:
    """Only the rows that have no more than 4 Mi characters together, and not all of the page in which these end."""
    past = await read([a_row(number, "x" * size) for number in range(90)], 1_000)
    assert [row["id"] for row in past.rows] == [str(89 - place) for place in range(4 * MIB // size)]
    assert past.stopped_early


async def test_arguments_count() -> None:
    """What a model writes into a file stands in the arguments of its call."""
    function = {"name": "write", "arguments": "x" * 60_000}
    past = await read(
        [a_row(number, tool_calls=[{"function": function}]) for number in range(10)], 1_000, chars=200_000
    )
    assert (len(past.rows), past.stopped_early) == (3, True)


async def test_one_row_with_too_much_text() -> None:
    """Is shown rather than nothing."""
    past = await read([a_row(1, "x" * 500), a_row(2, "x" * 500)], 1_000, chars=400)
    assert [row["id"] for row in past.rows] == ["2"]


async def test_the_current_run_does_not_count() -> None:
    """However much of it is recorded already."""
    rows = [a_row(number) for number in range(600)]
    rows[100:] = [{**row, "run_id": "now", "content": "x" * 100_000} for row in rows[100:]]
    past = await read(rows, 1_000, asked=NOW)
    assert [row["id"] for row in past.rows] == [str(99 - place) for place in range(100)]
    assert not past.stopped_early


@pytest.mark.parametrize(
    ("messages", "pages"),
    [
        (1, [25]),
        (99, [100]),
        (100, [101]),
        (1_000, [128, 256, 400, 217]),
        (10_000, [128, 256, *[400] * 24, 25]),
    ],
)
async def test_few_pages(messages: int, pages: list[int]) -> None:
    """Each costs the way to its first row again: they grow, but not beyond what is wanted and what tells of more."""
    store = Counting([a_row(number) for number in range(10_100)])
    assert len((await read_session(store, "o", SESSION, messages=messages)).rows) == messages
    assert store.pages == pages


async def test_what_was_stored_later_is_left_out() -> None:
    """By stored order, whatever the senders' clocks say, so that a run sees the same session to its end."""
    store = store_of(*(row(number) for number in range(300)))
    before = await read_session(store, "o", SESSION, messages=200)
    store.plant("messages", [row(1_000 + number) for number in range(300)])
    store.plant("messages", [row(2_000 + number, timestamp=START) for number in range(100)])
    until = UntilShown.of(before.rows)
    assert (await read_session(store, "o", SESSION, messages=200, until=until)).rows == before.rows


async def test_without_a_cutoff_the_input_says_when_the_run_began() -> None:
    """A row that another program stored under an `_id` of its own form is not taken for a later one."""
    store = store_of({**row(1), "_id": "zzz"}, row(2), row(3, id="begun", run_id="now"), row(4))
    asked = Message(id="begun", run_id="now", owner_key="o", role=Role.HUMAN)
    service = PersistenceService(store, NO_TOMBSTONES)
    for continued in (True, False):
        past = await service.get_session("o", SESSION, messages=10, asked=asked, continued=continued)
        assert sorted(ids(past.rows)) == names(1, 2)
    past = await service.get_session("o", SESSION, messages=10, asked=NOW)
    assert sorted(ids(past.rows)) == names(1, 2, 4)


async def test_what_is_internal() -> None:
    """Is read for that sub-agent alone, and counts for nobody else: what one did leaves others their history."""
    store = store_of(*(row(number, metadata=INTERNAL if number % 2 else {}) for number in range(600)))
    main = await read_session(store, "o", SESSION, messages=300)
    assert ids(main.rows) == names(*range(598, -1, -2))
    past = await read_session(store, "o", RunOrigin("s", "reviewer"), messages=600)
    assert (len(past.rows), past.stopped_early) == (600, False)
    for sub_agent in ("other", ""):
        assert await read_session(store, "o", RunOrigin("s", sub_agent), messages=300) == main


async def test_rows_that_come_while_it_is_read() -> None:
    """Push others to the next page: none of those is shown twice, and none is missing."""

    class Growing(FakeStore):
        async def session_messages(
            self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
        ) -> list[Row]:
            page = await super().session_messages(owner_key, session_id, limit=limit, skip=skip, sub_agent=sub_agent)
            self.plant("messages", [row(10_000 + len(self.messages))])
            return page

    store = Growing()
    store.plant("messages", [row(number) for number in range(600)])
    past = await read_session(store, "o", SESSION, messages=1_000)
    assert ids(past.rows) == names(*range(599, -1, -1))


def at(number: int, **metadata: Any) -> Row:
    """A row that was stored so many seconds after the first."""
    return a_row(number, **metadata) | {"_id": bson.ObjectId(f"{number + 1:08x}{number:016x}")}


class TestTail:
    """What is under no compaction yet."""

    @pytest.mark.parametrize("messages", [1, 24, 25, 26, 150, 151, 200])
    async def test_only_that(self, messages: int) -> None:
        """Rows under a compaction are neither shown nor counted, on whichever page they would be."""
        rows = [at(number) for number in range(300)]
        covered = frozenset(str(row["_id"]) for row in rows[100::2])
        past = await read(rows, messages, tail=Tail(f"{101:08x}", covered))
        left = [row["id"] for row in rows[100:] if str(row["_id"]) not in covered][::-1]
        assert [row["id"] for row in past.rows] == left[:messages]
        assert past.stopped_early is (messages < len(left))

    async def test_a_sub_agents_own_rows(self) -> None:
        """They are under no compaction; the main agent sees none of them."""
        own = {"sub_agent_internal": True, "agent_id": "reviewer"}
        rows = [at(number, **(own if number % 2 else {})) for number in range(10)]
        store = FakeStore()
        store.plant("messages", rows)
        tail = Tail(f"{9:08x}")
        sub = await read_session(store, "o", RunOrigin("s", "reviewer"), messages=20, tail=tail)
        main = await read_session(store, "o", SESSION, messages=20, tail=tail)
        assert [row["id"] for row in sub.rows] == ["9", "8", "7", "5", "3", "1"]
        assert [row["id"] for row in main.rows] == ["8"]

    async def test_without_a_compaction(self) -> None:
        """All of it is left, also rows whose `_id` says nothing of when they were stored."""
        rows = [a_row(number) | {"_id": f"own {number}"} for number in range(3)]
        assert len((await read(rows, 10, tail=Tail())).rows) == 3
        assert (await read(rows, 10, tail=Tail(f"{1:08x}"))).rows == []
