"""Finds a phrase in everything that is remembered of a session (contract §7).

Finds are quoted line by line behind `> `, so that no text can pass for another find; the line that names the place is
one line, whatever names are in it. Calls and results of the two reading tools are no finds: they would stand before
the messages that they searched for. Messages of the run that asks come last; they may have left its context.
"""

import re
import unicodedata
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
from anyio import to_thread

from nexus.core.concurrency import ungrouped
from nexus.core.models import Role, parse_moment, role_of
from nexus.core.ports import MemoryStore, MessageStore, Row
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.history.forms import native
from nexus.services.history.tool_calls import ToolCall, given_arguments, read_tool_calls
from nexus.services.memory.documents import LOOKED_BACK, Caller, read_all
from nexus.services.text.content import as_text, compact_json
from nexus.services.text.escape import one_line
from nexus.services.tools.memory_tools import READING_TOOLS

_MOST_DETAILS: Final = 10
_MOST_MESSAGES: Final = 10
_MOST_OF_THE_RUN: Final = 5
# Characters of context around a find.
_BEFORE, _AFTER = 160, 320
_NAME_CHARS: Final = 64
# Levels of texts within arguments that are searched.
_DEEPEST: Final = 20

_SPEAKERS: Final = {Role.HUMAN: "the user", Role.AI: "the assistant", Role.TOOL: "a tool"}


@dataclass(frozen=True, slots=True)
class _Found:
    overviews: Sequence[Overview]
    compactions: Sequence[Compaction]
    details: Sequence[Detail]
    earlier: Sequence[Row]
    of_the_run: Sequence[Row]

    @property
    def may_be_more(self) -> bool:
        return (
            len(self.details) == _MOST_DETAILS
            or len(self.earlier) == _MOST_MESSAGES
            or len(self.of_the_run) == _MOST_OF_THE_RUN
        )


async def search(store: MemoryStore, messages: MessageStore, caller: Caller, query: str) -> str:
    """The places of the phrase with the text around them, newest first, in bounded length.

    A phrase that stands nowhere as it is written is searched in its composed and decomposed Unicode forms too.
    """
    forms = [query, unicodedata.normalize("NFC", query), unicodedata.normalize("NFD", query)]
    for form in (form for form in dict.fromkeys(forms) if len(form) <= LONGEST_QUERY):
        found = await _find(store, messages, caller, form)
        if places := await to_thread.run_sync(_places, found, caller, form, abandon_on_cancel=True):
            more = "; there may be more, and a rarer phrase finds them" if found.may_be_more else ""
            count = f"{len(places)} place{'' if len(places) == 1 else 's'}"
            return "\n\n".join([f"{query!r} was found in {count}{more}.", *places])
    return f"Nothing that is remembered of this session has {query!r} in it. A shorter or rarer word may be found."


def texts_of(row: Row, without_tools: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Each text of a row in which phrases are searched, with the name of the called tool; `""` for the content.

    A call has its name with its arguments as JSON, the texts within these, and the arguments as they were written,
    which need not be JSON. The row may be malformed. Calls of the tools in `without_tools` have no texts.
    """
    for part in native(row):
        content, metadata = part.get("content"), part.get("metadata")
        if isinstance(content, str | list | dict):
            yield "", as_text(content)
        stored = metadata.get("tool_calls") if isinstance(metadata, Mapping) else None
        for given in stored if isinstance(stored, list | tuple) else ():
            for call in read_tool_calls([given]):
                if call.name not in without_tools:
                    yield from ((call.name, text) for text in _texts_of_call(call, given))


def tool_of(row: Row) -> str:
    """The name of the tool whose result the row is; `""` for none."""
    metadata = row.get("metadata")
    name = metadata.get("tool_name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) else ""


def place_of(text: str, phrase: str) -> int | None:
    """The character at which the phrase begins, ignoring case; None where it does not occur."""
    match = re.search(re.escape(phrase), text, re.IGNORECASE)
    return match.start() if match else None


def _texts_of_call(call: ToolCall, given: Mapping[str, Any]) -> Iterator[str]:
    yield f"{call.name} {compact_json(call.arguments)}"
    yield from _texts_in(call.arguments, _DEEPEST)
    written = given_arguments(given)
    if isinstance(written, str):
        yield written


def _texts_in(value: Any, levels: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif levels and isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(each, levels - 1)


def _places(found: _Found, caller: Caller, query: str) -> list[str]:
    overviews = (each for each in found.overviews if place_of(each.content, query) is not None)
    places = [_quoted(f"Overview, revision {each.revision}", each.content, query) for each in overviews][:1]
    places += [
        _quoted(f"Summary of compaction {each.number}, the newest", each.summary, query)
        for each in found.compactions
        if place_of(each.summary, query) is not None
    ]
    for detail in found.details:
        at = place_of(detail.content, query) or 0
        head = f"Detail {one_line(detail.name)} ({detail.kind}, version {detail.version}), at character {at}"
        places.append(_quoted(head, detail.content, query))
    rows = (row for row in (*found.earlier, *found.of_the_run) if row.get("owner_key") == caller.owner_key)
    return [*places, *(_quoted_message(row, caller, query) for row in rows)]


async def _find(store: MemoryStore, messages: MessageStore, caller: Caller, query: str) -> _Found:
    session, found = caller.session, dict[str, Sequence[Row]]()
    find_messages = partial(
        messages.search_messages, *session, query, limit=_MOST_MESSAGES, texts_of=texts_of, without_tools=READING_TOOLS
    )

    async def read(name: str, find: Callable[[], Awaitable[Sequence[Row]]]) -> None:
        found[name] = await find()

    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, "overviews", partial(store.overviews, *session, limit=LOOKED_BACK))
            tasks.start_soon(read, "details", partial(store.search_details, *session, query, limit=_MOST_DETAILS))
            tasks.start_soon(read, "earlier", partial(find_messages, without_run=caller.run_id))
            tasks.start_soon(read, "newest", find_messages)
            compaction = await store.latest_compaction(*session)
    return _Found(
        read_all(Overview, session, found["overviews"]),
        read_all(Compaction, session, [compaction]),
        read_all(Detail, session, found["details"]),
        found["earlier"],
        [row for row in found["newest"] if row.get("run_id") == caller.run_id][:_MOST_OF_THE_RUN],
    )


def _quoted_message(row: Row, caller: Caller, query: str) -> str:
    # One row may be several messages.
    parts = native(row)
    row = next((part for part in parts if any(_has(part, query))), parts[0])
    texts = list(texts_of(row, READING_TOOLS)) or [("", "")]
    called, text = next((each for each in texts if place_of(each[1], query) is not None), texts[0])
    role = role_of(row)
    speaker = _SPEAKERS.get(role, "somebody") if role else "somebody"
    tool = one_line(called or tool_of(row))[:_NAME_CHARS]
    what = f"Call of {tool or 'a tool'}" if called else f"Message of {speaker}{f' {tool}' if tool else ''}"
    moment: Any = parse_moment(row.get("timestamp"))
    when = f"{moment:%Y-%m-%d %H:%M} UTC" if moment else "at an unknown time"
    now = ", in this exchange" if row.get("run_id") == caller.run_id else ""
    return _quoted(f"{what}, {when}{now}", text, query)


def _has(row: Row, query: str) -> Iterator[bool]:
    return (place_of(text, query) is not None for _, text in texts_of(row, READING_TOOLS))


def _quoted(head: str, text: str, query: str) -> str:
    place = place_of(text, query) or 0
    begin, end = max(place - _BEFORE, 0), place + len(query) + _AFTER
    excerpt = f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"
    return "\n".join([head, *(f"> {line}" for line in excerpt.splitlines())])
