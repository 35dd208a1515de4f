"""What a run has said itself, where it does not fit into the window: results of its tools go (CONTRACT §7). Pure.

Its messages stay, and so do its calls: only what a tool gave is replaced, by a line that says so. First goes what would
not fit if there were nothing else, then the oldest.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nexus.services.context.tokens import Measure

_LEFT_OUT: Final = (
    "(left out: a result of {count} characters, for which there was no room in the context; what is needed of it has "
    "to be asked for in smaller parts)"
)


def shortened(messages: Sequence[dict[str, Any]], measure: Measure, room: int) -> tuple[list[dict[str, Any]], int]:
    """The messages in so many tokens, as far as that can be brought about, and how many results have gone."""
    tokens = [measure.message(message) for message in messages]
    total, shown, gone = sum(tokens), list(messages), 0
    results = [index for index, message in enumerate(messages) if message["role"] == "tool"]
    for index in sorted(results, key=lambda index: (tokens[index] <= room, index)):
        if total <= room:
            break
        shorter = _left_out(messages[index])
        gain = tokens[index] - measure.message(shorter)
        if gain > 0:
            shown[index], total, gone = shorter, total - gain, gone + 1
    return shown, gone


def _left_out(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "content": _LEFT_OUT.format(count=len(message["content"]))}
