"""The shipped session of a tool-using agent is one that a store and a request could hold."""

from typing import Any

import pytest

from nexus.cli.demo import load_sample
from nexus.core.turns import Turn
from nexus.services.session_state.state import read_state


@pytest.fixture(name="session", scope="module")
def _session() -> dict[str, Any]:
    session: dict[str, Any] = load_sample("agent_session")
    return session


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
