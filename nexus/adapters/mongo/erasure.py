"""Erasure in MongoDB (contract §13): tombstones, in `tombstones`, and the removal of what they are of.

What goes is found some documents at a time, and removed by `_id` and owner. The index of long-term memory is in
`index_erasure.py`: before a row goes its place there is noted.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING

from nexus.adapters.mongo.batches import TooSlowError, chunks, counted, delete, delete_all, pages
from nexus.adapters.mongo.client import Calls, Operations, driver_call, insert_call
from nexus.adapters.mongo.documents import ONLY_ID, Documents, equal
from nexus.adapters.mongo.index_erasure import IndexErasure, place_of
from nexus.adapters.mongo.schema import of_owner, rows_of_session
from nexus.core.erasure import Erasure, StoreKind, Tombstone, hashed
from nexus.core.models import DEFAULT_SESSION, parse_moment, utc_now
from nexus.core.ports import Row

_FIELDS: Final = {"_id": 0, **{field.name: 1 for field in fields(Tombstone)}}
# Of a search, documents: a record may have megabytes.
_SEARCHED_AT_ONCE: Final = 50
_ROW: Final = {"session_id": 1, "timestamp": 1, "id": 1, "recall.place": 1}
# Types that an index has apart from dates, so that it tells at once whether there is any such time.
_OTHERS: Final = [
    *("double", "string", "object", "binData", "objectId", "bool", "null", "regex", "int", "timestamp", "long"),
    "decimal",
]
_NO_DATE: Final = {"$or": [{"timestamp": {"$type": _OTHERS}}, {"timestamp": None}]}


class _Kind(NamedTuple):
    """Where documents of a kind are, and which of the owner's go with a session, or with what was said before a time.

    Attributes:
        going: those of the `sessions` in which something goes, those that are `chosen` one by one, `all` or `none`.
        times: a session has something from before an erasure's time where one of these is.
        read: the fields by which documents are chosen; None for all.
        owner: the field that says whose they are.
    """

    collection: str
    going: Literal["sessions", "chosen", "all", "none"]
    times: Sequence[str] = ()
    read: Row | None = None
    owner: str = "owner_key"


_KINDS: Final[Mapping[StoreKind, _Kind]] = {
    "records": _Kind("context_records", "all"),
    "pieces": _Kind("context_pieces", "all"),
    "facts": _Kind("facts", "chosen", read={"session_id": 1, "said_at": 1, "evidence": 1}),
    "constraints": _Kind("constraints", "chosen"),
    "states": _Kind("session_states", "sessions", ["updated_at"]),
    "turns": _Kind("turns", "sessions", ["timestamp"]),
    "details": _Kind("memory_details", "sessions", ["updated_at"]),
    "overviews": _Kind("working_memory", "sessions", ["updated_at"]),
    "compactions": _Kind("compactions", "sessions", ["created_at", "first_at"]),
    "messages": _Kind("messages", "chosen", read=_ROW),
    "profile": _Kind("identities", "none", owner="public_key"),
}
_OF_SESSIONS: Final = [kind for kind, each in _KINDS.items() if each.going == "sessions"]
_Choose = Callable[[Sequence[Row], Erasure], Awaitable[list[Row]]]
_Remove = Callable[[Sequence[Row], Erasure], Awaitable[int]]


class MongoErasure(Operations):
    """`nexus.core.ports.ErasureStore` on a database; see `MongoMessages`."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._database = database
        self._tombstones = Documents(database["tombstones"])
        self._collections: Mapping[StoreKind, Documents] = {
            kind: Documents(database[each.collection]) for kind, each in _KINDS.items()
        }
        self._messages = self._collections["messages"]
        self._index = IndexErasure(database, calls, indexed)
        self._by_choice: Mapping[StoreKind, tuple[_Choose, _Remove]] = {
            "messages": (self._messages_that_go, self._remove_messages),
            "facts": (self._facts_that_go, self._remove_facts),
            "constraints": (self._constraints_that_go, self._keep_the_rest),
        }

    @insert_call
    async def put_tombstone(self, tombstone: Tombstone) -> None:
        """Keep a tombstone, or renew the one of the same names and `until`."""
        kept = asdict(tombstone)
        erased_at = {"erased_at": kept.pop("erased_at")}
        await self._tombstones.update(equal(kept), {"$max": erased_at}, upsert=True)

    @driver_call
    async def tombstones(self, owner_keys: Sequence[str]) -> list[Tombstone]:
        """All tombstones of these owners."""
        query = {"owner": {"$in": [*map(hashed, owner_keys)]}}
        return [Tombstone(**row) for row in await self._tombstones.read_all(query, _FIELDS)]

    async def sessions(self, erasure: Erasure) -> list[str]:
        """The sessions in which something goes."""
        if erasure.before is None:
            return [] if erasure.session_id is None else [erasure.session_id]
        names = {erasure.session_id} if erasure.session_id is not None else await self._names(erasure.owner_key)
        return [each for each in sorted(names) if await self._has_earlier(erasure.owner_key, each, erasure.before)]

    async def count(self, kind: StoreKind, erasure: Erasure, sessions: Sequence[str]) -> int | None:
        """How many of a kind would go."""
        try:
            if kind == "index":
                return await self._index.count(erasure, _rows_that_go(erasure))
            query = _query(_KINDS[kind], erasure, sessions)
            if query is not None:
                return await counted(self, self._collections[kind], query)
            return sum([len(page) async for page in self._chosen(kind, erasure)])
        except TooSlowError:
            return None

    def remove(self, kind: StoreKind, erasure: Erasure, sessions: Sequence[str]) -> AsyncGenerator[int]:
        """Remove all of a kind."""
        if kind == "index":
            return self._index.remove(erasure)
        query = _query(_KINDS[kind], erasure, sessions)
        if query is not None:
            return delete_all(self, self._collections[kind], query)
        return self._remove_chosen(kind, erasure)

    async def find_text(self, forms: Sequence[bytes]) -> AsyncGenerator[tuple[str, int]]:
        """By collection, how many of a batch of documents hold one of these byte strings."""
        raw = CodecOptions[RawBSONDocument](document_class=RawBSONDocument)
        for name in await self._names_of_collections():
            yield name, 0
            documents = Documents(self._database[name].with_options(codec_options=raw))
            async with aclosing(pages(self, documents, {}, None, _SEARCHED_AT_ONCE)) as found:
                async for page in found:
                    yield name, sum(_holds(bytes(document.raw), forms) for document in page)

    @driver_call
    async def _names_of_collections(self) -> list[str]:
        return sorted(await self._database.list_collection_names())

    async def _names(self, owner_key: str) -> set[str]:
        """The names of all of an owner's sessions."""
        names = {DEFAULT_SESSION}
        for kind in ("messages", *_OF_SESSIONS):
            last: str | None = ""
            while last is not None and (last := await self._next_name(self._collections[kind], owner_key, last)):
                names.add(last)
        return names

    @driver_call
    async def _next_name(self, documents: Documents, owner_key: str, last: str) -> str | None:
        behind = {**of_owner(owner_key), "session_id": {"$gt": last}}
        row = await documents.read_one(behind, {"session_id": 1}, [("session_id", ASCENDING)])
        return row["session_id"] if row else None

    @driver_call
    async def _has_earlier(self, owner_key: str, session_id: str, before: datetime) -> bool:
        session = rows_of_session(owner_key, session_id)
        if await self._messages.read_one({**session, "timestamp": {"$lt": before}}, ONLY_ID):
            return True
        async for row in self._messages.collection.find({**session, **_NO_DATE}, _ROW):
            if _is_before(row.get("timestamp"), before):
                return True
        for kind in _OF_SESSIONS:
            times = [{name: {"$lt": before}} for name in _KINDS[kind].times]
            if await self._collections[kind].read_one({**session, "$or": times}, ONLY_ID):
                return True
        return False

    async def _chosen(self, kind: StoreKind, erasure: Erasure) -> AsyncGenerator[list[Row]]:
        """The messages or statements that go, or documents of constraints as they are to become."""
        choose, _ = self._by_choice[kind]
        queries = _rows_that_go(erasure) if kind == "messages" else [of_owner(erasure.owner_key)]
        for query in queries:
            async with aclosing(pages(self, self._collections[kind], query, _KINDS[kind].read)) as found:
                async for page in found:
                    if going := await choose(page, erasure):
                        yield going

    async def _remove_chosen(self, kind: StoreKind, erasure: Erasure) -> AsyncGenerator[int]:
        _, remove = self._by_choice[kind]
        async with aclosing(self._chosen(kind, erasure)) as chosen:
            async for page in chosen:
                yield await remove(page, erasure)

    async def _messages_that_go(self, page: Sequence[Row], erasure: Erasure) -> list[Row]:
        return [row for row in page if _goes(row, "timestamp", erasure)]

    async def _facts_that_go(self, page: Sequence[Row], erasure: Erasure) -> list[Row]:
        gone = await self._ids_that_go([each for row in page for each in _list(row.get("evidence"))], erasure)
        return [
            row
            for row in page
            if _goes(row, "said_at", erasure) or not gone.isdisjoint(filter(_is_text, _list(row.get("evidence"))))
        ]

    async def _constraints_that_go(self, page: Sequence[Row], erasure: Erasure) -> list[Row]:
        """The documents that change, with what is left of them."""
        entries = [each for row in page for each in _entries(row, "constraints")]
        gone = await self._ids_that_go([each.get("source_message_id") for each in entries], erasure)
        changed = []
        for row in page:
            known = {name: _entries(row, name) for name in ("constraints", "retired")}
            of_session = str(row.get("place")) == f"session:{erasure.session_id}"
            left = {
                "constraints": [
                    each
                    for each in known["constraints"]
                    if not (_goes(each, "valid_from", erasure) or each.get("source_message_id") in gone)
                ],
                # Which session one is of is known of its place alone.
                "retired": [
                    each
                    for each in known["retired"]
                    if not (
                        (of_session or erasure.session_id is None)
                        and (erasure.before is None or _is_before(each.get("valid_to"), erasure.before))
                    )
                ],
            }
            if left != known:
                changed.append({**row, "document": left})
        return changed

    async def _ids_that_go(self, ids: Sequence[Any], erasure: Erasure) -> set[str]:
        """Those of these `id`s of which the owner has a message that goes."""
        texts = [*{each for each in ids if _is_text(each) and each}]
        found = set[str]()
        for some in chunks(texts):
            query = {**of_owner(erasure.owner_key), "id": {"$in": some}}
            async with aclosing(pages(self, self._messages, query, _ROW)) as rows:
                async for page in rows:
                    found |= {row["id"] for row in page if _goes(row, "timestamp", erasure)}
        return found

    async def _remove_facts(self, page: Sequence[Row], _erasure: Erasure) -> int:
        return await delete(self, self._collections["facts"], [row["_id"] for row in page])

    async def _remove_messages(self, page: Sequence[Row], erasure: Erasure) -> int:
        await self._index.release(erasure.owner_key, page)
        placed = [row["_id"] for row in page if place_of(row) is not None]
        others = [row["_id"] for row in page if place_of(row) is None]
        # A row that has got a place since it was read stays, and is found again: its place is not noted yet.
        removed = await delete(self, self._messages, placed)
        return removed + await delete(self, self._messages, others, {"recall.place": None})

    @driver_call
    async def _keep_the_rest(self, page: Sequence[Row], _erasure: Erasure) -> int:
        """Keep what is left of documents of constraints, where nobody has changed them since."""
        changed = 0
        collection = self._collections["constraints"].collection
        for row in page:
            same = {"_id": row["_id"], "revision": {"$eq": row.get("revision")}}
            if not any(row["document"].values()):
                changed += (await collection.delete_one(same)).deleted_count
                continue
            revision = row["revision"] + 1 if isinstance(row.get("revision"), int) else 1
            written = {"document": row["document"], "revision": revision, "updated_at": utc_now()}
            changed += (await collection.update_one(same, {"$set": written})).matched_count
        return changed


def _query(kind: _Kind, erasure: Erasure, sessions: Sequence[str]) -> Row | None:
    """The documents of a kind that go; None where each has to be looked at."""
    owner: Row = {kind.owner: {"$eq": erasure.owner_key}}
    if erasure.is_whole or kind.going == "all":
        return owner
    if kind.going == "none":
        sessions = []
    return None if kind.going == "chosen" else {**owner, "session_id": {"$in": [*sessions]}}


def _rows_that_go(erasure: Erasure) -> list[Row]:
    """Queries for the messages that go, and for those of which it has to be looked at; see `_goes`."""
    owner: Row = of_owner(erasure.owner_key)
    rows = owner if erasure.session_id is None else rows_of_session(erasure.owner_key, erasure.session_id)
    if erasure.before is None:
        return [rows]
    return [{**rows, "timestamp": {"$lt": erasure.before}}, {**rows, **_NO_DATE}]


def _goes(document: Row, time: str, erasure: Erasure) -> bool:
    """Whether a document, of the owner, is of the session and the time of an erasure."""
    session_id = document.get("session_id")
    if erasure.session_id is not None and (session_id or (DEFAULT_SESSION if time == "timestamp" else "")) != (
        erasure.session_id
    ):
        return False
    return erasure.before is None or _is_before(document.get(time), erasure.before)


def _is_before(value: Any, before: datetime) -> bool:
    """Whether it is a time before that one, or none that can be read."""
    moment = parse_moment(value)
    return moment is None or moment < before


def _entries(row: Row, name: str) -> list[Row]:
    """The entries of a document of constraints that can be read; the others go with the next change."""
    document = row.get("document")
    found = _list(document.get(name)) if isinstance(document, dict) else []
    return [each for each in found if isinstance(each, dict)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _holds(raw: bytes, forms: Sequence[bytes]) -> bool:
    return any(form in raw for form in forms)
