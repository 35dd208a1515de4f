"""The promises of `nexus.core.ports.TurnStore`, on every adapter and on the fake that other tests use."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row, TurnStore
from nexus.core.ports.turns import LATEST, TurnTouch, TurnUpdate
from nexus.services.turns.documents import is_unheard
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


async def insert_after_latest(turns: TurnStore, runs: list[str]) -> None:
    """Number these runs, in their order, after what is there, however often others come first."""
    while runs:
        latest = await turns.latest_turn("o", "s")
        first = latest["turn_number"] + 1 if latest else 1
        kept = await turns.insert_turns([turn(first + place, run_id=run) for place, run in enumerate(runs)])
        runs = runs[kept:]


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


async def test_turns_of_many_sessions(place: Place) -> None:
    """What stands in the way of one does not of the others; the latest of each is told in short."""
    async with place.open() as store:
        turns = store.turns
        await turns.insert_turns([turn(1), turn(2), turn(1, session_id="t"), turn(1, owner_key="p", run_id="of p")])
        sessions = [
            [turn(3), turn(4)],
            [turn(1, session_id="t", run_id="new"), turn(2, session_id="t")],
            [],
            [turn(2, owner_key="p"), turn(3, owner_key="p", run_id="of p"), turn(4, owner_key="p")],
            [turn(number, session_id="u", begun_at=milliseconds(NOW)) for number in range(1, 6)],
        ]
        assert await turns.insert_turns_of_sessions(sessions) == [2, 0, 0, 1, 5]
        assert await turns.insert_turns_of_sessions(sessions) == [0, 0, 0, 0, 0]
        assert await turns.insert_turns_of_sessions([]) == []
        places = [("o", "s"), ("o", "t"), ("p", "s"), ("o", "u"), ("p", "none")]
        latest = await turns.latest_turns(places)
        assert await turns.latest_turns(places[3:]) == await turns.latest_turns(places[3:4])
        assert await turns.latest_turns([]) == await turns.latest_turns([("p", "none")]) == []
    found = {(row["owner_key"], row["session_id"]): row for row in latest}
    assert {key: row["turn_number"] for key, row in found.items()} == dict(zip(places, (4, 1, 2, 5), strict=False))
    of_turn = sessions[-1][-1]
    assert {name: value for name, value in found["o", "u"].items() if name != "_id"} == {
        name: of_turn[name] for name in LATEST
    }


async def test_the_latest_turns_whatever_others_have_done(place: Place) -> None:
    """A replica that has begun and read turns tells what there is now: begun, removed or imported by another one."""
    async with place.open() as mine, place.open() as other:
        sessions = [f"s{number}" for number in range(8)]
        places = [("o", session) for session in sessions]

        async def latest() -> dict[str, int]:
            return {row["session_id"]: row["turn_number"] for row in await mine.turns.latest_turns(places)}

        async def begin(turns: TurnStore, *wanted: int) -> list[int]:
            begun = [[turn(number, session_id=session)] for session, number in zip(sessions, wanted, strict=False)]
            return await turns.insert_turns_of_sessions(begun)

        assert await latest() == {}
        assert await begin(mine.turns, *[5] * 7) == [1] * 7
        assert await latest() == dict.fromkeys(sessions[:7], 5)
        # Another replica goes on with some, of which the first one is refused the numbers then.
        assert await begin(other.turns, 6, 6, 6) == [1, 1, 1]
        assert await begin(mine.turns, 6, 6, 6, 6) == [0, 0, 0, 1]
        assert await latest() == dict.fromkeys(sessions[:4], 6) | dict.fromkeys(sessions[4:7], 5)
        # One is removed, one is begun anew, one is imported; two go far ahead, and one has begun.
        for session in sessions[:3]:
            await other.turns.delete_turns("o", session)
        await other.turns.insert_turns([turn(number, session_id="s1") for number in (1, 2)])
        await other.turns.insert_turns([turn(number, session_id="s2") for number in (2, 4, 9)])
        for session in ("s3", "s4"):
            await other.turns.insert_turns([turn(number, session_id=session) for number in range(7, 60)])
        await other.turns.insert_turns([turn(1, session_id="s7")])
        now = {"s1": 2, "s2": 9, "s3": 59, "s4": 59, "s5": 5, "s6": 5, "s7": 1}
        for _ in range(2):
            assert await latest() == now
        assert await begin(mine.turns, 1, 3, 10) == [1, 1, 1]
        assert await latest() == now | {"s0": 1, "s1": 3, "s2": 10}


async def test_the_latest_turns_of_more_sessions_than_are_remembered(place: Place) -> None:
    """Of each the latest, asked for together or a few at a time."""
    async with place.open() as store:
        sessions = [str(number) for number in range(1_100)]
        for number in (1, 2):
            await store.turns.insert_turns_of_sessions([[turn(number, session_id=session)] for session in sessions])
        few = [("o", session) for session in (*sessions[:30], *sessions[-30:])]
        found = await store.turns.latest_turns(few)
    assert sorted((row["session_id"], row["turn_number"]) for row in found) == sorted((place[1], 2) for place in few)


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_taken_stands_in_the_way_of_its_session_alone(place: Place, seed: int) -> None:
    """Wherever it is among many: a number or a run, in one session or in several, of the first turn or a later one."""
    chance = random.Random(seed)  # noqa: S311  # a test is to be repeatable
    wanted = [[turn(n, session_id=str(index)) for n in range(1, chance.randint(1, 4) + 1)] for index in range(20)]
    free = [len(turns) for turns in wanted]
    async with place.open() as store:
        for index in chance.sample(range(20), seed * 3):
            free[index] = chance.randrange(len(wanted[index]))
            taken = wanted[index][free[index]]
            known = {"run_id": "another"} if chance.random() < 0.5 else {"turn_number": 99}
            assert await store.turns.insert_turns([{**taken, **known}]) == 1
        assert await store.turns.insert_turns_of_sessions(wanted) == free
        found = [numbers(await store.turns.turns("o", str(index), limit=9, before=50)) for index in range(20)]
    assert all(count <= len(of_session) <= count + 1 for count, of_session in zip(free, found, strict=True))
    assert all(of_session == [*range(len(of_session), 0, -1)] for of_session in found)


async def test_many_turns_of_few_sessions(place: Place) -> None:
    """Of each up to the first that is taken, however many follow."""
    async with place.open() as store:
        turns = store.turns
        await turns.insert_turns([turn(30, session_id="t", run_id="there")])
        sessions = [[turn(number, session_id=session) for number in range(1, 41)] for session in ("s", "t", "u")]
        assert await turns.insert_turns_of_sessions([*sessions, [turn(1, session_id="v")]]) == [40, 29, 40, 1]
        assert await turns.count_turns("o", "t") == 30


async def test_two_who_number_at_once(bare_place: Place) -> None:
    """Whoever reads the latest number again after being overtaken leaves no gap and counts nothing twice."""
    async with bare_place.open() as store:
        async with anyio.create_task_group() as tasks:
            for writer in range(4):
                tasks.start_soon(insert_after_latest, store.turns, [f"{writer}-{number}" for number in range(25)])
        found = await store.turns.turns("o", "s", limit=1_000)
    assert numbers(found) == [*range(100, 0, -1)]
    for writer in range(4):
        own = [row["run_id"] for row in reversed(found) if row["run_id"].startswith(f"{writer}-")]
        assert own == [f"{writer}-{number}" for number in range(25)]


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
                *await turns.latest_turns([(owner, session), (owner, "none")]),
                *await turns.turns_of_runs(owner, session, [run for _, run in names]),
                *await turns.search_turns(owner, session, "brief", limit=10),
                await turns.latest_turn(owner, session) or {},
                await turns.find_turn(owner, session, 1) or {},
            ]
            assert {(row["owner_key"], row["session_id"]) for row in found} == {(owner, session)}
            assert len(found) == 6
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


async def test_turns_are_changed_together(place: Place) -> None:
    """Each only while it is as it was seen, whatever becomes of the others."""
    async with place.open() as store:
        turns = store.turns
        await turns.insert_turns([turn(1, due_at=NOW), turn(2, due_at=None), turn(3), turn(1, session_id="t")])
        updates = [
            TurnUpdate(("o", "s", 1), {"status": "x"}, {"due_at": NOW, "never": None}),
            TurnUpdate(("o", "s", 2), {"status": "x"}, {"due_at": NOW}),
            TurnUpdate(("o", "s", 3), {"status": "x"}, {"run_id": "r1"}),
            TurnUpdate(("o", "t", 1), {"insights": ["y"]}, {"status": "pending"}),
            TurnUpdate(("o", "t", 9), {"status": "x"}, {}),
        ]
        assert await turns.update_turns(updates) == (2, ())
        assert await turns.update_turns([]) == (0, ())
        found = [*(await turns.turns("o", "s", limit=5))[::-1], *await turns.turns("o", "t", limit=5)]
        assert [row["status"] for row in found] == ["x", "pending", "pending", "pending"]
        assert [row["insights"] for row in found] == [[], [], [], ["y"]]


@pytest.mark.parametrize("bad", ["\ud800", 2**64, "x" * (17 << 20), "x" * (9 << 20)])
async def test_a_change_that_cannot_be_kept_is_no_other_turns_business(place: Place, bad: Any) -> None:
    """It is named, and the others are changed."""
    async with place.open() as store:
        turns = store.turns
        large = {3: {"workspace_context": "x" * (9 << 20)}, 6: {"workspace_context": "x" * (9 << 20)}}
        for number in range(1, 8):
            await turns.insert_turns([turn(number, **large.get(number, {}))])
        made = [{"task_context": bad} if number in large else {"status": "x"} for number in range(1, 8)]
        updates = [TurnUpdate(("o", "s", number), changes, {}) for number, changes in enumerate(made, 1)]
        changed, refused = await turns.update_turns(updates)
        assert (changed, sorted(refused)) == (5, [2, 5])
        found = (await turns.turns("o", "s", limit=10))[::-1]
    assert [row["status"] for row in found] == ["x", "x", "pending", "x", "x", "pending", "x"]
    assert {row["task_context"] for row in found} == {"the goal"}


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
        await turns.insert_turns_of_sessions([[turn(1, session_id=session)] for session in sessions])
        touches = [
            TurnTouch("o", session, "r1", {"status": status, "insights": [session]})
            for session in sessions
            for status in ("executing", "acting")
        ]
        assert await turns.touch_runs(touches) == []
        found = [row for session in sessions for row in await turns.turns("o", session, limit=2)]
    assert [(row["status"], row["insights"]) for row in found] == [("acting", [session]) for session in sessions]


async def test_turns_are_overtaken(place: Place) -> None:
    """Of these that are not over and to be closed are changed, and due no later; nothing else is."""
    states = ["pending", "completed", "thinking", "acting", "failed", "executing", "pending", "pending"]
    moments = [NOW - HOUR, NOW + HOUR, NOW - HOUR, NOW + HOUR, NOW + HOUR, NOW + HOUR, NOW + HOUR, NOW + HOUR]
    works = ["close"] * 6 + ["summarise", None]
    sessions = [("o", f"s{number}") for number in range(len(states))]
    async with place.open() as store:
        turns = store.turns
        for (_, session), status, due, work in zip(sessions, states, moments, works, strict=True):
            await turns.insert_turns([turn(1, session_id=session, status=status, due_at=due, work=work)])
            await turns.insert_turns([turn(1, owner_key="p", session_id=session, run_id="r", status=status)])
        found = {each["session_id"]: each["_id"] for each in await turns.latest_turns(sessions)}
        assert await turns.overtake(found.values(), {"overtaken": True}, due_by=NOW) == 4
        assert await turns.overtake([], {"late": True}, due_by=NOW) == 0
        await turns.delete_turns("o", "s0")
        assert await turns.overtake([found["s0"]], {"late": True}, due_by=NOW) == 0
        assert await turns.overtake([found["s3"]] * 2, {"again": True}, due_by=NOW + HOUR) == 1
        rows = [await turns.find_turn(*place, 1) or {} for place in sessions[1:]]
        others = [await turns.find_turn("p", session, 1) or {} for _, session in sessions]
    assert ["overtaken" in row for row in rows] == [False, True, True, False, True, False, False]
    before, by, after = map(milliseconds, (NOW - HOUR, NOW, NOW + HOUR))
    assert [row["due_at"] for row in rows] == [after, before, by, after, by, after, after]
    assert [row["session_id"] for row in rows if "again" in row] == ["s3"]
    assert len(others) == len(sessions)
    assert not any("overtaken" in row or "late" in row for row in others)


async def test_turns_of_which_nothing_was_heard_are_closed(place: Place) -> None:
    """Of these those that are as they began, with one input; whatever else is known has them stay as they are."""
    others: list[Row] = [
        {"status": "thinking"},
        {"status": "completed"},
        {"work": "summarise"},
        {"work": None},
        {"rows": 1},
        {"messages": []},
        {"messages": ["a", "b"]},
        {"thinking_phase": {"rounds": [], "tokens_used": 0}},
    ]
    begun = {"status": "pending", "work": "close", "rows": 0, "messages": ["a"], "thinking_phase": None}
    sessions = [("o", f"s{number}") for number in range(len(others) + 3)]
    async with place.open() as store:
        turns = store.turns
        for (_, session), different in zip(sessions, [*others, {}, {}, {}], strict=True):
            await turns.insert_turns([turn(1, session_id=session, **{**begun, **different})])
        found = {each["session_id"]: each["_id"] for each in await turns.latest_turns(sessions)}
        del found[sessions[-1][1]]
        kept = [await turns.find_turn(*place, 1) or {} for place in sessions]
        assert [is_unheard(row) for row in kept] == [False] * len(others) + [True] * 3
        assert await turns.close_unheard(found.values(), {"work": "summarise", "seen": 1}) == 2
        assert await turns.close_unheard(found.values(), {"seen": 2}) == 0
        assert await turns.close_unheard([], {"seen": 3}) == 0
        rows = [await turns.find_turn(*place, 1) or {} for place in sessions]
    assert [row.get("seen") for row in rows] == [*[None] * len(others), 1, 1, None]


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


async def test_claimers_of_many_get_different_turns(place: Place) -> None:
    """Together they get what is due, last due first, no more than closing takes; who gets one can write of it."""
    until = NOW + timedelta(minutes=5)
    claimed: list[Row] = []
    async with place.open() as store:
        turns = store.turns
        due = [NOW - timedelta(seconds=number) for number in range(CLAIMERS)]
        await turns.insert_turns([turn(number + 1, due_at=moment) for number, moment in enumerate(due)])
        await turns.insert_turns([turn(99, work="summarise"), turn(100, due_at=NOW + HOUR)])
        assert numbers(await turns.claim_all("close", NOW, until, limit=3)) == [1, 2, 3]

        async def claim() -> None:
            while rows := await turns.claim_all("close", NOW, until, limit=7):
                claimed.extend(rows)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(claim)
        while rows := await turns.claim_all("close", NOW, until, limit=7):
            claimed.extend(rows)
        whole = await turns.find_turn("o", "s", 9)
        updates = [TurnUpdate(("o", "s", row["turn_number"]), {"x": 1}, {"due_at": until}) for row in claimed]
        assert await turns.update_turns(updates) == (len(claimed), ())
    assert sorted(numbers(claimed)) == [*range(4, CLAIMERS + 1)]
    assert whole == turn(9, due_at=milliseconds(until))


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


async def test_a_session_is_forgotten(place: Place) -> None:
    """All its turns go, and no other's; their numbers may be given again."""
    async with place.open() as store:
        turns = store.turns
        others = [turn(1, session_id="t"), turn(1, owner_key="p")]
        await turns.insert_turns([turn(1), turn(2), *others])
        assert await turns.delete_turns("o", "s") == 2
        assert await turns.delete_turns("o", "s") == 0
        assert await turns.latest_turn("o", "s") is None
        assert [await turns.count_turns("o", "t"), await turns.count_turns("p", "s")] == [1, 1]
        assert await turns.insert_turns([turn(1)]) == 1


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
