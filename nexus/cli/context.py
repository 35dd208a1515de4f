"""`nexus context`: the contexts that requests got, and the one that the next would get (contract §13)."""

import hashlib
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import typer
from pydantic_core import from_json
from rich.console import Console

from nexus.cli.options import (
    Config,
    Form,
    Input,
    Json,
    Layout,
    Owner,
    Session,
    given_of,
    require_utf8,
    run_with,
    session_settings,
)
from nexus.cli.servers import run_on_store
from nexus.cli.terminal import (
    Columns,
    counted,
    facts,
    indented,
    print_result,
    printable,
    session_named,
    show_context,
    table,
    timestamp,
)
from nexus.config import BusSettings, Settings
from nexus.connections import open_bus
from nexus.core.errors import NexusError
from nexus.core.models import DEFAULT_SESSION, Message, Role, Run
from nexus.core.ports import Store
from nexus.core.records import BuildRecord
from nexus.services.context.request import Deadline
from nexus.services.history.rows import text_or_empty
from nexus.services.records.compare import BlockChange, Comparison, compare
from nexus.services.records.explain import Explained, explain_content
from nexus.services.records.reader import ReadRecord, RecordReader
from nexus.services.records.why import Finding
from nexus.wiring import create_nexus

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at the contexts that an owner's requests got, and at that of the next one.",
)
_Request = Annotated[str, typer.Argument(metavar="REQUEST", help="The id of the request, as `list` shows it.")]

_PAGE: Final = 50
_ABOUT_NEXT: Final = {"session": "--session", "layout": "--layout", "form": "--format", "text": "--input"}
_COLUMNS: Final[Columns] = {
    "TIME (UTC)": "answered_at",
    "SESSION": "session_id",
    "AGENT": "agent",
    "LAYOUT": "layout",
    "FORMAT": "form",
    "OUTCOME": "outcome",
    "BYTES": "size",
    "REQUEST": "request_id",
}
_STATES: Final = {
    "same": "same",
    "alike": "of the same size and sources",
    "changed": "changed",
    "first": "in the first alone",
    "second": "in the second alone",
}
_CHANGES: Final[Columns] = {
    "BLOCK": "tag",
    "BYTES": lambda change: _both(change, "bytes"),
    "TOKENS": lambda change: _both(change, "tokens"),
    "SOURCES": lambda change: (
        f"+{len(change.added)} -{len(change.removed)}" if change.first and change.second else None
    ),
    "STATE": lambda change: _STATES[change.state],
}


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two records, the first by default the build before the second, which is said in `chosen`."""

    first: ReadRecord
    second: ReadRecord
    chosen: str
    comparison: Comparison


@app.command(
    "list",
    epilog="Examples:\n\nnexus context list --owner ada --session s1\n\nnexus context list --owner ada --failed --json",
)
def list_records(
    owner: Owner,
    session: Annotated[
        str | None,
        typer.Option(help="This session only. Requests that were refused unread are of none.", show_default=False),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only requests that were answered with an error.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Answers at most, the newest.")] = 20,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show the answers to an owner's requests that are recorded, the newest first."""
    settings = session_settings(config, owner, DEFAULT_SESSION if session is None else session)
    found = run_on_store(settings.database, partial(_list, owner, session, failed, limit + 1))
    shown, more = found[:limit], len(found) > limit
    if as_json:
        print_result({"more": more, "records": [*map(_record_as_json, shown)]})
        return
    whose = session_named(owner, session) if session is not None else printable(owner)
    noun = "failed request" if failed else "answer"
    if not shown:
        print_result([f"No {noun} of {whose} is recorded: {_kept(settings)}."])
        return
    reasons = [f"{each.request_id}: {each.reason}" for each in shown if each.reason]
    latest = ", the newest; --limit shows more" if more else ""
    summary = f"{counted(len(shown), noun)} of {whose}{latest}."
    why = ["", "Why they failed", "", *indented(map(printable, reasons)), ""] if reasons else []
    print_result([*table(_COLUMNS, shown), *why, summary])


@app.command(
    epilog="Examples:\n\nnexus context show msg_q2 --owner ada\n\nnexus context show --owner ada --session s1\n\n"
    'nexus context show --owner ada --layout agent --input "And then?" --json'
)
def show(
    context: typer.Context,
    owner: Owner,
    request: Annotated[
        str | None, typer.Argument(metavar="REQUEST", help="A recorded request; without it, the next one.")
    ] = None,
    session: Session = "default",
    layout: Layout = None,
    form: Form = None,
    text: Input = "(what the person says next)",
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show the context that a request got, or without REQUEST the one that it would get now.

    A recorded one is shown as it was sent, whatever has become of its messages: of long texts beginning and end, which
    --json has whole.

    One of now is built here, from MongoDB and these settings: nothing is recorded, and no service is asked. Inputs that
    wait in Redis, while MongoDB is away, are not seen.
    """
    settings = session_settings(config, owner, session)
    if request is not None:
        if useless := given_of(context, _ABOUT_NEXT):
            raise NexusError(f"{', '.join(useless)}: only without REQUEST, for the next context")
        _show_record(run_on_store(settings.database, partial(_read, settings, owner, request)), as_json=as_json)
        return
    given = {"session_id": session, "layout": layout, "format": form}
    run = run_with(owner, text, {name: value for name, value in given.items() if value})
    content = run_on_store(settings.database, partial(_preview, settings, run))
    if as_json:
        print_result(content)
    else:
        show_context(Console(), explain_content(content))


@app.command(
    epilog="Examples:\n\nnexus context replay msg_q2 --owner ada > answer.json\n\n"
    "nexus context replay msg_q2 --owner ada --output answer.json"
)
def replay(
    request: _Request,
    owner: Owner,
    output: Annotated[
        Path | None, typer.Option(help="A new file for the bytes, instead of the standard output.", show_default=False)
    ] = None,
    config: Config = None,
) -> None:
    """Write the bytes of an answer exactly as they were sent. The proof, their SHA-256, goes to standard error.

    Nothing is written, and the exit code is 1, where the bytes cannot be proven to be those that were sent.
    """
    settings = session_settings(config, owner, DEFAULT_SESSION)
    replayed = run_on_store(settings.database, partial(_read, settings, owner, request)).replayed
    record, answer = replayed.record, replayed.answer
    if answer is None or replayed.fault:
        raise NexusError(f"{printable(request)}: the answer cannot be replayed: {replayed.fault}")
    if output is not None:
        try:
            with output.open("xb") as file:
                file.write(answer)
        except OSError as error:
            raise NexusError(f"{printable(str(output))}: cannot be written: {error.strerror}") from error
    elif sys.stdout.isatty() and not answer.decode(errors="replace").isprintable():
        raise NexusError("the answer has characters that a terminal might obey: give --output, or send it to a program")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    proof = f"{len(answer)} bytes, SHA-256 {hashlib.sha256(answer).hexdigest()}"
    typer.echo(
        f"{printable(request)}: {proof}, equal to what was sent at {timestamp(record.answered_at)} UTC", err=True
    )


@app.command(
    epilog="Examples:\n\nnexus context diff msg_q2 --owner ada\n\nnexus context diff msg_q1 msg_q2 --owner ada --json"
)
def diff(
    request: _Request,
    owner: Owner,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST2",
            help="What REQUEST is compared with, as the later one. Without it, the build before REQUEST: the last one "
            "of its layout and format in its run, or else in its session.",
        ),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show two contexts block by block, and where what a provider keeps of the first ends and why."""
    settings = session_settings(config, owner, DEFAULT_SESSION)
    pair = run_on_store(settings.database, partial(_pair, settings, owner, request, other))
    print_result(_pair_as_json(pair) if as_json else [*_pair_lines(pair)])


@app.command(
    epilog="Examples:\n\nnexus context why msg_h1 --owner ada\n\nnexus context why msg_h1 --owner ada --request msg_q2"
)
def why(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The id of a recorded message, or of its row.")],
    owner: Owner,
    request: Annotated[
        str | None,
        typer.Option(
            help="The request whose context is looked at. Default: the newest of the message's session, else of the "
            "owner.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show where a message is in a recorded context, or why it is not there."""
    settings = session_settings(config, owner, DEFAULT_SESSION)
    read, found = run_on_store(settings.database, partial(_why, settings, owner, message, request))
    if as_json:
        print_result({"message_id": message, "record": _record_as_json(read.record), **asdict(found)})
        return
    text = found.text if found.is_certain else f"most likely: {found.text}"
    print_result(facts({"message": message, "context": _named(read.record), "found": text}))


async def _preview(settings: Settings, run: Run, store: Store) -> dict[str, Any]:
    asked = Message(run_id=run.id, owner_key=run.owner_key, role=Role.HUMAN, content=run.model_dump(mode="json"))
    allowed_ms = settings.bus.request_deadline_ms
    async with open_bus(BusSettings(mode="memory")) as transport:
        # No part that writes by itself is started.
        nexus = create_nexus(settings, transport, store, None)
        await nexus.reload_settings()
        async with nexus.catalog.running():
            await nexus.catalog.refresh()
            return await nexus.builder.preview(asked, Deadline(allowed_ms, anyio.current_time() + allowed_ms / 1_000))


async def _list(owner: str, session: str | None, failed: bool, limit: int, store: Store) -> list[BuildRecord]:
    found: list[BuildRecord] = []
    async for record in _records(RecordReader(store), owner, session, failed=failed):
        found.append(record)
        if len(found) == limit:
            break
    return found


async def _records(
    reader: RecordReader, owner: str, session: str | None, *, failed: bool
) -> AsyncIterator[BuildRecord]:
    last: BuildRecord | None = None
    while True:
        if failed:
            page = await reader.failures(owner_key=owner, before=last, limit=_PAGE)
        else:
            page = await reader.newest(owner, session_id=session, before=last, limit=_PAGE)
        for record in page:
            if session in {None, record.session_id}:
                yield record
        if len(page) < _PAGE:
            return
        last = page[-1]


async def _read(settings: Settings, owner: str, request: str, store: Store) -> ReadRecord:
    """The record of a request; a NexusError where there is none."""
    require_utf8("REQUEST", request)
    reader = RecordReader(store)
    record = await reader.find(owner, request)
    if record is None:
        raise NexusError(
            f"no answer to a request {printable(request)} of {printable(owner)} is recorded: {_kept(settings)}"
        )
    return await reader.read(record)


async def _pair(settings: Settings, owner: str, request: str, other: str | None, store: Store) -> _Pair:
    if other is not None:
        first, second = [await _read(settings, owner, each, store) for each in (request, other)]
        chosen = ""
    else:
        reader, second = RecordReader(store), await _read(settings, owner, request, store)
        before = await reader.build_before(second.record)
        if before is None:
            raise NexusError(
                f"no context of the same session, layout and format is recorded before {printable(request)}: name "
                "another request after it (nexus context list)"
            )
        first = await reader.read(before)
        chosen = "of its run" if before.run_id == second.record.run_id else "of its session"
    return _Pair(first, second, chosen, compare(_explained(first), _explained(second)))


async def _why(
    settings: Settings, owner: str, message: str, request: str | None, store: Store
) -> tuple[ReadRecord, Finding]:
    require_utf8("MESSAGE", message)
    reader = RecordReader(store)
    if request is not None:
        read = await _read(settings, owner, request, store)
    else:
        row = await reader.row_of(owner, message)
        session = text_or_empty(row.get("session_id")) or DEFAULT_SESSION if row else None
        newest = await _newest_context(reader, owner, session) or await _newest_context(reader, owner, None)
        if newest is None:
            raise NexusError(f"no context of {printable(owner)} is recorded: {_kept(settings)}")
        read = await reader.read(newest)
    _explained(read)
    return read, await reader.where_is(read, message)


async def _newest_context(reader: RecordReader, owner: str, session: str | None) -> BuildRecord | None:
    async for record in _records(reader, owner, session, failed=False):
        if record.outcome == "success":
            return record
    return None


def _explained(read: ReadRecord) -> Explained:
    """What a record says; a NexusError where nothing of it can be read."""
    if read.explained is None:
        raise NexusError(f"{printable(read.record.request_id)}: the answer cannot be read: {read.replayed.fault}")
    return read.explained


def _kept(settings: Settings) -> str:
    """For how long there are records, by these settings."""
    mode, days = settings.context.record, settings.context.record_days
    if mode == "off":
        return "these settings record nothing (context.record: off)"
    return f"answers are kept for {counted(days, 'day')} (context.record_days), of requests that were sent to a service"


def _show_record(read: ReadRecord, *, as_json: bool) -> None:
    record, explained = read.record, _explained(read)
    if as_json:
        answer = read.replayed.answer
        shown = {"context": from_json(record.manifest)} if answer is None else {"answer": from_json(answer)}
        print_result({"record": _record_as_json(record), "proven": not read.replayed.fault, **shown})
        return
    print_result(facts(_facts_of(read)))
    if explained.error:
        return
    typer.echo()
    show_context(Console(), explained)


def _facts_of(read: ReadRecord) -> dict[str, object]:
    record, fault = read.record, read.replayed.fault
    proof = f"{record.size}, SHA-256 {record.sha256}"
    return {
        "request": record.request_id,
        "answered": f"{timestamp(record.answered_at)} UTC",
        "session": record.session_id,
        "run": record.run_id,
        "agent": record.agent or "not known",
        "layout": record.layout,
        "format": record.form,
        "outcome": f"{record.outcome}: {record.reason}" if record.reason else record.outcome,
        "bytes": f"{proof}; {fault}" if fault else f"{proof}, as they were sent",
        "settings": record.settings,
        "version": record.version,
    }


def _record_as_json(record: BuildRecord) -> dict[str, Any]:
    return {
        "request_id": record.request_id,
        "run_id": record.run_id,
        "session_id": record.session_id,
        "answered_at": record.answered_at.isoformat(),
        "agent": record.agent,
        "layout": record.layout,
        "format": record.form,
        "outcome": record.outcome,
        "reason": record.reason,
        "bytes": record.size,
        "sha256": record.sha256,
        "settings": record.settings,
        "version": record.version,
        "mode": record.mode,
    }


def _named(record: BuildRecord) -> str:
    return (
        f"{record.request_id}, {timestamp(record.answered_at)} UTC, session {record.session_id or '-'}, "
        f"{record.layout or '-'}, {record.form or '-'}"
    )


def _pair_lines(pair: _Pair) -> Iterator[str]:
    first, second, found = pair.first.record, pair.second.record, pair.comparison
    chosen = f", the build before the second {pair.chosen}" if pair.chosen else ""
    yield from facts({"first": f"{_named(first)}{chosen}", "second": _named(second)})
    for name, what in (("settings", "other settings"), ("version", "another version of Nexus")):
        if getattr(first, name) != getattr(second, name):
            yield printable(f"The second was built by {what}: {getattr(second, name)}, not {getattr(first, name)}.")
    prefix = found.prefix
    tokens = "" if prefix.tokens is None else f", {'' if prefix.is_exact else 'about '}{prefix.tokens} tokens"
    parts = "message" if pair.second.record.form == "openai" else "part"
    yield ""
    yield f"The same at the beginning: {counted(prefix.count, parts)}, {prefix.bytes} bytes{tokens}."
    yield from (printable(f"- {reason}.") for reason in prefix.reasons)
    if not found.tools.same:
        yield ""
        yield from _tool_lines(found)
    yield ""
    yield from table(_CHANGES, found.blocks)
    for change in found.blocks:
        if change.diff:
            yield from ("", f"[{printable(change.tag)}]", "", *indented(map(printable, change.diff)))


def _tool_lines(found: Comparison) -> Iterator[str]:
    tools = found.tools
    named = {"only in the second": tools.added, "only in the first": tools.removed, "defined otherwise": tools.changed}
    shown = [f"{what}: {', '.join(names)}" for what, names in named.items() if names]
    yield printable(f"Tools: {'; '.join(shown) or 'the same in another order'}.")


def _both(change: BlockChange, name: str) -> str | None:
    read = attrgetter(name)
    values: Sequence[Any] = [read(block) for block in (change.first, change.second) if block]
    if None in values:
        return None
    return " > ".join(map(str, dict.fromkeys(values)))


def _pair_as_json(pair: _Pair) -> dict[str, Any]:
    found = pair.comparison
    return {
        "first": _record_as_json(pair.first.record),
        "second": _record_as_json(pair.second.record),
        "same": found.same,
        "prefix": asdict(found.prefix),
        "tools": asdict(found.tools),
        "blocks": [
            {
                "tag": each.tag,
                "state": each.state,
                "bytes": [block.bytes if block else None for block in (each.first, each.second)],
                "tokens": [block.tokens if block else None for block in (each.first, each.second)],
                "added": each.added,
                "removed": each.removed,
                "diff": each.diff,
            }
            for each in found.blocks
        ],
    }
