"""Shares of a context's window, with their defaults (`memory.shares`, `memory.budget`): see `context/bounds.py`."""

from collections.abc import Mapping
from typing import Final, NamedTuple

# The parts of the window, from 0 to 1, that blocks take at most that always stay. `instructions` are an agent's own,
# `working_memory` the overview and the list of details.
SHARES: Final[Mapping[str, float]] = {
    "instructions": 0.3,
    "role": 0.1,
    "todos": 0.1,
    "goal": 0.05,
    "working_memory": 0.2,
    "profile": 0.1,
    "workspace": 0.3,
}


class Share(NamedTuple):
    """Parts of the window, from 0 to 1: what a block has where room is short, and what it takes at most.

    Beyond the floors the block with the highest priority grows first.
    """

    floor: float
    ceiling: float
    priority: int


# By default; those that cannot be set are always these.
BUDGET: Final[Mapping[str, Share]] = {
    "history": Share(0.2, 1.0, 30),
    "recall": Share(0.0, 0.1, 10),
    "facts": Share(0.05, 0.1, 40),
    # Never cut.
    "constraints": Share(0.1, 0.1, 100),
    "turns": Share(0.05, 0.1, 20),
    "mood": Share(0.0, 1.0, 15),
    "notes": Share(0.05, 0.2, 50),
    "summary": Share(0.1, 1.0, 60),
    "rounds": Share(0.1, 0.5, 70),
    "results": Share(0.1, 1.0, 80),
}
