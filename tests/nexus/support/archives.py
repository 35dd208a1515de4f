"""Archives read back: the form that `nexus.services.memory.archive` documents (contract §7)."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

_ABOUT: Final = {"tool": "tool", "call": "call_id", "status": "status"}
_HEADING: Final = re.compile(r"## (\d+)\.(?: call (\d+)| (\w+), ([^{]+?))?( goes on)? (?=\{)")
_FENCE: Final = "```"


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
        for heading, facts, text in _read_sections(content):
            _take(messages, heading, facts, text)
    return list(messages.values())


def _read_sections(content: str) -> Iterator[tuple[re.Match[str], dict[str, Any], str]]:
    begin = content.find("\n## ") + 1
    while begin:
        end = content.index("\n", begin)
        heading = _HEADING.match(content, begin, end)
        if not heading:
            raise ValueError(f"no heading: {content[begin:end]}")
        facts = json.loads(content[heading.end() : end])
        at, chars = end + 1, facts.get("chars", 0)
        if chars and content.startswith(_FENCE, at):
            at = content.index("\n", at) + 1
        text = content[at : at + chars]
        if len(text) < chars:
            raise ValueError("the archive ends within a text")
        yield heading, facts, text
        begin = content.find("\n## ", at + chars - 1) + 1


def _take(messages: dict[int, Archived], heading: re.Match[str], facts: Mapping[str, Any], text: str) -> None:
    number, call, role, at, goes_on = heading.groups()
    message = messages.get(int(number))
    if call and message:
        if goes_on:
            last = message.calls[-1]
            message.calls[-1] = Call(last.id, last.name, last.arguments + text)
        else:
            message.calls.append(Call(facts["id"], facts["tool"], text))
    elif goes_on and message:
        message.text += text
    else:
        before = next(reversed(messages.values())).run_id if messages else ""
        about = {name: facts[key] for key, name in _ABOUT.items() if key in facts}
        messages[int(number)] = Archived(
            facts.get("role", role),
            facts.get("id", ""),
            facts.get("run", before),
            datetime.fromisoformat(at).isoformat() if at[0].isdigit() else "",
            text,
            "form" in facts,
            about,
        )
