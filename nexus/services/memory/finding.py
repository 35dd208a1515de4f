"""Finding a phrase in everything that is remembered of a session (CONTRACT §7).

What is found is quoted line by line behind `> `, so that nothing in it passes for another place that was found; what
says where it stands is on one line, whatever is called how.

What the two reading tools were asked and have answered is no find, however often: it would stand before what they were
asked for. What the run that asks has said itself is, behind the rest, since it may not be in its context any more.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio

from nexus.core.ports import MemoryStore, MessageStore, Row
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.tasks import ungrouped
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.context.clock import parse_moment
from nexus.services.memory.documents import LOOKED_BACK, Caller, read_all
from nexus.services.memory.phrases import place_of, texts_of, tool_of
from nexus.services.text.escape import one_line
from nexus.services.tools.memory_tools import READING_TOOLS

_MOST_DETAILS: Final = 10
_MOST_MESSAGES: Final = 10
_MOST_OF_THE_RUN: Final = 5
_BEFORE, _AFTER = 160, 320
_NAME_CHARS: Final = 64

_SPEAKERS: Final = {"HUMAN": "the user", "AI": "the assistant", "TOOL": "a tool"}


@dataclass(slots=True)
class _Found:
    overviews: Sequence[Overview] = ()
    compactions: Sequence[Compaction] = ()
    details: Sequence[Detail] = ()
    before: Sequence[Row] = ()
    of_the_run: Sequence[Row] = ()

    @property
    def is_full(self) -> bool:
        """Whether there may be more."""
        return (
            len(self.details) == _MOST_DETAILS
            or len(self.before) == _MOST_MESSAGES
            or len(self.of_the_run) == _MOST_OF_THE_RUN
        )


async def search(store: MemoryStore, messages: MessageStore, caller: Caller, query: str) -> str:
    """Where the phrase stands, with what stands around it, newest first; of bounded length.

    A phrase that stands nowhere as it is written is looked for as the same letters are written otherwise.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    for form in _forms(query):
        found = await _find(store, messages, caller, form)
        if places := _places(found, caller, form):
            more = "; there may be more, and a rarer phrase finds them" if found.is_full else ""
            count = f"{len(places)} place{'' if len(places) == 1 else 's'}"
            return "\n\n".join([f"{query!r} was found in {count}{more}.", *places])
    return f"Nothing that is remembered of this session has {query!r} in it. A shorter or rarer word may be found."


def _forms(query: str) -> list[str]:
    """The ways to write the phrase: with letters and their marks as it has them, as one character, and apart."""
    forms = [query, unicodedata.normalize("NFC", query), unicodedata.normalize("NFD", query)]
    return [form for form in dict.fromkeys(forms) if len(form) <= LONGEST_QUERY]


def _places(found: _Found, caller: Caller, query: str) -> list[str]:
    overviews = (each for each in found.overviews if place_of(each.content, query) is not None)
    places = [_quoted(f"Overview, revision {each.revision}", each.content, query) for each in overviews][:1]
    places += [
        _quoted(f"Summary of compaction {each.number}, the newest", each.summary, query)
        for each in found.compactions
        if place_of(each.summary, query) is not None
    ]
    places += [_quoted(_of_detail(detail, query), detail.content, query) for detail in found.details]
    rows = (row for row in (*found.before, *found.of_the_run) if row.get("owner_key") == caller.owner_key)
    return [*places, *(_of_message(row, caller, query) for row in rows)]


async def _find(store: MemoryStore, messages: MessageStore, caller: Caller, query: str) -> _Found:
    found = _Found()

    async def find_overviews() -> None:
        documents = await store.overviews(*caller.session, limit=LOOKED_BACK)
        found.overviews = read_all(Overview, caller.session, documents)

    async def find_summary() -> None:
        document = await store.latest_compaction(*caller.session)
        found.compactions = read_all(Compaction, caller.session, [document])

    async def find_details() -> None:
        documents = await store.search_details(*caller.session, query, limit=_MOST_DETAILS)
        found.details = read_all(Detail, caller.session, documents)

    async def find_before() -> None:
        found.before = await messages.search_messages(
            *caller.session, query, limit=_MOST_MESSAGES, without_tools=READING_TOOLS, without_run=caller.run_id
        )

    async def find_of_the_run() -> None:
        rows = await messages.search_messages(*caller.session, query, limit=_MOST_MESSAGES, without_tools=READING_TOOLS)
        found.of_the_run = [row for row in rows if row.get("run_id") == caller.run_id][:_MOST_OF_THE_RUN]

    with ungrouped():
        async with anyio.create_task_group() as tasks:
            for find in (find_overviews, find_summary, find_details, find_before, find_of_the_run):
                tasks.start_soon(find)
    return found


def _of_detail(detail: Detail, query: str) -> str:
    place = place_of(detail.content, query) or 0
    return f"Detail {one_line(detail.name)} ({detail.kind}, version {detail.version}), at character {place}"


def _of_message(row: Row, caller: Caller, query: str) -> str:
    """Where in a message the phrase stands, and what stands around it there."""
    texts = list(texts_of(row, READING_TOOLS)) or [("", "")]
    called, text = next((each for each in texts if place_of(each[1], query) is not None), texts[0])
    who = _SPEAKERS.get(str(row.get("role")).upper(), "somebody")
    tool = one_line(called or tool_of(row))[:_NAME_CHARS]
    what = f"Call of {tool or 'a tool'}" if called else f"Message of {who}{f' {tool}' if tool else ''}"
    said_at: Any = parse_moment(row.get("timestamp"))
    when = f"{said_at:%Y-%m-%d %H:%M} UTC" if said_at else "at an unknown time"
    now = ", in this exchange" if row.get("run_id") == caller.run_id else ""
    return _quoted(f"{what}, {when}{now}", text, query)


def _quoted(where: str, text: str, query: str) -> str:
    """A place, and what stands around the phrase there."""
    place = place_of(text, query) or 0
    begin, end = max(place - _BEFORE, 0), place + len(query) + _AFTER
    excerpt = f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"
    return "\n".join([where, *(f"> {line}" for line in excerpt.splitlines())])
