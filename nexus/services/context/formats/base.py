"""The common parts of conversions to the forms of providers. Pure."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json

from nexus.core.models import LeftOut
from nexus.core.wire import is_deeper

# The first user text of a list that does not begin with one: there is nothing in it to answer.
OPENING: Final = "(The conversation begins here.)"

# An answer carries arguments six levels down, and may be 64 deep itself (contract §1.6).
_DEEPEST: Final = 32
# The key of arguments that cannot be sent as an object themselves.
_AS_TEXT: Final = "arguments"
# The key of a tool message that says that the call failed.
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Converted:
    """A message list and tools in the form of one provider.

    Attributes:
        messages: OpenAI's and Anthropic's `messages`, Gemini's `contents`.
        places: for each given message the index of its message here, and of its first block or part there; None in
            `system`.
        notes: on changes for this provider, without content (contract §8).
        left_out: what this provider is not shown; places in `messages` are those of the given list.
        renamed: registered names by those that this provider is shown; see `ShownTools`.
        system: Anthropic's `system`, Gemini's `system_instruction`; None for none, and for OpenAI.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    places: list[tuple[int, int] | None]
    notes: list[str]
    system: Any = None
    left_out: list[LeftOut] = field(default_factory=list)
    renamed: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a given message: the index of its message here, and of its first and last block there."""

    message: int
    first: int
    last: int


def unmarked(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as OpenAI is sent it, where that a call failed is said by its text alone."""
    return {key: value for key, value in message.items() if key != FAILED}


@dataclass(slots=True)
class GroupedMessages:
    """A list in the making: consecutive messages of one side become one message, with its blocks under `key`."""

    key: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    _kind: str = ""

    def add(self, role: str, blocks: Sequence[dict[str, Any]], kind: str = "") -> Place:
        """Put `blocks` at the end, into the last message if that is of the same role and kind."""
        if self.messages and self.messages[-1]["role"] == role and self._kind == kind:
            present: list[dict[str, Any]] = self.messages[-1][self.key]
        else:
            present = []
            self.messages.append({"role": role, self.key: present})
            self._kind = kind
        first = len(present)
        present.extend(blocks)
        return Place(len(self.messages) - 1, first, len(present) - 1)


# What more than one format changes, as it stands in the notes.
OPENED: Final = "user texts that were put before the first message"
LATE_SYSTEM: Final = "system messages after the first others, shown as texts of the user"
AS_TEXT: Final = "calls with arguments that cannot be sent as an object"


def counted(changes: Counter[str]) -> list[str]:
    """The notes on these changes."""
    return [f"{what}: {count}" for what, count in changes.items() if count]


def needs_opening(messages: Sequence[Mapping[str, Any]], leading: int) -> bool:
    """Whether no user message would stand first once the `leading` system messages stand apart."""
    return bool(messages) and (leading == len(messages) or messages[leading]["role"] == "assistant")


def ending(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note on a list that ends with the assistant; nothing is added to it, since older models go on from there."""
    last = messages[-1]["role"] if messages else ""
    return ["the list ends with an assistant message, which newer models refuse"] if last == "assistant" else []


def leading_system(messages: Sequence[Mapping[str, Any]]) -> int:
    """Number of system messages before all others."""
    return next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))


def trailing_system(messages: Sequence[Mapping[str, Any]]) -> int:
    """Number of system messages behind all others."""
    return leading_system(messages[::-1])


def calls_of(message: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    """Id, name and arguments of each call of `message`, and whether the arguments could stay an object.

    Arguments that cannot be sent as an object (nested too deep, an infinite number, half a surrogate pair) stay text.
    """
    for call in message.get("tool_calls") or ():
        text = call["function"]["arguments"]
        arguments = _parsed(text)
        whole = arguments is not None
        yield call["id"], call["function"]["name"], arguments if arguments is not None else {_AS_TEXT: text}, whole


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = from_json(text)
        if not isinstance(value, dict) or is_deeper(value, _DEEPEST):
            return None
        # No answer can carry a number that overflows.
        json.dumps(value, allow_nan=False)
    except ValueError:
        return None
    return value
