"""Finds a phrase in everything that is remembered of a session, and messages near it in long-term memory (contract §7).

Finds are quoted line by line behind `> `, so that no text can pass for another find; the line that names the place is
one line, whatever names are in it. Calls and results of the two reading tools are no finds: they would stand before
the messages that they searched for, and long-term memory has none of them. Messages of the run that asks come last;
they may have left its context.
"""

import unicodedata
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from anyio import to_thread

from nexus.core.concurrency import ungrouped
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.models import DEFAULT_SESSION, Role, metadata_of, parse_moment, role_of
from nexus.core.ports import MemoryStore, MessageStore, RecallSource, Row
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.recall import Hit
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.history.forms import native
from nexus.services.history.rows import text_or_empty
from nexus.services.history.tool_calls import ToolCall, given_arguments, read_tool_calls
from nexus.services.memory.documents import LOOKED_BACK, Caller, read_all
from nexus.services.text.content import as_text, compact_json, place_of
from nexus.services.text.escape import one_line
from nexus.services.tools.memory_tools import READING_TOOLS, SearchMemory

_MOST_DETAILS: Final = 10
# Of the newest that have the phrase, those of the run that asks.
_NEWEST, _MOST_OF_THE_RUN = 10, 5
# Characters of context around a find.
_BEFORE, _AFTER = 160, 320
_NAME_CHARS: Final = 64
# Of a message beside a find.
_BESIDE_CHARS: Final = 120
# Of the run that asks, the newest rows, which are in its context.
_ROWS_LEFT_OUT: Final = 200
# Levels of texts within arguments that are searched.
_DEEPEST: Final = 20

_SPEAKERS: Final = {Role.HUMAN: "the user", Role.AI: "the assistant", Role.TOOL: "a tool"}


@dataclass(frozen=True, slots=True)
class _Found:
    """What has the phrase in it, by where it is."""

    overviews: Sequence[Overview]
    compactions: Sequence[Compaction]
    details: Sequence[Detail]
    earlier: Sequence[Row]
    of_the_run: Sequence[Row]
    may_be_more: bool


@dataclass(frozen=True, slots=True)
class _Near:
    """What long-term memory finds; `fault` says what cannot be searched."""

    hits: Sequence[Hit] = ()
    fault: str = ""


class _Report(NamedTuple):
    """What the model reads, and whether the phrase stands somewhere."""

    text: str
    has_phrase: bool = False


async def search(
    store: MemoryStore, messages: MessageStore, recall: RecallSource | None, caller: Caller, call: SearchMemory
) -> str:
    """The places of the phrase with the text around them, newest first, then messages near it; in bounded length.

    A phrase that stands nowhere as it is written is searched in its composed and decomposed Unicode forms too.
    """
    near, report = await _recalled(messages, recall, caller, call), _Report("")
    forms = [call.query, unicodedata.normalize("NFC", call.query), unicodedata.normalize("NFD", call.query)]
    for form in (form for form in dict.fromkeys(forms) if len(form) <= LONGEST_QUERY):
        found = await _find(store, messages, caller, form, call.limit)
        report = await to_thread.run_sync(_report, found, near, caller, call, form, abandon_on_cancel=True)
        if report.has_phrase:
            break
    return report.text


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
    return text_or_empty(metadata_of(row).get("tool_name"))


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


def _report(found: _Found, near: _Near, caller: Caller, call: SearchMemory, query: str) -> _Report:
    """`query` is the form in which the phrase was looked for."""
    of_owner = call.scope == "owner"
    earlier, hits = [row for row in found.earlier if row.get("owner_key") == caller.owner_key], near.hits
    if of_owner and hits:
        shown = {hit.row["_id"] for hit in hits}
        earlier = [row for row in earlier if row["_id"] not in shown][: call.limit - len(hits)]
    else:
        shown = {row["_id"] for row in earlier}
        hits = [hit for hit in hits if hit.row["_id"] not in shown][: call.limit - len(earlier)]
    of_the_run = (row for row in found.of_the_run if row.get("owner_key") == caller.owner_key)
    places = [*_documents(found, query), *(_quoted_message(row, caller, query) for row in (*earlier, *of_the_run))]
    more = "; there may be more, and a rarer phrase finds them" if found.may_be_more else ""
    # The phrase as it is written is looked for in this session alone.
    others = "" if near.fault or not of_owner else ", and no message of another session is near it"
    said: list[str] = []
    if places:
        said = [f"{call.query!r} was found in {_counted(len(places), 'place')}{more}.", *places]
    if hits:
        also = "Besides, near" if places else f"{call.query!r} stands nowhere in this session as it is written. Near"
        what = f"{_counted(len(hits), 'message')} of {'all sessions' if of_owner else 'this session'}"
        said += [f"{also} it in words or meaning, best first: {what}.", *_quoted_hits(hits, caller, call)]
    if not said:
        nothing = f"Nothing that is remembered of this session has {call.query!r} in it{others}."
        said = [f"{nothing} A shorter or rarer word may be found."]
    return _Report("\n\n".join([*said, *filter(None, [near.fault])]), bool(places))


def _documents(found: _Found, query: str) -> list[str]:
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
    return places


async def _recalled(messages: MessageStore, recall: RecallSource | None, caller: Caller, call: SearchMemory) -> _Near:
    """The best messages in long-term memory, but for the newest of the run that asks."""
    of_owner = call.scope == "owner"
    fault = "Other sessions cannot be searched now: what was found is of this session alone." if of_owner else ""
    if recall is None:
        return _Near(fault=fault)
    rows = await messages.run_messages(caller.owner_key, caller.run_id, limit=_ROWS_LEFT_OUT, excerpt_chars=1)
    try:
        found = await recall.search(
            caller.owner_key,
            call.query,
            session_id=None if of_owner else caller.session_id,
            limit=call.limit,
            without=[row["_id"] for row in rows],
        )
    except (StoreUnavailableError, StoreRejectedError):
        return _Near(fault=fault or "Messages that are near it in words or meaning cannot be searched now.")
    return _Near(found.hits)


async def _find(store: MemoryStore, messages: MessageStore, caller: Caller, query: str, limit: int) -> _Found:
    session, found = caller.session, dict[str, Sequence[Row]]()
    find_messages = partial(messages.search_messages, *session, query, texts_of=texts_of, without_tools=READING_TOOLS)

    async def read(name: str, find: Callable[[], Awaitable[Sequence[Row]]]) -> None:
        found[name] = await find()

    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, "overviews", partial(store.overviews, *session, limit=LOOKED_BACK))
            tasks.start_soon(read, "details", partial(store.search_details, *session, query, limit=_MOST_DETAILS))
            tasks.start_soon(read, "earlier", partial(find_messages, limit=limit, without_run=caller.run_id))
            tasks.start_soon(read, "newest", partial(find_messages, limit=_NEWEST))
            compaction = await store.latest_compaction(*session)
    details = read_all(Detail, session, found["details"])
    of_the_run = [row for row in found["newest"] if row.get("run_id") == caller.run_id][:_MOST_OF_THE_RUN]
    return _Found(
        read_all(Overview, session, found["overviews"]),
        read_all(Compaction, session, [compaction]),
        details,
        found["earlier"],
        of_the_run,
        may_be_more=len(details) == _MOST_DETAILS
        or len(found["earlier"]) == limit
        or len(of_the_run) == _MOST_OF_THE_RUN,
    )


def _quoted_hits(hits: Sequence[Hit], caller: Caller, call: SearchMemory) -> Iterator[str]:
    """Each hit with the beginnings of the messages beside it, unless they are shown as hits themselves."""
    shown = {hit.row["_id"] for hit in hits}
    for hit in hits:
        beside = [row for row in hit.around if row["_id"] not in shown and row.get("run_id") != caller.run_id]
        shown |= {row["_id"] for row in beside}
        is_before = {row["_id"] for row in hit.around[: _at(hit)]}
        quoted = _quoted_message(hit.row, caller, _strongest(hit), with_session=call.scope == "owner")
        yield "\n".join([quoted, *(_beside(row, before=row["_id"] in is_before) for row in beside)])


def _at(hit: Hit) -> int:
    return next((at for at, row in enumerate(hit.around) if row["_id"] == hit.row["_id"]), 0)


def _strongest(hit: Hit) -> str:
    """The term that stands in the message, as it is indexed, and gives the most to its score; `""` for none."""
    texts = [text for _, text in texts_of(hit.row, READING_TOOLS)]
    terms = sorted(hit.score.terms, key=lambda term: -hit.score.terms[term])
    return next((term for term in terms if any(place_of(text, term) is not None for text in texts)), "")


def _beside(row: Row, *, before: bool) -> str:
    text = one_line(next(filter(None, (text for _, text in texts_of(row, READING_TOOLS))), ""))
    cut = f"{text[:_BESIDE_CHARS]}{'...' if len(text) > _BESIDE_CHARS else ''}"
    return f"{'Before' if before else 'After'} it, {_speaker(row)}:\n> {cut}"


def _quoted_message(row: Row, caller: Caller, query: str, *, with_session: bool = False) -> str:
    # One row may be several messages.
    parts = native(row)
    session = f", session {one_line(str(row.get('session_id') or DEFAULT_SESSION))[:_NAME_CHARS]}"
    row = next((part for part in parts if any(_has(part, query))), parts[0])
    texts = [each for each in texts_of(row, READING_TOOLS) if each[1]] or [("", "")]
    called, text = next((each for each in texts if place_of(each[1], query) is not None), texts[0])
    what = f"Call of {_named(called) or 'a tool'}" if called else f"Message of {_speaker(row)}"
    moment: Any = parse_moment(row.get("timestamp"))
    when = f"{moment:%Y-%m-%d %H:%M} UTC" if moment else "at an unknown time"
    now = ", in this exchange" if row.get("run_id") == caller.run_id else ""
    return _quoted(f"{what}{session if with_session else ''}, {when}{now}", text, query)


def _speaker(row: Row) -> str:
    role, tool = role_of(row), _named(tool_of(row))
    return f"{_SPEAKERS.get(role, 'somebody') if role else 'somebody'}{f' {tool}' if tool else ''}"


def _named(tool: str) -> str:
    return one_line(tool)[:_NAME_CHARS]


def _counted(amount: int, what: str) -> str:
    return f"{amount} {what}{'' if amount == 1 else 's'}"


def _has(row: Row, query: str) -> Iterator[bool]:
    return (place_of(text, query) is not None for _, text in texts_of(row, READING_TOOLS))


def _quoted(head: str, text: str, query: str) -> str:
    place = place_of(text, query) or 0
    begin, end = max(place - _BEFORE, 0), place + len(query) + _AFTER
    excerpt = f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"
    return "\n".join([head, *(f"> {line}" for line in excerpt.splitlines())])
