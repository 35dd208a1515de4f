"""The gist of a text within a weight: its first and last sentence, and those with figures. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from nexus.services.turns.sentences import (
    GAP,
    beginning,
    between_words,
    clip,
    is_ended,
    is_plain,
    joint,
    one_line,
    sentences,
    weight,
)

_NUMERALS: Final = "〇零一二三四五六七八九十百千万亿"
# A Chinese numeral by itself is most often part of a word.
_NUMBER = re.compile(rf"\d(?:[\d.,:/%\u2013-]*[\d%])?|[{_NUMERALS}]{{2,}}")
# The words around a number that are kept of a sentence that is too long: what is counted stands behind it.
_BEFORE, _BEHIND = 32, 24
# Below this weight a part of a sentence says nothing.
_LEAST: Final = 24
# The first sentence and the last leave some room to the others.
_ENDS: Final = 2
# Of a text without any letter or number, so many characters are looked at.
_MOST: Final = 4_096
_BETWEEN: Final = f" {GAP} "


def figures(text: str) -> list[str]:
    """The numbers in `text`, as they are written."""
    return _NUMBER.findall(text)


def has_figure(text: str) -> bool:
    """Whether there is a number in `text`."""
    return _NUMBER.search(text) is not None


def digest(text: str, room: int) -> str:
    """One line of at most this weight: all of `text`, or its first and last sentence and those with figures.

    What is left out is marked by `...`. Where there is room for little, the first sentence counts most, then the last.
    """
    if len(line := text.strip()) <= room and is_plain(line):
        return line
    pieces = list(sentences(text)) or [clip(one_line(text[:_MOST]), room)]
    if sum(map(len, pieces)) <= room and weight(whole := _joined(pieces, dict(enumerate(pieces)))) <= room:
        return whole
    kept: dict[int, str] = {}
    left = room - len(_BETWEEN)
    for rank, index in enumerate(_by_worth(pieces)):
        if left < _LEAST:
            break
        kept[index] = excerpt(pieces[index], min(left, room * 2 // 5) if rank < _ENDS < len(pieces) else left)
        left -= weight(kept[index]) + len(_BETWEEN)
    return _joined(pieces, kept) if kept else clip(f"{pieces[0]} {GAP}", room)


def excerpt(sentence: str, room: int) -> str:
    """A line of at most this weight: the sentence, or its beginning and its numbers with the words around them."""
    if len(sentence) <= room and weight(sentence) <= room:
        return sentence
    spans = [(0, between_words(sentence, beginning(sentence, room // 3)))]
    left = room - weight(sentence[: spans[0][1]]) - len(GAP)
    for number in _NUMBER.finditer(sentence):
        _, known = spans[-1]
        if number.end() <= known:
            continue
        start, end = _with_words(sentence, number, room)
        start = max(start, known)
        left -= weight(sentence[start:end]) + len(_BETWEEN)
        if left < 0:
            break
        if start == known:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    if len(spans) == 1 and spans[0][1] <= room // 3:
        return clip(sentence, room)
    kept = _BETWEEN.join(sentence[start:end].strip() for start, end in spans)
    return kept if spans[-1][1] == len(sentence) else f"{kept}{GAP}"


def _with_words(sentence: str, number: re.Match[str], room: int) -> tuple[int, int]:
    """Where the number and the words around it begin and end; where there is little room, there are fewer words."""
    before = sentence[max(number.start() - _BEFORE, 0) : number.start()]
    behind = sentence[number.end() : number.end() + _BEHIND]
    start = number.start() - beginning(before[::-1], min(_BEFORE, room // 4)) if before else 0
    end = number.end() + beginning(behind, min(_BEHIND, room // 5)) if behind else number.end()
    return between_words(sentence, max(start, 0)), max(between_words(sentence, end), number.end())


def _by_worth(pieces: Sequence[str]) -> Iterator[int]:
    """The places of the first whole sentence, the last, and those with figures; of equal ones the first."""
    seen: set[str] = set()
    first = next((index for index, piece in enumerate(pieces) if is_ended(piece)), 0)
    others = (index for index, piece in enumerate(pieces) if has_figure(piece))
    for index in (first, len(pieces) - 1, *others):
        if pieces[index] not in seen:
            seen.add(pieces[index])
            yield index


def _joined(pieces: Sequence[str], kept: Mapping[int, str]) -> str:
    """What is kept of these sentences, in their order, with a mark where some are left out."""
    line, after = "", 0
    for index in sorted(kept):
        if index != after:
            line += f" {GAP} " if line and not line.endswith(GAP) else " " if line else f"{GAP} "
        elif line:
            line += joint(line)
        line += kept[index]
        after = index + 1
    return line if after == len(pieces) or line.endswith(GAP) else f"{line} {GAP}"
