r"""Nobody forges structure (CONTRACT §4.7).

Block tags, `<human_input>`, `<current_time>`, `[tool_use:`, `[Turn n]`, the line heads of the memory, the headings of
the pinned block and the banners of the thinking layout come only from the renderer. Every other text passes `escape`,
which sets one backslash before whatever looks like one of them.

Rules of this module:

- What looks alike is judged on the folded text (`lookalikes.fold`), where case, width, accents, separators and scripts
  no longer differ, and which has the same length as the text. The text itself gets backslashes and loses nothing.
- A place is marked by exactly one backslash, put in front of the bracket or at the head of the line. A run of
  backslashes that is already there thus becomes one longer, so that `unescape` can take one away again, as mbox
  quoting does it.
- Marking a place neither makes nor hides another place. For this a tag cannot contain an opening bracket, a line head
  is recognised with or without backslashes where marks may stand, also behind a title, and what is asked of the
  character before a bracket is true of a backslash.
- A heading is a whole line, and so is a banner. Whoever puts something before a text on its line therefore escapes the
  line, not the text: `### ` and a name can make a heading that the name alone is not.
- Patterns are possessive and cannot overlap, so that any input takes linear time.

The guarantee is that structure cannot be forged, and `unescape(escape(text)) == canonical(text)`. What the words say is
still the model's to judge.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from nexus.services.context.lookalikes import ANGLE, COLONS, EQUALS_SIGNS, NUMBER_SIGNS, SQUARE, fold, passes_for_number

BLOCK_TAGS: Final = (
    "CORE_IDENTITY",
    "CAPABILITIES",
    "SHARED_MEMORY",
    "FRIENDS_INFO",
    "THIS_MOMENT",
    "TASK_CONTEXT",
    "TURN_MEMORY",
    "WORKING_MEMORY",
    "CONVERSATION_SUMMARY",
    "CONTEXT_META",
)
ELEMENTS: Final = ("human_input", "current_time")
TOOL_USE: Final = "tool_use"
TURN: Final = "Turn"
SPEAKERS: Final = ("Human", "Nexus")
HEADINGS: Final = ("Agent Role Definition", "Current TODO List", "Useful Information", "Folder Notes")
BANNERS: Final = (
    "TASK CONTEXT",
    "WORKSPACE CONTEXT",
    "ACCUMULATED MEMORY SUMMARIES",
    "CURRENT INPUT",
    "PREVIOUS THINKING ROUNDS",
)

_INVISIBLE = "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\U000e0000-\U000e007f"
_SURROGATES = "\ud800-\udfff"
_LINE_ENDS = "\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_TO_NEWLINE = re.compile(f"\r\n|[{_LINE_ENDS}]")
_REMOVED = re.compile(f"[{_INVISIBLE}]")
_NOT_TEXT = re.compile(f"[{_SURROGATES}]")
_NOT_CANONICAL = f"{_LINE_ENDS}{_INVISIBLE}{_SURROGATES}"
_CHANGED = re.compile(f"[{_NOT_CANONICAL}]")
# A colon after a Chinese or Japanese character ends no line head, and stands in every second sentence.
_SUSPECT = re.compile(
    f"[{re.escape(SQUARE + ANGLE + COLONS)}{_NOT_CANONICAL}](?<![\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff][{COLONS}])"
)

# What may stand between the letters of a name, between a bracket and a name, and before the slash of a closing tag.
_GAP = r"[ _\n\\]*+"
_LEAD = r"[ _\n\\/]*+"
_CLOSING = rf"{_GAP}/{_LEAD}"
_NAME_ENDS = "(?!_*+[a-z])"


def spelled(*names: str, gap: str = _GAP, letter: Callable[[str], str] = fold) -> str:
    """A pattern for names as they look when folded, whatever stands between their letters."""
    return "|".join(gap.join(letter(char) for char in name if char not in "_ ") for name in names)


def _ascii(*looks: str) -> str:
    """A pattern for the ASCII characters that pass for one of these, in a text that is not folded."""
    wanted = {fold(look) for look in looks}
    return f"[{re.escape(''.join(char for char in map(chr, range(128)) if fold(char) in wanted))}]"


_BLOCK = f"(?:{spelled(*BLOCK_TAGS)})"
_CALL = f"{spelled(TOOL_USE)}{_GAP}:"
_INPUT, _TIME = (spelled(name) for name in ELEMENTS)
# Two patterns, because one that starts with a plain character is searched for ten times as fast. A tag in the other
# kind of bracket counts as well. What code is full of does not: `a < current_time`, `schedule[current_time]`,
# `Vec<Capabilities>`, `<current_timestamp>`.
_SQUARE_TAG = re.compile(
    rf"\[(?:{_LEAD}(?:{_BLOCK}|{_CALL})"
    rf"|{_CLOSING}(?:{_INPUT}|{_TIME}){_NAME_ENDS}"
    rf"|(?<![a-z_\]]\[){_LEAD}(?:{_INPUT}|{_TIME}){_GAP}\])"
)
_ANGLE_TAG = re.compile(
    rf"<(?:{_LEAD}(?:{_INPUT}|{_CALL}|{_TIME}{_GAP}>)"
    rf"|{_CLOSING}(?:{_BLOCK}|{_TIME}){_NAME_ENDS}"
    rf"|(?<![a-z_\]]<)(?:{_LEAD}{_BLOCK}{_NAME_ENDS}|[_\\]*+{_TIME}{_NAME_ENDS}[^<>\n]*+>))"
)
# Whether it is one turns on the number, which is looked at in the text; an index such as `board[turn1]` is none.
_TURN_TAG = re.compile(rf"\[{_LEAD}(?:{spelled(TURN)})(?P<number>[^\[\]]*+)\]")
_INDEXED = re.compile(r"[\w\])]\Z")
_HEAD_GAP = "[ _]*+"
# Perhaps a time in brackets, a speaker and a colon. A mark may stand here and where `_HEAD` has its run.
_MEMORY_HEAD = rf"(?:\\*+[\[<][^\[\]<>\n]*+[\]>]{_HEAD_GAP})?(?:{spelled(*SPEAKERS, gap=_HEAD_GAP)}){_HEAD_GAP}:"
# What may stand behind a title or a bar: symbols, but no letter, to the end of the line; marks, too.
_END = r"[ _#=:;?/<>\[\]\\]*+(?=\n|\Z)"
# One to six number signs and a title.
_HEADING = rf"#(?:{_HEAD_GAP}#){{0,5}}+{_HEAD_GAP}(?:{spelled(*HEADINGS, gap=_HEAD_GAP)}){_END}"
# A title between two bars of two or more equals signs.
_BAR = rf"=(?:{_HEAD_GAP}=)++"
_BANNER = rf"{_BAR}{_HEAD_GAP}(?:{spelled(*BANNERS, gap=_HEAD_GAP)})[ _#:;?]*+{_BAR}{_END}"
_HEAD = rf"(?P<run>\\*+){_HEAD_GAP}(?:{_MEMORY_HEAD}|{_HEADING}|{_BANNER})"
_FIRST_HEAD = re.compile(_HEAD)
_LATER_HEAD = re.compile("\n" + _HEAD)
# Number signs, equals signs and colons are common, so a text without other suspects is not folded for the sake of one.
# That a title follows or a speaker precedes them, or in other text than ASCII could, is enough to look more closely.
_ASCII_GAP = _ascii(" ", "_") + "*+"
_ASCII_TITLES = {
    sign: f"{sign}{_ascii(sign, ' ', '_')}*+(?:{spelled(*titles, gap=_ASCII_GAP, letter=_ascii)})"
    for sign, titles in (("#", HEADINGS), ("=", BANNERS))
}
_ASCII_SPEAKER = f"(?:{spelled(*SPEAKERS, gap=_ASCII_GAP, letter=_ascii)}){_ASCII_GAP}:"
_ASCII_HEAD = rf"\\*+{_ASCII_GAP}(?:{'|'.join(_ASCII_TITLES.values())}|{_ASCII_SPEAKER})"
_FIRST_ASCII_HEAD = re.compile(_ASCII_HEAD)
_LATER_ASCII_HEAD = re.compile("\n" + _ASCII_HEAD)


def _shortest(titles: Sequence[str]) -> int:
    return min(len(title.replace(" ", "")) for title in titles)


_FROM_SIGN = {sign: re.compile(f"{sign}[^\n]{{{_shortest(HEADINGS)},}}+") for sign in NUMBER_SIGNS}
_HEADING_ONLY = re.compile(_HEADING)
_BETWEEN = f"[^\n{EQUALS_SIGNS}]"
_MAYBE_BANNER = re.compile(
    f"[{EQUALS_SIGNS}]{_BETWEEN}*+[{EQUALS_SIGNS}]{_BETWEEN}{{{_shortest(BANNERS)},}}+"
    f"[{EQUALS_SIGNS}]{_BETWEEN}*+[{EQUALS_SIGNS}]"
)


def canonical(text: str) -> str:
    r"""`text` with every line end as `\n` and without the invisible characters that could hide a tag.

    Removed are U+E0000-E007F, the bidirectional controls, U+200B, U+2060 and U+FEFF. Joiners and variation selectors
    stay: Persian and emoji need them. A lone surrogate, which no UTF-8 can carry, becomes U+FFFD.
    """
    if text.isascii():
        return _TO_NEWLINE.sub("\n", text) if _has_ascii_line_end(text) else text
    if not _CHANGED.search(text):
        return text
    return _NOT_TEXT.sub("\ufffd", _REMOVED.sub("", _TO_NEWLINE.sub("\n", text)))


def one_line(text: str) -> str:
    """`text` in canonical form and on one line, with one space for whatever white space there is."""
    # Canonical first: it makes line ends of other characters, too.
    return " ".join(canonical(text).split())


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
    return (with_marks(text, places), len(places)) if places else (text, 0)


def are_plain(texts: Sequence[str]) -> bool:
    """Whether `escape` surely leaves each of these texts as it is. False where that has to be looked at one by one.

    What looks like structure in one of them does so behind a line end too, so that they can be looked at together.
    """
    return _is_plain("\n".join(texts))


def with_marks(text: str, places: Sequence[int]) -> str:
    """`text` with a backslash at each of these places, which are in ascending order."""
    return "\\".join(text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True))


def unescape(text: str) -> str:
    """The text that `escape` was given, in canonical form: takes one backslash away from every marked place."""
    marked = [place for place in _places(text) if place and text[place - 1] == "\\"]
    starts = [0, *marked]
    ends = [*(place - 1 for place in marked), len(text)]
    return "".join(text[start:end] for start, end in zip(starts, ends, strict=True))


def _is_plain(text: str) -> bool:
    if text.isascii():
        # Each of these is one scan in C.
        return not ("[" in text or "<" in text or _has_ascii_line_end(text) or _has_ascii_head(text))
    return not (_SUSPECT.search(text) or _has_heading(text) or _may_have_banner(text))


def _has_ascii_line_end(text: str) -> bool:
    return "\r" in text or "\x0b" in text or "\x0c" in text or "\x1c" in text or "\x1d" in text or "\x1e" in text


def _has_ascii_head(text: str) -> bool:
    if not (":" in text or "#" in text or "=" in text):
        return False
    return bool(_FIRST_ASCII_HEAD.match(text) or ("\n" in text and _LATER_ASCII_HEAD.search(text)))


def _has_heading(text: str) -> bool:
    lines = (line for sign, rest in _FROM_SIGN.items() if sign in text for line in rest.findall(text))
    return any(_HEADING_ONLY.match(fold(line)) for line in lines)


def _may_have_banner(text: str) -> bool:
    # Looking for one sign after the other is five times as fast as looking for all at once.
    return any(sign in text for sign in EQUALS_SIGNS) and bool(_MAYBE_BANNER.search(text))


def _places(text: str) -> list[int]:
    """Where marks belong, in order: before the bracket of a tag, after the backslashes at the start of a line head."""
    folded = fold(text)
    places: set[int] = set()
    if "[" in folded:
        places = {match.start() for match in _SQUARE_TAG.finditer(folded)}
        places.update([match.start() for match in _TURN_TAG.finditer(folded) if _is_turn(text, match)])
    if "<" in folded:
        places.update([match.start() for match in _ANGLE_TAG.finditer(folded)])
    if ":" in folded or "#" in folded or "=" in folded:
        if first := _FIRST_HEAD.match(folded):
            places.add(first.end("run"))
        places.update(match.end("run") for match in _LATER_HEAD.finditer(folded))
    return sorted(places)


def _is_turn(text: str, match: re.Match[str]) -> bool:
    start, (first, end) = match.start(), match.span("number")
    is_index = not {" ", "\n"} & {*match["number"]} and _INDEXED.match(text[max(start - 1, 0) : start])
    return not is_index and passes_for_number(text[first:end])


class CountingEscape:
    """`escape` that remembers, for the manifest, how many places it marked."""

    def __init__(self) -> None:
        self.marked = 0

    def __call__(self, text: str) -> str:
        """`escape(text)`."""
        escaped, count = escape_counted(text)
        self.marked += count
        return escaped
