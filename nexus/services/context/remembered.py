"""What is remembered of a session besides its rows, as blocks: the goal, and the turns (CONTRACT §6). Pure.

[TASK_CONTEXT]
User's Goal: find reviews on SGLT2 inhibitors

[TURN_MEMORY level=brief count=2]
[Turn 1] Searched PubMed: 156 articles.
Insights: reviews are recent; most are in English

[Turn 2] Of these, 15 are systematic reviews.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nexus.core.ports import Row
from nexus.core.turns import Level
from nexus.services.context.blocks import Block


@dataclass(frozen=True, slots=True)
class RememberedTurn:
    """A turn at one level of detail.

    Attributes:
        text: brief, detailed, or for `comprehensive` the structured summary as JSON; not escaped yet.
    """

    number: int
    id: str
    text: str
    insights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remembered:
    """What one build shows of the goal and of the turns.

    Attributes:
        goal: as it was given; `""` for none.
        goal_source: id of the turn that it was read from; `""` where the request gave it.
        turns: the lowest number first.
        dropped: older turns that are not shown.
    """

    goal: str = ""
    goal_source: str = ""
    level: Level = "detailed"
    turns: tuple[RememberedTurn, ...] = ()
    dropped: int = 0

    def to_json(self) -> list[Any]:
        """As it is kept for later builds of the run."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, kept: list[Any]) -> "Remembered":
        """That of which `kept` is the `to_json`."""
        raise NotImplementedError


def read_turns(rows: Sequence[Row], level: Level) -> tuple[tuple[RememberedTurn, ...], int]:
    """Stored turns at that level, the lowest number first, and how many were malformed and left out."""
    raise NotImplementedError


def task_block(remembered: Remembered) -> list[Block]:
    """`[TASK_CONTEXT]`, if there is a goal."""
    raise NotImplementedError


def turns_block(remembered: Remembered) -> list[Block]:
    """`[TURN_MEMORY]`, if there is a turn to show."""
    raise NotImplementedError
