"""Records as entries of a JSON document in a model's prompt, cut into parts in which nothing is left out. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nexus.services.text.language import NAMES, name_of
from nexus.services.text.sentences import size, slices

# A prompt has room for so many bytes of its document, whatever the setting.
LEAST_ROOM: Final = 1_200
# What JSON writes between two entries.
BETWEEN: Final = len(", ")
# What an entry has besides its text.
_AROUND_ENTRY: Final = 48
_RETRY: Final = "\nAn answer that was given before could not be used: {fault}. Avoid that."


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
        """The entry as it stands there, or as many as it takes for none to need more than `room` bytes."""
        return (entry.whole for entry in self.cut(room))

    def cut(self, room: int) -> Iterator["Entry"]:
        """The entry, or as many as it takes for none to need more than `room` bytes."""
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


def packed(items: Iterable[dict[str, Any]], room: int, least: int = 1) -> Iterator[list[dict[str, Any]]]:
    """The items in order, in groups that fit into `room` bytes, though each has `least` items or more but the last."""
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


def in_language(language: str | None) -> str:
    """The words that tell a model in which language to write: a result of `language_of`, else the user's."""
    theirs = "in the language that the user writes in"
    if not language:
        return theirs
    return f"in {NAMES[language]}" if language in NAMES else f"{theirs}, {name_of(language)}"


def retry_note(fault: str) -> str:
    """The end of a task that is given once more, with the fault of the first reply; `""` for no fault."""
    return _RETRY.format(fault=fault) if fault else ""
