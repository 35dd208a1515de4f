"""Replicas and due work in MongoDB (contract §16). `replicas` has `expires_at`, as the records of builds."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from nexus.adapters.mongo.client import Calls, Operations, driver_call, insert_call
from nexus.adapters.mongo.documents import Documents
from nexus.core.models import Row
from nexus.core.recall import MEANING, WORDS
from nexus.core.replicas import DueWork, Replica
from nexus.core.turns import CLOSE, EXTRACT, SUMMARISE
from nexus.core.working_memory import REFINE

_FIELDS: Final = {"_id": 0, "expires_at": 0}


class MongoReplicas(Operations):
    """`nexus.core.ports.ReplicaStore` on the collections of a database; see `MongoMessages`."""

    def __init__(self, database: Any, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(calls, indexed)
        self._database = database
        self._replicas = Documents(database["replicas"])

    @insert_call
    async def put_replica(self, replica: Replica, until: datetime) -> None:
        """Keep a replica in place of what is kept of it."""
        document = {**asdict(replica), "expires_at": until}
        await self._replicas.collection.replace_one({"_id": replica.replica_id}, document, upsert=True)

    @driver_call
    async def remove_replica(self, replica_id: str) -> None:
        """Keep it no longer."""
        await self._replicas.delete({"_id": replica_id})

    @driver_call
    async def replicas(self, *, limit: int) -> list[Row]:
        """Up to `limit` replicas, in any order."""
        return await self._replicas.read_page({}, _FIELDS, None, limit)

    @driver_call
    async def due_work(self, now: datetime, *, limit: int) -> DueWork:
        """How much work is due by now. Of each kind it stands together in an index of due work alone."""

        async def count(collection: str, work: str, before: str = "") -> int:
            query = {f"{before}work": {"$eq": work}, f"{before}due_at": {"$lte": now}}
            return int(await self._database[collection].count_documents(query, limit=limit))

        return DueWork(
            turns_to_close=await count("turns", CLOSE),
            turns_to_summarise=await count("turns", SUMMARISE),
            turns_to_read=await count("turns", EXTRACT),
            compactions_to_summarise=await count("compactions", REFINE),
            messages_to_index=await count("messages", WORDS, "recall."),
            messages_to_embed=await count("messages", MEANING, "recall."),
        )
