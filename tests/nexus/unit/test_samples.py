"""The shipped session of a tool-using agent is one that a store and a request could hold."""

from typing import Any, Final

import pytest

from nexus.cli.demo import load_sample
from nexus.core.turns import Turn
from nexus.services.session_state.state import read_state

_FROM_END: Final = 5


@pytest.fixture(name="session", scope="module")
def _session() -> dict[str, Any]:
    session: dict[str, Any] = load_sample("agent_session")
    return session


def _calls(row: dict[str, Any]) -> list[dict[str, Any]]:
    return row["metadata"].get("tool_calls") or []


def test_the_rows(session: dict[str, Any]) -> None:
    """In the order of time; every call but one is answered; the pinned block has to move before parallel calls."""
    rows = session["rows"]
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)
    declared = {call["id"] for row in rows for call in _calls(row)}
    answered = {row["metadata"]["call_id"] for row in rows if row["metadata"]["source"] == "tool_result"}
    assert len(declared - answered) == 1
    assert answered < declared
    visible = [row for row in rows if not row["metadata"].get("sub_agent_internal")]
    fifth = visible[-_FROM_END]
    declaring = next(row for row in visible if any(call["id"] == fifth["metadata"]["call_id"] for call in _calls(row)))
    assert len(_calls(declaring)) > 1


def test_the_state(session: dict[str, Any]) -> None:
    """Every part and every status."""
    state = read_state(session["state"], "state")
    assert state.role
    assert {todo.status for todo in state.todos or ()} == {"pending", "in_progress", "completed"}
    assert state.useful_info
    assert {note.folder for note in state.folder_notes or ()} == {"src/ferrytime", "tests"}


def test_the_turns(session: dict[str, Any]) -> None:
    """Those of the session and two that left it, numbered from 1, in the order of time."""
    sample = load_sample("turns")
    turns = [Turn.model_validate(turn) for turn in sample["turns"]]
    assert [turn.turn_number for turn in turns] == [1, 2, 3, 4, 5]
    assert [turn.run_id for turn in turns][2:] == list(dict.fromkeys(row["run_id"] for row in session["rows"]))
    assert turns == sorted(turns, key=lambda turn: turn.timestamp)
    assert {(turn.owner_key, turn.session_id) for turn in turns} == {(session["owner_key"], session["session_id"])}
    assert turns[-1].task_context == sample["task_context"]
