"""Import of an exported session (contract §7).

- All of the export is read and checked before anything is written. Messages and details are read once more when they
  are written: of each only a digest is held.
- The session must be empty, or hold documents of the export alone, as an import that broke off leaves it: anything
  else is refused by its name.
- In a session of another name or owner rows get other `_id`s (`new_row_ids`), since their own may be in use there.
- Compactions are written after the messages that they name, the newest last: an import that broke off shows more of
  the history, not less.
- Unfinished turns count as completed, and no model summarises anything again.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from nexus.core.errors import NexusError, StoreRejectedError
from nexus.core.models import SECOND, is_object_id
from nexus.core.person import Constraint, Statement
from nexus.core.ports import Row
from nexus.core.ports.store import TransferableStore
from nexus.core.turns import Turn, TurnStatus
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.history.tombstones import Tombstones
from nexus.services.person.constraint_changes import MOST_IN_FORCE, Target, adding
from nexus.services.person.constraints import known_in, merge
from nexus.services.person.facts import MOST_STATEMENTS, Facts
from nexus.services.transfer import folder as files

_PAGE: Final = 50
_BATCH: Final = 200
_BATCH_CHARS: Final = 1 << 22
_LOOKED_UP: Final = 1_000
# Digits of a new `_id` after its second: digits for the session, and for the rank among the rows of that second.
_SESSION_DIGITS: Final = 10
_RANK_DIGITS: Final = 6

# A document's name in its session: a number, a name and a version, the `_id` of a row.
Key: TypeAlias = Any
_Session = tuple[str, str]
# The keys of each file whose documents a session holds already.
Present: TypeAlias = Mapping[str, set[Key]]


@dataclass(frozen=True, slots=True)
class _Item:
    """A document of an export: its file and line, key, name in messages (`turn 3`), and the document for the store.

    The digest is the same for two documents with the same contents.
    """

    place: str
    key: Key
    name: str
    document: Row
    digest: bytes


@dataclass(frozen=True, slots=True)
class _Messages:
    folder: files.Folder
    store: TransferableStore
    header: files.Header
    session: _Session
    ids: Mapping[str, str]
    file: str = files.MESSAGES

    def items(self) -> Iterator[_Item]:
        for place, row in files.messages_in(self.folder, self.header, self.store):
            names: dict[str, Any] = {"owner_key": self.session[0], "session_id": self.session[1]}
            row_id = self.store.transfer.row_id(row)
            if new_id := self.ids.get(row_id):
                names["_id"] = {"$oid": new_id} if is_object_id(new_id) else new_id
            # In the order of its fields, in which arguments of tools are shown.
            named = {**row, **names}
            yield _Item(place, new_id or row_id, _message(named), named, _digest(named))

    async def stored(self) -> AsyncIterator[tuple[Key, str, bytes]]:
        async with aclosing(self.store.transfer.rows(*self.session)) as pages:
            async for page in pages:
                for row in page:
                    yield self.store.transfer.row_id(row), _message(row), _digest(row)

    async def insert(self, documents: Sequence[Row]) -> int:
        return await self.store.transfer.insert_rows(documents)


@dataclass(frozen=True, slots=True)
class _Models:
    """Documents of a model: `read` gives those of the export, `page` those of the store after or below a key."""

    store: TransferableStore
    session: _Session
    file: str
    model: type[BaseModel]
    key: Callable[[Row], Key]
    read: Callable[[], Iterator[tuple[str, BaseModel]]]
    page: Callable[[Key], Awaitable[list[Row]]]
    insert: Callable[[Sequence[Row]], Awaitable[int]]

    def items(self) -> Iterator[_Item]:
        names = {"owner_key": self.session[0], "session_id": self.session[1]}
        last: Key = None
        for place, value in self.read():
            document = value.model_dump(mode="python")
            document = document | names if isinstance(value, Turn) else names | document
            try:
                document = self.store.transfer.checked(document)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            key = self.key(document)
            if last is not None and place.startswith(self.file) and not key > last:
                raise ValueError(f"{place}: {self._name(key)} does not come after the line before it")
            last = key
            yield _Item(place, key, self._name(key), {**document, **_no_work(value)}, self._digest(document))

    async def stored(self) -> AsyncIterator[tuple[Key, str, bytes]]:
        last: Key = None
        while page := await self.page(last):
            for document in page:
                yield (last := self.key(document)), self._name(last), self._digest(document)

    def _name(self, key: Key) -> str:
        noun = "revision" if self.model is Overview else self.model.__name__.lower()
        return f"{noun} {key[0]}, version {key[1]}" if isinstance(key, tuple) else f"{noun} {key}"

    def _digest(self, document: Row) -> bytes:
        try:
            value = self.model.model_validate(document)
            text = value.model_copy(update=_over(value)).model_dump_json()
        except (ValidationError, PydanticSerializationError, UnicodeDecodeError):
            return b"malformed"
        return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class _State:
    folder: files.Folder
    store: TransferableStore
    session: _Session
    file: str = files.STATE

    def items(self) -> Iterator[_Item]:
        if (value := files.state_in(self.folder, self.store)) is not None:
            yield _Item(self.file, (), "a state", value, _digest(self.store.transfer.to_json(value)))

    async def stored(self) -> AsyncIterator[tuple[Key, str, bytes]]:
        row = await self.store.find_session_state(*self.session)
        if row and row.get("document"):
            yield (), "a state", _digest(self.store.transfer.to_json(row["document"]))

    async def insert(self, documents: Sequence[Row]) -> int:
        row = await self.store.find_session_state(*self.session)
        return int(await self.store.put_session_state(*self.session, documents[0], row["revision"] if row else 0))


@dataclass(frozen=True, slots=True)
class _Constraints:
    """Those of the owner and of the session; whatever others the owner has stays in force beside them."""

    folder: files.Folder
    store: TransferableStore
    target: Target
    file: str = files.CONSTRAINTS

    def items(self) -> Iterator[_Item]:
        for place, constraint in files.constraints_in(self.folder, self.target):
            yield _Item(place, constraint.id, constraint.id, constraint.model_dump(), b"")

    async def stored(self) -> AsyncIterator[tuple[Key, str, bytes]]:
        given = {item.key: item.document for item in self.items()}
        known = await known_in(self.store.constraints, self.target)
        all_ids = given.keys() | {each.id for each in known if each.holds}
        for scope in ("owner", "session"):
            if (count := sum(each.startswith(scope) for each in all_ids)) > MOST_IN_FORCE:
                fault = f"{count} of scope {scope} would be in force, at most {MOST_IN_FORCE} are allowed"
                raise NexusError(f"{self.file}: {fault}; nothing was written")
        for each in known:
            if each.holds and (each.id in given or each.scope == "session"):
                yield each.id, f"constraint {each.id}", b""
            elif each.id in given and each.valid_to and each.valid_to >= given[each.id]["valid_from"]:
                yield each.id, f"constraint {each.id}, taken back since,", b"taken back"

    async def insert(self, documents: Sequence[Row]) -> int:
        change = adding(Constraint.model_validate(document) for document in documents)
        try:
            await merge(self.store.constraints, self.target.owner_key, change)
        except ValueError as error:
            raise NexusError(f"{self.file}: {error}") from None
        return len(documents)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What was said of the owner, each once; whatever else was said stays beside it."""

    folder: files.Folder
    store: TransferableStore
    header: files.Header
    session: _Session
    file: str = files.FACTS

    def items(self) -> Iterator[_Item]:
        for place, said in files.facts_in(self.folder, self.header, *self.session):
            yield _Item(place, said.id, f"fact {said.id}", said.model_dump(), _fact(said))

    async def stored(self) -> AsyncIterator[tuple[Key, str, bytes]]:
        given = {item.key for item in self.items()}
        known = {
            said.id: said for said in await Facts(self.store.facts, Tombstones(self.store)).statements(self.session[0])
        }
        if (count := len(given | known.keys())) > MOST_STATEMENTS and given - known.keys():
            fault = f"{count} statements of the owner would be kept, at most {MOST_STATEMENTS} may be"
            raise NexusError(f"{self.file}: {fault}; nothing was written")
        for key in given & known.keys():
            yield key, f"fact {key}", _fact(known[key])

    async def insert(self, documents: Sequence[Row]) -> int:
        await self.store.facts.add_statements(self.session[0], [*map(Statement.model_validate, documents)])
        return len(documents)


# `items` are those of the export, `stored` key, name and digest of those of the session; `insert` stores documents up
# to the first whose key is taken, and returns how many.
_Part: TypeAlias = _Messages | _Models | _State | _Constraints | _Facts


@dataclass(frozen=True, slots=True)
class Plan:
    """An export that was read and checked, on its way into a session.

    `parts` are in the order in which they are written, messages first; `given` has by their keys the places and the
    digests of each file's documents.
    """

    store: TransferableStore
    session: _Session
    parts: Sequence[_Part]
    given: Mapping[str, Mapping[Key, tuple[str, bytes]]]

    @property
    def total(self) -> int:
        """How many documents there are."""
        return sum(map(len, self.given.values()))


def read_session(
    folder: files.Folder,
    store: TransferableStore,
    *,
    owner_key: str | None = None,
    session_id: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Plan:
    """Read and check an export that is to become that session, or the one that it names itself.

    Raises:
        ValueError: something in it cannot be imported; the file, the line, the fault, what is allowed.
    """
    header = files.read_header(folder)
    session = owner_key or header.owner_key, session_id or header.session_id
    ids: dict[str, str] = {}
    if session != (header.owner_key, header.session_id):
        ids = new_row_ids((store.transfer.row_id(row) for _, row in files.messages_in(folder, header, store)), *session)
    parts = _parts(folder, store, header, session, ids)
    given: dict[str, dict[Key, tuple[str, bytes]]] = {part.file: {} for part in parts}
    for part in parts:
        for item in part.items():
            given[part.file][item.key] = item.place, item.digest
            advance(1)
        listed = sum(place.startswith(part.file) for place, _ in given[part.file].values())
        if listed != (told := header.counts[part.file]):
            raise ValueError(f"{part.file}: it has {listed} documents, and {files.HEADER} says {told}: it is not whole")
    return Plan(store, session, parts, given)


async def compare(plan: Plan) -> Present:
    """Compare the session with the export; the keys of the documents that are there already.

    Raises:
        NexusError: something else is in the way, by its name.
        StoreUnavailableError: the store did not answer.
    """
    present: Present = {part.file: set() for part in plan.parts}
    in_the_way = list[str]()
    for part in plan.parts:
        given, unlisted, differing = plan.given[part.file], list[str](), list[str]()
        async for key, name, digest in part.stored():
            if key not in given:
                unlisted.append(f"{name} is there, and not in {part.file}")
            elif given[key][1] != digest:
                differing.append(f"{name} is there, not as in {given[key][0]}")
            else:
                present[part.file].add(key)
        for phrases in filter(None, (unlisted, differing)):
            more = f" (and {len(phrases) - 1} more)" if len(phrases) > 1 else ""
            in_the_way.append(phrases[0] + more)
    if obstacle := "; ".join(in_the_way) or await _recorded_elsewhere(plan, present):
        owner, session = plan.session
        raise NexusError(f"session {session} of {owner}: {obstacle}; nothing was written")
    return present


async def write_session(plan: Plan, present: Present, advance: Callable[[str, int], None]) -> None:
    """Store the missing documents; `advance` is called with a file and how many documents of it were written.

    Raises:
        NexusError: another program writes to the session or to the folder meanwhile.
        StoreUnavailableError: the store did not answer.
        StoreRejectedError: the store cannot keep a document; says which.
    """
    for part in plan.parts:
        for batch in _batches(_missing(part, plan, present)):
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
    text takes its place. Too many rows of one second are a ValueError.
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
            raise ValueError(f"{files.MESSAGES}: more than {16**_RANK_DIGITS} rows of one second")
        renamed |= {row_id: f"{second}{session}{rank:06x}" for rank, row_id in enumerate(sorted(of_one))}
    return renamed


def _parts(
    folder: files.Folder, store: TransferableStore, header: files.Header, session: _Session, ids: Mapping[str, str]
) -> list[_Part]:
    memory, turns = store.memory, store.turns

    def renamed(row_ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(ids.get(row_id, row_id) for row_id in row_ids)

    def told_turns() -> Iterator[tuple[str, Turn]]:
        for place, value in files.turns_in(folder, header):
            yield place, value.model_copy(update={"removed": renamed(value.removed)})

    def compactions() -> Iterator[tuple[str, Compaction]]:
        for place, value in files.compactions_in(folder):
            named = {name: renamed(getattr(value, name)) for name in ("rows", "removed")}
            yield place, value.model_copy(update={**named, "without": tuple(sorted(renamed(value.without)))})

    models = partial(_Models, store, session)
    return [
        _Messages(folder, store, header, session, ids),
        models(
            files.TURNS,
            Turn,
            itemgetter("turn_number"),
            told_turns,
            lambda before: turns.turns(*session, limit=_PAGE, before=before, whole=True),
            turns.insert_turns,
        ),
        models(
            files.DETAILS,
            Detail,
            itemgetter("name", "version"),
            partial(files.details_in, folder, header.exported_at),
            lambda after: memory.detail_versions(*session, limit=_PAGE, after=after),
            memory.insert_details,
        ),
        models(
            files.REVISIONS,
            Overview,
            itemgetter("revision"),
            partial(files.revisions_in, folder, header.exported_at),
            lambda before: memory.overviews(*session, limit=_PAGE, before=before),
            partial(_one_by_one, memory.insert_overview),
        ),
        models(
            files.COMPACTIONS,
            Compaction,
            itemgetter("number"),
            compactions,
            lambda before: memory.compactions(*session, limit=_PAGE, before=before, whole=True),
            partial(_one_by_one, memory.insert_compaction),
        ),
        _State(folder, store, session),
        _Constraints(folder, store, Target(*session, "")),
        _Facts(folder, store, header, session),
    ]


async def _recorded_elsewhere(plan: Plan, present: Present) -> str:
    """A missing message that another session has, since an owner has each once; empty where there is none."""
    transfer = plan.store.transfer
    for batch in _batches(_missing(plan.parts[0], plan, present), _LOOKED_UP):
        row = await transfer.find_elsewhere(*plan.session, [item.document for item in batch])
        if row is not None:
            row_id, message_id = transfer.row_id(row), row.get("id")
            item = next((one for one in batch if row_id == one.key or message_id == one.document.get("id")), batch[0])
            where = f"session {row.get('session_id')!r} of {row.get('owner_key')!r}"
            return f"{item.place}: {item.name} is recorded in {where} already"
    return ""


def _missing(part: _Part, plan: Plan, present: Present) -> Iterator[_Item]:
    given = plan.given[part.file]
    for item in part.items():
        if given.get(item.key, ("", b""))[1] != item.digest:
            raise NexusError(f"{item.place}: it was changed while it was read; import the folder again")
        if item.key not in present[part.file]:
            yield item


def _batches(items: Iterable[_Item], most: int = _BATCH) -> Iterator[list[_Item]]:
    """As many as are worth a round trip, and not too much text of them."""
    batch, chars = list[_Item](), 0
    for item in items:
        batch.append(item)
        content = item.document.get("content")
        chars += len(content) if isinstance(content, str) else 0
        if len(batch) >= most or chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _no_work(value: BaseModel) -> Row:
    """The fields of a stored document by which no work is due on it."""
    if isinstance(value, Turn):
        begun = {"begun_at": value.timestamp, "heard_at": value.timestamp}
        return {**_over(value), "work": None, "due_at": None, **begun, "rows": 0, "attempts": 0, "overtaken": False}
    return {"work": None, "due_at": None} if isinstance(value, Compaction) else {}


def _over(value: BaseModel) -> Row:
    unfinished = isinstance(value, Turn) and not value.status.is_over
    return {"status": TurnStatus.UNANSWERED} if unfinished else {}


async def _one_by_one(insert: Callable[[Row], Awaitable[bool]], documents: Sequence[Row]) -> int:
    for count, document in enumerate(documents):
        if not await insert(document):
            return count
    return len(documents)


def _message(row: Row) -> str:
    return f"message {row.get('id')!r}"


def _fact(said: Statement) -> bytes:
    """The digest of what the id of a statement stands for; its session may have got another name."""
    return _digest([said.topic, said.sub_topic, said.value, said.level, said.retires])


def _digest(value: Any) -> bytes:
    """Of JSON, the order of its fields included."""
    return hashlib.sha256(json.dumps(value, allow_nan=False, separators=(",", ":")).encode()).digest()
