"""One revision, version or compaction of a session, as an operator asks for it (contract §7).

Where there is none, or what is stored cannot be read, a `NexusError` says so, and what there is.
"""

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from nexus.core.errors import NexusError
from nexus.core.models import Row, utc_now
from nexus.core.ports import MemoryStore
from nexus.core.ports.store import LARGEST
from nexus.core.wire import explain
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.memory.documents import TEMPLATE

_Kept = TypeVar("_Kept", bound=BaseModel)
_MOST_NAMED: Final = 50


async def overview_of(store: MemoryStore, owner: str, session: str, revision: int | None = None) -> Overview | None:
    """That revision, or the newest; None for the template, which is revision 0."""
    if revision == 0:
        return None
    latest = await store.latest_overview(owner, session)
    if revision is None:
        return read_kept(Overview, latest, "revision") if latest else None
    is_possible = revision < LARGEST
    found = await store.overviews(owner, session, limit=1, before=revision + 1) if is_possible else []
    if not found or found[0]["revision"] != revision:
        there = f"the newest is {latest['revision']}" if latest else "nothing is written down yet"
        raise NexusError(f"there is no revision {revision}; {there}, and 0 is the template")
    return read_kept(Overview, found[0], "revision")


async def two_overviews(
    store: MemoryStore, owner: str, session: str, first: int | None = None, second: int | None = None
) -> tuple[Overview, Overview]:
    """Two revisions; without numbers the newest two, with one that and the newest. The template is revision 0."""
    newest = await overview_of(store, owner, session)
    if newest is None and first is None:
        raise NexusError("nothing is written down: there is only the template, as revision 0")
    latest = newest.revision if newest else 0
    after = latest if second is None else second
    before = after - 1 if first is None else first
    found = [await overview_of(store, owner, session, revision) for revision in (before, after)]
    template = Overview.model_construct(revision=0, content=TEMPLATE, updated_at=utc_now())
    return found[0] or template, found[1] or template


async def detail_of(store: MemoryStore, owner: str, session: str, name: str, version: int | None = None) -> Detail:
    """That version of a detail, whole; its newest where none is named."""
    is_possible = version is None or version <= LARGEST
    document = await store.find_detail(owner, session, name, version=version) if is_possible else None
    if document:
        return read_kept(Detail, document, "name")
    if newest := await store.find_detail(owner, session, name):
        raise NexusError(f"detail {name!r} has no version {version}; its newest is {newest['version']}")
    listed = await store.list_details(owner, session, limit=_MOST_NAMED + 1)
    names = ", ".join(repr(str(each["name"])) for each in listed[:_MOST_NAMED])
    more = " and more" if len(listed) > _MOST_NAMED else ""
    known = f"known: {names}{more}" if listed else "the session has no details"
    raise NexusError(f"there is no detail {name!r}; {known}")


async def compaction_of(store: MemoryStore, owner: str, session: str, number: int) -> Compaction:
    """The compaction with that number, whole."""
    is_possible = number < LARGEST
    found = await store.compactions(owner, session, limit=1, before=number + 1, whole=True) if is_possible else []
    if not found or found[0]["number"] != number:
        raise NexusError(f"there is no compaction {number}")
    return read_kept(Compaction, found[0], "number")


def read_kept(kind: type[_Kept], document: Row, field: str) -> _Kept:
    """The value of a stored document; `field` is what an error calls it by."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        name: Any = document.get(field)
        raise NexusError(f"{kind.__name__.lower()} {name!r} cannot be read: {explain(error)}") from None
