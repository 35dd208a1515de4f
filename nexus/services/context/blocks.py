"""The parts of a message list, the list that they make, and its manifest (contract §8). Pure.

A section is one message of one or several blocks, or a passage of recorded messages. The manifest has an entry for each
block, which names the message in which it begins.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

from nexus.core.models import LeftOut, Why
from nexus.core.wire import compact
from nexus.services.context.formats.base import unmarked
from nexus.services.history.messages import HistoryMessage
from nexus.services.history.transcript import Admitted
from nexus.services.text.neighbours import Neighbours, count_parted
from nexus.services.text.tokens import Measure

# Entries of `left_out` in a manifest, the one that counts the others included.
MOST_LEFT_OUT: Final = 100
# A note on a block of which only a part is shown.
OF_SHARE: Final = "window: {} takes more than its share (memory.shares) and is shown in part"
# Messages before those that are shown.
OLDER: Final = "older messages"
# What blocks drop, by their tags; others drop messages, of which not all were read.
_ITEMS: Final = {
    "TURN_MEMORY": "turn",
    "WORKING_MEMORY": "detail",
    "TODO_LIST": "TODO",
    "USEFUL_INFORMATION": "item",
    "FOLDER_NOTES": "note",
    "THINKING_ROUNDS": "round",
    "RECALL": "hit",
    "FRIENDS_INFO": "fact",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A rendered block.

    Attributes:
        tag: its name without brackets, such as `SHARED_MEMORY`.
        role, text: of the message that carries it.
        sources: ids of the messages that it shows.
        truncated, dropped: messages that are shortened, or not shown although they were read.
        escaped: places where text looked like structure and was marked.
    """

    tag: str
    role: str
    text: str
    sources: tuple[str, ...] = ()
    truncated: int = 0
    dropped: int = 0
    escaped: int = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The block as one message."""
        return [{"role": self.role, "content": self.text}]

    def shown_as(self, messages: list[dict[str, Any]]) -> Self:
        """The block with the text of the one message."""
        return replace(self, text=messages[0]["content"], escaped=self.escaped + count_parted(messages))

    def describe(self, index: int, measure: Measure | None = None) -> list[dict[str, Any]]:
        """The block's one manifest entry; `bytes` are those of its UTF-8, `tokens` only with a measure."""
        return [
            {
                "tag": self.tag,
                "role": self.role,
                "index": index,
                "bytes": len(self.text.encode()),
                **({"tokens": measure.text(self.text)} if measure else {}),
                "sources": [*self.sources],
                "truncated": self.truncated,
                "dropped": self.dropped,
                "escaped": self.escaped,
            }
        ]


@dataclass(frozen=True, slots=True)
class Joined:
    """Blocks of one role in one message, with a blank line between two."""

    blocks: Sequence[Block]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The one message; none without blocks."""
        text = "\n\n".join(block.text for block in self.blocks)
        return [{"role": block.role, "content": text} for block in self.blocks[:1]]

    def shown_as(self, messages: list[dict[str, Any]]) -> Self:
        """The same: a block begins with structure, so its text cannot complete any."""
        del messages
        return self

    def describe(self, index: int, measure: Measure | None = None) -> list[dict[str, Any]]:
        """The manifest entries of the blocks, all at the place of the message."""
        return [entry for block in self.blocks for entry in block.describe(index, measure)]


@dataclass(frozen=True, slots=True)
class Passage:
    """Recorded messages, one after another.

    Attributes:
        origins: the source of each message; None for a lost result.
        dropped: messages before it that were read and are not shown.
    """

    tag: str
    messages: list[dict[str, Any]]
    origins: Sequence[HistoryMessage | None]
    dropped: int = 0

    @classmethod
    def of(cls, tag: str, admitted: Admitted, start: int = 0, end: int | None = None, *, dropped: int = 0) -> Self:
        """The admitted messages from `start` to `end`."""
        return cls(tag, admitted.messages[start:end], admitted.origins[start:end], dropped)

    def shown_as(self, messages: list[dict[str, Any]]) -> Self:
        """The passage with these messages."""
        return replace(self, messages=messages)

    def describe(self, index: int, measure: Measure | None = None) -> list[dict[str, Any]]:
        """The passage's one manifest entry; `bytes` are those of its compact JSON."""
        origins = [origin for origin in self.origins if origin is not None]
        return [
            {
                "tag": self.tag,
                "role": self.messages[0]["role"],
                "index": index,
                "messages": len(self.messages),
                "bytes": len(in_openai_form(self.messages)),
                **({"tokens": sum(map(measure.message, self.messages))} if measure else {}),
                "sources": [origin.source for origin in origins if origin.source],
                "truncated": sum(origin.is_truncated for origin in origins),
                "dropped": self.dropped,
                "escaped": sum(origin.escaped for origin in origins) + count_parted(self.messages),
            }
        ]


Section = Block | Joined | Passage

# By tag what each block leaves out whatever room there is; blocks that the window never shortens need not be in it.
# None where the window has shortened none: what is left out then is just that.
Dropped = Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class Weights:
    """Tokens of a context before anything was left out to make it fit.

    Attributes:
        total: of all messages, but for those of the run and what is chosen for this input.
        fixed: of the parts that always stay.
        history: of messages of the session.
        summary: of the block that stands for compacted messages.
    """

    total: int
    fixed: int
    history: int
    summary: int


class Assembled(NamedTuple):
    """A message list with its manifest, without notes and timings.

    Attributes:
        repairs: notes on changes and omissions.
        left_out: what the list does not show.
        weights: None where nothing was counted.
        results: tokens to which the results of the run's own messages have to be cut; None if they need not be.
    """

    messages: list[dict[str, Any]]
    manifest: dict[str, Any]
    repairs: list[str]
    left_out: list[LeftOut]
    weights: Weights | None = None
    results: int | None = None


def assemble(
    layout: str,
    sections: Sequence[Section],
    *,
    rows: Mapping[str, int],
    stable: int,
    repairs: Sequence[str] = (),
    left_out: Sequence[LeftOut] = (),
    whole: Dropped = None,
    cut: Collection[str] = (),
    measure: Measure | None = None,
) -> Assembled:
    """The list of these sections, in their order; the manifest has tokens only with a measure.

    `rows` are numbers of rows, for the manifest. The next build of the owner or session repeats the first `stable`
    messages. `whole` is what the blocks leave out whatever room there is. `cut` are the tags of blocks of whose text
    only the beginning was given.
    """
    messages: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    neighbours = Neighbours()
    for section in sections:
        parted = neighbours.parted(section.messages)
        entries += section.shown_as(parted).describe(len(messages), measure)
        messages += parted
    manifest = {
        "layout": layout,
        "blocks": entries,
        "history": dict(rows),
        "prefix": {"messages": stable, "sha256": hashlib.sha256(in_openai_form(messages[:stable])).hexdigest()},
    }
    for entry in entries:
        if entry["tag"] in cut:
            entry["truncated"] = 1
    notes = [*repairs, *(OF_SHARE.format(entry["tag"]) for entry in entries if entry["tag"] in cut)]
    omitted = _omitted(entries, dropped_by(entries) if whole is None else whole)
    return Assembled(messages, manifest, notes, [*left_out, *omitted])


def in_openai_form(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """The compact JSON of messages in OpenAI's form."""
    return compact([*map(unmarked, messages)])


def dropped_by(blocks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """By tag what the blocks with these manifest entries leave out; 0 is in it, too."""
    dropped: dict[str, int] = {}
    for block in blocks:
        dropped[block["tag"]] = dropped.get(block["tag"], 0) + block["dropped"]
    return dropped


def _omitted(blocks: Sequence[Mapping[str, Any]], whole: Mapping[str, int]) -> list[LeftOut]:
    """What the blocks with these manifest entries do not show, an entry for each block and reason; `whole` as above."""
    dropped = dropped_by(blocks)
    found = [LeftOut("the whole block", tag, Why.NO_ROOM) for tag in whole if tag not in dropped]
    for tag, count in dropped.items():
        if count > whole.get(tag, count):
            found.append(LeftOut(number_of(count, _ITEMS.get(tag, "message")), tag, Why.NO_ROOM))
        elif count:
            found.append(LeftOut(number_of(count, _ITEMS[tag]) if tag in _ITEMS else OLDER, tag, Why.TOO_MANY))
    for block in blocks:
        if block["truncated"]:
            what = number_of(block["truncated"], "text")
            found.append(LeftOut(f"a part of {what}", block["tag"], Why.TOO_LONG))
    return found


def number_of(count: int, item: str) -> str:
    """Such as `1 turn` and `2 turns`."""
    return f"{count} {item}{'' if count == 1 else 's'}"


def listed(left_out: Sequence[LeftOut]) -> list[dict[str, str]]:
    """The entries as the manifest has them; where there are too many, the last says how many more there are."""
    shown = left_out if len(left_out) <= MOST_LEFT_OUT else left_out[: MOST_LEFT_OUT - 1]
    entries = [{"what": each.what, "where": each.where, "why": each.why.value} for each in shown]
    if more := len(left_out) - len(shown):
        entries.append({"what": f"{more} more", "where": "left_out", "why": f"only the first {len(shown)} are listed"})
    return entries


def text_of(blocks: Sequence[Block]) -> str:
    """The texts of these blocks, one behind the other."""
    return "".join(block.text for block in blocks)


def source_of(name: str) -> tuple[str, ...]:
    """The sources of a block that shows one message or turn; its id may be `""`."""
    return (name,) if name else ()
