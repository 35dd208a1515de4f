"""Replicas in memory, for unit tests. The contract suite runs on them too."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime

from nexus.core.models import Row
from nexus.core.replicas import DueWork, Replica


class FakeReplicas:
    """`nexus.core.ports.ReplicaStore` in memory, where nothing expires. `due` is what it says of due work."""

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self.kept: dict[str, Row] = {}
        self.due = DueWork(0, 0, 0, 0, 0, 0)

    async def put_replica(self, replica: Replica, until: datetime) -> None:  # noqa: ARG002  # for ever
        """Keep a replica."""
        self._ask("put_replica")
        self.kept[replica.replica_id] = asdict(replica)

    async def remove_replica(self, replica_id: str) -> None:
        """Keep it no longer."""
        self._ask("remove_replica")
        self.kept.pop(replica_id, None)

    async def replicas(self, *, limit: int) -> list[Row]:
        """Up to `limit` replicas."""
        self._ask("replicas")
        return [*self.kept.values()][:limit]

    async def due_work(self, now: datetime, *, limit: int) -> DueWork:  # noqa: ARG002  # what was set
        """What was set."""
        self._ask("due_work")
        return self.due
