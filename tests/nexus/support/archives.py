"""Archives read back: the form that `nexus.services.memory.archive` documents (contract §7)."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_HEADING: Final = re.compile(r"## (\d+)\.(?: call (\d+)| \w+, [^{]+?)?( goes on)? (?=\{)")
_FENCE: Final = "```"


@dataclass(slots=True)
class Archived:
    """A message that was read back: `text` is JSON where `is_json`; `calls` are the arguments of its calls."""

    id: str
    run_id: str
    text: str
    is_json: bool = False
    calls: list[str] = field(default_factory=list)


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
    number, call, goes_on = heading.groups()
    message = messages.get(int(number))
    if call and message:
        if goes_on:
            message.calls[-1] += text
        else:
            message.calls.append(text)
    elif goes_on and message:
        message.text += text
    else:
        before = next(reversed(messages.values())).run_id if messages else ""
        messages[int(number)] = Archived(facts.get("id", ""), facts.get("run", before), text, "form" in facts)
