"""The shipped session of a tool-using agent shows what the agent layout is for."""

from typing import Any, Final

import pytest

from nexus.cli.demo import load_sample
from nexus.core.models import Role
from nexus.core.turns import Turn
from nexus.services.context.escape import escape_counted
from nexus.services.context.session_state import read_state

_FROM_END: Final = 5


@pytest.fixture(name="session", scope="module")
def _session() -> dict[str, Any]:
    session: dict[str, Any] = load_sample("agent_session")
    return session


def _calls(row: dict[str, Any]) -> list[dict[str, Any]]:
    return row["metadata"].get("tool_calls") or []


def test_the_rows_are_in_the_order_of_time_and_have_ids_of_their_own(session: dict[str, Any]) -> None:
    """As a store would give them back, oldest first."""
    rows = session["rows"]

    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["role"] for row in rows} <= {*Role}
    assert rows[-1]["timestamp"] < session["question"]["at"]


def test_exactly_one_result_was_lost(session: dict[str, Any]) -> None:
    """Every other call is answered once, within its run, by a row that names it."""
    declared = {call["id"]: row["run_id"] for row in session["rows"] for call in _calls(row)}
    answered = {
        row["metadata"]["call_id"]: row["run_id"]
        for row in session["rows"]
        if row["metadata"]["source"] == "tool_result"
    }

    assert len(declared) - len(answered) == 1
    assert answered.items() < declared.items()


def test_the_tools_are_those_that_are_called(session: dict[str, Any]) -> None:
    """And the one that the question needs."""
    called = {call["function"]["name"] for row in session["rows"] for call in _calls(row)}

    assert set(session["tools"]) == called | {"show_diff"}


def test_the_fifth_message_from_the_end_answers_one_of_several_parallel_calls(session: dict[str, Any]) -> None:
    """So that the pinned block has to move before the message that declared them."""
    visible = [row for row in session["rows"] if not row["metadata"].get("sub_agent_internal")]

    assert len(session["rows"]) - len(visible) == 1
    fifth = visible[-_FROM_END]
    assert fifth["role"] == "TOOL"
    declaring = next(row for row in visible if any(call["id"] == fifth["metadata"]["call_id"] for call in _calls(row)))
    assert len(_calls(declaring)) > 1
    assert visible.index(declaring) < len(visible) - _FROM_END - 1


def test_the_state_has_every_part_and_every_status(session: dict[str, Any]) -> None:
    """Role, TODO list, useful information and folder notes, in the form in which a request gives them."""
    state = read_state(session["state"], "state")

    assert state.role
    assert {todo.status for todo in state.todos or ()} == {"pending", "in_progress", "completed"}
    assert state.useful_info
    assert {note.folder for note in state.folder_notes or ()} == {"src/ferrytime", "tests"}


def test_the_turns_are_those_of_the_session_and_two_that_left_it(session: dict[str, Any]) -> None:
    """Well-formed, numbered from 1, in the order of time; the goal is another one from the second turn on."""
    sample = load_sample("turns")
    turns = [Turn.model_validate(turn) for turn in sample["turns"]]
    runs = list(dict.fromkeys(row["run_id"] for row in session["rows"]))

    assert [turn.turn_number for turn in turns] == [1, 2, 3, 4, 5]
    assert [turn.run_id for turn in turns][2:] == runs
    assert [turn.id for turn in turns] == [
        f"turn_{turn.turn_number}_{int(turn.timestamp.timestamp() * 1000)}" for turn in turns
    ]
    assert turns == sorted(turns, key=lambda turn: turn.timestamp)
    assert {(turn.owner_key, turn.session_id) for turn in turns} == {(session["owner_key"], session["session_id"])}
    assert [turn.task_context == sample["task_context"] for turn in turns] == [False, True, True, True, True]
    assert all(turn.task_context for turn in turns)
    for turn in turns:
        assert 3 * len(turn.summaries.brief) <= len(turn.summaries.detailed)


def test_a_heading_in_a_file_that_was_read_is_told_from_that_of_the_pinned_block(session: dict[str, Any]) -> None:
    """The README has a section of the same name, which gets the one mark of the session."""
    marked = [row["id"] for row in session["rows"] if escape_counted(row["content"])[1]]

    assert marked == ["run_ferry_3_04"]
