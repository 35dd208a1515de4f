"""Erasure in MongoDB (contract §13): tombstones, in `tombstones`, and the removal of what they are of.

- What goes is found some documents at a time, and removed by `_id` and owner.
- Before a row goes its place in the index of long-term memory is noted in `recall_owners.released`, where it stays
  until a later look finds nothing of it in any posting. So all goes that was ever indexed of the row, whatever its text
  is now, and what an indexer writes that was at work on it, too.
- A posting in which nothing is left goes as a whole, since its name is a word.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Final

import anyio
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DeleteOne, UpdateOne
from pymongo.errors import ExecutionTimeout, NetworkTimeout

from nexus.adapters.mongo.client import Calls, Operations, driver_call, insert_call, read_one
from nexus.adapters.mongo.recall import BLOCK, FLAGS, escaped
from nexus.adapters.mongo.schema import IS_PLACED, rows_of_session
from nexus.core.erasure import Erasure, StoreKind, Tombstone, hashed
from nexus.core.models import DEFAULT_SESSION, parse_moment, utc_now
from nexus.core.ports import Row
from nexus.core.recall import EPISODE

_FIELDS: Final = {"_id": 0, **{field.name: 1 for field in fields(Tombstone)}}
_AT_ONCE: Final = 500
_POSTINGS_AT_ONCE: Final = 200
# Of a search, documents: a record may have megabytes.
_SEARCHED_AT_ONCE: Final = 50
_CLOSING_S: Final = 1.0
_COLLECTIONS: Final[Mapping[StoreKind, str]] = {
    "records": "context_records",
    "pieces": "context_pieces",
    "facts": "facts",
    "constraints": "constraints",
    "states": "session_states",
    "turns": "turns",
    "details": "memory_details",
    "overviews": "working_memory",
    "compactions": "compactions",
    "messages": "messages",
    "profile": "identities",
}
# A session has something from before an erasure's time where one of these is.
_TIMES: Final[Mapping[StoreKind, Sequence[str]]] = {
    "turns": ("timestamp",),
    "states": ("updated_at",),
    "details": ("updated_at",),
    "overviews": ("updated_at",),
    "compactions": ("created_at", "first_at"),
}
# Kinds of which a partial erasure looks at each document.
_CHOSEN: Final = frozenset({"messages", "facts", "constraints"})
_ALL_PLACES: Final = (1 << EPISODE) - 1
_ID: Final = {"_id": 1}
_BY_ID: Final = [("_id", ASCENDING)]
_ROW: Final = {"session_id": 1, "timestamp": 1, "id": 1, "recall.place": 1}
# Types that an index has apart from dates, so that it tells at once whether there is any such time.
_OTHERS: Final = [
    *("double", "string", "object", "binData", "objectId", "bool", "null", "regex", "int", "timestamp", "long"),
    "decimal",
]
_NO_DATE: Final = {"$or": [{"timestamp": {"$type": _OTHERS}}, {"timestamp": None}]}


class MongoErasure(Operations):
    """`nexus.core.ports.ErasureStore` on a database; see `MongoMessages`."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._database = database
        self._tombstones = database["tombstones"]
        self._collections: Mapping[StoreKind, Any] = {kind: database[name] for kind, name in _COLLECTIONS.items()}
        self._messages = self._collections["messages"]
        self._index = _IndexErasure(database, calls, indexed)

    @insert_call
    async def put_tombstone(self, tombstone: Tombstone) -> None:
        """Keep a tombstone, or renew the one of the same names and `until`."""
        kept = asdict(tombstone)
        erased_at = {"erased_at": kept.pop("erased_at")}
        await self._tombstones.update_one(
            {name: {"$eq": kept[name]} for name in kept}, {"$max": erased_at}, upsert=True
        )

    @driver_call
    async def tombstones(self, owner_keys: Sequence[str]) -> list[Tombstone]:
        """All tombstones of these owners."""
        query = {"owner": {"$in": [*map(hashed, owner_keys)]}}
        found: list[Row] = await self._tombstones.find(query, _FIELDS).to_list(None)
        return [Tombstone(**row) for row in found]

    async def sessions(self, erasure: Erasure) -> list[str]:
        """The sessions in which something goes."""
        if erasure.before is None:
            return [] if erasure.session_id is None else [erasure.session_id]
        names = {erasure.session_id} if erasure.session_id is not None else await self._names(erasure.owner_key)
        return [each for each in sorted(names) if await self._has_earlier(erasure.owner_key, each, erasure.before)]

    async def count(self, kind: StoreKind, erasure: Erasure, sessions: Sequence[str]) -> int | None:
        """How many of a kind would go."""
        try:
            match kind:
                case "index":
                    return await self._index.count(erasure, _rows_that_go(erasure))
                case "profile" if not erasure.is_whole:
                    return 0
                case _ if kind in _CHOSEN and not erasure.is_whole:
                    return sum([len(page) async for page in self._chosen(kind, erasure)])
                case _:
                    return await _counted(self, self._collections[kind], _query(kind, erasure, sessions))
        except _TooSlowError:
            return None

    async def remove(self, kind: StoreKind, erasure: Erasure, sessions: Sequence[str]) -> AsyncGenerator[int]:
        """Remove all of a kind."""
        if kind == "index":
            async with aclosing(self._index.remove(erasure)) as removing:
                async for removed in removing:
                    yield removed
            return
        if kind == "profile" and not erasure.is_whole:
            return
        collection, is_chosen = self._collections[kind], kind in _CHOSEN and not erasure.is_whole
        chosen = self._chosen(kind, erasure)
        pages = chosen if is_chosen else _pages(self, collection, _query(kind, erasure, sessions), _ID)
        async with aclosing(pages) as found:
            async for page in found:
                if is_chosen and kind == "constraints":
                    yield await self._replace(page)
                elif is_chosen and kind == "messages":
                    yield await self._remove_rows(erasure.owner_key, page)
                else:
                    yield await _delete(self, collection, [row["_id"] for row in page])

    async def find_text(self, forms: Sequence[bytes]) -> AsyncGenerator[tuple[str, int]]:
        """By collection, how many of a batch of documents hold one of these byte strings."""
        raw = CodecOptions[RawBSONDocument](document_class=RawBSONDocument)
        for name in await self._names_of_collections():
            yield name, 0
            collection = self._database[name].with_options(codec_options=raw)
            async with aclosing(_pages(self, collection, {}, None, _SEARCHED_AT_ONCE)) as pages:
                async for page in pages:
                    yield name, sum(_holds(bytes(document.raw), forms) for document in page)

    @driver_call
    async def _names_of_collections(self) -> list[str]:
        return sorted(await self._database.list_collection_names())

    async def _names(self, owner_key: str) -> set[str]:
        """The names of all of an owner's sessions."""
        names = {DEFAULT_SESSION}
        for kind in ("messages", *_TIMES):
            last: str | None = ""
            while last is not None and (last := await self._next_name(self._collections[kind], owner_key, last)):
                names.add(last)
        return names

    @driver_call
    async def _next_name(self, collection: Any, owner_key: str, last: str) -> str | None:
        behind = {"owner_key": {"$eq": owner_key}, "session_id": {"$gt": last}}
        row = await read_one(collection, behind, {"session_id": 1}, [("session_id", ASCENDING)])
        return row["session_id"] if row else None

    @driver_call
    async def _has_earlier(self, owner_key: str, session_id: str, before: datetime) -> bool:
        session = rows_of_session(owner_key, session_id)
        if await read_one(self._messages, {**session, "timestamp": {"$lt": before}}, _ID):
            return True
        async for row in self._messages.find({**session, **_NO_DATE}, _ROW):
            if _is_before(row.get("timestamp"), before):
                return True
        for kind, names in _TIMES.items():
            times = [{name: {"$lt": before}} for name in names]
            if await read_one(self._collections[kind], {**session, "$or": times}, _ID):
                return True
        return False

    async def _chosen(self, kind: StoreKind, erasure: Erasure) -> AsyncGenerator[list[Row]]:
        """The messages or statements that go, or documents of constraints as they are to become."""
        owner = {"owner_key": {"$eq": erasure.owner_key}}
        queries = _rows_that_go(erasure) if kind == "messages" else [owner]
        for query in queries:
            projection = {"messages": _ROW, "facts": {"session_id": 1, "said_at": 1, "evidence": 1}}.get(kind)
            async with aclosing(_pages(self, self._collections[kind], query, projection)) as pages:
                async for page in pages:
                    if kind == "messages":
                        going = [row for row in page if _goes(row, "timestamp", erasure)]
                    elif kind == "facts":
                        going = await self._facts_that_go(page, erasure)
                    else:
                        going = await self._constraints_that_go(page, erasure)
                    if going:
                        yield going

    async def _facts_that_go(self, page: Sequence[Row], erasure: Erasure) -> list[Row]:
        gone = await self._messages_that_go([each for row in page for each in _list(row.get("evidence"))], erasure)
        return [
            row
            for row in page
            if _goes(row, "said_at", erasure) or not gone.isdisjoint(filter(_is_text, _list(row.get("evidence"))))
        ]

    async def _constraints_that_go(self, page: Sequence[Row], erasure: Erasure) -> list[Row]:
        """The documents that change, with what is left of them."""
        entries = [each for row in page for each in _entries(row, "constraints")]
        gone = await self._messages_that_go([each.get("source_message_id") for each in entries], erasure)
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

    async def _messages_that_go(self, ids: Sequence[Any], erasure: Erasure) -> set[str]:
        """Those of these `id`s of which the owner has a message that goes."""
        texts = [*{each for each in ids if _is_text(each) and each}]
        found = set[str]()
        for first in range(0, len(texts), _AT_ONCE):
            query = {"owner_key": {"$eq": erasure.owner_key}, "id": {"$in": texts[first : first + _AT_ONCE]}}
            async with aclosing(_pages(self, self._messages, query, _ROW)) as pages:
                async for page in pages:
                    found |= {row["id"] for row in page if _goes(row, "timestamp", erasure)}
        return found

    async def _remove_rows(self, owner_key: str, page: Sequence[Row]) -> int:
        await self._index.release(owner_key, page)
        placed = [row["_id"] for row in page if _place_of(row) is not None]
        others = [row["_id"] for row in page if _place_of(row) is None]
        # A row that has got a place since it was read stays, and is found again: its place is not noted yet.
        removed = await _delete(self, self._messages, placed)
        return removed + await _delete(self, self._messages, others, {"recall.place": None})

    @driver_call
    async def _replace(self, page: Sequence[Row]) -> int:
        """Keep what is left of documents of constraints, where nobody has changed them since."""
        changed = 0
        collection = self._collections["constraints"]
        for row in page:
            same = {"_id": row["_id"], "revision": {"$eq": row.get("revision")}}
            if not any(row["document"].values()):
                changed += (await collection.delete_one(same)).deleted_count
                continue
            revision = row["revision"] + 1 if isinstance(row.get("revision"), int) else 1
            written = {"document": row["document"], "revision": revision, "updated_at": utc_now()}
            changed += (await collection.update_one(same, {"$set": written})).matched_count
        return changed


class _IndexErasure(Operations):
    """The part of it that is about the index of long-term memory; see `MongoRecall`."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        plain = CodecOptions[dict[str, Any]]()
        self._messages = database["messages"]
        self._postings = database["recall_postings"].with_options(codec_options=plain)
        self._owners = database["recall_owners"].with_options(codec_options=plain)
        self._sessions = database["recall_sessions"].with_options(codec_options=plain)

    async def count(self, erasure: Erasure, rows: Sequence[Row]) -> int:
        """How many messages that go are indexed; of all of an owner how many documents there are."""
        if not erasure.is_whole:
            return sum([await _counted(self, self._messages, {**query, **IS_PLACED}) for query in rows])
        owner = escaped(erasure.owner_key)
        counts = [await _counted(self, each, _behind(owner)) for each in (self._postings, self._sessions)]
        named = [await _counted(self, each, {"_id": owner}) for each in (self._owners, self._sessions)]
        return sum([*counts, *named])

    async def remove(self, erasure: Erasure) -> AsyncGenerator[int]:
        """Remove what is noted as released, or all of an owner."""
        owner = escaped(erasure.owner_key)
        if erasure.is_whole:
            ranges = [(each, _behind(owner)) for each in (self._postings, self._sessions)]
            named = [(each, {"_id": owner}) for each in (self._owners, self._sessions)]
            for collection, query in [*ranges, *named]:
                async with aclosing(_pages(self, collection, query, _ID)) as pages:
                    async for page in pages:
                        yield await _delete(self, collection, [row["_id"] for row in page])
            return
        if erasure.before is None:
            await self._release_session(owner, f"{owner}|{erasure.session_id}")
        released = await self._released(owner)
        if not released:
            return
        places = {int(episode): bits & _ALL_PLACES for episode, bits in released.items()}
        blocks = {str(episode // BLOCK) for episode in places}
        found = 0
        async with aclosing(_pages(self, self._postings, _behind(owner), _ID, 10 * _AT_ONCE)) as pages:
            async for page in pages:
                names = [row["_id"] for row in page if row["_id"].rpartition("|")[2] in blocks]
                for first in range(0, len(names), _POSTINGS_AT_ONCE):
                    removed = await self._clear(names[first : first + _POSTINGS_AT_ONCE], places)
                    found += removed
                    yield removed
        if not found:
            await self._forget_released(owner, released)

    @driver_call
    async def release(self, owner_key: str, rows: Sequence[Row]) -> None:
        """Note the places of rows that are about to go."""
        bits: defaultdict[int, int] = defaultdict(int)
        for row in rows:
            place = _place_of(row)
            if place is not None:
                bits[place // EPISODE] |= 1 << place % EPISODE
        await self._note(escaped(owner_key), bits)

    @driver_call
    async def _release_session(self, owner: str, name: str) -> None:
        """Note all places of a session, whose rows are gone, and forget that it had them."""
        known = await read_one(self._sessions, {"_id": name})
        if known:
            await self._note(owner, dict.fromkeys(known["episodes"], _ALL_PLACES))
            await self._sessions.delete_one({"_id": name, "messages": known["messages"]})

    async def _note(self, owner: str, bits: Mapping[int, int]) -> None:
        if bits:
            noted = {f"released.{episode}": {"or": Int64(mask)} for episode, mask in bits.items()}
            await self._owners.update_one({"_id": owner}, {"$bit": noted})

    @driver_call
    async def _released(self, owner: str) -> Mapping[str, int]:
        known = await read_one(self._owners, {"_id": owner}, {"released": 1})
        released: Mapping[str, int] = known.get("released", {}) if known else {}
        return released

    @driver_call
    async def _forget_released(self, owner: str, released: Mapping[str, int]) -> None:
        await self._owners.update_one({"_id": owner, "released": {"$eq": released}}, {"$unset": {"released": ""}})

    @driver_call
    async def _clear(self, names: Sequence[str], places: Mapping[int, int]) -> int:
        """Take these places, as bits by episode, out of postings. Returns how many had any."""
        found: list[Row] = await self._postings.find({"_id": {"$in": [*names]}}).to_list(None)
        changes = [change for document in found if (change := _without(document, places))]
        operations = [operation for change in changes for operation in change]
        if operations:
            # All updates before all removals: the server is asked anew wherever one kind follows the other.
            await self._postings.bulk_write(sorted(operations, key=lambda each: isinstance(each, DeleteOne)))
        return len(changes)


def _without(document: Row, places: Mapping[int, int]) -> list[UpdateOne | DeleteOne]:
    """What takes these places out of a posting; `[]` where none of them is in it, and something else is."""
    name = {"_id": document["_id"]}
    if document["_id"].rpartition("|")[0].rpartition("|")[2] == FLAGS:
        masks = {
            f"b.{flag}.{episode}": {"and": Int64(~places[int(episode)])}
            for flag, by_episode in document.get("b", {}).items()
            for episode, bits in by_episode.items()
            if bits & places.get(int(episode), 0)
        }
        return [UpdateOne(name, {"$bit": masks})] if masks else []
    gone, left = dict[str, str](), dict[str, Row]()
    for episode, by_place in document.get("p", {}).items():
        bits = places.get(int(episode), 0)
        left[episode] = {at: value for at, value in by_place.items() if not bits >> int(at) & 1}
        gone |= {f"p.{episode}.{at}": "" for at in by_place.keys() - left[episode].keys()}
    change: list[UpdateOne | DeleteOne] = [UpdateOne(name, {"$unset": gone})] if gone else []
    # Where an indexer has added something meanwhile, it is another.
    return change if any(left.values()) else [*change, DeleteOne({**name, "p": {"$eq": left}})]


class _TooSlowError(Exception):
    """Counting took longer than an operation may."""


async def _counted(operations: Operations, collection: Any, query: Row) -> int:
    async def count() -> int | None:
        try:
            return int(await collection.count_documents(query))
        except (ExecutionTimeout, NetworkTimeout):
            return None

    found = await operations.calls.run(count)
    if found is None:
        raise _TooSlowError
    return found


async def _delete(operations: Operations, collection: Any, ids: Sequence[Any], where: Row | None = None) -> int:
    async def delete() -> int:
        return int((await collection.delete_many({"_id": {"$in": [*ids]}, **(where or {})})).deleted_count)

    return await operations.calls.run(delete) if ids else 0


async def _pages(
    operations: Operations, collection: Any, query: Row, projection: Row | None, at_once: int = _AT_ONCE
) -> AsyncGenerator[list[Any]]:
    """The documents, some at a time; each page is a call of its own."""
    cursor = collection.find(query, projection, batch_size=at_once)

    async def read() -> list[Any]:
        page: list[Any] = await cursor.to_list(at_once)
        return page

    try:
        while page := await operations.calls.run(read):
            yield page
    finally:
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await cursor.close()


def _query(kind: StoreKind, erasure: Erasure, sessions: Sequence[str]) -> Row:
    """The documents of a kind that go, of a kind whose documents go or stay as a whole."""
    owner: Row = {"owner_key": {"$eq": erasure.owner_key}}
    if kind == "profile":
        return {"public_key": {"$eq": erasure.owner_key}}
    if erasure.is_whole or kind in {"records", "pieces"}:
        return owner
    return {**owner, "session_id": {"$in": [*sessions]}}


def _rows_that_go(erasure: Erasure) -> list[Row]:
    """Queries for the messages that go, and for those of which it has to be looked at; see `_goes`."""
    owner: Row = {"owner_key": {"$eq": erasure.owner_key}}
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


def _place_of(row: Row) -> int | None:
    recall = row.get("recall")
    place = recall.get("place") if isinstance(recall, Mapping) else None
    return place if isinstance(place, int) and place >= 0 else None


def _entries(row: Row, name: str) -> list[Row]:
    """The entries of a document of constraints that can be read; the others go with the next change."""
    document = row.get("document")
    found = _list(document.get(name)) if isinstance(document, dict) else []
    return [each for each in found if isinstance(each, dict)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _behind(owner: str) -> Row:
    """Names that begin with the owner and `|`, behind which `}` is the next character."""
    return {"_id": {"$gte": f"{owner}|", "$lt": f"{owner}" + chr(ord("|") + 1)}}


def _holds(raw: bytes, forms: Sequence[bytes]) -> bool:
    return any(form in raw for form in forms)
