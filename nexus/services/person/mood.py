"""The mood of a person, guessed from their own recent words by the rules of a lexicon (contract §15). Pure.

- Every message is read by itself: words of a mood, stronger or weaker by what stands around them, and turned by a
  negation. Words about others and things count less. Irony is not understood.
- Code, quotations, addresses and logs are passed over, and so is the middle of a long text: it is seldom the person's.
- A mood fades with time, and with every message since. It is told only where it is plain.

Any text takes linear time, and the same messages give the same mood.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Literal, NamedTuple

from nexus.services.history.messages import HistoryMessage
from nexus.services.person import lexicon
from nexus.services.person.lexicon import Label
from nexus.services.text.escape import canonical

Trend = Literal["rising", "steady", "fading"]

HALF_LIFE: Final = timedelta(hours=6)
# What is left of a mood when another message has been said.
_KEPT: Final = 0.8
# The messages that are read, the current input among them: those before it have less than 0.02 of their weight.
_MOST_MESSAGES: Final = 20
# A message says no more of one mood than this, however long it is.
_MOST_OF_MESSAGE: Final = 8.0
# One plain word of the person's own, said now and alone, has just this confidence.
LEAST_CONFIDENCE: Final = 0.5
_DOUBT: Final = 2.0
# The difference to what was said before that makes a trend.
_CHANGE: Final = 1.0

_STRONGER: Final = 1.5
_WEAKER: Final = 0.5
_NEGATED: Final = 0.7
_TWICE_NEGATED: Final = 0.5
_OF_OTHERS: Final = 0.3
_EXCLAIMED: Final = (1.25, 1.5)
# Words that may stand between a negation, or a word of degree, and what it belongs to.
_REACH: Final = 3

# Characters at each end of a text that are read.
_END: Final = 600
_CJK: Final = "\u3400-\u9fff"
_TOKEN: Final = re.compile(rf"[^\W\d_{_CJK}]+(?:'[^\W\d_{_CJK}]+)*|[{_CJK}]|[!！]+|[^\w\s]|\n")
_WORD: Final = re.compile(r"[^\W\d_]")
_PAUSES: Final = frozenset(",;:、，；：—()（）")
_STOPS: Final = frozenset(".?。？…\n")
_LETTERS_IN_A_ROW: Final = re.compile(r"([a-z])\1{2,}")
_CHARACTERS_IN_A_ROW: Final = re.compile(rf"([{_CJK}])\1{{2,}}")
_FENCED: Final = re.compile(r"^[ \t>]*(```|~~~).*?(?:^[ \t>]*\1[^\n]*|\Z)", re.MULTILINE | re.DOTALL)
# Lines that are quoted, code or logged, and a mood that comes back where a context is sent as a message.
_NOT_SAID: Final = re.compile(
    r"^(?:[ \t]*(?:[>|]|\[mood\b|\d{2,4}[-:/]\d\d|(?:panic|error|fatal|warning|traceback)\b[^\n]*:)| {4}|\t"
    r"|(?:[^\n{}<>=;\\]*+[{}<>=;\\]){3})[^\n]*",
    re.MULTILINE,
)
_QUOTED: Final = re.compile(
    r"`[^`\n]{1,200}`|\"[^\"\n]{1,200}\"|“[^”\n]{1,200}”|「[^」\n]{1,200}」|『[^』\n]{1,200}』|《[^》\n]{1,200}》"
    r"|(?:https?://|www\.)\S+"
)
_TO_PLAIN: Final = str.maketrans(lexicon.TRADITIONAL + "’", lexicon.SIMPLIFIED + "'")


@dataclass(frozen=True, slots=True)
class Mood:
    """What a person seems to feel.

    Attributes:
        confidence: above 0, below 1, with two decimals.
        sources: ids of the messages that say so, oldest first.
    """

    label: Label
    trend: Trend
    confidence: float
    sources: tuple[str, ...] = ()


def mood_of(said: str, source: str, at: datetime, earlier: Iterable[HistoryMessage] = ()) -> Mood | None:
    """The mood that shows in what a person says at a moment and said before; None where none is plain.

    Args:
        said: the current input.
        source: the id of its message.
        at: when it was said, in UTC.
        earlier: messages before it, newest first, of any role: those of role `user` count.
    """
    current = strengths(said)
    # By label, what each message adds; and what a message before would add that speaks of nothing else.
    scores, before, most_before = defaultdict[Label, float](float, current), defaultdict[Label, float](float), 0.0
    read = [(source, current)]
    age = timedelta(0)
    humans = (item for item in earlier if item.role == "user")
    for place, item in enumerate(islice(humans, _MOST_MESSAGES - 1)):
        # One without a time is as old as the one behind it.
        age = max(at - item.moment, timedelta(0)) if item.moment else age
        faded = _KEPT**place * 0.5 ** (age / HALF_LIFE)
        found = strengths(item.text)
        most_before += _KEPT**place
        for label, strength in found.items():
            scores[label] += _KEPT * faded * strength
            before[label] += faded * strength
        read.append((item.source, found))
    # Of equal moods the first in the lexicon's order.
    label = max(lexicon.FEELINGS, key=lambda each: scores[each])
    confidence = round(scores[label] / (sum(scores.values()) + _DOUBT), 2)
    if confidence < LEAST_CONFIDENCE:
        return None
    change = current.get(label, 0.0) - before[label] / most_before if most_before else 0.0
    trend: Trend = "rising" if change >= _CHANGE else "fading" if change <= -_CHANGE else "steady"
    sources = [source for source, found in reversed(read) if source and label in found]
    return Mood(label, trend, confidence, tuple(sources))


def strengths(text: str) -> Mapping[Label, float]:
    """How much a message says of each mood, from 0 to 8: one plain word is 2. Moods that it does not name are missing.

    In the order of the lexicon.
    """
    reader = _Reader()
    tokens = _TOKEN.findall(_own_words(text))
    at = 0
    while at < len(tokens):
        size, term = _longest(tokens, at)
        reader.read(term, tokens[at])
        at += size
    found = defaultdict[Label, float](float)
    for label, strength in reader.found:
        found[label] += strength
    return {label: min(found[label], _MOST_OF_MESSAGE) for label in lexicon.FEELINGS if label in found}


def _own_words(text: str) -> str:
    """The part of a message that the person is likely to have said, in lower case and simplified characters."""
    plain = canonical(text).lower().translate(_TO_PLAIN)
    plain = _NOT_SAID.sub("", _FENCED.sub("", plain))
    if len(plain) > 2 * _END:
        plain = f"{plain[:_END]}\n{plain[-_END:]}"
    plain = _QUOTED.sub(",", plain).replace("-", " ")
    return _CHARACTERS_IN_A_ROW.sub(r"\1\1", _LETTERS_IN_A_ROW.sub(r"\1", plain))


_Kind = Literal["feeling", "nothing", "negator", "degree", "behind", "myself", "other", "thing", "turn"]


class _Term(NamedTuple):
    """An entry of the lexicon: `value` is its strength, or the factor of a degree."""

    kind: _Kind
    value: float = 1.0
    label: Label | None = None


class _Reader:
    """Reads the tokens of one message, and keeps the moods that it finds, each with its strength."""

    def __init__(self) -> None:
        self.found: list[tuple[Label, float]] = []
        self._clause = self._sentence = 0
        self._about: Literal["", "myself", "other", "thing"] = ""
        self._degree, self._negations, self._reach = 1.0, 0, 0

    def read(self, term: _Term | None, token: str) -> None:
        """Take the next token, or the term that begins with it."""
        kind = term.kind if term else "nothing"
        if term and term.label:
            self._feel(term.label, term.value)
        elif term and kind in {"degree", "negator"}:
            self._degree *= term.value
            self._negations += kind == "negator"
            self._reach = _REACH
            return
        elif term and kind == "behind":
            self._strengthen(self._clause if len(self.found) == self._clause else len(self.found) - 1, term.value)
        elif kind in {"myself", "other"} or (kind == "thing" and self._about == ""):
            self._about = kind
        elif token in _PAUSES or kind == "turn":
            self._pause()
        elif token in _STOPS or token[0] in "!！":
            self._stop(token)
        if term or _WORD.match(token):
            self._reach -= 1
        if self._reach < 0:
            self._degree, self._negations = 1.0, 0

    def _feel(self, label: Label, strength: float) -> None:
        felt: Label | None = label
        if self._negations:
            # What is "not very happy" is not very unhappy.
            is_turned = self._negations % 2 == 1
            felt = lexicon.NEGATED.get(label) if is_turned else label
            strength *= _NEGATED if is_turned else _TWICE_NEGATED
        else:
            strength *= min(max(self._degree, _WEAKER), _STRONGER**2)
        if felt:
            self.found.append((felt, strength * (_OF_OTHERS if self._about in {"other", "thing"} else 1.0)))
        self._degree = 1.0

    def _strengthen(self, start: int, factor: float) -> None:
        self.found[start:] = [(label, strength * factor) for label, strength in self.found[start:]]

    def _pause(self) -> None:
        self._degree, self._negations, self._clause = 1.0, 0, len(self.found)
        self._about = "" if self._about == "thing" else self._about

    def _stop(self, token: str) -> None:
        if token[0] in "!！":
            self._strengthen(self._sentence, _EXCLAIMED[len(token) > 1])
        self._pause()
        self._about, self._sentence = "", len(self.found)


def _terms() -> Iterator[tuple[str, _Term]]:
    for label, by_strength in lexicon.FEELINGS.items():
        for strength, entries in by_strength.items():
            yield entries, _Term("feeling", strength, label)
    yield lexicon.NOTHING, _Term("nothing")
    yield lexicon.NEGATORS, _Term("negator")
    yield lexicon.STRONGER, _Term("degree", _STRONGER)
    yield lexicon.WEAKER, _Term("degree", _WEAKER)
    yield lexicon.STRONGER_BEHIND, _Term("behind", _STRONGER)
    yield lexicon.MYSELF, _Term("myself")
    yield lexicon.OTHERS, _Term("other")
    yield lexicon.THINGS, _Term("thing")
    yield lexicon.TURNS, _Term("turn")


# By their tokens.
_TERMS: Final = {
    tuple(_TOKEN.findall(entry.strip())): term for entries, term in _terms() for entry in entries.split(",")
}
# By the first token of entries, how many tokens the longest of them has.
_LONGEST: Final[dict[str, int]] = {}
for _tokens in _TERMS:
    _LONGEST[_tokens[0]] = max(_LONGEST.get(_tokens[0], 0), len(_tokens))


def _longest(tokens: Sequence[str], at: int) -> tuple[int, _Term | None]:
    """The longest term that begins there, and the number of its tokens; 1 and None for none."""
    for size in range(_LONGEST.get(tokens[at], 0), 0, -1):
        if term := _TERMS.get(tuple(tokens[at : at + size])):
            return size, term
    return 1, _Term("negator") if tokens[at].endswith("n't") else None
