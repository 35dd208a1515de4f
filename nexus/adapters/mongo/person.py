"""Facts and constraints in MongoDB (contract §15): one document a statement, and one for each place of constraints."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING

from nexus.adapters.mongo.client import Calls, Operations, driver_call, insert_call
from nexus.adapters.mongo.documents import WITHOUT_ID, Documents
from nexus.adapters.mongo.schema import of_owner
from nexus.core.models import Row
from nexus.core.person import Statement

_LATEST_FIRST: Final = [("said_at", DESCENDING), ("id", DESCENDING)]
_BY_PLACE: Final = [("place", ASCENDING)]


class MongoFacts(Operations):
    """`nexus.core.ports.FactStore` on a collection; see `MongoMessages`."""

    def __init__(self, facts: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._facts = Documents(facts)

    @insert_call
    async def add_statements(self, owner_key: str, statements: Sequence[Statement]) -> int:
        """Keep these statements; returns how many are new."""
        waiting = [{**statement.model_dump(), "owner_key": owner_key} for statement in statements]
        new = 0
        while waiting:
            kept = await self._facts.insert_until_duplicate(waiting)
            new += kept
            # The one behind those that were kept is there already.
            waiting = waiting[kept + 1 :]
        return new

    @driver_call
    async def statements(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` statements, the latest first."""
        return await self._facts.read_page(of_owner(owner_key), WITHOUT_ID, _LATEST_FIRST, limit)

    @driver_call
    async def count_statements(self, owner_key: str) -> int:
        """How many statements there are of the owner."""
        return int(await self._facts.collection.count_documents(of_owner(owner_key)))


class MongoConstraints(Operations):
    """`nexus.core.ports.ConstraintStore` on a collection; see `MongoMessages`."""

    def __init__(self, constraints: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._constraints = Documents(constraints)

    @driver_call
    async def find_constraints(self, owner_key: str, places: Sequence[str]) -> list[Row]:
        """The documents of these places, those that are there."""
        query = {**of_owner(owner_key), "place": {"$in": [*places]}}
        return await self._constraints.read_all(query, WITHOUT_ID)

    @driver_call
    async def list_constraints(self, owner_key: str, *, limit: int, after: str = "") -> list[Row]:
        """Up to `limit` documents of the owner, by place, of those behind `after`."""
        query = {**of_owner(owner_key), "place": {"$gt": after}}
        return await self._constraints.read_page(query, WITHOUT_ID, _BY_PLACE, limit)

    @insert_call
    async def put_constraints(self, owner_key: str, place: str, document: Mapping[str, Any], revision: int) -> bool:
        """Keep the document in place of the one with that revision. False when another was kept in between."""
        return await self._constraints.put_revision({"owner_key": owner_key, "place": place}, document, revision)
