"""Facts and constraints in MongoDB (contract §15): one document a statement, and one for each place of constraints."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING

from nexus.adapters.mongo.client import (
    Calls,
    Operations,
    driver_call,
    insert_call,
    insert_until_duplicate,
    read_all,
    read_page,
)
from nexus.adapters.mongo.versions import written
from nexus.core.models import Row, utc_now
from nexus.core.person import Statement

_WITHOUT_ID: Final = {"_id": 0}
_LATEST_FIRST: Final = [("said_at", DESCENDING), ("id", DESCENDING)]
_BY_PLACE: Final = [("place", ASCENDING)]


class MongoFacts(Operations):
    """`nexus.core.ports.FactStore` on a collection; see `MongoMessages`."""

    def __init__(self, facts: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._facts = facts

    @insert_call
    async def add_statements(self, owner_key: str, statements: Sequence[Statement]) -> int:
        """Keep these statements; returns how many are new."""
        waiting = [{**statement.model_dump(), "owner_key": owner_key} for statement in statements]
        new = 0
        while waiting:
            kept = await insert_until_duplicate(self._facts, waiting)
            new += kept
            # The one behind those that were kept is there already.
            waiting = waiting[kept + 1 :]
        return new

    @driver_call
    async def statements(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` statements, the latest first."""
        return await read_page(self._facts, {"owner_key": {"$eq": owner_key}}, _WITHOUT_ID, _LATEST_FIRST, limit)

    @driver_call
    async def count_statements(self, owner_key: str) -> int:
        """How many statements there are of the owner."""
        return int(await self._facts.count_documents({"owner_key": {"$eq": owner_key}}))


class MongoConstraints(Operations):
    """`nexus.core.ports.ConstraintStore` on a collection; see `MongoMessages`."""

    def __init__(self, constraints: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._constraints = constraints

    @driver_call
    async def find_constraints(self, owner_key: str, places: Sequence[str]) -> list[Row]:
        """The documents of these places, those that are there."""
        query = {"owner_key": {"$eq": owner_key}, "place": {"$in": [*places]}}
        return await read_all(self._constraints, query, _WITHOUT_ID)

    @driver_call
    async def list_constraints(self, owner_key: str, *, limit: int, after: str = "") -> list[Row]:
        """Up to `limit` documents of the owner, by place, of those behind `after`."""
        query = {"owner_key": {"$eq": owner_key}, "place": {"$gt": after}}
        return await read_page(self._constraints, query, _WITHOUT_ID, _BY_PLACE, limit)

    @insert_call
    async def put_constraints(self, owner_key: str, place: str, document: Mapping[str, Any], revision: int) -> bool:
        """Keep the document in place of the one with that revision. False when another was kept in between."""
        changes = written({"document": dict(document), "revision": revision + 1, "updated_at": utc_now()})
        if revision == 0:
            new = {"owner_key": owner_key, "place": place, **changes}
            return await insert_until_duplicate(self._constraints, [new]) == 1
        seen = {"owner_key": {"$eq": owner_key}, "place": {"$eq": place}, "revision": {"$eq": revision}}
        return bool((await self._constraints.update_one(seen, {"$set": changes})).matched_count)
