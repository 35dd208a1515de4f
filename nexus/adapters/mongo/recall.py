"""The index of long-term memory in MongoDB (contract §14).

    messages.recall   {work, due_at, claim, place, generation, failed, key}: what is to be done on a row, where it
                      stands, and another text that leads to it
    recall_postings   {_id: "owner|term|block", p: {episode: {offset: occurrence}}}
                      {_id: "owner|#|block", b: {flag: {episode: bits}}}
    recall_owners     {_id: owner, episodes: how many were given, messages: how many places,
                      released: {episode: bits of the places whose rows are erased, and whose postings may not be}}
    recall_sessions   {_id: "owner|session", episodes: [number], messages: how many places}

- A block is `BLOCK` episodes of an owner. The codes of a generation stand as a term does, in place of occurrences.
- Postings are read by their `_id`s alone, those of all blocks that there are: not every server has an index for more.
- Every step can be repeated with the same effect, and a row has its work until it is said to be done. So what an
  indexer that ends in between leaves behind is done again.
- Numbers are taken where none were taken since they were read. Those that are not used then leave a gap.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from pymongo import ASCENDING, DESCENDING, UpdateMany

from nexus.adapters.mongo.batches import chunks
from nexus.adapters.mongo.client import Calls, Operations, driver_call, insert_call
from nexus.adapters.mongo.documents import ONLY_ID, Documents
from nexus.adapters.mongo.pages import Rows
from nexus.adapters.mongo.schema import (
    IS_PLACED,
    NEWEST_FIRST,
    OF_OWNER,
    OLDEST_FIRST,
    due_now,
    id_of,
    id_text,
    of_owner,
    to_index,
)
from nexus.adapters.mongo.versions import NOT_NEWER
from nexus.core.models import DEFAULT_SESSION, utc_now
from nexus.core.ports import Row
from nexus.core.recall import EPISODE, MEANING, WORDS, Entry, IndexStatus, Place, Postings

# Episodes of a document of postings.
BLOCK: Final = 64
# What is changed in one operation, and what is read, so that it takes a small part of the time limit.
_AT_ONCE: Final = 1_000
_READ_AT_ONCE: Final = 2_000
FLAGS: Final = "#"
_FAILED: Final = "failed"
_FAULTS_SHOWN: Final = 20
_LONGEST_REASON: Final = 200
# Another writer may have stored anything by the name.
_UNMARKED: Final = {"recall": {"$not": {"$type": "object"}}}
_NO_PLACE: Final = {"recall.place": {"$not": {"$type": ["int", "long"]}}, **NOT_NEWER}
# What comes with a row: the text that leads to it, and the claim of which it is.
_KEY: Final = {"recall_key": "$recall.key", "recall_claim": "$recall.claim"}
_OWNER_AND_PLACE: Final = {"owner_key": 1, "recall.place": 1}
_PLACE: Final = {"recall.place": 1}
_GENERATION: Final = {"recall.place": 1, "recall.generation": 1}
_FAULT: Final = {"id": 1, "recall.failed": 1}
_STATE: Final = {**_FAULT, "recall.work": 1, "recall.place": 1}
_LAST_EPISODE: Final = {"messages": 1, "episodes": {"$slice": -1}}
_FIRST_DUE_FIRST: Final = [("recall.due_at", ASCENDING)]
_LAST_FAILED_FIRST: Final = [("recall.due_at", DESCENDING)]


class IndexOperations(Operations):
    """Operations on the collections of the index; see `MongoMessages`."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._messages = Documents(database["messages"])
        plain = CodecOptions[dict[str, Any]]()
        self._postings = Documents(database["recall_postings"].with_options(codec_options=plain))
        self._owners = Documents(database["recall_owners"].with_options(codec_options=plain))
        self._sessions = Documents(database["recall_sessions"].with_options(codec_options=plain))


class MongoRecall(IndexOperations):
    """`nexus.core.ports.RecallIndex` on these collections."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(database, calls, indexed)
        self._rows = Rows(self._messages)

    @driver_call
    async def claim(self, work: str, now: datetime, until: datetime, *, limit: int) -> list[Row]:
        """Claim up to `limit` messages on which this work has been due the longest by `now`; it is then due at `until`.

        Each has the claim's own number until its work is done, or due again for another reason.
        """
        due = {"recall.work": {"$eq": work}, "recall.due_at": {"$lte": now}, **NOT_NEWER}
        ids = [row["_id"] for row in await self._messages.read_page(due, ONLY_ID, _FIRST_DUE_FIRST, limit)]
        claim = ObjectId()
        rows: list[Row] = []
        for some in chunks(ids, _AT_ONCE):
            await self._change(some, due, {"$set": {"recall.due_at": until, "recall.claim": claim}})
            claimed = {"_id": {"$in": some}, "recall.claim": claim}
            rows += await self._rows.find(claimed, limit=len(some), beside=_KEY, order=())
        return sorted(rows, key=_id)

    @driver_call
    async def give_places(self, rows: Sequence[Row]) -> dict[str, Place]:
        """By `_id`, the places of these rows; one that has none gets the next of its session, if it is still there."""
        found = await self._read_rows([row["_id"] for row in rows])
        places = _places_in(found)
        there = {id_text(row["_id"]) for row in found}
        waiting = sorted((row for row in rows if row["_id"] in there.difference(places)), key=_id)
        if not waiting:
            return places
        while waiting:
            taken = await self._take_places(waiting)
            # Of two that give places to a row, the first does.
            updates = [
                _update({"_id": id_of(row_id), **_NO_PLACE}, {"$set": {"recall.place": place}})
                for row_id, place in taken.items()
            ]
            await _write(self._messages, updates)
            waiting = [row for row in waiting if row["_id"] not in taken]
        return _places_in(await self._read_rows([*there]))

    @driver_call
    async def write(self, entries: Sequence[Entry]) -> None:
        """Keep these entries."""
        await _write(self._postings, _updates(entries))

    @driver_call
    async def finish(self, rows: Sequence[Row], *, next_work: str | None = None, generation: str | None = None) -> None:
        """Nothing is due on these rows any more, but for `next_work`, at once; `generation` is that of their codes."""
        done = dict.fromkeys(("recall.claim", "recall.failed"), "")
        kept: Row = {"recall.generation": generation} if generation else {}
        if next_work:
            kept |= {"recall.work": next_work, "recall.due_at": utc_now()}
        else:
            done |= dict.fromkeys(("recall.work", "recall.due_at"), "")
        await self._change_claimed(rows, {"$unset": done, **({"$set": kept} if kept else {})})

    @driver_call
    async def fail(self, row: Row, reason: str) -> None:
        """Nothing is due on the row any more, for this reason."""
        failed = {"work": _FAILED, "due_at": utc_now(), "failed": reason[:_LONGEST_REASON]}
        change = {"$set": {f"recall.{name}": value for name, value in failed.items()}, "$unset": {"recall.claim": ""}}
        await self._change_claimed([row], change)

    @driver_call
    async def add_key(self, owner_key: str, message_id: str, text: str) -> None:
        """Have the message with this `id` found by the words of this text, too."""
        message = {**of_owner(owner_key), "id": {"$eq": message_id}}
        await self._messages.update(message, due_now(WORDS, {"recall.key": text}))

    @driver_call
    async def put_off(self, rows: Sequence[Row], until: datetime) -> None:
        """The work that is due on these rows is due at `until`."""
        await self._change_claimed(rows, {"$set": {"recall.due_at": until}})

    @insert_call
    async def mark(self, owner_key: str, *, limit: int, again: bool = False, skip: int = 0) -> tuple[int, int]:
        """Have messages of the owner indexed that nothing was ever to be done on; with `again`, all of them."""
        owner = of_owner(owner_key)
        page = await self._messages.read_page(owner, ONLY_ID, OLDEST_FIRST, limit, skip=skip, index=OF_OWNER)
        ids = [row["_id"] for row in page]
        marked = await self._change(ids, {**owner, "recall": {"$type": "object"}}, due_now(WORDS)) if again else 0
        marked += await self._change(ids, {**owner, **_UNMARKED}, {"$set": to_index({})})
        return marked, len(page)

    @driver_call
    async def mark_outdated(self, generation: str, *, limit: int) -> int:
        """Have up to `limit` indexed messages embedded that have no codes of this generation; how many there were."""
        outdated = {"recall.generation": {"$ne": generation}, "recall.work": None, **NOT_NEWER}
        found = await self._messages.read_page({**IS_PLACED, **outdated}, ONLY_ID, None, limit)
        # Another replica may have had them embedded meanwhile.
        return await self._change([row["_id"] for row in found], outdated, due_now(MEANING))

    @driver_call
    async def forget(self, entries: Sequence[Entry]) -> None:
        """Remove these terms, flags and codes of these places, and the codes of the generation that their rows have."""
        places: defaultdict[str, list[Place]] = defaultdict(list)
        for entry in entries:
            places[entry.owner_key].append(entry.place)
        coded = [each for owner_key, some in places.items() for each in await self._coded(owner_key, some)]
        await _write(self._postings, _updates([*entries, *coded], forget=True))

    @driver_call
    async def postings(
        self,
        owner_key: str,
        terms: Collection[str],
        flags: Collection[str],
        *,
        session_id: str | None = None,
        generation: str | None = None,
    ) -> Postings:
        """What the index has of these terms and flags, and the codes of a generation; of one session or of all."""
        owner = escaped(owner_key)
        if session_id is None:
            known = await self._owners.read_one({"_id": owner})
            numbers: Collection[int] = range(known["episodes"]) if known else ()
        else:
            known = await self._sessions.read_one({"_id": f"{owner}|{session_id}"})
            numbers = known["episodes"] if known else ()
        blocks = {number // BLOCK for number in numbers}
        codes = _codes_of(generation) if generation else ""
        found = _Found(None if session_id is None else {*map(str, numbers)})
        wanted = {*terms, FLAGS, *([codes] if codes else ())}
        for document in await _of_ids(
            self._postings, [f"{owner}|{term}|{block}" for term in wanted for block in blocks]
        ):
            found.add(document)
        return Postings(
            known["messages"] if known else 0,
            {term: found.places[term] for term in terms if term in found.places},
            {flag: found.bits[_key_of(flag)] for flag in flags if _key_of(flag) in found.bits},
            found.places.get(codes, {}),
        )

    @driver_call
    async def places_of(self, owner_key: str, row_ids: Collection[str]) -> set[Place]:
        """The places of the rows with these `_id`s, of those that have one."""
        found = await self._read_rows([*row_ids])
        return {*_places_in(row for row in found if row["owner_key"] == owner_key).values()}

    @driver_call
    async def rows_at(self, owner_key: str, places: Collection[Place]) -> dict[Place, Row]:
        """The rows at these places."""
        rows: list[Row] = []
        for some in chunks([*places], _AT_ONCE):
            query = {**of_owner(owner_key), "recall.place": {"$in": some}}
            rows += await self._rows.find(query, limit=len(some), beside={**_KEY, **_PLACE}, order=())
        return {Place(row.pop("recall")["place"]): row for row in rows}

    @driver_call
    async def status(self, owner_key: str | None = None) -> IndexStatus:
        """The states of an owner's messages, or of all."""
        owner = {} if owner_key is None else of_owner(owner_key)
        # First what is to be done: what becomes of it meanwhile is counted behind it.
        waiting = await self._messages.count({**owner, "recall.work": WORDS})
        meaning_waiting = await self._messages.count({**owner, "recall.work": MEANING})
        failed = {**owner, "recall.work": _FAILED}
        faults = await self._messages.read_page(failed, _FAULT, _LAST_FAILED_FIRST, _FAULTS_SHOWN)
        return IndexStatus(
            indexed=await self._messages.count({**owner, **IS_PLACED}),
            waiting=waiting,
            failed=await self._messages.count(failed),
            unmarked=await self._messages.count({**owner, **_UNMARKED}),
            meaning_waiting=meaning_waiting,
            faults={str(row.get("id") or id_text(row["_id"])): row["recall"]["failed"] for row in faults},
        )

    @driver_call
    async def newest_status(self, owner_key: str, *, newest: int) -> IndexStatus:
        """The states of the owner's newest messages, up to so many."""
        rows = await self._messages.read_page(of_owner(owner_key), _STATE, NEWEST_FIRST, newest)
        states = [state if isinstance(state := row.get("recall"), dict) else None for row in rows]
        works = [state.get("work") for state in states if state is not None]
        failed = [each for each in zip(rows, states, strict=True) if each[1] and each[1].get("work") == _FAILED]
        return IndexStatus(
            indexed=sum(isinstance(state.get("place"), int) for state in states if state),
            waiting=works.count(WORDS),
            failed=len(failed),
            unmarked=states.count(None),
            meaning_waiting=works.count(MEANING),
            faults={
                str(row.get("id") or id_text(row["_id"])): row["recall"].get("failed", "")
                for row, _ in failed[:_FAULTS_SHOWN]
            },
        )

    async def _coded(self, owner_key: str, places: Sequence[Place]) -> list[Entry]:
        """Those of these places whose rows have a generation, each with a code of it."""
        found: list[Row] = []
        for some in chunks(places, _AT_ONCE):
            query = {**of_owner(owner_key), "recall.place": {"$in": some}, "recall.generation": {"$gt": ""}}
            found += await self._messages.read_all(query, _GENERATION, batch=len(some) + 1)
        states = (row["recall"] for row in found)
        return [Entry(owner_key, Place(each["place"]), codes={each["generation"]: b""}) for each in states]

    async def _change_claimed(self, rows: Sequence[Row], change: Row) -> None:
        """Change rows, but for those that another has claimed since, or on which work has become due."""
        claims = [*{row["recall_claim"] for row in rows if "recall_claim" in row}]
        await self._change([id_of(row["_id"]) for row in rows], {"recall.claim": {"$in": claims}}, change)

    async def _change(self, ids: Sequence[Any], query: Row, change: Row) -> int:
        """Change those of the rows with these `_id`s that the query matches; how many there were."""
        return sum([await self._messages.update_ids(some, query, change) for some in chunks(ids, _AT_ONCE)])

    async def _read_rows(self, row_ids: Sequence[str]) -> list[Row]:
        """Owner and place of the rows with these `_id`s, of those that are there."""
        return await _of_ids(self._messages, [*map(id_of, row_ids)], _OWNER_AND_PLACE)

    async def _take_places(self, rows: Sequence[Row]) -> dict[str, Place]:
        """By `_id`, places for these rows, but for those of owners and sessions of which others take some just now."""
        sessions: dict[str, _Session] = {}
        for row in rows:
            sessions.setdefault(_session_id(row), _Session(escaped(row["owner_key"]))).row_ids.append(row["_id"])
        for known in await _of_ids(self._sessions, [*sessions], _LAST_EPISODE):
            sessions[known["_id"]].messages, sessions[known["_id"]].last = known["messages"], known["episodes"][-1]
        first = await self._take_episodes(sessions.values())
        changes: dict[str, tuple[int, Row]] = {}
        for key, session in sessions.items():
            if session.owner in first:
                session.new = [first[session.owner] + number for number in range(session.needed)]
                first[session.owner] += session.needed
                pushed = {"$push": {"episodes": {"$each": session.new}}} if session.new else {}
                changes[key] = session.messages, {"$inc": {"messages": len(session.row_ids)}, **pushed}
        taken = await _take(self._sessions, changes)
        return {row_id: place for key in taken for row_id, place in sessions[key].places().items()}

    async def _take_episodes(self, sessions: Collection["_Session"]) -> dict[str, int]:
        """By owner, the first of the episodes that these sessions need; none of owners of which others take some."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for session in sessions:
            counts[session.owner].update(episodes=session.needed, messages=len(session.row_ids))
        known = {each["_id"]: each for each in await _of_ids(self._owners, [*counts])}
        changes = {
            owner: (known[owner]["messages"] if owner in known else 0, {"$inc": dict(count)})
            for owner, count in counts.items()
        }
        return {
            owner: known[owner]["episodes"] if owner in known else 0 for owner in await _take(self._owners, changes)
        }


@dataclass(slots=True)
class _Session:
    """Rows of a session that get places, and where it stands.

    Attributes:
        owner: escaped.
        messages: how many places were given.
        last: its last episode, if there is one.
        new: those that it gets now.
    """

    owner: str
    row_ids: list[str] = field(default_factory=list)
    messages: int = 0
    last: int = 0
    new: list[int] = field(default_factory=list)

    @property
    def needed(self) -> int:
        """How many more episodes its rows need."""
        return _episodes(self.messages + len(self.row_ids)) - _episodes(self.messages)

    def places(self) -> dict[str, Place]:
        """By `_id`, the next places."""
        free = self.messages % EPISODE
        episodes = [self.last, *self.new] if free else self.new
        return {
            row_id: Place(episodes[at // EPISODE] * EPISODE + at % EPISODE)
            for at, row_id in enumerate(self.row_ids, free)
        }


class _Found:
    """Postings that were read, of some episodes or, for None, of all."""

    def __init__(self, episodes: Collection[str] | None) -> None:
        self._episodes = episodes
        self.places: dict[str, dict[str, Any]] = {}
        self.bits: dict[str, dict[str, int]] = {}

    def add(self, document: Row) -> None:
        """Add what is of these episodes, without what is left of what was removed."""
        term = document["_id"].partition("|")[2].rpartition("|")[0]
        self._keep(self.places, term, document.get("p", {}))
        for flag, bits in document.get("b", {}).items():
            self._keep(self.bits, flag, bits)

    def _keep(self, found: dict[str, dict[str, Any]], name: str, by_episode: Mapping[str, Any]) -> None:
        # Copied only where some is not wanted: there may be ten thousands.
        if self._episodes is not None or not all(by_episode.values()):
            by_episode = {
                episode: value
                for episode, value in by_episode.items()
                if value and (self._episodes is None or episode in self._episodes)
            }
        if by_episode:
            found.setdefault(name, {}).update(by_episode)


async def _take(documents: Documents, changes: Mapping[str, tuple[int, Row]]) -> list[str]:
    """Change these documents where they still have so many `messages`, of which the change makes more.

    Returns the `_id`s of those that were changed; perhaps without one that another took from in the same moment.
    """
    claim = ObjectId()
    updates = [
        _update({"_id": key, "messages": seen}, {**change, "$set": {"claim": claim}}, upsert=not seen)
        for key, (seen, change) in changes.items()
    ]
    for some in chunks(updates, _AT_ONCE):
        await documents.write_all(some)
    return [found["_id"] for found in await _of_ids(documents, [*changes], {"claim": 1}) if found["claim"] == claim]


async def _write(documents: Documents, updates: Sequence[UpdateMany]) -> None:
    for some in chunks(updates, _AT_ONCE):
        while not await documents.write_all(some):
            # Another has made a document at this moment. All of them can be done again.
            pass


async def _of_ids(documents: Documents, ids: Sequence[Any], projection: Mapping[str, Any] | None = None) -> list[Row]:
    found: list[Row] = []
    for some in chunks(ids, _READ_AT_ONCE):
        # In one batch, where it is not large, so that the server keeps no cursor.
        found += await documents.read_all({"_id": {"$in": some}}, projection, batch=len(some) + 1)
    return found


def _places_in(rows: Iterable[Row]) -> dict[str, Place]:
    places = ((row["_id"], row.get("recall", {}).get("place")) for row in rows)
    return {id_text(row_id): Place(place) for row_id, place in places if isinstance(place, int)}


def _updates(entries: Sequence[Entry], *, forget: bool = False) -> list[UpdateMany]:
    """Updates of postings, one a document, that add these entries or remove them."""
    values: defaultdict[str, Row] = defaultdict(dict)
    bits: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        episode, at = divmod(entry.place, EPISODE)
        owner, block, path = escaped(entry.owner_key), episode // BLOCK, f"p.{episode}.{at}"
        for term, value in entry.terms.items():
            values[f"{owner}|{term}|{block}"][path] = value
        for generation, code in entry.codes.items():
            values[f"{owner}|{_codes_of(generation)}|{block}"][path] = code
        for flag in entry.flags:
            bits[f"{owner}|{FLAGS}|{block}"][f"b.{_key_of(flag)}.{episode}"] |= 1 << at
    updates = []
    for key in {**values, **bits}:
        change: Row = {}
        if key in values:
            change["$unset" if forget else "$set"] = values[key]
        if key in bits:
            masks = {path: {"and": Int64(~mask)} if forget else {"or": Int64(mask)} for path, mask in bits[key].items()}
            change["$bit"] = masks
        updates.append(_update({"_id": key}, change, upsert=not forget))
    return updates


def _update(query: Row, change: Row, *, upsert: bool = False) -> UpdateMany:
    """An update of one document. As one of many the server does not remember it for retries, which cost a third more.

    Whoever asked for it does it again.
    """
    return UpdateMany(query, change, upsert=upsert)


def escaped(owner_key: str) -> str:
    """The owner as the first part of an `_id`: what follows the first `|` is of no other."""
    return owner_key.replace("%", "%25").replace("|", "%7C")


def _session_id(row: Row) -> str:
    """The `_id` of the row's session; that of the owner alone for the rows of all sessions whose name is no text."""
    session, owner = row.get("session_id") or DEFAULT_SESSION, escaped(row["owner_key"])
    return f"{owner}|{session}" if isinstance(session, str) else owner


def _codes_of(generation: str) -> str:
    return f"~{generation}"


def _key_of(flag: str) -> str:
    """The flag as a key of a document."""
    return flag.replace("%", "%25").replace(".", "%2E").replace("$", "%24")


def _episodes(messages: int) -> int:
    return -(-messages // EPISODE)


def _id(row: Row) -> str:
    row_id: str = row["_id"]
    return row_id
