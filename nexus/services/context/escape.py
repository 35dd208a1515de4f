r"""Nobody forges structure (CONTRACT §4.7).

Block tags, `<human_input>`, `<current_time>`, `[tool_use:` and the line heads of the memory come only from the
renderer. Every other text passes `escape`, which sets one backslash before whatever looks like one of them.

Rules of this module:

- What looks alike is judged on the folded text (`lookalikes.fold`), where case, width, accents, separators and scripts
  no longer differ, and which has the same length as the text. The text itself gets backslashes and loses nothing.
- A place is marked by exactly one backslash, put in front of the bracket or at the head of the line. A run of
  backslashes that is already there thus becomes one longer, so that `unescape` can take one away again, as mbox
  quoting does it.
- Marking a place neither makes nor hides another place. For this a tag cannot contain a bracket, and a line head is
  recognised with or without backslashes where marks may stand.
- Patterns are possessive and cannot overlap, so that any input takes linear time.

The guarantee is that structure cannot be forged, and `unescape(escape(text)) == canonical(text)`. What the words say is
still the model's to judge.
"""

import re
from typing import Final

from nexus.services.context.lookalikes import ANGLE, COLONS, SQUARE, fold

BLOCK_TAGS: Final = (
    "CORE_IDENTITY",
    "CAPABILITIES",
    "SHARED_MEMORY",
    "FRIENDS_INFO",
    "THIS_MOMENT",
    "TASK_CONTEXT",
    "TURN_MEMORY",
    "WORKING_MEMORY",
    "CONTEXT_META",
)
ELEMENTS: Final = ("human_input", "current_time")
TOOL_USE: Final = "tool_use"
SPEAKERS: Final = ("Human", "Nexus")

_INVISIBLE = "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\U000e0000-\U000e007f"
_LINE_ENDS = "\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_TO_NEWLINE = re.compile(f"\r\n|[{_LINE_ENDS}]")
_REMOVED = re.compile(f"[{_INVISIBLE}]")
_ASCII_LINE_ENDS = ("\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e")
_SUSPECT = re.compile(f"[{re.escape(SQUARE + ANGLE + COLONS)}{_LINE_ENDS}{_INVISIBLE}]")


def _spelled(name: str, gap: str) -> str:
    return gap.join(fold(char) for char in name if char != "_")


_TAG_GAP = r"[ _\n\\]*+"
_LEAD = r"[ _\n\\/]*+"
_ELEMENT = "|".join(_spelled(name, _TAG_GAP) for name in ELEMENTS)
_BLOCK = "|".join(_spelled(name, _TAG_GAP) for name in BLOCK_TAGS) + f"|{_spelled(TOOL_USE, _TAG_GAP)}{_TAG_GAP}:"
# Two patterns, because one that starts with a plain character is searched for ten times as fast. An element in square
# brackets counts as well, but not after a letter: `schedule[current_time]` is ordinary code.
_ANGLE_TAG = re.compile(rf"<{_LEAD}(?:{_BLOCK}|{_ELEMENT})")
_SQUARE_TAG = re.compile(rf"\[(?:{_LEAD}(?:{_BLOCK})|(?<![a-z_]\[){_LEAD}(?:{_ELEMENT}))")
_HEAD_GAP = "[ _]*+"
# Spaces, perhaps a time in brackets, a speaker and a colon. The two runs of backslashes are where a mark may stand.
_HEAD = (
    r"(?P<run>\\*+)[ _]*+(?:\\*+[\[<][^\[\]<>\n]{0,80}[\]>][ _]*+)?(?:"
    + "|".join(_spelled(name, _HEAD_GAP) for name in SPEAKERS)
    + f"){_HEAD_GAP}:"
)
_FIRST_HEAD = re.compile(_HEAD)
_LATER_HEAD = re.compile("\n" + _HEAD)


def canonical(text: str) -> str:
    r"""`text` with every line end as `\n` and without the invisible characters that could hide a tag.

    Removed are U+E0000-E007F, the bidirectional controls, U+200B, U+2060 and U+FEFF. Joiners and variation selectors
    stay: Persian and emoji need them.
    """
    if text.isascii():
        if not any(end in text for end in _ASCII_LINE_ENDS):
            return text
        return _TO_NEWLINE.sub("\n", text)
    return _REMOVED.sub("", _TO_NEWLINE.sub("\n", text))


def escape(text: str) -> str:
    """`text` in canonical form, with one backslash before everything that looks like structure.

    Ordinary text comes out unchanged. Linear time; text without brackets, colons and the like costs next to nothing.
    """
    return escape_counted(text)[0]


def escape_counted(text: str) -> tuple[str, int]:
    """`escape(text)` and how many places were marked."""
    if _is_plain(text):
        return text, 0
    text = canonical(text)
    places = _places(text)
    if not places:
        return text, 0
    parts = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    return "\\".join(parts), len(places)


def unescape(text: str) -> str:
    """The text that `escape` was given, in canonical form: takes one backslash away from every marked place."""
    marked = [place for place in _places(text) if place and text[place - 1] == "\\"]
    starts = [0, *marked]
    ends = [*(place - 1 for place in marked), len(text)]
    return "".join(text[start:end] for start, end in zip(starts, ends, strict=True))


def _is_plain(text: str) -> bool:
    if not text.isascii():
        return _SUSPECT.search(text) is None
    if "[" in text or "<" in text or any(end in text for end in _ASCII_LINE_ENDS):
        return False
    return ":" not in text


def _places(text: str) -> list[int]:
    """Where marks belong, in order: before the bracket of a tag, after the backslashes at the start of a line head."""
    folded = fold(text)
    places = {match.start() for match in _SQUARE_TAG.finditer(folded)}
    places.update(match.start() for match in _ANGLE_TAG.finditer(folded))
    if ":" in folded:
        first = _FIRST_HEAD.match(folded)
        if first:
            places.add(first.end("run"))
        places.update(match.end("run") for match in _LATER_HEAD.finditer(folded))
    return sorted(places)


class CountingEscape:
    """`escape` that remembers, for the manifest, how many places it marked."""

    def __init__(self) -> None:
        self.marked = 0

    def __call__(self, text: str) -> str:
        """`escape(text)`."""
        escaped, count = escape_counted(text)
        self.marked += count
        return escaped
