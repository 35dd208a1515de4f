"""The form of Gemini's `generateContent`. Pure.

Demands of that API beyond its types, and how they are met:

- A function call comes directly after a user text or after function responses, so consecutive messages of the model
  become one content.
- The responses to all calls of a content stand in the next one, as many as there are calls, and nothing else stands
  there: text of the user beside them becomes a content of its own.
- A response has the name of its call, and `error` instead of `output` if it failed.
- The first call of a content has a thought signature. Ours are not known, and the value for unknown ones stands there
  always, so that a call stays the same when more follows.

The names of fields are those of the protocol buffers, which the REST API and the SDK both read. The sources are in
docs/decisions/0013-one-list-three-formats.md; the rules for tools and images are in `rules.py`.
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
    calls_of,
    counted,
    ending,
    leading_system,
    needs_opening,
)
from nexus.services.context.formats.media import Image, read_parts
from nexus.services.context.formats.rules import GEMINI
from nexus.services.context.formats.tools import shown_tools

# The value that Google has for calls whose signature is not known.
_NO_SIGNATURE: Final = "skip_thought_signature_validator"


def to_gemini(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, stable: int, goes_on: bool = False
) -> Converted:
    """`messages` as `contents`, with `system` apart. Gemini finds cached prefixes by itself."""
    del stable, goes_on
    leading = leading_system(messages)
    system = [{"text": message["content"]} for message in messages[:leading]]
    conversation = _Conversation()
    if needs_opening(messages, leading):
        conversation.open()
    places = [conversation.add(message, index) for index, message in enumerate(messages[leading:], leading)]
    shown = shown_tools(tools, GEMINI)
    declarations = [_declaration(function) for function in shown.functions]
    return Converted(
        messages=conversation.grouped.messages,
        tools=[{"function_declarations": declarations}] if declarations else [],
        places=[None] * leading + places,
        notes=[*counted(conversation.changes), *ending(messages), *counted(shown.repaired)],
        system={"parts": system} if system else None,
        left_out=[*conversation.left_out, *shown.left_out],
        renamed=shown.renamed,
    )


class _Conversation:
    def __init__(self) -> None:
        self.grouped = GroupedMessages("parts")
        self.left_out: list[LeftOut] = []
        self._names: dict[str, str] = {}
        self.changes = Counter[str]()

    def open(self) -> None:
        self.grouped.add("user", [{"text": OPENING}], "text")
        self.changes[OPENED] += 1

    def add(self, message: Mapping[str, Any], index: int) -> tuple[int, int]:
        match message["role"]:
            case "assistant":
                place = self.grouped.add("model", self._answer(message))
            case "tool":
                place = self.grouped.add("user", [self._response(message)], "responses")
            case role:
                self.changes[LATE_SYSTEM] += role == "system"
                parts = read_parts(message["content"], GEMINI, f"messages[{index}]", self.left_out)
                shown = [{"text": part} if isinstance(part, str) else _image(part) for part in parts]
                place = self.grouped.add("user", shown, "text")
        return place.message, place.first

    def _answer(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [] if message["content"] is None else [{"text": message["content"]}]
        signature = {"thought_signature": _NO_SIGNATURE}
        for call_id, name, arguments, whole in calls_of(message):
            self.changes[AS_TEXT] += not whole
            self._names[call_id] = name
            call = {"name": name, "args": arguments, "id": call_id}
            parts.append({"function_call": call, **signature})
            signature = {}
        return parts

    def _response(self, message: Mapping[str, Any]) -> dict[str, Any]:
        call_id = message["tool_call_id"]
        response = {"error" if message.get(FAILED) else "output": message["content"]}
        return {"function_response": {"name": self._names[call_id], "id": call_id, "response": response}}


def _image(image: Image) -> dict[str, Any]:
    if image.address:
        return {"file_data": {"file_uri": image.address, "mime_type": image.media_type}}
    return {"inline_data": {"mime_type": image.media_type, "data": image.data}}


def _declaration(function: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as a declaration; one without parameters has no schema."""
    name, description, schema = function["name"], function["description"], function.get("parameters", {})
    needs_some = any(value for key, value in schema.items() if key != "type")
    with_schema = {"parameters_json_schema": schema} if needs_some else {}
    return {"name": name, "description": description if description.strip() else name, **with_schema}
