"""The working memory of a session as the commands read it."""

from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from nexus.core.errors import NexusError
from nexus.core.models import utc_now
from nexus.core.ports import MemoryStore, Row, Store
from nexus.core.working_memory import WHOLE, Compaction, Detail, Overview
from nexus.services.context.working import TEMPLATE
from nexus.services.json_lines import explained

_PAGE: Final = 50
_HIGHEST: Final = 2**63 - 1
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a session.

    Attributes:
        overview: None where there is only the template.
        details: their newest versions, by name, without contents.
        compaction: the newest one; None where nothing is compacted.
    """

    overview: Overview | None
    details: tuple[Detail, ...]
    compaction: Compaction | None


@dataclass(frozen=True, slots=True)
class Past:
    """What became of a session's working memory, the newest first."""

    overviews: tuple[Overview, ...]
    compactions: tuple[Compaction, ...]


async def is_unknown(store: Store, owner_key: str, session_id: str) -> bool:
    """Whether there is no message of the session, and nothing is written down or compacted.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    key, memory = (owner_key, session_id), store.memory
    return not (
        await store.tail_messages(*key, WHOLE, limit=1)
        or await memory.latest_overview(*key)
        or await memory.list_details(*key)
        or await memory.latest_compaction(*key)
    )


async def kept(store: MemoryStore, owner_key: str, session_id: str, revision: int | None) -> Kept:
    """The newest of everything, or of the overview that revision; 0 is the template.

    Raises:
        NexusError: there is no such revision, or something is malformed.
        StoreUnavailableError: the store did not answer.
    """
    key = owner_key, session_id
    overview = await _overview(store, *key, revision)
    details = tuple(_read(Detail, document, "name") for document in await store.list_details(*key))
    document = await store.latest_compaction(*key)
    return Kept(overview, details, _read(Compaction, document, "number") if document else None)


async def detail(store: MemoryStore, owner_key: str, session_id: str, name: str, version: int | None) -> Detail:
    """A detail, whole.

    Raises:
        NexusError: there is none; says which there are. Or it is malformed.
        StoreUnavailableError: the store did not answer.
    """
    wanted = version is None or 0 < version <= _HIGHEST
    document = await store.find_detail(owner_key, session_id, name, version=version) if wanted else None
    if document is None:
        listed = await store.list_details(owner_key, session_id)
        newest = {str(found["name"]): found["version"] for found in listed}
        if name in newest:
            raise NexusError(f"detail {name!r} has no version {version}; its newest is {newest[name]}")
        known = f"known: {', '.join(map(repr, sorted(newest)))}" if newest else "the session has no details"
        raise NexusError(f"there is no detail {name!r}; {known}")
    return _read(Detail, document, "name")


async def past(store: MemoryStore, owner_key: str, session_id: str, limit: int) -> Past:
    """The newest revisions and compactions, up to `limit` of each.

    Raises:
        NexusError: one is malformed.
        StoreUnavailableError: the store did not answer.
    """
    overviews, compactions = list[Overview](), list[Compaction]()
    before: int | None = None
    key = owner_key, session_id
    while most := min(_PAGE, limit - len(overviews)):
        page = await store.overviews(*key, limit=most, before=before)
        overviews += (_read(Overview, document, "revision") for document in page)
        if len(page) < most:
            break
        before = overviews[-1].revision
    before = None
    while most := min(_PAGE, limit - len(compactions)):
        page = await store.compactions(*key, limit=most, before=before)
        compactions += (_read(Compaction, document, "number") for document in page)
        if len(page) < most:
            break
        before = compactions[-1].number
    return Past(tuple(overviews), tuple(compactions))


async def pair(
    store: MemoryStore, owner_key: str, session_id: str, first: int | None, second: int | None
) -> tuple[Overview, Overview]:
    """Two revisions of the overview; without numbers the newest two, with one that and the newest.

    Raises:
        NexusError: there is no such revision; says which there are. Or one is malformed.
        StoreUnavailableError: the store did not answer.
    """
    key = owner_key, session_id
    newest = await _overview(store, *key, None)
    if newest is None and first is None:
        raise NexusError("nothing is written down: there is only the template, as revision 0")
    latest = newest.revision if newest else 0
    after = latest if second is None else second
    before = after - 1 if first is None else first
    return await _shown(store, *key, before), await _shown(store, *key, after)


async def _shown(store: MemoryStore, owner_key: str, session_id: str, revision: int) -> Overview:
    """The revision; the template as one that was never written."""
    found = await _overview(store, owner_key, session_id, revision)
    return found or Overview.model_construct(revision=0, content=TEMPLATE, updated_at=utc_now())


async def _overview(store: MemoryStore, owner_key: str, session_id: str, revision: int | None) -> Overview | None:
    if revision == 0:
        return None
    key = owner_key, session_id
    if revision is None:
        document = await store.latest_overview(*key)
        return _read(Overview, document, "revision") if document else None
    found = await store.overviews(*key, limit=1, before=revision + 1) if 0 < revision < _HIGHEST else []
    if not found or found[0]["revision"] != revision:
        latest = await store.latest_overview(*key)
        there = f"the newest is {latest['revision']}" if latest else "nothing is written down yet"
        raise NexusError(f"there is no revision {revision}; {there}, and 0 is the template")
    return _read(Overview, found[0], "revision")


def _read(model: type[_Model], document: Row, field: str) -> _Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        name: Any = document.get(field)
        raise NexusError(f"{model.__name__.lower()} {name!r} cannot be read: {explained(error)}") from None
