"""Finding a phrase in everything that is remembered of a session (CONTRACT §7).

What is found is quoted line by line behind `> `, so that nothing in it passes for another place that was found.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio

from nexus.core.ports import MemoryStore, MessageStore, Row
from nexus.core.tasks import ungrouped
from nexus.core.working_memory import Detail, Overview
from nexus.services.context.clock import parse_moment
from nexus.services.context.memory import as_text
from nexus.services.memory.kept import LOOKED_BACK, Caller, read_all
from nexus.tools.memory_tools import READING_TOOLS

_MOST_DETAILS: Final = 10
_MOST_MESSAGES: Final = 10
# Messages that are looked at: those of the run that asks are before its eyes, and what was found before is no find.
_LOOKED_AT: Final = 30
_BEFORE, _AFTER = 160, 320

_SPEAKERS: Final = {"HUMAN": "the user", "AI": "the assistant", "TOOL": "a tool"}


@dataclass(slots=True)
class _Found:
    overviews: Sequence[Overview] = ()
    details: Sequence[Detail] = ()
    messages: Sequence[Row] = ()


async def search(store: MemoryStore, messages: MessageStore, caller: Caller, query: str) -> str:
    """Where the phrase stands, with what stands around it, newest first; of bounded length.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    found = await _find(store, messages, caller, query)
    overview = next((each for each in found.overviews if _place(each.content, query) is not None), None)
    said = [row for row in found.messages if _is_find(row, caller)][:_MOST_MESSAGES]
    places = [_quoted(f"Overview, revision {overview.revision}", overview.content, query)] if overview else []
    places += [_quoted(_of_detail(detail, query), detail.content, query) for detail in found.details]
    places += [_quoted(_of_message(row), as_text(row.get("content")), query) for row in said]
    if not places:
        return f"Nothing that is remembered of this session has {query!r} in it. A shorter or rarer word may be found."
    full = len(found.details) == _MOST_DETAILS or len(said) == _MOST_MESSAGES
    more = "; there may be more, and a rarer phrase finds them" if full else ""
    return "\n\n".join([f"{query!r} was found in {len(places)} place{'' if len(places) == 1 else 's'}{more}.", *places])


async def _find(store: MemoryStore, messages: MessageStore, caller: Caller, query: str) -> _Found:
    found = _Found()

    async def find_overviews() -> None:
        documents = await store.overviews(*caller.session, limit=LOOKED_BACK)
        found.overviews = read_all(Overview, caller.session, documents)

    async def find_details() -> None:
        documents = await store.search_details(*caller.session, query, limit=_MOST_DETAILS)
        found.details = read_all(Detail, caller.session, documents)

    async def find_messages() -> None:
        rows = await messages.search_messages(*caller.session, query, limit=_LOOKED_AT)
        found.messages = [row for row in rows if row.get("owner_key") == caller.owner_key]

    with ungrouped():
        async with anyio.create_task_group() as tasks:
            for find in (find_overviews, find_details, find_messages):
                tasks.start_soon(find)
    return found


def _is_find(row: Row, caller: Caller) -> bool:
    return row.get("run_id") != caller.run_id and _tool_of(row) not in READING_TOOLS


def _tool_of(row: Row) -> str:
    metadata = row.get("metadata")
    name = metadata.get("tool_name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _of_detail(detail: Detail, query: str) -> str:
    place = _place(detail.content, query) or 0
    return f"Detail {detail.name} ({detail.kind}, version {detail.version}), at character {place}"


def _of_message(row: Row) -> str:
    said_at: Any = parse_moment(row.get("timestamp"))
    when = f"{said_at:%Y-%m-%d %H:%M} UTC" if said_at else "at an unknown time"
    who = _SPEAKERS.get(str(row.get("role")).upper(), "somebody")
    tool = _tool_of(row)
    return f"Message of {who}{f' {tool[:64]}' if tool else ''}, {when}".replace("\n", " ")


def _quoted(where: str, text: str, query: str) -> str:
    """A place, and what stands around the phrase there."""
    place = _place(text, query) or 0
    begin, end = max(place - _BEFORE, 0), place + len(query) + _AFTER
    excerpt = f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"
    return "\n".join([where, *(f"> {line}" for line in excerpt.splitlines())])


def _place(text: str, query: str) -> int | None:
    """Where the phrase begins; None where it is not."""
    match = re.search(re.escape(query), text, re.IGNORECASE)
    return match.start() if match else None
