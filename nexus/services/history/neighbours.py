"""Neighbouring messages, between whose texts no structure may come about (contract §4.7). Pure.

Providers make one message of neighbours of one side of the conversation, or join them in the prompt that the model
reads: by nothing, or by white space. Each text is escaped by itself; here each is seen as it stands behind the others.
A message stays the same whatever comes after it, so that prompt caches hold.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from nexus.services.text.escape import PARTING, Seam


class Neighbours:
    """A list of messages in the OpenAI form in the making, which goes on after the messages `after`."""

    def __init__(self, after: Sequence[Mapping[str, Any]] = ()) -> None:
        self._side = ""
        self._seam = Seam()
        # The texts of the other side are apart from all that is behind them.
        last = list(takewhile(lambda message: _side(message) == _side(after[-1]), reversed(after)))
        self.parted(last[::-1])

    def parted(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The next messages, with `PARTING` before each text that would complete structure begun before it."""
        return [self._next(message) for message in messages]

    def _next(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if _side(message) != self._side:
            self._side, self._seam = _side(message), Seam()
        text = message["content"]
        return {**message, "content": self._seam.join(text)} if text else dict(message)


def count_parted(messages: Sequence[Mapping[str, Any]]) -> int:
    """The number of messages with `PARTING`."""
    return sum((message["content"] or "").startswith(PARTING) for message in messages)


def _side(message: Mapping[str, Any]) -> str:
    """The side to which a provider counts a message; a system message or a result may stand with the user's texts."""
    return "assistant" if message["role"] == "assistant" else "user"
