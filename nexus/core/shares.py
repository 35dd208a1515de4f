"""Shares of a context's window, with their defaults (`memory.shares`, `memory.budget`): see `context/bounds.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of the window that blocks take at most, from 0 to 1.

    `instructions` are an agent's own, `working_memory` the overview and the list of details. All of these always stay.
    """

    instructions: float = 0.3
    role: float = 0.1
    todos: float = 0.1
    goal: float = 0.05
    working_memory: float = 0.2
    profile: float = 0.1
    workspace: float = 0.3

    def tokens(self, limit: int) -> dict[str, int]:
        """Tokens of each block by its tag, for a context of at most `limit` tokens."""
        of_tags = {
            "SYSTEM_PROMPT": self.instructions,
            "TASK_PROMPT": self.instructions,
            "AGENT_ROLE": self.role,
            "TODO_LIST": self.todos,
            "TASK_CONTEXT": self.goal,
            "WORKING_MEMORY": self.working_memory,
            "FRIENDS_INFO": self.profile,
            "WORKSPACE_CONTEXT": self.workspace,
        }
        return {tag: int(limit * share) for tag, share in of_tags.items()}


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
