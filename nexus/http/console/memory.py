"""What is kept of a session: its overview with the revisions, details, compactions, and its state (contract §5, §7)."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import Response

from nexus.core.concurrency import computed
from nexus.core.erasure import hashed
from nexus.core.errors import CallRefusedError
from nexus.core.models import MAX_ID_CHARS, new_message_id
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.http.console.asked import listed, number, owner_and_session
from nexus.http.console.shell import Page, Visit, as_json
from nexus.services.context.pinned import shown_parts
from nexus.services.memory.documents import TEMPLATE
from nexus.services.memory.kept import compaction_of, detail_of, overview_of, two_overviews
from nexus.services.records.compare import diff_of
from nexus.services.session_state.merge import state_in
from nexus.services.session_state.service import stored_state
from nexus.services.session_state.state import as_object

# Comparing two texts takes so many times as long as the work that `computed` reckons with.
_CHARS_OF_DIFF: Final = 4
_FEW: Final = 10
_AT_ONCE: Final = 50
_ROWS_AT_ONCE: Final = 100


async def memory(visit: Visit) -> Response:
    """The memory of a session as it is now."""
    return await _memory(visit, await _newest(visit))


async def edit(visit: Visit) -> Response:
    """Write what was typed as the next revision of the overview.

    Where another was written since the page was made, nothing is written: a page has both texts and what differs.
    """
    owner, session = owner_and_session(visit)
    if (working_memory := visit.services.memory) is None:
        raise HTTPException(409, "memory.working_memory is off: no overview is kept")
    content, edit_id, base = visit.fields.get("content", ""), visit.fields.get("id", ""), number(visit, "base")
    if base is None or not 1 <= len(edit_id) <= MAX_ID_CHARS:
        raise HTTPException(400, "base, id: are missing; open the page again")
    try:
        written = await working_memory.edit_overview(owner, session, content, base_revision=base, edit_id=edit_id)
    except CallRefusedError as error:
        newest = await _newest(visit)
        if newest.revision == base:
            return await _memory(visit, newest, content, 400, fault=str(error))
        # Whoever saves it now has seen what was written meanwhile.
        return await _memory(visit, newest, content, 409, lines=await _difference(owner, newest.content, content))
    if written.call_id == edit_id:
        visit.changed("overview_edited", sha256=hashed(owner), bytes=len(content.encode()), version=written.revision)
    return visit.seen("memory", owner=owner, session=session)


class _Newest(NamedTuple):
    """What is stored of the overview as the newest revision: 0 is the template, None one that cannot be read."""

    revision: int
    overview: Overview | None

    @property
    def content(self) -> str:
        """Its text; of one that cannot be read there is none."""
        return self.overview.content if self.overview else "" if self.revision else TEMPLATE


async def _newest(visit: Visit) -> _Newest:
    document = await visit.services.store.memory.latest_overview(visit.owner, visit.session)
    if document is None:
        return _Newest(0, None)
    found, *_ = listed(visit, Overview, "revision", [document], 1)
    return _Newest(document["revision"], next(iter(found), None))


async def _memory(
    visit: Visit, newest: _Newest, typed: str | None = None, status: int = 200, **values: Any
) -> Response:
    """The page; `typed` is a text that was not saved, `lines` what differs between the newest and it."""
    key, store = (visit.owner, visit.session), visit.services.store
    found = await store.memory.overviews(*key, limit=_FEW + 1)
    overviews, faults, older = listed(visit, Overview, "revision", found, _FEW)
    found = await store.memory.list_details(*key, limit=_FEW + 1)
    details, others, behind = listed(visit, Detail, "name", found, _FEW)
    latest = await store.memory.latest_compaction(*key)
    compactions, further, _ = listed(visit, Compaction, "number", [latest] if latest else [], 1)
    return visit.session_page(
        "memory.html",
        status=status,
        is_kept=visit.services.memory is not None,
        newest=newest,
        overviews=overviews,
        older=older,
        details=details,
        behind=behind,
        compaction=next(iter(compactions), None),
        unreadable=[*faults, *others, *further],
        has_state=await stored_state(store, *key) is not None,
        most_bytes=_most_bytes(visit),
        typed=newest.content if typed is None else typed,
        # Each page is one edit, however often its form is sent.
        edit_id=new_message_id(),
        **{"fault": "", "lines": None, **values, "is_outdated": "lines" in values},
    )


async def _difference(owner_key: str, first: str, second: str) -> list[str]:
    # Other programs may have written, and a form may bring, texts of megabytes.
    return await computed(owner_key, _CHARS_OF_DIFF * (len(first) + len(second)), partial(diff_of, first, second))


async def revisions(visit: Visit) -> Response:
    """The revisions of the overview, the newest first, or what differs between two of them."""
    key, store = (visit.owner, visit.session), visit.services.store.memory
    first, second = number(visit, "first"), number(visit, "second")
    if first is not None or second is not None:
        before, after = await two_overviews(store, *key, first, second)
        lines = await _difference(key[0], before.content, after.content)
        return visit.session_page("difference.html", before=before, after=after, lines=lines)
    found = await store.overviews(*key, limit=_AT_ONCE + 1, before=number(visit, "before"))
    overviews, unreadable, behind = listed(visit, Overview, "revision", found, _AT_ONCE)
    return visit.session_page("revisions.html", overviews=overviews, unreadable=unreadable, next=behind)


async def revision(visit: Visit) -> Response:
    """One revision of the overview, whole."""
    wanted = number(visit, "number")
    found = await overview_of(visit.services.store.memory, visit.owner, visit.session, wanted)
    return visit.session_page("revision.html", overview=found, content=found.content if found else TEMPLATE)


async def details(visit: Visit) -> Response:
    """Notes and archives, by name."""
    key = visit.owner, visit.session
    found = await visit.services.store.memory.list_details(*key, limit=_AT_ONCE + 1, after=visit.asked("after"))
    named, unreadable, behind = listed(visit, Detail, "name", found, _AT_ONCE)
    return visit.session_page("details.html", details=named, unreadable=unreadable, next=behind)


async def detail(visit: Visit) -> Response:
    """One detail, whole, in one of its versions."""
    key, name = (visit.owner, visit.session), visit.asked("name")
    store = visit.services.store.memory
    found = await detail_of(store, *key, name, number(visit, "version"))
    newest = await detail_of(store, *key, name)
    return visit.session_page("detail.html", detail=found, newest=newest.version)


async def compactions(visit: Visit) -> Response:
    """The compactions of a session with their summaries, the newest first."""
    key, store = (visit.owner, visit.session), visit.services.store.memory
    found = await store.compactions(*key, limit=_FEW + 1, before=number(visit, "before"))
    made, unreadable, behind = listed(visit, Compaction, "number", found, _FEW)
    return visit.session_page("compactions.html", compactions=made, unreadable=unreadable, next=behind)


async def compaction(visit: Visit) -> Response:
    """One compaction, and the rows that its summary stands for, from one of them on."""
    key, wanted = (visit.owner, visit.session), number(visit, "number")
    if wanted is None:
        raise HTTPException(400, "number: is needed")
    found = await compaction_of(visit.services.store.memory, *key, wanted)
    begin = number(visit, "from") or 0
    ids = found.rows[begin : begin + _ROWS_AT_ONCE]
    rows = {row["_id"]: row for row in await visit.services.store.messages_of_ids(key[0], ids)}
    return visit.session_page(
        "compaction.html",
        compaction=found,
        rows=[(row_id, rows.get(row_id)) for row_id in ids],
        removed={*found.removed},
        next=begin + _ROWS_AT_ONCE if len(found.rows) > begin + _ROWS_AT_ONCE else None,
    )


async def state(visit: Visit) -> Response:
    """What agents are shown of the session's state, and what is kept of it."""
    kept, faults = state_in(await stored_state(visit.services.store, visit.owner, visit.session))
    given = as_object(kept)
    return visit.session_page(
        "state.html",
        parts=[*shown_parts(kept)],
        text=as_json(given) if given else "",
        faults=faults,
    )


def _most_bytes(visit: Visit) -> int:
    """As large as an overview may be now."""
    return (
        visit.services.memory.limits.overview_max_bytes
        if visit.services.memory
        else visit.services.settings.memory.overview_max_bytes
    )


PAGES: Final[Mapping[str, Page]] = {
    "memory": memory,
    "revisions": revisions,
    "revision": revision,
    "details": details,
    "detail": detail,
    "compactions": compactions,
    "compaction": compaction,
    "state": state,
}
FORMS: Final[Mapping[str, Page]] = {"memory": edit}
