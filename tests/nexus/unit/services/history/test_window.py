"""Which messages of a session are shown, and which runs with their input (contract §5)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.history.transcript import Window
from tests.nexus.unit.services.parts import past


def row(number: int, role: str, run_id: str, content: Any = "text", **metadata: Any) -> dict[str, Any]:
    """The row of that number, in stored order."""
    at = f"2025-12-10T{number // 60:02d}:{number % 60:02d}:00Z"
    return {"_id": f"{number:024x}", "id": f"m{number}", "run_id": run_id, "role": role, "content": content} | {
        "timestamp": at,
        "metadata": metadata,
    }


def test_a_whole_session() -> None:
    """Everything is shown, the current run left out, and what is malformed counted."""
    rows = [
        *past(3),
        row(900, "HUMAN", "now"),
        row(901, "AI", "now"),
        None,
        {**row(902, "AI", "late"), "role": "critic"},
    ]
    window = Window.of(rows, current_run_id="now")
    assert [item.text for item in window.messages][:2] == ["HUMAN 0", "AI 0"]
    assert window.runs == {"past_0", "past_1", "past_2"}
    assert (window.left_out, window.cut, window.fetched, window.faults) == (0, False, 8, 2)


def test_a_run_of_which_only_the_end_is_shown() -> None:
    """Counts as not shown, also where a human spoke again in it."""
    rows = [
        *(row(number, "HUMAN" if number in {0, 30} else "AI", "long", f"text {number}") for number in range(60)),
        row(70, "HUMAN", "next"),
    ]
    window = Window.of(rows, cut=True)
    assert window.left_out > 0
    assert window.runs == {"next"}


@pytest.mark.parametrize("blank", ["", " ", "\u200b", None])
def test_an_input_that_is_blank(blank: Any) -> None:
    """Is not shown, so its run is not, either."""
    rows = [row(0, "HUMAN", "one", blank), row(1, "AI", "one"), row(2, "HUMAN", "one", "more"), row(3, "HUMAN", "two")]
    assert Window.of(rows).runs == {"two"}


@given(st.integers(0, 40), st.booleans(), st.randoms(use_true_random=False))
def test_what_is_shown_and_what_is_left_out(runs: int, cut: bool, chance: Any) -> None:
    """Together they are everything, in any order of the rows; runs are those that begin in what is shown."""
    rows = past(runs)
    chance.shuffle(rows)
    window, expected = Window.of(rows, cut=cut), Window.of(past(runs), cut=cut)
    assert replace(window, messages=()) == replace(expected, messages=())
    assert [item.row for item in window.messages] == [item.row for item in expected.messages]
    assert window.left_out + len(window.messages) == window.fetched == 2 * runs
    assert window.runs == {item.run_id for item in window.messages if item.role == "user"}
    assert cut or window.left_out == 0
