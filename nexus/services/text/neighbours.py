"""Neighbouring messages, between whose texts no structure may come about (contract §4.7). Pure.

Providers make one message of neighbours of one side of the conversation, or join them in the prompt that the model
reads: trimmed or not, by nothing or by blanks. Each text is escaped by itself; here each is seen as it stands behind
the others. A message stays the same whatever comes after it, so that prompt caches hold.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any, Final

from nexus.services.text.escape import ANGLE_TAG, FIRST_HEAD, PARTING, SQUARE_TAG, TURN_SEEN, fold

# Folded characters, without repetitions, in which a token that is not complete may have begun.
_UNFINISHED: Final = 128
_REPEATED: Final = re.compile(r"[ _\n\\]{2,}|={3,}")


class Neighbours:
    """A list of messages in the OpenAI form in the making, which goes on after the messages `after`."""

    def __init__(self, after: Sequence[Mapping[str, Any]] = ()) -> None:
        self._side = ""
        # The ends of the texts of this side so far as `_folded_part` gives them, but for the last text, which is whole.
        self._ends: list[str] = []
        self._last = ""
        # The texts of the other side are apart from all that is behind them.
        last = list(takewhile(lambda message: _side(message) == _side(after[-1]), reversed(after)))
        self.parted(last[::-1])

    def parted(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The next messages, with `PARTING` before each text that would complete structure begun before it."""
        return [self._next(message) for message in messages]

    def _next(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if _side(message) != self._side:
            self._side, self._ends, self._last = _side(message), [], ""
        text = message["content"]
        return {**message, "content": self._join(text)} if text else dict(message)

    def _join(self, text: str) -> str:
        if end := _folded_part(self._last, last=True):
            self._ends.append(end)
        while sum(map(len, self._ends[1:])) >= _UNFINISHED:
            del self._ends[0]
        if self._ends and _completes(self._ends, _folded_part(text)):
            self._ends = []
            text = f"{PARTING}{text}"
        self._last = text
        return text


def count_parted(messages: Sequence[Mapping[str, Any]]) -> int:
    """The number of messages with `PARTING`."""
    return sum((message["content"] or "").startswith(PARTING) for message in messages)


def _side(message: Mapping[str, Any]) -> str:
    """The side to which a provider counts a message; a system message or a result may stand with the user's texts."""
    return "assistant" if message["role"] == "assistant" else "user"


def _folded_part(text: str, *, last: bool = False) -> str:
    """The first, or last, characters of a text as they look, trimmed and without repetitions."""
    size = _UNFINISHED
    while True:
        part = _REPEATED.sub(_once, fold(text[-size:] if last else text[:size]))
        if len(part) >= _UNFINISHED * 3 // 4 or size >= len(text):
            return part.strip("\n ")
        # Linear time: each part is several times as long as the one before.
        size *= 4


def _once(repeated: re.Match[str]) -> str:
    run = repeated[0]
    return next((blank for blank in ("\n", " ") if blank in run), "==" if "=" in run else "_")


def _completes(ends: Sequence[str], text: str) -> bool:
    """Whether a token that begins in `ends` ends in `text`, all as `_folded_part` gives them."""
    before = "".join(ends)
    joined, seam = before + text, len(before)
    # A tag has no other opening bracket in it, the other tokens no line end; each text may begin a line.
    bracket, line = max(before.rfind("["), before.rfind("<")), before.rfind("\n") + 1
    lines = {line, *accumulate(map(len, ends), initial=0)}
    begun = [(tag, bracket) for tag in (SQUARE_TAG, ANGLE_TAG, TURN_SEEN) if bracket >= 0]
    # What begins with the last text has its mark.
    begun += [(FIRST_HEAD, start) for start in lines if start >= line and before[start:].strip(" _\\")]
    return any((match := token.match(joined, start)) and match.end() > seam for token, start in begun)
