"""What a request may say of its run's turn, and what is said when it says something else (contract §1.3, §6)."""

from typing import Any

import pytest

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.turns import LEVELS, ThinkingRound
from nexus.services.context.request import TurnMetadata, read_turn_metadata

WRONG: list[tuple[str, Any, str]] = [
    ("task_context", 5, "a text is needed"),
    ("task_context", {"goal": "x"}, "a text is needed"),
    ("task_context", "你" * 32_001, "32001 characters, at most 32000 are allowed"),
    ("workspace_context", ["a"], "a text is needed"),
    ("thinking_rounds", {}, "a list is needed"),
    ("thinking_rounds", "none", "a list is needed"),
    (
        "thinking_rounds",
        [{"round_number": number, "content": "x"} for number in range(1, 102)],
        "101 rounds, at most 100 are allowed",
    ),
    ("summary_detail_level", "short", "'short' is unknown; allowed: brief, detailed, comprehensive"),
    ("summary_detail_level", "Brief", "'Brief' is unknown; allowed: brief, detailed, comprehensive"),
    ("summary_detail_level", "", "'' is unknown; allowed: brief, detailed, comprehensive"),
    ("summary_detail_level", ["brief"], "a JSON list is unknown; allowed: brief, detailed, comprehensive"),
]
_NO_NUMBERS: list[Any] = [0, -1, 1.5, True, "1", None, [], float("inf"), float("nan"), 10**9 + 1, 10**5_000]
_NO_COUNTS: list[Any] = [-1, 0.5, True, "7", 10**5_000]
WRONG_ROUNDS: list[tuple[Any, str]] = [
    (["x"], "[0]: a JSON object is needed"),
    ([{"round_number": 1}], "[0].content: a text is needed"),
    ([{"round_number": 1, "content": 5}], "[0].content: a text is needed"),
    ([{"content": "x"}], "[0].round_number: a whole number from 1 to 1000000000 is needed"),
    *(
        ([{"round_number": number, "content": "x"}], "[0].round_number: a whole number from 1 to 1000000000 is needed")
        for number in _NO_NUMBERS
    ),
    *(
        (
            [{"round_number": 1, "content": "x", "tokens_used": used}],
            "[0].tokens_used: a whole number from 0 to 1000000000 is needed",
        )
        for used in _NO_COUNTS
    ),
    *(
        (
            [{"round_number": one, "content": "x"}, {"round_number": other, "content": "x"}],
            "[1].round_number: a larger one than that of the round before is needed",
        )
        for one, other in ((2, 1), (1, 1))
    ),
]


def refused(metadata: dict[str, Any], layout: str = "thinking") -> str:
    """The message of the refusal."""
    with pytest.raises(RequestError) as caught:
        read_turn_metadata(metadata, layout)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    return caught.value.message


@pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
@pytest.mark.parametrize("level", LEVELS)
def test_everything(level: str, layout: str) -> None:
    """In every layout: a turn remembers also what its context does not show."""
    rounds = [
        {"round_number": 1, "content": "One.", "mood": "good"},
        {"round_number": 3.0, "content": "", "tokens_used": 12.0},
        {"round_number": 10**9, "content": "x", "tokens_used": None},
    ]
    given = {
        "task_context": " the goal ",
        "workspace_context": "w" * 100_000,
        "thinking_rounds": rounds,
        "summary_detail_level": level,
    }
    found, notes = read_turn_metadata(given, layout)
    assert notes == []
    assert (found.task_context, found.workspace_context) == (" the goal ", "w" * 100_000)
    assert found.summary_detail_level == level
    assert found.thinking_rounds == (
        ThinkingRound(round_number=1, content="One."),
        ThinkingRound(round_number=3, content="", tokens_used=12),
        ThinkingRound(round_number=10**9, content="x"),
    )


@pytest.mark.parametrize("blank", ["", " \n\t", "\u200b\u2060\ufeff"])
def test_a_blank_is_as_good_as_nothing(blank: str) -> None:
    """As a goal, and of the surroundings."""
    found, _ = read_turn_metadata({"task_context": blank, "workspace_context": blank}, "thinking")
    assert found == TurnMetadata()


def test_limits() -> None:
    """A goal of 32,000 characters and a hundred rounds are allowed."""
    rounds = [{"round_number": number, "content": "x"} for number in range(1, 101)]
    found, _ = read_turn_metadata({"task_context": "你" * 32_000, "thinking_rounds": rounds}, "thinking")
    assert (len(found.task_context), len(found.thinking_rounds)) == (32_000, 100)


@pytest.mark.parametrize(("key", "value", "said"), WRONG)
def test_what_is_shown_is_read_strictly(key: str, value: Any, said: str) -> None:
    """All of it in the thinking layout, goal and level in that of agents: the place is named, and what is allowed."""
    assert refused({key: value}) == f"run.metadata.{key}: {said}"
    if key in {"task_context", "summary_detail_level"}:
        assert refused({key: value}, "agent") == f"run.metadata.{key}: {said}"


@pytest.mark.parametrize(("key", "value", "said"), WRONG)
def test_what_is_of_no_use_may_be_wrong(key: str, value: Any, said: str) -> None:
    """It is passed over with a note; what is right beside it counts."""
    for layout in ("dialogue", "agent"):
        if layout == "dialogue" or key in {"workspace_context", "thinking_rounds"}:
            found, notes = read_turn_metadata({"task_context": "goal", key: value}, layout)
            assert notes == [f"run.metadata.{key}: {said}; it was passed over"]
            assert found == TurnMetadata(task_context="" if key == "task_context" else "goal")


@pytest.mark.parametrize(("rounds", "said"), WRONG_ROUNDS)
def test_wrong_rounds(rounds: Any, said: str) -> None:
    """Are named by their place."""
    assert refused({"thinking_rounds": rounds}) == f"run.metadata.thinking_rounds{said}"
