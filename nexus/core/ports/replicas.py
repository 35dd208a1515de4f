"""What replicas tell each other through the store, and how much work is due there (contract §16)."""

from datetime import datetime
from typing import Protocol

from nexus.core.models import Row
from nexus.core.replicas import DueWork, Replica


class ReplicaStore(Protocol):
    """Replicas, each until a time at which the store removes it by itself.

    Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError`.
    """

    async def put_replica(self, replica: Replica, until: datetime) -> None:
        """Keep a replica in place of what is kept of it."""

    async def remove_replica(self, replica_id: str) -> None:
        """Keep it no longer."""

    async def replicas(self, *, limit: int) -> list[Row]:
        """Up to `limit` replicas in any order, as another version may have written them: the fields of `Replica`."""

    async def due_work(self, now: datetime, *, limit: int) -> DueWork:
        """How much work is due by now, up to `limit` of each kind."""
