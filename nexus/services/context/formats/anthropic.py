"""The form of Anthropic's Messages API. Pure.

Demands of that API beyond its types, and how they are met:

- The first message is a user's and the roles alternate: consecutive messages of one side become one.
- The results of all calls of a message stand in the next one, before any text: they come first in the list that is
  given, so they come first here.
- No text is blank, and the last one of an assistant does not end in white space. It is cut off every assistant text, so
  that a text stays the same when more follows.
- `system` stands for itself; a system message further back becomes text of the user.
- At most four blocks carry a cache mark; here at most three do.
- That a call failed is said by `is_error`.

The sources are in docs/decisions/0013-one-list-three-formats.md; the rules for tools and images are in `rules.py`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nexus.core.models import LeftOut
from nexus.services.context.formats.base import (
    AS_TEXT,
    FAILED,
    LATE_SYSTEM,
    OPENED,
    OPENING,
    Converted,
    GroupedMessages,
    Place,
    calls_of,
    counted,
    ending,
    leading_system,
    needs_opening,
    trailing_system,
)
from nexus.services.context.formats.media import Image, read_parts
from nexus.services.context.formats.rules import ANTHROPIC
from nexus.services.context.formats.tools import shown_tools

_SHORTENED: Final = "assistant texts that ended in white space, which was cut"


def to_anthropic(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, stable: int, goes_on: bool = False
) -> Converted:
    """`messages` with `system` apart, and marks for the cache where the next call may go on from."""
    leading = leading_system(messages)
    system = [_text(message["content"]) for message in messages[:leading]]
    conversation = _Conversation()
    if needs_opening(messages, leading):
        conversation.open()
    places = [conversation.add(message, index) for index, message in enumerate(messages[leading:], leading)]
    last_blocks = [*system, *(conversation.grouped.messages[place.message]["content"][place.last] for place in places)]
    # System messages at the end are about this one list; the next list has others there.
    repeatable = max(len(messages) - trailing_system(messages), leading)
    for count in _repeated(leading, repeatable, stable, goes_on=goes_on):
        last_blocks[count - 1]["cache_control"] = {"type": "ephemeral"}
    shown = shown_tools(tools, ANTHROPIC)
    return Converted(
        messages=conversation.grouped.messages,
        tools=[_tool(function) for function in shown.functions],
        places=[None] * leading + [(place.message, place.first) for place in places],
        notes=[*counted(conversation.changes), *ending(messages), *counted(shown.repaired)],
        system=system or None,
        left_out=[*conversation.left_out, *shown.left_out],
        renamed=shown.renamed,
    )


class _Conversation:
    def __init__(self) -> None:
        self.grouped = GroupedMessages("content")
        self.left_out: list[LeftOut] = []
        self.changes = Counter[str]()

    def open(self) -> None:
        self.grouped.add("user", [_text(OPENING)])
        self.changes[OPENED] += 1

    def add(self, message: Mapping[str, Any], index: int) -> Place:
        match message["role"]:
            case "assistant":
                return self.grouped.add("assistant", self._answer(message))
            case "tool":
                return self.grouped.add("user", [_result(message)])
            case role:
                self.changes[LATE_SYSTEM] += role == "system"
                parts = read_parts(message["content"], ANTHROPIC, f"messages[{index}]", self.left_out)
                return self.grouped.add(
                    "user", [_text(part) if isinstance(part, str) else _image(part) for part in parts]
                )

    def _answer(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        blocks = []
        if message["content"] is not None:
            text = message["content"].rstrip()
            self.changes[_SHORTENED] += text != message["content"]
            blocks.append(_text(text))
        for call_id, name, arguments, whole in calls_of(message):
            self.changes[AS_TEXT] += not whole
            blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
        return blocks


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    failed = {"is_error": True} if message.get(FAILED) else {}
    return {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"], **failed}


def _image(image: Image) -> dict[str, Any]:
    if image.address:
        return {"type": "image", "source": {"type": "url", "url": image.address}}
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    described = {"description": function["description"]} if function["description"].strip() else {}
    schema = function.get("parameters", {"type": "object", "properties": {}})
    return {"name": function["name"], **described, "input_schema": schema}


def _repeated(leading: int, count: int, stable: int, *, goes_on: bool) -> set[int]:
    """The numbers of leading messages, of `count`, that later calls repeat and behind which a cache mark belongs.

    The stable ones, and those of them in `system`. A mark further on would have the provider write, and charge for, a
    cache that is never read. But in the middle of a run the next call repeats the whole list, unless the state of the
    session has changed.
    """
    ends = {min(stable, leading), min(stable, count), count if goes_on else 0}
    return {end for end in ends if end > 0}
