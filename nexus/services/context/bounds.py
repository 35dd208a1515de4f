"""How much of the window each block may take (`memory.shares`, `memory.budget`). Pure.

- A text is cut before it is escaped: no mark is cut in half.
- It is cut behind a line, a sentence or a word where there is one near, and ends with a line that says how much of it
  is shown. Of a list the items go that are needed least.
- The same text, share and vocabulary give the same bytes.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from nexus.core.shares import Share
from nexus.services.text.escape import PARTING, canonical
from nexus.services.text.sentences import break_near
from nexus.services.text.tokens import ByteBound, Measure

_CUT: Final = "(cut after {shown} of {every} characters)"
# No more of a text is looked at than this many characters for each token of its share.
_CHARS_A_TOKEN: Final = 8
# How exactly a cut uses up the share: each place that is tried costs a count.
_STEPS: Final = 64


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
