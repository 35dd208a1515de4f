"""How long the texts of a summary may be: what is longer is cut at the end of a sentence, else of a word. Pure.

A summary is shown in many contexts after its turn, so one that a model has made too long would be paid for again and
again.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from nexus.services.turns.cutting import leading
from nexus.services.turns.sentences import between_words, weight

# In characters.
DETAILED: Final = 2_500
BRIEF: Final = 800
ENTRY: Final = 400
INSIGHT: Final = 200
# Of a list.
ENTRIES: Final = 12
INSIGHTS: Final = 5

_MORE: Final = " …"
# What a text does not end in where it is cut.
_HANGING: Final = " ,;:(，；：、（"
# `brief` costs at most one of so many parts of what `detailed` does, where `[Turn n] ` stands before both; in fifths of
# a token. Below the least it would say nothing.
_BRIEF_PART: Final = 3
_HEAD: Final = 35
_LEAST: Final = 45
# What a digit, or a mark, costs more than a letter.
_DIGIT: Final = 2
_MARK: Final = 4


def within(text: str, most: int) -> str:
    """The text, or its first sentences, or its first words and `…`, in at most so many characters."""
    if len(text) <= most:
        return text
    sentences = leading(text, most).rstrip()
    if len(sentences) <= most:
        return sentences
    return text[: between_words(text, most - len(_MORE))].rstrip(_HANGING) + _MORE


def listed(entries: Sequence[str], most: int = ENTRIES, most_each: int = ENTRY) -> tuple[str, ...]:
    """The first entries of a list, each within its bound."""
    return tuple(within(entry, most_each) for entry in entries[:most])


def cost(text: str) -> int:
    """About how many fifths of a token a text takes: figures and marks are dearer than words."""
    return weight(text) + sum(map(_extra, text))


def brief_within(brief: str, detailed: str) -> str:
    """As much of `brief` as costs no more than a third of `detailed`, which holds what is left out."""
    room = max((cost(detailed) + _HEAD) // _BRIEF_PART - _HEAD, _LEAST)
    if cost(brief) <= room:
        return within(brief, BRIEF)
    # The mark of a cut costs more than the characters whose place it takes.
    fits = bisect_right([*accumulate(map(cost, brief))], room - cost(_MORE) + len(_MORE))
    return within(brief, min(fits, BRIEF))


def _extra(char: str) -> int:
    if not char.isascii() or char.isalpha() or char.isspace():
        return 0
    return _DIGIT if char.isdigit() else _MARK
