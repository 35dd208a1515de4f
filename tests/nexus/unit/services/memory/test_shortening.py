"""Lines of summaries in fewer words (CONTRACT §7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.memory.rule_summary import shorten_line
from nexus.services.text.sentences import weight

WORDS = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(
            [
                "Asked: ",
                "Answered: ",
                "Tools: ",
                "Said: ",
                "Decided: ",
                "It is 7.",
                " ",
                "f gave n: 1.",
                "站台七。",
                "...",
            ]
        ),
        max_size=30,
    ).map(" ".join),
)


@given(WORDS, st.integers(8, 400))
def test_any_line(line: str, room: int) -> None:
    """Is as short as it should be, on one line, and the same each time; one that is short enough is not changed."""
    found = shorten_line(line, room)
    assert weight(found) <= room
    assert found == line or "\n" not in found
    assert shorten_line(line, room) == found
    assert weight(line) > room or found == line


ASKED = "Asked: I have thought about the garden for a while. I like it very much. What is the pH of bed 16? "
TOOLS = 'Tools: probe (bed: 16; depth: "deep") gave rows: 60, ph: 7. '
ANSWERED = (
    "Answered: Answer 16, as you have asked for it, after a look at all tables that there are. The soil is loamy. "
    "Bed 16 is at pH 7.4, says Maria. Should I look at the other beds, too?"
)


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (160, f"Asked: What is the pH of bed 16? {TOOLS}Answered: Bed 16 is at pH 7.4, says Maria."),
        (90, "Asked: What is the pH of bed 16? Answered: Bed 16 is at pH 7.4, says Maria."),
        (50, "Answered: Bed 16 is at pH 7.4, says Maria."),
    ],
)
def test_the_outcome_stays(room: int, said: str) -> None:
    """The sentence of the answer with figures and names, then the question that was asked, then what tools gave."""
    assert shorten_line(f"{ASKED}{TOOLS}{ANSWERED}", room) == said


def test_what_was_shortened_before() -> None:
    """Is shortened in the same way, and loses no label."""
    line = f"{ASKED}{TOOLS}{ANSWERED}"
    assert shorten_line(shorten_line(shorten_line(line, 360), 200), 90) == shorten_line(line, 90)


def test_one_long_sentence() -> None:
    """Keeps its label, its beginning and its figures."""
    line = f"Answered: The trains {'which nobody has ever seen ' * 20}leave at 9:02 and 10:17."
    assert shorten_line(line, 90).startswith("Answered: The trains")
    assert "9:02" in shorten_line(line, 90)


def test_tools_alone() -> None:
    """The call with the most figures is told."""
    line = f"Tools: f gave nothing. g (to: Faro) gave trains: 4, first: 9:02. {'h gave a result. ' * 9}"
    assert shorten_line(line, 60).startswith("Tools: g (to: Faro) gave trains: 4, first: 9:02.")


def test_names_without_figures() -> None:
    """Count as well."""
    line = (
        "Answered: I have done what you wanted me to do now. The report went to Maria and to /srv/export/q4.pdf. Bye."
    )
    assert shorten_line(line, 70) == "Answered: The report went to Maria and to /srv/export/q4.pdf."
