"""What starts of turns and what was heard of them come to (CONTRACT §6)."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from nexus.core.models import utc_now
from nexus.core.ports.turns import TurnTouch
from nexus.core.turns import CLOSE, SUMMARISE, ThinkingRound, TurnStart
from nexus.services.turns.documents import heard, is_overtaken
from nexus.services.turns.starts import Piece, WhenOvertaken, begun_and_left, merged, numbered
from tests.nexus.unit.services.turns_at_work import a_start, answer, calls

SETTLED, IDLE = timedelta(seconds=5), timedelta(seconds=300)
THEN = WhenOvertaken(frozenset(), SETTLED, IDLE)


def told(row: dict[str, Any]) -> TurnTouch:
    """What a row says of the turn of its run."""
    return TurnTouch("o", "s", row["run_id"], *heard(row, utc_now()), row["id"])


def test_one_start_for_each_run() -> None:
    """Where it was asked for first, with what came later; what was heard keeps its place."""
    touch = told(answer("a"))
    first, second, later = a_start("a"), a_start("b"), a_start("a", "again", task_context="A goal")
    one, two, three = merged([first, touch, second, later])
    assert (one.run_id, two, three) == ("a", touch, second)
    assert getattr(one, "task_context", None) == "A goal"
    assert getattr(one, "input", None) == first.input
    assert merged([touch, first]) == [touch, first]
    assert merged([]) == []


def test_what_follows_overtakes_what_goes_on() -> None:
    """Also what was heard of since it was overtaken; and what is heard after that shows that it goes on."""
    pieces: list[Piece] = [a_start("a"), told(calls("a", "1")), a_start("b"), a_start("c"), told(calls("b", "1"))]
    a, b, c = numbered(pieces, None, "goal", THEN)
    assert [each["turn_number"] for each in (a, b, c)] == [1, 2, 3]
    assert [each["status"] for each in (a, b, c)] == ["completed", "executing", "pending"]
    assert [each["overtaken"] for each in (a, b, c)] == [True, False, False]
    assert [is_overtaken(each, c) for each in (b, c)] == [False, False]
    soon, late = utc_now() + SETTLED, utc_now() + timedelta(seconds=20)
    assert a["due_at"] <= soon < late < c["due_at"]
    *_, b, c, d = numbered([*pieces, a_start("d")], None, "goal", THEN)
    assert [each["status"] for each in (b, c, d)] == ["completed", "completed", "pending"]


def test_what_is_overtaken_unheard_of_is_closed() -> None:
    """It says all that is known; where more is known, or may be, somebody is to look at it."""
    rounds = (ThinkingRound(round_number=1, content="Hm."),)
    pieces: list[Piece] = [
        a_start("alone"),
        a_start("recorded"),
        a_start("called"),
        told(calls("called", "1")),
        a_start("thinking", thinking=True),
        a_start("thought", rounds=rounds),
        replace(a_start("unnamed"), input_id=""),
        a_start("late"),
        a_start("last"),
        told(answer("late")),
    ]
    assert begun_and_left(pieces) == {"alone", "recorded", "thinking", "thought", "unnamed"}
    runs = [piece.run_id for piece in pieces if isinstance(piece, TurnStart)]
    then = WhenOvertaken({("o", run_id) for run_id in runs if run_id != "recorded"}, SETTLED, IDLE)
    turns = {turn["run_id"]: turn for turn in numbered(pieces, None, "goal", then)}
    assert [run_id for run_id in runs if turns[run_id]["work"] == SUMMARISE] == ["alone"]
    closed = turns["alone"]
    assert (closed["status"], closed["rows"], closed["messages"]) == ("completed", 1, ("msg_of_alone",))
    assert closed["due_at"] == closed["heard_at"] + IDLE
    # What was heard of it after another had begun has it looked at.
    assert (turns["late"]["work"], turns["late"]["status"]) == (CLOSE, "acting")
    assert {turns[run_id]["status"] for run_id in ("recorded", "thinking", "thought", "unnamed")} == {"completed"}


def test_an_answer_that_is_known_by_then() -> None:
    """Somebody is to look at once whether the turn is over; of runs that are not begun here nothing is said."""
    (turn,) = numbered([a_start("a"), told(answer("other")), told(answer("a"))], None, "goal", THEN)
    assert (turn["status"], turn["due_at"]) == ("acting", turn["heard_at"])
    known = TurnTouch("o", "s", "a", {"status": "never"}, message_id="msg_of_a")
    (turn,) = numbered([a_start("a"), known], None, "goal", THEN)
    assert turn["status"] == "pending"
