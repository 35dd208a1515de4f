"""Statements about persons, read and made, and the facts that follow from them (contract §15). Pure.

- A pair of topic and sub-topic has one value at a time, compared without case and surplus blanks, as values are.
- Its statements are gone through as they were said. An explicit one takes the pair; one that a model read only where
  nothing holds that was written as a fact, for a model may take a quotation for the person's own. A derived one takes
  it where nothing explicit holds and its value was said in two sessions since it held last. A retirement ends the value
  that it names, or whatever holds; the value before does not come back by that.
- Texts are kept on one line each.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, get_args

from nexus.core.models import (
    MAX_ID_CHARS,
    is_ambiguous,
    parse_moment,
    to_milliseconds,
)
from nexus.core.person import (
    MAX_TOPIC_CHARS,
    MAX_VALUE_CHARS,
    MOST_EVIDENCE,
    MOST_FACTS,
    Fact,
    FactLevel,
    FactSource,
    Statement,
)
from nexus.services.text.checks import check_names, read_op, refuse_unstorable
from nexus.services.text.escape import one_line

_SESSIONS_NEEDED: Final = 2
_ID_CHARS: Final = 32
_LEVELS: Final[tuple[FactLevel, ...]] = get_args(FactLevel)
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("topic", "sub_topic", "value", "level", "evidence", "valid_from"),
    "retire": ("topic", "sub_topic", "value"),
}

Slot = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where statements come from.

    Attributes:
        key: of the message, call, command or row; the same key and texts are the same statement.
        said_at: when they were said, where they bring no time of their own.
        session_id: in which they were said; `""` for none.
    """

    owner_key: str
    key: str
    said_at: datetime
    session_id: str = ""
    source: FactSource = "message"


def comparable(text: str) -> str:
    """The text as topics and values are compared: without case and surplus blanks."""
    return one_line(text).casefold()


def slot_of(topic: str, sub_topic: str) -> Slot:
    """The pair that has one value at a time."""
    return comparable(topic), comparable(sub_topic)


def statement(
    origin: Origin,
    topic: str,
    value: str,
    sub_topic: str = "",
    *,
    level: FactLevel = "explicit",
    evidence: Iterable[str] = (),
    valid_from: datetime | None = None,
    retires: bool = False,
) -> Statement:
    """A statement with its id, its texts on one line.

    Raises:
        ValueError: a text is empty or too long, or the time is later than that of the origin; it names the field.
    """
    texts = {
        "topic": _text(topic, "topic", MAX_TOPIC_CHARS),
        "sub_topic": _text(sub_topic, "sub_topic", MAX_TOPIC_CHARS, needed=False),
        "value": _text(value, "value", MAX_VALUE_CHARS, needed=not retires),
    }
    if valid_from and valid_from > origin.said_at:
        raise ValueError("valid_from: is later than the message that says so")
    said_at = to_milliseconds(valid_from or origin.said_at)
    # Not the time of the origin: a message that is sent again may get another where its sender's clock is wrong.
    told = [origin.source, origin.key, *texts.values(), level, retires, str(said_at) if valid_from else ""]
    return Statement(
        id=_hash(told),
        owner_key=origin.owner_key,
        **texts,
        level=level,
        evidence=tuple(sorted(set(evidence))),
        session_id=origin.session_id,
        source=origin.source,
        said_at=said_at,
        retires=retires,
    )


def read_statements(content: Any, origin: Origin) -> list[Statement]:
    """The statements in the content of a `memory.facts` message; ValueError for any other, with the place and why."""
    op = read_op(content, dict.fromkeys(_FIELDS, ("op", "facts")))
    given = content.get("facts")
    if not isinstance(given, Sequence) or isinstance(given, str) or not 1 <= len(given) <= MOST_FACTS:
        raise ValueError(f"content.facts: a list of 1 to {MOST_FACTS} facts is needed")
    found = [_read(op, fact, f"content.facts[{place}]", origin) for place, fact in enumerate(given)]
    places: dict[tuple[Slot, datetime], int] = {}
    for place, each in enumerate(found):
        first = places.setdefault((slot_of(each.topic, each.sub_topic), each.said_at), place)
        if op == "add" and comparable(found[first].value) != comparable(each.value):
            raise ValueError(
                f"content.facts[{place}]: has the topic and sub_topic of content.facts[{first}], and another value; "
                "a pair has one value at a time, so give each its own sub_topic, or its own valid_from"
            )
    return found


def _read(op: str, fact: Any, where: str, origin: Origin) -> Statement:
    if not isinstance(fact, Mapping):
        raise ValueError(f"{where}: a JSON object is needed, with {', '.join(_FIELDS[op])}")
    check_names(where, fact, _FIELDS[op])
    given = {name: value for name, value in fact.items() if value is not None}
    level = given.get("level", "explicit")
    check_names(f"{where}.level", [level], _LEVELS)
    valid_from = None
    if "valid_from" in given and (valid_from := parse_moment(given["valid_from"])) is None:
        raise ValueError(f"{where}.valid_from: a time in ISO 8601 is needed")
    evidence = read_evidence(given.get("evidence", []), f"{where}.evidence")
    try:
        return statement(
            origin,
            given.get("topic", ""),
            given.get("value", ""),
            given.get("sub_topic", ""),
            level=level,
            evidence=evidence,
            valid_from=valid_from,
            retires=op == "retire",
        )
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def read_evidence(given: Any, where: str) -> list[str]:
    """The ids in a list of messages; ValueError for anything else, which names `where`."""
    if not isinstance(given, list) or len(given) > MOST_EVIDENCE:
        raise ValueError(f"{where}: a list of up to {MOST_EVIDENCE} message ids is needed")
    for place, each in enumerate(given):
        if not isinstance(each, str) or not 1 <= len(each) <= MAX_ID_CHARS or is_ambiguous(each):
            raise ValueError(f"{where}[{place}]: a message id of 1 to {MAX_ID_CHARS} characters is needed")
    return given


def _text(value: Any, name: str, most: int, *, needed: bool = True) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: a text of 1 to {most} characters is needed")
    refuse_unstorable(value, name)
    text = one_line(value)
    if len(text) > most:
        raise ValueError(f"{name}: {len(text)} characters, at most {most} are allowed")
    if needed and not text:
        raise ValueError(f"{name}: is missing or blank; a text of 1 to {most} characters is needed")
    return text


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:_ID_CHARS]


@dataclass(slots=True)
class _Interval:
    """A value of a slot while it holds or, without `valid_from`, while too few sessions have said it."""

    said: list[Statement] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    explicit: Statement | None = None
    strength: int = 0
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    before: "_Interval | None" = None

    @property
    def id(self) -> str:
        first = self.said[0]
        return _hash([*slot_of(first.topic, first.sub_topic), first.id])

    def add(self, each: Statement) -> None:
        self.said.append(each)
        self.strength = max(self.strength, _strength(each))
        if each.session_id:
            self.sessions.add(each.session_id)
        if each.level == "explicit" and self.explicit is None:
            self.explicit = each

    def fact(self) -> Fact:
        # An explicit statement has the words that the person chose.
        shown = self.explicit or self.said[0]
        return Fact(
            id=self.id,
            owner_key=shown.owner_key,
            topic=shown.topic,
            sub_topic=shown.sub_topic,
            value=shown.value,
            level=shown.level,
            evidence=tuple(sorted({id_ for each in self.said for id_ in each.evidence})),
            support=len(self.sessions),
            valid_from=self.valid_from,
            valid_to=self.valid_to,
            supersedes=self.before.id if self.before else None,
            source=shown.source,
        )


def _strength(each: Statement) -> int:
    """How much a statement counts beside others: no weaker one takes a pair from a stronger."""
    if each.level == "derived":
        return 0
    return 1 if each.source == "model" else 2


def facts_of(statements: Iterable[Statement]) -> list[Fact]:
    """What follows from the statements of one owner: every interval of every value, by slot, the oldest first.

    Those that never held, for want of support, come last in their slot. The same for any order of statements, and
    however often each is given.
    """
    slots: dict[Slot, list[Statement]] = defaultdict(list)
    for each in {each.id: each for each in statements}.values():
        slots[slot_of(each.topic, each.sub_topic)].append(each)
    facts: list[Fact] = []
    for slot in sorted(slots):
        intervals = _intervals(sorted(slots[slot], key=lambda each: (each.said_at, each.id)))
        facts += [each.fact() for each in intervals if each.valid_from]
        facts += [each.fact() for each in intervals if not each.valid_from]
    return facts


def _intervals(said: Iterable[Statement]) -> list[_Interval]:
    """The intervals of a slot, of its statements as they were said."""
    holds: _Interval | None = None
    # Said and not in force, by value.
    waiting: dict[str, _Interval] = {}
    over: list[_Interval] = []
    for each in said:
        value = comparable(each.value)
        held = comparable(holds.said[0].value) if holds else None
        if each.retires:
            ended = [waiting.pop(name) for name in ([value] if value else [*waiting]) if name in waiting]
            if holds and value in {"", held}:
                ended.append(holds)
                holds = None
            elif holds and holds.before and comparable(holds.before.said[0].value) == value:
                # Nothing shows it any more as what held before.
                holds.before = None
            for interval in ended:
                interval.valid_to = each.said_at
            over += ended
        elif holds and value == held:
            holds.add(each)
        else:
            found = waiting.setdefault(value, _Interval())
            found.add(each)
            is_supported = each.level == "explicit" or len(found.sessions) >= _SESSIONS_NEEDED
            if is_supported and _strength(each) >= (holds.strength if holds else 0):
                found.valid_from, found.before = each.said_at, holds
                if holds:
                    holds.valid_to = each.said_at
                    over.append(holds)
                holds = waiting.pop(value)
    return [*over, *([holds] if holds else []), *waiting.values()]
