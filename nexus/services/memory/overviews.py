"""Writing the overview (CONTRACT §7).

Rules of this module:

- Inserting a revision is the compare-and-set: of any number that write the same one, one does, and the others look
  again at what there is then.
- What one message asks for is written once, also when the one who wrote it died before saying so.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from nexus.core.errors import CallRefusedError, StoreRejectedError, StoreUnavailableError
from nexus.core.models import utc_now
from nexus.core.ports import MemoryStore, Row
from nexus.core.tasks import Pauses
from nexus.core.working_memory import Overview
from nexus.services.memory.documents import LOOKED_BACK, TEMPLATE, Caller, document_of, read_all
from nexus.services.tools.memory_calls import UpdateOverview
from nexus.services.turns.documents import to_milliseconds

# Each attempt that fails is one of somebody else's that succeeded.
MOST_ATTEMPTS: Final = 50
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


def contending() -> Pauses:
    """Pauses between attempts of several that write the same."""
    return Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)


async def update_overview(
    store: MemoryStore, caller: Caller, call: UpdateOverview, turn_number: Callable[[], Awaitable[int]]
) -> Overview:
    """Write the next revision.

    Args:
        store: where it is kept.
        caller: who writes.
        call: what.
        turn_number: says in which turn; asked only where something is written.

    Returns:
        The revision; the earlier one, where the same message has written one, and the newest, which another message
        has written, where that says the same already.

    Raises:
        CallRefusedError: it may not be written, for the reason that is told.
        StoreUnavailableError, StoreRejectedError: from the store. It may have been written or not.
    """
    if call.content.strip() == TEMPLATE.strip():
        raise CallRefusedError("content: is the template as it was, which says nothing; fill it in")
    pauses = contending()
    for _ in range(MOST_ATTEMPTS):
        newest = await store.overviews(*caller.session, limit=LOOKED_BACK)
        known = read_all(Overview, caller.session, newest)
        if earlier := next((each for each in known if each.call_id == caller.call_id), None):
            return earlier
        revision = _revision_of(newest[0]) if newest else 0
        if call.base_revision not in {None, revision}:
            raise CallRefusedError(_outdated(call, revision, known))
        if known and (known[0].revision, known[0].content) == (revision, call.content):
            return known[0]
        overview = Overview(
            revision=revision + 1,
            content=call.content,
            updated_at=to_milliseconds(utc_now()),
            run_id=caller.run_id,
            turn_number=await turn_number(),
            call_id=caller.call_id,
        )
        if await store.insert_overview(document_of(overview, caller.session)):
            return overview
        await pauses.wait()
    raise StoreUnavailableError("others keep writing the overview at the same time")


def _revision_of(document: Row) -> int:
    revision = document.get("revision")
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 1:
        raise StoreRejectedError("what is stored of the overview has no revision; remove it from working_memory")
    return revision


def _outdated(call: UpdateOverview, revision: int, known: list[Overview]) -> str:
    """The reason that an update is refused, with what there is instead."""
    head = f"base_revision: {call.base_revision} is not the newest. Nothing was changed. The newest is revision"
    current = next((overview for overview in known if overview.revision == revision), None)
    if current is None:
        return f"{head} {revision}, " + ("which cannot be read." if revision else "the template: nothing is kept yet.")
    return f"{head} {revision}. Put what you want to change into this text:\n\n{current.content}"
