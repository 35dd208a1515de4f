"""Turns go out as lines and come back as what they were, whole or not at all."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.errors import NexusError, StoreRejectedError, StoreUnavailableError
from nexus.core.ports import Row
from nexus.core.turns import (
    Structured,
    Summaries,
    ThinkingPhase,
    ThinkingRound,
    TokenUsage,
    ToolOutcome,
    Turn,
    TurnStatus,
)
from nexus.services.turns.transfer import (
    Standing,
    TurnsInTheWayError,
    export_lines,
    import_turns,
    standing,
    survey,
)
from nexus.services.turns.transfer_lines import Export, read_export
from tests.nexus.support.fake_turns import FakeTurns

pytestmark = pytest.mark.heavy

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MANY = 123

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=9)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
SUMMARY_TEXTS = TEXTS.filter(str.strip)
LISTS = st.lists(TEXTS, max_size=2).map(tuple)
COUNTS = st.integers(0, 10**9)
MOMENTS = st.datetimes(timezones=st.just(UTC))
ROUNDS = st.lists(
    st.builds(ThinkingRound, round_number=st.integers(1, 9), content=TEXTS, tokens_used=COUNTS), max_size=2
)
PARTS = st.fixed_dictionaries(
    {
        "timestamp": MOMENTS,
        "status": st.sampled_from(TurnStatus),
        "task_context": TEXTS,
        "workspace_context": TEXTS,
        "messages": LISTS,
        "thinking_phase": st.none() | st.builds(ThinkingPhase, rounds=ROUNDS.map(tuple), tokens_used=COUNTS),
        "tool_calls": st.lists(
            st.builds(ToolOutcome, name=TEXTS, arguments=JSON, success=st.none() | st.booleans(), result=JSON),
            max_size=2,
        ).map(tuple),
        "summaries": st.builds(
            Summaries,
            brief=SUMMARY_TEXTS,
            detailed=SUMMARY_TEXTS,
            structured=st.builds(
                Structured, overview=SUMMARY_TEXTS, actions=LISTS, results=LISTS, decisions=LISTS, next_steps=LISTS
            ),
            source=st.sampled_from(["fallback", "model"]),
        ),
        "insights": LISTS,
        "token_usage": st.builds(TokenUsage, thinking=COUNTS, action=COUNTS, total=COUNTS),
    }
)


def a_turn(number: int, **changes: Any) -> Turn:
    """Turn `number` of the session `s` of the owner `o`, which is over, with changes."""
    given_parts = {
        "id": f"turn_{number}_0",
        "turn_number": number,
        "owner_key": "o",
        "session_id": "s",
        "run_id": f"r{number}",
        "timestamp": NOW + timedelta(minutes=number),
        "status": TurnStatus.COMPLETED,
        "summaries": Summaries(brief=f"brief {number}", detailed="d", structured=Structured(overview="o")),
        **changes,
    }
    return Turn.model_validate(given_parts)


def a_document(turn: Turn, **changes: Any) -> Row:
    """The turn as a service keeps it while it is at work on it."""
    work = {"work": "close", "due_at": NOW, "heard_at": NOW, "rows": 3, "attempts": 1, "overtaken": True}
    return {**turn.model_dump(), "status": turn.status.value, **work, **changes}


def nothing_asked(_: str) -> None:
    """Let every operation be done."""


async def kept(turns: Iterable[Turn]) -> FakeTurns:
    """A store with these turns."""
    store = FakeTurns(nothing_asked)
    documents = [a_document(turn) for turn in turns]
    assert await store.insert_turns(documents) == len(documents)
    return store


async def exported(store: FakeTurns, session: str = "s") -> list[str]:
    """The lines of the session's export."""
    found = await survey(store, "o", session)
    return [line async for line in export_lines(store, found, NOW)]


def read(lines: Sequence[str], **names: str) -> Export:
    """The export in these lines."""
    return read_export([f"{line}\n".encode() for line in lines], **names)


@given(st.lists(PARTS, min_size=1, max_size=4))
def test_there_and_back(parts: list[dict[str, Any]]) -> None:
    """Whatever turns hold, they come back as they were, over and to the millisecond; every line can be shown."""

    async def check() -> None:
        turns = [a_turn(number, **each) for number, each in enumerate(parts, 1)]
        store = await kept(turns)
        lines = await exported(store)
        assert all(line.isprintable() for line in lines)
        export = read(lines, session_id="copy")
        assert await import_turns(store, export) == len(turns)
        assert await standing(store, export) == Standing(len(turns))
        copies = [json.loads(line) for line in (await exported(store, "copy"))[1:]]
        for copy, line in zip(copies, lines[1:], strict=True):
            original = json.loads(line)
            over = TurnStatus(original["status"]).is_over
            assert copy == {**original, "session_id": "copy", "status": original["status"] if over else "completed"}

    anyio.run(check)


async def test_an_export_of_many_turns() -> None:
    """The lowest number first, read in pages; a header says what follows."""
    lines = await exported(await kept(a_turn(number) for number in range(1, MANY + 1)))
    header, *turns = map(json.loads, lines)
    assert header == {
        "format": "nexus-turns",
        "version": 1,
        "owner_key": "o",
        "session_id": "s",
        "turns": MANY,
        "exported_at": "2026-01-01T12:00:00Z",
    }
    assert [turn["turn_number"] for turn in turns] == [*range(1, MANY + 1)]
    assert set(turns[0]) == set(Turn.model_fields)


async def test_what_begins_while_it_is_exported() -> None:
    """Is not part of it."""
    store = await kept(a_turn(number) for number in range(1, MANY + 1))
    found = await survey(store, "o", "s")
    await store.insert_turns([a_document(a_turn(MANY + 1))])
    assert len([line async for line in export_lines(store, found, NOW)]) == MANY + 1


async def test_what_is_removed_while_it_is_exported() -> None:
    """An export that would not be whole ends with an error."""
    store = await kept(a_turn(number) for number in range(1, MANY + 1))
    found = await survey(store, "o", "s")
    lines = export_lines(store, found, NOW)
    await anext(lines)
    del store.rows[70]
    with pytest.raises(NexusError, match="were changed while they were read; export it again"):
        _ = [line async for line in lines]


@pytest.mark.parametrize(
    "changes",
    [{"summaries": None}, {"id": ""}, {"status": "asleep"}, {"timestamp": "soon"}, {"insights": [b"\xff"]}],
    ids=str,
)
async def test_what_somebody_else_has_stored(changes: Row) -> None:
    """A malformed turn is left out and named."""
    store = await kept([a_turn(1), a_turn(3)])
    store.rows.append(a_document(a_turn(2)) | changes)
    found = await survey(store, "o", "s")
    assert (found.turns, found.unreadable) == (2, (2,))
    assert [json.loads(line)["turn_number"] for line in (await exported(store))[1:]] == [1, 3]


async def test_numbers_that_are_no_json() -> None:
    """What a tool was given and JSON cannot say is null."""
    store = await kept([a_turn(1, tool_calls=[{"name": "t", "arguments": {"a": float("nan"), "b": float("inf")}}])])
    (turn,) = read(await exported(store)).turns
    assert turn.tool_calls[0].arguments == {"a": None, "b": None}


async def test_what_is_imported_is_no_work() -> None:
    """Nobody is to close or summarise it, and its summaries stay whose they were."""
    turns = [a_turn(1, status="acting"), a_turn(2, status="failed"), a_turn(3, status="pending")]
    lines = await exported(await kept(turns))
    store = FakeTurns(nothing_asked)
    assert await import_turns(store, read(lines)) == 3
    assert [row["status"] for row in store.rows] == ["completed", "failed", "completed"]
    assert {(row["work"], row["due_at"], row["rows"], row["attempts"]) for row in store.rows} == {(None, None, 0, 0)}


async def test_names_of_another_session() -> None:
    """Every turn gets the owner and the session that are given."""
    lines = await exported(await kept([a_turn(1), a_turn(2)]))
    store = FakeTurns(nothing_asked)
    await import_turns(store, read(lines, owner_key="$p", session_id="t"))
    assert {(row["owner_key"], row["session_id"]) for row in store.rows} == {("$p", "t")}


@pytest.mark.parametrize("broken_off", range(1, 4))
async def test_an_import_that_was_broken_off(broken_off: int) -> None:
    """Is gone on with by repeating it, wherever it was broken off; done once more it writes nothing."""
    export = read(await exported(await kept(a_turn(number) for number in range(1, MANY + 1))), session_id="t")
    asked: list[str] = []

    def ask(operation: str) -> None:
        asked.append(operation)
        if asked.count("insert_turns") == broken_off and operation == "insert_turns":
            raise StoreUnavailableError("the store is down")

    store = FakeTurns(ask)
    with pytest.raises(StoreUnavailableError):
        await import_turns(store, export)
    there = 50 * (broken_off - 1)
    assert len(store.rows) == there
    steps: list[int] = []
    assert await import_turns(store, export, advance=steps.append) == MANY - there
    assert sum(steps) == MANY
    assert await import_turns(store, export) == 0
    assert [row["turn_number"] for row in store.rows] == [*range(1, MANY + 1)]


@pytest.mark.parametrize(
    ("there", "differs"),
    [
        ([a_turn(1, task_context="other")], 1),
        ([a_turn(1), a_turn(2, run_id="other")], 2),
        ([a_turn(number) for number in range(1, 5)], 4),
        ([a_turn(2)], 1),
        ([a_turn(1), a_turn(3)], 2),
        ([a_turn(1, status="acting")], 1),
    ],
    ids=["content", "run", "more", "not the first", "a gap", "not over"],
)
async def test_other_turns_in_the_way(there: list[Turn], differs: int) -> None:
    """They stay as they are, and it is said how many there are and which is another, unless they are to be replaced."""
    export = read(await exported(await kept([a_turn(1), a_turn(2), a_turn(3)])))
    store = await kept(there)
    before = [*store.rows]
    assert await standing(store, export) == Standing(len(there), differs)
    said = f"^{len(there)} turns? (is|are) there, and not as in the export from turn {differs} on$"
    with pytest.raises(TurnsInTheWayError, match=said):
        await import_turns(store, export)
    assert store.rows == before
    await store.insert_turns([a_document(a_turn(1, session_id="t"))])
    assert await import_turns(store, export, replace=True) == 3
    assert [(row["session_id"], row["turn_number"]) for row in store.rows] == [("t", 1), ("s", 1), ("s", 2), ("s", 3)]


async def test_a_malformed_turn_in_the_way() -> None:
    """It counts as another turn."""
    export = read(await exported(await kept([a_turn(1)])))
    store = await kept([a_turn(1)])
    store.rows[0]["summaries"] = None
    assert await standing(store, export) == Standing(1, differs=1)


async def test_somebody_who_writes_at_the_same_time() -> None:
    """It is said at which turn it happened, and nothing of theirs is overwritten."""
    export = read(await exported(await kept([a_turn(1), a_turn(2), a_turn(3)])))

    def ask(operation: str) -> None:
        if operation == "insert_turns":
            store.rows.append(a_document(a_turn(2, task_context="theirs")))

    store = FakeTurns(ask)
    with pytest.raises(NexusError, match=r"^turn 2 or its run is there meanwhile"):
        await import_turns(store, export)
    assert [(row["turn_number"], row["task_context"]) for row in store.rows] == [(2, "theirs"), (1, "")]


@pytest.mark.parametrize("operation", ["delete_turns", "insert_turns"])
async def test_a_replacement_that_was_broken_off(operation: str) -> None:
    """It is said that turns are gone, and that repeating it goes on; which it does."""
    export = read(await exported(await kept(a_turn(number) for number in range(1, MANY + 1))))
    store = await kept([a_turn(1, task_context="other")])
    faults = iter([StoreUnavailableError("the store is down")])

    def ask(asked: str) -> None:
        if asked == operation:
            for fault in faults:
                raise fault

    store._ask = ask
    with pytest.raises(StoreUnavailableError, match=r"^the store is down; turns that were there are removed, repeat"):
        await import_turns(store, export, replace=True)
    assert await import_turns(store, export, replace=True) == MANY
    assert await standing(store, export) == Standing(MANY)


async def test_a_service_that_begins_a_turn_during_a_replacement() -> None:
    """It is said that the old turns are gone; repeated, the import takes the place of the new one too."""
    export = read(await exported(await kept([a_turn(1), a_turn(2)])))
    store = await kept([a_turn(1, task_context="other")])

    def ask(operation: str) -> None:
        if operation == "insert_turns" and not store.rows:
            store.rows.append(a_document(a_turn(1, task_context="theirs")))

    store._ask = ask
    with pytest.raises(NexusError, match=r"^turn 1 or its run is there meanwhile.*; turns that were there are removed"):
        await import_turns(store, export, replace=True)
    store._ask = nothing_asked
    assert await import_turns(store, export, replace=True) == 2


async def test_a_session_whose_first_turns_were_deleted() -> None:
    """Its export is imported with the numbers that it has, also after it was broken off."""
    lines = await exported(await kept([a_turn(7), a_turn(9)]))
    export = read(lines, session_id="t")
    store = await kept([a_turn(7, session_id="t")])
    assert await import_turns(store, export) == 1
    assert [row["turn_number"] for row in store.rows] == [7, 9]
    latest = await store.latest_turn("o", "t")
    assert latest is not None
    assert latest["turn_number"] == 9


ALL_KINDS = [None, True, 1, -(2**31), 2**31, 0.5, "文", {"a": 1}]
LARGE = {
    "a text": ("x" * 16_770_000, "x" * 16_776_000),
    "letters of three bytes": ("文" * 5_590_000, "文" * 5_592_000),
    "all kinds": (ALL_KINDS * 150_000, ALL_KINDS * 156_000),
}


@pytest.mark.parametrize(("fits", "does_not"), LARGE.values(), ids=LARGE.keys())
async def test_a_turn_that_is_too_large_for_a_document(fits: Any, does_not: Any) -> None:
    """It is refused with its line while nothing is written; one that is just small enough is kept."""
    export = read_export(text_of(plain(1, tool_calls=[{"name": "t", "result": fits}])).splitlines())
    assert await import_turns(FakeTurns(nothing_asked), export) == 1
    with pytest.raises(ValueError, match=r"^line 2: as a document it has more than 16776192 bytes$"):
        read_export(text_of(plain(1, tool_calls=[{"name": "t", "result": does_not}])).splitlines())


async def test_a_turn_that_cannot_be_kept() -> None:
    """It is said among which."""
    large = a_turn(2, workspace_context="x" * (17 << 20))
    with pytest.raises(StoreRejectedError, match=r"^one of the turns 1 to 2: too large"):
        await import_turns(FakeTurns(nothing_asked), Export("o", "s", (a_turn(1), large)))


HEADER = {"format": "nexus-turns", "version": 1, "owner_key": "o", "session_id": "s"}


def text_of(*turns: Any, **header: Any) -> bytes:
    """An export with these lines, and changes in its header."""
    first = {**HEADER, "exported_at": "2026-01-01T00:00:00Z", "turns": len(turns), **header}
    values = [first, *(json.loads(turn.model_dump_json()) if isinstance(turn, Turn) else turn for turn in turns)]
    return "\n".join(map(json.dumps, values)).encode()


def deep(levels: int) -> Any:
    """Lists in lists."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def plain(number: int, **changes: Any) -> dict[str, Any]:
    """A turn as it stands on its line, with changes."""
    return {**json.loads(a_turn(number).model_dump_json()), **changes}


def with_summary(**changes: Any) -> dict[str, Any]:
    """A turn with changes in its summary."""
    value = plain(1)
    return {**value, "summaries": {**value["summaries"], **changes}}


FAULTS = {
    "nothing": (b"", "no lines; an export has a header and a turn a line"),
    "white space": (b" \n\r\n\t", "no lines; an export has a header and a turn a line"),
    "no header": (json.dumps(plain(1)).encode(), "line 1: no header of an export: format: Field required (and 3 more)"),
    "another format": (text_of(a_turn(1), format="x"), "line 1: no header of an export: format: Input should be 'nex"),
    "another version": (text_of(a_turn(1), version=2), "line 1: no header of an export: version: Input should be 1"),
    "no owner": (text_of(a_turn(1), owner_key=""), "line 1: no header of an export: owner_key: String should have at"),
    "no turns": (text_of(turns=0), "line 1: no header of an export: turns: Input should be greater than or equal to 1"),
    "a list": (b"\n\n[]", "line 3: a JSON object is needed"),
    "no JSON": (
        text_of(a_turn(1)) + b"\n{",
        "line 3: not JSON: Expecting property name enclosed in double quotes at column 2",
    ),
    "no UTF-8": (text_of(a_turn(1)) + b"\n\xff", "line 3: not UTF-8 at byte 0"),
    "half a pair": (text_of(plain(1, task_context="\ud800")), "line 2: not JSON: half a surrogate pair"),
    "no number": (text_of(plain(1, insights=float("nan"))), "line 2: not JSON: a number that is not finite"),
    "a large number": (
        text_of(plain(1, tool_calls=[{"name": "t", "result": 2**63}])),
        "line 2: a whole number of more",
    ),
    "a NUL": (text_of(plain(1, tool_calls=[{"name": "t", "result": [{"\0": 1}]}])), "line 2: a key with a NUL"),
    "deep": (text_of(plain(1, tool_calls=[{"name": "t", "result": deep(98)}])), "line 2: nested deeper than 100"),
    "deeper": (b"[" * 100_000, "line 1: nested too deep"),
    "not whole": (text_of(a_turn(1), turns=2), "1 turn is there, and the header says 2: it is not whole"),
    "no brief": (text_of(plain(1, summaries={})), "line 2: summaries.brief: Field required (and 2 more)"),
    "a status": (text_of(plain(1, status="x")), "line 2: status: Input should be 'pending', 'thinking', 'acting', 'ex"),
    "number 0": (text_of(plain(1, turn_number=0)), "line 2: turn_number: Input should be greater than or equal to 1"),
    "another owner": (text_of(a_turn(1), a_turn(2, owner_key="p")), "line 3: its owner_key is not that of the header"),
    "another session": (text_of(a_turn(1, session_id="t")), "line 2: its session_id is not that of the header"),
    "one number": (text_of(a_turn(1), a_turn(1, run_id="x")), "line 3: its turn_number is that of line 2; each may be"),
    "one run": (text_of(a_turn(1), a_turn(2, run_id="r1")), "line 3: its run_id is that of line 2; each may be there"),
    "a number in quotes": (text_of(plain(1, turn_number="1")), "line 2: turn_number: Input should be a valid integer"),
    "a truth value": (text_of(plain(1, turn_number=True)), "line 2: turn_number: Input should be a valid integer"),
    "quoted tokens": (text_of(plain(1, token_usage={"total": "1"})), "line 2: token_usage.total: Input should be a va"),
    "no id": (text_of(plain(1, id="turn_1_")), "line 2: id: turn_1_ and digits are needed"),
    "id of another": (text_of(plain(1, id="turn_2_0")), "line 2: id: turn_1_ and digits are needed"),
    "a long goal": (text_of(plain(1, task_context="x" * 32_001)), "line 2: task_context: more than 32000 characters"),
    "many insights": (text_of(plain(1, insights=["x"] * 6)), "line 2: insights: more than 5"),
    "a long insight": (text_of(plain(1, insights=["x" * 2_001])), "line 2: insights: more than 2000 characters"),
    "a blank brief": (text_of(with_summary(brief=" \n")), "line 2: summaries.brief: a text is needed"),
    "a blank detailed": (text_of(with_summary(detailed="")), "line 2: summaries.detailed: a text is needed"),
    "a blank overview": (
        text_of(with_summary(structured={"overview": "\u2003"})),
        "line 2: summaries.structured.overview: a text is needed",
    ),
    "a long detailed": (
        text_of(with_summary(detailed="x" * 10_001)),
        "line 2: summaries.detailed: more than 10000 characters",
    ),
    "a long result": (
        text_of(with_summary(structured={"overview": "o", "results": ["r", "x" * 10_001]})),
        "line 2: summaries.structured.results: more than 10000 characters",
    ),
    "no summaries": (text_of(plain(1, summaries=1)), "line 2: summaries: Input should be an object"),
}


@pytest.mark.parametrize(("text", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_what_is_wrong_with_an_export(text: bytes, fault: str) -> None:
    """Is said with the line and what is allowed, in few words."""
    with pytest.raises(ValueError, match=f"^{re.escape(fault)}") as raised:
        read_export(text.splitlines(keepends=True))
    assert len(str(raised.value)) < 200


def test_the_most_that_an_export_may_say() -> None:
    """As much as requests and summaries may, and no more is asked of it."""
    insights, overview = ["x" * 2_000] * 5, {"overview": "x" * 10_000}
    summaries = {"brief": "x" * 10_000, "detailed": "文" * 10_000, "structured": overview}
    turn = plain(1, task_context="x" * 32_000, insights=insights, summaries=summaries, messages=None, id="turn_1_-7")
    assert read_export(text_of(turn).splitlines()).turns[0].insights == tuple(insights)


def test_what_is_right_with_an_export() -> None:
    """Lines in any order, ends of lines of any kind, a byte order mark, fields that are not known, and great depth."""
    text = text_of(a_turn(2), plain(1, more={}, tool_calls=[{"name": "t", "result": deep(97)}]), more=1)
    export = read_export((b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n\r\n") + b"\n\n").splitlines(keepends=True))
    assert [turn.turn_number for turn in export.turns] == [1, 2]


@given(st.binary(max_size=40), st.integers(0, 2_000), st.integers(0, 40))
def test_bytes_that_were_changed(junk: bytes, place: int, gone: int) -> None:
    """An export in which anything is changed is refused in words, or is an export still."""
    text = text_of(a_turn(1), a_turn(2))
    changed = text[:place] + junk + text[place + gone :]
    with suppress(ValueError):
        export = read_export(changed.split(b"\n"))
        numbers = [turn.turn_number for turn in export.turns]
        assert numbers == sorted({*numbers})
