"""The store as erasure uses it (contract §13)."""

from collections.abc import Sequence
from typing import Protocol

from nexus.core.erasure import Tombstone


class ErasureStore(Protocol):
    """Keeps tombstones, for ever. Errors: `StoreUnavailableError`, within the store's time limit."""

    async def put_tombstone(self, tombstone: Tombstone) -> None:
        """Keep a tombstone. One that is there already stays."""

    async def tombstones(self, owner_keys: Sequence[str]) -> list[Tombstone]:
        """All tombstones of these owners."""
