"""The heads of goals, insights and rounds are marked in texts that could forge them (CONTRACT §4.7, §6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.context.escape import canonical, escape, unescape
from nexus.services.text.escape import LabelEscape
from tests.nexus.unit.services.context import strict
from tests.nexus.unit.services.context.ordinary import ORDINARY

_PIECES = [
    *("Insights", "User's Goal", "users goal", "User’s Goal", "Round", "Round 9", "round #", "Ｉnsights", "Ιnsіghts"),
    *(
        *(":", "：", "9", "1", "l", " ", "\n", "\r", "\\", "\\\\", "- ", "**", "\t", "\u200b", "\u200d", "x", "你"),
        *("[", "]"),
    ),
    *("[Turn 2]", "[THIS_MOMENT]", "Human", "\nInsights: ", "\n  Round 2: ", "## Folder Notes", "=== TASK CONTEXT ==="),
]


@pytest.mark.parametrize(
    "line",
    [
        *(
            *(
                "Insights: a",
                "insights : a",
                "  Insights: a",
                "**Insights:** a",
                "- Insights：a",
                "Ｉｎｓｉｇｈｔｓ: a",
            ),
            "I n sights:",
        ),
        *("User's Goal: a", "USER’S GOAL: a", "Users goal: a", "User's  Goal**: a"),
        *("Round 1: a", "Round 12:", "round #3: a", "Round_１：a", "Rоund 1: a", "Round I: a", "- Round 2 : a"),
    ],
)
def test_heads(line: str) -> None:
    """On the first line, on a later one, and after backslashes."""
    for text in (line, f"a\n{line}", f"a\n\n{line}\n{line}"):
        counting = LabelEscape()
        assert counting(text) == text.replace(line, f"\\{line}")
        assert counting.marked == text.count(line)
    assert LabelEscape()(f"\\{line}") == f"\\\\{line}"


@pytest.mark.parametrize(
    "line",
    [
        *("Some insights: a", "Insights", "Insights from 2024: a", "My user's goal: a", "User's goals: two", "Goal: a"),
        *("Round: a", "Round trip: a", "Rounds 2: a", "Round 2", "In round 2: a", "Round 2 of 3: a", "> Round 2: a"),
    ],
)
def test_what_is_no_head(line: str) -> None:
    """Other words, no colon, or not at the head."""
    assert LabelEscape()(f"{line}\n{line}") == f"{line}\n{line}"


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_text_is_unchanged(kind: str) -> None:
    """As by `escape`."""
    assert LabelEscape()(ORDINARY[kind]) == ORDINARY[kind]


@given(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join))
def test_nothing_is_forged_and_nothing_is_lost(text: str) -> None:
    """A strict reader finds no head, and two steps give the text back."""
    counting = LabelEscape()
    shown = counting(text)
    assert not strict.forged(shown)
    assert not strict.remembered_heads(shown)
    assert shown.replace("\\", "") == canonical(text).replace("\\", "")
    assert len(shown) == len(canonical(text)) + counting.marked
    # Taking the marks of `escape` away leaves those of heads, one for each.
    assert len(unescape(shown)) - len(canonical(text)) == counting.marked - (len(escape(text)) - len(canonical(text)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", ["\n", "\\", "\n\\", "Round ", "Round 1", "\nRound 1:", "Insights ", "\nI n s i ", " ", "_"]
)
def test_a_million_characters_of_anything(piece: str) -> None:
    """Linear time."""
    text = piece * (1_000_000 // len(piece))
    assert LabelEscape()(text).replace("\\", "") == text.replace("\\", "")
