"""Sentences of any text, and texts cut without tearing a word, a number or a character. Pure.

- The **weight** of a text is its length in UTF-8: four bytes are about a token, in English as in Chinese.
- The **size** of a value is its length in UTF-8 as the JSON that a model is given. For a prompt a token counts as three
  bytes: English has four or more in one, Chinese three, dense data two. A prompt that is too long all the same is
  repeated in smaller parts.
"""

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from nexus.services.text import escape

GAP: Final = "..."
BYTES_A_TOKEN: Final = 3
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CLOSING: Final = "\"'”’」』）】)\\]*_"
_FULL_WIDTH: Final = ("。", "！", "？", "”", "」", "』")
# Marks that end a sentence whatever follows: of Chinese, Japanese, Hindi, Arabic, Urdu, Amharic, Khmer and Burmese.
_STOPS: Final = "。！？｡।॥؟۔።។။"
# Begins with one set of characters, which is found in a quarter of the time. Possessive, and not begun again within a
# run of marks: any text takes linear time.
_ENDS = re.compile(
    rf"[{_STOPS}.!?…\n](?:(?<=[{_STOPS}])[{_STOPS}]*+[{_CLOSING}]*+|(?<=\n)\s*+"
    rf"|(?<=[.!?…])(?<![.!?…].)[.!?…]*+[{_CLOSING}]*+(?=\s))"
)
_ENDED = re.compile(rf"[.!?…{_STOPS}][{_CLOSING}]*\Z")
_QUESTION = re.compile(r"[?？؟]\W*\Z")
# The start of a line of Markdown: a heading, a quotation, an entry of a list or of a table.
_MARKUP = re.compile(r"(?:(?:#+|[>*+•‣·-]|\|) +)+")
_WORD = re.compile(r"\w")
_LAST_WORD = re.compile(r"[\w.]*\Z")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_ABBREVIATIONS: Final = frozenset({"al", "approx", "ca", "cf", "dr", "fig", "mr", "mrs", "ms", "prof", "st", "vs"})
# The parts examined of a text of any size: no summary holds more than a few sentences of it.
_FIRST, _LAST = 16_000, 4_000
# The longest abbreviation or marker of a list that is looked for, and a bit more.
_LOOKED_BACK: Final = 12
# A cut may come so much earlier for the sake of a line or sentence: a fifth of the text.
_NEAR: Final = 5
# So far back a cut may move to fall between words, which are shorter where a character says more.
_LONGEST_WORD: Final = 48
_LONGEST_OTHER: Final = 12
_DIGITS = re.compile(r"\d+")
_DIGITS_AT_END = re.compile(r"\d+\Z")
_NUMBER_OR_WORD = re.compile(r"[\dA-Za-z.,:/%+-]")
# Characters that a cut line does not end in.
_HANGING: Final = " ,;:.([，；：、。（"
_JOINER: Final = "\u200d"
_FLAGS: Final = "".join(map(chr, range(0x1F1E6, 0x1F200)))


def printable_line(text: str) -> str:
    """`text` on one line, in canonical form and without control characters."""
    return escape.one_line(_CONTROLS.sub(" ", text))


def weight(text: str) -> int:
    """The length in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def is_ended(text: str) -> bool:
    """Whether a mark ends the sentence."""
    return _ENDED.search(text[-8:]) is not None


def is_question(text: str) -> bool:
    """Whether a question mark ends the sentence."""
    return _QUESTION.search(text[-8:]) is not None


def joint(text: str) -> str:
    """The text between a sentence and the next."""
    if text[-1:] in _FULL_WIDTH:
        return ""
    return " " if is_ended(text) or text.endswith((":", "：")) else "; "


def sentences(text: str) -> Iterator[str]:
    """The sentences of `text`, each on one line, without the marks of Markdown before it.

    A sentence ends with its line, with 。！？, or with . ! ? before a space; not within a number, and, as far as that
    can be told, not after an abbreviation. A piece without letters and figures is no sentence. Of a text of more than
    20,000 characters the middle is left out.
    """
    return iter(_sentences(both_ends(text)) if text else ())


def first_whole(text: str) -> str | None:
    """The first of the sentences that a mark ends, or else the first of them; None where there are none."""
    found = [*sentences(text)]
    return next(filter(is_ended, found), found[0] if found else None)


# A summary takes the same few texts apart again and again.
@lru_cache(maxsize=8)
def _sentences(text: str) -> tuple[str, ...]:
    return tuple(_found(escape.canonical(text)))


def _found(text: str) -> Iterator[str]:
    start = 0
    for end in (*(end.end() for end in _ends(text)), len(text)):
        if _WORD.search(text, start, end):
            yield _tidy(text[start:end])
        start = end


def _ends(text: str) -> Iterator[re.Match[str]]:
    """The marks, or line ends with the space after them, that end a sentence."""
    start = 0
    for end in _ENDS.finditer(text):
        if not (end[0].startswith(".") and _goes_on(text, start, end)):
            yield end
            start = end.end()


def is_blank(text: str) -> bool:
    """Whether nothing of the text would be visible."""
    return not (text and (_WORD.search(text) or printable_line(text[:_FIRST])))


def both_ends(text: str) -> str:
    """The parts examined of a text of any size: all of it, or its beginning and its end."""
    if len(text) <= _FIRST + _LAST:
        return text
    return f"{text[: between_words(text, _FIRST)]} {GAP}\n{text[between_words(text, len(text) - _LAST) :]}"


def _goes_on(text: str, start: int, end: re.Match[str]) -> bool:
    """Whether the full stop is part of an abbreviation, or of the number of an entry in a list."""
    before = text[max(start, end.start() - _LOOKED_BACK) : end.start()]
    found = _LAST_WORD.search(before)
    word = found[0] if found else ""
    if word.isdigit():
        return end.start() - start <= _LOOKED_BACK and before.strip() == word
    following = text[end.end() : end.end() + 2].strip()
    if word.lower() == "no":
        return following.isdigit()
    return word.lower() in _ABBREVIATIONS or following.islower() or bool(_INITIALS.fullmatch(word))


def _tidy(piece: str) -> str:
    line = printable_line(piece)
    markup = _MARKUP.match(line)
    return (line[markup.end() :] if markup else line).removesuffix(" |")


def clip(text: str, room: int) -> str:
    """A line of at most this weight, if that is eight or more: `text`, or its beginning and `...`."""
    if len(text) <= room and weight(text) <= room:
        return text
    at = between_words(text, beginning(text, room - len(GAP)))
    # Half a figure would be another one. A longer run of digits is cut all the same.
    before, behind = _DIGITS_AT_END.search(text, max(at - _LONGEST_WORD, 0), at), _DIGITS.match(text, at)
    if before and behind and len(before[0]) + len(behind[0]) < _LONGEST_WORD:
        at = before.start()
    return f"{text[:at].rstrip(_HANGING)}{GAP}"


def beginning(text: str, room: int) -> int:
    """How many characters from the start have this weight; at least one."""
    return max(len(text[: max(room, 1)].encode("utf-8", "replace")[: max(room, 1)].decode("utf-8", "ignore")), 1)


def between_words(text: str, at: int) -> int:
    """The place at or before `at` where `text` may be cut; `at` itself where no such place is near."""
    if at >= len(text):
        return len(text)
    longest = _LONGEST_WORD if text[max(at - _LONGEST_WORD, 0) : at].isascii() else _LONGEST_OTHER
    lowest = max(at - longest, 0)
    space = text.rfind(" ", lowest, at + 1)
    if space > 0:
        return space
    return next((place for place in range(at, lowest, -1) if _may_cut(text, place)), at)


def break_near(text: str, at: int) -> int:
    """The place at or before `at` where `text` is best cut, near it: behind a line, a sentence or a word, else `at`.

    No character that is written as several code points is cut, unless it is longer than a word.
    """
    if at >= len(text):
        return len(text)
    near = at - at // _NEAR
    window = text[near:at]
    if line := window.rfind("\n") + 1:
        return near + line
    if sentence := max((end.end() for end in _ends(window)), default=0):
        return near + sentence
    place = between_words(text, at)
    back = range(place, max(place - _LONGEST_WORD, 0), -1)
    return next((place for place in back if _between_characters(text, place)), 0 if place < _LONGEST_WORD else place)


def _may_cut(text: str, place: int) -> bool:
    before, after = text[place - 1], text[place]
    if _NUMBER_OR_WORD.match(before) and _NUMBER_OR_WORD.match(after):
        return False
    return _between_characters(text, place)


def _between_characters(text: str, place: int) -> bool:
    before, after = text[place - 1], text[place]
    if before in _FLAGS and after in _FLAGS:
        # Two signs make a flag.
        signs = text[max(place - _LONGEST_WORD, 0) : place]
        return (len(signs) - len(signs.rstrip(_FLAGS))) % 2 == 0
    joins = after == _JOINER or unicodedata.category(after).startswith("M") or "\U0001f3fb" <= after <= "\U0001f3ff"
    return before != _JOINER and not joins


def fitted(writers: Sequence[Callable[[int], str]], room: int, most: int | None = None) -> list[str]:
    """The text of each writer, which takes the most weight that its text may have.

    `room` is for all together, `most` for one, however little the others want; where not all fit, each gets its share.
    """
    texts = [write(room if most is None else min(room, most)) for write in writers]
    wanted = [weight(text) for text in texts]
    return [
        text if share >= want else write(share)
        for text, want, write, share in zip(texts, wanted, writers, shares(wanted, room), strict=True)
    ]


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """The share of each: as much as it wants, or an equal part of `room`; unused room goes to the others."""
    taken = [0] * len(wanted)
    for position, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        taken[index] = min(wanted[index], room // (len(wanted) - position))
        room -= taken[index]
    return taken


def prompt_json(value: Any) -> str:
    """The JSON text that a model is given. Half surrogate pairs become `?`."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


def size(value: Any) -> int:
    """How many bytes `prompt_json` of it has."""
    return len(prompt_json(value).encode())


def leading(text: str, most: int) -> str:
    """The first sentences of a text that have `most` characters together; `""` where the first one has more."""
    ends = [*(end.start() if end[0].isspace() else end.end() for end in _ends(text)), len(text)]
    return text[: max((end for end in ends if end <= most), default=0)]


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
    if sentence := max((end.end() for end in _ends(window) if end.end() > half), default=0):
        return sentence
    return window.rfind(" ", half) + 1 or len(window)
