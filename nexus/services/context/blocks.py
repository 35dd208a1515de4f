"""One named part of a message list, with what the manifest says of it (CONTRACT §8)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Block:
    """A rendered block and how it came to be.

    Attributes:
        tag: its name without brackets, such as `SHARED_MEMORY`.
        role: the role of the message that carries it.
        text: the content of that message.
        sources: ids of the messages that it was made from.
        truncated: messages that were shortened.
        dropped: messages that were at hand and are not shown.
        escaped: places where text looked like structure and was marked.
    """

    tag: str
    role: str
    text: str
    sources: tuple[str, ...] = ()
    truncated: int = 0
    dropped: int = 0
    escaped: int = 0

    def message(self) -> dict[str, Any]:
        """The block as a message of the list."""
        return {"role": self.role, "content": self.text}

    def describe(self, index: int) -> dict[str, Any]:
        """The block's entry in the manifest; `index` is its place in the message list."""
        return {
            "tag": self.tag,
            "role": self.role,
            "index": index,
            "bytes": len(self.text.encode()),
            "sources": list(self.sources),
            "truncated": self.truncated,
            "dropped": self.dropped,
            "escaped": self.escaped,
        }
