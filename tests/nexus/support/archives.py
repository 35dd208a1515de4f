"""Archives read back: the form that `nexus.services.memory.archives` documents (CONTRACT §7)."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_ABOUT: Final = ("tool", "call_id", "status")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a message; `arguments` as they were recorded, or as JSON where they were no text."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Archived:
    """A message that was read back.

    Attributes:
        text: its content; JSON where `is_json`.
        at: its time in ISO 8601; `""` for none that can be read.
        about: of a result: `tool`, `call_id` and `status`.
    """

    role: str
    id: str
    run_id: str
    at: str
    text: str
    is_json: bool = False
    about: dict[str, str] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)


def read_archive(contents: Iterable[str]) -> list[Archived]:
    """The messages in these details, which are all parts of one archive in their order.

    Raises:
        ValueError: this is no such archive.
    """
    messages: dict[int, Archived] = {}
    for content in contents:
        for facts, text in _read_sections(content):
            _take(messages, facts, text)
    return list(messages.values())


def _read_sections(content: str) -> Iterator[tuple[dict[str, Any], str]]:
    begin = content.find("\n{") + 1
    while begin:
        end = content.index("\n", begin)
        facts = json.loads(content[begin:end])
        text_at = content.index("\n", end + 1) + 1
        text = content[text_at : text_at + facts["chars"]]
        if len(text) < facts["chars"]:
            raise ValueError("the archive ends within a text")
        yield facts, text
        begin = content.find("\n{", text_at + len(text)) + 1


def _take(messages: dict[int, Archived], facts: Mapping[str, Any], text: str) -> None:
    message = messages.get(facts["message"])
    if message is None:
        about = {name: facts[name] for name in _ABOUT if name in facts}
        role, row_id, run_id, at = (facts[name] for name in ("role", "id", "run_id", "at"))
        messages[facts["message"]] = Archived(role, row_id, run_id, at, text, "form" in facts, about)
    elif "call" not in facts:
        message.text += text
    elif facts.get("goes_on"):
        last = message.calls[-1]
        message.calls[-1] = Call(last.id, last.name, last.arguments + text)
    else:
        message.calls.append(Call(facts["id"], facts["tool"], text))
