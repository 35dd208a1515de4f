"""Documents of working memory as values, and back (CONTRACT §7).

What comes back is checked against its owner and its session before anybody sees it. A document that is malformed is
passed over, and said in the log: one such never spoils what else is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio
import structlog
from pydantic import ValidationError

from nexus.core.errors import StoreUnavailableError
from nexus.core.ports import MemoryStore, Row
from nexus.core.tasks import ungrouped
from nexus.core.wire import explain
from nexus.core.working_memory import Compaction, Detail, Overview, Snapshot
from nexus.services.memory.disowning import owned

_log = structlog.get_logger(__name__)

_Kept = TypeVar("_Kept", Overview, Detail, Compaction)

# A session with more is searched rather than listed.
MOST_NOTES, MOST_ARCHIVES = 50, 10

TEMPLATE: Final = """\
# Working memory

<!-- Nothing is written down yet. update_working_memory puts a text of your own in place of this one. -->

## Goal

## Done

## Decisions, and why

## Facts to keep

## Open"""

# Somebody who asks again asks soon: so many revisions are looked through for what a message has brought about already.
LOOKED_BACK: Final = 20


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls a tool.

    Attributes:
        call_id: of the message that asks; what one message asks for is done once.
        is_sub_agent: a sub-agent, which may look into the memory of its session and not change it.
    """

    owner_key: str
    session_id: str
    run_id: str
    call_id: str
    is_sub_agent: bool = False

    @property
    def session(self) -> tuple[str, str]:
        """Which session, and whose it is."""
        return self.owner_key, self.session_id


async def read_snapshot(store: MemoryStore, owner_key: str, session_id: str) -> Snapshot:
    """What is kept of a session, as far as a context shows it. Three reads at once.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    session = owner_key, session_id
    overview: list[Overview] = []
    details: list[Detail] = []
    compaction: list[Compaction] = []
    count = 0

    async def read_overview() -> None:
        overview.extend(read_all(Overview, session, [await store.latest_overview(*session)]))

    async def read_details() -> None:
        nonlocal count
        documents, count = await store.recent_details(*session, notes=MOST_NOTES, archives=MOST_ARCHIVES)
        details.extend(read_all(Detail, session, documents))
        count -= len(documents) - len(details)

    async def read_compaction() -> None:
        compaction.extend(read_all(Compaction, session, [await store.latest_compaction(*session)]))

    with ungrouped():
        async with anyio.create_task_group() as tasks:
            for read in (read_overview, read_details, read_compaction):
                tasks.start_soon(read)
    latest = next(iter(compaction), None)
    known = owned(details, latest)
    count -= len(details) - len(known)
    return Snapshot(next(iter(overview), None), known, latest, count if count > len(known) else None)


def read_all(kind: type[_Kept], session: tuple[str, str], documents: Sequence[Row | None]) -> list[_Kept]:
    """These documents of a session, but for None and those that cannot be read.

    Raises:
        StoreUnavailableError: the store broke its promise, and one is of another session.
    """
    found = []
    for document in documents:
        if document is None:
            continue
        if (document.get("owner_key"), document.get("session_id")) != session:
            # Showing nothing of it is the only safe answer.
            _log.error("foreign_rows_withheld", rows=1)
            raise StoreUnavailableError("the store gave the memory of another session")
        try:
            found.append(kind.model_validate(document))
        except ValidationError as error:
            _log.warning("stored_memory_passed_over", name=kind.__name__.lower(), reason=explain(error))
    return found


def document_of(kept: Overview | Detail, session: tuple[str, str]) -> Row:
    """As it is stored."""
    return {"owner_key": session[0], "session_id": session[1], **kept.model_dump()}
