"""The named parts of a message list, with what the manifest says of them (CONTRACT §8). Pure.

A section is one part or several, and one message or several: what the manifest says of each part names the message in
which it begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, Self

from nexus.core.compact_json import compact
from nexus.services.context.tokens import Measure
from nexus.services.context.transcript import Said
from nexus.services.context.validity import Admitted


class Section(Protocol):
    """Parts that belong together: a message that was rendered, or messages as they were said."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The section as messages of the list."""
        ...

    def describe(self, index: int, measure: Measure | None = None) -> list[dict[str, Any]]:
        """The entries of its parts in the manifest.

        Args:
            index: the place of its first message in the list.
            measure: counts their tokens; without it they are not told.
        """
        ...


class Block(NamedTuple):
    """A rendered block and how it came to be.

    Attributes:
        tag: its name without brackets, such as `SHARED_MEMORY`.
        role: the role of the message that carries it.
        text: the content of that message.
        sources: ids of the messages that it was made from.
        truncated: messages that were shortened.
        dropped: messages that were at hand and are not shown.
        escaped: places where text looked like structure and was marked.
        constant: other contexts have the same text, so that what is counted of it is kept.
    """

    tag: str
    role: str
    text: str
    sources: tuple[str, ...] = ()
    truncated: int = 0
    dropped: int = 0
    escaped: int = 0
    constant: bool = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The block as the one message that it is."""
        return [{"role": self.role, "content": self.text}]

    def describe(self, index: int, measure: Measure | None = None) -> list[dict[str, Any]]:
        """The block's entry in the manifest; `index` is its place in the message list."""
        tag, role, text, sources, truncated, dropped, escaped, constant = self
        return [
            {
                "tag": tag,
                "role": role,
                "index": index,
                "bytes": _size_of_constant(text) if constant else _size(text),
                **({"tokens": measure.text(text, constant=constant)} if measure else {}),
                "sources": [*sources],
                "truncated": truncated,
                "dropped": dropped,
                "escaped": escaped,
            }
        ]


def _size(text: str) -> int:
    """In bytes of UTF-8. Of ASCII nothing has to be encoded for that."""
    return len(text) if text.isascii() else len(text.encode())


# The identity alone is 15 KB, and not ASCII.
_size_of_constant: Final = lru_cache(maxsize=16)(_size)


@dataclass(frozen=True, slots=True)
class Joined:
    """Blocks of one role that are one message, with a blank line between two."""

    blocks: Sequence[Block]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The one message; none without blocks."""
        text = "\n\n".join(block.text for block in self.blocks)
        return [{"role": block.role, "content": text} for block in self.blocks[:1]]

    def describe(self, index: int, measure: Measure | None = None) -> list[dict[str, Any]]:
        """The entries of the blocks, all of them at the place of the message."""
        return [entry for block in self.blocks for entry in block.describe(index, measure)]


@dataclass(frozen=True, slots=True)
class Passage:
    """Messages as they were said, one after another.

    Attributes:
        origins: for each message what was said; None for a result that was lost.
        dropped: messages before it that were at hand and are not shown.
    """

    tag: str
    messages: list[dict[str, Any]]
    origins: Sequence[Said | None]
    dropped: int = 0

    @classmethod
    def of(cls, tag: str, admitted: Admitted, start: int = 0, end: int | None = None, *, dropped: int = 0) -> Self:
        """The admitted messages from `start` to `end`."""
        return cls(tag, admitted.messages[start:end], admitted.origins[start:end], dropped)

    def describe(self, index: int, measure: Measure | None = None) -> list[dict[str, Any]]:
        """The passage's entry in the manifest. `bytes` are those of its compact JSON."""
        said = [origin for origin in self.origins if origin is not None]
        return [
            {
                "tag": self.tag,
                "role": self.messages[0]["role"],
                "index": index,
                "messages": len(self.messages),
                "bytes": len(compact(self.messages)),
                **({"tokens": sum(map(measure.message, self.messages))} if measure else {}),
                "sources": [origin.source for origin in said if origin.source],
                "truncated": 0,
                "dropped": self.dropped,
                "escaped": sum(origin.escaped for origin in said),
            }
        ]
