"""The documents of an export, a part a kind: read from its files, and stored (contract §7).

In the session that is imported to they have its owner and its name. A part is read with one document held at a time.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from nexus.core.ports import Row
from nexus.core.ports.store import TransferableStore
from nexus.core.turns import Turn, TurnStatus
from nexus.core.working_memory import Compaction, Detail, Overview, is_object_id
from nexus.services.tools.memory_tools import is_reserved, read_name
from nexus.services.transfer import lines
from nexus.services.transfer.lines import Folder, Header, model_in, object_in, objects_in, text_in

_PAGE: Final = 50

# What a document is known by in its session: a number, a name and a version, the `_id` of a row.
Key = Any


@dataclass(frozen=True, slots=True)
class Item:
    """A document of an export.

    Attributes:
        place: its file and line.
        key: what it is known by in the session: its number, its name and version, the `_id` of a row.
        name: what it is called in messages, such as `turn 3`.
        document: as the store takes it.
        digest: the same for two documents with the same contents.
    """

    place: str
    key: Key
    name: str
    document: Row
    digest: bytes


class Part(Protocol):
    """Documents of one kind, in the order in which they are written."""

    @property
    def file(self) -> str:
        """The file that lists them."""
        ...

    def items(self) -> Iterator[Item]:
        """Those of the export.

        Raises:
            ValueError: one cannot be imported; the file, the line, what is wrong, what is allowed.
        """
        ...

    def stored(self) -> AsyncIterator[tuple[Key, str, bytes]]:
        """Key, name and digest of those of the session."""
        ...

    async def insert(self, documents: Sequence[Row]) -> int:
        """Store these, up to the first that is taken. Returns how many."""
        ...


def parts(
    folder: Folder, store: TransferableStore, header: Header, key: tuple[str, str], ids: Mapping[str, str]
) -> list[Part]:
    """The parts of an export in the order in which they are written.

    Args:
        folder: the export.
        store: where it is imported to.
        header: of the export.
        key: owner and session that it is to become.
        ids: new `_id`s of rows by those in the export; empty where they keep them.
    """
    memory, turns = store.memory, store.turns

    of_model = partial(_ModelPart, store, key)
    return [
        _Messages(folder, store, header, key, ids),
        of_model(
            lines.TURNS,
            Turn,
            ("turn_number",),
            lambda: ((place, _turn(place, value, header, key)) for place, value in objects_in(folder, lines.TURNS)),
            lambda before: turns.turns(*key, limit=_PAGE, before=_number(before), whole=True),
            turns.insert_turns,
        ),
        of_model(
            lines.DETAILS,
            Detail,
            ("name", "version"),
            lambda: _read_details(folder, header.exported_at),
            lambda after: memory.detail_versions(*key, limit=_PAGE, after=after),
            memory.insert_details,
        ),
        of_model(
            lines.REVISIONS,
            Overview,
            ("revision",),
            lambda: _read_revisions(folder, header.exported_at),
            lambda before: memory.overviews(*key, limit=_PAGE, before=_number(before)),
            lambda documents: _one_by_one(memory.insert_overview, documents),
        ),
        of_model(
            lines.COMPACTIONS,
            Compaction,
            ("number",),
            lambda: _read_compactions(folder, ids),
            lambda before: memory.compactions(*key, limit=_PAGE, before=_number(before), whole=True),
            lambda documents: _one_by_one(memory.insert_compaction, documents),
        ),
        _State(folder, store, key),
    ]


@dataclass(frozen=True, slots=True)
class _Messages:
    folder: Folder
    store: TransferableStore
    header: Header
    key: tuple[str, str]
    ids: Mapping[str, str]
    file: str = lines.MESSAGES

    def items(self) -> Iterator[Item]:
        transfer = self.store.transfer
        for place, row in rows_in(self.folder, self.header, self.store):
            names: dict[str, Any] = {"owner_key": self.key[0], "session_id": self.key[1]}
            row_id = transfer.row_id(row)
            if new_id := self.ids.get(row_id):
                names["_id"] = {"$oid": new_id} if is_object_id(new_id) else new_id
            # In the order of its fields, in which arguments of tools are shown.
            named = {**row, **names}
            yield Item(place, new_id or row_id, _message(named), named, _digest(named))

    async def stored(self) -> AsyncIterator[tuple[Key, str, bytes]]:
        async with aclosing(self.store.transfer.rows(*self.key)) as pages:
            async for page in pages:
                for row in page:
                    yield self.store.transfer.row_id(row), _message(row), _digest(row)

    async def insert(self, documents: Sequence[Row]) -> int:
        return await self.store.transfer.insert_rows(documents)


@dataclass(frozen=True, slots=True)
class _ModelPart:
    store: TransferableStore
    session: tuple[str, str]
    file: str
    model: type[BaseModel]
    fields: tuple[str, ...]
    read: Callable[[], Iterator[tuple[str, BaseModel]]]
    page: Callable[[Any], Awaitable[list[Row]]]
    write: Callable[[Sequence[Row]], Awaitable[int]]

    def items(self) -> Iterator[Item]:
        last: Key = None
        for place, value in self.read():
            document = value.model_dump(mode="python")
            if "owner_key" not in document:
                document = {"owner_key": self.session[0], "session_id": self.session[1], **document}
            try:
                document = self.store.transfer.checked(document)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            key = self._key(document)
            if last is not None and place.startswith(self.file) and not key > last:
                raise ValueError(f"{place}: {self._name(key)} does not come after the line before it")
            last = key
            yield Item(place, key, self._name(key), {**document, **_no_work(value)}, self._digest(document))

    async def stored(self) -> AsyncIterator[tuple[Key, str, bytes]]:
        after: Key = None
        while page := await self.page(after):
            for document in page:
                yield (after := self._key(document)), self._name(after), self._digest(document)

    async def insert(self, documents: Sequence[Row]) -> int:
        return await self.write(documents)

    def _key(self, document: Row) -> Key:
        return tuple(document[name] for name in self.fields)

    def _name(self, key: Key) -> str:
        noun = "revision" if self.model is Overview else self.model.__name__.lower()
        return f"{noun} {', version '.join(map(str, key))}"

    def _digest(self, document: Row) -> bytes:
        try:
            value = self.model.model_validate(document)
            text = (_over(value) if isinstance(value, Turn) else value).model_dump_json()
        except (ValidationError, PydanticSerializationError, UnicodeDecodeError):
            return b"malformed"
        return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class _State:
    folder: Folder
    store: TransferableStore
    session: tuple[str, str]
    file: str = lines.STATE

    def items(self) -> Iterator[Item]:
        content = self.folder.content(self.file)
        if content is None:
            return
        transfer = self.store.transfer
        try:
            value = transfer.checked(transfer.from_json(object_in(self.file, content)))
        except ValueError as error:
            raise ValueError(f"{self.file}: {str(error).removeprefix(f'{self.file}: ')}") from None
        yield Item(self.file, (), "a state", value, _digest(transfer.to_json(value)))

    async def stored(self) -> AsyncIterator[tuple[Key, str, bytes]]:
        row = await self.store.find_session_state(*self.session)
        if row and row.get("document"):
            yield (), "a state", _digest(self.store.transfer.to_json(row["document"]))

    async def insert(self, documents: Sequence[Row]) -> int:
        row = await self.store.find_session_state(*self.session)
        revision = row["revision"] if row else 0
        return int(await self.store.put_session_state(*self.session, documents[0], revision))


def rows_in(folder: Folder, header: Header, store: TransferableStore) -> Iterator[tuple[str, Row]]:
    """The messages of an export behind their places, in JSON as the store will give them.

    Raises:
        ValueError: one cannot be imported; the file, the line, what is wrong, what is allowed.
    """
    transfer = store.transfer
    places: dict[tuple[str, str], str] = {}
    for place, value in objects_in(folder, lines.MESSAGES, most_depth=lines.MOST_JSON_DEPTH):
        for name in ("owner_key", "session_id"):
            if value.get(name) != getattr(header, name):
                raise ValueError(f"{place}: {name}: it is not that of {lines.HEADER}")
        if not isinstance(value.get("_id"), str | int | float | dict):
            raise ValueError(f"{place}: _id: one is needed that is no list")
        try:
            row: Row = transfer.to_json(transfer.checked(transfer.from_json(value)))
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        message_id = row.get("id")
        for name, given in (("_id", transfer.row_id(row)), ("id", message_id if isinstance(message_id, str) else "")):
            if given and places.setdefault((name, given), place) != place:
                raise ValueError(f"{place}: {name}: it is that of {places[name, given]}")
        yield place, row


def _turn(place: str, value: Row, header: Header, key: tuple[str, str]) -> Turn:
    turn = model_in(place, value, Turn)
    for name in ("owner_key", "session_id"):
        if getattr(turn, name) != getattr(header, name):
            raise ValueError(f"{place}: {name}: it is not that of {lines.HEADER}")
    return _over(turn.model_copy(update={"owner_key": key[0], "session_id": key[1]}))


def _read_revisions(folder: Folder, exported_at: datetime) -> Iterator[tuple[str, Overview]]:
    content = folder.content(lines.OVERVIEW)
    text = None if content is None else text_in(lines.OVERVIEW, content)
    is_listed = False
    for place, value in objects_in(folder, lines.REVISIONS):
        is_listed = True
        if "content" not in value and text is None:
            raise ValueError(f"{place}: its content is in {lines.OVERVIEW}, which is missing")
        yield place, model_in(place, {"content": text, **value}, Overview)
    if text is not None and not is_listed:
        yield lines.OVERVIEW, Overview(revision=1, content=text, updated_at=exported_at, author="import")


def _read_details(folder: Folder, exported_at: datetime) -> Iterator[tuple[str, Detail]]:
    read, names = set[str](), set[str]()
    for place, value in objects_in(folder, lines.DETAILS):
        given = value
        if "content" not in value:
            file = value.get("file")
            if not isinstance(file, str) or "/" in file or file.startswith("."):
                raise ValueError(f"{place}: file: the name of a file in {lines.DETAIL_FOLDER} is needed")
            text = _detail_text(folder, file)
            if text is None:
                raise ValueError(f"{place}: its content is in {lines.DETAIL_FOLDER}/{file}, which is missing")
            read.add(file)
            given = {**value, "content": text, "bytes": len(text.encode())}
        detail = model_in(place, given, Detail)
        if len(detail.content.encode()) != detail.bytes:
            raise ValueError(f"{place}: bytes: the content has {len(detail.content.encode())}")
        names.add(detail.name)
        yield place, detail
    for file in folder.names(lines.DETAIL_FOLDER):
        if file not in read:
            yield f"{lines.DETAIL_FOLDER}/{file}", _new_detail(folder, file, names, exported_at)


def _new_detail(folder: Folder, file: str, names: set[str], exported_at: datetime) -> Detail:
    """A file that no line lists, as a new note."""
    place = f"{lines.DETAIL_FOLDER}/{file}"
    name = file.removesuffix(lines.SUFFIX)
    if name == file:
        raise ValueError(f"{place}: a detail is a file whose name ends with {lines.SUFFIX}")
    name = read_name(name, place)
    if is_reserved(name) or name in names:
        raise ValueError(f"{place}: no new detail can be called so; another name is needed")
    text = _detail_text(folder, file) or ""
    return Detail(name=name, version=1, bytes=len(text.encode()), updated_at=exported_at, content=text)


def _detail_text(folder: Folder, file: str) -> str | None:
    place = f"{lines.DETAIL_FOLDER}/{file}"
    content = folder.content(place)
    return None if content is None else text_in(place, content)


def _read_compactions(folder: Folder, ids: Mapping[str, str]) -> Iterator[tuple[str, Compaction]]:
    for place, value in objects_in(folder, lines.COMPACTIONS):
        compaction = model_in(place, value, Compaction)
        if len(compaction.rows) != compaction.count:
            raise ValueError(f"{place}: count: there are {len(compaction.rows)} rows")
        rows = tuple(ids.get(row_id, row_id) for row_id in compaction.rows)
        without = tuple(sorted(ids.get(row_id, row_id) for row_id in compaction.without))
        yield place, compaction.model_copy(update={"rows": rows, "without": without})


def _no_work(value: BaseModel) -> Row:
    """The fields of a stored document that say what is due on it: nothing."""
    if isinstance(value, Turn):
        begun = {"begun_at": value.timestamp, "heard_at": value.timestamp}
        return {"work": None, "due_at": None, **begun, "rows": 0, "attempts": 0, "overtaken": False}
    return {"work": None, "due_at": None} if isinstance(value, Compaction) else {}


def _over(turn: Turn) -> Turn:
    return turn if turn.status.is_over else turn.model_copy(update={"status": TurnStatus.COMPLETED})


async def _one_by_one(insert: Callable[[Row], Awaitable[bool]], documents: Sequence[Row]) -> int:
    for count, document in enumerate(documents):
        if not await insert(document):
            return count
    return len(documents)


def _number(key: Key) -> int | None:
    """The number that a key is, for stores that page downwards."""
    return None if key is None else int(key[0])


def _message(row: Row) -> str:
    return f"message {row.get('id')!r}"


def _digest(value: Any) -> bytes:
    """Of JSON, the order of its fields included."""
    return hashlib.sha256(json.dumps(value, allow_nan=False, separators=(",", ":")).encode()).digest()
