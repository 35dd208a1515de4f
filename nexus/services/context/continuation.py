"""The run's own later messages in the form a model is called with (CONTRACT §4.6). Pure.

What comes out is a list that a strict provider accepts: every tool message answers a call of the assistant message
before it, every call is answered before anything else follows, and no message is empty. Repairs are noted.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from nexus.core.models import Message, Role
from nexus.services.context.annotations import ToolCall, read_tool_calls
from nexus.services.context.memory import text_of_parts

_NO_RESULT: Final = "(no result was recorded for this call)"


def provider_messages(later: Sequence[Message], escape: Callable[[str], str]) -> tuple[list[dict[str, Any]], list[str]]:
    """`later` as `assistant`, `tool` and `user` messages in the OpenAI form, and notes on what was repaired.

    SYSTEM and COMMAND messages are no part of what a model is given and are passed over.
    """
    return _Continuation(escape).convert(later)


class _Continuation:
    def __init__(self, escape: Callable[[str], str]) -> None:
        self._escape = escape
        self._messages: list[dict[str, Any]] = []
        self._notes: list[str] = []
        # Calls of the last assistant message that no result has answered yet, by the id that a provider sees.
        self._open: dict[str, ToolCall] = {}

    def convert(self, later: Sequence[Message]) -> tuple[list[dict[str, Any]], list[str]]:
        for message in later:
            match message.role:
                case Role.TOOL:
                    self._add_result(message)
                case Role.AI:
                    self._add_answer(message)
                case Role.HUMAN:
                    self._add_text("user", _text(message.content))
                case Role.SYSTEM | Role.COMMAND:
                    continue
        self._close()
        return self._messages, self._notes

    def _add_answer(self, message: Message) -> None:
        content = message.content if isinstance(message.content, dict) else {"content": message.content}
        calls = read_tool_calls(message.metadata.get("tool_calls") or content.get("tool_calls"))
        text = _text(content.get("content"))
        if not calls:
            self._add_text("assistant", text)
            return
        self._close()
        declared = []
        for position, call in enumerate(calls):
            call_id = call.id if call.id and call.id not in self._open else f"{message.id}_{position}"
            self._open[call_id] = call
            function = {"name": call.name, "arguments": call.raw_arguments}
            declared.append({"id": call_id, "type": "function", "function": function})
        shown = self._escape(text) if text else None
        self._messages.append({"role": "assistant", "content": shown, "tool_calls": declared})

    def _add_result(self, message: Message) -> None:
        content = message.content if isinstance(message.content, dict) and "result" in message.content else {}
        given = message.metadata.get("call_id") or content.get("call_id") or ""
        name = message.metadata.get("tool_name") or content.get("tool_name")
        call_id = given if given in self._open else self._unnamed(given, name)
        if call_id is None:
            self._notes.append(f"run.history: the tool result {message.id} answers no open call and was left out")
            return
        del self._open[call_id]
        text = self._escape(_text(content.get("result", message.content)))
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": text or "(empty)"})

    def _unnamed(self, given: str, name: Any) -> str | None:
        """The open call that a result without an id belongs to: the first of that name, else the only one."""
        if given:
            return None
        same = [call_id for call_id, call in self._open.items() if call.name == name]
        if same:
            return same[0]
        return next(iter(self._open)) if len(self._open) == 1 else None

    def _add_text(self, role: str, text: str) -> None:
        if text.strip():
            self._close()
            self._messages.append({"role": role, "content": self._escape(text)})

    def _close(self) -> None:
        for call_id in self._open:
            self._notes.append(f"run.history: the call {call_id} has no result")
            self._messages.append({"role": "tool", "tool_call_id": call_id, "content": _NO_RESULT})
        self._open.clear()


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return text_of_parts(content) or json.dumps(content, ensure_ascii=False, default=str)
