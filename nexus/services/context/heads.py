"""The heads by which a goal, insights and rounds of thought are told from what is around them (CONTRACT §6). Pure.

They are ordinary words, and count at the head of a line only. So they are marked in those texts alone that stand beside
them on several lines, in whatever case, spacing or script, as `escape` marks the heads of the memory.
"""

import re
from typing import Final

from nexus.services.context.escape import CountingEscape, spelled, with_marks
from nexus.services.context.lookalikes import fold, passes_for_number

# An apostrophe, among others, is folded to a question mark.
_GAP: Final = "[ _?]*+"
_HEAD: Final = re.compile(
    rf"^(?P<run>\\*+)[ _]*+(?:(?:{spelled('Insights', 'Users Goal', gap=_GAP)}){_GAP}"
    rf"|(?:{spelled('Round', gap=_GAP)})(?P<number>[^:\n]*+)):",
    re.MULTILINE,
)


class GuardedEscape(CountingEscape):
    """`CountingEscape` that marks `User's Goal:`, `Insights:` and `Round n:` at the heads of lines besides."""

    def __call__(self, text: str) -> str:
        """The text with its marks."""
        escaped = super().__call__(text)
        places = [match.end("run") for match in _HEAD.finditer(fold(escaped)) if _is_head(escaped, match)]
        self.marked += len(places)
        return with_marks(escaped, places)


def _is_head(text: str, match: re.Match[str]) -> bool:
    first, end = match.span("number")
    return match["number"] is None or passes_for_number(text[first:end])
