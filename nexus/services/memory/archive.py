"""Compacted messages word for word, as details of the working memory (contract §7). Pure.

    # Messages of compaction 7, part 1 of 2

    ## 1. AI, 2026-03-01 10:02:11.250Z {"id": "msg_1", "run": "run_1", "chars": 14}
    Let me look...

    ## 1. call 1 {"id": "call_1", "tool": "timetable", "chars": 15}
    {"to": "Porto"}

    ## 2. TOOL, 2026-03-01 10:02:12Z {"id": "msg_2", "call": "call_1", "status": "success", "chars": 22}
    ```
    9:02 Porto
    10:02 Porto
    ```

- Each text is unchanged behind a line with its number of characters, so that it can be read back whatever it holds. A
  text of several lines, or one that might look like a heading, stands between fences longer than those in it.
- A message stays in one part if it fits into one. A longer text goes on in the next, behind a line that says so.
- Content and arguments that are no text are JSON (`"form": "json"`). The run is named where it changes, and the role
  where it is an unusual one. Half a surrogate pair counts as one character.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any, Final

from nexus.core.models import metadata_of, parse_moment
from nexus.core.ports import Row
from nexus.services.history.tool_calls import given_arguments, read_tool_calls
from nexus.services.text.content import compact_json
from nexus.services.text.sentences import beginning, weight

# Characters of an id, a role or a name.
_MOST_NAME: Final = 256
_LONGEST_FENCE: Final = 16
_FENCES = re.compile("`{3,}")
# Facts of a result, with their keys in the metadata.
_ABOUT: Final = {"tool": "tool_name", "call": "call_id", "status": "status"}
_NAMES: Final = ("role", "id", "run", *_ABOUT)
_ROLES: Final = ("HUMAN", "AI", "TOOL", "SYSTEM")
# Of a part, the room for its title and for the fences around a text.
_TITLE_BYTES: Final = 128
_FENCE_BYTES: Final = 2 * _LONGEST_FENCE + 16


@dataclass(frozen=True, slots=True)
class _Section:
    """A text below its heading: its place (`1.` or `1. call 2`), the rest of the heading, and facts as JSON."""

    place: str
    heading: str
    facts: Mapping[str, Any]
    text: str

    def rendered(self) -> str:
        facts = {**self.facts, "chars": len(self.text)} if self.text else self.facts
        head = f"## {self.place}{self.heading} {_json(facts)}\n"
        if not self.text:
            return head
        if self.text.splitlines() == [self.text] and not self.text.startswith(("#", "`")):
            return f"{head}{self.text}\n"
        longest = max((len(found) for found in _FENCES.findall(self.text)), default=2)
        fence = "`" * min(longest + 1, _LONGEST_FENCE)
        return f"{head}{fence}\n{self.text}\n{fence}\n"


class _Pages:
    """Parts that are filled one after the other."""

    def __init__(self, most_bytes: int) -> None:
        self.pages: list[list[str]] = [[]]
        self._whole = self._room = most_bytes - _TITLE_BYTES

    def write(self, sections: Sequence[_Section]) -> None:
        """Write a message into the rest of this part, else into the next, else into as many as it takes."""
        rendered = [section.rendered() for section in sections]
        size = sum(map(weight, rendered)) + len(rendered)
        if size > self._whole:
            for section in sections:
                self._divide(section)
            return
        if size > self._room:
            self._turn()
        self._put(*rendered)

    def _divide(self, section: _Section) -> None:
        begin, shown = 0, section
        while begin < len(section.text) or shown is section:
            # The bytes that may stand around the text, and one between it and the next.
            shell = weight(replace(shown, text="-").rendered()) + _FENCE_BYTES + 1
            if self._room < shell + self._whole // 4:
                self._turn()
            room = self._room - shell
            window = section.text[begin : begin + max(room, 1)]
            at = beginning(window, room) if window else 0
            self._put(replace(shown, text=window[:at]).rendered())
            begin, shown = begin + at, _Section(section.place, " goes on", {}, "")

    def _put(self, *texts: str) -> None:
        self.pages[-1] += texts
        self._room -= sum(map(weight, texts)) + len(texts)

    def _turn(self) -> None:
        if self.pages[-1]:
            self.pages.append([])
        self._room = self._whole


def archive(rows: Sequence[Row], number: int, *, most_bytes: int, attempt: int = 1) -> list[tuple[str, str]]:
    """The rows, in the order of the conversation, as names and contents of the details of a compaction.

    Each has at most `most_bytes` bytes in UTF-8, of which there are 1,024 at least. From 2 on, `attempt` is part of the
    names, where those of earlier attempts are taken.
    """
    pages, run_id = _Pages(most_bytes), ""
    for index, row in enumerate(rows, start=1):
        before, run_id = run_id, _name(row.get("run_id"))
        pages.write(_sections(row, index, {} if run_id == before else {"run": run_id}, most_bytes // 4))
    name = f"compaction-{number:04}" + (f"-again-{attempt}" if attempt > 1 else "")
    return [
        (
            name if place == 1 else f"{name}-part-{place}",
            "\n".join([f"# Messages of compaction {number}, part {place} of {len(pages.pages)}\n", *page]),
        )
        for place, page in enumerate(pages.pages, start=1)
    ]


def _sections(row: Row, index: int, run: Mapping[str, str], most_facts: int) -> list[_Section]:
    known = metadata_of(row)
    content, role, row_id = row.get("content"), _name(row.get("role")), _name(row.get("id"))
    facts = {
        **({} if role in _ROLES else {"role": role}),
        **({"id": row_id} if row_id else {}),
        **run,
        **{name: _name(known[key]) for name, key in _ABOUT.items() if known.get(key) and role.upper() == "TOOL"},
        **({} if isinstance(content, str) else {"form": "json"}),
    }
    text = content if isinstance(content, str) else compact_json(content)
    calls = known.get("tool_calls")
    given = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list | tuple) else []
    sections = [
        _Section(f"{index}.", f" {role if role in _ROLES else 'UNKNOWN'}, {_at(row)}", facts, text),
        *(_call(call, f"{index}. call {place}") for place, call in enumerate(given, start=1)),
    ]
    return [replace(section, facts=_within(section.facts, most_facts)) for section in sections]


def _at(row: Row) -> str:
    moment = parse_moment(row.get("timestamp"))
    if moment is None:
        return "at an unknown time"
    at = moment.astimezone(UTC).replace(tzinfo=None)
    # As exactly as it is known, and stores keep milliseconds.
    exactness = "auto" if at.microsecond % 1_000 else "milliseconds" if at.microsecond else "seconds"
    return f"{at.isoformat(' ', exactness)}Z"


def _call(call: Mapping[str, Any], place: str) -> _Section:
    (read,) = read_tool_calls([call])
    given = given_arguments(call)
    facts = {"id": _name(read.id), "tool": _name(read.name)}
    return _Section(place, "", facts, given if isinstance(given, str) else compact_json(given))


def _within(facts: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """The facts in at most so many bytes: the longest names are cut."""
    while weight(_json(facts)) > most and any(len(str(facts.get(name))) > 1 for name in _NAMES):
        facts = {name: value[: len(value) // 2] if name in _NAMES else value for name, value in facts.items()}
    return facts


def _json(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False)


def _name(value: Any) -> str:
    return value[:_MOST_NAME] if isinstance(value, str) else "" if value is None else compact_json(value)[:_MOST_NAME]
