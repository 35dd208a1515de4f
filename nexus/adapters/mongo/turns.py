"""Turns in MongoDB: one document each, numbered by a unique index, claimed for the work due on them (contract §6).

- A number or a run that is taken is found out by inserting, never by looking first: another replica may insert between
  the two.
- A turn is changed field by field in one operation, so that of two replicas neither undoes the other's change.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pymongo import DESCENDING, UpdateOne

from nexus.adapters.mongo.client import Calls, claim_due, driver_call, insert_until_duplicate, read_page
from nexus.adapters.mongo.rows import check_phrase
from nexus.adapters.mongo.schema import containing, of_session, unchanged
from nexus.core.ports import Row
from nexus.core.ports.memory import TurnTouch
from nexus.core.turns import CLOSE, Structured

_HIGHEST_FIRST: Final = [("turn_number", DESCENDING)]
# An earlier version left a `claim` in turns.
_WHOLE: Final = {"_id": 0, "claim": 0}
_HEADER: Final = {**_WHOLE, **dict.fromkeys(("messages", "tool_calls"), 0)}
_SHORT: Final = {**_HEADER, **dict.fromkeys(("thinking_phase", "workspace_context"), 0)}
_RUN: Final = {"_id": 0, **dict.fromkeys(("owner_key", "session_id", "run_id"), 1)}
_SEARCHED: Final = (
    "summaries.brief",
    "summaries.detailed",
    *(f"summaries.structured.{name}" for name in Structured.model_fields),
    "insights",
)


class MongoTurns:
    """`nexus.core.ports.TurnStore` on a collection; see `MongoMessages`."""

    def __init__(self, turns: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        self.calls = calls
        self._turns = turns
        self._indexed = indexed

    @driver_call
    async def insert_turns(self, turns: Sequence[Row]) -> int:
        """Keep these up to the first whose number or run is taken. Returns how many were kept."""
        await self._indexed()
        return await insert_until_duplicate(self._turns, turns)

    @driver_call
    async def latest_turn(self, owner_key: str, session_id: str) -> Row | None:
        """The turn with the highest number."""
        row: Row | None = await self._turns.find_one(of_session(owner_key, session_id), _HEADER, sort=_HIGHEST_FIRST)
        return row

    @driver_call
    async def find_turn(self, owner_key: str, session_id: str, turn_number: int) -> Row | None:
        """The turn with that number."""
        row: Row | None = await self._turns.find_one(_of_number(owner_key, session_id, turn_number), _WHOLE)
        return row

    @driver_call
    async def turns_of_runs(self, owner_key: str, session_id: str, run_ids: Sequence[str]) -> list[Row]:
        """The turns of these runs, in any order."""
        query = {**of_session(owner_key, session_id), "run_id": {"$in": list(run_ids)}}
        rows: list[Row] = await self._turns.find(query, _HEADER).to_list(None)
        return rows

    @driver_call
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
        return await read_page(self._turns, query, _WHOLE if whole else _SHORT, _HIGHEST_FIRST, limit)

    @driver_call
    async def search_turns(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` turns with `text` in a summary or an insight; the highest number first."""
        check_phrase(text)
        query = {**of_session(owner_key, session_id), "$or": [{place: containing(text)} for place in _SEARCHED]}
        return await read_page(self._turns, query, _SHORT, _HIGHEST_FIRST, limit)

    @driver_call
    async def count_turns(self, owner_key: str, session_id: str) -> int:
        """How many turns the session has."""
        return int(await self._turns.count_documents(of_session(owner_key, session_id)))

    @driver_call
    async def delete_turns(self, owner_key: str, session_id: str) -> int:
        """Forget the session's turns. Returns how many there were."""
        return int((await self._turns.delete_many(of_session(owner_key, session_id))).deleted_count)

    @driver_call
    async def update_turn(
        self, owner_key: str, session_id: str, turn_number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values."""
        query = {**_of_number(owner_key, session_id, turn_number), **unchanged(seen)}
        return bool((await self._turns.update_one(query, {"$set": dict(changes)})).matched_count)

    @driver_call
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

    @driver_call
    async def claim(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Of the turns on which this work is due by `now`, the one last due; it is then due at `until`."""
        return await claim_due(self._turns, work, now, until, projection=_WHOLE, order=DESCENDING)


def _of_number(owner_key: str, session_id: str, turn_number: int) -> dict[str, Any]:
    return {**of_session(owner_key, session_id), "turn_number": {"$eq": turn_number}}


def _touching(touch: TurnTouch) -> list[UpdateOne]:
    """The updates for a run, of which one at most changes its turn."""
    query = {**of_session(touch.owner_key, touch.session_id), "run_id": {"$eq": touch.run_id}}
    if touch.message_id is not None:
        query["messages"] = {"$ne": touch.message_id}
    if not touch.unless_due:
        return [UpdateOne(query, {"$set": dict(touch.changes)})]
    return [
        UpdateOne({**query, "work": CLOSE}, {"$set": dict(touch.changes)}),
        UpdateOne({**query, "work": {"$ne": CLOSE}}, {"$set": {**touch.changes, **touch.unless_due}}),
    ]
