"""Cuts the texts of a message to a number of characters, so that its answer is seen. Pure."""

from collections.abc import Sequence
from typing import Final

from nexus.services.text.sentences import shares

# Characters of an answer that are shown beside annotations of any length.
_LEAST_SHOWN: Final = 20
_ELLIPSIS: Final = "..."


def cut(texts: Sequence[str], reserved: int, limit: int) -> tuple[list[str], bool]:
    """The texts of one message, cut so that they and `reserved` characters of annotations fit into `limit`.

    A message of one text and nothing reserved keeps its beginning and ends in `...`. Otherwise the last text is the
    answer: the texts before it give way first, and if it is too long by itself its end is kept, after `...`. The
    texts count with a line break between them. At least 20 characters are kept, whatever the annotations leave.

    It reads no more than `limit` characters from either end of a text, so a store may leave out the middle of one that
    is longer than twice the limit.

    Returns:
        The texts, as many as were given, `""` for one without room, and whether any was cut.
    """
    limit = max(limit, _LEAST_SHOWN)
    breaks = max(len(texts) - 1, 0)
    if not texts or sum(map(len, texts)) + breaks + reserved <= limit:
        return list(texts), False
    if len(texts) == 1 and not reserved:
        return [_beginning(texts[0], limit)], True
    room = max(limit - reserved, _LEAST_SHOWN)
    *preamble, answer = texts
    # A text that gives way leaves an ellipsis and a line break, as far as those fit, the latest texts first.
    mentioned = min(len(preamble), (room - _LEAST_SHOWN) // (len(_ELLIPSIS) + 1))
    omitted = len(preamble) - mentioned
    kept = _ending(answer, room - mentioned * (len(_ELLIPSIS) + 1))
    shown = [*[""] * omitted, *_shared_out(preamble[omitted:], room - mentioned - len(kept)), kept]
    return shown, shown != list(texts)


def _beginning(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - len(_ELLIPSIS)]}{_ELLIPSIS}"


def _ending(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{_ELLIPSIS}{text[len(text) - limit + len(_ELLIPSIS) :]}"


def _shared_out(texts: Sequence[str], room: int) -> list[str]:
    """Each text cut to an equal share of `room`; the surplus of short texts goes to the longer ones."""
    wanted = [min(len(text), room) for text in texts]
    return [_beginning(text, share) for text, share in zip(texts, shares(wanted, room), strict=True)]
