"""Import of an exported session (contract §7).

Rules of this module:

- All of the export is read and checked before anything is written. Messages and details are many, so a digest of each
  is held, and they are read once more when they are written.
- The session must be empty, or hold documents of the export alone, as an import that broke off leaves it: anything else
  is in the way, and refused by its name. So importing twice stores once.
- In a session of another name or owner rows get other `_id`s (`new_row_ids`), since their own may be in use there.
- Compactions are written after the messages that they name, the newest last: an import that broke off shows more of the
  history, not less.
- What is imported is memory and no work: unfinished turns count as completed, and no model summarises anything again.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nexus.core.errors import NexusError, StoreRejectedError
from nexus.core.ports.store import TransferableStore
from nexus.core.working_memory import SECOND, is_object_id
from nexus.services.transfer import lines
from nexus.services.transfer.documents import Item, Key, Part, parts, rows_in
from nexus.services.transfer.lines import Folder, Header

_BATCH: Final = 200
_BATCH_CHARS: Final = 1 << 22
_LOOKED_UP: Final = 1_000
# What a new `_id` has after its second: digits for the session, and for the rank among the rows of that second.
_SESSION_DIGITS: Final = 10
_RANK_DIGITS: Final = 6

_Advance = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """An export that was read and checked, on its way into a session.

    Attributes:
        given: of each file, by the keys of its documents, their places and digests.
        ids: new `_id`s of rows by those in the export; empty where they keep them.
    """

    header: Header
    owner_key: str
    session_id: str
    given: Mapping[str, Mapping[Key, tuple[str, bytes]]]
    ids: Mapping[str, str]

    @property
    def total(self) -> int:
        """How many documents there are."""
        return sum(map(len, self.given.values()))


@dataclass(slots=True)
class Found:
    """What a session holds.

    Attributes:
        present: of each file the keys of the documents that are stored already.
        in_the_way: what prevents the import, in words.
    """

    present: dict[str, set[Key]] = field(default_factory=lambda: defaultdict(set))
    in_the_way: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many documents are stored already."""
        return sum(map(len, self.present.values()))


def read_session(
    folder: Folder,
    store: TransferableStore,
    *,
    owner_key: str | None = None,
    session_id: str | None = None,
    advance: _Advance = lambda _, __: None,
) -> Plan:
    """Read and check an export that is to become that session, or the one that it names itself.

    Raises:
        ValueError: something in it cannot be imported; the file, the line, what is wrong, what is allowed.
    """
    header = lines.read_header(folder)
    key = owner_key or header.owner_key, session_id or header.session_id
    ids: dict[str, str] = {}
    if key != (header.owner_key, header.session_id):
        ids = new_row_ids((store.transfer.row_id(row) for _, row in rows_in(folder, header, store)), *key)
    given = dict[str, dict[Key, tuple[str, bytes]]]()
    for part in parts(folder, store, header, key, ids):
        of_part = given[part.file] = {}
        for item in part.items():
            of_part[item.key] = item.place, item.digest
            advance(part.file, 1)
        listed = sum(place.startswith(part.file) for place, _ in of_part.values())
        if listed != (said := header.counts[part.file]):
            raise ValueError(f"{part.file}: it has {listed} documents, and {lines.HEADER} says {said}: it is not whole")
    return Plan(header, *key, given, ids)


async def compare(folder: Folder, store: TransferableStore, plan: Plan) -> Found:
    """What the session holds of the export, and what is in its way.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    found = Found()
    for part in _parts_of(folder, store, plan):
        given, unlisted, differing = plan.given[part.file], list[str](), list[str]()
        async for key, name, digest in part.stored():
            if key not in given:
                unlisted.append(name)
            elif given[key][1] != digest:
                differing.append(f"{name} is there, not as in {given[key][0]}")
            else:
                found.present[part.file].add(key)
        if unlisted:
            found.in_the_way.append(_first_of([f"{unlisted[0]} is there, and not in {part.file}"], len(unlisted)))
        if differing:
            found.in_the_way.append(_first_of(differing, len(differing)))
    if not found.in_the_way:
        await _look_elsewhere(folder, store, plan, found)
    return found


async def write_session(
    folder: Folder, store: TransferableStore, plan: Plan, found: Found, advance: _Advance = lambda _, __: None
) -> None:
    """Store what is not there yet; `advance` is called with a file and how many documents of it were written.

    Raises:
        NexusError: something is in the way, or another program writes to the session or to the folder meanwhile.
        StoreUnavailableError: the store did not answer.
        StoreRejectedError: the store cannot keep a document; says which.
    """
    if found.in_the_way:
        raise NexusError("; ".join(found.in_the_way))
    for part in _parts_of(folder, store, plan):
        for batch in _batches(_missing(part, plan, found)):
            try:
                count = await part.insert([item.document for item in batch])
            except StoreRejectedError as error:
                raise StoreRejectedError(f"{batch[0].place} or one of {len(batch) - 1} after it: {error}") from error
            advance(part.file, count)
            if count < len(batch):
                item = batch[count]
                raise NexusError(f"{item.place}: {item.name} is there meanwhile: another program writes to the session")


def new_row_ids(row_ids: Iterable[str], owner_key: str, session_id: str) -> dict[str, str]:
    """Other `_id`s for these rows in that session, the same ones each time.

    An `_id` says in which second its row was stored, which is how a compaction tells what came after it. So a new one
    has the same second, and the same rank among those of that second. One that MongoDB did not make says no second; a
    text takes its place.

    Raises:
        ValueError: too many rows are of one second.
    """
    named = f"{len(owner_key)} {owner_key} {session_id}".encode(errors="surrogatepass")
    session = hashlib.sha256(named).hexdigest()[:_SESSION_DIGITS]
    of_second = defaultdict[str, list[str]](list)
    renamed = dict[str, str]()
    for row_id in row_ids:
        if is_object_id(row_id):
            of_second[row_id[SECOND]].append(row_id)
        else:
            renamed[row_id] = f"{session}:{len(renamed):012d}"
    for second, of_one in of_second.items():
        if len(of_one) > 16**_RANK_DIGITS:
            raise ValueError(f"{lines.MESSAGES}: more than {16**_RANK_DIGITS} rows of one second")
        renamed |= {row_id: f"{second}{session}{rank:06x}" for rank, row_id in enumerate(sorted(of_one))}
    return renamed


def _parts_of(folder: Folder, store: TransferableStore, plan: Plan) -> list[Part]:
    return parts(folder, store, plan.header, (plan.owner_key, plan.session_id), plan.ids)


async def _look_elsewhere(folder: Folder, store: TransferableStore, plan: Plan, found: Found) -> None:
    """See that no other session has the messages that are missing: an owner has each once."""
    part = _parts_of(folder, store, plan)[0]
    for batch in _batches(_missing(part, plan, found), _LOOKED_UP):
        row = await store.transfer.find_elsewhere(plan.owner_key, plan.session_id, [item.document for item in batch])
        if row is not None:
            row_id, message_id = store.transfer.row_id(row), row.get("id")
            item = next((one for one in batch if row_id == one.key or message_id == one.document.get("id")), batch[0])
            where = f"session {row.get('session_id')!r} of {row.get('owner_key')!r}"
            found.in_the_way.append(f"{item.place}: {item.name} is recorded in {where} already")
            return


def _missing(part: Part, plan: Plan, found: Found) -> Iterator[Item]:
    given, present = plan.given[part.file], found.present[part.file]
    for item in part.items():
        if given.get(item.key, ("", b""))[1] != item.digest:
            raise NexusError(f"{item.place}: it was changed while it was read; import the folder again")
        if item.key not in present:
            yield item


def _batches(items: Iterable[Item], most: int = _BATCH) -> Iterator[list[Item]]:
    """As many as are worth a round trip, and not too much text of them."""
    batch, chars = list[Item](), 0
    for item in items:
        batch.append(item)
        content = item.document.get("content")
        chars += len(content) if isinstance(content, str) else 0
        if len(batch) >= most or chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _first_of(phrases: Sequence[str], count: int) -> str:
    return phrases[0] + (f" (and {count - 1} more)" if count > 1 else "")
