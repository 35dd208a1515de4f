"""How much of the window each block may take (`memory.shares`, `memory.budget`). Pure.

- A text is cut before it is escaped: no mark is cut in half.
- It is cut behind a line, a sentence or a word where there is one near, and ends with a line that says how much of it
  is shown. Of a list the items go that are needed least.
- The same text, share and vocabulary give the same bytes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from nexus.services.text.escape import PARTING, canonical
from nexus.services.text.sentences import break_near
from nexus.services.text.tokens import ByteBound, Measure

_CUT: Final = "(cut after {shown} of {every} characters)"
# No more of a text is looked at than this many characters for each token of its share.
_CHARS_A_TOKEN: Final = 8
# How exactly a cut uses up the share: each place that is tried costs a count.
_STEPS: Final = 64


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


def allocate(room: int, limit: int, wanted: Mapping[str, int], shares: Mapping[str, Share]) -> dict[str, int]:
    """Tokens for each block of what is `wanted`, in a context of at most `limit` tokens.

    First every block gets what it wants up to its floor, then up to its ceiling, each time those of the highest
    priority first. No more than `room` tokens are given, and no block gets more while another lacks some of its floor.
    """
    given, order = dict.fromkeys(wanted, 0), by_priority(wanted, shares)
    parts = [(name, shares[name].floor) for name in order] + [(name, shares[name].ceiling) for name in order]
    for name, part in parts:
        more = min(wanted[name], int(limit * part)) - given[name]
        given[name] += max(min(more, room - sum(given.values())), 0)
    return given


def by_priority(names: Iterable[str], shares: Mapping[str, Share]) -> list[str]:
    """Those of the highest priority first."""
    return sorted(names, key=lambda name: (-shares[name].priority, name))


class Bounds:
    """The tokens that each block of one context may take, by its tag."""

    def __init__(self, measure: Measure, tokens: Mapping[str, int]) -> None:
        self._measure = measure
        self._surely = Measure(ByteBound(measure.counter), measure.form)
        self._tokens = tokens

    def hold(self, tag: str, text: str, part: float = 1.0) -> bool:
        """Whether a block with this text takes no more than that part of its share."""
        room = int(self._tokens[tag] * part)
        # Behind another message it may get a line more.
        if self._surely.text(f"{PARTING}{text}") <= room:
            return True
        # Two counts: that of the text by itself is needed again when the list is fitted.
        counted = len(text) <= room * _CHARS_A_TOKEN
        return counted and self._measure.text(text) + self._measure.text(PARTING) <= room

    def cut(self, tag: str, text: str, render: Callable[[str], str]) -> str:
        """`text`, or as much of its beginning as the block has room for; `render` makes the block's text of it."""
        most = self._tokens[tag] * _CHARS_A_TOKEN
        if len(text) <= most and self.hold(tag, render(text)):
            return text
        whole = canonical(text).strip()

        def beginning(steps: int) -> str:
            shown = whole[: break_near(whole, min(len(whole), most) * steps // _STEPS)].rstrip()
            return f"{shown}\n{_CUT.format(shown=len(shown), every=len(whole))}".lstrip("\n")

        return beginning(largest(0, _STEPS, lambda steps: self.hold(tag, render(beginning(steps)))))

    def most(self, tag: str, count: int, render: Callable[[int], str], part: float = 1.0) -> int:
        """As many of `count` items as a block has room for; `render` makes its text of so many."""
        if self.hold(tag, render(count), part):
            return count
        return largest(0, count, lambda kept: self.hold(tag, render(kept), part))


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from `low` to `high` that fits, where all numbers below a fitting one fit, too."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
