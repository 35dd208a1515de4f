"""A line of a summary in fewer words: what came of a run is kept before what led to it. Pure.

    Asked: I like trains. When does the first one go? Tools: f gave first: 9:02. Answered: Sure. It goes at 9:02.
    Asked: When does the first one go? Answered: It goes at 9:02.

A line has parts, each behind what says what it is. Sentences with figures and names come before others, in the answer
first, then in what was asked; so what is left, however short, says what is known now. The same text gives the same.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nexus.services.turns.digest import excerpt, figures
from nexus.services.turns.sentences import GAP, clip, one_line, sentences, weight

ASKED: Final = "Asked: "
TOOLS: Final = "Tools: "
DECIDED: Final = "Decided: "
ANSWERED: Final = "Answered: "
SAID: Final = "Said: "
# Of which part the best sentence is told first.
_BY_WORTH: Final = (ANSWERED, SAID, ASKED, TOOLS, "", DECIDED)
_LABEL: Final = re.compile(rf"(?:\A| )({'|'.join(filter(None, _BY_WORTH))})")
# A word with a capital that begins no sentence, or one that holds a sign as names of files and versions do.
_NAME: Final = re.compile(r"(?<=[\w,;:(] )[^\W\d_a-z]\w+|\w+[/_@-]\w+|\w+\.\w+", re.ASCII)
# Where what tools did is divided: names of tools are in lower case, which begins no sentence elsewhere.
_CALLS: Final = re.compile(r"(?<=[.!?…。！？]) (?=\S+ (?:\(|gave |failed|has no result)|Also used )")
_ASKS: Final = re.compile(r"[?？]\W*\Z")
# With less a sentence says nothing.
_LEAST: Final = 24
# Where there is room for more than this, the best sentence leaves some of it to what was asked.
_FOR_ONE: Final = 120
_BETWEEN: Final = f" {GAP} "


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence of a line.

    Attributes:
        part, place: where it stands: the number of its part, and which it is of that.
        label: of its part.
    """

    part: int
    place: int
    label: str
    text: str

    @property
    def worth(self) -> int:
        """How much it says; more of what was asked for than of what was told beside it."""
        asks = _ASKS.search(self.text[-8:]) is not None
        if self.label == ASKED:
            return asks
        return 0 if asks else min(2 * len(figures(self.text)) + len(_NAME.findall(self.text)), 6)


def shorter(line: str, room: int) -> str:
    """A line of at most this weight, if that is eight or more. One that has it is not changed."""
    if weight(line) <= room:
        return line
    found = list(_read(line))
    kept: dict[_Sentence, str] = {}
    told: set[int] = set()
    left = room
    for rank, sentence in enumerate(_in_order(found)):
        is_more, size = sentence.part in told, weight(sentence.text)
        needed = len(_BETWEEN) + (0 if is_more else weight(sentence.label))
        most = left - needed if rank or room <= _FOR_ONE else room * 2 // 3
        # Of a part one sentence may be cut, where that says anything.
        if most >= (size if is_more else min(_LEAST, size)):
            kept[sentence] = excerpt(sentence.text, most)
            told.add(sentence.part)
            left -= needed + weight(kept[sentence])
    return clip(_joined(found, kept) or one_line(line), room)


def _read(line: str) -> Iterator[_Sentence]:
    before, *labelled = _LABEL.split(line)
    parts = [("", before), *zip(labelled[::2], labelled[1::2], strict=True)]
    for part, (label, text) in enumerate(parts):
        texts = _CALLS.split(text) if label == TOOLS else sentences(text)
        for place, sentence in enumerate(texts):
            yield _Sentence(part, place, label, sentence)


def _in_order(found: Sequence[_Sentence]) -> list[_Sentence]:
    """The best sentence of each part, then the others."""
    by_worth = sorted(found, key=lambda sentence: (-sentence.worth, sentence.part, sentence.place))
    best: dict[str, _Sentence] = {}
    for sentence in by_worth:
        best.setdefault(sentence.label, sentence)
    first = [best[label] for label in _BY_WORTH if label in best]
    taken = {*first}
    return [*first, *(sentence for sentence in by_worth if sentence not in taken)]


def _joined(found: Sequence[_Sentence], kept: dict[_Sentence, str]) -> str:
    """What is kept, each part behind its label, with a mark between sentences where some are left out."""
    text, before = "", None
    for sentence in (sentence for sentence in found if sentence in kept):
        if before is None or before.part != sentence.part:
            text += f"{' ' if text else ''}{sentence.label}"
        else:
            text += " " if before.place + 1 == sentence.place or text.endswith(GAP) else _BETWEEN
        text += kept[sentence]
        before = sentence
    return text
