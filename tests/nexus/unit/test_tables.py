"""Tables on terminals of any width: what is in them is never cut, and no number, id or word is broken."""

import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from operator import itemgetter
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nexus.cli.terminal import facts, table

WORDS = st.text("abc019_-:.", min_size=1, max_size=24)
CELLS = st.lists(st.lists(WORDS, min_size=1, max_size=12).map(" ".join), min_size=3, max_size=3)
COLUMNS = {"NUMBER": itemgetter(0), "TIME (UTC)": itemgetter(1), "BRIEF": itemgetter(2)}


def on_terminal(width: int, rows: Sequence[Sequence[str]]) -> list[str]:
    """The table of these rows on a terminal so wide."""
    with patch.dict(os.environ, {"COLUMNS": str(width)}):
        return table(COLUMNS, rows)


@given(st.lists(CELLS, min_size=1, max_size=6), st.integers(42, 120))
def test_nothing_is_broken(rows: list[list[str]], width: int) -> None:
    """Every word is whole, in its order, and no line is longer than the terminal is wide."""
    lines = on_terminal(width, rows)
    found = " ".join(lines).split()
    for row in rows:
        for word in " ".join(row).split():
            assert word in found
    assert max(map(cell_len, lines)) <= width


@given(st.lists(CELLS, min_size=1, max_size=6))
def test_without_a_terminal_an_item_is_a_line(rows: list[list[str]]) -> None:
    """For programs that read lines."""
    with patch.dict(os.environ), redirect_stdout(StringIO()):
        os.environ.pop("COLUMNS", None)
        assert len(table(COLUMNS, rows)) == 1 + len(rows)


ROW = ("7", "2026-01-01 00:02:00", "Asked for statins, found 156 of them in 2026.")


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            80,
            [
                "NUMBER  TIME (UTC)           BRIEF",
                "7       2026-01-01 00:02:00  Asked for statins, found 156 of them in 2026.",
            ],
        ),
        (
            56,
            [
                "NUMBER  TIME (UTC)           BRIEF",
                "7       2026-01-01 00:02:00  Asked for statins, found",
                "                             156 of them in 2026.",
            ],
        ),
        (
            42,
            [
                "NUMBER      7",
                "TIME (UTC)  2026-01-01 00:02:00",
                "BRIEF       Asked for statins, found 156",
                "            of them in 2026.",
                "",
            ],
        ),
    ],
)
def test_forms(width: int, expected: list[str]) -> None:
    """A line an item, a broken last column, a line a value."""
    assert on_terminal(width, [ROW]) == expected


def test_wide_letters_and_long_ids() -> None:
    """Letters are counted by their width, and break anywhere; an id that has no room begins a line of its own."""
    rows = [("1", "-", "请帮我订一张去北京的火车票"), ("2", "-", "x" * 40), ("3", "-", "short")]
    assert on_terminal(42, rows) == [
        "NUMBER  TIME (UTC)  BRIEF",
        "1       -           请帮我订一张去北京的火",
        "                    车票",
        "2       -",
        f"    {'x' * 40}",
        "3       -           short",
    ]


def test_facts() -> None:
    """A hash is whole, whatever the width."""
    with patch.dict(os.environ, {"COLUMNS": "42"}):
        assert facts({"sha256": "a" * 64, "reason": "it is no JSON at byte 12345678901 of 3"}) == [
            "sha256",
            f"    {'a' * 64}",
            "reason      it is no JSON at byte",
            "            12345678901 of 3",
        ]
