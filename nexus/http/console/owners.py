"""Owners, their sessions, runs and recorded messages (contract §16).

Lists are paged by the key of their last entry, and what is read for a page has a bound: nothing is counted further than
a page needs. Other programs write rows, too, so that any field may be missing or hold anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from nexus.core.models import AGENT_ID, DEFAULT_SESSION, INTERNAL, Row, parse_moment
from nexus.core.ports import MessageStore, SessionSummary
from nexus.core.ports.store import MOST_COUNTED
from nexus.core.records import BuildRecord
from nexus.http.console.shell import Page, Visit, as_json, as_text
from nexus.services.history.tool_calls import ToolCall, read_tool_calls
from nexus.services.records.why import Finding

_OWNERS_AT_ONCE: Final = 40
_SESSIONS_AT_ONCE: Final = 20
_RUNS_AT_ONCE: Final = 25
_ROWS_AT_ONCE: Final = 50
# Of rows for a list of runs: how many are read at a time and for a page, and characters at their beginnings.
_ROWS_READ: Final = 200
_MOST_ROWS_READ: Final = 1_000
_BEGINNING: Final = 160
_NEWEST_CONTEXTS: Final = 5
_LONGEST_NAME: Final = 1_000


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A recorded message as pages show it.

    Attributes:
        row_id: its `_id` as a text.
        message_id, run_id, role, tool: `""` where there is none.
        session_id: the default one for a row that names none.
        time: a moment, or as it is stored where it is none.
        text: the content; JSON of one that is no text.
        metadata: as JSON, without the calls; `""` for none.
        agent: the sub-agent to which the row is internal; None for none.
    """

    row_id: str
    message_id: str
    run_id: str
    session_id: str
    role: str
    time: Any
    text: str
    calls: tuple[ToolCall, ...] = ()
    metadata: str = ""
    tool: str = ""
    status: str = ""
    agent: str | None = None

    @property
    def beginning(self) -> str:
        """The first words, on one line."""
        return " ".join(self.text[: 2 * _BEGINNING].split())[:_BEGINNING]


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run in the list of a session.

    Attributes:
        newest: the last stored of its rows that this page has; `rows`: how many these are.
        said: the beginning of what the person said; `""` where none of these rows is of a person.
        status: of its turn; `""` without one.
        goes_on: the next page may have more of its rows.
    """

    run_id: str
    newest: ShownRow
    rows: int
    said: str
    status: str
    goes_on: bool


def shown_row(row: Row) -> ShownRow:
    """A stored row, of any program, as pages show it."""
    given = row.get("metadata")
    metadata: Mapping[str, Any] = given if isinstance(given, dict) else {}
    rest = {name: value for name, value in metadata.items() if name != "tool_calls"}
    return ShownRow(
        row_id=row["_id"],
        message_id=_name(row.get("id")),
        run_id=_name(row.get("run_id")),
        session_id=_name(row.get("session_id")) or DEFAULT_SESSION,
        role=as_text(row.get("role"))[:_BEGINNING],
        time=parse_moment(row.get("timestamp")) or as_text(row.get("timestamp"))[:_BEGINNING],
        text=as_text(row.get("content")),
        calls=read_tool_calls(metadata.get("tool_calls")),
        metadata=as_json(rest if isinstance(given, dict) else given) if given else "",
        tool=_name(metadata.get("tool_name")),
        status=_name(metadata.get("status")),
        agent=_name(metadata.get(AGENT_ID)) if metadata.get(INTERNAL) else None,
    )


def _name(value: Any) -> str:
    """A text that names something; `""` for what is none, or too long for one."""
    return value if isinstance(value, str) and len(value) <= _LONGEST_NAME else ""


async def owners(visit: Visit) -> Response:
    """Owners in the order of their keys: those that begin with a text, and from a key on."""
    begins, after = visit.asked("begins"), visit.asked("after")
    found = await visit.services.store.owners(after=after, prefix=begins, limit=_OWNERS_AT_ONCE + 1)
    # No address could name the others; Nexus accepts none of that length.
    named = [key for key in found[:_OWNERS_AT_ONCE] if _name(key)]
    return visit.page(
        "owners.html",
        owners=named,
        unnamed=len(found[:_OWNERS_AT_ONCE]) - len(named),
        more=len(found) > _OWNERS_AT_ONCE and bool(named),
        begins=begins,
        after=after,
    )


async def owner(visit: Visit) -> Response:
    """The sessions of an owner, the one with the latest message first, and their newest contexts."""
    owner_key, last = visit.owner, parse_moment(visit.asked("last"))
    name = visit.request.query_params.get("before")
    is_later = name is not None or "last" in visit.request.query_params
    before = SessionSummary(name, 0, None, last) if is_later else None
    found = await visit.services.store.sessions(owner_key, limit=_SESSIONS_AT_ONCE + 1, before=before)
    records = visit.services.records
    contexts = await records.newest(owner_key, limit=_NEWEST_CONTEXTS) if records and not before else []
    named = [each for each in found[:_SESSIONS_AT_ONCE] if each.session_id is None or _name(each.session_id)]
    return visit.page(
        "owner.html",
        owner=owner_key,
        sessions=named,
        unnamed=len(found[:_SESSIONS_AT_ONCE]) - len(named),
        more=len(found) > _SESSIONS_AT_ONCE and bool(named),
        first_page=before is None,
        most_counted=MOST_COUNTED,
        contexts=contexts,
    )


async def session(visit: Visit) -> Response:
    """The runs of a session, by their rows: the run of the last stored one first."""
    owner_key, session_id, before = visit.owner, visit.session, visit.asked("before")
    store, records = visit.services.store, visit.services.records
    rows, more = await _page_of_runs(store, owner_key, session_id, before)
    run_ids = [*dict.fromkeys(row.run_id for row in rows)]
    turns = await store.turns.turns_of_runs(owner_key, session_id, [run_id for run_id in run_ids if run_id])
    status = {turn.get("run_id"): as_text(turn.get("status")) for turn in turns}
    contexts = await records.newest(owner_key, session_id=session_id, limit=_NEWEST_CONTEXTS) if records else []
    return visit.page(
        "session.html",
        owner=owner_key,
        session=session_id,
        runs=[
            _run_of([row for row in rows if row.run_id == run_id], status, goes_on=more and run_id == rows[-1].run_id)
            for run_id in run_ids
        ],
        before=before,
        last=rows[-1].row_id if more else "",
        contexts=contexts,
    )


async def _page_of_runs(
    store: MessageStore, owner_key: str, session_id: str, before: str
) -> tuple[list[ShownRow], bool]:
    """Rows of as many runs as a page shows, the last stored first, and whether there are more."""
    rows: list[ShownRow] = []
    runs: set[str] = set()
    while len(rows) < _MOST_ROWS_READ:
        page = await store.stored_messages(
            owner_key, session_id, limit=_ROWS_READ, before=before, excerpt_chars=_BEGINNING
        )
        for row in map(shown_row, page):
            if row.run_id not in runs and len(runs) == _RUNS_AT_ONCE:
                return rows, True
            runs.add(row.run_id)
            rows.append(row)
        if len(page) < _ROWS_READ:
            return rows, False
        before = rows[-1].row_id
    return rows, True


def _run_of(rows: Sequence[ShownRow], status: Mapping[Any, str], *, goes_on: bool) -> ShownRun:
    # The input comes before what else a person said.
    said = next((row.beginning for row in reversed(rows) if _is_said(row)), "")
    return ShownRun(rows[0].run_id, rows[0], len(rows), said, status.get(rows[0].run_id, ""), goes_on)


def _is_said(row: ShownRow) -> bool:
    return row.role.upper() in {"HUMAN", "USER"} and row.agent is None


async def run(visit: Visit) -> Response:
    """The rows of a run in their order, the newest page first, and the contexts that were built for it."""
    owner_key, run_id = visit.owner, visit.asked("run")
    before = await _asked_row(visit, "before") if visit.asked("before") else None
    store, records = visit.services.store, visit.services.records
    found = await store.run_messages(owner_key, run_id, limit=_ROWS_AT_ONCE + 1, before=before)
    rows = [*map(shown_row, found[:_ROWS_AT_ONCE])][::-1]
    session_id = rows[0].session_id if rows else visit.session
    newest = await records.newest(owner_key, session_id=session_id, limit=_ROWS_AT_ONCE) if records else []
    return visit.page(
        "run.html",
        owner=owner_key,
        session=session_id,
        run_id=run_id,
        rows=rows,
        is_first=before is None,
        more=len(found) > _ROWS_AT_ONCE,
        contexts=[record for record in newest if record.run_id == run_id],
    )


async def row(visit: Visit) -> Response:
    """One recorded message with all that is stored of it."""
    found = await _asked_row(visit)
    shown = shown_row(found)
    rest = {name: value for name, value in found.items() if name not in {"content", "metadata"}}
    findings = await _findings(visit, shown)
    return visit.page(
        "row.html", owner=visit.owner, session=shown.session_id, row=shown, fields=as_json(rest), findings=findings
    )


async def _findings(visit: Visit, row: ShownRow) -> list[tuple[BuildRecord, Finding]]:
    """The newest contexts of the row's session, and where it is in each, or why it is not."""
    records, found = visit.services.records, list[tuple[BuildRecord, Finding]]()
    if records is None:
        return found
    for record in await records.newest(visit.owner, session_id=row.session_id, limit=_NEWEST_CONTEXTS):
        read = await records.read(record)
        if read.explained:
            found.append((record, await records.where_is(read, row.row_id)))
    return found


async def row_text(visit: Visit) -> Response:
    """The content of a recorded message, as a file."""
    return download(shown_row(await _asked_row(visit)).text, "message.txt", "text/plain; charset=utf-8")


async def row_json(visit: Visit) -> Response:
    """All that is stored of a recorded message, as a file."""
    return download(as_json(await _asked_row(visit)), "message.json", "application/json")


def download(content: str | bytes, name: str, media_type: str) -> Response:
    """A file that a browser keeps and does not show."""
    body = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    return Response(body, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'})


async def _asked_row(visit: Visit, name: str = "row") -> Row:
    """The owner's row with the `_id` in this parameter, or with the `id` in `id`."""
    owner_key, row_id, store = visit.owner, visit.asked(name), visit.services.store
    if not row_id and (named := await store.find_message(owner_key, visit.asked("id"))):
        row_id = named["_id"]
    if not row_id or not (found := await store.whole_message(owner_key, row_id)):
        raise HTTPException(404, "this owner has no such message: it was never recorded, or has been removed since")
    return found


PAGES: Final[Mapping[str, Page]] = {
    "owners": owners,
    "owner": owner,
    "session": session,
    "run": run,
    "row": row,
    "row.txt": row_text,
    "row.json": row_json,
}
