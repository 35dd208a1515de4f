"""Recorded messages in MongoDB: inserting rows, and the reads of `nexus.core.ports.MessageStore` (contract §2)."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

import bson
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.errors import BulkWriteError, DuplicateKeyError

from nexus.adapters.mongo.client import DUPLICATE_KEY, NOT_ENCODABLE, Calls, driver_call, insert_call, is_unacceptable
from nexus.adapters.mongo.rows import HEADER, Rows, Search, Tails
from nexus.adapters.mongo.schema import (
    NOT_INTERNAL,
    NOT_SHOWN,
    OF_SESSION,
    OLDEST_FIRST,
    id_of,
    id_text,
    of_run,
    of_session,
    origin_of,
    seen_by,
)
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.models import AGENT_ID, INTERNAL
from nexus.core.ports import Row, RunOrigin
from nexus.core.ports.store import TextsOf
from nexus.core.working_memory import Tail

_ORIGIN: Final = dict.fromkeys(("session_id", f"metadata.{INTERNAL}", f"metadata.{AGENT_ID}"), 1)
_LARGEST_DOCUMENT: Final = 1 << 24

Outcome = bool | StoreRejectedError | StoreUnavailableError


class MongoMessages:
    """`nexus.core.ports.MessageStore` on a collection of motor or of pymongo's asyncio client.

    `indexed` returns once the indexes are made.
    """

    def __init__(self, messages: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        self.calls = calls
        self._messages = messages
        self.indexed = indexed
        self._rows = Rows(messages)

    @insert_call
    async def insert_message(self, row: Row) -> bool:
        """Record a row. False when its owner has a row with that `id`."""
        try:
            await self._messages.insert_one(_document(row))
        except DuplicateKeyError:
            return False
        return True

    @insert_call
    async def insert_messages(self, rows: Sequence[Row]) -> list[Outcome]:
        """Record rows, each of which succeeds or fails by itself."""
        outcomes: list[Outcome] = [True] * len(rows)
        documents: dict[int, RawBSONDocument] = {}
        for place, row in enumerate(rows):
            # Encoded here: the drivers refuse a whole batch for one document that they cannot encode.
            try:
                documents[place] = _encoded(row)
            except NOT_ENCODABLE as error:
                outcomes[place] = StoreRejectedError(type(error).__name__)
        if documents:
            try:
                await self._messages.insert_many([*documents.values()], ordered=False)
            except BulkWriteError as error:
                if error.details.get("writeConcernErrors"):
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
        query = {"owner_key": {"$eq": owner_key}, "role": {"$nin": NOT_SHOWN}, **NOT_INTERNAL}
        return await self._rows.newest(query, limit=limit, skip=skip, excerpt_chars=excerpt_chars)

    @driver_call
    async def all_messages(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` rows of every role, whole, newest first."""
        return await self._rows.newest({"owner_key": {"$eq": owner_key}}, limit=limit)

    @driver_call
    async def messages_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of these runs, newest first, without those of tools, system and commands."""
        query = {"owner_key": {"$eq": owner_key}, "run_id": {"$in": list(run_ids)}, "role": {"$nin": NOT_SHOWN}}
        return await self._rows.newest(query, limit=limit, excerpt_chars=excerpt_chars)

    @driver_call
    async def find_message(self, owner_key: str, message_id: str) -> Row | None:
        """The row with that `id`, without its content."""
        query = {"owner_key": {"$eq": owner_key}, "id": {"$eq": message_id}}
        row: Row | None = await self._messages.find_one(query, HEADER)
        return {**row, "_id": id_text(row["_id"])} if row else None

    @driver_call
    async def session_messages(
        self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a session after the newest `skip`, whole, newest first, of any role."""
        query = {**of_session(owner_key, session_id), **seen_by(sub_agent)}
        # The index is named: where thousands of the newest rows are not shown, the server's trials of plans find none
        # better than another, take the owner's, and are held again for every other session.
        return await self._rows.newest(query, limit=limit, skip=skip, index=OF_SESSION)

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
        """Up to `limit` rows of a session that the tail includes, whole, in the order in which they were stored."""
        rows = Tails(self._rows, owner_key, session_id, tail, oldest_first=oldest_first)
        return await rows.read(limit=limit, skip=skip, sub_agent=sub_agent)

    @driver_call
    async def messages_of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """The rows with these `_id`s, whole and in any order."""
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
        search = Search(of_session(owner_key, session_id), text, texts_of, tuple(without_tools), without_run)
        return await search.run(self._rows, limit=limit)

    @driver_call
    async def run_messages(self, owner_key: str, run_id: str, *, limit: int, skip: int = 0) -> list[Row]:
        """Up to `limit` rows of a run after the newest `skip`, whole, newest first, of any role."""
        return await self._rows.newest(of_run(owner_key, run_id), limit=limit, skip=skip)

    @driver_call
    async def first_input(self, owner_key: str, session_id: str) -> Row | None:
        """The oldest row of role HUMAN in a session that is not internal to a sub-agent, whole."""
        query = {**of_session(owner_key, session_id), "role": "HUMAN", **NOT_INTERNAL}
        return await self._rows.oldest(query, index=OF_SESSION)

    @driver_call
    async def run_input(self, owner_key: str, run_id: str) -> Row | None:
        """The oldest row of role HUMAN of a run that is not internal to a sub-agent, whole."""
        return await self._rows.oldest({**of_run(owner_key, run_id), "role": "HUMAN", **NOT_INTERNAL})

    @driver_call
    async def find_origin(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """Where the run's human input was recorded."""
        query = {**of_run(owner_key, run_id), "role": "HUMAN"}
        row: Row | None = await self._messages.find_one(query, _ORIGIN, sort=OLDEST_FIRST)
        return origin_of(row or {})


def _document(row: Row) -> Row:
    return {**row, "_id": id_of(row["_id"])} if "_id" in row else dict(row)


def _encoded(row: Row) -> RawBSONDocument:
    encoded = bson.encode({"_id": ObjectId(), **_document(row)})
    if len(encoded) > _LARGEST_DOCUMENT:
        raise bson.errors.InvalidDocument("too large")
    return RawBSONDocument(encoded)


def _outcome_of(code: int | None) -> Outcome:
    if code == DUPLICATE_KEY:
        return False
    return (StoreRejectedError if is_unacceptable(code) else StoreUnavailableError)(f"WriteError {code}")
