"""Recorded messages in MongoDB: inserting rows, and the reads of `nexus.core.ports.MessageStore` (contract §2, §7)."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import bson
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING
from pymongo.errors import BulkWriteError

from nexus.adapters.mongo.client import (
    DUPLICATE_KEY,
    NOT_ENCODABLE,
    Calls,
    Operations,
    driver_call,
    insert_call,
    is_unacceptable,
)
from nexus.adapters.mongo.documents import Documents, equal
from nexus.adapters.mongo.pages import LAST_STORED_FIRST, Rows, Tails
from nexus.adapters.mongo.projections import BOUNDED, HEADER, SHOWN, WHOLE_TEXTS, View
from nexus.adapters.mongo.schema import (
    HUMAN,
    NOT_INTERNAL,
    NOT_SHOWN,
    OF_SESSION,
    OLDEST_FIRST,
    STORED_IN_SESSION,
    TOOL,
    due_now,
    id_of,
    of_owner,
    of_run,
    origin_of,
    rows_of_session,
    seen_by,
    to_index,
    with_text_id,
)
from nexus.adapters.mongo.search import Search
from nexus.adapters.mongo.versions import FIELD, written
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.models import (
    AGENT_ID,
    CONDENSED,
    DEFAULT_SESSION,
    HANDLE,
    INTERNAL,
    LONG_AGO,
    parse_moment,
)
from nexus.core.ports import Row, RunOrigin, SessionSummary
from nexus.core.ports.store import MOST_COUNTED, TextsOf
from nexus.core.recall import WORDS
from nexus.core.working_memory import Tail

_ORIGIN: Final = dict.fromkeys(("session_id", f"metadata.{INTERNAL}", f"metadata.{AGENT_ID}", FIELD), 1)
_CONDENSED: Final = {"_id": 0, f"metadata.{HANDLE}": 1, f"metadata.{CONDENSED}": 1, FIELD: 1}
_ID_ALONE: Final = {"_id": 0, "id": 1}
# Of `session_id`s that are no texts.
_NO_NAMES: Final = ["number", "object", "binData", "objectId", "bool", "date", "timestamp", "regex"]
_LARGEST_DOCUMENT: Final = 1 << 24

Outcome = bool | StoreRejectedError | StoreUnavailableError


class MongoMessages(Operations):
    """`nexus.core.ports.MessageStore` on a collection of motor or of pymongo's asyncio client.

    With `recall`, what is written is to be indexed for long-term memory, in the same write.
    """

    def __init__(self, messages: Any, calls: Calls, indexed: Callable[[], Awaitable[None]], *, recall: bool) -> None:
        super().__init__(calls, indexed)
        self._messages = Documents(messages)
        self._recall = recall
        self._rows = Rows(self._messages)

    @insert_call
    async def insert_message(self, row: Row) -> bool:
        """Record a row. False when its owner has a row with that `id`."""
        return await self._messages.insert_until_duplicate([self._document(row)]) == 1

    @insert_call
    async def insert_messages(self, rows: Sequence[Row]) -> list[Outcome]:
        """Record rows, each of which succeeds or fails by itself."""
        outcomes: list[Outcome] = [True] * len(rows)
        documents: dict[int, RawBSONDocument] = {}
        for place, row in enumerate(rows):
            # Encoded here: the drivers refuse a whole batch for one document that they cannot encode.
            try:
                documents[place] = _encoded(self._document(row))
            except NOT_ENCODABLE as error:
                outcomes[place] = StoreRejectedError(type(error).__name__)
        if documents:
            try:
                await self._messages.collection.insert_many([*documents.values()], ordered=False)
            except BulkWriteError as error:
                if error.details.get("writeConcernErrors"):
                    # No majority has them, duplicates included: nothing counts as stored (decision 22).
                    raise
                places = [*documents]
                for fault in error.details["writeErrors"]:
                    outcomes[places[fault["index"]]] = _outcome_of(fault.get("code"))
        return outcomes

    @driver_call
    async def newest_messages(
        self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows after the newest `skip`, newest first, of any role but tools, system and commands."""
        query = {**of_owner(owner_key), "role": {"$nin": NOT_SHOWN}, **NOT_INTERNAL}
        return await self._rows.newest(query, limit=limit, skip=skip, view=_excerpts(excerpt_chars))

    @driver_call
    async def all_messages(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` rows of every role, newest first."""
        return await self._rows.newest(of_owner(owner_key), limit=limit)

    @driver_call
    async def messages_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of these runs, newest first, without those of tools, system and commands."""
        query = {**of_owner(owner_key), "run_id": {"$in": list(run_ids)}, "role": {"$nin": NOT_SHOWN}, **NOT_INTERNAL}
        return await self._rows.newest(query, limit=limit, view=_excerpts(excerpt_chars))

    @driver_call
    async def results_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int
    ) -> list[Row]:
        """Up to `limit` rows of tools in these runs, newest first."""
        query = {**of_owner(owner_key), "run_id": {"$in": list(run_ids)}, "role": TOOL}
        return await self._rows.newest(query, limit=limit, view=_excerpts(excerpt_chars))

    @driver_call
    async def find_message(self, owner_key: str, message_id: str) -> Row | None:
        """The row with that `id`, without its content."""
        query = {**of_owner(owner_key), "id": {"$eq": message_id}}
        row = await self._messages.read_one(query, HEADER)
        return with_text_id(row) if row else None

    @driver_call
    async def recorded_ids(self, owner_key: str, message_ids: Sequence[str]) -> set[str]:
        """Those of these `id`s that the owner has rows of."""
        query = {**of_owner(owner_key), "id": {"$in": list(message_ids)}}
        return {row["id"] for row in await self._messages.read_all(query, _ID_ALONE)}

    @driver_call
    async def update_message(
        self, owner_key: str, row_id: str, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Change fields of the row with this `_id` where those in `seen` still have these values."""
        query = {"_id": id_of(row_id), **of_owner(owner_key), **equal(seen)}
        update = due_now(WORDS, written(changes)) if self._recall else {"$set": written(changes)}
        return await self._messages.update(query, update)

    @driver_call
    async def session_messages(
        self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a session after the newest `skip`, newest first, of any role."""
        query = {**rows_of_session(owner_key, session_id), **seen_by(sub_agent)}
        # The index is named: where thousands of the newest rows are not shown, the server's trials of plans find none
        # better than another, take the owner's, and are held again for every other session.
        return await self._rows.newest(query, limit=limit, skip=skip, index=OF_SESSION, view=SHOWN)

    @driver_call
    async def tail_messages(
        self,
        owner_key: str,
        session_id: str,
        tail: Tail,
        *,
        limit: int,
        skip: int = 0,
        oldest_first: bool = False,
        sub_agent: str | None = None,
    ) -> list[Row]:
        """Up to `limit` rows of a session that the tail includes, in the order in which they were stored."""
        rows = Tails(self._rows, owner_key, session_id, tail, oldest_first=oldest_first)
        return await rows.read(limit=limit, skip=skip, sub_agent=sub_agent)

    @driver_call
    async def messages_of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """The rows with these `_id`s, in any order."""
        return await self._rows.of_ids(owner_key, row_ids)

    @driver_call
    async def search_messages(
        self,
        owner_key: str,
        session_id: str,
        text: str,
        *,
        limit: int,
        texts_of: TextsOf,
        without_tools: Collection[str] = (),
        without_run: str | None = None,
    ) -> list[Row]:
        """Up to `limit` rows of a session that have `text` in them, newest first."""
        search = Search(rows_of_session(owner_key, session_id), text, texts_of, tuple(without_tools), without_run)
        return await search.run(partial(self._rows.newest, view=WHOLE_TEXTS), limit=limit)

    @driver_call
    async def run_messages(
        self, owner_key: str, run_id: str, *, limit: int, before: Row | None = None, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a run, newest first, of any role; only those that come behind the row `before`."""
        query = of_run(owner_key, run_id)
        return await self._rows.newest(query, limit=limit, before=before, view=_excerpts(excerpt_chars))

    @driver_call
    async def condensed_results(self, owner_key: str, handles: Sequence[str]) -> dict[str, str]:
        """By handle, the texts that contexts show of these large results."""
        query = {**of_owner(owner_key), f"metadata.{HANDLE}": {"$in": list(handles)}}
        found = await self._messages.read_all(query, _CONDENSED)
        return {
            row["metadata"][HANDLE]: text for row in found if isinstance(text := row["metadata"].get(CONDENSED), str)
        }

    @driver_call
    async def find_result(self, owner_key: str, handle: str, *, sub_agent: str | None = None) -> Row | None:
        """The row of the large result with this handle, whole."""
        query = {**of_owner(owner_key), f"metadata.{HANDLE}": {"$eq": handle}, **seen_by(sub_agent)}
        return next(iter(await self._rows.find(query, limit=1, view=WHOLE_TEXTS, order=())), None)

    @driver_call
    async def sessions(
        self, owner_key: str, *, limit: int, before: SessionSummary | None = None
    ) -> list[SessionSummary]:
        """Up to `limit` sessions that have rows, the one with the latest row first."""
        # In this form the server reads of each session the first entry of an index, and passes over all others.
        stages: list[dict[str, Any]] = [
            {"$match": of_owner(owner_key)},
            {"$sort": dict(OF_SESSION[1:])},
            {"$group": {"_id": "$session_id", "last": {"$first": "$timestamp"}}},
        ]
        last: dict[str | None, datetime] = {}
        for row in await self._messages.aggregate(stages):
            name = DEFAULT_SESSION if row["_id"] in (None, "") else row["_id"]
            session = name if isinstance(name, str) else None
            last[session] = max(last.get(session, LONG_AGO), parse_moment(row["last"]) or LONG_AGO)
        found = sorted(last, key=lambda session: _session_order(session, last[session]))
        if before:
            end = _session_order(before.session_id, before.last or LONG_AGO)
            found = [session for session in found if _session_order(session, last[session]) > end]
        return [await self._summary(owner_key, session, last[session]) for session in found[:limit]]

    async def _summary(self, owner_key: str, session_id: str | None, last: datetime) -> SessionSummary:
        rows = rows_of_session(owner_key, session_id or "")
        if session_id is None:
            rows["session_id"] = {"$type": _NO_NAMES}
        dated = {**rows, "timestamp": {"$gte": LONG_AGO}}
        oldest = partial(self._messages.read_one, projection={"timestamp": 1}, order=OLDEST_FIRST)
        first = await oldest(dated) or await oldest(rows) or {}
        count = await self._messages.collection.count_documents(rows, limit=MOST_COUNTED + 1)
        return SessionSummary(
            session_id, count, parse_moment(first.get("timestamp")), last if last > LONG_AGO else None
        )

    @driver_call
    async def stored_messages(
        self, owner_key: str, session_id: str, *, limit: int, before: str = "", excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a session, the last stored first."""
        query = rows_of_session(owner_key, session_id)
        if before:
            # Only an expression compares `_id`s of different types.
            query["$expr"] = {"$lt": ["$_id", {"$literal": id_of(before)}]}
        return await self._rows.find(
            query, limit=limit, view=_excerpts(excerpt_chars), index=STORED_IN_SESSION, order=LAST_STORED_FIRST
        )

    @driver_call
    async def whole_message(self, owner_key: str, row_id: str) -> Row | None:
        """The row with this `_id`, whole."""
        row = await self._messages.read_one({"_id": {"$eq": id_of(row_id)}, **of_owner(owner_key)})
        return with_text_id(row) if row else None

    @driver_call
    async def owners(self, *, after: str = "", prefix: str = "", limit: int) -> list[str]:
        """Up to `limit` owners that have rows, in the order of their keys."""
        owners: list[str] = []
        # Each is found where it begins in an index, however many rows those before have.
        while len(owners) < limit:
            behind = {"owner_key": {"$gt": owners[-1] if owners else after, "$gte": prefix}}
            row = await self._messages.read_one(behind, {"owner_key": 1}, [("owner_key", ASCENDING)])
            if row is None or not row["owner_key"].startswith(prefix):
                break
            owners.append(row["owner_key"])
        return owners

    @driver_call
    async def first_input(self, owner_key: str, session_id: str) -> Row | None:
        """The oldest row of role HUMAN in a session that is not internal to a sub-agent."""
        query = {**rows_of_session(owner_key, session_id), "role": HUMAN, **NOT_INTERNAL}
        return await self._rows.oldest(query, index=OF_SESSION)

    @driver_call
    async def run_input(self, owner_key: str, run_id: str) -> Row | None:
        """The oldest row of role HUMAN of a run that is not internal to a sub-agent."""
        return await self._rows.oldest({**of_run(owner_key, run_id), "role": HUMAN, **NOT_INTERNAL})

    @driver_call
    async def find_origin(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """Where the run's human input was recorded."""
        query = {**of_run(owner_key, run_id), "role": HUMAN}
        return origin_of(await self._messages.read_one(query, _ORIGIN, OLDEST_FIRST) or {})

    def _document(self, row: Row) -> Row:
        document = {**row, "_id": id_of(row["_id"])} if "_id" in row else dict(row)
        return to_index(document) if self._recall else document


def _excerpts(chars: int | None) -> View:
    return BOUNDED if chars is None else View(chars)


def _session_order(session_id: str | None, last: datetime) -> tuple[float, str]:
    return -last.timestamp(), session_id or ""


def _encoded(document: Row) -> RawBSONDocument:
    encoded = bson.encode(written({"_id": ObjectId(), **document}))
    if len(encoded) > _LARGEST_DOCUMENT:
        raise bson.errors.InvalidDocument("too large")
    return RawBSONDocument(encoded)


def _outcome_of(code: int | None) -> Outcome:
    if code == DUPLICATE_KEY:
        return False
    return (StoreRejectedError if is_unacceptable(code) else StoreUnavailableError)(f"WriteError {code}")
