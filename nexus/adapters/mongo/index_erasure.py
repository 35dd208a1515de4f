"""Erasure in the index of long-term memory, whose documents `nexus.adapters.mongo.recall` shows (contract §13).

- Before a row goes its place in the index is noted in `recall_owners.released`, where it stays until a later look finds
  nothing of it in any posting. So all goes that was ever indexed of the row, whatever its text is now, and what an
  indexer writes that was at work on it, too.
- A posting in which nothing is left goes as a whole, since its name is a word.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from bson.int64 import Int64
from pymongo import DeleteOne, UpdateOne

from nexus.adapters.mongo.batches import AT_ONCE, chunks, counted, delete_all, pages
from nexus.adapters.mongo.client import driver_call
from nexus.adapters.mongo.documents import ONLY_ID
from nexus.adapters.mongo.recall import BLOCK, FLAGS, IndexOperations, escaped
from nexus.adapters.mongo.schema import IS_PLACED
from nexus.core.erasure import Erasure
from nexus.core.ports import Row
from nexus.core.recall import EPISODE

_POSTINGS_AT_ONCE: Final = 200
_ALL_PLACES: Final = (1 << EPISODE) - 1


class IndexErasure(IndexOperations):
    """What `MongoErasure` does about the index; see `MongoRecall`."""

    async def count(self, erasure: Erasure, rows: Sequence[Row]) -> int:
        """How many messages that go are indexed; of all of an owner how many documents there are."""
        if not erasure.is_whole:
            return sum([await counted(self, self._messages, {**query, **IS_PLACED}) for query in rows])
        owner = escaped(erasure.owner_key)
        counts = [await counted(self, each, _behind(owner)) for each in (self._postings, self._sessions)]
        named = [await counted(self, each, {"_id": owner}) for each in (self._owners, self._sessions)]
        return sum([*counts, *named])

    async def remove(self, erasure: Erasure) -> AsyncGenerator[int]:
        """Remove what is noted as released, or all of an owner."""
        owner = escaped(erasure.owner_key)
        if erasure.is_whole:
            ranges = [(each, _behind(owner)) for each in (self._postings, self._sessions)]
            named = [(each, {"_id": owner}) for each in (self._owners, self._sessions)]
            for collection, query in [*ranges, *named]:
                async with aclosing(delete_all(self, collection, query)) as deleting:
                    async for deleted in deleting:
                        yield deleted
            return
        if erasure.before is None:
            await self._release_session(owner, f"{owner}|{erasure.session_id}")
        released = await self._released(owner)
        if not released:
            return
        places = {int(episode): bits & _ALL_PLACES for episode, bits in released.items()}
        blocks = {str(episode // BLOCK) for episode in places}
        found = 0
        async with aclosing(pages(self, self._postings, _behind(owner), ONLY_ID, 10 * AT_ONCE)) as postings:
            async for page in postings:
                names = [row["_id"] for row in page if row["_id"].rpartition("|")[2] in blocks]
                for some in chunks(names, _POSTINGS_AT_ONCE):
                    removed = await self._clear(some, places)
                    found += removed
                    yield removed
        if not found:
            await self._forget_released(owner, released)

    @driver_call
    async def release(self, owner_key: str, rows: Sequence[Row]) -> None:
        """Note the places of rows that are about to go."""
        bits: defaultdict[int, int] = defaultdict(int)
        for row in rows:
            place = place_of(row)
            if place is not None:
                bits[place // EPISODE] |= 1 << place % EPISODE
        await self._note(escaped(owner_key), bits)

    @driver_call
    async def _release_session(self, owner: str, name: str) -> None:
        """Note all places of a session, whose rows are gone, and forget that it had them."""
        known = await self._sessions.read_one({"_id": name})
        if known:
            await self._note(owner, dict.fromkeys(known["episodes"], _ALL_PLACES))
            await self._sessions.delete({"_id": name, "messages": known["messages"]})

    async def _note(self, owner: str, bits: Mapping[int, int]) -> None:
        if bits:
            noted = {f"released.{episode}": {"or": Int64(mask)} for episode, mask in bits.items()}
            await self._owners.update({"_id": owner}, {"$bit": noted})

    @driver_call
    async def _released(self, owner: str) -> Mapping[str, int]:
        known = await self._owners.read_one({"_id": owner}, {"released": 1})
        released: Mapping[str, int] = known.get("released", {}) if known else {}
        return released

    @driver_call
    async def _forget_released(self, owner: str, released: Mapping[str, int]) -> None:
        await self._owners.update({"_id": owner, "released": {"$eq": released}}, {"$unset": {"released": ""}})

    @driver_call
    async def _clear(self, names: Sequence[str], places: Mapping[int, int]) -> int:
        """Take these places, as bits by episode, out of postings. Returns how many had any."""
        found = await self._postings.read_all({"_id": {"$in": [*names]}})
        changes = [change for document in found if (change := _without(document, places))]
        operations = [operation for change in changes for operation in change]
        if operations:
            # All updates before all removals: the server is asked anew wherever one kind follows the other.
            await self._postings.collection.bulk_write(sorted(operations, key=lambda each: isinstance(each, DeleteOne)))
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


def place_of(row: Row) -> int | None:
    """Where a row is in the index; None for nowhere."""
    recall = row.get("recall")
    place = recall.get("place") if isinstance(recall, Mapping) else None
    return place if isinstance(place, int) and place >= 0 else None


def _behind(owner: str) -> Row:
    """Names that begin with the owner and `|`, behind which `}` is the next character."""
    return {"_id": {"$gte": f"{owner}|", "$lt": f"{owner}" + chr(ord("|") + 1)}}
