"""How turns are changed in MongoDB, and claimed for the work that is due on them (CONTRACT §6).

What is changed is set field by field in one operation, so that of two who change a turn neither undoes the other.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from pymongo import DESCENDING, ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure

from nexus.adapters.mongo_calls import UNSENDABLE, Calls, completed, is_unacceptable
from nexus.adapters.mongo_find import FindsAside, Page
from nexus.adapters.mongo_pipelines import Pipelines
from nexus.adapters.mongo_schema import of_session
from nexus.core.ports import Row
from nexus.core.ports.turns import CLAIMED, TurnsUpdated, TurnTouch, TurnUpdate
from nexus.core.turns import CLOSE, OVER, TurnStatus

# By whom a turn was claimed among others, which is nobody else's business.
_CLAIM: Final = "claim"
WHOLE: Final = {"_id": 0, _CLAIM: 0}
_CLAIMED: Final = {**dict.fromkeys(CLAIMED, 1), "summaries": {"source": 1}}
_RUN: Final = {"_id": 0, **dict.fromkeys(("owner_key", "session_id", "run_id"), 1)}
_LAST_DUE_FIRST: Final = [("due_at", DESCENDING)]
# As `is_unheard` has it.
_UNHEARD: Final = {
    "work": CLOSE,
    "status": TurnStatus.PENDING.value,
    "rows": 0,
    "messages": {"$size": 1},
    "thinking_phase": None,
}


class MongoTurnWork:
    """What of `nexus.core.ports.TurnStore` changes turns that are kept.

    Args:
        turns: the collection, of motor or of pymongo's asyncio client.
        calls: through which the client is called.
        prepared: returns once the indexes are made.
        pipelines: past which the client is called, for what is found of many turns at once.
    """

    def __init__(self, turns: Any, calls: Calls, prepared: Callable[[], Awaitable[None]], pipelines: Pipelines) -> None:
        self.calls = calls
        self._turns = turns
        self._finds = FindsAside(turns, pipelines)
        self._prepared = prepared

    @completed
    async def update_turn(
        self, owner_key: str, session_id: str, turn_number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values."""
        query = _unchanged(owner_key, session_id, turn_number, seen)
        return bool((await self._turns.update_one(query, {"$set": dict(changes)})).matched_count)

    @completed
    async def update_turns(self, updates: Sequence[TurnUpdate]) -> TurnsUpdated:
        """Do what `update_turn` does for each of these turns; one that cannot be kept is no other's business."""
        return await self._update(updates)

    async def _update(self, updates: Sequence[TurnUpdate]) -> TurnsUpdated:
        if not updates:
            return TurnsUpdated(0)
        requests = [UpdateOne(_unchanged(*place, seen), {"$set": dict(changes)}) for place, changes, seen in updates]
        try:
            return TurnsUpdated((await self._turns.bulk_write(requests, ordered=False)).matched_count)
        except BulkWriteError as error:
            faults = error.details.get("writeErrors") or []
            if not faults or not all(is_unacceptable(fault.get("code")) for fault in faults):
                raise
            return TurnsUpdated(error.details["nMatched"], [fault["index"] for fault in faults])
        except OperationFailure as error:
            # Of a very large change the server says so as of the whole command.
            if not is_unacceptable(error.code):
                raise
        except UNSENDABLE:
            # None of them was sent.
            pass
        if len(updates) == 1:
            return TurnsUpdated(0, [0])
        half = len(updates) // 2
        first, second = await self._update(updates[:half]), await self._update(updates[half:])
        return TurnsUpdated(
            first.changed + second.changed, [*first.refused, *(half + place for place in second.refused)]
        )

    @completed
    async def touch_runs(self, touches: Sequence[TurnTouch]) -> list[TurnTouch]:
        """Set these fields of the turns of these runs. Returns those of which the run has no turn."""
        if not touches:
            return []
        updates = [update for touch in touches for update in _touching(touch)]
        if (await self._turns.bulk_write(updates)).matched_count >= len(touches):
            return []
        runs: dict[tuple[str, str], list[str]] = {}
        for touch in touches:
            runs.setdefault((touch.owner_key, touch.session_id), []).append(touch.run_id)
        queries = [{**of_session(*place), "run_id": {"$in": of_place}} for place, of_place in runs.items()]
        found = await self._turns.find({"$or": queries}, _RUN).to_list(None)
        known = {(row["owner_key"], row["session_id"], row["run_id"]) for row in found}
        return [touch for touch in touches if (touch.owner_key, touch.session_id, touch.run_id) not in known]

    @completed
    async def overtake(self, turns: Collection[Any], changes: Mapping[str, Any], *, due_by: datetime) -> int:
        """Set these fields of those turns that are not over and are to be closed, and have them due by then."""
        if not turns:
            return 0
        query = {"_id": {"$in": [*turns]}, "work": {"$eq": CLOSE}, "status": {"$nin": OVER}}
        change = {"$set": dict(changes), "$min": {"due_at": due_by}}
        return int((await self._turns.update_many(query, change)).matched_count)

    @completed
    async def close_unheard(self, turns: Collection[Any], changes: Mapping[str, Any]) -> int:
        """Set these fields of those of these turns that are as they began, with an input and nothing else."""
        if not turns:
            return 0
        query = {"_id": {"$in": [*turns]}, **_UNHEARD}
        return int((await self._turns.update_many(query, {"$set": dict(changes)})).matched_count)

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
        """Claim up to `limit` turns as `claim` does, no more of them than `CLAIMED`, the last due first."""
        due = {"work": {"$eq": work}, "due_at": {"$lte": now}}
        rows = await self._finds.rows(due, Page(limit, 0, _LAST_DUE_FIRST), only=_CLAIMED)
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


def _touching(touch: TurnTouch) -> list[UpdateOne]:
    """What comes to one change at most, whatever is due on the turn."""
    query = {**of_session(touch.owner_key, touch.session_id), "run_id": {"$eq": touch.run_id}}
    if touch.message_id is not None:
        query["messages"] = {"$ne": touch.message_id}
    if not touch.unless_due:
        return [UpdateOne(query, {"$set": dict(touch.changes)})]
    return [
        UpdateOne({**query, "work": CLOSE}, {"$set": dict(touch.changes)}),
        UpdateOne({**query, "work": {"$ne": CLOSE}}, {"$set": {**touch.changes, **touch.unless_due}}),
    ]
