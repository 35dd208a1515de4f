"""Tombstones in MongoDB, in `tombstones` (contract §13)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from nexus.adapters.mongo.client import Calls, Operations, driver_call, insert_call, insert_until_duplicate
from nexus.core.erasure import Tombstone, hashed
from nexus.core.models import Row

_FIELDS: Final = {"_id": 0, **{field.name: 1 for field in fields(Tombstone)}}


class MongoErasure(Operations):
    """`nexus.core.ports.ErasureStore` on a database; see `MongoMessages`."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._tombstones = database["tombstones"]

    @insert_call
    async def put_tombstone(self, tombstone: Tombstone) -> None:
        """Keep a tombstone."""
        await insert_until_duplicate(self._tombstones, [asdict(tombstone)])

    @driver_call
    async def tombstones(self, owner_keys: Sequence[str]) -> list[Tombstone]:
        """All tombstones of these owners."""
        query = {"owner": {"$in": [*map(hashed, owner_keys)]}}
        found: list[Row] = await self._tombstones.find(query, _FIELDS).to_list(None)
        return [Tombstone(**row) for row in found]
