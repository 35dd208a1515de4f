"""What people are shown of a hit: who said it, the text around its strongest term, what its score is made of. Pure."""

from operator import itemgetter
from typing import Final

from nexus.core.models import DEFAULT_SESSION, Role, Row, role_of
from nexus.core.recall import Score
from nexus.services.recall.score import WEIGHTS
from nexus.services.recall.texts import text_of
from nexus.services.text.content import place_of

# Characters of a message, and how many of them before its strongest term.
_SHOWN, _BEFORE = 200, 60
_SPEAKERS: Final = {Role.HUMAN: "human", Role.AI: "assistant", Role.TOOL: "tool"}


def excerpt(row: Row, score: Score) -> str:
    """The text around the strongest of its terms that stands in it as it is, on one line."""
    text = " ".join(text_of(row).split())
    places = (place_of(text, term) for term, _ in by_weight(score))
    begin = max(next((place for place in places if place is not None), 0) - _BEFORE, 0)
    return f"{'…' if begin else ''}{text[begin : begin + _SHOWN]}{'…' if begin + _SHOWN < len(text) else ''}"


def by_weight(score: Score) -> list[tuple[str, float]]:
    """The terms of a score with what each gives, the most first."""
    return sorted(score.terms.items(), key=itemgetter(1), reverse=True)


def factor(row: Row) -> str:
    """By what the parts of a score were multiplied, and why; `""` for nothing."""
    if role_of(row) is not Role.AI:
        return ""
    return f"{WEIGHTS.assistant}, of words, session and similarity: an assistant said it"


def session_of(row: Row) -> str:
    """The session of a row, the default one where it names none."""
    return str(row.get("session_id") or DEFAULT_SESSION)


def speaker(row: Row) -> str:
    """Who said it, in a word; `-` where that is not known."""
    role = role_of(row)
    return _SPEAKERS.get(role, "-") if role else "-"
