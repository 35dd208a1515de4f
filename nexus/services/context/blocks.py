"""The named parts of a message list, with what the manifest says of them (CONTRACT §8). Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from nexus.services.context.transcript import Said
from nexus.services.context.validity import Admitted


class Section(Protocol):
    """A named part: a message that was rendered, or messages as they were said."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The part as messages of the list."""
        ...

    def describe(self, index: int) -> dict[str, Any]:
        """The part's entry in the manifest; `index` is the place of its first message in the list."""
        ...


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

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The block as the one message that it is."""
        return [{"role": self.role, "content": self.text}]

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

    def describe(self, index: int) -> dict[str, Any]:
        """The passage's entry in the manifest. `bytes` are those of its compact JSON."""
        said = [origin for origin in self.origins if origin is not None]
        return {
            "tag": self.tag,
            "role": self.messages[0]["role"],
            "index": index,
            "messages": len(self.messages),
            "bytes": len(compact(self.messages)),
            "sources": [origin.source for origin in said if origin.source],
            "truncated": 0,
            "dropped": self.dropped,
            "escaped": sum(origin.escaped for origin in said),
        }


def compact(value: Any) -> bytes:
    """`value` as compact JSON in UTF-8, the form that is counted, hashed and kept."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
