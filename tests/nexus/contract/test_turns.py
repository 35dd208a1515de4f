"""The promises of `nexus.core.ports.TurnStore`, on every adapter and on the fake that other tests use."""

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.memory import TurnTouch
from tests.nexus.contract.test_store import OWNERS, Place, bare_place, place

__all__ = ["bare_place", "place"]

CLAIMERS = 50
HOUR = timedelta(hours=1)
NOW = datetime(2026, 1, 1, 12, 0, 0, 123_456, UTC)
LONG = {"messages", "tool_calls", "thinking_phase", "workspace_context"}


def turn(number: int, **changes: Any) -> Row:
    """Turn `number` of the session `s` of the owner `o`, of a run by itself, with changes."""
    structured = {"overview": f"overview {number}", "actions": [], "results": [], "decisions": [], "next_steps": []}
    return {
        "id": f"turn_{number}_0",
        "turn_number": number,
        "owner_key": "o",
        "session_id": "s",
        "run_id": f"r{number}",
        "timestamp": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number),
        "status": "pending",
        "task_context": "the goal",
        "workspace_context": "the surroundings",
        "messages": ["m1"],
        "thinking_phase": None,
        "tool_calls": [
            {
                "name": "t",
                "arguments": {"$x.y": [{"$ref": "#/a", "$id": 1}, {"": ""}]},
                "success": True,
                "result": "a\x00б😀",
            }
        ],
        "summaries": {"brief": f"brief {number}", "detailed": "d", "structured": structured, "source": "fallback"},
        "insights": [],
        "token_usage": {"thinking": 0, "action": 0, "total": 0},
        "work": "close",
        "due_at": datetime(2026, 1, 1, tzinfo=UTC),
        **changes,
    }


def numbers(rows: list[Row]) -> list[int]:
    """The numbers of the turns."""
    return [row["turn_number"] for row in rows]


def milliseconds(moment: datetime) -> datetime:
    """The moment as it is kept."""
    return moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


async def test_a_turn_comes_back_as_it_was(place: Place) -> None:
    """What is kept is found again, without `_id`; the caller's document stays as it was."""
    written = turn(1, due_at=NOW)
    async with place.open() as store:
        assert await store.turns.latest_turn("o", "s") is None
        assert await store.turns.insert_turns([written]) == 1
        assert written == turn(1, due_at=NOW)
        kept = turn(1, due_at=milliseconds(NOW))
        assert await store.turns.find_turn("o", "s", 1) == kept
        assert await store.turns.turns("o", "s", limit=5, whole=True) == [kept]
        short = {name: value for name, value in kept.items() if name not in {"messages", "tool_calls"}}
        assert await store.turns.latest_turn("o", "s") == short
        assert await store.turns.turns_of_runs("o", "s", ["r1", "r2"]) == [short]
        assert await store.turns.find_turn("o", "s", 2) is None


async def test_as_many_are_kept_as_nothing_stands_in_the_way_of(place: Place) -> None:
    """Up to the first whose number or whose run is taken; what follows is not kept, although nothing is in its way."""
    async with place.open() as store:
        turns = store.turns
        assert await turns.insert_turns([]) == 0
        assert await turns.insert_turns([turn(1), turn(2)]) == 2
        assert await turns.insert_turns([turn(2, run_id="new"), turn(3)]) == 0
        assert await turns.insert_turns([turn(3), turn(4, run_id="r1"), turn(5)]) == 1
        assert await turns.insert_turns([turn(4), turn(5, run_id="r4"), turn(6)]) == 1
        assert await turns.insert_turns([turn(5), turn(4, run_id="new"), turn(6)]) == 1
        assert numbers(await turns.turns("o", "s", limit=10)) == [5, 4, 3, 2, 1]


async def test_a_page(place: Place) -> None:
    """The highest number first, from below a number, without some runs; what is long only where it is asked for."""
    async with place.open() as store:
        await store.turns.insert_turns([turn(number) for number in range(1, 11)])
        page = await store.turns.turns("o", "s", limit=3)
        assert numbers(page) == [10, 9, 8]
        assert all(set(turn(1)) - set(row) == LONG for row in page)
        assert numbers(await store.turns.turns("o", "s", limit=3, before=8)) == [7, 6, 5]
        assert numbers(await store.turns.turns("o", "s", limit=3, before=8, without_runs=["r7", "r5"])) == [6, 4, 3]
        assert numbers(await store.turns.turns("o", "s", limit=3, before=1)) == []
        assert await store.turns.count_turns("o", "s") == 10


async def test_owners_and_sessions_are_texts(place: Place) -> None:
    """Whatever an owner or a session is called, each has its own turns and no other's."""
    names = [(owner, session) for owner in OWNERS for session in ("s", owner)]
    async with place.open() as store:
        turns = store.turns
        for owner, session in names:
            assert await turns.latest_turn(owner, session) is None
            assert await turns.insert_turns([turn(1, owner_key=owner, session_id=session, run_id=session)]) == 1
        for owner, session in names:
            found = [
                *await turns.turns(owner, session, limit=10),
                *await turns.turns_of_runs(owner, session, [run for _, run in names]),
                *await turns.search_turns(owner, session, "brief", limit=10),
                await turns.latest_turn(owner, session) or {},
                await turns.find_turn(owner, session, 1) or {},
            ]
            assert {(row["owner_key"], row["session_id"]) for row in found} == {(owner, session)}
            assert len(found) == 5
            assert await turns.count_turns(owner, session) == 1


async def test_what_is_searched_for_is_a_text(place: Place) -> None:
    """It is found wherever a summary or an insight holds it, whatever the case, and nothing in it is a pattern."""
    texts = [
        ("brief", "HR 0.86 (95% CI 0.80-0.93)", ["hr 0.86 (95% ci", "0.80-0.93)", "%"]),
        ("detailed", "Нашлось: 156 СТАТЕЙ", ["статей", "НАШЛОСЬ"]),
        ("overview", "共156篇文章 😀", ["156篇", "😀"]),
        ("actions", "web_search [a|b]* $x", ["[A|B]* $", "b]*"]),
        ("results", "one\ntwo\x00three", ["one\ntwo", "TWO\x00THREE"]),
        ("decisions", "a\\b \\Q.*\\E", ["A\\B", "\\q.*\\e"]),
        ("next_steps", "(?i)#comment", ["(?I)#", "#COMMENT"]),
        ("insights", "ends here", ["ENDS HERE"]),
    ]
    rows = [turn(number, summaries={}, workspace_context="nowhere") for number in range(1, len(texts) + 1)]
    for row, (place_of, text, _) in zip(rows, texts, strict=True):
        structured = {place_of: text if place_of == "overview" else ["other", text]}
        is_own = place_of in {"brief", "detailed"}
        row["summaries"] = {place_of: text} if is_own else {"structured": structured}
        row["insights"] = ["other", text] if place_of == "insights" else []
    rows[-1]["summaries"] = {}
    async with place.open() as store:
        await store.turns.insert_turns(rows)
        for number, (_, _, searches) in enumerate(texts, 1):
            for text in searches:
                found = await store.turns.search_turns("o", "s", text, limit=10)
                assert numbers(found) == [number], text
                assert not LONG & set(found[0])
        for text in ("HR.*", "^one", "HR 0,86", "nowhere", "the goal", "x" * 250, "\x00" * 250, "😀" * 250):
            assert await store.turns.search_turns("o", "s", text, limit=10) == [], text[:10]
        assert numbers(await store.turns.search_turns("o", "s", "other", limit=2)) == [8, 7]
        with pytest.raises(StoreRejectedError, match="250 characters"):
            await store.turns.search_turns("o", "s", "x" * 251, limit=10)


async def test_a_turn_is_changed_while_it_is_due(place: Place) -> None:
    """Fields are set while nobody has moved the time at which it is due, to the millisecond, and not after that."""
    later = NOW + timedelta(seconds=1)
    async with place.open() as store:
        turns = store.turns
        await turns.insert_turns([turn(1, due_at=NOW), turn(2, due_at=None)])
        assert not await turns.update_turn("o", "s", 1, {"status": "x"}, seen={"due_at": later})
        assert not await turns.update_turn("o", "s", 1, {"status": "x"}, seen={"due_at": None})
        assert not await turns.update_turn("o", "s", 3, {"status": "x"}, seen={"due_at": NOW})
        assert not await turns.update_turn("p", "s", 1, {"status": "x"}, seen={"due_at": NOW})
        assert not await turns.update_turn("o", "t", 1, {"status": "x"}, seen={"due_at": NOW})
        changes = {"status": "completed", "tool_calls": [{"arguments": {"$set": {"a.b": ""}}}], "due_at": later}
        assert await turns.update_turn("o", "s", 1, changes, seen={"due_at": NOW})
        assert not await turns.update_turn("o", "s", 1, {"status": "x"}, seen={"due_at": NOW})
        assert await turns.update_turn("o", "s", 2, {"work": None}, seen={"due_at": None})
        assert await turns.find_turn("o", "s", 1) == turn(1, **{**changes, "due_at": milliseconds(later)})
        assert await turns.find_turn("o", "s", 2) == turn(2, due_at=None, work=None)


async def test_a_run_is_touched(place: Place) -> None:
    """The turn of a run is changed, of that owner in that session alone: others may have a copy of it."""
    async with place.open() as store:
        turns = store.turns
        await turns.insert_turns([turn(1, run_id="r"), turn(2, run_id="r", owner_key="p"), turn(3)])
        await turns.insert_turns([turn(1, run_id="r", session_id=session) for session in ("a", "z")])
        assert await turns.touch_runs([TurnTouch("o", "s", "r", {"heard_at": NOW, "status": "acting"})]) == []
        unknown = [TurnTouch("o", "s", "$ne", {"status": "x"}), TurnTouch("q", "s", "r", {"status": "x"})]
        told = [TurnTouch("o", "s", "r", {"status": "x"}, message_id="m1")]
        new = [TurnTouch("o", "s", "r", {"heard_at": NOW}, message_id="m2")]
        assert await turns.touch_runs([unknown[0], *told, unknown[1], *new]) == unknown
        assert await turns.touch_runs([]) == []
        found = {row["turn_number"]: row["status"] for row in await turns.turns("o", "s", limit=5)}
        assert found == {1: "acting", 3: "pending"}
        places = (("p", "s"), ("o", "a"), ("o", "z"))
        others = [row for place in places for row in await turns.turns(*place, limit=5)]
        assert [row["status"] for row in others] == ["pending"] * 3


async def test_a_touch_makes_a_turn_due_that_is_not(place: Place) -> None:
    """Where somebody is to look whether it is over, that stays as it is."""
    due = turn(1)["due_at"]
    async with place.open() as store:
        turns = store.turns
        await turns.insert_turns([turn(1), turn(2, work=None, due_at=None), turn(3, work="summarise")])
        again = {"work": "close", "due_at": NOW}
        touches = [TurnTouch("o", "s", f"r{number}", {"status": "acting"}, again) for number in (1, 2, 3)]
        # Whoever does not know whether it was done does it again.
        for _ in range(2):
            assert await turns.touch_runs(touches) == []
        unknown = TurnTouch("o", "s", "r4", {"status": "acting"}, {"work": "close"})
        assert await turns.touch_runs([unknown]) == [unknown]
        found = (await turns.turns("o", "s", limit=5))[::-1]
    assert [(row["status"], row["work"]) for row in found] == [("acting", "close")] * 3
    assert [row["due_at"] for row in found] == [due, milliseconds(NOW), milliseconds(NOW)]


async def test_runs_are_touched_in_order(place: Place) -> None:
    """Of one run what was said last counts; many sessions do not get in each other's way."""
    async with place.open() as store:
        turns = store.turns
        sessions = [str(number) for number in range(30)]
        await turns.insert_turns([turn(1, session_id=session) for session in sessions])
        touches = [
            TurnTouch("o", session, "r1", {"status": status, "insights": [session]})
            for session in sessions
            for status in ("executing", "acting")
        ]
        assert await turns.touch_runs(touches) == []
        found = [row for session in sessions for row in await turns.turns("o", session, limit=2)]
    assert [(row["status"], row["insights"]) for row in found] == [("acting", [session]) for session in sessions]


async def test_each_claimer_gets_another_turn(place: Place) -> None:
    """Of fifty that claim at once each gets one of the fifty turns that are due, whole; the fifty-first gets none."""
    until = NOW + timedelta(minutes=5)
    claimed: list[Row] = []
    async with place.open() as store:
        due = [NOW - timedelta(seconds=number) for number in range(CLAIMERS)]
        await store.turns.insert_turns([turn(number + 1, due_at=moment) for number, moment in enumerate(due)])

        async def claim() -> None:
            row = await store.turns.claim("close", NOW, until)
            assert row is not None
            claimed.append(row)

        async with anyio.create_task_group() as tasks:
            for _ in range(CLAIMERS):
                tasks.start_soon(claim)
        assert await store.turns.claim("close", NOW, until) is None
    assert sorted(numbers(claimed)) == [*range(1, CLAIMERS + 1)]
    assert all(row == turn(row["turn_number"], due_at=milliseconds(until)) for row in claimed)


async def test_what_is_claimed(place: Place) -> None:
    """Of that work alone, by that moment, what was last due first, whoever's; afterwards it is due later."""
    async with place.open() as store:
        turns = store.turns
        rows = [
            turn(1, due_at=NOW - timedelta(hours=2)),
            turn(2, due_at=NOW - timedelta(hours=1), owner_key="p"),
            turn(3, due_at=NOW + timedelta(milliseconds=1)),
            turn(4, due_at=NOW, work="summarise"),
            turn(5, due_at=NOW, work=None),
            turn(6, due_at=None),
        ]
        assert await turns.insert_turns(rows) == 6
        until = NOW + timedelta(minutes=1)
        claimed = [await turns.claim("close", NOW, until) for _ in range(3)]
        assert [row and row["turn_number"] for row in claimed] == [2, 1, None]
        again = await turns.claim("close", until, until)
        assert again is not None
        assert again["turn_number"] in {1, 2}


@pytest.mark.parametrize("bad", ["\ud800", 2**64, "x" * (17 << 20)], ids=["half a pair", "too big", "too long"])
async def test_what_cannot_be_kept(place: Place, bad: Any) -> None:
    """It is refused, and what was there stays; so is a change that makes a turn too large."""
    async with place.open() as store:
        turns = store.turns
        assert await turns.insert_turns([turn(1, workspace_context="x" * (9 << 20))]) == 1
        with pytest.raises(StoreRejectedError):
            await turns.insert_turns([turn(2), turn(3, task_context=bad)])
        with pytest.raises(StoreRejectedError):
            await turns.update_turn("o", "s", 1, {"task_context": bad}, seen={"due_at": turn(1)["due_at"]})
        with pytest.raises(StoreRejectedError):
            await turns.touch_runs([TurnTouch("o", "s", "r1", {"task_context": "x" * (9 << 20)})])
        found = await turns.find_turn("o", "s", 1)
    assert found is not None
    assert found["task_context"] == "the goal"
