"""How turns are changed in MongoDB, and claimed for the work that is due on them (CONTRACT §6).

What is changed is set field by field in one operation, so that of two who change a turn neither undoes the other.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from pymongo import DESCENDING, ReturnDocument, UpdateMany, UpdateOne

from nexus.adapters.mongo_calls import Calls, completed
from nexus.adapters.mongo_find import Page, find_rows
from nexus.adapters.mongo_schema import of_session
from nexus.core.ports import Row
from nexus.core.ports.turns import OVERTAKEN_AT_MOST, TurnPlace, TurnUpdate
from nexus.core.turns import CLOSE, TurnStatus

# By whom a turn was claimed among others, which is nobody else's business.
_CLAIM: Final = "claim"
WHOLE: Final = {"_id": 0, _CLAIM: 0}
_CLAIMED: Final = dict.fromkeys((_CLAIM, "messages", "tool_calls"), 0)
_LAST_DUE_FIRST: Final = [("due_at", DESCENDING)]
_OVER: Final = [status.value for status in TurnStatus if status.is_over]


class MongoTurnWork:
    """What of `nexus.core.ports.TurnStore` changes turns that are kept.

    Args:
        turns: the collection, of motor or of pymongo's asyncio client.
        calls: through which the client is called.
        prepared: returns once the indexes are made.
    """

    def __init__(self, turns: Any, calls: Calls, prepared: Callable[[], Awaitable[None]]) -> None:
        self.calls = calls
        self._turns = turns
        self._prepared = prepared

    @completed
    async def update_turn(
        self, owner_key: str, session_id: str, turn_number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values."""
        query = _unchanged(owner_key, session_id, turn_number, seen)
        return bool((await self._turns.update_one(query, {"$set": dict(changes)})).matched_count)

    @completed
    async def update_turns(self, updates: Sequence[TurnUpdate]) -> int:
        """Do what `update_turn` does for each of these turns. Returns how many were changed."""
        if not updates:
            return 0
        requests = [UpdateOne(_unchanged(*place, seen), {"$set": dict(changes)}) for place, changes, seen in updates]
        return int((await self._turns.bulk_write(requests, ordered=False)).matched_count)

    @completed
    async def touch_run(
        self,
        owner_key: str,
        session_id: str,
        run_id: str,
        changes: Mapping[str, Any],
        *,
        unless_due: Mapping[str, Any] | None = None,
        message_id: str | None = None,
    ) -> bool:
        """Set these fields of the run's turn, and `unless_due` where `close` is not due on it."""
        query = {**of_session(owner_key, session_id), "run_id": {"$eq": run_id}}
        if message_id is not None:
            query["messages"] = {"$ne": message_id}
        if unless_due:
            due = {**query, "work": CLOSE}
            if (await self._turns.update_one(due, {"$set": dict(changes)})).matched_count:
                return True
        every = {**changes, **(unless_due or {})}
        return bool((await self._turns.update_one(query, {"$set": every})).matched_count)

    @completed
    async def overtake(self, turns: Collection[TurnPlace], changes: Mapping[str, Any], *, due_by: datetime) -> int:
        """Set these fields of the turns that are not over and come before these, and have them due by then."""
        if not turns:
            return 0
        change = {"$set": dict(changes), "$min": {"due_at": due_by}}
        updates = [UpdateMany(_before(*place), change) for place in turns]
        return int((await self._turns.bulk_write(updates, ordered=False)).matched_count)

    @completed
    async def claim(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Of the turns on which this work is due by `now`, the one last due; it is then due at `until`."""
        row: Row | None = await self._turns.find_one_and_update(
            {"work": {"$eq": work}, "due_at": {"$lte": now}},
            {"$set": {"due_at": until}},
            projection=WHOLE,
            sort=_LAST_DUE_FIRST,
            return_document=ReturnDocument.AFTER,
        )
        return row

    @completed
    async def claim_all(self, work: str, now: datetime, until: datetime, *, limit: int) -> list[Row]:
        """Claim up to `limit` turns as `claim` does, without what is long, the last due first."""
        due = {"work": {"$eq": work}, "due_at": {"$lte": now}}
        rows = await find_rows(self._turns, due, Page(limit, 0, _LAST_DUE_FIRST), only=_CLAIMED)
        if not rows:
            return []
        claim, ids = ObjectId(), {"_id": {"$in": [row["_id"] for row in rows]}}
        change = {"$set": {"due_at": until, _CLAIM: claim}}
        if (await self._turns.update_many({**due, **ids}, change)).matched_count < len(rows):
            # Another came first for some of them.
            rows = await self._turns.find({**ids, _CLAIM: claim}, _CLAIMED).sort(_LAST_DUE_FIRST).to_list(limit)
        for row in rows:
            del row["_id"]
            row["due_at"] = until.replace(microsecond=until.microsecond // 1_000 * 1_000)
        return rows


def _unchanged(owner_key: str, session_id: str, turn_number: int, seen: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: {"$eq": value} for name, value in seen.items()}
    return {**of_session(owner_key, session_id), "turn_number": {"$eq": turn_number}, **known}


def _before(owner_key: str, session_id: str, turn_number: int) -> dict[str, Any]:
    earlier = {"$gte": turn_number - OVERTAKEN_AT_MOST, "$lt": turn_number}
    return {**of_session(owner_key, session_id), "turn_number": earlier, "status": {"$nin": _OVER}}
