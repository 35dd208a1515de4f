"""The turns in MongoDB: one document each, numbered by a unique index (CONTRACT §6).

Rules of this module, beside those of `nexus.adapters.mongo`:

- A number or a run that is taken is found out by inserting, never by looking first: between the two stands another
  replica.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from pymongo import DESCENDING
from pymongo.errors import BulkWriteError, DuplicateKeyError

from nexus.adapters.mongo_bulk import Bulk
from nexus.adapters.mongo_calls import Calls, completed
from nexus.adapters.mongo_find import Page
from nexus.adapters.mongo_latest_turns import LatestTurns
from nexus.adapters.mongo_pipelines import Pipelines
from nexus.adapters.mongo_schema import containing, of_session
from nexus.adapters.mongo_turn_work import WHOLE, MongoTurnWork
from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.turns import LONGEST_SEARCHED, SessionPlace
from nexus.core.turns import Structured

COLLECTION: Final = "turns"

_HIGHEST_FIRST: Final = [("turn_number", DESCENDING)]
_HEADER: Final = {**WHOLE, **dict.fromkeys(("messages", "tool_calls"), 0)}
_SHORT: Final = {**_HEADER, **dict.fromkeys(("thinking_phase", "workspace_context"), 0)}
_SEARCHED: Final = (
    "summaries.brief",
    "summaries.detailed",
    *(f"summaries.structured.{name}" for name in Structured.model_fields),
    "insights",
)
_DUPLICATE: Final = 11000


class MongoTurns(MongoTurnWork):
    """`nexus.core.ports.TurnStore` on a collection.

    Args:
        turns: the collection, of motor or of pymongo's asyncio client.
        calls: through which the client is called.
        prepared: returns once the indexes are made.
        pipelines: past which the client is called, for what is done of many turns at once.
    """

    def __init__(self, turns: Any, calls: Calls, prepared: Callable[[], Awaitable[None]], pipelines: Pipelines) -> None:
        super().__init__(turns, calls, prepared, pipelines)
        self._bulk = Bulk(turns, pipelines)
        self._latest = LatestTurns()

    @completed
    async def insert_turns(self, turns: Sequence[Row]) -> int:
        """Keep these up to the first whose number or run is taken. Returns how many were kept."""
        if not turns:
            return 0
        await self._prepared()
        return await self._insert(turns)

    @completed
    async def insert_turns_of_sessions(self, sessions: Sequence[Sequence[Row]]) -> list[int]:
        """Keep turns of different sessions, of each up to the first whose number or run is taken."""
        kept = [0] * len(sessions)
        left = [place for place, turns in enumerate(sessions) if turns]
        if left:
            await self._prepared()
        if any(len(sessions[place]) > 1 for place in left):
            left = await self._insert_in_order(sessions, left, kept)
        # The next of each session at once: which of them are kept does not depend on the others.
        while 1 < len(left) >= max(len(sessions[place]) - kept[place] for place in left):
            refused = await self._insert_each([sessions[place][kept[place]] for place in left])
            left = [place for index, place in enumerate(left) if index not in refused]
            for place in left:
                kept[place] += 1
            left = [place for place in left if kept[place] < len(sessions[place])]
        for place in left:
            kept[place] += await self._insert(sessions[place][kept[place] :])
        self._latest.seen(turns[count - 1] for turns, count in zip(sessions, kept, strict=True) if count)
        return kept

    async def _insert_in_order(
        self, sessions: Sequence[Sequence[Row]], places: Sequence[int], kept: list[int]
    ) -> list[int]:
        """Insert the turns of these sessions up to the first that is taken. Returns the sessions after that one."""
        inserted = await self._insert([turn for place in places for turn in sessions[place]])
        for done, place in enumerate(places, 1):
            kept[place] = min(len(sessions[place]), inserted)
            inserted -= kept[place]
            if kept[place] < len(sessions[place]):
                return [*places[done:]]
        return []

    async def _insert(self, turns: Sequence[Row]) -> int:
        try:
            if len(turns) == 1:
                # It costs less.
                await self._turns.insert_one(dict(turns[0]))
            else:
                await self._bulk.insert_many(turns)
        except DuplicateKeyError:
            return 0
        except BulkWriteError as error:
            faults = error.details.get("writeErrors") or [{}]
            if faults[0].get("code") != _DUPLICATE:
                raise
            return int(error.details["nInserted"])
        return len(turns)

    async def _insert_each(self, turns: Sequence[Row]) -> set[int]:
        """Insert these; returns the places of those whose number or run is taken."""
        try:
            await self._bulk.insert_many(turns, ordered=False)
        except BulkWriteError as error:
            faults = error.details.get("writeErrors") or [{}]
            if any(fault.get("code") != _DUPLICATE for fault in faults):
                raise
            return {fault["index"] for fault in faults}
        return set()

    @completed
    async def latest_turn(self, owner_key: str, session_id: str) -> Row | None:
        """The turn with the highest number."""
        page = Page(1, 0, _HIGHEST_FIRST)
        rows = await self._finds.rows(of_session(owner_key, session_id), page, only=_HEADER)
        return rows[0] if rows else None

    @completed
    async def latest_turns(self, sessions: Collection[SessionPlace]) -> list[Row]:
        """Of each of these sessions the turn with the highest number, no more of it than `LATEST` and its `_id`."""
        return await self._latest.find(self._finds, sessions)

    @completed
    async def find_turn(self, owner_key: str, session_id: str, turn_number: int) -> Row | None:
        """The turn with that number."""
        query = {**of_session(owner_key, session_id), "turn_number": {"$eq": turn_number}}
        row: Row | None = await self._turns.find_one(query, WHOLE)
        return row

    @completed
    async def turns_of_runs(self, owner_key: str, session_id: str, run_ids: Sequence[str]) -> list[Row]:
        """The turns of these runs, in any order."""
        query = {**of_session(owner_key, session_id), "run_id": {"$in": list(run_ids)}}
        rows: list[Row] = await self._turns.find(query, _HEADER).to_list(None)
        return rows

    @completed
    async def turns(
        self,
        owner_key: str,
        session_id: str,
        *,
        limit: int,
        before: int | None = None,
        without_runs: Sequence[str] = (),
        whole: bool = False,
    ) -> list[Row]:
        """Up to `limit` turns, the highest number first."""
        query: dict[str, Any] = of_session(owner_key, session_id)
        if before is not None:
            query["turn_number"] = {"$lt": before}
        if without_runs:
            query["run_id"] = {"$nin": list(without_runs)}
        return await self._find(query, WHOLE if whole else _SHORT, limit)

    @completed
    async def search_turns(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` turns with `text` in a summary or an insight; the highest number first."""
        if len(text) > LONGEST_SEARCHED:
            raise StoreRejectedError(f"no text of more than {LONGEST_SEARCHED} characters can be searched for")
        query = {**of_session(owner_key, session_id), "$or": [{place: containing(text)} for place in _SEARCHED]}
        return await self._find(query, _SHORT, limit)

    @completed
    async def count_turns(self, owner_key: str, session_id: str) -> int:
        """How many turns the session has."""
        return int(await self._turns.count_documents(of_session(owner_key, session_id)))

    @completed
    async def delete_turns(self, owner_key: str, session_id: str) -> int:
        """Forget the session's turns. Returns how many there were."""
        return int((await self._turns.delete_many(of_session(owner_key, session_id))).deleted_count)

    async def _find(self, query: Mapping[str, Any], projection: Mapping[str, int], limit: int) -> list[Row]:
        cursor = self._turns.find(query, projection).sort(_HIGHEST_FIRST).limit(limit)
        rows: list[Row] = await cursor.batch_size(limit + 1).to_list(limit)
        return rows
