"""The form of Anthropic's Messages API. Pure.

Demands of that API beyond its types, and how they are met:

- The first message is a user's and the roles alternate: consecutive messages of one side become one.
- The results of all calls of a message stand in the next one, before any text: they come first in the list that is
  given, so they come first here.
- No text is blank, and the last one of an assistant does not end in white space. It is cut off every assistant text, so
  that a text stays the same when more follows.
- `system` stands for itself; a system message further back becomes text of the user.
- At most four blocks carry a cache mark; here at most three do.
- The schema of a tool is that of an object and combines no others at its top.

The sources are in docs/decisions/0013-one-list-three-formats.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nexus.services.context.formats.base import (
    OPENING,
    Changes,
    Converted,
    GroupedMessages,
    Place,
    calls_of,
    counted,
    ending,
    leading_system,
    needs_opening,
    object_schema,
    trailing_system,
)

_COMBINING: Final = ("oneOf", "allOf", "anyOf")


def to_anthropic(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, stable: int, goes_on: bool = False
) -> Converted:
    """`messages` with `system` apart, and marks for the cache where the next call may go on from."""
    leading = leading_system(messages)
    system = [_text(message["content"]) for message in messages[:leading]]
    conversation = _Conversation()
    if needs_opening(messages, leading):
        conversation.open()
    places = [conversation.add(message) for message in messages[leading:]]
    last_blocks = [*system, *(conversation.grouped.messages[place.message]["content"][place.last] for place in places)]
    # System messages at the end are about this one list; the next list has others there.
    repeatable = max(len(messages) - trailing_system(messages), leading)
    for count in _repeated(leading, repeatable, stable, goes_on=goes_on):
        last_blocks[count - 1]["cache_control"] = {"type": "ephemeral"}
    shown = [_tool(tool) for tool in tools]
    return Converted(
        messages=conversation.grouped.messages,
        tools=[tool for tool, _ in shown],
        places=[None] * leading + [(place.message, place.first) for place in places],
        notes=[*conversation.notes(), *ending(messages), *_tool_notes(sum(changed for _, changed in shown))],
        system=system or None,
    )


class _Conversation:
    def __init__(self) -> None:
        self.grouped = GroupedMessages("content")
        self._changes = Changes()
        self._shortened = 0

    def open(self) -> None:
        self.grouped.add("user", [_text(OPENING)])
        self._changes.opened += 1

    def add(self, message: Mapping[str, Any]) -> Place:
        match message["role"]:
            case "assistant":
                return self.grouped.add("assistant", self._answer(message))
            case "tool":
                return self.grouped.add("user", [_result(message)])
            case role:
                self._changes.late_system += role == "system"
                return self.grouped.add("user", [_text(message["content"])])

    def _answer(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        blocks = []
        if message["content"] is not None:
            text = message["content"].rstrip()
            self._shortened += text != message["content"]
            blocks.append(_text(text))
        for call_id, name, arguments, whole in calls_of(message):
            self._changes.as_text += not whole
            blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
        return blocks

    def notes(self) -> list[str]:
        return [
            *self._changes.notes(),
            *counted(
                self._shortened,
                "assistant text ended in white space, which was cut",
                "assistant texts ended in white space, which was cut",
            ),
        ]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}


def _repeated(leading: int, count: int, stable: int, *, goes_on: bool) -> set[int]:
    """The numbers of leading messages, of `count`, that later calls repeat and behind which a cache mark belongs.

    The stable ones, and those of them in `system`. A mark further on would have the provider write, and charge for, a
    cache that is never read. But in the middle of a run the next call repeats the whole list, unless the state of the
    session has changed.
    """
    ends = {min(stable, leading), min(stable, count), count if goes_on else 0}
    return {end for end in ends if end > 0}


def _tool(tool: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    function = tool["function"]
    schema, changed = _plain(object_schema(function.get("parameters")))
    description = function.get("description") or ""
    described = {"description": description} if description.strip() else {}
    return {"name": function["name"], **described, "input_schema": schema}, changed


def _tool_notes(changed: int) -> list[str]:
    return counted(
        changed,
        "tool schema combines others at its top and is shown as one",
        "tool schemas combine others at their top and are shown as one",
    )


def _plain(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """`schema` without the keywords that the API refuses at its top, and whether it had any.

    Parameters that only those keywords name are kept. Which of them go together is lost: the tool has to check that.
    """
    refused = [word for word in _COMBINING if word in schema]
    if not refused:
        return schema, False
    plain = {key: value for key, value in schema.items() if key not in refused}
    options = [option for word in refused for option in _list(schema[word])]
    plain["properties"] = dict(plain["properties"])
    for option in options:
        named = _get(option, "properties")
        for name, described in named.items() if isinstance(named, Mapping) else ():
            plain["properties"].setdefault(name, described)
    needed = [name for option in _list(schema.get("allOf")) for name in _list(_get(option, "required"))]
    if needed:
        plain["required"] = list(dict.fromkeys([*plain.get("required", ()), *needed]))
    return plain, True


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None
