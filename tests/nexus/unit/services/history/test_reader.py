"""How much of a past and of a session is read (CONTRACT §4.3, §5)."""

from datetime import timedelta
from typing import Any

import bson
import pytest

from nexus.core.models import Message, Role
from nexus.core.ports import Past, Row, RunOrigin
from nexus.core.working_memory import Tail
from nexus.services.history.merge import newest
from nexus.services.history.reader import read_past, read_session
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.rows import START

MIB = 1 << 20
HOUR = timedelta(hours=1)
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


async def read(rows: list[Row], messages: int, **given: Any) -> Past:
    """What is read of a session with these rows."""
    store = FakeStore()
    store.plant("messages", rows)
    return await read_session(store, "o", RunOrigin("s"), messages=messages, **given)


def _in_turn(number: int) -> Row:
    """A row of a past in which question and answer take turns, each two of a run of their own."""
    return a_row(number) | {"role": ("HUMAN", "AI")[number % 2], "run_id": f"r{number // 2}"}


class Asked(FakeStore):
    """A store that knows how often it was asked for rows of a past."""

    asked = 0

    def _ask(self, operation: str) -> None:
        super()._ask(operation)
        self.asked += 1


@pytest.mark.parametrize("inputs", [0, 1, 2, 3])
async def test_a_past_is_asked_for_once(inputs: int) -> None:
    """Also where what is shown begins within a run: its input is among what was read, and need not be found again."""
    rows = [_in_turn(number) for number in range(100)]
    rows += [_in_turn(100 + 2 * number) for number in range(inputs)]
    store = Asked()
    store.plant("messages", rows)
    past = await read_past(store, "o", messages=20, excerpt_chars=500)
    assert (len(past.rows), store.asked) == (40, 1)


@pytest.mark.parametrize("rows", [0, 1, 5_000])
async def test_a_past_of_the_current_run_alone(rows: int) -> None:
    """However long it is, nothing of it is shown, and the next past is read all the same."""
    store = FakeStore()
    store.plant("messages", [a_row(number) | {"run_id": "now"} for number in range(rows)])
    for _ in range(2):
        past = await read_past(store, "o", messages=20, excerpt_chars=500, asked=NOW)
        assert newest(past.rows, 20, current_run_id="now").utterances == []


async def test_a_run_of_which_only_the_end_was_read() -> None:
    """Its beginning is found with one more question, and the run is whole."""
    rows = [a_row(0) | {"role": "HUMAN", "run_id": "long"}]
    rows += [a_row(number) | {"run_id": "long"} for number in range(1, 100)]
    rows += [_in_turn(number) for number in range(100, 104)]
    store = Asked()
    store.plant("messages", rows)
    past = await read_past(store, "o", messages=5, excerpt_chars=500)
    assert store.asked > 1
    assert {row["id"] for row in past.rows} == {str(number) for number in range(104)}


@pytest.mark.parametrize("stored", [1, 25, 26, 99, 100, 101, 124, 125, 126, 299, 300, 301, 700])
@pytest.mark.parametrize("messages", [1, 24, 25, 99, 100, 101, 300, 1_000])
async def test_the_newest_rows(stored: int, messages: int) -> None:
    """As many as are wanted, the newest first; it is cut only where there are more, also at the end of a page."""
    past = await read([a_row(number) for number in range(stored)], messages)
    assert [row["id"] for row in past.rows] == [str(stored - 1 - place) for place in range(min(stored, messages))]
    assert past.stopped_early == (stored > messages)


@pytest.mark.parametrize("size", [MIB, 1_000_000, 100_000])
async def test_more_text_than_a_model_takes(size: int) -> None:
    """Only the rows that have no more than 4 Mi characters together, and not all of the page in which these end."""
    past = await read([a_row(number, "x" * size) for number in range(60)], 1_000)
    assert [row["id"] for row in past.rows] == [str(59 - place) for place in range(4 * MIB // size)]
    assert past.stopped_early


async def test_arguments_count() -> None:
    """What a model writes into a file stands in the arguments of its call."""
    function = {"name": "write", "arguments": "x" * MIB}
    past = await read([a_row(number, tool_calls=[{"function": function}]) for number in range(10)], 1_000)
    assert (len(past.rows), past.stopped_early) == (3, True)


async def test_one_row_with_too_much_text() -> None:
    """Is shown rather than nothing."""
    past = await read([a_row(1, "x" * 5 * MIB), a_row(2, "x" * 5 * MIB)], 1_000)
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
        (100, [100, 25]),
        (1_000, [100, 200, 400, 301]),
        (10_000, [100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000, 901]),
    ],
)
async def test_few_pages(messages: int, pages: list[int]) -> None:
    """Each costs the way to its first row again: they grow, but not beyond what is wanted and what tells of more."""
    store = Counting([a_row(number) for number in range(10_100)])
    assert len((await read_session(store, "o", RunOrigin("s"), messages=messages)).rows) == messages
    assert store.pages == pages


@pytest.mark.parametrize(("size", "pages"), [(MIB, [100]), (30_000, [100, 40]), (10_000, [100, 200, 120])])
async def test_long_rows_make_small_pages(size: int, pages: list[int]) -> None:
    """No more rows are asked for than have room, where they are as long as those before."""
    store = Counting([a_row(number, "x" * size) for number in range(1_000)])
    past = await read_session(store, "o", RunOrigin("s"), messages=10_000)
    assert (len(past.rows), past.stopped_early) == (4 * MIB // size, True)
    assert store.pages == pages


async def test_short_rows_after_long_ones() -> None:
    """Make the pages grow again, although long ones have left little room."""
    store = Counting([a_row(number, "x" * (41_900 if number >= 1_900 else 1)) for number in range(2_000)])
    past = await read_session(store, "o", RunOrigin("s"), messages=10_000)
    assert (len(past.rows), past.stopped_early) == (2_000, False)
    assert store.pages == [100, 25, 400, 800, 1_600]


async def test_rows_without_text() -> None:
    """Leave all the room there is."""
    store = Counting([a_row(number, "") for number in range(301)])
    past = await read_session(store, "o", RunOrigin("s"), messages=1_000)
    assert (len(past.rows), past.stopped_early) == (301, False)
    assert store.pages == [100, 200, 400]


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

    async def test_what_came_late(self) -> None:
        """A row is left by when it was stored: one that says it is old and was recorded late is shown."""
        late = at(50) | {"timestamp": START - timedelta(days=1)}
        past = await read([at(number) for number in range(40)] + [late], 10, tail=Tail(f"{45:08x}"))
        assert [row["id"] for row in past.rows] == ["50"]

    async def test_a_sub_agents_own_rows(self) -> None:
        """They are under no compaction; the main agent sees none of them."""
        own = {"sub_agent_internal": True, "agent_id": "reviewer"}
        rows = [at(number, **(own if number % 2 else {})) for number in range(10)]
        store = FakeStore()
        store.plant("messages", rows)
        tail = Tail(f"{9:08x}")
        sub = await read_session(store, "o", RunOrigin("s", "reviewer"), messages=20, tail=tail)
        main = await read_session(store, "o", RunOrigin("s"), messages=20, tail=tail)
        assert [row["id"] for row in sub.rows] == ["9", "8", "7", "5", "3", "1"]
        assert [row["id"] for row in main.rows] == ["8"]

    async def test_nothing_is_left(self) -> None:
        """A session of which everything is compacted has an empty tail."""
        assert await read([at(number) for number in range(5)], 10, tail=Tail(f"{9:08x}")) == Past([])

    async def test_without_a_compaction(self) -> None:
        """All of it is left, also rows whose `_id` says nothing of when they were stored."""
        rows = [a_row(number) | {"_id": f"own {number}"} for number in range(3)]
        assert len((await read(rows, 10, tail=Tail())).rows) == 3
        assert (await read(rows, 10, tail=Tail(f"{1:08x}"))).rows == []
