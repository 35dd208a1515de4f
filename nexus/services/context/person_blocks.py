"""`[CONSTRAINTS]` and `[MOOD]`, and the facts in `[FRIENDS_INFO]` (contract §15). Pure.

- Constraints are shown word for word, each once; nothing shortens the block or leaves it out.
- Further lines of a constraint are indented, and it is escaped, so that no text can pass for another one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from nexus.core.person import MOST_EVIDENCE, Constraint, ConstraintKind, Fact
from nexus.services.context.blocks import Block
from nexus.services.context.bounds import Bounds
from nexus.services.context.request import BuildRequest
from nexus.services.history.messages import HistoryMessage
from nexus.services.person.mood import mood_of
from nexus.services.text.escape import CountingEscape, canonical, escape_counted, escape_together, one_line

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


def aside_blocks(constraints: Sequence[Constraint], recall: Block | None, mood: Block | None) -> list[Block]:
    """`[CONSTRAINTS]`, `[RECALL]` and `[MOOD]` in this order, as far as there are any."""
    return [*constraints_block(constraints), *(block for block in (recall, mood) if block)]


_FACTS: Final = "Known facts:"


class ShownFact(NamedTuple):
    """A line of `[FRIENDS_INFO]`, escaped.

    Attributes:
        age: how many others are newer.
        sources: ids of the messages that say so, and of those that said what held before.
        escaped: places that were marked.
    """

    age: int
    text: str
    sources: Sequence[str]
    escaped: int


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """The facts that `[FRIENDS_INFO]` shows, in the order of their topics; `dropped` are not shown."""

    shown: Sequence[ShownFact] = ()
    dropped: int = 0

    @property
    def lines(self) -> list[str]:
        """The lines, without a head."""
        return [each.text for each in self.shown]

    @property
    def text(self) -> str:
        """The lines behind their head."""
        return "\n".join([_FACTS, *self.lines])

    @property
    def sources(self) -> tuple[str, ...]:
        """Ids of messages, each once."""
        return tuple(dict.fromkeys(source for each in self.shown for source in each.sources))

    @property
    def escaped(self) -> int:
        """Places that were marked."""
        return sum(each.escaped for each in self.shown)

    def latest(self, count: int) -> Self:
        """With no more than the latest of them."""
        shown = [each for each in self.shown if each.age < count]
        return replace(self, shown=shown, dropped=self.dropped + len(self.shown) - len(shown))


NO_FACTS: Final = KnownFacts()


def known_facts(facts: Sequence[Fact], bounds: Bounds | None = None) -> KnownFacts:
    """Those that hold, in the order of their topics; where they take more than their share, the latest of them.

    Each is a line of its own, whatever is in it. Dates are in UTC: the block is of the part of a context that stays the
    same wherever the person is.
    """
    every = {each.id: each for each in facts}
    holding = sorted((each for each in facts if each.valid_from and each.holds), key=_topic)
    latest = sorted(holding, key=lambda each: (each.valid_from, each.id), reverse=True)
    ages = {each.id: age for age, each in enumerate(latest)}
    shown = []
    for each in holding:
        before = every.get(each.supersedes or "")
        text, escaped = escape_counted(_line(each, before))
        evidence = [*each.evidence[:MOST_EVIDENCE], *(before.evidence[:MOST_EVIDENCE] if before else ())]
        shown.append(ShownFact(ages[each.id], text, evidence, escaped))
    known = KnownFacts(shown)
    if bounds is None or not shown:
        return known
    return known.latest(bounds.most("FACTS", len(shown), lambda count: known.latest(count).text))


def _topic(fact: Fact) -> tuple[str, str, str]:
    return fact.topic.casefold(), fact.sub_topic.casefold(), fact.id


def _line(fact: Fact, before: Fact | None) -> str:
    topic = " / ".join(filter(None, (one_line(fact.topic), one_line(fact.sub_topic))))
    since = f"since {fact.valid_from.date().isoformat()}" if fact.valid_from else ""
    old = f"; before: {one_line(before.value)}" if before else ""
    return f"- {topic}: {one_line(fact.value)} ({since}{old})"
