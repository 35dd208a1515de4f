"""`[CONSTRAINTS]` and `[MOOD]` (contract §15). Pure.

- Constraints are shown word for word, each once; nothing shortens the block or leaves it out.
- Further lines of a constraint are indented, and it is escaped, so that no text can pass for another one.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from nexus.core.person import Constraint, ConstraintKind
from nexus.services.context.blocks import Block
from nexus.services.context.request import BuildRequest
from nexus.services.history.messages import HistoryMessage
from nexus.services.person.mood import mood_of
from nexus.services.text.escape import CountingEscape, canonical, escape_together

CONSTRAINTS: Final = "CONSTRAINTS"
_MOOD: Final = (
    "[MOOD label={label} trend={trend} confidence={confidence}] "
    "A guess at how the person feels, from their latest words: for your tone alone, and not to be mentioned."
)
_HEAD: Final = "[CONSTRAINTS count={count}]\nThese hold for every answer until they are taken back, word for word:\n\n"
_KINDS: Final[dict[ConstraintKind, str]] = {
    "must": "Must",
    "must_not": "Must not",
    "format": "Format",
    "scope": "Scope",
}


def constraints_block(constraints: Sequence[Constraint]) -> list[Block]:
    """`[CONSTRAINTS]` with these constraints in their order, each text and kind once; nothing for none."""
    shown = {(each.kind, canonical(each.text).strip()): each for each in reversed(constraints)}
    kept = [each for each in constraints if shown[each.kind, canonical(each.text).strip()] is each]
    if not kept:
        return []
    escape = CountingEscape()
    texts = escape_together([canonical(each.text).strip() for each in kept], escape)
    lines = [f"- {_KINDS[each.kind]}: {text}".replace("\n", "\n  ") for each, text in zip(kept, texts, strict=True)]
    sources = dict.fromkeys(each.source_message_id for each in kept if each.source_message_id)
    text = _HEAD.format(count=len(kept)) + "\n".join(lines)
    return [Block(CONSTRAINTS, "user", text, tuple(sources), escaped=escape.marked)]


def mood_block(request: BuildRequest, earlier: Iterable[HistoryMessage] = ()) -> Block | None:
    """`[MOOD]`, one line, of the input and of messages before it, newest first; None where no mood is plain.

    The input of a sub-agent is nobody's mood.
    """
    human = request.human
    mood = mood_of(request.current_input, human.id, human.timestamp, earlier)
    if mood is None or request.origin.sub_agent is not None:
        return None
    text = _MOOD.format(label=mood.label, trend=mood.trend, confidence=mood.confidence)
    return Block("MOOD", "user", text, mood.sources)


def constraints_text(constraints: Sequence[Constraint]) -> str:
    """What `constraints_block` shows, `""` for none."""
    return "".join(block.text for block in constraints_block(constraints))
