"""What was said and done as entries of a JSON document that a model is given: nothing is left out. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nexus.services.turns.cutting import size, slices
from nexus.services.turns.facts import Said, TurnFacts

# What an entry has beside its text.
_AROUND_ENTRY: Final = 48
# What JSON writes between two entries.
BETWEEN: Final = len(", ")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a document: a text under a key, with other fields before it."""

    fields: Mapping[str, Any]
    key: str
    text: str = field(repr=False)

    @property
    def whole(self) -> dict[str, Any]:
        """As it stands in the document."""
        return {**self.fields, self.key: self.text}

    def shown(self, room: int) -> Iterator[dict[str, Any]]:
        """The entry as it stands there, or as many as it takes for none to need more than `room`."""
        return (entry.whole for entry in self.cut(room))

    def cut(self, room: int) -> Iterator["Entry"]:
        """The entry, or as many as it takes for none to need more than `room`."""
        if size(self.whole) <= room:
            yield self
            return
        fields, text = self.fields, self.text
        if size(fields) > room // 2:
            # Fields that are themselves too long, as the name of a tool may be, are cut with the text.
            fields, text = {}, f"{json.dumps(self.fields, ensure_ascii=False)}\n{self.text}"
        pieces = list(slices(text, max(room - size(fields) - _AROUND_ENTRY, 1)))
        before = f"{fields['piece']}, " if "piece" in fields else ""
        for number, piece in enumerate(pieces, 1):
            yield Entry({**fields, "piece": f"{before}{number}/{len(pieces)}"}, self.key, piece)


def entries_of(facts: TurnFacts) -> Iterator[Entry]:
    """All that is known of the turn, in the order in which it came about."""
    if facts.workspace:
        yield Entry({}, "workspace", facts.workspace)
    # Of calls in their order, like those in the messages: what were no JSON arguments is found only here.
    given = (outcome.arguments for outcome in facts.outcomes if outcome.arguments is not None)
    asked = 1 if facts.said and facts.said[0].speaker == "user" else 0
    for item in facts.said[:asked]:
        yield from _of_message(item, given)
    for thought in facts.rounds:
        yield Entry({"thought": thought.round_number}, "text", thought.content)
    for item in facts.said[asked:]:
        yield from _of_message(item, given)


def _of_message(item: Said, given: Iterator[Any]) -> Iterator[Entry]:
    if item.speaker == "tool":
        success = {} if item.success is None else {"success": item.success}
        yield Entry({"from": "tool", "tool": item.tool, **success}, "text", item.text)
        return
    if item.text:
        yield Entry({"from": item.speaker}, "text", item.text)
    for call in item.calls:
        unread = next(given, None)
        arguments = unread if isinstance(unread, str) else call.raw_arguments
        yield Entry({"from": "assistant", "calls": call.name}, "arguments", arguments)


def packed(items: Iterable[dict[str, Any]], room: int, least: int = 1) -> Iterator[list[dict[str, Any]]]:
    """The items in order, as many together as have room, though `least` of them in any case."""
    group: list[dict[str, Any]] = []
    used = 0
    for item in items:
        needed = size(item) + BETWEEN
        if len(group) >= least and used + needed > room:
            yield group
            group, used = [], 0
        group.append(item)
        used += needed
    if group:
        yield group
