"""The run's own later messages in the form a model is called with (CONTRACT §4.6). Pure.

What comes out is a list that a strict provider accepts:

- A result stands directly after the assistant message that declared its call, also when it came later.
- Every call is answered before anything else follows; a lost result becomes a tool message that says so.
- Call ids are unique in the run, function names have the characters that providers allow, and no message is empty.

Repairs are noted. What was put out for a part of the run stays the same when the run goes on, unless a result comes
late.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nexus.core.models import Message, Role
from nexus.services.context.annotations import ToolCall, as_json, read_tool_calls
from nexus.services.context.memory import text_of_parts

_NO_RESULT: Final = "(no result was recorded for this call)"
_EMPTY_RESULT: Final = "(empty)"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARS: Final = 64


def provider_messages(later: Sequence[Message], escape: Callable[[str], str]) -> tuple[list[dict[str, Any]], list[str]]:
    """`later` as `assistant`, `tool` and `user` messages in the OpenAI form, and notes on what was repaired.

    SYSTEM and COMMAND messages are no part of what a model is given and are passed over.
    """
    return _Continuation(escape).convert(later)


@dataclass(slots=True)
class _Call:
    """A declared call.

    Attributes:
        given_id, name: what its result may name it by.
        id: what a provider sees.
        place: where it was declared, for the notes, which hold no content (CONTRACT §8).
    """

    given_id: str
    name: str
    id: str
    place: str
    result: str | None = None


@dataclass(slots=True)
class _Step:
    """One message, and, if it declared calls, their results."""

    message: dict[str, Any]
    calls: list[_Call] = field(default_factory=list)


class _Continuation:
    def __init__(self, escape: Callable[[str], str]) -> None:
        self._escape = escape
        self._steps: list[_Step] = []
        self._notes: list[str] = []
        self._ids: set[str] = set()

    def convert(self, later: Sequence[Message]) -> tuple[list[dict[str, Any]], list[str]]:
        for message in later:
            match message.role:
                case Role.TOOL:
                    self._add_result(message)
                case Role.AI:
                    self._add_answer(message)
                case Role.HUMAN:
                    self._add_text("user", self._text(message.content))
                case Role.SYSTEM | Role.COMMAND:
                    continue
        return [message for step in self._steps for message in self._shown(step)], self._notes

    def _add_answer(self, message: Message) -> None:
        content = message.content if isinstance(message.content, dict) else {"content": message.content}
        declared = read_tool_calls(content.get("tool_calls") or message.metadata.get("tool_calls"))
        text = self._text(content.get("content"))
        if not declared:
            self._add_text("assistant", text)
            return
        calls = [self._declare(call, f"{message.id}[{index}]") for index, call in enumerate(declared)]
        shown = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": source.raw_arguments}}
            for call, source in zip(calls, declared, strict=True)
        ]
        self._steps.append(_Step({"role": "assistant", "content": text or None, "tool_calls": shown}, calls))

    def _declare(self, source: ToolCall, place: str) -> _Call:
        name = _NOT_IN_A_NAME.sub("_", source.name)[:_NAME_CHARS]
        if name != source.name:
            self._notes.append(f"run.history: the tool name of call {place} has characters that providers refuse")
        call_id, number = source.id, len(self._ids)
        while not call_id or call_id in self._ids:
            call_id, number = f"call_{number}", number + 1
        if source.id and call_id != source.id:
            self._notes.append(f"run.history: the id of call {place} was used before and is shown as {call_id}")
        self._ids.add(call_id)
        return _Call(source.id, name, call_id, place)

    def _add_result(self, message: Message) -> None:
        content = message.content if isinstance(message.content, dict) and "result" in message.content else {}
        given_id = message.metadata.get("call_id") or content.get("call_id")
        name = message.metadata.get("tool_name") or content.get("tool_name")
        call = self._call_of_id(given_id) if given_id else self._call_of_name(name)
        if call is None:
            self._notes.append(f"run.history: the tool result {message.id} answers no open call and was left out")
            return
        call.result = self._text(content.get("result", message.content)) or _EMPTY_RESULT

    def _call_of_id(self, given_id: Any) -> _Call | None:
        """The open call of that id in the newest message that declared one: an id may be used again later."""
        for step in reversed(self._steps):
            same = [call for call in step.calls if call.given_id == given_id]
            if same:
                return next((call for call in same if call.result is None), None)
        return None

    def _call_of_name(self, name: Any) -> _Call | None:
        """Of the calls declared last and still open, the first of that name, else the only one."""
        latest = next((step.calls for step in reversed(self._steps) if step.calls), [])
        unanswered = [call for call in latest if call.result is None]
        same = [call for call in unanswered if call.name == name]
        alone = unanswered if len(unanswered) == 1 else []
        return next(iter(same or alone), None)

    def _add_text(self, role: str, text: str) -> None:
        if text:
            self._steps.append(_Step({"role": role, "content": text}))

    def _shown(self, step: _Step) -> list[dict[str, Any]]:
        for call in step.calls:
            if call.result is None:
                self._notes.append(f"run.history: call {call.place} has no result")
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": _NO_RESULT if call.result is None else call.result}
            for call in step.calls
        ]
        return [step.message, *results]

    def _text(self, content: Any) -> str:
        """A content as escaped text; `""` where nothing would be seen of it."""
        if content is None:
            return ""
        text = content if isinstance(content, str) else text_of_parts(content)
        escaped = self._escape(as_json(content) if text is None else text)
        return escaped if escaped.strip() else ""
