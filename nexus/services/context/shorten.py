"""Cutting a message to length without losing what it came to (CONTRACT §4.3, the line on length)."""

from collections.abc import Sequence
from typing import Final

# However long the annotations are, this much of the answer is shown.
_SMALLEST: Final = 20
_GAP: Final = "..."


def cut(texts: Sequence[str], reserved: int, limit: int) -> tuple[list[str], bool]:
    """The texts of one message cut so that they and `reserved` characters (annotations) fit into `limit`.

    A message of one text and nothing reserved keeps its beginning and ends in `...`. Otherwise the last text is the
    answer: the texts before it give way first, and if it is too long by itself its end is kept, after `...`. The
    texts count with a line break between them. At least 20 characters are kept, whatever the annotations leave.

    Looks at no more than `limit` characters from either end of a text, so that a store may leave out the middle of one
    that is longer than twice the limit.

    Returns:
        The texts, as many as were given, `""` for one that has no room at all, and whether any was cut.
    """
    limit = max(limit, _SMALLEST)
    breaks = max(len(texts) - 1, 0)
    if not texts or sum(map(len, texts)) + breaks + reserved <= limit:
        return list(texts), False
    if len(texts) == 1 and not reserved:
        return [_head(texts[0], limit)], True
    room = max(limit - reserved, _SMALLEST)
    *preamble, answer = texts
    # What gives way still says so, as far as that fits: a gap mark and a line break each, the latest texts first.
    told = min(len(preamble), (room - _SMALLEST) // (len(_GAP) + 1))
    untold = len(preamble) - told
    kept = _tail(answer, room - told * (len(_GAP) + 1))
    shown = [*[""] * untold, *_share(preamble[untold:], room - told - len(kept)), kept]
    return shown, shown != list(texts)


def _head(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - len(_GAP)]}{_GAP}"


def _tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{_GAP}{text[len(text) - limit + len(_GAP) :]}"


def _share(texts: Sequence[str], room: int) -> list[str]:
    """Each text cut to an equal share of `room`; what short texts leave over goes to the longer ones."""
    shares = [0] * len(texts)
    left = room
    for position, index in enumerate(sorted(range(len(texts)), key=lambda i: min(len(texts[i]), room))):
        shares[index] = min(len(texts[index]), left // (len(texts) - position))
        left -= shares[index]
    return [_head(text, share) for text, share in zip(texts, shares, strict=True)]
