"""The newest rows of owners in memory: for how long they are good, how they grow, and how many are kept."""

import asyncio
from typing import Any, Final

import pytest

from nexus.core.ports import Moved, Row
from nexus.core.row_ids import new_row_id
from nexus.services.context.formatters import MemoryFormatter
from nexus.services.tails import Tails, is_later
from tests.nexus.support.rows import START
from tests.nexus.support.virtual_time import VirtualLoop

_PLENTY: Final = 1 << 20
_MESSAGES, _CHARS = 20, 500


def row(row_id: str, role: str = "HUMAN", run_id: str = "run", content: Any = "said") -> Row:
    """A row of an owner."""
    about = {"id": row_id, "run_id": run_id, "owner_key": "ada", "session_id": "default", "role": role}
    return {**about, "_id": new_row_id(), "content": content, "timestamp": START, "metadata": {}}


def kept(tails: Tails, owner: str = "ada") -> list[str] | None:
    """The ids of the rows that are kept of an owner."""
    tail = tails.find(owner)
    return [each["id"] for each in tail.read()] if tail else None


def keeping(*rows: Row, version: str = "10", most_bytes: int = _PLENTY) -> Tails:
    """Tails that keep these rows of ada."""
    tails = Tails(most_bytes)
    tails.keep("ada", version, rows, _MESSAGES, _CHARS)
    return tails


async def test_it_grows_with_what_is_recorded_here() -> None:
    """Whatever its role, the newest first; and what is not shown moves the version alone."""
    tails = keeping(row("h1"))
    tails.moved("ada", Moved("10", "11"), row("a1", "AI"))
    tails.moved("ada", Moved("11", "12"), None)
    tails.moved("ada", Moved("12", "13"), row("h2", run_id="next"))
    assert kept(tails) == ["h2", "a1", "h1"]
    tail = tails.find("ada")
    assert tail
    assert tail.version == "13"


async def test_however_long_it_grows() -> None:
    """What is kept is what is shown; it says the same as all that was recorded, and no more than it takes."""
    said, version = [row("h0", run_id="r0")], 10
    tails = keeping(*said, most_bytes=_PLENTY)
    for number in range(1, 200):
        run = f"r{number // 3}"
        new = row(f"m{number}", "AI" if number % 3 else "HUMAN", run, f"{number} [tool_use:x]")
        tails.moved("ada", Moved(str(version), str(version + 1)), new)
        said, version = [new, *said], version + 1
        # Some come while nobody asks.
        if number % 7:
            continue
        tail = tails.find("ada")
        assert tail
        assert [each["id"] for each in tail.read()] == [each["id"] for each in said[: len(tail.read())]]
        assert MemoryFormatter.render(tail.read()).block.text == MemoryFormatter.render(said).block.text
        assert len(tail.read()) <= 3 * _MESSAGES


async def test_one_that_another_replica_was_to_store_before() -> None:
    """By its `_id` it is not the newest; it has the place that it would have if all were read again."""
    rows = [row(name, run_id=name) for name in ("h1", "h2", "h3")]
    tails = keeping(rows[2], rows[0])
    tails.moved("ada", Moved("10", "11"), rows[1])
    tail = tails.find("ada")
    assert tail
    assert MemoryFormatter.render(tail.read()).block.sources == ("h1", "h2", "h3")


@pytest.mark.parametrize(
    ("moved", "new"),
    [
        # Somebody else has recorded in between.
        (Moved("11", "12"), row("h2")),
        (Moved("9", "12"), row("h2")),
        (Moved("", "12"), None),
        # The beginning of the run is not among the rows.
        (Moved("10", "11"), row("a7", "AI", "another")),
    ],
)
async def test_it_is_let_go(moved: Moved, new: Row | None) -> None:
    """When nobody can say that nothing is missing."""
    tails = keeping(row("h1"))
    tails.moved("ada", moved, new)
    assert kept(tails) is None


async def test_what_it_has_already() -> None:
    """A move that is heard late, or of a row that was read before its move, adds nothing."""
    tails = keeping(row("h2"), row("h1"))
    tails.moved("ada", Moved("8", "9"), row("h1"))
    tails.moved("ada", Moved("9", "10"), row("h2"))
    tails.moved("ada", Moved("10", "11"), row("h2"))
    assert kept(tails) == ["h2", "h1"]
    tail = tails.find("ada")
    assert tail
    assert tail.version == "11"


async def test_the_newest_is_kept() -> None:
    """What was read earlier replaces it only where that is enough for more messages."""
    tails = keeping(row("new"), version="12")
    tails.keep("ada", "11", [row("old")], _MESSAGES, _CHARS)
    assert kept(tails) == ["new"]
    tails.keep("ada", "11", [row("old")], _MESSAGES + 1, _CHARS)
    assert kept(tails) == ["old"]
    tails.keep("ada", "13", [row("newest")], _MESSAGES, _CHARS)
    assert kept(tails) == ["newest"]


async def test_for_whom_it_is_enough() -> None:
    """For as many messages or fewer, with contents cut as they were."""
    tail = keeping(row("h1")).find("ada")
    assert tail
    wanted = [(_MESSAGES, _CHARS), (1, _CHARS), (_MESSAGES + 1, _CHARS), (1, _CHARS - 1), (1, _CHARS + 1)]
    assert [tail.is_enough(*each) for each in wanted] == [True, True, False, False, False]


async def test_who_was_not_asked_for_the_longest_goes_first() -> None:
    """As many are kept as there is room for; one that takes much of it is not kept, and nobody goes for it."""
    one = row("h", content="x" * 1_000)
    alone = keeping(one).find("ada")
    assert alone
    tails = Tails(10 * alone.size + alone.size // 2)
    first = [f"ada{number}" for number in range(10)]
    for owner in first:
        tails.keep(owner, "1", [one], _MESSAGES, _CHARS)
    assert kept(tails, "ada0")
    tails.keep("joe", "1", [one], _MESSAGES, _CHARS)
    assert [owner for owner in (*first, "joe") if kept(tails, owner) is None] == ["ada1"]
    tails.moved("ada5", Moved("1", "2"), row("h2", content="x" * 10_000))
    assert [owner for owner in (*first, "joe") if kept(tails, owner) is None] == ["ada1", "ada5"]


async def test_nothing_outlives_a_lost_connection() -> None:
    """Redis may know less after it than before."""
    epoch = 0
    tails = Tails(100_000, lambda: epoch)
    tails.keep("ada", "1", [row("h")], _MESSAGES, _CHARS)
    assert kept(tails, "ada")
    epoch = 1
    assert kept(tails, "ada") is None
    tails.keep("ada", "1", [row("h")], _MESSAGES, _CHARS)
    assert kept(tails, "ada")


async def test_bytes_do_not_leak() -> None:
    """However often what is kept is replaced, grown and let go, there is room for as much as before."""
    tails = keeping(row("h1"), most_bytes=20_000)
    for number in range(100):
        tails.keep("ada", str(number), [row("h1")], _MESSAGES, _CHARS)
        tails.moved("ada", Moved(str(number), str(number + 1)), row(f"h{number + 2}", run_id=f"run{number}"))
        tails.forget("ada")
        tails.forget("nobody")
    for owner in ("ada", "bob"):
        tails.keep(owner, "200", [row("h1"), row("h2")], _MESSAGES, _CHARS)
    assert kept(tails, "ada") == kept(tails, "bob") == ["h1", "h2"]


async def test_none_at_all() -> None:
    """Where there is no room, nothing is kept."""
    assert kept(keeping(row("h1"), most_bytes=0)) is None


def test_it_lasts_a_minute() -> None:
    """Others may have removed rows meanwhile; growing does not make it last longer."""
    loop = VirtualLoop()

    async def pass_time() -> list[list[str] | None]:
        tails = keeping(row("h1"))
        found = []
        for number in range(3):
            await asyncio.sleep(25)
            found.append(kept(tails))
            tails.moved("ada", Moved(str(10 + number), str(11 + number)), row(f"h{number + 2}", run_id="next"))
        return found

    try:
        assert loop.run_until_complete(pass_time()) == [["h1"], ["h2", "h1"], None]
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("version", "other", "later"),
    [("10", "9", True), ("9", "10", False), ("9", "9", False), ("1", "", True), ("", "", False)],
)
def test_which_is_later(version: str, other: str, later: bool) -> None:
    """They are numbers, and none is before all."""
    assert is_later(version, other) == later
