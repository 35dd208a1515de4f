"""Turns as documents: how one begins, changes with its rows, is reviewed and closed (contract §6)."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest

from nexus.core.models import Message, Role
from nexus.core.ports import Row
from nexus.core.turns import CLOSE, SUMMARISE, ThinkingRound, TokenUsage, ToolOutcome, TurnStart
from nexus.services.history.rows import progress_row
from nexus.services.history.run_facts import TurnFacts, read_facts
from nexus.services.turns.documents import (
    changes_by_request,
    changes_by_review,
    changes_by_row,
    changes_by_summary,
    facts_of,
    new_document,
    read_turn,
    with_progress,
)
from nexus.services.turns.rule_summary import summarise_by_rules
from tests.nexus.unit.services.turns_at_work import a_start, answer, calls, human, result

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
IDLE, SETTLED = timedelta(seconds=300), timedelta(seconds=5)
RUN = [human("a"), calls("a", "1"), result("a", "1"), answer("a")]


def document(**changes: Any) -> Row:
    """A turn that has just begun."""
    return {**new_document(a_start("a"), None, "the goal", begun_at=NOW, now=NOW), **changes}


def reviewed(turn: Row, rows: list[Row], after: float) -> dict[str, Any]:
    """The changes by a review so many seconds after the last row."""
    facts = read_facts(rows)
    return changes_by_review(turn, facts, len(rows), NOW + timedelta(seconds=after), idle=IDLE, settled=SETTLED)


def seconds(changes: dict[str, Any]) -> float:
    """How long after the last row it is due."""
    due: timedelta = changes["due_at"] - NOW
    return due.total_seconds()


def progress(state: str, after: float) -> Row:
    """What is said of the call `1` so many seconds after the last row."""
    said_at = NOW + timedelta(seconds=after)
    content = {"call_id": "1", "state": state}
    return progress_row(Message(run_id="a", owner_key="o", role=Role.TOOL, content=content, timestamp=said_at))


def test_a_tool_at_work_is_no_silence() -> None:
    """However long it takes; one that is said to be over is."""
    turn, rows = document(), RUN[:2]
    assert reviewed(turn, rows, 301)["status"] == "unanswered"
    at_work = with_progress(turn, [*rows, progress("working", 200)])
    assert "status" not in reviewed(at_work, rows, 499)
    assert reviewed(at_work, rows, 501)["status"] == "unanswered"
    assert with_progress(turn, [*rows, progress("cancelled", 200)]) == turn
    assert with_progress(turn, [*rows, progress("working", -200)]) == turn


def test_it_follows_the_latest() -> None:
    """With the next number, and a document that reads as a turn."""
    second = new_document(a_start("b", thinking=True), document(), "", begun_at=NOW, now=NOW)
    turn = read_turn(second)
    assert turn is not None
    assert (turn.turn_number, turn.status, second["status"], turn.messages) == (
        2,
        "thinking",
        "thinking",
        ("msg_of_b",),
    )
    assert (second["work"], seconds(second)) == (CLOSE, 30)


@pytest.mark.parametrize(
    ("row", "status", "due"),
    [
        (calls("a", "1"), "executing", None),
        (result("a", "1"), "acting", None),
        (answer("a"), "acting", 0),
        ({**answer("a"), "metadata": {"phase": "thinking", "has_tool_calls": False}}, "thinking", None),
    ],
    ids=["calls", "result", "answer", "thought"],
)
def test_a_row_of_the_run(row: Row, status: str, due: float | None) -> None:
    """An answer is looked at at once; all else leaves what is due, and makes a turn due that is not."""
    changes, unless_due = changes_by_row(row, NOW)
    assert (changes["status"], changes["heard_at"]) == (status, NOW)
    if due is None:
        assert not {"work", "due_at"} & {*changes}
        assert (unless_due["work"], seconds(unless_due), changes["overtaken"]) == (CLOSE, 1, False)
    else:
        assert (changes["work"], seconds(changes), unless_due) == (CLOSE, due, {})


@pytest.mark.parametrize(("after", "due"), [(0, 1), (1, 2), (8, 16), (100, 130)])
def test_a_result_that_is_missing(after: float, due: float) -> None:
    """Once the answer is known it is waited for ever longer."""
    assert reviewed(document(heard_at=NOW), [RUN[0], RUN[1], RUN[3]], after) == {"due_at": NOW + timedelta(seconds=due)}


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([], "unanswered"),
        ([human("a", "明天去海边吗？")], "unanswered"),
        ([calls("a", "1")], "unanswered"),
        ([human("a"), calls("a", "1", text="Let me")], "unanswered"),
        ([human("a"), answer("a"), calls("a", "1")], "unanswered"),
        ([human("a"), calls("a", "1"), answer("a")], "completed"),
    ],
)
def test_a_turn_that_falls_silent(rows: list[Row], status: str) -> None:
    """After a while it is over all the same; a word before a call is no answer."""
    assert reviewed(document(), rows, 299).keys() == {"due_at"}
    assert reviewed(document(), rows, 300)["status"] == status


def test_a_summary_that_says_all_is_kept() -> None:
    """Where nothing is recorded but the input, the summary with which the turn began stays; else it is made again."""
    turn = document(overtaken=True)
    alone = reviewed(turn, [human("a")], 6)
    assert (alone["status"], alone["work"], alone["messages"]) == ("unanswered", SUMMARISE, ["msg_of_a"])
    assert "summaries" not in alone
    assert turn["summaries"] == summarise_by_rules(read_facts([human("a")])).model_dump()
    others: list[tuple[Row, list[Row]]] = [
        (turn, [human("a"), human("a", "And the peas?", id="m2")]),
        (turn, [human("a"), calls("a", "1")]),
        (turn, [answer("a")]),
        ({**turn, "rows": 1}, [human("a")]),
        ({**turn, "summaries": None}, [human("a")]),
        ({**turn, "thinking_phase": {"rounds": [{"round_number": 1, "content": "hm"}]}}, [human("a")]),
    ]
    for other, rows in others:
        facts = facts_of(other, rows)
        changes = changes_by_review(other, facts, len(rows), NOW + timedelta(seconds=6), idle=IDLE, settled=SETTLED)
        assert changes["summaries"] == summarise_by_rules(facts).model_dump()


def test_nothing_has_come_since_a_model_summarised_it() -> None:
    """What it said stays."""
    by_model = summarise_by_rules(TurnFacts()).model_copy(update={"source": "model"})
    turn = document(heard_at=NOW, rows=4, **changes_by_summary(by_model, ["wet"]))
    changes = reviewed(turn, RUN, 0)
    assert (changes["work"], changes["due_at"]) == (None, None)
    assert not {"summaries", "insights"} & {*changes}
    assert reviewed({**turn, "rows": 3}, RUN, 0)["work"] == SUMMARISE


def test_tokens() -> None:
    """What results report counts, else what the rounds of thought took."""
    rounds = {"rounds": [{"round_number": 1, "content": "hm", "tokens_used": 7}], "tokens_used": 7}
    for thinking, total in ((0, 12), (9, 14)):
        facts = TurnFacts(
            messages=read_facts(RUN).messages, finished=True, usage=TokenUsage(thinking=thinking, action=5)
        )
        changes = changes_by_review(document(thinking_phase=rounds), facts, 4, NOW, idle=IDLE, settled=SETTLED)
        assert changes["token_usage"] == {"thinking": thinking or 7, "action": 5, "total": total}


@pytest.mark.parametrize(
    "arguments",
    ['{"a\\u0000": 1}', '{"a": "\\ud800"}', '{"a": 36893488147419103232}', "[" * 500 + "]" * 500, '{"$a.b": {"": 1}}'],
)
def test_what_no_store_keeps(arguments: str) -> None:
    """A turn is closed whatever a model wrote as arguments."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    called = {**RUN[1], "metadata": {**RUN[1]["metadata"], "tool_calls": [call]}}
    kept = reviewed(document(heard_at=NOW), [RUN[0], called, *RUN[2:]], 0)["tool_calls"]
    assert bson.encode({"arguments": kept[0]["arguments"]})


@pytest.mark.parametrize("count", [1, 100, 1_000])
def test_long_results_are_shortened(count: int) -> None:
    """Both ends stay, it says how much is between them, and the document stays small enough to be kept."""
    outcome = ToolOutcome(name="look", arguments={"at": "x" * 10_000}, success=True, result="a" + "é" * 10_000 + "z")
    facts = TurnFacts(messages=read_facts(RUN).messages, outcomes=(outcome,) * count, finished=True)
    kept = changes_by_review(document(), facts, 4, NOW, idle=IDLE, settled=SETTLED)["tool_calls"]
    assert len(kept) == count
    assert kept[0]["result"].startswith("aé")
    assert kept[0]["result"].endswith("éz")
    assert "characters more" in kept[0]["result"]
    assert len(json.dumps(kept, ensure_ascii=False).encode()) < 8 << 20


def changes_of(start: TurnStart, kept: Row) -> dict[str, Any]:
    """The changes that a later request makes in any case."""
    return changes_by_request(start, kept)[0]


def test_what_a_later_request_brings() -> None:
    """Another goal, surroundings where there are none, more rounds; a turn that is over thinks no more."""
    kept = document(workspace_context="", thinking_phase=None)
    rounds = (ThinkingRound(round_number=1, content="hm"),)
    assert changes_of(a_start("a"), kept) == {}
    assert changes_of(a_start("a", task_context="the goal"), kept) == {}
    assert changes_of(a_start("a", task_context="another"), kept) == {"task_context": "another"}
    assert changes_of(a_start("a", workspace_context="lab"), kept) == {"workspace_context": "lab"}
    assert changes_of(a_start("a", workspace_context="lab"), {**kept, "workspace_context": "home"}) == {}
    thought = changes_of(a_start("a", thinking=True, rounds=rounds), kept)
    assert (thought["status"], len(thought["thinking_phase"]["rounds"])) == ("thinking", 1)
    assert changes_of(a_start("a", rounds=rounds), {**kept, "thinking_phase": thought["thinking_phase"]}) == {}
    assert changes_of(a_start("a", thinking=True), {**kept, "status": "completed"}) == {}
