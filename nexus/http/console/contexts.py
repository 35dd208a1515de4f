"""Contexts: what a model was given, compared with another one, and what a request would get now (contract §13, §16)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from nexus.core.concurrency import computed
from nexus.core.errors import RequestError
from nexus.core.models import Message, Role, Run, new_run_id
from nexus.core.records import BuildRecord
from nexus.core.wire import explain as fault_of
from nexus.http.console.asked import number
from nexus.http.console.owners import ShownRow, download, shown_row
from nexus.http.console.shell import Page, Visit
from nexus.services.context.formats import FORMATS
from nexus.services.context.request import DEFAULT_FORMAT, LAYOUTS, Deadline
from nexus.services.context.run_prefix import in_format
from nexus.services.records.compare import Comparison, compare
from nexus.services.records.explain import Explained, explain_content
from nexus.services.records.reader import ReadRecord, RecordReader
from nexus.services.records.why import Finding
from nexus.services.records.window import Window, window_of

_CONTEXTS_AT_ONCE: Final = 30
# Of messages that are not in a context: how many are shown, and among how many they are looked for.
_MISSING: Final = 12
_LOOKED_AT: Final = 200
_BEGINNING: Final = 160
_SOMETHING: Final = "(what the person says next)"


@dataclass(frozen=True, slots=True)
class ShownContext:
    """What a page shows of a context.

    Attributes:
        before: the record of the build that it is compared with; None for none.
        comparison: with that build.
    """

    explained: Explained
    window: Window
    before: BuildRecord | None = None
    comparison: Comparison | None = None

    @property
    def cached(self) -> int | None:
        """How many entries of what was sent the build before begins with, too; None where that is not known."""
        if self.comparison is None or not self.explained.has_texts:
            return None
        # Tools come before all messages.
        return self.comparison.prefix.count if self.comparison.tools.same else 0


async def contexts(visit: Visit) -> Response:
    """Records of an owner, or of one session, newest first."""
    reader, owner_key, session = _reader(visit), visit.owner, visit.asked("session")
    before = await reader.find(owner_key, visit.asked("before")) if visit.asked("before") else None
    found = await reader.newest(owner_key, session_id=session or None, before=before, limit=_CONTEXTS_AT_ONCE + 1)
    return visit.page(
        "contexts.html",
        owner=owner_key,
        session=session,
        contexts=found[:_CONTEXTS_AT_ONCE],
        more=len(found) > _CONTEXTS_AT_ONCE,
        is_first=before is None,
        days=visit.services.settings.context.record_days,
    )


async def context(visit: Visit) -> Response:
    """One context: what takes how much, its blocks, where each comes from, and what is not in it."""
    reader = _reader(visit)
    read = await _asked(visit, reader, "request")
    record, explained = read.record, read.explained
    shown = await _shown(reader, record, explained) if explained and not explained.error else None
    message, earlier = visit.asked("message"), visit.asked("earlier")
    missing, last = await _missing(visit, read, shown.explained, earlier) if shown else ([], "")
    return visit.page(
        "context.html",
        owner=visit.owner,
        session=record.session_id,
        record=record,
        replayed=read.replayed,
        explained=explained,
        shown=shown,
        message=message,
        finding=await reader.where_is(read, message) if shown and message else None,
        missing=missing,
        missing_before=last,
        earlier=earlier,
        formats=[*FORMATS],
    )


def _reader(visit: Visit) -> RecordReader:
    if visit.services.records is None:
        raise HTTPException(404, "no contexts are recorded: context.record is off")
    return visit.services.records


async def _asked(visit: Visit, reader: RecordReader, name: str) -> ReadRecord:
    """The owner's record that this parameter of the address names."""
    if record := await reader.find(visit.owner, visit.asked(name)):
        return await reader.read(record)
    days = visit.services.settings.context.record_days
    raise HTTPException(404, f"this owner has no record of such a request; records are kept for {days} days")


async def _shown(reader: RecordReader, record: BuildRecord, explained: Explained) -> ShownContext:
    """The context beside the build before it."""
    before = await reader.build_before(record)
    earlier = (await reader.read(before)).explained if before else None
    comparison = await _compared(record, earlier, explained) if earlier else None
    return ShownContext(explained, window_of(explained), before, comparison)


async def _compared(record: BuildRecord, first: Explained, second: Explained) -> Comparison:
    return await computed(record.owner_key, record.size, partial(compare, first, second))


async def _missing(
    visit: Visit, read: ReadRecord, explained: Explained, before: str
) -> tuple[list[tuple[ShownRow, Finding]], str]:
    """The newest messages of the session that the context does not show, and why; those recorded before a row.

    With the `_id` of the last that was looked at, `""` where there are no more.
    """
    record = read.record
    # A second later, since some are recorded in the second of the build.
    before = before or f"{int(record.answered_at.timestamp()) + 2:08x}{'0' * 16}"
    found = await visit.services.store.stored_messages(
        record.owner_key, record.session_id, limit=_LOOKED_AT, before=before, excerpt_chars=_BEGINNING
    )
    shown = {source for block in explained.blocks for source in block.sources}
    rows = [row for row in map(shown_row, found) if row.message_id not in shown][:_MISSING]
    findings = await _reader(visit).where_are(read, [row.row_id for row in rows])
    there = [(row, finding) for row, finding in zip(rows, findings, strict=True) if not finding.is_shown]
    if len(rows) == _MISSING:
        return there, rows[-1].row_id
    return there, str(found[-1]["_id"]) if len(found) == _LOOKED_AT else ""


async def context_json(visit: Visit) -> Response:
    """The bytes that were sent, as a file."""
    read = await _asked(visit, _reader(visit), "request")
    if read.replayed.answer is None:
        raise HTTPException(404, f"the bytes that were sent cannot be had: {read.replayed.fault}")
    return download(read.replayed.answer, "context.json", "application/json")


async def block_text(visit: Visit) -> Response:
    """The text of one block, by its place in the manifest from 0, as a file."""
    read = await _asked(visit, _reader(visit), "request")
    place, blocks = number(visit, "block"), read.explained.blocks if read.explained else ()
    if place is None or place >= len(blocks):
        raise HTTPException(404, "the context has no such block")
    return download(blocks[place].text, "block.txt", "text/plain; charset=utf-8")


async def sent(visit: Visit) -> Response:
    """The messages of a context one by one, in the format that was asked for or in another."""
    read = await _asked(visit, _reader(visit), "request")
    record, form = read.record, visit.asked("format") or read.record.form
    if read.replayed.answer is None or read.explained is None or read.explained.error:
        reason = read.replayed.fault or "the request was answered with an error"
        raise HTTPException(404, f"there are no messages to show: {reason}")
    if form not in FORMATS:
        raise HTTPException(400, f"format: {form[:50]!r} is unknown; allowed: {', '.join(FORMATS)}")
    explained = read.explained
    if form != record.form:
        if record.form != DEFAULT_FORMAT:
            raise HTTPException(
                404, f"only contexts in the format {DEFAULT_FORMAT} can be shown in another; this one is {record.form}"
            )
        convert = partial(_converted, form, read.replayed.answer)
        explained = await computed(record.owner_key, record.size, convert)
    return visit.page(
        "sent.html",
        owner=visit.owner,
        session=record.session_id,
        record=record,
        explained=explained,
        form=form,
        formats=[*FORMATS],
        notes=[note for note in explained.notes if note not in read.explained.notes],
    )


def _converted(form: str, answer: bytes) -> Explained:
    """An answer in OpenAI's form as it would have been in another one."""
    content = from_json(answer)["content"]
    manifest = content["context"]
    shown = in_format(form, {**content, "context": {**manifest, "left_out": []}})
    # What is left out as it is said to providers; of the whole list the manifest has it.
    return explain_content({**shown, "context": {**shown["context"], "left_out": []}})


async def diff(visit: Visit) -> Response:
    """Two contexts of an owner side by side, the earlier one first, and how far they begin alike."""
    reader = _reader(visit)
    found = [await _asked(visit, reader, name) for name in ("request", "other")]
    first, second = sorted(found, key=lambda read: read.record.answered_at)
    return visit.page(
        "diff.html",
        owner=visit.owner,
        session=second.record.session_id,
        first=first,
        second=second,
        comparison=await _compared(second.record, *map(_comparable, (first, second))),
    )


def _comparable(read: ReadRecord) -> Explained:
    if read.explained is None:
        raise HTTPException(404, f"{read.record.request_id} cannot be compared: {read.replayed.fault}")
    return read.explained


async def now(visit: Visit) -> Response:
    """What a request would get now; nothing is recorded."""
    asked = {name: visit.asked(name) for name in ("layout", "format", "input")}
    content, error = await _preview(visit, asked)
    explained = explain_content(content) if content else None
    return visit.session_page(
        "now.html",
        asked=asked,
        something=_SOMETHING,
        layouts=LAYOUTS,
        formats=[*FORMATS],
        error=error,
        explained=explained,
        shown=ShownContext(explained, window_of(explained)) if explained else None,
    )


async def _preview(visit: Visit, asked: Mapping[str, str]) -> tuple[dict[str, Any] | None, tuple[str, str] | None]:
    """The content of the answer, or code and message of the error that it would be."""
    run_id, owner_key = new_run_id(), visit.owner
    given = {"session_id": visit.session, "layout": asked["layout"], "format": asked["format"]}
    allowed_ms = visit.services.settings.bus.request_deadline_ms
    try:
        human = Message(run_id=run_id, owner_key=owner_key, role=Role.HUMAN, content=asked["input"] or _SOMETHING)
        metadata = {name: value for name, value in given.items() if value}
        run = Run(id=run_id, owner_key=owner_key, history=[human], metadata=metadata)
        message = Message(run_id=run_id, owner_key=owner_key, role=Role.HUMAN, content=run.model_dump(mode="json"))
        deadline = Deadline(allowed_ms, anyio.current_time() + allowed_ms / 1_000)
        return await visit.services.builder.preview(message, deadline), None
    except ValidationError as error:
        raise HTTPException(400, fault_of(error)) from None
    except RequestError as error:
        return None, (error.code, error.message)


PAGES: Final[Mapping[str, Page]] = {
    "contexts": contexts,
    "context": context,
    "context.json": context_json,
    "block.txt": block_text,
    "sent": sent,
    "diff": diff,
    "now": now,
}
