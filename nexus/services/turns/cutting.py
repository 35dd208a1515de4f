"""Cutting long text into pieces of which none is lost, where a reader would. Pure.

What fits is counted in bytes of UTF-8 as JSON writes the text, since that is how a model is given it. A token is taken
for three bytes: English has four or more in one, Chinese three, and dense data two, so that a prompt which is too long
all the same is asked for again in smaller parts.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final

BYTES_A_TOKEN: Final = 3

# A point within a number, or before a small letter, ends nothing. A run of marks is taken whole or not at all: to try
# each of its parts would take quadratic time.
_SENTENCE_END: Final = re.compile(
    r"""(?<![.!?…])[.!?…]++["'”’)\]]*+(?=\s++[^\s\da-zß-ÿ])|[。！？]++[”’」』）]*+""",
)


def as_json(value: Any) -> str:
    """The text that a model is given. Half surrogate pairs become `?`."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


def size(value: Any) -> int:
    """How many bytes `as_json` of it has."""
    return len(as_json(value).encode())


def leading(text: str, most: int) -> str:
    """The first sentences of a text: as many as have `most` characters together, the first one in any case."""
    ends = [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return text[: max((end for end in ends if end <= most), default=ends[0])]


def slices(text: str, room: int) -> Iterator[str]:
    """Pieces of which none needs more than `room` bytes and which put together are the text.

    Cut after a line, else after a sentence, else after a word, as long as more than half of the room is used; else
    anywhere. A piece has one character at least, whatever the room.
    """
    begin, room = 0, max(room, 1)
    while begin < len(text):
        # A character needs a byte or more.
        window = text[begin : begin + room + 1]
        fits = max(bisect_right(range(len(window) + 1), room, key=lambda count: size(window[:count])) - 1, 1)
        length = fits if fits == len(window) and begin + fits == len(text) else _cut(window[:fits])
        yield text[begin : begin + length]
        begin += length


def _cut(window: str) -> int:
    """How much of a window makes a piece."""
    half = len(window) // 2
    if line := window.rfind("\n", half) + 1:
        return line
    if sentence := max((match.end() for match in _SENTENCE_END.finditer(window, half)), default=0):
        return sentence
    return window.rfind(" ", half) + 1 or len(window)
